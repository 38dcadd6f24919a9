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

/// How a store works.
#[derive(Debug, Clone)]
pub struct Options {
    /// How often what was spent is written, and changes by other processes are seen. A crash loses no more than this.
    pub flush_every: Duration,
    /// How long usage is kept.
    pub retention_days: u32,
    /// Largest size of the file.
    pub bytes_max: u64,
    /// How often to look whether the file can still be read by others: what was written over it goes unnoticed otherwise. Large files
    /// are looked at less often. Zero is whenever something is written.
    pub check_every: Duration,
    /// How long is waited for another process that writes.
    pub lock_timeout: Duration,
    /// What time it is.
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
    /// What was used since it was last written.
    used: Mutex<HashMap<UsageKey, Counts>>,
    /// The same by the requests' tags.
    pub(crate) tags: Tags,
    /// The server's own key.
    pub(crate) own: Arc<Entry>,
    /// Why nothing can be written, while that is so.
    fault: RwLock<Option<String>>,
    /// Never locked while a request waits.
    pub(crate) file: Mutex<File>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

pub(crate) struct File {
    pub(crate) db: Connection,
    /// SQLite's count of changes by others, when keys were last read.
    data_version: i64,
    /// Day on which old usage was last forgotten.
    pruned: Option<i64>,
    /// Which files were opened.
    opened: [Option<Identity>; FILES.len()],
    /// When to look whether it can be read by others.
    look_at: Instant,
    /// The file itself, to look at; closed after `db` is.
    raw: std::fs::File,
}

/// Looking at a file takes no more than one part in so many of the time.
const LOOK_SHARE: u32 = 200;

/// What of a key, a user or a team can be changed.
#[derive(Debug, Clone)]
pub struct Draft {
    /// What its owner calls a key. Of a user or a team it is the id, and stays.
    pub name: String,
    /// What it may do.
    pub limits: Limits,
    /// Whose it is, and what is said of it.
    pub profile: Profile,
}

/// All keys. Dropping it writes what is left to write; [`Store::close`] says whether that went well.
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
    /// Opens the file of keys, and makes it if it is not there; its folder has to be.
    ///
    /// # Errors
    /// When it is not ours, damaged, of a newer version, locked, or cannot be written.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, Options::default())
    }

    /// The same, with options.
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

    /// Lets a request for `model` through, or says why not. Reads memory alone.
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
            // Nothing is taken before all of them agree. Locked in one order: the key, its user, its team.
            let mut theirs = Vec::with_capacity(owners.len());
            for owner in &owners {
                let mut account = owner.account();
                account.check(now, model, groups, fault).map_err(|refusal| owner.refusal(refusal))?;
                theirs.push(account);
            }
            for account in &mut theirs {
                account.take(now, ask);
            }
            account.take(now, ask)
        };
        let (store, more) = (self.inner.clone(), Counts::default());
        Ok(Grant { store, entry, owners, model: Some(model.into()), reserved: Some(reserved), more })
    }

    /// Whose key this is, if it is one in force: for requests that ask no model.
    ///
    /// # Errors
    /// The refusal, for the client.
    pub fn check(&self, key: &str) -> Result<KeyId, Refusal> {
        let entry = self.inner.find(key).ok_or(Refusal::Unknown)?;
        entry.standing(self.inner.clock().now())?;
        Ok(entry.id)
    }

    /// What the owner of this key calls it.
    pub fn name(&self, key: &str) -> Option<String> {
        self.inner.find(key).map(|entry| entry.account().name.clone())
    }

    /// Whether `key` may see and use `model`, now that it asks for nothing: for lists of models.
    pub fn allows(&self, key: &str, model: &str) -> bool {
        self.allows_in(key, model, &[])
    }

    /// The same of a model that is in these groups.
    pub fn allows_in(&self, key: &str, model: &str, groups: &[&str]) -> bool {
        let now = self.inner.clock().now();
        self.inner.find(key).is_some_and(|e| {
            let allows = |e: &Entry| e.account().limits.allows_any(model, groups);
            e.standing(now).is_ok() && allows(&e) && e.owners().is_ok_and(|all| all.iter().all(|o| allows(o)))
        })
    }

    /// Makes a key. The secret is in the answer and nowhere else.
    ///
    /// # Errors
    /// When the limits cannot be meant, or the file cannot be written.
    pub fn create(&self, name: &str, limits: Limits) -> Result<(Secret, KeyInfo), Error> {
        self.create_for(name, limits, Profile::default())
    }

    /// The same for a key that is somebody's.
    ///
    /// # Errors
    /// As [`Store::create`], and when there is no such team.
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

    /// All keys, the oldest first, and those of the same second by their names.
    pub fn list(&self) -> Vec<KeyInfo> {
        let all = self.inner.all();
        let is_key = |e: &&Arc<Entry>| e.kind.is_none() && e.hash != total::hash();
        let mut all: Vec<KeyInfo> = all.iter().filter(is_key).map(|e| self.inner.info(e)).collect();
        all.sort_by(|a, b| (a.created, &a.name, a.id).cmp(&(b.created, &b.name, b.id)));
        all
    }

    /// The key of that id, or the only one in force of that name.
    ///
    /// # Errors
    /// When there is none, or several.
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

    /// Takes a key back. It stays in the list, and what it used is kept as long as all usage is.
    ///
    /// # Errors
    /// When there is no such key, or the file cannot be written.
    pub fn revoke(&self, id: KeyId) -> Result<(), Error> {
        self.revoke_all(&[id])
    }

    /// Takes all of these keys back, or none.
    ///
    /// # Errors
    /// As [`Store::revoke`].
    pub fn revoke_all(&self, ids: &[KeyId]) -> Result<(), Error> {
        self.transact(|all| ids.iter().try_for_each(|id| all.revoke(*id)))
    }

    /// Gives a key other limits, and another name if there is one. What it has spent counts on.
    ///
    /// # Errors
    /// When there is no such key, the limits cannot be meant, or the file cannot be written.
    pub fn edit(&self, id: KeyId, name: Option<&str>, limits: Limits) -> Result<(), Error> {
        self.edit_for(id, |draft| {
            draft.name = name.map_or_else(|| std::mem::take(&mut draft.name), Into::into);
            draft.limits = limits;
            Ok(())
        })
    }

    /// Changes a key, a user or a team as the file has it: nobody else changes it meanwhile. Where `edit` fails, nothing is changed.
    ///
    /// # Errors
    /// Those of `edit`; as [`Store::edit`], and when there is no such team.
    pub fn edit_for<E: From<Error>>(
        &self,
        id: KeyId,
        edit: impl FnOnce(&mut Draft) -> Result<(), E>,
    ) -> Result<(), E> {
        self.transact(|all| all.edit(id, edit))
    }

    /// What was used, up to now.
    ///
    /// # Errors
    /// When the file cannot be read, or written.
    pub fn usage(&self, filter: &Filter) -> Result<Vec<UsageRow>, Error> {
        self.flush()?;
        let file = lock(&self.inner.file);
        table::usage(&file.db, filter).map_err(|e| self.inner.unread(e))
    }

    /// Writes now what was spent, and sees what other processes changed.
    ///
    /// # Errors
    /// When the file cannot be written or read; then requests of keys with a budget are refused until it can.
    pub fn flush(&self) -> Result<(), Error> {
        self.inner.tick()
    }

    /// Writes what is left to write, and ends.
    ///
    /// # Errors
    /// When the file cannot be written: what was spent since the last time is lost.
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
        // Failures are in the log by then.
        self.end();
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let is_name = !name.is_empty() && name.len() <= 200 && !name.chars().any(char::is_control);
    if is_name { Ok(()) } else { Err(Error::Invalid("a key's name has 1 to 200 bytes, on one line".into())) }
}

/// The writer's thread.
fn write_behind(inner: &Inner) {
    /// However the thread ends: what is spent from then on is not written.
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
        // What goes wrong is the fault that requests are refused with, and in the log.
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

    /// Writes what was spent, reads what others changed, and notes whether that is possible.
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

    /// SQLite writes to a deleted file as to any other, and nobody reads it again.
    fn is_there(&self, file: &File) -> Result<(), Error> {
        let paths = FILES.map(|end| beside(&self.path, end));
        let gone = paths.into_iter().zip(file.opened).find(|(path, opened)| identity(path) != *opened);
        gone.map_or(Ok(()), |(path, _)| Err(Error::Gone { path }))
    }

    /// Where somebody has written over the file, SQLite goes on from memory, and writes what nobody will be able to read.
    fn is_whole(&self, file: &mut File) -> Result<(), Error> {
        let began = Instant::now();
        if began < file.look_at {
            return Ok(());
        }
        // What is damaged is looked at again the next time.
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
        // A fault is over when something could be written.
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

    /// Reads the keys again, if another process changed something.
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

    /// The account of that id.
    pub(crate) fn get(&self, id: KeyId) -> Option<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }
}
