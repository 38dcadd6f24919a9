//! What a store has in memory, and where it is stored: written behind, and read again when another process has changed it. Shared by
//! `store`, its grants and its writer's thread.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use crate::backend::{Backend, Batch, Changes};
use crate::entry::{Entries, Entry, KeyInfo, NewEntries, lock};
use crate::options::Options;
use crate::postgres::Postgres;
use crate::sqlite::File;
use crate::table::{Counts, UsageKey};
use crate::tags::Tags;
use crate::{Clock, Error, KeyId, Now, Refusal, Usd, calendar, own, secret};

/// How often leases of budgets are renewed, in seconds.
const RENEW_EVERY_S: u64 = 5;

pub(crate) struct Inner {
    /// The file's path, or the database's address without its password.
    pub(crate) place: String,
    options: Options,
    pub(crate) entries: RwLock<Entries>,
    /// End users that were first seen since the last write.
    pub(crate) new: NewEntries,
    /// Usage that was not written yet.
    used: Mutex<HashMap<UsageKey, Counts>>,
    /// The same by tag.
    pub(crate) tags: Tags,
    /// A batch that could not be written. It is tried again as it is: it may have been written, and only the answer was lost.
    failed: Mutex<Option<Batch>>,
    batches: AtomicI64,
    /// Whether budgets are leased, and the second of the clock when leases are renewed.
    leases: bool,
    renew_at: AtomicU64,
    /// The server's own key.
    pub(crate) own: Arc<Entry>,
    /// Why nothing can be written, if so.
    fault: RwLock<Option<String>>,
    /// Never locked while a request waits.
    pub(crate) backend: Mutex<Box<dyn Backend>>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

impl Inner {
    /// Opens the file; reads no keys yet.
    pub(crate) fn open(path: &Path, options: Options) -> Result<Self, Error> {
        let file = File::open(path, &options)?;
        Ok(Self::new(path.display().to_string(), Box::new(file), options))
    }

    /// Connects to a database; reads no keys yet.
    pub(crate) fn connect(url: &str, options: Options) -> Result<Self, Error> {
        let database = Postgres::open(url)?;
        Ok(Self::new(database.shown().to_string(), Box::new(database), options))
    }

    fn new(place: String, backend: Box<dyn Backend>, options: Options) -> Self {
        Self {
            place,
            options,
            entries: RwLock::default(),
            new: NewEntries::default(),
            used: Mutex::default(),
            tags: Tags::default(),
            failed: Mutex::default(),
            batches: AtomicI64::new(0),
            leases: backend.leases(),
            renew_at: AtomicU64::new(0),
            own: Arc::new(own::entry()),
            fault: RwLock::default(),
            backend: Mutex::new(backend),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
        }
    }

