//! The cache's disk tier: pages and states in files, which survive a restart.
//!
//! File names are chained hashes (`key`) of the model, everything that affects its results, the salt and all tokens: a file with the
//! right name holds what would be computed, or is damaged, which its checksum detects. Separate threads write and read. An unreadable
//! file is a cache miss, and is deleted. Failed writes are reported once and retried with growing pauses; a full disk lowers the
//! budget.

mod faults;
mod file;
mod index;
mod io;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use super::key::Key;
use crate::Error;
use faults::{DiskFaults, Kind};
use file::TEMPORARY;
pub use index::Item;
use index::{Index, Name, name_of};
use io::{Part, Threads, Wanted, Writer};

/// Options of the disk tier, which stores evicted pages and states, also for the next start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// The folder; created if missing. Several models and processes may share it.
    pub dir: PathBuf,
    /// Maximum size of all its files together, in bytes.
    pub bytes: u64,
}

/// Statistics of the disk tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Files in the folder, of all models.
    pub files: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// Sequences that resumed from data on disk.
    pub hits: u64,
    /// Tokens that they did not have to compute.
    pub tokens: u64,
    /// Pages and states written.
    pub writes: u64,
    /// Evicted pages and states.
    pub evicted: u64,
    /// Files that were damaged or missing, and failed writes.
    pub errors: u64,
    /// States that were not stored: the disk was too slow, failed, or was full.
    pub dropped: u64,
}

/// Number of files read ahead of the engine.
const READ_AHEAD: usize = 4;
/// Time after which the whole budget is tried again on a full disk.
const LOWERED: Duration = Duration::from_secs(600);
/// Bytes written as a test when the folder is opened.
const PROBE: usize = 4096;
/// Age from which incomplete files of other processes are deleted.
const TEMPORARY_AGE: Duration = Duration::from_secs(3600);

pub struct Disk {
    budget: u64,
    /// The stored bytes when the disk was found full, and the time: the budget until the next try.
    lowered: Option<(u64, Instant)>,
    /// Bytes of a page, and of the largest state.
    page: usize,
    state: usize,
    index: Index,
    /// Files being written.
    writing: HashMap<Name, u64>,
    writing_bytes: u64,
    threads: Threads,
    faults: DiskFaults,
    pub stats: DiskStats,
}

/// Files being read for a sequence.
#[derive(Debug)]
pub struct Reading {
    parts: Receiver<Part>,
    names: Vec<Name>,
    /// Number of files received.
    pub done: usize,
}

impl Disk {
    /// Opens the folder, and lists its files. `page` and `state` are the sizes of the model's pages and of its largest states in bytes.
    pub fn open(options: &DiskOptions, page: usize, state: usize) -> Result<Self, Error> {
        Self::open_with(options, page, state, file::write)
    }

    /// The same with another way to write files, for tests.
    fn open_with(options: &DiskOptions, page: usize, state: usize, writer: Writer) -> Result<Self, Error> {
        let dir = &options.dir;
        let fail = |e: std::io::Error| Error::CacheDir {
            path: dir.display().to_string(),
            what: format!("cached prompts cannot be kept there: {e}; give a folder that can be written to"),
        };
        make_dir(dir).map_err(fail)?;
        let mut found = scan(dir).map_err(fail)?;
        let full = probe(dir, writer).map_err(fail)?;
        let threads = Threads::start(dir, writer).map_err(fail)?;
        let mut disk = Self {
            budget: options.bytes,
            lowered: None,
            page,
            state,
            index: Index::default(),
            writing: HashMap::new(),
            writing_bytes: 0,
            threads,
            faults: DiskFaults::new(dir.clone()),
            stats: DiskStats::default(),
        };
        found.sort_by_key(|f| f.item.depth);
        for f in &found {
            if !disk.index.insert(f.item, f.bytes) {
                disk.delete(vec![f.item]);
            }
        }
        found.sort_by_key(|f| f.modified);
        found.iter().for_each(|f| disk.index.touch(std::iter::once(f.item.name)));
        disk.shrink(0);
        if let Some(e) = full {
            disk.not_written(&e);
            disk.faults.try_again(); // Other files may be evicted.
        }
        Ok(disk)
    }

    /// The current statistics.
    pub fn stats(&self) -> DiskStats {
        DiskStats { files: self.index.len(), bytes: self.index.bytes(), ..self.stats }
    }

