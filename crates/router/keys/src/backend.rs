//! Where keys and usage are stored: an SQLite file or PostgreSQL. Implemented by `sqlite` and `postgres`; used by `inner`, with the backend
//! locked.

use std::collections::{HashMap, HashSet};

use crate::table::{Counts, Filter, KeyRow, Spent, UsageKey, UsageRow};
use crate::tags::TagRow;
use crate::{Error, KeyId, Now, Usd};

/// Usage that is written at once: completely or not at all, and once, however often it is tried.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Its number, from 1, in the order of this process's batches.
    pub number: i64,
    /// Seconds since 1970 UTC.
    pub unix: i64,
    pub used: HashMap<UsageKey, Counts>,
    pub tags: HashMap<(i64, String), Counts>,
    pub spent: Vec<Spent>,
    /// How much of its leases of budgets this process has spent or gives back.
    pub leases: Vec<(KeyId, Usd)>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.used.is_empty() && self.tags.is_empty() && self.spent.is_empty() && self.leases.is_empty()
    }
}

/// What other processes have changed.
#[derive(Debug)]
pub(crate) enum Changes {
    None,
    /// These are all rows.
    All(Vec<KeyRow>),
    /// These rows have changed, and those are gone.
    Some(Vec<KeyRow>, Vec<KeyId>),
}

/// A store of keys and usage.
pub(crate) trait Backend: Send {
    /// Whether it can be used: it was not deleted or damaged, it answers.
    fn check(&mut self) -> Result<(), Error>;

    /// Adds usage and spend, and returns the keys' periods and sums there. Writes something even without usage, to check that writing works.
    fn add(&mut self, batch: &Batch) -> Result<Vec<(i64, Usd)>, Error>;

    /// Whether budgets are leased: this process may spend only what it has [leased](Self::lease).
    fn leases(&self) -> bool {
        false
    }

    /// Leases up to `wanted` of what is left of a budget in the period that begins at `window`, in addition to what this process has leased
    /// of it; nothing if no other process has left anything.
    fn lease(&mut self, _key: KeyId, _window: i64, _wanted: Usd) -> Result<Usd, Error> {
        Ok(Usd::ZERO)
    }

    /// Keeps the leases of this process for another while, and returns them; one that has expired is gone.
    fn renew(&mut self) -> Result<Vec<(KeyId, Usd)>, Error> {
        Ok(Vec::new())
    }

    /// Deletes usage before a day, once a day, if the calendar can be trusted.
    fn prune(&mut self, now: Now, retention_days: u32) -> Result<(), Error>;

    /// The changes since the last call.
    fn changes(&mut self) -> Result<Changes, Error>;

    /// Writes rows that are not there yet; those that are stay as they are.
    fn insert(&mut self, rows: &[KeyRow]) -> Result<(), Error> {
        let known: HashSet<blake3::Hash> = self.begin()?.iter().map(|row| row.hash).collect();
        let new: Vec<&KeyRow> = rows.iter().filter(|row| !known.contains(&row.hash)).collect();
        self.commit(&new, &[])
    }

    /// Begins a transaction, which keeps others from changing rows, and returns all rows.
    fn begin(&mut self) -> Result<Vec<KeyRow>, Error>;

    /// Writes these rows, deletes those, and ends the transaction.
    fn commit(&mut self, rows: &[&KeyRow], gone: &[KeyId]) -> Result<(), Error>;

    /// Ends the transaction without changes.
    fn rollback(&mut self);

    /// Usage, by day, key and model.
    fn usage(&mut self, filter: &Filter) -> Result<Vec<UsageRow>, Error>;

    /// Usage by tag between two days, both included.
    fn tags(&mut self, from_day: Option<i64>, to_day: Option<i64>) -> Result<Vec<TagRow>, Error>;

    /// Everything is in the place itself, as far as no other process needs it elsewhere.
    fn checkpoint(&mut self) -> Result<(), Error>;
}
