//! A key's limits and its usage, in memory: everything that a request is checked against.

use crate::clock::Now;
use crate::limits::{Period, is_too_early};
use crate::refusal::BUDGET;
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
    pub fn tokens(self) -> u64 {
        self.tokens
    }

    pub fn cost(self) -> Usd {
        self.cost
    }

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
    /// The budget's period.
    span: Span,
    /// The one before, for a clock that jumps ahead and back.
    before: Option<Span>,
    lease: Lease,
}

/// What this process may spend of the budget, if budgets are leased.
#[derive(Debug, Clone, Copy, Default)]
struct Lease {
    /// Leased, as in the database.
    leased: Usd,
    /// Reserved by running requests that it covers.
    held: Usd,
    /// There was a request since the last write.
    is_used: bool,
}

/// A slice of a budget is one of this many.
const SLICES: u64 = 100;

/// A period of a budget.
#[derive(Debug, Clone, Copy)]
struct Span {
    /// Its first second.
    window: i64,
    /// Spent in it, according to the file,
    stored: Usd,
    /// and since the last write.
    unwritten: Usd,
}

impl Span {
    fn new((window, stored): (i64, Usd)) -> Self {
        Self { window, stored, unwritten: Usd::ZERO }
    }

    fn spent(self) -> Usd {
        self.stored.plus(self.unwritten)
    }
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
            span: Span::new((row.window, row.spent)),
            before: row.before.map(Span::new),
            lease: Lease::default(),
        }
    }

    fn period(&self) -> Period {
        self.limits.budget.map_or(Period::Ever, |b| b.period)
    }

    /// Starts a new period of the budget when it is time. A clock that is set back starts none. If it is set back to before the current
    /// period, that one had begun too early: what was spent in it counts in the right one, with what had been spent there before.
    fn turn(&mut self, now: Now) {
        self.turn_back(now);
        let start = self.period().start(self.created, now.unix);
        if start > self.span.window {
            self.before = Some(std::mem::replace(&mut self.span, Span::new((start, Usd::ZERO))));
        }
    }

    fn turn_back(&mut self, now: Now) {
        let start = self.period().start(self.created, now.unix);
        if is_too_early(self.span.window, start, now.unix) {
            let before = self.before.take().filter(|before| before.window == start);
            let known = before.unwrap_or(Span::new((start, Usd::ZERO)));
            self.span.window = start;
            self.span.stored = self.span.stored.plus(known.stored);
            self.span.unwritten = self.span.unwritten.plus(known.unwritten);
        }
    }

    /// Spent in this period.
    pub fn spent(&mut self, now: Now) -> Usd {
        self.turn(now);
        self.span.spent()
    }

    /// When the budget is reset.
    pub fn resets(&self) -> Option<i64> {
        self.limits.budget.and_then(|b| b.period.end(self.span.window))
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
    /// the last ones, or by their whole cost if nothing is known in advance. `ahead` is what a request takes before its last answer.
    pub fn check(
        &mut self,
        now: Now,
        model: &str,
        groups: &[&str],
        ahead: &Ask,
        fault: impl FnOnce() -> Option<String>,
    ) -> Result<(), Refusal> {
        let is_free = ahead.is_free;
        let ahead = Reserved::of(ahead);
        self.standing(now)?;
        if !self.limits.allows_any(model, groups) {
            return Err(Refusal::Model { model: model.into(), allowed: self.limits.models.clone() });
        }
        if let Some(budget) = self.limits.budget.filter(|_| !is_free) {
            if let Some(why) = fault() {
                return Err(Refusal::Unwritable { why });
            }
            let (spent, reserved) = (self.spent(now), self.reserved.cost);
            if spent.plus(reserved) >= budget.limit {
                return Err(Refusal::Budget { limit: budget.limit, spent, reserved, resets: self.resets() });
            }
            if spent.plus(reserved).plus(ahead.cost) >= budget.limit {
                return Err(Refusal::Answers { limit: BUDGET });
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
            if ahead.tokens >= limit {
                return Err(Refusal::Answers { limit: "limit of tokens a minute" });
            }
            let left = limit.saturating_sub(self.reserved.tokens.saturating_add(ahead.tokens));
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

    /// Ends a request that was not sent: it does not count.
    pub fn withdraw(&mut self, now: Now, reserved: Reserved) {
        self.end(reserved);
        self.requests.remove(now.second, 1);
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
        self.span.unwritten = self.span.unwritten.plus(cost);
    }

    /// Reserves `cost` of what is leased of the budget; false if it does not suffice. A request that `may_exceed` it needs only a rest.
    pub fn hold(&mut self, cost: Usd, may_exceed: bool) -> bool {
        if self.limits.budget.is_some() {
            let used = self.span.unwritten.plus(self.lease.held);
            let left = self.lease.leased.minus(used);
            if used.plus(cost) > self.lease.leased && !(may_exceed && left > Usd::ZERO) {
                return false;
            }
        }
        self.lease.held = self.lease.held.plus(cost);
        self.lease.is_used = true;
        true
    }

    /// Ends or changes a reservation of [`hold`](Self::hold).
    pub fn hold_instead(&mut self, from: Usd, to: Usd) {
        self.lease.held = self.lease.held.minus(from).plus(to);
    }

    /// The period for which to lease, and how much, for a request that may cost this much: at least a slice.
    pub fn wanted(&mut self, now: Now, cost: Usd) -> (i64, Usd) {
        self.turn(now);
        let lacks = self.span.unwritten.plus(self.lease.held).plus(cost).minus(self.lease.leased);
        (self.span.window, lacks.max(self.slice()))
    }

    fn slice(&self) -> Usd {
        self.limits.budget.map_or(Usd::ZERO, |b| Usd::from_nanos((b.limit.nanos() / SLICES).max(1)))
    }

    /// This much more was leased.
    pub fn leased(&mut self, more: Usd) {
        self.lease.leased = self.lease.leased.plus(more);
    }

    /// What is leased, as in the database.
    pub fn lease_is(&mut self, leased: Usd) {
        self.lease.leased = leased;
    }

    pub fn has_lease(&self) -> bool {
        self.lease.leased > Usd::ZERO
    }

    /// Takes out of the lease what is spent of it, and what is not needed: all but a slice, and that too if there was no request lately.
    pub fn give_back(&mut self, spent: Usd, is_last: bool) -> Usd {
        let is_used = std::mem::take(&mut self.lease.is_used) && !is_last;
        let spare = if is_used { self.slice() } else { Usd::ZERO };
        let before = self.lease.leased;
        self.lease.leased = before.minus(spent).min(self.lease.held.plus(spare));
        before.minus(self.lease.leased)
    }

    /// The refusal of a request that no lease covers.
    pub fn no_lease(&mut self, now: Now) -> Refusal {
        let (limit, spent) = (self.limits.budget.map_or(Usd::ZERO, |b| b.limit), self.spent(now));
        Refusal::Budget { limit, spent, reserved: limit.minus(spent), resets: self.resets() }
    }

    /// The spend that is not in the file yet, and its period.
    pub fn unwritten(&mut self, now: Now) -> Option<(i64, Usd)> {
        self.turn_back(now);
        (self.span.unwritten > Usd::ZERO).then_some((self.span.window, self.span.unwritten))
    }

    /// The spend was written; `in_file` is the file's sum, with that of other processes.
    pub fn written(&mut self, (window, amount): (i64, Usd), in_file: (i64, Usd)) {
        // Spend of an ended period was dropped already.
        if window == self.span.window {
            self.span.unwritten = self.span.unwritten.minus(amount);
            (self.span.window, self.span.stored) = in_file;
        }
    }

    /// Applies the file's state after a change by another process.
    pub fn sync(&mut self, row: KeyRow, now: Now) {
        let period = self.period();
        self.name = row.name;
        self.limits = row.limits;
        self.revoked = row.revoked;
        self.profile = row.profile;
        let start = self.period().start(self.created, now.unix);
        let is_newer = row.window >= self.span.window || is_too_early(self.span.window, start, now.unix);
        if self.period() != period || is_newer {
            (self.span.window, self.span.stored) = (row.window, row.spent);
            self.before = row.before.map(Span::new);
        }
    }
}
