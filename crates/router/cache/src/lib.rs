//! The response cache: stores answers and returns them for identical requests. And the limits that several processes share, in the same
//! Redis or another one ([`SharedLimits`]).
//!
//! An entry is found by a [`Key`], a hash of everything that the answer depends on. Entries are in memory, with a limit on their
//! bytes, or in Redis. A Redis that does not answer costs a request at most [`redis::ANSWER_WITHIN`], once in [`redis::RETRY_AFTER`]:
//! it is a miss, which is logged and counted, never an error.

mod key;
mod memory;
pub mod redis;
mod shared;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use octet_config::{CacheStore, ResponseCache};

pub use key::{Key, KeyMaker};
use memory::Memory;
use redis::Redis;
pub use shared::{Account, Cooled, LEASE, Lease, Limit, Refused, SharedLimits};

/// Maximum size of a stored answer.
pub const ENTRY_BYTES_MAX: usize = 1 << 20;

/// Default lifetimes: LiteLLM's.
const MEMORY_TTL: Duration = Duration::from_secs(600);
const REDIS_TTL: Duration = Duration::from_secs(60);
/// Maximum lifetime of an answer.
const TTL_MAX: Duration = Duration::from_secs(366 * 86_400);

/// The store.
#[derive(Debug)]
pub struct Cache {
    place: Place,
    ttl: Duration,
    errors: AtomicU64,
}

#[derive(Debug)]
enum Place {
    Memory(Memory),
    Redis(Box<Redis>),
}

/// Prefix of an entry in Redis: values of other programs, and of other versions, are ignored.
const MAGIC: &[u8; 8] = b"octet\0\0\x01";
/// Bytes of an entry before the answer: the magic and when it was stored, in milliseconds since 1970.
const HEAD_BYTES: usize = 16;

impl Cache {
    /// The cache of a configuration. Does not connect yet.
    ///
    /// # Errors
    /// What is wrong with the address of Redis.
    pub fn new(settings: &ResponseCache) -> Result<Self, String> {
        let (place, usual) = match &settings.store {
            CacheStore::Memory { bytes_max } => {
                (Place::Memory(Memory::new(*bytes_max, ENTRY_BYTES_MAX)), MEMORY_TTL)
            }
            CacheStore::Redis(server) => (Place::Redis(Box::new(Redis::new(server)?)), REDIS_TTL),
        };
        Ok(Self { place, ttl: settings.ttl.unwrap_or(usual).min(TTL_MAX), errors: AtomicU64::new(0) })
    }

    /// The answer for this key, unless it is older than `age_max`.
    pub async fn get(&self, key: &Key, age_max: Option<Duration>) -> Option<Bytes> {
        let entry = match &self.place {
            Place::Memory(memory) => memory.get(key)?,
            Place::Redis(redis) => match redis.get(&key.to_string(), HEAD_BYTES + ENTRY_BYTES_MAX).await {
                Ok(entry) => entry?,
                Err(why) => {
                    self.failed(why.as_deref());
                    return None;
                }
            },
        };
        let (magic, rest) = entry.split_first_chunk::<8>()?;
        let (stored_ms, _) = rest.split_first_chunk::<8>()?;
        let stored = Duration::from_millis(u64::from_le_bytes(*stored_ms));
        let is_too_old = age_max.is_some_and(|most| now().saturating_sub(stored) > most);
        let is_whole = magic == MAGIC && entry.len() <= HEAD_BYTES + ENTRY_BYTES_MAX;
        (is_whole && !is_too_old).then(|| entry.slice(HEAD_BYTES..))
    }

    /// Whether answers are in this process, so that storing one takes no time.
    pub fn is_local(&self) -> bool {
        matches!(self.place, Place::Memory(_))
    }

