//! One attempt at one deployment: sends the request, and holds events back until they may be sent to the client. Continued by `reply`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use octet_api::core::{Event, GenerateRequest, Usage};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::confidence::{HOLD_MAX, Meter, Verdict};
use crate::failure::{Failure, FailureKind, from_api};
use crate::state::Permit;
use crate::table::{Deployment, Group};
use crate::target::{Ask, Events, Original, Piece, Target};
use crate::usage::UsageBounds;

/// Maximum size of a held-back answer.
const HELD_BYTES_MAX: usize = 64 << 20;

/// The parameters of an attempt.
#[derive(Debug)]
pub struct AttemptParams<'a, T> {
    /// The request.
    pub request: &'a Arc<GenerateRequest>,
    /// The client's bytes, if nothing of them was changed.
    pub original: Option<&'a Arc<Original>>,
    /// Its W3C trace header.
    pub traceparent: Option<&'a str>,
    /// It continues an answer that broke off.
    pub resumed: bool,
    /// The requested name that led to the group.
    pub name: &'a str,
    /// The group.
    pub group: &'a Group<T>,
    /// The deadline; for streams, of the first event.
    pub deadline: Instant,
    /// The deadline is the client's own.
    pub is_impatient: bool,
    /// Maximum time between two events of a stream.
    pub idle: Duration,
    /// Nothing is sent to the client before the answer is complete: a failed attempt is retried without the client noticing.
    pub whole: bool,
    /// Measures the confidence of the first tokens.
    pub meter: Option<&'a mut Meter>,
}

/// Why an attempt has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptError {
    /// It failed.
    Failed(Failure),
    /// The model's confidence was too low.
    Unsure,
}

impl From<Failure> for AttemptError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// What an attempt without an answer used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialUsage {
    /// The target's token count.
    pub usage: Option<Usage>,
    /// Received pieces of the answer.
    pub pieces: u64,
}

/// A failed attempt.
#[derive(Debug)]
pub struct FailedAttempt {
    /// The reason.
    pub error: AttemptError,
    /// What it used, if its answer had begun.
    pub took: Option<PartialUsage>,
}

impl From<Failure> for FailedAttempt {
    fn from(failure: Failure) -> Self {
        Self { error: failure.into(), took: None }
    }
}

/// An answer that has begun.
#[derive(Debug)]
pub struct StartedAnswer<E> {
    /// The remaining events.
    pub events: E,
    /// The events received so far.
    pub held: VecDeque<Piece>,
    /// No more events follow.
    pub ended: bool,
    /// The progress of the answer.
    pub tally: AnswerProgress,
    /// When the first content arrived.
    pub first: Option<Instant>,
}

/// An answer that has begun, with its deployment.
#[derive(Debug)]
pub struct OpenAnswer<T: Target> {
    /// The answer.
    pub begun: StartedAnswer<T::Events>,
    /// The deployment.
    pub deployment: Arc<Deployment<T>>,
    /// The group.
    pub group: Arc<Group<T>>,
    /// The requested name that led to the group.
    pub name: String,
    /// The deployment's permit; released at the end.
    pub permit: Option<Permit>,
    /// Which token counts are believed.
    pub bounds: UsageBounds,
}

/// The progress of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnswerProgress {
    /// The highest choice index seen, plus 1.
    begun: u32,
    finished: u32,
    raw: bool,
    /// The last token counts.
    pub usage: Option<Usage>,
}

impl AnswerProgress {
    fn observe(&mut self, event: &Event) {
        let choice = match event {
            Event::Started { usage, .. } => {
                self.usage = usage.or(self.usage);
                return;
            }
            Event::Usage(usage) => {
                self.usage = Some(*usage);
                return;
            }
            Event::Timings(_) | Event::Progress { .. } | Event::Applied(_) | Event::Error(_) => return,
            Event::Finished { choice, .. } => {
                self.finished += 1;
                *choice
            }
            Event::Reasoning { choice, .. }
            | Event::ReasoningSignature { choice, .. }
            | Event::RedactedReasoning { choice, .. }
            | Event::Text { choice, .. }
            | Event::ToolCallStart { choice, .. }
            | Event::ToolCallArguments { choice, .. }
            | Event::Tokens { choice, .. }
            | Event::RoutedExperts { choice, .. }
            | Event::Logprobs { choice, .. } => *choice,
        };
        self.begun = self.begun.max(choice.saturating_add(1));
    }

