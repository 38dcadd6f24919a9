//! An answer on its way to a client. Created by `router`; owned by the response body: dropping it cancels everything.
//!
//! Whatever happens behind it, a client gets each event once, one `Started`, and at the end its `Finished` or an `Error`.

use std::future::Future;
use std::pin::Pin;

use octet_api::ApiError;
use octet_api::core::{
    Event, GenerateRequest, Input, Message, Part, ReasoningPart, ResponseFormat, Role, Usage,
};
use octet_upstream::AnswerMemory;
use tokio::time::{Instant, timeout_at};

use crate::attempt::{OpenAnswer, too_late};
use crate::dispatch::{Job, Outcome, blame};
use crate::failure::Failure;
use crate::target::{Events, Piece, Sent, Target};
use crate::trace::{Answered, Route, Trace};
use crate::usage::UsageBounds;

/// Maximum number of continuations of an answer.
const CONTINUATIONS_MAX: u32 = 3;

/// An answer.
pub struct Reply<T: Target> {
    trace: Trace,
    phase: Phase<T>,
    /// The request, once a deployment answers it.
    job: Option<Box<Job<T>>>,
    sent: Sent,
    /// The answer can be continued elsewhere if it breaks off.
    continuable: bool,
    continuations: u32,
    /// Why the answer broke off.
    broke: Option<Failure>,
    /// `Started` was sent.
    started: bool,
    /// Time of the last event.
    silent_since: Option<Instant>,
    /// The usage, once the answer has ended.
    usage: Option<Usage>,
    /// Which token counts of the last deployment are believed.
    bounds: Option<UsageBounds>,
}

enum Phase<T: Target> {
    /// No deployment answers yet.
    Deciding(Pin<Box<dyn Future<Output = Outcome<T>> + Send>>),
    /// A deployment answers.
    Answering(Box<OpenAnswer<T>>),
    /// The answer is over.
    Over,
}

impl<T: Target> Reply<T> {
    pub(crate) fn new(job: Job<T>) -> Self {
        Self {
            trace: job.trace.clone(),
            continuable: may_be_continued(&job.call.request),
            phase: Phase::Deciding(job.boxed()),
            job: None,
            sent: Sent::default(),
            continuations: 0,
            broke: None,
            started: false,
            silent_since: None,
            usage: None,
            bounds: None,
        }
    }

    /// Waits until a deployment answers: until there is a piece to send. Then the route is known, for headers. Cancel-safe; a server that
    /// does not wait can call [`Reply::next`] directly.
    ///
    /// # Errors
    /// If no deployment answers; then there are no pieces.
    pub async fn decide(&mut self) -> Result<(), ApiError> {
        let Phase::Deciding(deciding) = &mut self.phase else { return Ok(()) };
        let (job, result) = deciding.await;
        match result {
            Ok(opened) => {
                self.trace.answered(Answered {
                    group: opened.group.name.as_str().into(),
                    deployment: opened.deployment.id().into(),
                    model: crate::target::fill(
                        &opened.group.name,
                        &opened.name,
                        opened.deployment.target.model(),
                    )
                    .into_owned(),
                });
                self.bounds = Some(opened.bounds);
                self.job = Some(job);
                self.silent_since = None;
                self.phase = Phase::Answering(opened);
                Ok(())
            }
            Err(failure) => {
                self.phase = Phase::Over;
                // A deployment that cannot continue does not know the original failure.
                Err(self.broke.take().unwrap_or(failure).to_error())
            }
        }
    }

    /// The next piece; `None` after the last. Cancel-safe: no piece is lost.
    pub async fn next(&mut self) -> Option<Piece> {
        loop {
            match &mut self.phase {
                Phase::Over => return None,
                Phase::Deciding(_) => {
                    if let Err(error) = self.decide().await {
                        return Some(Event::Error(error).into());
                    }
                }
                Phase::Answering(opened) => {
                    let got = match opened.begun.held.pop_front() {
                        Some(piece) => Some(Ok(piece)),
                        None if opened.begun.ended => None,
                        None => {
                            let idle = self.job.as_ref().map(|j| j.table.policy.idle).unwrap_or_default();
                            let by = *self.silent_since.get_or_insert_with(Instant::now) + idle;
                            let got = timeout_at(by, opened.begun.events.next()).await;
                            self.silent_since = None;
                            match got {
                                Ok(got) => opened.begun.tally.check(got),
                                Err(_) => Some(Err(too_late(false))),
                            }
                        }
                    };
                    if let Some(piece) = self.process(got) {
                        return Some(piece);
                    }
                }
            }
        }
    }

