//! The report of a finished request to the callbacks. Created by `routed_request`.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use octet_api::core::{GenerateRequest, Usage};
use octet_callbacks::{Answered, Attempt, Callbacks, Error, Record, TraceContext};
use octet_router::{Dialect, Route, Step};
use serde_json::{Map, Value};

use super::auth::Current;
use super::read::is_embedding;
use crate::ops::Trace;

/// A request to report.
pub struct Report {
    callbacks: Arc<Callbacks>,
    context: TraceContext,
    operation: Option<&'static str>,
    key_name: Option<String>,
    tags: Vec<String>,
    metadata: Map<String, Value>,
    current: Arc<Current>,
}

/// How a request ended.
pub struct Outcome<'a> {
    /// Its route.
    pub route: &'a Route,
    /// Its token counts.
    pub usage: Option<Usage>,
    /// The error, if it failed.
    pub error: Option<&'a str>,
    /// Time to the first piece of the answer.
    pub first: Option<Duration>,
    /// The whole answer was sent.
    pub ended: bool,
}

impl Report {
    /// The report of a request, with its tags and metadata.
    pub fn new(
        callbacks: Arc<Callbacks>,
        dialect: Option<Dialect>,
        traceparent: Option<&str>,
        key_name: Option<String>,
        tags: Vec<String>,
        metadata: Map<String, Value>,
        current: &Arc<Current>,
    ) -> Self {
        let context = TraceContext::new(traceparent, || fastrand::u64(..));
        let operation = dialect.map(operation);
        Self { callbacks, context, operation, key_name, tags, metadata, current: Arc::clone(current) }
    }

    /// The trace header for providers; `None` if no callback wants spans.
    pub fn traceparent(&self) -> Option<String> {
        self.callbacks.traces().then(|| self.context.traceparent())
    }

    /// Reports a request that was answered from the response cache.
    pub fn cached(self, trace: &Trace, request: &GenerateRequest, key: Option<&Arc<str>>) {
        let callbacks = Arc::clone(&self.callbacks);
        let record = self.record(trace, request, key);
        callbacks.record(Record { cached: true, ..record });
    }

    /// Reports a request.
    pub fn finished(
        self,
        trace: &Trace,
        request: &GenerateRequest,
        key: Option<&Arc<str>>,
        outcome: Outcome<'_>,
    ) {
        let Outcome { route, usage, error, first, ended } = outcome;
        let attempts = attempts(route, trace.began);
        let failed = route.steps.iter().rev().find_map(|step| match step {
            Step::Failed { kind, message, status, .. } => Some((*kind, message, *status)),
            _ => None,
        });
        let error = match (error, &route.answered) {
            (Some(message), _) => {
                let (kind, status) = failed.map_or(("stream", None), |(kind, _, status)| (kind, status));
                Some(Error { kind: kind.into(), message: message.into(), status })
            }
            // The client left before an answer.
            (None, None) if !ended => Some(Error {
                kind: "cancelled".into(),
                message: "the client disconnected before an answer".into(),
                status: None,
            }),
            _ => None,
        };
        let about = route.answered.as_ref().and_then(|who| self.current.about.get(&who.deployment));
        let cost = self.current.cost(route.answered.as_ref(), usage.as_ref()).dollars();
        let answered = route.answered.as_ref().map(|who| Answered {
            provider: about.map_or_else(String::new, |a| a.provider.clone()),
            model: who.model.clone(),
            deployment: who.deployment.clone(),
            group: who.group.clone(),
        });
        let counts = usage.map(|u| (u.prompt_tokens, u.cached_tokens.unwrap_or(0), u.completion_tokens));
        let callbacks = Arc::clone(&self.callbacks);
        let record = self.record(trace, request, key);
        callbacks.record(Record { first, answered, usage: counts, cost, error, attempts, ..record });
    }

    fn record(self, trace: &Trace, request: &GenerateRequest, key: Option<&Arc<str>>) -> Record {
        let took = trace.began.elapsed();
        Record {
            id: trace.id.to_string(),
            context: self.context,
            operation: self.operation.unwrap_or("chat"),
            began: SystemTime::now() - took,
            took,
            first: None,
            requested_model: request.model.clone(),
            stream: request.stream,
            max_tokens: request.max_tokens,
            temperature: request.sampling.temperature,
            user: request.user.clone(),
            key: key.map(|id| (id.to_string(), self.key_name.unwrap_or_else(|| id.to_string()))),
            owner: (None, None),
            tags: self.tags,
            metadata: self.metadata,
            answered: None,
            usage: None,
            cost: 0.0,
            cached: false,
            error: None,
            attempts: Vec::new(),
        }
    }
}

/// OpenTelemetry's name of the operation.
fn operation(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAiCompletions | Dialect::OllamaGenerate => "text_completion",
        dialect if is_embedding(dialect) => "embeddings",
        _ => "chat",
    }
}

/// The attempts, from the steps of a route.
fn attempts(route: &Route, began: Instant) -> Vec<Attempt> {
    let mut out: Vec<Attempt> = Vec::new();
    let mut open = false;
    for (step, at) in route.steps.iter().zip(&route.at) {
        let after = at.saturating_duration_since(began);
        match step {
            Step::Chose { group, deployment, .. } => {
                let (deployment, group) = (deployment.clone(), group.clone());
                out.push(Attempt { deployment, group, after, took: Duration::ZERO, error: None });
                open = true;
            }
            Step::Failed { deployment, kind, status, message, .. } => {
                let last = out.last_mut().filter(|a| open && a.deployment == *deployment);
                if let Some(last) = last {
                    last.took = after.saturating_sub(last.after);
                    last.error =
                        Some(Error { kind: (*kind).into(), message: message.clone(), status: *status });
                    open = false;
                }
            }
            Step::Confidence { .. } | Step::ToolCalls { .. } => {
                if let Some(last) = out.last_mut().filter(|_| open) {
                    last.took = after.saturating_sub(last.after);
                }
            }
            _ => {}
        }
    }
    if let Some(last) = out.last_mut().filter(|_| open) {
        last.took = began.elapsed().saturating_sub(last.after);
    }
    out
}
