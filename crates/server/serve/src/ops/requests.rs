//! The last requests for models and those that run now, for the operator's page: names, times, tokens and costs, no prompts and no answers.
//! Filled by the access log and the router; read by `http::admin`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::trace::{Figures, Trace};

/// How many ended requests are remembered.
const KEPT: usize = 500;

/// A request, as the page shows it.
#[derive(Debug, Clone, Serialize)]
pub struct Request {
    /// Its id in logs, errors and answers.
    pub id: String,
    /// When it arrived, in milliseconds since 1970 UTC.
    pub began_ms: u64,
    /// Its path; empty while it runs.
    pub path: String,
    /// The HTTP status; 499 if the client left. `None` while it runs.
    pub status: Option<u16>,
    /// The time that it took, or has taken so far.
    pub duration_ms: u64,
    /// The time to the first piece of its answer.
    pub ttft_ms: Option<u64>,
    /// The name of its key.
    pub key: Option<String>,
    /// Its end user.
    pub user: Option<String>,
    /// The model that it asked for.
    pub requested: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
    /// The deployment that answered.
    pub deployment: Option<String>,
    /// How that was chosen.
    pub route: Option<String>,
    /// Tokens of its prompt,
    pub prompt_tokens: u64,
    /// of these, from a cache,
    pub cached_tokens: u64,
    /// and of its answer.
    pub completion_tokens: u64,
    /// US dollars, if they are counted.
    pub cost_usd: Option<f64>,
    /// Why it failed or was refused.
    pub error: Option<String>,
}

/// The last requests, and those that run now.
#[derive(Debug, Default)]
pub struct RequestLog {
    running: Mutex<HashMap<Arc<str>, Trace>>,
    ended: Mutex<VecDeque<Request>>,
}

impl RequestLog {
    /// A request for a model begins.
    pub fn began(&self, trace: &Trace) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.insert(Arc::clone(&trace.id), trace.clone());
    }

    /// It has ended.
    pub fn ended(&self, trace: &Trace) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&trace.id);
    }

    /// Remembers a request whose answer was sent, or who was refused.
    pub fn remember(&self, trace: &Trace, figures: &Figures, path: &str, status: u16) {
        let request = Request { path: path.into(), status: Some(status), ..Request::new(trace, figures) };
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.len() >= KEPT {
            ended.pop_front();
        }
        ended.push_back(request);
    }

    /// Those that run now, the oldest first.
    pub fn running(&self) -> Vec<Request> {
        let running: Vec<Trace> = {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.values().cloned().collect()
        };
        let mut all: Vec<Request> =
            running.iter().map(|t| t.read(|figures| Request::new(t, figures))).collect();
        all.sort_by(|a, b| (a.began_ms, &a.id).cmp(&(b.began_ms, &b.id)));
        all
    }

    /// The last ones that have ended, at most `most`, the newest first.
    pub fn last(&self, most: usize) -> Vec<Request> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.iter().rev().take(most).cloned().collect()
    }
}

impl Request {
    fn new(trace: &Trace, f: &Figures) -> Self {
        let took = trace.began.elapsed();
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(took);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            id: trace.id.to_string(),
            began_ms: ms(began),
            path: String::new(),
            status: None,
            duration_ms: ms(took),
            ttft_ms: f.ttft.map(ms),
            key: f.key.clone(),
            user: f.user.clone(),
            requested: f.requested.clone(),
            model: Some(f.model.clone()).filter(|model| !model.is_empty()),
            deployment: f.deployment.clone(),
            route: f.route.clone(),
            prompt_tokens: f.prompt,
            cached_tokens: f.cached,
            completion_tokens: f.completion,
            cost_usd: f.cost,
            error: f.error.clone().or_else(|| f.refused.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_requests_are_remembered() {
        let log = RequestLog::default();
        let trace = Trace::default();
        trace.note(|f| f.requested = Some("m".into()));
        log.began(&trace);
        assert_eq!(log.running()[0].requested.as_deref(), Some("m"));
        log.ended(&trace);
        assert!(log.running().is_empty());
        for status in 0..KEPT as u16 + 5 {
            trace.read(|figures| log.remember(&trace, figures, "/v1/messages", status));
        }
        let last = log.last(usize::MAX);
        assert_eq!(
            (last.len(), last[0].status, last[KEPT - 1].status),
            (KEPT, Some(KEPT as u16 + 4), Some(5))
        );
        assert_eq!(log.last(2).len(), 2);
    }
}