    /// The next piece, if it has already arrived.
    pub fn try_next(&mut self) -> Option<Piece> {
        loop {
            let Phase::Answering(opened) = &mut self.phase else { return None };
            let got = match opened.begun.held.pop_front() {
                Some(event) => Some(Ok(event)),
                None if opened.begun.ended => None,
                None => {
                    let got = opened.begun.events.try_next()?;
                    self.silent_since = None;
                    opened.begun.tally.check(Some(got))
                }
            };
            if let Some(piece) = self.process(got) {
                return Some(piece);
            }
        }
    }

    /// Whether the current deployment is reached [over a connection](Events::is_remote).
    pub fn is_remote(&self) -> bool {
        matches!(&self.phase, Phase::Answering(opened) if opened.begun.events.is_remote())
    }

    /// Whether it is a whole answer that must be [sent on as it arrives](Events::flows).
    pub fn flows(&self) -> bool {
        matches!(&self.phase, Phase::Answering(opened) if opened.begun.events.flows())
    }

    /// The [memory](Events::memory) that the answer takes.
    pub fn memory(&self) -> Option<AnswerMemory> {
        match &self.phase {
            Phase::Answering(opened) => opened.begun.events.memory(),
            Phase::Deciding(_) | Phase::Over => None,
        }
    }

    /// What the current deployment [says about the request](Events::warnings).
    pub fn warnings(&self) -> &[String] {
        match &self.phase {
            Phase::Answering(opened) => opened.begun.events.warnings(),
            Phase::Deciding(_) | Phase::Over => &[],
        }
    }

    /// The current deployment's headers, if the answer is forwarded unread.
    pub fn headers(&self) -> Option<&http::HeaderMap> {
        match &self.phase {
            Phase::Answering(opened) => opened.begun.events.headers(),
            Phase::Deciding(_) | Phase::Over => None,
        }
    }

    /// A copy of the decisions so far.
    pub fn route(&self) -> Route {
        self.trace.route()
    }

    /// Reads the decisions so far without a copy.
    pub fn with_route<R>(&self, look: impl FnOnce(&Route) -> R) -> R {
        self.trace.with(|route| look(route))
    }

    /// The usage as the target reports it, once the answer has ended; `None` if it was not counted. See [`Reply::believes`].
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Whether the request and the deployment's context allow a token count.
    pub fn believes(&self, usage: &Usage) -> bool {
        self.bounds.is_none_or(|bounds| bounds.allow(usage))
    }

    /// A piece of the target, for the client; `None` if the client does not get it, or the answer is over.
    fn process(&mut self, got: Option<Result<Piece, Failure>>) -> Option<Piece> {
        match got {
            Some(Ok(Piece::Event(event))) => self.hand_out(event).map(Piece::Event),
            Some(Ok(raw)) => {
                // Its content is not examined.
                self.continuable = false;
                Some(raw)
            }
            Some(Err(failure)) => self.broke_off(failure).map(Piece::Event),
            None => {
                if let Phase::Answering(opened) = std::mem::replace(&mut self.phase, Phase::Over) {
                    let whole = opened.begun.ended;
                    self.usage = opened.usage().map(|u| self.count(u));
                    opened.settle(whole);
                }
                if let Some(following) = self.job.as_mut().and_then(|j| j.following.as_mut()) {
                    following.release();
                }
                None
            }
        }
    }

