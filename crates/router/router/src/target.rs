//! A target answers requests: a provider, the engine in this process, or a test's mock. Implemented by the server; called by `dispatch`.

use std::borrow::Cow;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::HeaderMap;
use octet_api::core::{Event, GenerateRequest, Usage};
use octet_config::GroupName;
use octet_upstream::{AnswerMemory, Dialect, Upload};

use crate::failure::Failure;

/// Answers requests. Each deployment has one.
pub trait Target: Send + Sync + 'static {
    /// The events of an answer. Dropping it cancels the request.
    type Events: Events;

    /// Sends the request. Dropping the future cancels it.
    fn generate(&self, ask: Ask<'_>) -> impl Future<Output = Result<Self::Events, Failure>> + Send;

    /// The model's name at the target, for `x-octet-model`; wildcards unchanged.
    fn model(&self) -> &str;

    /// The exact number of tokens of the request's prompt; `None` if it is not known before sending.
    fn count_tokens(&self, _request: &Arc<GenerateRequest>) -> impl Future<Output = Option<u64>> + Send {
        async { None }
    }

    /// Maximum prompt in tokens, if the target knows better than the configuration.
    fn window_tokens(&self) -> Option<u64> {
        None
    }

    /// Whether it returns log-probabilities, which cascades need.
    fn has_logprobs(&self) -> bool {
        true
    }

    /// Whether the model is in this process: a second answer to the same request costs little, because the prompt is computed once.
    fn is_local(&self) -> bool {
        false
    }

    /// The model's embedding of a text, if it is computed here.
    fn embed(&self, _text: &str) -> impl Future<Output = Option<Vec<f32>>> + Send {
        async { None }
    }

    /// Whether it can continue an answer that broke off. The request then ends with the partial assistant message, and has `continue_final`
    /// set.
    fn continues(&self, _sent: &Sent) -> bool {
        false
    }

    /// Whether there are answers that it [can continue](Target::continues). An answer that is forwarded unread cannot be continued, so
    /// streams that could be are parsed.
    fn may_continue(&self) -> bool {
        false
    }

    /// Tokens of the request's prompt in its cache, if known immediately.
    fn cached_tokens(&self, _request: &GenerateRequest) -> Option<u64> {
        None
    }

    /// Requests that are waiting or running there, including those of others, if known immediately.
    fn load(&self) -> Option<u32> {
        None
    }

    /// Checks its health.
    fn check(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }
}

/// A request for a target.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The request. Its `model` is the name that the client requested.
    pub request: &'a Arc<GenerateRequest>,
    /// The name that led to the group, after aliases.
    pub name: &'a str,
    /// The group's name.
    pub group: &'a GroupName,
    /// The client's bytes, if a target that speaks its dialect may forward them.
    pub original: Option<&'a Arc<Original>>,
    /// The W3C `traceparent` header, for targets over HTTP.
    pub traceparent: Option<&'a str>,
    /// The client already has the beginning of the answer, which is the request's last message.
    pub resumed: bool,
}

/// A client's request as it arrived.
#[derive(Debug, Clone)]
pub struct Original {
    /// Its dialect.
    pub dialect: Dialect,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its JSON body.
    pub body: Bytes,
    /// Its body if it is not JSON; it is streamed to the provider.
    pub upload: Option<Arc<Upload>>,
    /// The body parsed in full, once a target needed that.
    pub parsed: OnceLock<Arc<GenerateRequest>>,
}

impl Original {
    /// A JSON body without headers.
    pub fn new(dialect: Dialect, body: Bytes) -> Self {
        Self { dialect, headers: HeaderMap::new(), body, upload: None, parsed: OnceLock::new() }
    }

    /// Whether a part of it was sent and is gone: then no other deployment can be tried.
    pub fn is_spent(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.is_spent())
    }
}

impl Ask<'_> {
    /// The model's name at the target: wildcards in `template` become what the group's wildcard stood for.
    pub fn fill<'b>(&self, template: &'b str) -> Cow<'b, str> {
        fill(self.group, self.name, template)
    }
}

/// `template` with the text that the wildcards of `group` stood for in `name`.
pub(crate) fn fill<'b>(group: &GroupName, name: &str, template: &'b str) -> Cow<'b, str> {
    if !template.contains('*') {
        return Cow::Borrowed(template);
    }
    group.fill(name, template).map_or(Cow::Borrowed(template), Cow::Owned)
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// An event, independent of the dialect.
    Event(Event),
    /// Bytes in the client's dialect: complete events of a stream, or the whole answer. They are sent unchanged.
    Raw(Bytes),
}

impl From<Event> for Piece {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

/// The pieces of an answer as they arrive. Raw pieces and events are never mixed, and an incomplete raw answer ends with a failure.
pub trait Events: Send + 'static {
    /// The next piece; `None` after the last. A failure is the last. Cancel-safe: no event is lost.
    fn next(&mut self) -> impl Future<Output = Option<Result<Piece, Failure>>> + Send;

    /// The next event, if it has already arrived.
    fn try_next(&mut self) -> Option<Result<Piece, Failure>> {
        None
    }

    /// Whether it comes over a connection: a task that reads from one forwards one piece at a time, and yields in between.
    fn is_remote(&self) -> bool {
        false
    }

    /// What the client should know about its request: fields that have no effect, constraints that are not enforced.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// Whether it is a whole answer that is too long to be held: its pieces are sent on as they arrive.
    fn flows(&self) -> bool {
        false
    }

    /// The memory that a long answer takes, for whoever keeps its text.
    fn memory(&self) -> Option<AnswerMemory> {
        None
    }

    /// Token counts of a raw answer that has ended.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// The headers of a raw answer.
    fn headers(&self) -> Option<&HeaderMap> {
        None
    }
}

/// The part of an answer that the client has, after it broke off.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sent {
    /// The reasoning.
    pub reasoning: String,
    /// The text.
    pub text: String,
    /// Number of pieces it came in: an upper bound of its tokens, for servers that send each token separately.
    pub pieces: u32,
}

impl Sent {
    /// Whether it has text of the answer itself, besides reasoning and white space.
    pub fn is_begun(&self) -> bool {
        !self.text.trim().is_empty()
    }
}