    /// Whether a page or state is stored and can be read.
    pub fn has(&self, key: &Key) -> bool {
        self.index.has(&name_of(key))
    }
    /// Whether it is stored, or being written.
    pub fn will_have(&self, key: &Key) -> bool {
        let name = name_of(key);
        self.index.has(&name) || self.writing.contains_key(&name)
    }
    /// Lengths of the tails of states that follow `parent`, longest first.
    pub fn tails(&self, parent: &Key) -> Vec<usize> {
        let mut tails: Vec<usize> =
            self.index.states(&name_of(parent)).iter().map(|s| usize::from(s.0)).collect();
        tails.sort_unstable_by(|a, b| b.cmp(a));
        tails.dedup();
        tails
    }

    /// Whether the writing thread keeps up, and its writes succeed.
    pub fn takes_more(&self) -> bool {
        self.writing_bytes < (4 * self.state + 64 * self.page) as u64 && !self.in_backoff()
    }
    /// Whether writing is paused after a failure.
    pub fn in_backoff(&self) -> bool {
        self.faults.in_backoff(Instant::now())
    }
    /// Ends the pause after a failure.
    pub fn try_again(&mut self) {
        self.faults.try_again();
    }

    /// Queues a page for writing. Not without the one before it.
    pub fn store_page(&mut self, key: Key, parent: &Key, depth: usize, bytes: Vec<u8>) -> bool {
        self.store(key, parent, depth, None, vec![Arc::new(bytes)])
    }

    /// Queues a state for writing, `tail` tokens after `parent`, with the page that has their keys and values. False if
    /// there is no room for it.
    pub fn store_state(
        &mut self,
        key: Key,
        parent: &Key,
        depth: usize,
        tail: usize,
        state: Arc<Vec<u8>>,
        page: Option<Vec<u8>>,
    ) -> bool {
        let parts = std::iter::once(state).chain(page.map(Arc::new)).collect();
        self.store(key, parent, depth, u8::try_from(tail).ok(), parts)
    }

    fn store(
        &mut self,
        key: Key,
        parent: &Key,
        depth: usize,
        tail: Option<u8>,
        parts: Vec<Arc<Vec<u8>>>,
    ) -> bool {
        let item = Item { name: name_of(&key), parent: name_of(parent), depth: depth as u32, tail };
        let bytes = file::file_bytes(parts.iter().map(|p| p.len()).sum());
        if self.will_have(&key) {
            return true;
        }
        if depth > 0 && !self.will_have(parent) {
            return false;
        }
        // Its predecessors must not be evicted for it.
        let mut at = self.index.item(&item.parent);
        let mut path = Vec::new();
        while let Some(p) = at {
            path.push(p.name);
            at = if p.depth > 0 { self.index.item(&p.parent) } else { None };
        }
        self.index.touch(path.into_iter());
        self.shrink(bytes);
        if self.index.bytes() + self.writing_bytes + bytes > self.limit()
            || (depth > 0 && !self.will_have(parent))
            || !self.threads.write(io::Write::Store { item, key, parts })
        {
            return false;
        }
        self.writing.insert(item.name, bytes);
        self.writing_bytes += bytes;
        true
    }

    /// The current budget in bytes.
    fn limit(&self) -> u64 {
        match self.lowered {
            Some((bytes, since)) if since.elapsed() < LOWERED => bytes.min(self.budget),
            _ => self.budget,
        }
    }

    /// Records finished writes.
    pub fn poll(&mut self) {
        while let Ok((item, result)) = self.threads.written.try_recv() {
            self.note(item, result);
        }
    }

    /// Waits until all files are written.
    pub fn flush(&mut self) {
        while !self.writing.is_empty() {
            match self.threads.written.recv() {
                Ok((item, result)) => self.note(item, result),
                Err(_) => {
                    // The thread has ended, and its queue is lost.
                    self.writing.clear();
                    self.writing_bytes = 0;
                }
            }
        }
    }

    fn note(&mut self, item: Item, result: std::io::Result<()>) {
        let bytes = self.writing.remove(&item.name).unwrap_or(0);
        self.writing_bytes = self.writing_bytes.saturating_sub(bytes);
        match result {
            Ok(()) => {
                self.faults.wrote(Instant::now());
                if self.index.insert(item, bytes) {
                    self.stats.writes += 1;
                    return;
                }
                // Its predecessor was evicted meanwhile, or could not be written.
                self.delete(vec![item]);
            }
            Err(e) => {
                self.stats.errors += 1;
                self.not_written(&e);
            }
        }
        self.stats.dropped += u64::from(item.tail.is_some());
    }