    fn hand_out(&mut self, event: Event) -> Option<Event> {
        Some(match event {
            // Once per answer, whichever deployment continues it.
            Event::Started { id, model: _, created_s, usage } => {
                if std::mem::replace(&mut self.started, true) {
                    return None;
                }
                let model = self.job.as_ref().map(|j| j.call.request.model.clone()).unwrap_or_default();
                // Not every dialect has a creation time.
                let created_s = if created_s == 0 { now_s() } else { created_s };
                Event::Started { id, model, created_s, usage }
            }
            Event::Logprobs { choice, mut tokens } => {
                // The router requested them to measure; the client may have wanted none, or fewer.
                let wanted = self.job.as_ref().and_then(|j| j.call.request.logprobs)?;
                tokens.iter_mut().for_each(|t| t.top.truncate(wanted as usize));
                Event::Logprobs { choice, tokens }
            }
            Event::Usage(usage) => Event::Usage(self.count(usage)),
            Event::Text { choice, text } => {
                if self.continuable {
                    self.sent.text.push_str(&text);
                    self.sent.pieces += 1;
                }
                Event::Text { choice, text }
            }
            Event::Reasoning { choice, text } => {
                if self.continuable {
                    self.sent.reasoning.push_str(&text);
                    self.sent.pieces += 1;
                }
                Event::Reasoning { choice, text }
            }
            // No other deployment can continue these.
            Event::ToolCallStart { .. }
            | Event::RedactedReasoning { .. }
            | Event::ReasoningSignature { .. } => {
                self.continuable = false;
                event
            }
            other => other,
        })
    }

    /// The usage of all deployments together: the first one's output is part of the second one's prompt.
    fn count(&self, usage: Usage) -> Usage {
        if self.continuations == 0 {
            return usage;
        }
        // Together they stay the same, however a provider splits its pieces.
        let before = u64::from(self.sent_before()).min(usage.prompt_tokens);
        Usage {
            prompt_tokens: usage.prompt_tokens - before,
            completion_tokens: usage.completion_tokens.saturating_add(before),
            ..usage
        }
    }

    fn sent_before(&self) -> u32 {
        self.job.as_ref().map_or(0, |j| j.pieces_before())
    }

    /// The answer broke off: another deployment continues it, or the client gets an error.
    fn broke_off(&mut self, failure: Failure) -> Option<Event> {
        let failure = Failure { sent_any: true, ..failure };
        let Phase::Answering(mut opened) = std::mem::replace(&mut self.phase, Phase::Over) else {
            return None;
        };
        let mut job = self.job.take()?;
        let (group, deployment) = (&opened.group, &opened.deployment);
        if let Some(permit) = opened.permit.take() {
            blame(&self.trace, &job.table, group, (deployment, &opened.name), permit, &failure);
        }
        let any = !self.sent.text.is_empty() || !self.sent.reasoning.is_empty();
        let may_continue = self.continuable && any && self.continuations < CONTINUATIONS_MAX;
        let request = may_continue.then(|| rest(&job.call.request, &self.sent)).flatten();
        let Some(request) = request else {
            let failure = self.broke.take().unwrap_or(failure);
            return Some(Event::Error(failure.to_error()));
        };
        self.continuations += 1;
        self.broke.get_or_insert(failure);
        job.resume(request, self.sent.clone(), opened.name.clone(), deployment.id().into());
        self.phase = Phase::Deciding(job.boxed());
        None
    }
}

/// Several choices cannot be continued, nor can a grammar in its middle.
pub(crate) fn may_be_continued(request: &GenerateRequest) -> bool {
    request.stream
        && request.n == 1
        && request.response_format == ResponseFormat::Text
        && request.chat().is_some_and(|c| !c.continue_final)
}

/// The request for the continuation of an answer; `None` if there can be none.
fn rest(request: &GenerateRequest, sent: &Sent) -> Option<GenerateRequest> {
    let mut rest = request.clone();
    let Input::Chat(chat) = &mut rest.input else { return None };
    let mut message = Message::empty(Role::Assistant);
    if !sent.reasoning.is_empty() {
        message.reasoning.push(ReasoningPart::Text { text: sent.reasoning.clone(), signature: None });
    }
    if !sent.text.is_empty() {
        message.content.push(Part::text(sent.text.clone()));
    }
    chat.messages.push(message);
    chat.continue_final = true;
    if let Some(most) = &mut rest.max_tokens {
        *most = most.saturating_sub(sent.pieces).max(1);
    }
    if let Some(least) = &mut rest.min_tokens {
        *least = least.saturating_sub(sent.pieces);
    }
    Some(rest)
}

/// Seconds since 1970 UTC.
fn now_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
