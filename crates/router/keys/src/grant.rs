//! An authorized request. Created by `store`, owned by the router while the request runs.

use std::fmt;
use std::sync::Arc;

use crate::account::Reserved;
use crate::entry::Entry;
use crate::inner::Inner;
use crate::table::Counts;
use crate::{Ask, KeyId, Prices, Usage, Usd};

/// An authorized request: it counts as running until it is settled or dropped. If dropped, it used nothing.
pub struct Grant {
    pub(crate) store: Arc<Inner>,
    pub(crate) entry: Arc<Entry>,
    /// The key's user and team, whose limits apply to all of their keys.
    pub(crate) owners: Vec<Arc<Entry>>,
    /// The client's name of the model; `None` if usage is not recorded by model.
    pub(crate) model: Option<String>,
    pub(crate) reserved: Option<Reserved>,
    /// Usage in addition to the answer that it is settled with.
    pub(crate) more: Counts,
}

impl Grant {
    /// The key, for logs.
    pub fn key(&self) -> KeyId {
        self.entry.id
    }

    /// All accounts that the request counts for.
    fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        std::iter::once(&self.entry).chain(&self.owners)
    }

    /// Changes the reservation when the deployment and its prices are known. Refuses nothing: the request is running.
    pub fn reserve(&mut self, ask: &Ask) {
        if let Some(reserved) = self.reserved {
            let to = Reserved::of(ask);
            self.entries().for_each(|entry| entry.account().change(reserved, to));
            self.reserved = Some(to);
        }
    }

    /// Adds usage of a failed attempt, at its own prices: its provider bills it anyway. Counted when the request is settled.
    pub fn add(&mut self, usage: &Usage, prices: &Prices) {
        self.more.add(&Counts { requests: 0, usage: *usage, cost: prices.cost(usage) });
    }

    /// Ends the request: counts its usage, and returns its cost. Also for answers that broke off, with the usage that the provider will
    /// bill.
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
