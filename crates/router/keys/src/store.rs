//! All keys, in memory and in their file or database.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::entry::{Entry, KeyInfo, lock, total_hash};
use crate::grant::Grant;
use crate::inner::Inner;
use crate::table::{Counts, Filter, UsageRow};
use crate::tags::TagRow;
use crate::{Ask, EndUser, Error, KeyId, Limits, Options, Profile, Refusal, Secret, Usage, Usd, calendar};

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
        f.debug_struct("Store").field("place", &self.inner.place).finish_non_exhaustive()
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
        Self::start(Inner::open(path.as_ref(), options)?)
    }

    /// Connects to a PostgreSQL database, which several processes may share: `postgresql://USER:PASSWORD@HOST:5432/NAME`. Its tables are
    /// created if they do not exist.
    ///
    /// # Errors
    /// If it cannot be reached, or its tables are of a newer version.
    pub fn connect(url: &str, options: Options) -> Result<Self, Error> {
        Self::start(Inner::connect(url, options)?)
    }

    fn start(inner: Inner) -> Result<Self, Error> {
        let inner = Arc::new(inner);
        inner.tick()?;
        let writer = inner.write_behind()?;
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
        self.authorize_answers(key, model, groups, ask, 1)
    }

    /// The same for several answers, each of which is expected to use `ask`, with one prompt: its last answer may exceed a limit, as any
    /// request may, but not the others.
    ///
    /// # Errors
    /// The refusal, for the client.
    pub fn authorize_answers(
        &self,
        key: &str,
        model: &str,
        groups: &[&str],
        ask: &Ask,
        answers: u64,
    ) -> Result<Grant, Refusal> {
        self.authorize_for(key, model, groups, ask, answers, None)
    }

    /// The same for an end user, whose budget the request counts for, too.
    ///
    /// # Errors
    /// The refusal, for the client.
    pub fn authorize_for(
        &self,
        key: &str,
        model: &str,
        groups: &[&str],
        ask: &Ask,
        answers: u64,
        end_user: Option<EndUser<'_>>,
    ) -> Result<Grant, Refusal> {
        let entry = self.inner.find(key).ok_or(Refusal::Unknown)?;
        let mut owners = entry.owners()?;
        owners.extend(end_user.and_then(|user| self.inner.end_user(user)));
        self.grant(entry, owners, model, groups, ask, answers)
    }

    /// The same with the server's own key, which has no limits.
    ///
    /// # Errors
    /// The refusal of the end user, for the client.
    pub fn authorize_own(
        &self,
        model: &str,
        ask: &Ask,
        answers: u64,
        end_user: Option<EndUser<'_>>,
    ) -> Result<Grant, Refusal> {
        match end_user.and_then(|user| self.inner.end_user(user)) {
            Some(user) => self.grant(Arc::clone(&self.inner.own), vec![user], model, &[], ask, answers),
            None => Ok(self.grant_own(model)),
        }
    }

    fn grant(
        &self,
        entry: Arc<Entry>,
        owners: Vec<Arc<Entry>>,
        model: &str,
        groups: &[&str],
        ask: &Ask,
        answers: u64,
    ) -> Result<Grant, Refusal> {
        let (ahead, ask) = (ask.before_the_last(answers), &ask.times(answers));
        let now = self.inner.clock().now();
        let fault = || self.inner.fault();
        let reserved = {
            let mut account = entry.account();
            account.check(now, model, groups, &ahead, fault)?;
            // Nothing is counted before all of them agree. Lock order: the key, its user, its team, the end user.
            let mut theirs = Vec::with_capacity(owners.len());
            for owner in &owners {
                let mut account = owner.account();
                account.check(now, model, groups, &ahead, fault).map_err(|refusal| owner.refusal(refusal))?;
                theirs.push(account);
            }
            for account in &mut theirs {
                account.admit(now, ask);
            }
            account.admit(now, ask)
        };
        let (store, more) = (self.inner.clone(), Counts::default());
        Ok(Grant {
            store,
            entry,
            owners,
            model: Some(model.into()),
            reserved: Some(reserved),
            is_free: ask.is_free,
            covered: 0,
            more,
        })
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
        let is_key = |e: &&Arc<Entry>| e.kind.is_none() && e.hash != total_hash();
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
        lock(&self.inner.backend).usage(filter)
    }

    /// Counts a request for each of its tags.
    pub fn count_tags(&self, tags: &[String], usage: &Usage, cost: Usd) {
        let day = calendar::day(self.inner.clock().now().unix);
        self.inner.tags.count(day, tags, &Counts { requests: 1, usage: *usage, cost });
    }

    /// Usage by tag between two days, both included, up to now; most expensive first.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn tags(&self, from_day: Option<i64>, to_day: Option<i64>) -> Result<Vec<TagRow>, Error> {
        self.flush()?;
        lock(&self.inner.backend).tags(from_day, to_day)
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
        let written = self.checkpoint();
        self.end();
        written
    }

    /// Writes now, and moves all changes from the log into the file itself: a copy of the file is then complete. Changes that another
    /// process is reading stay in the log.
    ///
    /// # Errors
    /// As [`Store::flush`].
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.inner.tick()?;
        self.inner.checkpoint()
    }

    fn end(&mut self) {
        self.inner.stop();
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!(place = self.inner.place, "the thread that writes usage panicked");
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
