//! Answers in this process's memory.

use std::time::{Duration, Instant};

use bytes::Bytes;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::key::Key;

/// Approximate overhead of an entry in bytes.
const OVERHEAD_BYTES: u64 = 256;
/// Separately locked shards. More would leave too little room in each for the largest answer.
const SHARDS: usize = 4;

/// Answers with a limit on their bytes.
#[derive(Debug)]
pub struct Memory {
    entries: Cache<Key, Entry, Size>,
}

#[derive(Debug, Clone)]
struct Entry {
    answer: Bytes,
    until: Instant,
}

#[derive(Debug, Clone)]
struct Size;

impl Weighter<Key, Entry> for Size {
    fn weight(&self, key: &Key, entry: &Entry) -> u64 {
        (key.namespace_bytes() + entry.answer.len()) as u64 + OVERHEAD_BYTES
    }
}

impl Memory {
    /// Holds `bytes_max`, or one answer of `entry_bytes_max` in each shard if that is more.
    pub fn new(bytes_max: u64, entry_bytes_max: usize) -> Self {
        let least = SHARDS as u64 * (entry_bytes_max as u64 + (1 << 16));
        let bytes_max = bytes_max.max(least);
        let items = usize::try_from(bytes_max >> 12).unwrap_or(usize::MAX).min(1 << 20);
        let options = OptionsBuilder::new()
            .shards(SHARDS)
            .estimated_items_capacity(items)
            .weight_capacity(bytes_max)
            .build();
        let entries = match options {
            Ok(options) => Cache::with_options(
                options,
                Size,
                DefaultHashBuilder::default(),
                quick_cache::sync::DefaultLifecycle::default(),
            ),
            // Cannot happen: it only needs both capacities.
            Err(_) => Cache::with_weighter(items, bytes_max, Size),
        };
        Self { entries }
    }

    /// The answer, unless it has expired.
    pub fn get(&self, key: &Key) -> Option<Bytes> {
        let entry = self.entries.get(key)?;
        if entry.until > Instant::now() {
            return Some(entry.answer);
        }
        self.entries.remove(key);
        None
    }

    /// Forgets an answer.
    pub fn delete(&self, key: &Key) {
        self.entries.remove(key);
    }

    /// Forgets all.
    pub fn clear(&self) {
        self.entries.clear();
    }

    /// Stores an answer.
    pub fn put(&self, key: &Key, answer: Bytes, ttl: Duration) {
        self.entries.insert(key.clone(), Entry { answer, until: Instant::now() + ttl });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyMaker;

    fn key(n: u32) -> Key {
        let mut maker = KeyMaker::new();
        maker.text(&n.to_string());
        maker.key(None)
    }

    #[test]
    fn memory_is_bounded_by_bytes_and_entries_expire() {
        let memory = Memory::new(0, 1 << 20);
        let mib = Bytes::from(vec![7; 1 << 20]);
        for n in 0..100 {
            memory.put(&key(n), mib.clone(), Duration::from_secs(60));
        }
        let held = (0..100).filter(|n| memory.get(&key(*n)).is_some()).count();
        assert!((1..=8).contains(&held), "{held} MiB are held");
        memory.put(&key(1), Bytes::from_static(b"x"), Duration::from_nanos(1));
        assert_eq!(memory.get(&key(1)), None);
        memory.put(&key(1), Bytes::from_static(b"x"), Duration::from_secs(60));
        assert_eq!(memory.get(&key(1)).as_deref(), Some(&b"x"[..]));
    }
}
