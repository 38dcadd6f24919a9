//! A request that was let through. Made by `store`, held by the router while the request runs.

use std::fmt;
use std::sync::Arc;

use crate::account::Reserved;
use crate::entry::Entry;
use crate::store::Inner;
use crate::table::Counts;
use crate::{Ask, KeyId, Prices, Usage, Usd};

/// A request that was let through: it counts as running until it is settled or dropped. Dropped, it took nothing.
pub struct Grant {
    pub(crate) store: Arc<Inner>,
    pub(crate) entry: Arc<Entry>,
    /// The key's user and team, whose limits hold for all of their keys.
    pub(crate) owners: Vec<Arc<Entry>>,
    /// As clients name it; `None` where no usage is told by model.
    pub(crate) model: Option<String>,
    pub(crate) reserved: Option<Reserved>,
    /// What it took beside the answer that it is settled with.
    pub(crate) more: Counts,
}

impl Grant {
    /// The key, for logs.
    pub fn key(&self) -> KeyId {
        self.entry.id
    }

    /// All that the request counts for.
    fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        std::iter::once(&self.entry).chain(&self.owners)
    }

    /// Reserves something else, now that the deployment and its prices are known. It refuses nothing: the request runs.
    pub fn reserve(&mut self, ask: &Ask) {
        if let Some(reserved) = self.reserved {
            let to = Reserved::of(ask);
            self.entries().for_each(|entry| entry.account().change(reserved, to));
            self.reserved = Some(to);
        }
    }

    /// Somebody was asked in vain, at other prices, and bills it all the same: it is counted when the request is settled.
    pub fn add(&mut self, usage: &Usage, prices: &Prices) {
        self.more.add(&Counts { requests: 0, usage: *usage, cost: prices.cost(usage) });
    }

    /// The request is over: counts what it took, and says what that costs. Also for answers that broke off, with what the
    /// provider will bill all the same.
    pub fn settle(mut self, usage: &Usage, prices: &Prices) -> Usd {
        let mut all = Counts { requests: 1, usage: *usage, cost: prices.cost(usage) };
        all.add(&self.more);
        if let Some(reserved) = self.reserved.take() {
            let now = self.store.clock().now();
            let tokens = all.usage.tokens();
            self.entries().for_each(|entry| entry.account().settle(now, reserved, tokens, all.cost));
            if let Some(model) = self.model.take() {
                self.store.count(now, self.entry.id, model, &all);
            }
        }
        all.cost
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(reserved) = self.reserved.take() {
            self.entries().for_each(|entry| entry.account().end(reserved));
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("key", &self.entry.id)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}