    /// Stores an answer for `ttl`, or the configured time; not if it is too large, or the time is 0.
    pub async fn put(&self, key: &Key, answer: &[u8], ttl: Option<Duration>) {
        let Some((entry, ttl)) = self.entry(answer, ttl) else { return };
        match &self.place {
            Place::Memory(memory) => memory.put(key, entry.into(), ttl),
            Place::Redis(redis) => {
                if let Err(why) = redis.put(&key.to_string(), &entry, ttl).await {
                    self.failed(why.as_deref());
                }
            }
        }
    }

    /// The same without waiting, if answers [are in this process](Cache::is_local).
    pub fn put_local(&self, key: &Key, answer: &[u8], ttl: Option<Duration>) {
        if let (Place::Memory(memory), Some((entry, ttl))) = (&self.place, self.entry(answer, ttl)) {
            memory.put(key, entry.into(), ttl);
        }
    }

    fn entry(&self, answer: &[u8], ttl: Option<Duration>) -> Option<(Vec<u8>, Duration)> {
        let ttl = ttl.unwrap_or(self.ttl).min(TTL_MAX);
        if answer.len() > ENTRY_BYTES_MAX || ttl.is_zero() {
            return None;
        }
        let mut entry = Vec::with_capacity(HEAD_BYTES + answer.len());
        entry.extend_from_slice(MAGIC);
        let now_ms = u64::try_from(now().as_millis()).unwrap_or(u64::MAX);
        entry.extend_from_slice(&now_ms.to_le_bytes());
        entry.extend_from_slice(answer);
        Some((entry, ttl))
    }

    /// Deletes the answers with these names; missing ones are ignored.
    ///
    /// # Errors
    /// The error of Redis.
    pub async fn delete(&self, names: &[String]) -> Result<(), String> {
        // The Redis server may have other data, too.
        let keys: Vec<Key> = names.iter().filter_map(|name| Key::read(name)).collect();
        match &self.place {
            Place::Memory(memory) => {
                keys.iter().for_each(|key| memory.delete(key));
                Ok(())
            }
            Place::Redis(redis) => {
                let names: Vec<String> = keys.iter().map(ToString::to_string).collect();
                redis.delete(&names).await.map_err(|why| self.skipped(why))
            }
        }
    }

    /// Deletes all answers. Other data in the same Redis stays.
    ///
    /// # Errors
    /// The error of Redis.
    pub async fn clear(&self) -> Result<(), String> {
        match &self.place {
            Place::Memory(memory) => {
                memory.clear();
                Ok(())
            }
            Place::Redis(redis) => {
                let cleared = redis.clear(|name| Key::read(name).is_some(), MAGIC).await;
                cleared.map_err(|why| self.skipped(why))
            }
        }
    }

    /// Checks whether answers can be stored.
    ///
    /// # Errors
    /// The error of Redis.
    pub async fn ping(&self) -> Result<(), String> {
        match &self.place {
            Place::Memory(_) => Ok(()),
            Place::Redis(redis) => redis.ping().await.map_err(|why| self.skipped(why)),
        }
    }

    /// Redis's reports about itself and its clients; `None` if answers are in this process.
    ///
    /// # Errors
    /// The error of Redis.
    pub async fn redis_info(&self) -> Result<Option<(String, String)>, String> {
        match &self.place {
            Place::Memory(_) => Ok(None),
            Place::Redis(redis) => redis.info().await.map(Some).map_err(|why| self.skipped(why)),
        }
    }

    fn skipped(&self, why: redis::Failed) -> String {
        self.failed(why.as_deref());
        why.unwrap_or_else(|| "it has just failed, and is not used for some seconds".into())
    }

    /// How often Redis did not answer, or was skipped because it had just failed.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// `why` is logged once per pause in which Redis is skipped.
    fn failed(&self, why: Option<&str>) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        if let Some(why) = why {
            let seconds = redis::RETRY_AFTER.as_secs();
            tracing::warn!(
                "the response cache cannot be used for {seconds} s; requests continue without it: {why}"
            );
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
