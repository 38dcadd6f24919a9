//! One request on its way through the router: it is counted, billed and measured, whatever becomes of it. Driven by `http`; dropped
//! where the client is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use octet_api::core::{Event, GenerateRequest, Usage};
use octet_api::{ApiError, ErrorKind};
use octet_router::{Allowed, Answered, Call, Dialect, Original, Piece, Reply, Route, Size, Step};
use tokio::sync::OwnedSemaphorePermit;

use super::auth::{Bill, counted};
use super::cache::{Keep, Lookup};
use super::read::Own;
use super::read::add_tags;
use super::target::Target;
use super::told::{Outcome, Told};
use super::{Caller, Gateway};
use crate::answer_source::{AnswerSource, Facts};
use crate::app::App;
use crate::memory_budget::MemoryPermit;
use crate::ops::Trace;
use crate::pipeline::draining;
use crate::warnings::messages;

/// When a request may come again for which there was no room.
const RETRY_S: u64 = 1;

/// Tags of a request beside those of its body: LiteLLM's header.
const TAGS: HeaderName = HeaderName::from_static("x-litellm-tags");
/// The trace that a request belongs to.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Whose request it is.
pub struct RequestContext<'a> {
    /// Its name and figures.
    pub trace: &'a Trace,
    /// Who asks.
    pub caller: &'a Caller,
    /// Its headers.
    pub headers: &'a hyper::HeaderMap,
    /// The memory that it holds.
    pub share: MemoryPermit,
    /// What it says to the router.
    pub own: Own,
}

/// A request on its way.
pub struct RoutedRequest {
    app: Arc<App>,
    trace: Trace,
    request: Arc<GenerateRequest>,
    reply: Reply<Target>,
    bill: Option<Bill>,
    /// Nobody knows what its bytes mean: only what was counted is billed.
    unread: bool,
    /// The virtual key that asks.
    owner: Option<Arc<str>>,
    usage: Option<Usage>,
    /// Pieces of text that came, each about a token; bytes of an answer of which nothing is read.
    pieces: u64,
    raw_bytes: u64,
    error: Option<String>,
    decided: bool,
    began: bool,
    /// When the first of it came.
    first: Option<Duration>,
    /// All of the answer came.
    ended: bool,
    /// What it is counted by beside its key, where that is kept.
    tags: Vec<String>,
    /// Where it is reported when it is over.
    told: Option<Told>,
    /// The answer is gathered here to be kept.
    keep: Option<Keep>,
    /// Its entry in the cache of responses.
    entry: Option<String>,
    /// It was answered from the cache of responses.
    is_cached: bool,
    _place: Option<OwnedSemaphorePermit>,
    /// The request is kept, so that somebody else can be asked.
    _share: MemoryPermit,
    counted: Counted,
}

impl RequestContext<'_> {
    /// Adds the tags that stand in the request's head.
    pub fn with_tags(mut self) -> Self {
        let sent = self.headers.get_all(TAGS).iter().filter_map(|v| v.to_str().ok());
        add_tags(&mut self.own.tags, sent.flat_map(|v| v.split(',')).map(str::to_string));
        self
    }
}

/// Which names may answer instead of the one that a virtual key asks for: those that it may ask for.
fn allowed(gateway: &Arc<Gateway>, caller: &Caller) -> Option<Allowed> {
    let Caller::Key(_) = caller else { return None };
    let (gateway, caller) = (Arc::clone(gateway), caller.clone());
    Some(Allowed(Arc::new(move |name| gateway.may_use(&caller, name))))
}

/// Counts a request for as long as it is on its way. The last of it to go: where none is left, all are billed and measured.
struct Counted(Arc<Gateway>);

impl Counted {
    fn new(gateway: &Arc<Gateway>) -> Self {
        gateway.busy.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(gateway))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Release);
    }
}

