//! Alerts by webhook: a deployment in cooldown, a budget that is nearly or completely used up, many failed requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Uri};
use octet_config::{AlertForm, AlertReceiver};
use octet_keys::{KeyInfo, OwnerKind};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Gateway;

/// How often the state is checked.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often budgets are: there may be many.
const BUDGETS_EVERY: Duration = Duration::from_secs(20);
/// Time over which failed requests are counted.
const ERRORS_OVER: Duration = Duration::from_secs(60);
/// More failed requests than this share are an alert,
const ERRORS_SHARE: f64 = 0.5;
/// if there were at least this many.
const REQUESTS_MIN: u64 = 10;
/// Used share of a budget from which on it is nearly used up.
const NEARLY: f64 = 0.8;
/// Time limit of a report.
const SEND_WITHIN: Duration = Duration::from_secs(10);

/// What is wrong, by a name that stays the same while it lasts.
pub type Conditions = BTreeMap<String, Value>;

/// Checks the state as long as the server runs, and reports each condition once when it begins.
pub async fn watch(gateway: Arc<Gateway>) {
    let (mut known, mut budgets) = (Conditions::new(), Conditions::new());
    let mut budgets_at = Instant::now();
    let mut errors = Errors::new(&gateway);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let receivers = gateway.current().alerts.clone();
        if receivers.is_empty() {
            continue;
        }
        if budgets_at <= Instant::now() {
            budgets_at = Instant::now() + BUDGETS_EVERY;
            budgets = gateway.store().map_or_else(Conditions::new, |store| {
                let owners = [OwnerKind::User, OwnerKind::Team]
                    .into_iter()
                    .flat_map(|kind| store.owners(kind).into_iter().map(move |owner| (kind.name(), owner)));
                let keys = store.list().into_iter().filter(|k| k.revoked.is_none()).map(|k| ("key", k));
                used_up(keys.chain(owners).chain(store.total().map(|total| ("server", total))))
            });
        }
        let mut current = cooldowns(&gateway);
        current.extend(errors.look(&gateway));
        current.extend(budgets.clone());
        for (name, condition) in &current {
            if !known.contains_key(name) {
                for receiver in &receivers {
                    send(&gateway, receiver, condition).await;
                }
            }
        }
        known = current;
    }
}

/// Deployments that cannot get requests.
fn cooldowns(gateway: &Gateway) -> Conditions {
    let ill = gateway.router().status().into_iter().filter(|s| s.cooling_s > 0.0);
    ill.map(|s| {
        let text = format!("the deployment '{}' of '{}' is {} for {:.0} s", s.deployment, s.group, s.state, s.cooling_s.ceil());
        let alert = json!({
            "event": "deployment_cooldown", "event_message": text, "model_group": s.group, "model_id": s.deployment, "state": s.state,
        });
        (format!("cooldown {}", s.deployment), alert)
    })
    .collect()
}

/// Budgets of which at least [`NEARLY`] is spent.
pub fn used_up(all: impl Iterator<Item = (&'static str, KeyInfo)>) -> Conditions {
    let mut out = Conditions::new();
    for (kind, info) in all {
        let Some(budget) = info.limits.budget else { continue };
        let (spent, limit) = (info.spent.dollars(), budget.limit.dollars());
        if spent < NEARLY * limit {
            continue;
        }
        let (event, what) = match spent >= limit {
            true => ("budget_crossed", "used up"),
            false => ("threshold_crossed", "nearly used up"),
        };
        let text =
            format!("the budget of the {kind} '{}' is {what}: {} of {}", info.name, info.spent, budget.limit);
        let alert = json!({
            "event": event, "event_group": kind, "event_message": text, "key_alias": info.name, "spend": spent, "max_budget": limit,
        });
        // A new period begins again.
        out.insert(format!("{event} {kind} {} {:?}", info.id, info.resets), alert);
    }
    out
}

/// The share of failed requests.
struct Errors {
    /// Answered and failed requests when the time began.
    before: (u64, u64),
    began: Instant,
    current: Conditions,
}

impl Errors {
    fn new(gateway: &Gateway) -> Self {
        let before = gateway.inference.metrics.routes.outcomes();
        Self { before, began: Instant::now(), current: Conditions::new() }
    }

    /// The condition, as of the last whole time.
    fn look(&mut self, gateway: &Gateway) -> Conditions {
        if self.began.elapsed() >= ERRORS_OVER {
            let now = gateway.inference.metrics.routes.outcomes();
            let (answered, failed) = (now.0 - self.before.0, now.1 - self.before.1);
            self.current = many_failed(answered, failed);
            (self.before, self.began) = (now, Instant::now());
        }
        self.current.clone()
    }
}

/// The condition that too many requests have failed.
pub fn many_failed(answered: u64, failed: u64) -> Conditions {
    let all = answered + failed;
    if all < REQUESTS_MIN || failed as f64 <= ERRORS_SHARE * all as f64 {
        return Conditions::new();
    }
    let text = format!("{failed} of {all} requests failed within {} s", ERRORS_OVER.as_secs());
    let alert = json!({"event": "error_rate", "event_message": text, "failed": failed, "requests": all});
    Conditions::from([("error_rate".to_string(), alert)])
}

/// Sends one alert, once.
async fn send(gateway: &Gateway, receiver: &AlertReceiver, alert: &Value) {
    let text = alert["event_message"].as_str().unwrap_or_default();
    tracing::warn!("alert: {text}");
    let body = match receiver.form {
        AlertForm::Slack => json!({"text": format!("Octet: {text}")}),
        AlertForm::Json => alert.clone(),
    };
    let Ok(uri) = receiver.url.expose().parse::<Uri>() else { return };
    let mut request = Request::new(axum::body::Bytes::from(body.to_string()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    match gateway.client.deliver(request, SEND_WITHIN).await {
        Ok((status, _)) if status.is_success() => {}
        Ok((status, _)) => tracing::warn!("an alert was not delivered: the receiver answers {status}"),
        Err(e) => tracing::warn!("an alert was not delivered: {}", e.message),
    }
}
