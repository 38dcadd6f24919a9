//! The attempts within one group, and the next one.

use std::time::Duration;

use tokio::time::Instant;

use crate::choose::{Ineligible, Pick};
use crate::failure::{Failure, FailureKind, is_of_the_request, passes};
use crate::policy::Policy;
use crate::state::Availability;
use crate::table::Group;

/// Maximum pause on a provider's request; a longer one is not waited for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Whether a deployment has failed this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    No,
    /// A retry may succeed.
    Again,
    /// A retry cannot succeed.
    Never,
}

/// The attempts within a group.
#[derive(Debug)]
pub struct RetryState {
    tried: Vec<Tried>,
    /// The current order, and the number of its attempts.
    level: Option<u32>,
    attempts: u32,
    /// Number of pauses so far.
    pauses: u32,
    /// This order and lower ones are given up.
    given_up: Option<u32>,
    /// The last failure.
    pub last: Option<Failure>,
}

/// The next step.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// Try this deployment.
    Try(Pick),
    /// Pause, then retry those that failed.
    Pause(Duration),
    /// The state has changed: choose again.
    ChooseAgain,
    /// None can be used, for these reasons.
    NoneEligible(Vec<Ineligible>),
    /// Give up.
    GiveUp,
}

impl RetryState {
    /// No attempt yet.
    pub fn new(deployments: usize) -> Self {
        Self {
            tried: vec![Tried::No; deployments],
            level: None,
            attempts: 0,
            pauses: 0,
            given_up: None,
            last: None,
        }
    }

    /// Whether the deployment at `index` of this order is excluded.
    pub fn is_out(&self, index: usize, order: u32) -> bool {
        self.tried[index] != Tried::No || self.given_up.is_some_and(|o| order <= o)
    }

    /// Records an attempt at a deployment of this order.
    pub fn trying(&mut self, order: u32) {
        if self.level != Some(order) {
            self.level = Some(order);
            self.attempts = 0;
        }
        self.attempts += 1;
    }

    /// Records that the deployment at `index` failed, which may be retried `allowed` times.
    pub fn failed(&mut self, index: usize, failure: Failure, allowed: u32) {
        let again = passes(failure.kind) || is_of_the_request(failure.kind);
        self.tried[index] = if again { Tried::Again } else { Tried::Never };
        if failure.kind == FailureKind::Memory {
            // Nothing was sent: it is not an attempt.
            self.attempts = self.attempts.saturating_sub(1);
        }
        if self.attempts > allowed {
            self.given_up = self.level;
        }
        self.last = Some(failure);
    }

    /// The next step, given a choice.
    pub fn next<T>(
        &mut self,
        choice: Result<Pick, Vec<Ineligible>>,
        (group, name): (&Group<T>, &str),
        policy: &Policy,
        may_wait: bool,
        deadline: Instant,
        rng: &mut fastrand::Rng,
    ) -> Next {
        let order = |index: usize| group.deployments[index].terms.order;
        let level = self.level.filter(|l| self.given_up.is_none_or(|g| *l > g));
        let Some(level) = level else {
            return match choice {
                Ok(pick) => Next::Try(pick),
                Err(_) if self.last.is_some() => Next::GiveUp,
                Err(reasons) => Next::NoneEligible(reasons),
            };
        };
        if let Ok(pick) = choice
            && order(pick.index) == level
        {
            return Next::Try(pick);
        }
        // All of this order have failed or cannot be used. Those that may succeed are retried before higher orders.
        let again = |i: &usize| self.tried[*i] == Tried::Again && order(*i) == level;
        let now = Instant::now();
        let rest = |i: usize| match group.deployments[i]
            .state
            .live_for(group.model(name), policy.latency_ttl, now)
            .available
        {
            Availability::Cooling(time) => time,
            _ => Duration::ZERO,
        };
        let Some(rest) = (0..self.tried.len()).filter(again).map(rest).min() else {
            self.given_up = Some(level);
            return Next::ChooseAgain;
        };
        if rest > Duration::ZERO && (choice.is_ok() || !may_wait || rest > RETRY_AFTER_MAX) {
            // Others can answer sooner.
            self.given_up = Some(level);
            return Next::ChooseAgain;
        }
        let asked_for = match &self.last {
            // Otherwise the deployment is in cooldown for that time.
            Some(f) if policy.cooldown.disabled => f.retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let pause = policy.retries.pause(self.pauses, rng).max(rest).max(asked_for);
        if now + pause >= deadline {
            return Next::GiveUp;
        }
        self.pauses += 1;
        for (i, tried) in self.tried.iter_mut().enumerate() {
            if *tried == Tried::Again && group.deployments[i].terms.order == level {
                *tried = Tried::No;
            }
        }
        Next::Pause(pause)
    }
}
