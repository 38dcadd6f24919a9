//! One request through the router: it is counted, billed and measured, however it ends. Driven by `http`; dropped when the client
//! disconnects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use octet_api::core::{Event, GenerateRequest, Usage};
use octet_api::{ApiError, ErrorKind};
use octet_keys::Refusal;
use octet_router::{
    Allowed, AnswerMemory, Answered, Call, Dialect, FailureKind, Original, Piece, Reply, Route, Size, Step,
    answers,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::auth::{Bill, Current, counted};
use super::cache::{Keep, Lookup};
use super::read::Own;
use super::report::{Outcome, Report};
use super::request_context::{RequestContext, Sender};
use super::target::Target;
use super::{Caller, Gateway};
use crate::answer_source::{AnswerSource, Facts};
use crate::inference::Inference;
use crate::ops::Trace;
use crate::pipeline::draining;
use crate::warnings::{header_value, messages};

/// After how many seconds a request that was refused for lack of capacity may be tried again.
const RETRY_S: u64 = 1;

/// W3C trace context.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What has arrived of an answer.
#[derive(Default)]
struct Progress {
    usage: Option<Usage>,
    /// Received pieces of text, each about a token; received bytes of an answer that is not parsed.
    pieces: u64,
    raw_bytes: u64,
    error: Option<String>,
    /// The time that the client itself allows is over.
    gave_up: bool,
    /// The provider's token count is impossible.
    doubted: bool,
    /// The answering deployment is known.
    decided: bool,
    began: bool,
    /// Time to the first piece of the answer.
    first: Option<Duration>,
    /// The whole answer has arrived.
    ended: bool,
}

impl Progress {
    fn failed(&mut self, error: &ApiError) {
        self.error = Some(error.message.clone());
        self.gave_up = error.kind == ErrorKind::ClientTimeout;
    }
}

/// A request that is being routed or answered.
pub struct RoutedRequest {
    inference: Arc<Inference>,
    trace: Trace,
    request: Arc<GenerateRequest>,
    /// The client's bytes, with the request in full if a target parsed them.
    original: Option<Arc<Original>>,
    reply: Reply<Target>,
    bill: Option<Bill>,
    /// Counts it for all processes that share limits; `None` before it is counted, and without such limits.
    lease: Option<octet_cache::Lease>,
    /// It was counted, or refused.
    is_shared: bool,
    /// Its answer is not parsed: only usage that the provider reports is billed.
    unread: bool,
    /// The id of its virtual key.
    owner: Option<Arc<str>>,
    progress: Progress,
    /// Tags for which usage is recorded, if there is a key store.
    tags: Vec<String>,
    /// The report for the callbacks.
    report: Option<Report>,
    /// Collects the answer for the response cache.
    keep: Option<Keep>,
    /// Its key in the response cache.
    entry: Option<String>,
    /// It was answered from the response cache.
    is_cached: bool,
    _place: Option<OwnedSemaphorePermit>,
    counted: Counted,
}

/// The names that may be fallbacks: for a virtual key those that it may use itself, and if a budget is spent those that cost nothing.
fn allowed(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    is_guarded: bool,
    only_free: Option<Arc<AtomicBool>>,
) -> Option<Allowed> {
    let is_guarded = is_guarded && matches!(caller, Caller::Key(_));
    if !is_guarded && only_free.is_none() {
        return None;
    }
    let (gateway, caller) = (Arc::clone(gateway), caller.clone());
    Some(Allowed(Arc::new(move |name| {
        let only_free = only_free.as_ref().is_some_and(|only| only.load(Ordering::Relaxed));
        (!is_guarded || gateway.may_use(&caller, name)) && (!only_free || gateway.is_free(name))
    })))
}

/// Takes one of the places for concurrent requests.
fn acquire_place(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ApiError> {
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        let what =
            "the maximum number of concurrent requests is reached (global_max_parallel_requests); try again";
        ApiError { retry_after_s: Some(RETRY_S), ..ApiError::new(ErrorKind::RateLimit, what) }
    })
}