impl RoutedRequest {
    /// Lets a request in. Nothing is sent before it is asked for an answer.
    pub fn enter(
        app: &Arc<App>,
        gateway: &Arc<Gateway>,
        asker: RequestContext<'_>,
        request: &Arc<GenerateRequest>,
        mut original: Option<Original>,
    ) -> Result<Self, ApiError> {
        let RequestContext { trace, caller, headers, share, mut own } = asker;
        // Before it is asked whether the server ends: what is let in is seen by the end, and waited for.
        let counted_in = Counted::new(gateway);
        if app.models.is_draining() {
            return Err(draining());
        }
        let current = gateway.current();
        let place = match &current.places {
            Some(places) => Some(Arc::clone(places).try_acquire_owned().map_err(|_| {
                let what =
                    "as many requests as may be are on their way (global_max_parallel_requests); try again";
                ApiError { retry_after_s: Some(RETRY_S), ..ApiError::new(ErrorKind::RateLimit, what) }
            })?),
            None => None,
        };
        let bytes = original.as_ref().map_or(0, |o| o.body.len() as u64).max(Size::of(request).bytes);
        let bill = gateway.authorize(caller, request, bytes)?;
        let text = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
            Some((name.as_str().to_string(), value.to_str().ok()?.to_string()))
        };
        let owner = match caller {
            Caller::Key(key) => Some(Arc::clone(&key.id)),
            Caller::Trusted => None,
        };
        let unread = original.as_ref().is_some_and(|o| matches!(o.dialect, Dialect::Passed(_)));
        let callbacks = current.callbacks.clone();
        let told = callbacks.filter(|c| !c.is_empty()).map(|callbacks| {
            let name = match (caller, gateway.store()) {
                (Caller::Key(key), Some(store)) => store.name(&key.secret),
                _ => None,
            };
            let sent = headers.get(TRACEPARENT).and_then(|v| v.to_str().ok());
            Told::new(
                callbacks,
                original.as_ref().map(|o| o.dialect),
                sent,
                name,
                own.tags.clone(),
                std::mem::take(&mut own.metadata),
                &current,
            )
        });
        let traceparent = told.as_ref().and_then(Told::traceparent);
        if let Some((original, value)) =
            original.as_mut().zip(traceparent.as_ref().and_then(|t| HeaderValue::from_str(t).ok()))
        {
            original.headers.insert(TRACEPARENT, value);
        }
        let tags = if gateway.store().is_some() { own.tags.clone() } else { Vec::new() };
        let call = Call {
            tags: own.tags,
            traceparent,
            request: Arc::clone(request),
            original: original.map(Arc::new),
            headers: if current.headers { headers.iter().filter_map(text).collect() } else { Vec::new() },
            key: owner.as_ref().map(ToString::to_string),
            timeout: own.timeout.into_iter().chain(app.options.timeout).min(),
            wishes: own.wishes,
            allowed: current.guard_fallbacks.then(|| allowed(gateway, caller)).flatten(),
        };
        Ok(Self {
            reply: gateway.router().send(call),
            request: Arc::clone(request),
            app: Arc::clone(app),
            trace: trace.clone(),
            bill,
            unread,
            owner,
            usage: None,
            pieces: 0,
            raw_bytes: 0,
            error: None,
            decided: false,
            began: false,
            first: None,
            ended: false,
            tags,
            told,
            keep: None,
            entry: None,
            is_cached: false,
            _place: place,
            _share: share,
            counted: counted_in,
        })
    }

    /// It is answered from the cache: nobody is asked, and it costs nothing.
    pub fn answered_from_cache(&mut self) {
        self.is_cached = true;
    }

    /// Its answer is kept when it is complete.
    pub fn keep(&mut self, lookup: Lookup) {
        self.entry = Some(lookup.key());
        self.keep = lookup.keep();
    }

    /// Waits until somebody answers, for no longer than `most`; false where that was too short.
    pub async fn decide(&mut self, most: Option<Duration>) -> Result<bool, ApiError> {
        let decided = match most {
            Some(most) => match tokio::time::timeout(most, self.reply.decide()).await {
                Ok(decided) => decided,
                Err(_) => return Ok(false),
            },
            None => self.reply.decide().await,
        };
        decided.inspect_err(|e| self.error = Some(e.message.clone()))?;
        self.know();
        Ok(true)
    }

    /// Takes note of who answers.
    fn know(&mut self) {
        if std::mem::replace(&mut self.decided, true) {
            return;
        }
        let bill = &mut self.bill;
        self.reply.with_route(|route| {
            if let (Some(bill), Some(who)) = (bill, &route.answered) {
                bill.answered_by(&who.deployment, Some(&who.model));
            }
        });
    }

    /// The headers of another server's answer that passes unread.
    pub fn headers(&self) -> Option<&hyper::HeaderMap> {
        self.reply.headers()
    }

    fn count_tags(&self, who: Option<&Answered>, usage: Option<&Usage>) {
        let gateway = &self.counted.0;
        let Some(store) = gateway.store().filter(|_| !self.tags.is_empty()) else { return };
        let took = usage.map(counted).unwrap_or_default();
        store.count_tags(&self.tags, &took, gateway.current().cost(who, usage));
    }

    fn see(&mut self, piece: Option<Piece>) -> Option<Piece> {
        self.know();
        match &piece {
            None => {
                self.ended = true;
                self.usage = self.usage.or_else(|| self.reply.usage());
            }
            Some(Piece::Raw(bytes)) => {
                self.raw_bytes += bytes.len() as u64;
                self.first();
            }
            Some(Piece::Event(event)) => match event {
                Event::Usage(usage) => self.usage = Some(*usage),
                Event::Error(e) => self.error = Some(e.message.clone()),
                Event::Text { .. } | Event::Reasoning { .. } | Event::ToolCallArguments { .. } => {
                    self.pieces += 1;
                    self.first();
                }
                _ => {}
            },
        }
        piece
    }

    fn first(&mut self) {
        if !std::mem::replace(&mut self.began, true) {
            let after = self.trace.began.elapsed();
            self.first = Some(after);
            self.trace.note(|f| f.ttft = Some(after));
        }
    }
}

