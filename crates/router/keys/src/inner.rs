//! What a store has in memory, and its file: written behind, and read again when another process has changed it. Shared by `store`, its
//! grants and its writer's thread.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;

use rusqlite::Connection;

use crate::entry::{Entries, Entry, KeyInfo, lock};
use crate::error::from_sqlite;
use crate::files::{FILES, Identity, beside, identity};
use crate::options::Options;
use crate::table::{self, Counts, Unread, UsageKey};
use crate::tags::Tags;
use crate::{Clock, Error, KeyId, Now, calendar, own, schema, secret};

pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    options: Options,
    pub(crate) entries: RwLock<Entries>,
    /// Usage that was not written yet.
    used: Mutex<HashMap<UsageKey, Counts>>,
    /// The same by tag.
    pub(crate) tags: Tags,
    /// The server's own key.
    pub(crate) own: Arc<Entry>,
    /// Why nothing can be written, if so.
    fault: RwLock<Option<String>>,
    /// Never locked while a request waits.
    pub(crate) file: Mutex<File>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

pub(crate) struct File {
    pub(crate) db: Connection,
    /// SQLite's count of other processes' changes when keys were last read.
    data_version: i64,
    /// Day on which old usage was last deleted.
    pruned: Option<i64>,
    /// The clock when it was last as expected, and until which second nothing is deleted because it was not.
    seen: Option<Now>,
    unsteady_until: u64,
    /// The identity of the opened files.
    opened: [Option<Identity>; FILES.len()],
    /// When the next check for readability is due.
    look_at: Instant,
    /// The file itself, for checks; closed after `db`.
    raw: std::fs::File,
}

/// How far the calendar may differ from the time that has passed: a machine may sleep meanwhile.
const JUMP_MAX_S: u64 = 3 * 86_400;
/// After a jump of the calendar, how long no usage is deleted: a wrong date is often corrected soon.
const JUMP_WAIT_S: u64 = 6 * 3600;

impl File {
    /// Whether the calendar can be trusted with deleting old usage: it has not jumped lately.
    fn is_steady(&mut self, now: Now) -> bool {
        if let Some(seen) = self.seen.replace(now) {
            let passed = now.second.saturating_sub(seen.second);
            let expected = seen.unix.saturating_add_unsigned(passed);
            if now.unix.abs_diff(expected) > JUMP_MAX_S {
                tracing::warn!(
                    "the system's clock has jumped: no old usage is deleted for {} hours",
                    JUMP_WAIT_S / 3600
                );
                self.unsteady_until = now.second.saturating_add(JUMP_WAIT_S);
            }
        }
        now.second >= self.unsteady_until
    }
}

/// Checks take at most one part in this many of the time.
const LOOK_SHARE: u32 = 200;

impl Inner {
    /// Opens the file; reads no keys yet.
    pub(crate) fn open(path: &Path, options: Options) -> Result<Self, Error> {
        let (db, raw) = schema::open(path, options.bytes_max, options.lock_timeout)?;
        let opened = FILES.map(|end| identity(&beside(path, end)));
        let look_at = Instant::now() + options.check_every;
        Ok(Self {
            path: path.to_path_buf(),
            options,
            entries: RwLock::default(),
            used: Mutex::default(),
            tags: Tags::default(),
            own: Arc::new(own::entry()),
            fault: RwLock::default(),
            file: Mutex::new(File {
                db,
                data_version: -1,
                pruned: None,
                seen: None,
                unsteady_until: 0,
                opened,
                look_at,
                raw,
            }),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
        })
    }

    /// Starts the thread that writes; [`stop`](Self::stop) ends it.
    pub(crate) fn write_behind(self: &Arc<Self>) -> Result<JoinHandle<()>, Error> {
        let shared = Arc::clone(self);
        let writer =
            std::thread::Builder::new().name("octet-keys".into()).spawn(move || write_behind(&shared));
        writer.map_err(|source| Error::Thread { path: self.path.clone(), source })
    }

    /// Writes a last time, and ends the thread that writes.
    pub(crate) fn stop(&self) {
        *lock(&self.stop) = true;
        self.stopped.notify_all();
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.options.clock
    }