/// The report for the callbacks, if there are any. Takes the metadata out of `own`.
fn report(
    gateway: &Gateway,
    current: &Arc<Current>,
    caller: &Caller,
    headers: &HeaderMap,
    dialect: Option<Dialect>,
    own: &mut Own,
) -> Option<Report> {
    let callbacks = current.callbacks.clone().filter(|c| !c.is_empty())?;
    let key_name = match (caller, gateway.store()) {
        (Caller::Key(key), Some(store)) => store.name(&key.secret),
        _ => None,
    };
    let traceparent = headers.get(TRACEPARENT).and_then(|v| v.to_str().ok());
    let (tags, metadata) = (own.tags.clone(), std::mem::take(&mut own.metadata));
    Some(Report::new(callbacks, dialect, traceparent, key_name, tags, metadata, current))
}

/// The client's headers with the request's trace.
fn traced(mut headers: HeaderMap, traceparent: Option<&str>) -> HeaderMap {
    if let Some(value) = traceparent.and_then(|t| HeaderValue::from_str(t).ok()) {
        headers.insert(TRACEPARENT, value);
    }
    headers
}

/// Headers as text; others are left out.
fn texts(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |(name, value): (&HeaderName, &HeaderValue)| {
        Some((name.as_str().to_string(), value.to_str().ok()?.to_string()))
    };
    headers.iter().filter_map(text).collect()
}

/// Counts a running request. Dropped last: when the count is 0, all requests are billed and measured.
struct Counted(Arc<Gateway>, Trace);

impl Counted {
    fn new(gateway: &Arc<Gateway>, trace: &Trace) -> Self {
        gateway.busy.fetch_add(1, Ordering::Relaxed);
        gateway.inference.requests.began(trace);
        Self(Arc::clone(gateway), trace.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.inference.requests.ended(&self.1);
        self.0.busy.fetch_sub(1, Ordering::Release);
    }
}

impl RoutedRequest {
    /// Authorizes a request and prepares its billing and reports. Nothing is sent until an answer is awaited. `original` gets the
    /// client's headers.
    pub fn start(
        gateway: &Arc<Gateway>,
        context: RequestContext,
        request: &Arc<GenerateRequest>,
        mut original: Option<Original>,
    ) -> Result<Self, ApiError> {
        let RequestContext { sender: Sender { trace, caller, headers, .. }, mut own, .. } = context;
        // Counted before the check, so that shutdown waits for every request that passes it.
        let counted_in = Counted::new(gateway, &trace);
        let key = gateway.key_name(&caller);
        trace.note(|f| {
            f.requested = Some(request.model.clone());
            f.user.clone_from(&request.user);
            f.key = key;
        });
        let inference = &gateway.inference;
        if inference.models.is_draining() {
            return Err(draining());
        }
        let current = gateway.current();
        let place = current.places.as_ref().map(acquire_place).transpose()?;
        let bytes = original.as_ref().map_or(0, |o| o.body.len() as u64).max(Size::of(request).bytes);
        let bill = gateway.authorize(&caller, request, bytes)?;
        let only_free = bill.as_ref().and_then(Bill::only_free);
        let dialect = original.as_ref().map(|o| o.dialect);
        let report = report(gateway, &current, &caller, &headers, dialect, &mut own);
        let traceparent = report.as_ref().and_then(Report::traceparent);
        let owner = match &caller {
            Caller::Key(key) => Some(Arc::clone(&key.id)),
            Caller::Trusted => None,
        };
        let routing_headers = if current.headers { texts(&headers) } else { Vec::new() };
        if let Some(original) = &mut original {
            original.headers = traced(headers, traceparent.as_deref());
        }
        let original = original.map(Arc::new);
        let tags = if gateway.store().is_some() { own.tags.clone() } else { Vec::new() };
        let call = Call {
            tags: own.tags,
            traceparent,
            request: Arc::clone(request),
            original: original.clone(),
            headers: routing_headers,
            key: owner.as_ref().map(ToString::to_string),
            timeout: inference.timeout,
            patience: own.timeout,
            options: own.options,
            allowed: allowed(gateway, &caller, current.guard_fallbacks, only_free),
        };
        Ok(Self {
            reply: gateway.router().send(call),
            request: Arc::clone(request),
            original,
            inference: Arc::clone(inference),
            trace,
            bill,
            lease: None,
            is_shared: false,
            unread: matches!(dialect, Some(Dialect::Passed(_))),
            owner,
            progress: Progress::default(),
            tags,
            report,
            keep: None,
            entry: None,
            is_cached: false,
            _place: place,
            counted: counted_in,
        })
    }

