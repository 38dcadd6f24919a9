//! The cache's disk tier: pages and states in files, which survive a restart. Called by `cache` between steps.
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

/// Where cached pages and states are kept when memory has no room for them, and until the next start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// The folder; made if it is not there. Several models and processes may share it.
    pub dir: PathBuf,
    /// Bytes that all files in it may take together.
    pub bytes: u64,
}

/// What the disk tier did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Files that are there, of all models.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Sequences that went on from what was on disk.
    pub hits: u64,
    /// Tokens that they did not compute.
    pub tokens: u64,
    /// Pages and states written.
    pub writes: u64,
    /// Those that made way.
    pub evicted: u64,
    /// Files that were damaged or gone, and those that could not be written.
    pub errors: u64,
    /// States that should have been stored and were not: the disk did not keep up, could not be written, or had no room.
    pub dropped: u64,
}

/// Files that are read ahead of the engine.
const READ_AHEAD: usize = 4;
/// After so long on a full disk all of the budget is tried again.
const LOWERED: Duration = Duration::from_secs(600);
/// Bytes that must go into the folder when it is opened.
const PROBE: usize = 4096;
/// Leftovers of another process are its own for so long.
const TEMPORARY_AGE: Duration = Duration::from_secs(3600);

pub struct Disk {
    budget: u64,
    /// What was stored when the disk was found full, and when that was: the budget until it is tried again.
    lowered: Option<(u64, Instant)>,
    /// Bytes of a page and of a state.
    page: usize,
    state: usize,
    index: Index,
    /// Files on their way to the disk.
    writing: HashMap<Name, u64>,
    writing_bytes: u64,
    threads: Threads,
    faults: DiskFaults,
    pub stats: DiskStats,
}

/// Files on their way to a sequence.
#[derive(Debug)]
pub struct Reading {
    parts: Receiver<Part>,
    names: Vec<Name>,
    /// How many have come.
    pub done: usize,
}

impl Disk {
    /// Opens the folder, and takes stock. `page` and `state` are bytes of the model's pages and states.
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
            disk.faults.try_again(); // there may be something to make way
        }
        Ok(disk)
    }

    /// Figures as they are now.
    pub fn stats(&self) -> DiskStats {
        DiskStats { files: self.index.len(), bytes: self.index.bytes(), ..self.stats }
    }

    /// True where a page or state is there and can be read.
    pub fn has(&self, key: &Key) -> bool {
        self.index.has(&name_of(key))
    }
    /// True where there is nothing left to do to have it there.
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

    /// True where the writing thread keeps up, and what it writes gets there.
    pub fn takes_more(&self) -> bool {
        self.writing_bytes < (4 * self.state + 64 * self.page) as u64 && !self.in_backoff()
    }
    /// True while nothing is written, since it failed a moment ago.
    pub fn in_backoff(&self) -> bool {
        self.faults.in_backoff(Instant::now())
    }
    /// Tries to write although it failed a moment ago.
    pub fn try_again(&mut self) {
        self.faults.try_again();
    }

    /// Has a page written. Not without the one before it.
    pub fn store_page(&mut self, key: Key, parent: &Key, depth: usize, bytes: Vec<u8>) -> bool {
        self.store(key, parent, depth, None, vec![Arc::new(bytes)])
    }

    /// Has a state written, `tail` tokens after `parent`, with the page that has their keys and values. False where
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
        // What it follows must not make way for it.
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

    /// Bytes that files may take now.
    fn limit(&self) -> u64 {
        match self.lowered {
            Some((bytes, since)) if since.elapsed() < LOWERED => bytes.min(self.budget),
            _ => self.budget,
        }
    }

    /// Takes note of what was written.
    pub fn poll(&mut self) {
        while let Ok((item, result)) = self.threads.written.try_recv() {
            self.note(item, result);
        }
    }

    /// Waits until all has been written.
    pub fn flush(&mut self) {
        while !self.writing.is_empty() {
            match self.threads.written.recv() {
                Ok((item, result)) => self.note(item, result),
                Err(_) => {
                    // the thread is gone, and what it was to write
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
                // what it follows has made way meanwhile, or could not be written
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

    /// Makes room for `more` bytes.
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

    /// Starts to read pages, and the state with the page of its tail. `None` where one of them is not there.
    pub fn read(&mut self, pages: &[Key], state: Option<(Key, usize)>) -> Option<Reading> {
        let mut wanted = Vec::with_capacity(pages.len() + 1);
        let state = state.map(|(key, tail)| {
            let lengths = if tail == 0 { vec![self.state] } else { vec![self.state, self.page] };
            (key, lengths)
        });
        for (key, lengths) in pages.iter().map(|key| (*key, vec![self.page])).chain(state) {
            wanted.push(Wanted { item: self.index.item(&name_of(&key))?, key, lengths });
        }
        let names: Vec<Name> = wanted.iter().map(|w| w.item.name).collect();
        self.index.touch(names.iter().copied());
        let (to, parts) = sync_channel(READ_AHEAD);
        self.threads.read(io::Read { wanted, to }).then_some(Reading { parts, names, done: 0 })
    }

    /// The next file of a sequence: `Ok(None)` where it has not come in time, `Err` where it never will; then it is
    /// forgotten.
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
    /// Nothing more comes.
    pub fn is_done(&self) -> bool {
        self.done == self.names.len()
    }

    /// What the next file is to one who waits for a thread that is gone.
    fn given_up(&self) -> (Name, std::io::Error) {
        (self.names[self.done], std::io::Error::other("the thread that reads it has ended"))
    }
}

/// A folder that nobody else can look into.
pub(super) fn make_dir(dir: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Writes a file into the folder, and removes it. A full disk is no failure: it is what comes back.
fn probe(dir: &Path, writer: Writer) -> std::io::Result<Option<std::io::Error>> {
    // A name that nobody else has, for others may try the folder too. The file is removed where it goes out of scope.
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

/// Everything of ours in the folder. Removes what other processes left half-written.
fn scan(dir: &Path) -> std::io::Result<Vec<FoundFile>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        // gone already: another process cleans up too
        let Ok(metadata) = entry.metadata() else { continue };
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if let Some(item) = Item::parse(name).filter(|_| metadata.is_file()) {
            found.push(FoundFile { item, bytes: metadata.len(), modified });
        } else if name.ends_with(TEMPORARY) && modified.elapsed().is_ok_and(|age| age > TEMPORARY_AGE) {
            let _ = std::fs::remove_file(entry.path()); // the next start tries again
        }
    }
    Ok(found)
}