    pub(crate) fn fault(&self) -> Option<String> {
        self.fault.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_fault(&self, fault: Option<String>) {
        *self.fault.write().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Counts what an answer took.
    pub(crate) fn count(&self, now: Now, key: KeyId, model: String, counts: &Counts) {
        let by = UsageKey { day: calendar::day(now.unix), key, model };
        lock(&self.used).entry(by).or_default().add(counts);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn info(&self, entry: &Entry) -> KeyInfo {
        let mut account = entry.account();
        KeyInfo {
            id: entry.id,
            spent: account.spent(self.clock().now()),
            name: account.name.clone(),
            limits: account.limits.clone(),
            created: account.created,
            revoked: account.revoked,
            resets: account.resets(),
            profile: account.profile.clone(),
        }
    }

    pub(crate) fn sqlite(&self, e: rusqlite::Error) -> Error {
        from_sqlite(&self.path, self.options.bytes_max, e)
    }

    pub(crate) fn unread(&self, e: Unread) -> Error {
        match e {
            Unread::Sqlite(e) => self.sqlite(e),
            Unread::Damaged(what) => Error::Damaged { path: self.path.clone(), what },
        }
    }

    /// Writes spend, reads other processes' changes, and records whether that works.
    pub(crate) fn tick(&self) -> Result<(), Error> {
        let mut file = lock(&self.file);
        let sound = self.is_there(&file).and_then(|()| self.is_whole(&mut file));
        let done = sound.and_then(|()| self.write(&mut file)).and_then(|()| self.read(&mut file));
        let (before, now) = (self.fault(), done.as_ref().err().map(ToString::to_string));
        match (&before, &now) {
            (None, Some(why)) => {
                tracing::error!("usage cannot be recorded, so keys with a budget are refused: {why}");
            }
            (Some(_), None) => tracing::info!(path = %self.path.display(), "usage is recorded again"),
            _ => {}
        }
        if before != now {
            self.set_fault(now);
        }
        done
    }

    /// Moves the log into the file, as far as no other process needs it.
    pub(crate) fn checkpoint(&self) -> Result<(), Error> {
        let file = lock(&self.file);
        // A busy log is no error: the process that reads it moves the rest.
        let moved = file.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        moved.map_err(|e| self.sqlite(e))
    }

    /// SQLite can write to a deleted file, and those writes would be lost.
    fn is_there(&self, file: &File) -> Result<(), Error> {
        let paths = FILES.map(|end| beside(&self.path, end));
        let gone = paths.into_iter().zip(file.opened).find(|(path, opened)| identity(path) != *opened);
        gone.map_or(Ok(()), |(path, _)| Err(Error::Gone { path }))
    }

    /// If the file was overwritten, SQLite continues from memory, and what it writes cannot be read.
    fn is_whole(&self, file: &mut File) -> Result<(), Error> {
        let began = Instant::now();
        if began < file.look_at {
            return Ok(());
        }
        // A damaged file is checked again next time.
        if let Some(what) = schema::damage_on_disk(&self.path, &file.raw, self.options.lock_timeout) {
            return Err(Error::Damaged { path: self.path.clone(), what });
        }
        let now = Instant::now();
        let every = self.options.check_every;
        file.look_at = if every.is_zero() { now } else { now + every.max((now - began) * LOOK_SHARE) };
        Ok(())
    }

    fn write(&self, file: &mut File) -> Result<(), Error> {
        let now = self.clock().now();
        let used = std::mem::take(&mut *lock(&self.used));
        let mut spenders = Vec::new();
        for entry in self.all() {
            let unwritten = entry.account().unwritten(now);
            spenders.extend(unwritten.map(|u| (entry, u)));
        }
        // A fault ends when a write succeeds.
        if !used.is_empty() || !spenders.is_empty() || self.fault().is_some() {
            let rows: Vec<_> = used.iter().collect();
            let spent: Vec<_> = spenders.iter().map(|(entry, unwritten)| (entry.id, *unwritten)).collect();
            match table::add(&mut file.db, now.unix, &rows, &spent) {
                Ok(sums) => {
                    for ((entry, unwritten), in_file) in spenders.iter().zip(sums) {
                        entry.account().written(*unwritten, in_file);
                    }
                }
                Err(e) => {
                    let mut newer = lock(&self.used);
                    for (by, counts) in used {
                        newer.entry(by).or_default().add(&counts);
                    }
                    return Err(self.sqlite(e));
                }
            }
        }
        self.tags.write(&mut file.db).map_err(|e| self.sqlite(e))?;
        let today = calendar::day(now.unix);
        if file.is_steady(now) && file.pruned != Some(today) {
            let before = today.saturating_sub(i64::from(self.options.retention_days));
            table::prune(&file.db, before).map_err(|e| self.sqlite(e))?;
            file.pruned = Some(today);
        }
        Ok(())
    }

    /// Reads the keys again if another process changed something.
    fn read(&self, file: &mut File) -> Result<(), Error> {
        let version = file.db.pragma_query_value(None, "data_version", |row| row.get(0));
        let version: i64 = version.map_err(|e| self.sqlite(e))?;
        if version == file.data_version {
            return Ok(());
        }
        let rows = table::keys(&file.db).map_err(|e| self.unread(e))?;
        self.adopt(rows, |_| true);
        file.data_version = version;
        Ok(())
    }

    /// The account of a key.
    pub(crate) fn find(&self, key: &str) -> Option<Arc<Entry>> {
        let hash = secret::hash(key)?;
        // Constant in time: blake3's own comparison.
        self.get(KeyId::of(&hash)).filter(|e| e.hash == hash)
    }

    /// The account with this id.
    pub(crate) fn get(&self, id: KeyId) -> Option<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }
}

/// The writer's thread.
fn write_behind(inner: &Inner) {
    /// However the thread ends: spend after that is not written.
    struct Ended<'a>(&'a Inner);
    impl Drop for Ended<'_> {
        fn drop(&mut self) {
            self.0.set_fault(Some("the thread that writes it has ended".into()));
        }
    }
    let _ended = Ended(inner);
    loop {
        let stop = lock(&inner.stop);
        let wait = inner.options.flush_every;
        let waited = inner.stopped.wait_timeout_while(stop, wait, |stop| !*stop);
        let is_last = *waited.unwrap_or_else(PoisonError::into_inner).0;
        // Errors become the fault that requests are refused with, and are logged.
        let _ = inner.tick();
        if is_last {
            break;
        }
    }
}