    /// It is answered from the response cache, at no cost.
    pub fn answered_from_cache(&mut self) {
        self.is_cached = true;
    }

    /// Stores its answer in the response cache when it is complete.
    pub fn keep(&mut self, lookup: Lookup) {
        self.entry = Some(lookup.key());
        self.keep = lookup.keep();
    }

    /// Counts the request for all processes that share limits. Those of this process have allowed it.
    async fn share(&mut self) -> Result<(), ApiError> {
        if self.lease.is_some() || self.progress.decided || std::mem::replace(&mut self.is_shared, true) {
            return Ok(());
        }
        let Some(bill) = self.bill.take() else { return Ok(()) };
        let shared = self.counted.0.shared().cloned();
        let (mut bill, mut counted) = bill.count(shared.as_ref()).await?;
        if counted.as_ref().is_err_and(Refusal::is_budget) && bill.pass_budgets() {
            (bill, counted) = bill.count(shared.as_ref()).await?;
        }
        match counted {
            Ok(lease) => (self.lease, self.bill) = (lease, Some(bill)),
            Err(refusal) => {
                let error = self.counted.0.refuse(&refusal, Some(&bill.key()));
                bill.withdraw();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until a deployment answers, for at most `most`; false if none did.
    pub async fn decide(&mut self, most: Option<Duration>) -> Result<bool, ApiError> {
        self.share().await.inspect_err(|e| self.progress.failed(e))?;
        let decided = match most {
            Some(most) => match tokio::time::timeout(most, self.reply.decide()).await {
                Ok(decided) => decided,
                Err(_) => return Ok(false),
            },
            None => self.reply.decide().await,
        };
        decided.inspect_err(|e| self.progress.failed(e))?;
        self.record_answerer();
        Ok(true)
    }

    /// Records which deployment answers.
    fn record_answerer(&mut self) {
        if std::mem::replace(&mut self.progress.decided, true) {
            return;
        }
        let bill = &mut self.bill;
        self.reply.with_route(|route| {
            if let (Some(bill), Some(who)) = (bill, &route.answered) {
                bill.answered_by(&who.deployment, Some(&who.model));
            }
        });
    }

    /// The headers of a provider's answer that is forwarded unread.
    pub fn headers(&self) -> Option<&HeaderMap> {
        self.reply.headers()
    }

    fn count_tags(&self, who: Option<&Answered>, usage: Option<&Usage>) {
        let gateway = &self.counted.0;
        let Some(store) = gateway.store().filter(|_| !self.tags.is_empty()) else { return };
        let took = usage.map(counted).unwrap_or_default();
        store.count_tags(&self.tags, &took, gateway.current().cost(who, usage));
    }

    fn observe(&mut self, piece: Option<Piece>) -> Option<Piece> {
        self.record_answerer();
        match &piece {
            None => {
                self.progress.ended = true;
                self.progress.usage = self.progress.usage.or_else(|| self.reply.usage());
            }
            Some(Piece::Raw(bytes)) => {
                self.progress.raw_bytes += bytes.len() as u64;
                self.record_first();
            }
            Some(Piece::Event(event)) => match event {
                Event::Usage(usage) => self.progress.usage = Some(*usage),
                Event::Error(e) => self.progress.failed(e),
                Event::Text { .. } | Event::Reasoning { .. } | Event::ToolCallArguments { .. } => {
                    self.progress.pieces += 1;
                    self.record_first();
                }
                _ => {}
            },
        }
        piece
    }

    fn record_first(&mut self) {
        if !std::mem::replace(&mut self.progress.began, true) {
            let after = self.trace.began.elapsed();
            self.progress.first = Some(after);
            self.trace.note(|f| f.ttft = Some(after));
        }
    }
}

impl AnswerSource for RoutedRequest {
    fn request(&self) -> Arc<GenerateRequest> {
        let parsed = self.original.as_ref().and_then(|original| original.parsed.get());
        Arc::clone(parsed.unwrap_or(&self.request))
    }

    fn facts(&mut self) -> Facts {
        let who = |route: &Route| (route.answered.as_ref().map(|a| a.model.clone()), route.header());
        let (model, route) = self.reply.with_route(who);
        let request = self.request();
        // A provider may support fields that Octet does not; another Octet says what it warns about. A model in this process repeats
        // the warnings of the request, with its own.
        let warnings = match self.reply.warnings() {
            [] if self.is_remote() => self.headers().and_then(header_value).into_iter().collect(),
            [] => messages(&request.warnings).map(str::to_string).collect(),
            warnings => warnings.to_vec(),
        };
        let response_cache = self.entry.take().map(|key| (key, false));
        Facts { model, route: Some(route), warnings, cache_miss: None, response_cache }
    }

    fn owner(&self) -> Option<&Arc<str>> {
        self.owner.as_ref()
    }

    fn is_remote(&self) -> bool {
        self.reply.is_remote()
    }

    fn flows(&self) -> bool {
        self.reply.flows()
    }

    fn memory(&self) -> Option<AnswerMemory> {
        self.reply.memory()
    }

    async fn next(&mut self) -> Option<Piece> {
        let piece = self.reply.next().await;
        self.observe(piece)
    }

    fn try_next(&mut self) -> Option<Piece> {
        let piece = self.reply.try_next()?;
        self.observe(Some(piece))
    }

    fn wrote(&mut self, bytes: &[u8]) {
        if let Some(keep) = &mut self.keep {
            keep.add(bytes);
        }
    }

    fn finished(&mut self) {
        if let Some(keep) = self.keep.take().filter(|_| self.progress.error.is_none()) {
            keep.done();
        }
    }
}

/// Approximate bytes per token of a provider's stream.
const STREAM_BYTES_PER_TOKEN: u64 = 200;
/// Approximate bytes per token of an answer in one piece, which is mostly text.
const ANSWER_BYTES_PER_TOKEN: u64 = 4;

/// The deployment that was processing the request, if nothing of its answer had arrived.
fn working_deployment(route: &Route) -> Option<&str> {
    route.steps.iter().rev().find_map(|step| match step {
        Step::Chose { deployment, .. } => Some(Some(deployment.as_str())),
        // The client left before it could answer.
        Step::Failed { kind, .. } if *kind == FailureKind::ClientTimeout.name() => None,
        Step::Failed { .. } => Some(None),
        _ => None,
    })?
}

impl RoutedRequest {
    /// Ends a request that was answered from the cache.
    fn end_cached(&mut self) {
        let name = &self.request.model;
        self.inference.metrics.routes.cached();
        self.trace.note(|f| {
            f.model.clone_from(name);
            f.route = Some(format!("{}>cache", octet_config::printable(name)));
        });
        if let Some(bill) = self.bill.take() {
            bill.settle_added();
        }
        self.count_tags(None, None);
        if let Some(report) = self.report.take() {
            report.cached(&self.trace, &self.request, self.owner.as_ref());
        }
    }

    /// Sends the report for the callbacks.
    fn send_report(&mut self, usage: Option<Usage>, error: Option<&str>) {
        let Some(report) = self.report.take() else { return };
        let (first, ended) = (self.progress.first, self.progress.ended);
        self.reply.with_route(|route| {
            report.finished(
                &self.trace,
                &self.request,
                self.owner.as_ref(),
                Outcome { route, usage, error, first, ended },
            );
        });
    }

    /// Bills what was used. A client that leaves while a deployment works pays for the prompt: otherwise it could send requests without
    /// end and pay nothing. A request without an answer and without cost is not billed.
    fn settle(&mut self, usage: Option<Usage>, has_error: bool) {
        let Some(mut bill) = self.bill.take() else { return };
        let has_left = (!has_error || self.progress.gave_up)
            && !self.progress.ended
            && !self.progress.began
            && usage.is_none();
        let (mut has_worked, mut has_spent) = (false, false);
        self.reply.with_route(|route| {
            route.spent.iter().for_each(|spent| bill.add(spent));
            has_spent = !route.spent.is_empty();
            if let (true, Some(deployment)) = (has_left, working_deployment(route)) {
                bill.answered_by(deployment, None);
                has_worked = true;
            }
        });
        if self.progress.began || usage.is_some() || has_worked {
            let per_token = if self.request.stream { STREAM_BYTES_PER_TOKEN } else { ANSWER_BYTES_PER_TOKEN };
            let usage = usage.or(self.unread.then(Usage::default));
            let estimate = self.progress.pieces + self.progress.raw_bytes / per_token;
            // Who exaggerates may also send more than what was asked for.
            let most = self.request.max_tokens.filter(|_| self.progress.doubted).map(u64::from);
            let most = most.map_or(u64::MAX, |each| each.saturating_mul(answers(&self.request)));
            let estimate = estimate.min(most);
            if let Some(lease) = &mut self.lease {
                lease.used(bill.tokens(usage.as_ref(), estimate));
            }
            let (key, tokens) = (bill.key(), bill.tokens(usage.as_ref(), estimate));
            let cost = bill.settle(usage.as_ref(), estimate);
            self.inference.metrics.routes.billed(&key, tokens, cost.dollars());
            self.trace.note(|f| (f.key, f.cost) = (Some(key), Some(cost.dollars())));
            if let Some(lease) = &mut self.lease {
                lease.cost(super::shared::millionths(cost));
            }
        } else {
            if let Some(lease) = &mut self.lease {
                lease.used(0);
            }
            if has_spent {
                let cost = bill.settle_added();
                if let Some(lease) = &mut self.lease {
                    lease.cost(super::shared::millionths(cost));
                }
            }
        }
    }
}

impl RoutedRequest {
    /// The token count of the answer, unless it is impossible.
    fn believed(&mut self) -> Option<Usage> {
        let usage = self.progress.usage.or_else(|| self.reply.usage())?;
        if self.reply.believes(&usage) {
            return Some(usage);
        }
        self.progress.doubted = true;
        self.reply.with_route(|route| {
            let deployment = route.answered.as_ref().map_or("", |who| &who.deployment);
            let Usage { prompt_tokens, completion_tokens, .. } = usage;
            tracing::warn!(
                deployment,
                prompt_tokens,
                completion_tokens,
                "the provider reports more tokens than the request and the model's context allow: they are estimated instead"
            );
        });
        None
    }
}

impl Drop for RoutedRequest {
    fn drop(&mut self) {
        if self.is_cached {
            return self.end_cached();
        }
        let usage = self.believed();
        let (error, took) = (self.progress.error.take(), self.trace.began.elapsed());
        self.send_report(usage, error.as_deref());
        let has_error = error.is_some();
        self.reply.with_route(|route| {
            self.inference.metrics.routes.count(route, has_error, took, usage.as_ref());
            if let (Some(who), Some(first)) = (&route.answered, self.progress.first) {
                self.inference.metrics.routes.first(&who.deployment, first);
            }
            self.trace.note(|f| {
                f.user.clone_from(&self.request.user);
                if let Some(who) = &route.answered {
                    f.model.clone_from(&who.model);
                    f.deployment = Some(who.deployment.clone());
                }
                f.route = Some(route.header());
                if let Some(usage) = &usage {
                    f.prompt = usage.prompt_tokens;
                    f.cached = usage.cached_tokens.unwrap_or(0);
                    f.completion = usage.completion_tokens;
                }
                f.error = error;
            });
        });
        if usage.is_some() || self.progress.began {
            let who = self.reply.with_route(|route| route.answered.clone());
            self.count_tags(who.as_ref(), usage.as_ref());
        }
        self.settle(usage, has_error);
    }
}
