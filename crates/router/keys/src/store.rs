//! All keys, in memory and in their file. Used by the router for each request, and by `octet keys` and `octet usage`.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::entry::{Entries, Entry, KeyInfo, lock};
use crate::error::from_sqlite;
use crate::files::{FILES, Identity, beside, identity};
use crate::grant::Grant;
use crate::table::{self, Counts, Filter, Unread, UsageKey, UsageRow};
use crate::tags::Tags;
use crate::{
    Ask, Clock, Error, KeyId, Limits, Now, Profile, Refusal, Secret, calendar, own, schema, secret, total,
};

/// Options of a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// Interval at which spend is written and changes by other processes are read. A crash loses at most this much.
    pub flush_every: Duration,
    /// How long usage is kept.
    pub retention_days: u32,
    /// Maximum size of the file.
    pub bytes_max: u64,
    /// Interval at which the file is checked for being readable by others: overwriting it would go unnoticed otherwise. Large files are
    /// checked less often. Zero checks at every write.
    pub check_every: Duration,
    /// How long to wait for another process that writes.
    pub lock_timeout: Duration,
    /// The clock.
    pub clock: Clock,
}

impl Default for Options {
    /// Every second, 400 days, 1 GiB, every 5 s, 2 s, the system's clock.
    fn default() -> Self {
        Self {
            flush_every: Duration::from_secs(1),
            retention_days: 400,
            bytes_max: 1 << 30,
            check_every: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
            clock: Clock::system(),
        }
    }
}

pub(crate) struct Inner {
    path: PathBuf,
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
    /// The identity of the opened files.
    opened: [Option<Identity>; FILES.len()],
    /// When the next check for readability is due.
    look_at: Instant,
    /// The file itself, for checks; closed after `db`.
    raw: std::fs::File,
}

/// Checks take at most one part in this many of the time.
const LOOK_SHARE: u32 = 200;

/// The changeable parts of a key, a user or a team.
#[derive(Debug, Clone)]
pub struct Draft {
    /// A key's name. Of a user or a team it is the id, which cannot change.
    pub name: String,
    /// Its limits.
    pub limits: Limits,
    /// Its owners and metadata.
    pub profile: Profile,
}

