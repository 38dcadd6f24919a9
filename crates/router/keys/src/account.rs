//! A key's limits and its usage, in memory: everything that a request is checked against. Used by `store` and `grant`, under the key's
//! lock.

use crate::clock::Now;
use crate::limits::Period;
use crate::table::KeyRow;
use crate::window::Minute;
use crate::{Ask, Limits, Profile, Refusal, Usd};

/// What a running request has reserved.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reserved {
    cost: Usd,
    tokens: u64,
}

impl Reserved {
    pub fn of(ask: &Ask) -> Self {
        Self { cost: ask.cost(), tokens: ask.tokens().min(crate::limits::COUNT_MAX) }
    }
}

/// One key.
#[derive(Debug)]
pub struct Account {
    pub name: String,
    pub limits: Limits,
    pub created: i64,
    pub revoked: Option<i64>,
    pub profile: Profile,
    running: u64,
    requests: Minute,
    tokens: Minute,
    /// Reserved by running requests.
    reserved: Reserved,
    /// First second of the budget's period.
    window: i64,
    /// Spent in it, according to the file,
    stored: Usd,
    /// and since the last write.
    unwritten: Usd,
}

impl Account {
    pub fn new(row: KeyRow) -> Self {
        Self {
            name: row.name,
            limits: row.limits,
            created: row.created,
            revoked: row.revoked,
            profile: row.profile,
            running: 0,
            requests: Minute::new(),
            tokens: Minute::new(),
            reserved: Reserved::default(),
            window: row.window,
            stored: row.spent,
            unwritten: Usd::ZERO,
        }
    }

    fn period(&self) -> Period {
        self.limits.budget.map_or(Period::Ever, |b| b.period)
    }

    /// Starts a new period of the budget when it is time. A clock that is set back starts none.
    fn turn(&mut self, now: Now) {
        let start = self.period().start(self.created, now.unix);
        if start > self.window {
            self.window = start;
            self.stored = Usd::ZERO;
            self.unwritten = Usd::ZERO;
        }
    }

    /// Spent in this period.
    pub fn spent(&mut self, now: Now) -> Usd {
        self.turn(now);
        self.stored.plus(self.unwritten)
    }

    /// When the budget is reset.
    pub fn resets(&self) -> Option<i64> {
        self.limits.budget.and_then(|b| b.period.end(self.window))
    }

    /// Whether it is valid.
    pub fn standing(&self, now: Now) -> Result<(), Refusal> {
        if self.revoked.is_some() {
            return Err(Refusal::Revoked);
        }
        if self.profile.blocked {
            return Err(Refusal::Blocked);
        }
        match self.limits.expires.filter(|at| *at <= now.unix) {
            Some(at) => Err(Refusal::Expired { at }),
            None => Ok(()),
        }
    }

    /// Whether a request is allowed. `fault` says why nothing can be written, if so.
    ///
    /// Reservations count as usage, and a request is allowed while usage is below the limit. So requests can exceed a budget by the cost of
    /// the last ones, or by their whole cost if nothing is known in advance.
    pub fn check(
        &mut self,
        now: Now,
        model: &str,
        groups: &[&str],
        fault: impl FnOnce() -> Option<String>,
    ) -> Result<(), Refusal> {
        self.standing(now)?;
        if !self.limits.allows_any(model, groups) {
            return Err(Refusal::Model { model: model.into(), allowed: self.limits.models.clone() });
        }
        if let Some(budget) = self.limits.budget {
            if let Some(why) = fault() {
                return Err(Refusal::Unwritable { why });
            }
            let (spent, reserved) = (self.spent(now), self.reserved.cost);
            if spent.plus(reserved) >= budget.limit {
                return Err(Refusal::Budget { limit: budget.limit, spent, reserved, resets: self.resets() });
            }
        }
        if let Some(limit) = self.limits.max_parallel.filter(|limit| self.running >= *limit) {
            return Err(Refusal::Parallel { limit });
        }
        if let Some(limit) = self.limits.rpm {
            let retry_after_s = self.requests.wait(now.second, limit);
            if retry_after_s > 0 {
                return Err(Refusal::Requests { limit, retry_after_s });
            }
        }
        if let Some(limit) = self.limits.tpm {
            let left = limit.saturating_sub(self.reserved.tokens);
            let retry_after_s = self.tokens.wait(now.second, left);
            if retry_after_s > 0 {
                return Err(Refusal::Tokens { limit, retry_after_s });
            }
        }
        Ok(())
    }

    /// Counts a request and makes its reservation.
    pub fn admit(&mut self, now: Now, ask: &Ask) -> Reserved {
        let reserved = Reserved::of(ask);
        self.running += 1;
        self.requests.add(now.second, 1);
        self.reserve(reserved);
        reserved
    }

    fn reserve(&mut self, r: Reserved) {
        self.reserved.cost = self.reserved.cost.plus(r.cost);
        self.reserved.tokens = self.reserved.tokens.saturating_add(r.tokens);
    }

    fn release(&mut self, r: Reserved) {
        self.reserved.cost = self.reserved.cost.minus(r.cost);
        self.reserved.tokens = self.reserved.tokens.saturating_sub(r.tokens);
    }

    /// Changes the reservation of a running request.
    pub fn change(&mut self, from: Reserved, to: Reserved) {
        self.release(from);
        self.reserve(to);
    }

    /// Ends a request without usage.
    pub fn end(&mut self, reserved: Reserved) {
        self.release(reserved);
        self.running = self.running.saturating_sub(1);
    }

    /// Ends a request with this usage.
    pub fn settle(&mut self, now: Now, reserved: Reserved, tokens: u64, cost: Usd) {
        self.turn(now);
        self.end(reserved);
        self.tokens.add(now.second, tokens);
        self.unwritten = self.unwritten.plus(cost);
    }

    /// The spend that is not in the file yet, and its period.
    pub fn unwritten(&self) -> Option<(i64, Usd)> {
        (self.unwritten > Usd::ZERO).then_some((self.window, self.unwritten))
    }

    /// The spend was written; `spent` is the file's sum, with that of other processes.
    pub fn written(&mut self, (window, amount): (i64, Usd), in_file: (i64, Usd)) {
        // Spend of an ended period was dropped already.
        if window == self.window {
            self.unwritten = self.unwritten.minus(amount);
            (self.window, self.stored) = in_file;
        }
    }

    /// Applies the file's state after a change by another process.
    pub fn sync(&mut self, row: KeyRow) {
        let period = self.period();
        self.name = row.name;
        self.limits = row.limits;
        self.revoked = row.revoked;
        self.profile = row.profile;
        if self.period() != period || row.window >= self.window {
            self.window = row.window;
            self.stored = row.spent;
        }
    }
}