    /// All choices that began have ended.
    fn is_complete(&self) -> bool {
        self.finished > 0 && self.finished >= self.begun
    }

    /// Checks a target's item: an error event is a failure, and so is an end before the answer is complete. Errors after a complete answer
    /// are ignored.
    pub fn check(&mut self, got: Option<Result<Piece, Failure>>) -> Option<Result<Piece, Failure>> {
        let failure = match got {
            Some(Ok(Piece::Event(Event::Error(e)))) => from_api(&e),
            Some(Ok(piece)) => {
                match &piece {
                    Piece::Event(event) => self.observe(event),
                    Piece::Raw(_) => self.raw = true,
                }
                return Some(Ok(piece));
            }
            Some(Err(failure)) => failure,
            // The target's reader has checked that.
            None if self.raw => return None,
            None => Failure::new(FailureKind::Protocol, "the answer ended before it was complete"),
        };
        (!self.is_complete()).then_some(Err(failure))
    }
}

/// Whether this is a part of the answer itself.
fn is_content(piece: &Piece) -> bool {
    let event = match piece {
        Piece::Event(event) => event,
        Piece::Raw(bytes) => return holds_content(bytes),
    };
    match event {
        Event::Started { .. }
        | Event::Usage(_)
        | Event::Timings(_)
        | Event::Logprobs { .. }
        | Event::Tokens { .. }
        | Event::RoutedExperts { .. }
        | Event::Progress { .. }
        | Event::Applied(_) => false,
        Event::Text { text, .. } | Event::Reasoning { text, .. } => !text.is_empty(),
        _ => true,
    }
}

/// The same for raw bytes. Streams begin with comments and with events that only announce the answer: a provider that fails after these has
/// not answered. Anything not known to be such an event counts as content.
fn holds_content(bytes: &[u8]) -> bool {
    /// Maximum length that is examined.
    const LOOKED_AT_BYTES: usize = 4 << 10;
    // Too long, or a complete answer.
    if bytes.len() > LOOKED_AT_BYTES || bytes.first() == Some(&b'{') {
        return true;
    }
    bytes.split(|b| *b == b'\n').map(<[u8]>::trim_ascii).any(|line| match line {
        [] | [b':', ..] => false,
        _ if line.starts_with(b"event:") => false,
        _ => !line.strip_prefix(b"data:").is_some_and(only_begins),
    })
}

/// Whether an event's JSON only announces an answer.
fn only_begins(json: &[u8]) -> bool {
    let Ok(event) = serde_json::from_slice::<Value>(json) else { return false };
    if let Some(kind) = event["type"].as_str() {
        return matches!(kind, "message_start" | "ping" | "response.created" | "response.in_progress");
    }
    let is_empty = |choice: &Value| {
        let delta = choice["delta"].as_object();
        choice["finish_reason"].is_null()
            && delta.is_some_and(|d| {
                d.iter().all(|(name, v)| name == "role" || v.is_null() || v.as_str() == Some(""))
            })
    };
    event["choices"].as_array().is_some_and(|all| !all.is_empty() && all.iter().all(is_empty))
}

fn bytes(piece: &Piece) -> usize {
    let event = match piece {
        Piece::Event(event) => event,
        Piece::Raw(bytes) => return bytes.len() + size_of::<Piece>(),
    };
    let text = match event {
        Event::Text { text, .. }
        | Event::Reasoning { text, .. }
        | Event::ToolCallArguments { text, .. }
        | Event::RedactedReasoning { data: text, .. }
        | Event::ReasoningSignature { signature: text, .. } => text.len(),
        Event::Logprobs { tokens, .. } => tokens.iter().map(|t| 64 + 64 * t.top.len()).sum(),
        _ => 0,
    };
    text + size_of::<Piece>()
}