    /// Starts the thread that writes; [`stop`](Self::stop) ends it.
    pub(crate) fn write_behind(self: &Arc<Self>) -> Result<JoinHandle<()>, Error> {
        let shared = Arc::clone(self);
        let writer =
            std::thread::Builder::new().name("octet-keys".into()).spawn(move || write_behind(&shared));
        writer.map_err(|source| Error::Thread { path: self.place.clone().into(), source })
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

    /// Writes spend, reads other processes' changes, and records whether that works.
    pub(crate) fn tick(&self) -> Result<(), Error> {
        let mut backend = lock(&self.backend);
        let sound = backend.check();
        let done =
            sound.and_then(|()| self.write(backend.as_mut())).and_then(|()| self.read(backend.as_mut()));
        let (before, now) = (self.fault(), done.as_ref().err().map(ToString::to_string));
        match (&before, &now) {
            (None, Some(why)) => {
                tracing::error!("usage cannot be recorded, so keys with a budget are refused: {why}");
            }
            (Some(_), None) => tracing::info!(place = self.place, "usage is recorded again"),
            _ => {}
        }
        if before != now {
            self.set_fault(now);
        }
        done
    }

    /// Everything that was written is in the file or database itself, as far as no other process needs it elsewhere.
    pub(crate) fn checkpoint(&self) -> Result<(), Error> {
        lock(&self.backend).checkpoint()
    }

    fn write(&self, backend: &mut dyn Backend) -> Result<(), Error> {
        let failed = lock(&self.failed).take();
        if let Some(batch) = failed {
            self.write_batch(backend, batch)?;
        }
        self.write_new(backend)?;
        let batch = self.batch(backend.leases());
        // A fault ends when a write succeeds.
        if !batch.is_empty() || self.fault().is_some() {
            self.write_batch(backend, batch)?;
        }
        self.renew(backend)?;
        backend.prune(self.clock().now(), self.options.retention_days)
    }

    /// Everything that was not written yet. With the backend locked.
    fn batch(&self, leases: bool) -> Batch {
        let now = self.clock().now();
        let is_last = *lock(&self.stop);
        let (mut spent, mut given_back) = (Vec::new(), Vec::new());
        for entry in self.all() {
            let mut account = entry.account();
            let unwritten = account.unwritten(now);
            if leases && account.has_lease() {
                let cost = unwritten.map_or(Usd::ZERO, |(_, cost)| cost);
                given_back.push((entry.id, account.give_back(cost, is_last)));
            }
            spent.extend(unwritten.map(|unwritten| (entry.id, unwritten)));
        }
        spent.sort_unstable_by_key(|(id, _)| *id);
        given_back.retain(|(_, less)| *less > Usd::ZERO);
        Batch {
            number: self.batches.fetch_add(1, Ordering::Relaxed) + 1,
            unix: now.unix,
            used: std::mem::take(&mut *lock(&self.used)),
            tags: self.tags.take(),
            spent,
            leases: given_back,
        }
    }

    fn write_batch(&self, backend: &mut dyn Backend, mut batch: Batch) -> Result<(), Error> {
        batch.unix = self.clock().now().unix;
        match backend.add(&batch) {
            Ok(sums) => {
                for ((id, unwritten), sum) in batch.spent.iter().zip(sums) {
                    if let Some(entry) = self.get(*id) {
                        entry.account().written(*unwritten, sum);
                    }
                }
                Ok(())
            }
            Err(e) => {
                *lock(&self.failed) = Some(batch);
                Err(e)
            }
        }
    }

    /// Keeps this process's leases of budgets, and learns which have expired: it was stopped for long.
    fn renew(&self, backend: &mut dyn Backend) -> Result<(), Error> {
        let now = self.clock().now().second;
        if !backend.leases() || now < self.renew_at.load(Ordering::Relaxed) {
            return Ok(());
        }
        let leased: HashMap<KeyId, Usd> = backend.renew()?.into_iter().collect();
        for entry in self.all() {
            let amount = leased.get(&entry.id).copied().unwrap_or(Usd::ZERO);
            entry.account().lease_is(amount);
        }
        self.renew_at.store(now + RENEW_EVERY_S, Ordering::Relaxed);
        Ok(())
    }

    /// Whether this process may spend only what it has leased of budgets.
    pub(crate) fn leases(&self) -> bool {
        self.leases
    }

    /// Leases enough of an account's budget for a request that may cost this much, and reserves it.
    pub(crate) fn cover(&self, entry: &Entry, cost: Usd) -> Result<(), Refusal> {
        let mut backend = lock(&self.backend);
        let now = self.clock().now();
        // Another request may have leased enough meanwhile.
        if entry.account().hold(cost, false) {
            return Ok(());
        }
        let (window, wanted) = entry.account().wanted(now, cost);
        let more = backend.lease(entry.id, window, wanted);
        let more = more.map_err(|e| entry.refusal(Refusal::Unwritable { why: e.to_string() }))?;
        let mut account = entry.account();
        account.leased(more);
        if account.hold(cost, true) {
            return Ok(());
        }
        let refusal = account.no_lease(now);
        drop(account);
        Err(entry.refusal(refusal))
    }

    /// Reads the keys again that another process has changed.
    fn read(&self, backend: &mut dyn Backend) -> Result<(), Error> {
        match backend.changes()? {
            Changes::None => {}
            Changes::All(rows) => self.adopt(rows, |_| true),
            Changes::Some(rows, gone) => self.adopt_some(rows, &gone),
        }
        Ok(())
    }

    /// The account of a key.
    pub(crate) fn find(&self, key: &str) -> Option<Arc<Entry>> {
        let hash = secret::hash(key)?;
        // Constant in time: blake3's own comparison.
        let of = |hash: blake3::Hash| self.get(KeyId::of(&hash)).filter(|e| e.hash == hash);
        of(hash).or_else(|| of(secret::foreign_hash(key)))
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
