//! Health checks of deployments in the background.

use std::sync::Arc;
use std::time::Duration;

use octet_config::HealthChecks;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::router::Router;
use crate::state::{Availability, DeploymentStatus, Reason};
use crate::table::Table;
use crate::target::Target;

/// Maximum number of concurrent checks.
const AT_ONCE_MAX: usize = 8;
/// Interval at which the settings are read again.
const LOOK: Duration = Duration::from_secs(1);

/// Runs checks as configured, forever: a deployment that fails is in cooldown until it passes. Drop it to stop.
pub async fn watch<T: Target>(router: Arc<Router<T>>) {
    let mut next: Option<Instant> = None;
    loop {
        let table = router.table();
        let now = Instant::now();
        if !table.health.enabled {
            next = None;
        } else if next.is_none_or(|at| at <= now) {
            next = Some(now + table.health.interval);
            check(&table).await;
        }
        drop(table);
        let wait = next.map_or(LOOK, |at| at.saturating_duration_since(Instant::now()).min(LOOK));
        sleep(wait.max(Duration::from_millis(1))).await;
    }
}

/// One round: checks each deployment once.
pub async fn check<T: Target>(table: &Arc<Table<T>>) {
    let HealthChecks { interval, timeout: most, .. } = table.health;
    let room = Arc::new(Semaphore::new(AT_ONCE_MAX));
    let mut checks = JoinSet::new();
    for (group, deployment) in table.deployments().filter(|(_, d)| !d.unchecked) {
        let (group, deployment, room) = (Arc::clone(group), Arc::clone(deployment), Arc::clone(&room));
        checks.spawn(async move {
            // It is never closed.
            let _place = room.acquire().await;
            let result = timeout(most, deployment.target.check()).await;
            let healthy = matches!(result, Ok(Ok(())));
            let now = Instant::now();
            let _deciding = group.cooling.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let id = deployment.id();
            let spare = group.deployments.iter().any(|o| o.id() != id && o.state.is_ready(now));
            if !healthy {
                let why = match result {
                    Ok(Err(failure)) => failure.message,
                    _ => format!("no answer within {:.0} s", most.as_secs_f64()),
                };
                tracing::warn!(deployment = id, group = group.name.as_str(), "not well: {why}");
            }
            // Until the next round has finished.
            deployment.state.checked(healthy, spare, now + interval + most + LOOK, now);
        });
    }
    while checks.join_next().await.is_some() {}
}

/// A deployment's status for the operator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// Its group.
    pub group: String,
    /// Its id.
    pub deployment: String,
    /// The model's name at its target.
    pub model: String,
    /// `ready`, `trial`, `cooling` or `unhealthy`.
    pub state: &'static str,
    /// It has answered, or passed a health check.
    pub has_answered: bool,
    /// Seconds until it can get requests again; 0 if it can now.
    pub cooling_s: f64,
    /// Running requests.
    pub in_flight: u32,
    /// Requests of the last minute.
    pub requests: u32,
    /// Their tokens.
    pub tokens: u64,
    /// Average time to the first event of a stream.
    pub first_s: Option<f64>,
}

impl<T: Target> Router<T> {
    /// The status of all deployments, by group and id.
    pub fn status(&self) -> Vec<Status> {
        let table = self.table();
        let now = Instant::now();
        let status = |(group, d): (&Arc<crate::table::Group<T>>, &Arc<crate::table::Deployment<T>>)| {
            let live: DeploymentStatus = d.state.live(table.policy.latency_ttl, now);
            let (state, cooling_s) = match live.available {
                Availability::Ready => ("ready", 0.0),
                Availability::Trial | Availability::OnTrial => ("trial", 0.0),
                Availability::Cooling(time) => {
                    let unhealthy = d.state.cooling(now) == Some(Reason::Unhealthy);
                    (if unhealthy { "unhealthy" } else { "cooling" }, time.as_secs_f64())
                }
            };
            Status {
                group: group.name.as_str().into(),
                deployment: d.id().into(),
                model: d.target.model().into(),
                state,
                has_answered: live.has_answered,
                cooling_s,
                in_flight: live.in_flight,
                requests: live.requests,
                tokens: live.tokens,
                first_s: live.first_s,
            }
        };
        let mut all: Vec<Status> = table.deployments().map(status).collect();
        all.sort_by(|a, b| (&a.group, &a.deployment).cmp(&(&b.group, &b.deployment)));
        all
    }
}
