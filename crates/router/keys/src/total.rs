//! The global budget for all requests, and the usage of the server's own key.
//!
//! It is a row of the table of keys, with a hash that no key has. So it is reset, written, shared between processes and enforced like the
//! budgets of keys.

use std::sync::{Arc, PoisonError};

use crate::account::Reserved;
use crate::entry::{Entry, KeyInfo, total_hash};
use crate::grant::Grant;
use crate::limits::Period;
use crate::store::Store;
use crate::table::{Counts, KeyRow};
use crate::{Ask, Budget, Error, KeyId, Limits, Refusal, Usd};

/// The row's name.
const NAME: &str = "all requests";

impl Store {
    /// Sets the global budget. Its spend stays while the period is the same.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set_total(&self, budget: Budget) -> Result<(), Error> {
        let limits = Limits { budget: Some(budget), ..Limits::default() };
        if self.total().is_some_and(|known| known.limits == limits) {
            return Ok(());
        }
        let now = self.inner.clock().now().unix;
        // Another process may do the same now, so the file is searched for it.
        self.inner.transact(|rows| {
            match rows.iter_mut().find(|row| row.hash == total_hash()) {
                Some(row) => row.limit(limits, now),
                None => rows.push(KeyRow::new(total_hash(), NAME, limits, now)),
            }
            Ok(())
        })
    }

    /// The global budget and its spend, if one was ever set.
    pub fn total(&self) -> Option<KeyInfo> {
        self.all_requests().map(|entry| self.inner.info(&entry))
    }

    fn all_requests(&self) -> Option<Arc<Entry>> {
        let hash = total_hash();
        let entries = self.inner.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.get(&KeyId::of(&hash)).filter(|e| e.hash == hash).cloned()
    }

    /// Authorizes a request against the global budget. Reads only memory.
    ///
    /// # Errors
    /// The refusal, for the client: without sums, which are for the operator.
    pub fn authorize_total(&self, model: &str, ask: &Ask) -> Result<Grant, Refusal> {
        self.authorize_total_answers(model, ask, 1)
    }

    /// The same for several answers, as in [`Store::authorize_answers`].
    ///
    /// # Errors
    /// The refusal, for the client: without sums, which are for the operator.
    pub fn authorize_total_answers(&self, model: &str, ask: &Ask, answers: u64) -> Result<Grant, Refusal> {
        let (ahead, ask) = (ask.before_the_last(answers), &ask.times(answers));
        let why = || "the budget of all requests is not in the file".to_string();
        let entry = self.all_requests().ok_or_else(|| Refusal::TotalUnwritable { why: why() })?;
        let fault = || self.inner.fault();
        let now = self.inner.clock().now();
        let mut account = entry.account();
        account.check(now, model, &[], &ahead, fault).map_err(|refusal| match refusal {
            Refusal::Budget { resets, .. } => Refusal::Total { resets },
            Refusal::Answers { .. } => Refusal::TotalAnswers,
            Refusal::Unwritable { why } => Refusal::TotalUnwritable { why },
            other => other,
        })?;
        let reserved = Some(account.admit(now, ask));
        drop(account);
        let (store, more) = (self.inner.clone(), Counts::default());
        let is_free = ask.is_free;
        Ok(Grant { store, entry, owners: Vec::new(), model: None, reserved, is_free, covered: 0, more })
    }

    /// The server's own key, for lists of usage.
    pub fn own(&self) -> KeyInfo {
        self.inner.info(&self.inner.own)
    }

    /// Counts a request with the server's own key, which has no limits.
    pub fn grant_own(&self, model: &str) -> Grant {
        Grant {
            store: self.inner.clone(),
            entry: Arc::clone(&self.inner.own),
            owners: Vec::new(),
            model: Some(model.into()),
            reserved: Some(Reserved::default()),
            is_free: false,
            covered: 0,
            more: Counts::default(),
        }
    }
}

/// A budget of this many dollars, which is reset after this many seconds, or never.
///
/// # Errors
/// An invalid amount of money.
pub fn budget(usd: f64, seconds: Option<u32>) -> Result<Budget, Error> {
    let limit = Usd::from_dollars(usd)?;
    Ok(Budget { limit, period: seconds.map_or(Period::Ever, |s| Period::Seconds(s.max(1))) })
}