    fn not_written(&mut self, e: &std::io::Error) {
        let now = Instant::now();
        if Kind::of(e) == Kind::Full {
            self.lowered = Some((self.index.bytes(), now));
        }
        if let Some(what) = self.faults.not_written(e, now) {
            tracing::warn!("{what}");
        }
    }

    /// Evicts files until `more` bytes fit.
    fn shrink(&mut self, more: u64) {
        let most = self.limit().saturating_sub(self.writing_bytes.saturating_add(more));
        let gone = self.index.shrink(most);
        self.stats.evicted += gone.len() as u64;
        self.delete(gone);
    }

    fn delete(&mut self, items: Vec<Item>) {
        for item in items {
            self.threads.write(io::Write::Delete(item));
        }
    }

    /// Starts to read pages, and a state with the page of its tail, in parts of these lengths. `None` if one of them is missing.
    pub fn read(&mut self, pages: &[Key], state: Option<(Key, Vec<usize>)>) -> Option<Reading> {
        let mut wanted = Vec::with_capacity(pages.len() + 1);
        for (key, lengths) in pages.iter().map(|key| (*key, vec![self.page])).chain(state) {
            wanted.push(Wanted { item: self.index.item(&name_of(&key))?, key, lengths });
        }
        let names: Vec<Name> = wanted.iter().map(|w| w.item.name).collect();
        self.index.touch(names.iter().copied());
        let (to, parts) = sync_channel(READ_AHEAD);
        self.threads.read(io::Read { wanted, to }).then_some(Reading { parts, names, done: 0 })
    }

    /// The next file of a sequence: `Ok(None)` if it has not arrived in time, `Err` if it never will; then its entry is
    /// removed.
    pub fn next(&mut self, reading: &mut Reading, wait: Duration) -> Result<Option<Vec<Vec<u8>>>, ()> {
        let part = match reading.parts.try_recv() {
            Ok(part) => part,
            Err(TryRecvError::Empty) if wait.is_zero() => return Ok(None),
            Err(TryRecvError::Empty) => match reading.parts.recv_timeout(wait) {
                Ok(part) => part,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => return Ok(None),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => Err(reading.given_up()),
            },
            Err(TryRecvError::Disconnected) => Err(reading.given_up()),
        };
        match part {
            Ok(parts) => {
                reading.done += 1;
                Ok(Some(parts))
            }
            Err((name, e)) => {
                self.stats.errors += 1;
                if let Some(what) = self.faults.not_read(&e) {
                    tracing::warn!("{what}");
                }
                let gone = self.index.remove(name);
                self.delete(gone);
                Err(())
            }
        }
    }
}

impl Reading {
    /// No more files follow.
    pub fn is_done(&self) -> bool {
        self.done == self.names.len()
    }

    /// The result for a sequence whose reading thread has ended.
    fn given_up(&self) -> (Name, std::io::Error) {
        (self.names[self.done], std::io::Error::other("the thread that reads it has ended"))
    }
}

/// Creates a folder that only this user can read.
pub(super) fn make_dir(dir: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Writes a file into the folder, and removes it. A full disk is not a failure, but is returned.
fn probe(dir: &Path, writer: Writer) -> std::io::Result<Option<std::io::Error>> {
    // A unique name, as other processes may test the folder, too. The file is removed when it goes out of scope.
    let place = || tempfile::Builder::new().suffix(TEMPORARY).tempfile_in(dir).map(|f| f.into_temp_path());
    let result = place().and_then(|to| {
        writer(&to, &Key::default(), &[Arc::new(vec![0; PROBE])])?;
        to.close()
    });
    match result {
        Err(e) if Kind::of(&e) == Kind::Full => Ok(Some(e)),
        other => other.map(|()| None),
    }
}

struct FoundFile {
    item: Item,
    bytes: u64,
    modified: SystemTime,
}

/// All files of this cache in the folder. Removes incomplete files of other processes.
fn scan(dir: &Path) -> std::io::Result<Vec<FoundFile>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        // Deleted already: another process also cleans up.
        let Ok(metadata) = entry.metadata() else { continue };
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if let Some(item) = Item::parse(name).filter(|_| metadata.is_file()) {
            found.push(FoundFile { item, bytes: metadata.len(), modified });
        } else if name.ends_with(TEMPORARY) && modified.elapsed().is_ok_and(|age| age > TEMPORARY_AGE) {
            let _ = std::fs::remove_file(entry.path()); // The next start tries again.
        }
    }
    Ok(found)
}