/// Sends the request and collects events until they may be sent to the client: at the first content of a stream, when the first tokens are
/// confident enough, or at the end. Dropping the future cancels the request.
///
/// # Errors
/// If there was no answer, or its confidence was too low.
pub async fn attempt<T: Target>(
    target: &T,
    orders: AttemptParams<'_, T>,
) -> Result<StartedAnswer<T::Events>, FailedAttempt> {
    let ask = Ask {
        request: orders.request,
        name: orders.name,
        group: &orders.group.name,
        original: orders.original,
        traceparent: orders.traceparent,
        resumed: orders.resumed,
    };
    let mut events = timeout_at(orders.deadline, target.generate(ask))
        .await
        .map_err(|_| too_late(orders.is_impatient))??;
    let mut seen = Seen::default();
    match hold(&mut events, &mut seen, orders).await {
        Ok(ended) => {
            Ok(StartedAnswer { events, held: seen.held, ended, tally: seen.tally, first: seen.first })
        }
        Err(error) => {
            let usage = seen.tally.usage.or_else(|| events.usage());
            let took = PartialUsage { usage, pieces: seen.pieces };
            Err(FailedAttempt { error, took: (usage.is_some() || took.pieces > 0).then_some(took) })
        }
    }
}

/// Collects events until they may be sent on; true if the answer is complete.
async fn hold<T: Target>(
    events: &mut T::Events,
    begun: &mut Seen,
    orders: AttemptParams<'_, T>,
) -> Result<bool, AttemptError> {
    let AttemptParams { deadline, is_impatient, idle, whole, mut meter, .. } = orders;
    loop {
        let watching = meter.as_ref().is_some_and(|m| m.verdict() == Verdict::Watching);
        if !whole && !watching && begun.first.is_some() {
            return Ok(false);
        }
        let (by, is_impatient) = match begun.first {
            Some(first) if !whole => ((Instant::now() + idle).min(first + HOLD_MAX), false),
            _ => (deadline, is_impatient),
        };
        let Ok(got) = timeout_at(by, events.next()).await else {
            let held_long = begun.first.is_some_and(|first| !whole && Instant::now() >= first + HOLD_MAX);
            match &mut meter {
                Some(meter) if held_long => {
                    meter.give_up();
                    continue;
                }
                _ => return Err(too_late(is_impatient).into()),
            }
        };
        match begun.tally.check(got) {
            None => return Ok(true),
            Some(Err(failure)) => return Err(failure.into()),
            Some(Ok(piece)) => {
                let unsure = match (meter.as_mut(), &piece) {
                    (Some(meter), Piece::Event(event)) => meter.observe(event) == Verdict::Escalated,
                    _ => false,
                };
                begun.record(piece)?;
                if whole && events.flows() {
                    return Ok(false);
                }
                if unsure {
                    return Err(AttemptError::Unsure);
                }
            }
        }
    }
}

/// The answer so far.
#[derive(Default)]
struct Seen {
    held: VecDeque<Piece>,
    bytes: usize,
    tally: AnswerProgress,
    first: Option<Instant>,
    /// Number of pieces of the answer itself.
    pieces: u64,
}

impl Seen {
    fn record(&mut self, piece: Piece) -> Result<(), Failure> {
        if is_content(&piece) {
            self.first.get_or_insert_with(Instant::now);
            self.pieces += 1;
        }
        self.bytes += bytes(&piece);
        if self.bytes > HELD_BYTES_MAX {
            let what = format!("the answer exceeds {} MiB", HELD_BYTES_MAX >> 20);
            return Err(Failure::new(FailureKind::Protocol, what));
        }
        self.held.push_back(piece);
        Ok(())
    }
}

/// The failure of an attempt without an answer in time; `is_impatient` if the client itself set the limit.
pub fn too_late(is_impatient: bool) -> Failure {
    if is_impatient {
        let what = "no answer within the request's own timeout; leave it out, or allow more time";
        return Failure { param: Some("timeout".into()), ..Failure::new(FailureKind::ClientTimeout, what) };
    }
    Failure::new(FailureKind::Timeout, "no answer in time; see timeout and stream_timeout")
}

impl<T: Target> OpenAnswer<T> {
    /// What the answer has used so far, as far as it was counted.
    pub fn usage(&self) -> Option<Usage> {
        self.begun.tally.usage.or_else(|| self.begun.events.usage())
    }

    /// The answer is complete: releases its permit with the usage. `whole`: it arrived in one piece.
    pub fn settle(mut self, whole: bool) {
        let usage = self.usage().filter(|usage| self.bounds.allow(usage));
        if let Some(permit) = self.permit.take() {
            let tokens = usage.map(|u| (u.total_tokens(), u.completion_tokens));
            permit.answered(tokens, whole, Instant::now());
        }
    }
}