/// All keys. Dropping it writes unwritten usage; [`Store::close`] also returns errors.
pub struct Store {
    pub(crate) inner: Arc<Inner>,
    writer: Option<JoinHandle<()>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the key file, and creates it if it does not exist; its folder must exist.
    ///
    /// # Errors
    /// If it is not a key file, damaged, of a newer version, locked, or cannot be written.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, Options::default())
    }

    /// [`Store::open`] with options.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        let path = path.as_ref().to_path_buf();
        let (db, raw) = schema::open(&path, options.bytes_max, options.lock_timeout)?;
        let opened = FILES.map(|end| identity(&beside(&path, end)));
        let look_at = Instant::now() + options.check_every;
        let inner = Arc::new(Inner {
            path: path.clone(),
            options,
            entries: RwLock::default(),
            used: Mutex::default(),
            tags: Tags::default(),
            own: Arc::new(own::entry()),
            fault: RwLock::default(),
            file: Mutex::new(File { db, data_version: -1, pruned: None, opened, look_at, raw }),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
        });
        inner.tick()?;
        let shared = inner.clone();
        let writer = std::thread::Builder::new()
            .name("octet-keys".into())
            .spawn(move || write_behind(&shared))
            .map_err(|source| Error::Thread { path, source })?;
        Ok(Self { inner, writer: Some(writer) })
    }

    /// Authorizes a request for `model`. Reads only memory.
    ///
    /// # Errors
    /// The refusal, for the client.
    pub fn authorize(&self, key: &str, model: &str, ask: &Ask) -> Result<Grant, Refusal> {
        self.authorize_in(key, model, &[], ask)
    }

    /// The same for a model that is in these groups: a key may name them instead of the model.
    ///
    /// # Errors
    /// The refusal, for the client.
    pub fn authorize_in(&self, key: &str, model: &str, groups: &[&str], ask: &Ask) -> Result<Grant, Refusal> {
        let entry = self.inner.find(key).ok_or(Refusal::Unknown)?;
        let owners = entry.owners()?;
        let now = self.inner.clock().now();
        let fault = || self.inner.fault();
        let reserved = {
            let mut account = entry.account();
            account.check(now, model, groups, fault)?;
            // Nothing is counted before all of them agree. Lock order: the key, its user, its team.
            let mut theirs = Vec::with_capacity(owners.len());
            for owner in &owners {
                let mut account = owner.account();
                account.check(now, model, groups, fault).map_err(|refusal| owner.refusal(refusal))?;
                theirs.push(account);
            }
            for account in &mut theirs {
                account.admit(now, ask);
            }
            account.admit(now, ask)
        };
        let (store, more) = (self.inner.clone(), Counts::default());
        Ok(Grant { store, entry, owners, model: Some(model.into()), reserved: Some(reserved), more })
    }

    /// The id of a valid key, for requests without a model.
    ///
    /// # Errors
    /// The refusal, for the client.
    pub fn check(&self, key: &str) -> Result<KeyId, Refusal> {
        let entry = self.inner.find(key).ok_or(Refusal::Unknown)?;
        entry.standing(self.inner.clock().now())?;
        Ok(entry.id)
    }

    /// The key's name.
    pub fn name(&self, key: &str) -> Option<String> {
        self.inner.find(key).map(|entry| entry.account().name.clone())
    }

    /// Whether `key` may list and use `model`.
    pub fn allows(&self, key: &str, model: &str) -> bool {
        self.allows_in(key, model, &[])
    }

    /// The same for a model that is in these groups.
    pub fn allows_in(&self, key: &str, model: &str, groups: &[&str]) -> bool {
        let now = self.inner.clock().now();
        self.inner.find(key).is_some_and(|e| {
            let allows = |e: &Entry| e.account().limits.allows_any(model, groups);
            e.standing(now).is_ok() && allows(&e) && e.owners().is_ok_and(|all| all.iter().all(|o| allows(o)))
        })
    }

    /// Creates a key. The secret is returned and stored nowhere.
    ///
    /// # Errors
    /// If the limits are invalid, or the file cannot be written.
    pub fn create(&self, name: &str, limits: Limits) -> Result<(Secret, KeyInfo), Error> {
        self.create_for(name, limits, Profile::default())
    }

    /// The same for a key with owners.
    ///
    /// # Errors
    /// As [`Store::create`], and if there is no such team.
    pub fn create_for(
        &self,
        name: &str,
        limits: Limits,
        profile: Profile,
    ) -> Result<(Secret, KeyInfo), Error> {
        let (secret, id) = self.transact(|all| all.create(name, limits, profile))?;
        let entry = self.inner.get(id).ok_or_else(|| Error::NoSuchKey(name.into()))?;
        Ok((secret, self.inner.info(&entry)))
    }

    /// All keys, oldest first; keys of the same second by name.
    pub fn list(&self) -> Vec<KeyInfo> {
        let all = self.inner.all();
        let is_key = |e: &&Arc<Entry>| e.kind.is_none() && e.hash != total::hash();
        let mut all: Vec<KeyInfo> = all.iter().filter(is_key).map(|e| self.inner.info(e)).collect();
        all.sort_by(|a, b| (a.created, &a.name, a.id).cmp(&(b.created, &b.name, b.id)));
        all
    }

    /// The key with this id, or the only valid one with this name.
    ///
    /// # Errors
    /// If there is none, or several.
    pub fn find(&self, id_or_name: &str) -> Result<KeyInfo, Error> {
        let keys = self.list();
        if let Ok(id) = id_or_name.parse::<KeyId>()
            && let Some(key) = keys.iter().find(|k| k.id == id)
        {
            return Ok(key.clone());
        }
        let mut named: Vec<&KeyInfo> = keys.iter().filter(|k| k.name == id_or_name).collect();
        if named.iter().any(|k| k.revoked.is_none()) {
            named.retain(|k| k.revoked.is_none());
        }
        match named[..] {
            [] => Err(Error::NoSuchKey(id_or_name.into())),
            [key] => Ok(key.clone()),
            _ => {
                let ids: Vec<String> = named.iter().map(|k| k.id.to_string()).collect();
                Err(Error::Ambiguous { name: id_or_name.into(), ids: ids.join(", ") })
            }
        }
    }

    /// Revokes a key. It stays in the list, and its usage is kept as long as all usage is.
    ///
    /// # Errors
    /// If there is no such key, or the file cannot be written.
    pub fn revoke(&self, id: KeyId) -> Result<(), Error> {
        self.revoke_all(&[id])
    }

    /// Revokes all of these keys, or none.
    ///
    /// # Errors
    /// As [`Store::revoke`].
    pub fn revoke_all(&self, ids: &[KeyId]) -> Result<(), Error> {
        self.transact(|all| ids.iter().try_for_each(|id| all.revoke(*id)))
    }

    /// Changes a key's limits, and its name if one is given. Its spend stays.
    ///
    /// # Errors
    /// If there is no such key, the limits are invalid, or the file cannot be written.
    pub fn edit(&self, id: KeyId, name: Option<&str>, limits: Limits) -> Result<(), Error> {
        self.edit_for(id, |draft| {
            draft.name = name.map_or_else(|| std::mem::take(&mut draft.name), Into::into);
            draft.limits = limits;
            Ok(())
        })
    }

    /// Changes a key, a user or a team in the file, without concurrent changes. If `edit` fails, nothing is changed.
    ///
    /// # Errors
    /// Those of `edit`; as [`Store::edit`], and if there is no such team.
    pub fn edit_for<E: From<Error>>(
        &self,
        id: KeyId,
        edit: impl FnOnce(&mut Draft) -> Result<(), E>,
    ) -> Result<(), E> {
        self.transact(|all| all.edit(id, edit))
    }

    /// The usage up to now.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn usage(&self, filter: &Filter) -> Result<Vec<UsageRow>, Error> {
        self.flush()?;
        let file = lock(&self.inner.file);
        table::usage(&file.db, filter).map_err(|e| self.inner.unread(e))
    }

    /// Writes spend now, and reads other processes' changes.
    ///
    /// # Errors
    /// If the file cannot be written or read; then requests of keys with a budget are refused until it can.
    pub fn flush(&self) -> Result<(), Error> {
        self.inner.tick()
    }

    /// Writes unwritten usage, and closes the file.
    ///
    /// # Errors
    /// If the file cannot be written: usage since the last write is lost.
    pub fn close(mut self) -> Result<(), Error> {
        let written = self.inner.tick();
        self.end();
        written
    }

    fn end(&mut self) {
        *lock(&self.inner.stop) = true;
        self.inner.stopped.notify_all();
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!(path = %self.inner.path.display(), "the thread that writes usage panicked");
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Errors are already in the log.
        self.end();
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let is_name = !name.is_empty() && name.len() <= 200 && !name.chars().any(char::is_control);
    if is_name { Ok(()) } else { Err(Error::Invalid("a key's name has 1 to 200 bytes, on one line".into())) }
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

impl Inner {
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
        let now = self.clock().now().unix;
        let used = std::mem::take(&mut *lock(&self.used));
        let mut spenders = Vec::new();
        for entry in self.all() {
            let unwritten = entry.account().unwritten();
            spenders.extend(unwritten.map(|u| (entry, u)));
        }
        // A fault ends when a write succeeds.
        if !used.is_empty() || !spenders.is_empty() || self.fault().is_some() {
            let rows: Vec<_> = used.iter().collect();
            let spent: Vec<_> = spenders.iter().map(|(entry, unwritten)| (entry.id, *unwritten)).collect();
            match table::add(&mut file.db, now, &rows, &spent) {
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
        let today = calendar::day(now);
        if file.pruned != Some(today) {
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