impl AnswerSource for RoutedRequest {
    fn request(&self) -> Arc<GenerateRequest> {
        Arc::clone(&self.request)
    }

    fn facts(&mut self) -> Facts {
        let who = |route: &Route| (route.answered.as_ref().map(|a| a.model.clone()), route.header());
        let (model, route) = self.reply.with_route(who);
        // A provider may know what we do not.
        let warnings = if self.is_remote() { &[] } else { &self.request.warnings[..] };
        let warnings = messages(warnings).map(str::to_string).collect();
        let response_cache = self.entry.take().map(|key| (key, false));
        Facts { model, route: Some(route), warnings, cache_miss: None, response_cache }
    }

    fn owner(&self) -> Option<&Arc<str>> {
        self.owner.as_ref()
    }

    fn is_remote(&self) -> bool {
        self.reply.is_remote()
    }

    async fn next(&mut self) -> Option<Piece> {
        let piece = self.reply.next().await;
        self.see(piece)
    }

    fn try_next(&mut self) -> Option<Piece> {
        let piece = self.reply.try_next()?;
        self.see(Some(piece))
    }

    fn wrote(&mut self, bytes: &[u8]) {
        if let Some(keep) = &mut self.keep {
            keep.add(bytes);
        }
    }

    fn finished(&mut self) {
        if let Some(keep) = self.keep.take().filter(|_| self.error.is_none()) {
            keep.done();
        }
    }
}

/// Bytes of a provider's stream for each token, about.
const STREAM_BYTES_PER_TOKEN: u64 = 200;
/// The same of an answer in one piece, which is text for the most part.
const ANSWER_BYTES_PER_TOKEN: u64 = 4;

/// Who is at work on an answer of which nothing has come yet.
fn at_work(route: &Route) -> Option<&str> {
    route.steps.iter().rev().find_map(|step| match step {
        Step::Chose { deployment, .. } => Some(Some(deployment.as_str())),
        Step::Failed { .. } => Some(None),
        _ => None,
    })?
}

impl Drop for RoutedRequest {
    fn drop(&mut self) {
        if self.is_cached {
            let name = &self.request.model;
            self.app.metrics.routes.cached();
            self.trace.note(|f| {
                f.model.clone_from(name);
                f.route = Some(format!("{}>cache", octet_config::printable(name)));
            });
            if let Some(bill) = self.bill.take() {
                bill.settle_added();
            }
            self.count_tags(None, None);
            if let Some(told) = self.told.take() {
                told.cached(&self.trace, &self.request, self.owner.as_ref());
            }
            return;
        }
        let usage = self.usage.or_else(|| self.reply.usage());
        let (error, took) = (self.error.take(), self.trace.began.elapsed());
        let (mut asked, mut in_vain) = (false, false);
        if let Some(told) = self.told.take() {
            let first = self.first;
            self.reply.with_route(|route| {
                told.over(
                    &self.trace,
                    &self.request,
                    self.owner.as_ref(),
                    Outcome { route, usage, error: error.as_deref(), first, ended: self.ended },
                );
            });
        }
        self.reply.with_route(|route| {
            if let Some(bill) = &mut self.bill {
                route.spent.iter().for_each(|spent| bill.add(spent));
                in_vain = !route.spent.is_empty();
            }
            // Who leaves while somebody is asked has spent the prompt, or could ask for ever and pay for nothing.
            let left = error.is_none() && !self.ended && !self.began && usage.is_none();
            if let (true, Some(deployment), Some(bill)) = (left, at_work(route), &mut self.bill) {
                bill.answered_by(deployment, None);
                asked = true;
            }
            self.app.metrics.routes.count(route, error.is_some(), took, usage.as_ref());
            self.trace.note(|f| {
                if let Some(who) = &route.answered {
                    f.model.clone_from(&who.model);
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
        if usage.is_some() || self.began {
            let who = self.reply.with_route(|route| route.answered.clone());
            self.count_tags(who.as_ref(), usage.as_ref());
        }
        let Some(bill) = self.bill.take() else { return };
        if self.began || usage.is_some() || asked {
            let per_token = if self.request.stream { STREAM_BYTES_PER_TOKEN } else { ANSWER_BYTES_PER_TOKEN };
            let usage = usage.or(self.unread.then(Usage::default));
            bill.settle(usage.as_ref(), self.pieces + self.raw_bytes / per_token);
        } else if in_vain {
            bill.settle_added();
        }
        // Who got nothing, and cost nothing, pays nothing.
    }
}
