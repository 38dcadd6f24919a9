//! Waiting for a permit in a group, first come, first served: how long it is worth waiting, and the error otherwise.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use tokio::sync::MutexGuard;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::choose::Ineligible;
use crate::failure::{Failure, FailureKind};
use crate::limit::ExpectedTokens;
use crate::state::{Limits, Permit};
use crate::table::{Deployment, Group, Table};

/// A request in a group's queue. Dropping it lets the next one try.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    waiting: &'a AtomicUsize,
    /// Held by the first in the queue.
    pub(crate) held: Option<MutexGuard<'a, ()>>,
}

impl<'a> Turn<'a> {
    /// One more waits.
    pub(crate) fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self { waiting, held: None }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits for requests that end at a group's deployments. Only the first in the queue listens.
pub(crate) struct Freed<'a>(Vec<Pin<Box<Notified<'a>>>>);

impl<'a> Freed<'a> {
    /// Starts listening.
    pub(crate) fn of<T>(group: &'a Group<T>) -> Self {
        let listen = |d: &'a Arc<Deployment<T>>| {
            let mut listening = Box::pin(d.state.freed().notified());
            listening.as_mut().enable();
            listening
        };
        Self(group.deployments.iter().map(listen).collect())
    }

    /// Waits until a request has ended at one of them.
    pub(crate) async fn any(mut self) {
        poll_fn(|cx| match self.0.iter_mut().any(|l| l.as_mut().poll(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}

/// A request that waits for a permit of a group.
#[derive(Default)]
pub(crate) struct Queued<'a> {
    pub(crate) turn: Option<Turn<'a>>,
    /// Notified when a permit is released.
    pub(crate) freed: Option<Freed<'a>>,
    /// The end of the wait for a deployment in cooldown or on trial.
    pub(crate) until: Option<Instant>,
}

impl Queued<'_> {
    /// It has a permit: the next in the queue may try.
    pub(crate) fn admitted(&mut self) {
        self.turn = None;
        self.freed = None;
    }
}

/// How long it is worth waiting for a permit; `None` if it is not.
pub fn wait_until<T>(
    group: &Group<T>,
    name: &str,
    reasons: &[Ineligible],
    most: Instant,
    deadline: Instant,
    now: Instant,
) -> Option<Instant> {
    // Running requests end at an unknown time.
    if reasons.iter().any(|r| matches!(r, Ineligible::Parallel { .. } | Ineligible::Reserved { .. })) {
        // Those of other processes are asked for again soon.
        let again = group.deployments.iter().filter_map(|d| d.state.exhausted_until(now)).min();
        return Some(again.map_or(deadline, |again| again.min(deadline)));
    }
    if reasons.iter().any(|r| matches!(r, Ineligible::OnTrial)) {
        return (most > now).then_some(most);
    }
    let soonest = soonest(group, name, now).filter(|_| reasons.iter().any(|r| r.passes()))?;
    (soonest <= most).then_some(soonest)
}

/// When a deployment of the group can get requests again.
fn soonest<T>(group: &Group<T>, name: &str, now: Instant) -> Option<Instant> {
    group.deployments.iter().filter_map(|d| d.state.next_change_for(group.model(name), now)).min()
}

/// The failure of a group without deployments: all were left out.
pub fn left_out<T>(group: &Group<T>) -> Failure {
    let what = format!("the model '{}' is left out: {}", group.name, group.skipped.join("; "));
    Failure::new(FailureKind::NotFound, what)
}

/// The failure of a group of which no deployment can be used.
pub fn unavailable<T>(group: &Group<T>, name: &str, reasons: &[Ineligible], now: Instant) -> Failure {
    let each = group.deployments.iter().zip(reasons).map(|(d, r)| format!("{} ({})", d.terms.id, r.text()));
    let why = each.collect::<Vec<_>>().join(", ");
    let what = format!("no deployment of '{}' is available: {why}", group.name);
    let too_long = |r: &Ineligible| matches!(r, Ineligible::ContextWindow { .. });
    if !reasons.is_empty() && reasons.iter().all(too_long) {
        return Failure::new(FailureKind::ContextWindow, what);
    }
    if !reasons.is_empty() && reasons.iter().all(|r| *r == Ineligible::Tags) {
        return Failure::new(FailureKind::BadRequest, what);
    }
    if reasons.contains(&Ineligible::NotIdle) {
        return Failure::new(FailureKind::Cancelled, what);
    }
    let retry_after = soonest(group, name, now).map(|t| t.saturating_duration_since(now));
    Failure { retry_after, ..Failure::new(FailureKind::RateLimited, what) }
}

/// Counts a request, which this process allows, for all processes. `None` if they have reached a limit; the state then knows that.
pub(crate) async fn admitted<T>(
    table: &Table<T>,
    d: &Deployment<T>,
    mut permit: Permit,
    tokens: ExpectedTokens,
) -> Option<Permit> {
    let Some(shared) = table.shared.as_ref().filter(|_| d.terms.limits != Limits::default()) else {
        return Some(permit);
    };
    match shared.acquire(&d.terms.id, &d.terms.limits, tokens).await {
        Ok(counted) => {
            permit.share(counted);
            Some(permit)
        }
        Err(exhausted) => {
            permit.refused(exhausted, Instant::now());
            None
        }
    }
}
