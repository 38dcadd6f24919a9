//! An authorized request. Created by `store`, owned by the router while the request runs.

use std::fmt;
use std::sync::Arc;

use crate::account::Reserved;
use crate::entry::{Entry, total_hash};
use crate::inner::Inner;
use crate::limits::Limits;
use crate::profile::OwnerKind;
use crate::table::Counts;
use crate::{Ask, KeyId, Prices, Refusal, Usage, Usd};

/// A budget in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spending {
    /// The budget.
    pub limit: Usd,
    /// What is spent of it, as far as this process knows.
    pub spent: Usd,
    /// When it is reset, in seconds since 1970 UTC.
    pub resets: Option<i64>,
}

/// Limits of requests of a key, a user or a team.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited {
    /// Its id.
    pub id: KeyId,
    /// What it is, if it is not a key.
    pub kind: Option<OwnerKind>,
    /// It stands for all requests.
    pub is_total: bool,
    /// Its budget.
    pub budget: Option<Spending>,
    /// Requests per minute.
    pub rpm: Option<u64>,
    /// Tokens per minute.
    pub tpm: Option<u64>,
    /// Concurrent requests.
    pub max_parallel: Option<u64>,
    /// Expected tokens of the request.
    pub tokens: u64,
}

/// An authorized request: it counts as running until it is settled or dropped. If dropped, it used nothing.
pub struct Grant {
    pub(crate) store: Arc<Inner>,
    pub(crate) entry: Arc<Entry>,
    /// The key's user and team, whose limits apply to all of their keys.
    pub(crate) owners: Vec<Arc<Entry>>,
    /// The client's name of the model; `None` if usage is not recorded by model.
    pub(crate) model: Option<String>,
    pub(crate) reserved: Option<Reserved>,
    /// It counts for no budget.
    pub(crate) is_free: bool,
    /// How many of its accounts cover it by what is leased of their budgets, in the order of [`Grant::entries`].
    pub(crate) covered: usize,
    /// Usage in addition to the answer that it is settled with.
    pub(crate) more: Counts,
}

impl Grant {
    /// The key, for logs.
    pub fn key(&self) -> KeyId {
        self.entry.id
    }

    /// The key's name.
    pub fn name(&self) -> String {
        self.entry.account().name.clone()
    }

    /// All accounts that the request counts for.
    fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        std::iter::once(&self.entry).chain(&self.owners)
    }

    /// The accounts with limits of requests, which several processes may count together.
    pub fn limited(&self) -> Vec<Limited> {
        let tokens = self.reserved.map_or(0, Reserved::tokens);
        let now = self.store.clock().now();
        let limited = |entry: &Arc<Entry>| {
            let mut account = entry.account();
            let budget = account.limits.budget.filter(|_| !self.is_free).map(|budget| Spending {
                limit: budget.limit,
                spent: account.spent(now),
                resets: account.resets(),
            });
            let Limits { rpm, tpm, max_parallel, .. } = account.limits;
            let any = rpm.or(tpm).or(max_parallel).is_some() || budget.is_some();
            let (id, kind, is_total) = (entry.id, entry.kind, entry.hash == total_hash());
            any.then_some(Limited { id, kind, is_total, rpm, tpm, max_parallel, budget, tokens })
        };
        self.entries().filter_map(limited).collect()
    }

    /// The request costs nothing, so it counts for no budget.
    pub fn free(&mut self) {
        if let Some(reserved) = self.reserved {
            self.hold_instead(reserved, Usd::ZERO);
        }
        (self.is_free, self.covered) = (true, 0);
    }

    /// What the request may cost.
    pub fn reserved_cost(&self) -> Usd {
        self.reserved.map_or(Usd::ZERO, Reserved::cost)
    }

    /// Whether what this process has leased of the budgets covers the request; if not, [`cover`](Self::cover) asks the database.
    pub fn is_covered(&mut self) -> bool {
        if !self.store.leases() || self.is_free {
            return true;
        }
        let cost = self.reserved_cost();
        let mut covered = self.covered;
        for entry in self.entries().skip(self.covered) {
            if !entry.account().hold(cost, false) {
                break;
            }
            covered += 1;
        }
        self.covered = covered;
        covered == 1 + self.owners.len()
    }

    /// Leases enough of the budgets for the request. Waits for the database.
    ///
    /// # Errors
    /// The refusal, for the client: the budget is used up, or leased to other processes.
    pub fn cover(&mut self) -> Result<(), Refusal> {
        while !self.is_covered() {
            let Some(entry) = self.entries().nth(self.covered) else { break };
            let covered = self.store.cover(entry, self.reserved_cost());
            covered.map_err(|refusal| match refusal {
                Refusal::Budget { resets, .. } if entry.hash == total_hash() => Refusal::Total { resets },
                Refusal::Unwritable { why } if entry.hash == total_hash() => Refusal::TotalUnwritable { why },
                other => other,
            })?;
            self.covered += 1;
        }
        Ok(())
    }

    /// Ends or changes what is reserved of leases.
    fn hold_instead(&self, from: Reserved, to: Usd) {
        self.entries().take(self.covered).for_each(|entry| entry.account().hold_instead(from.cost(), to));
    }

    /// Ends a request that was not sent: it does not count.
    pub fn withdraw(mut self) {
        if let Some(reserved) = self.reserved.take() {
            let now = self.store.clock().now();
            self.hold_instead(reserved, Usd::ZERO);
            self.entries().for_each(|entry| entry.account().withdraw(now, reserved));
        }
    }

    /// Changes the reservation when the deployment and its prices are known. Refuses nothing: the request is running.
    pub fn reserve(&mut self, ask: &Ask) {
        if let Some(reserved) = self.reserved {
            let to = Reserved::of(ask);
            self.hold_instead(reserved, to.cost());
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
            self.hold_instead(reserved, Usd::ZERO);
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
            self.hold_instead(reserved, Usd::ZERO);
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
