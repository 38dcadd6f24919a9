//! What answers requests: a provider, the engine in this process, or a test's mock. Implemented by the server; driven by
//! `dispatch`.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use octet_api::core::{Event, GenerateRequest, Usage};
use octet_config::GroupName;
use octet_upstream::{Dialect, Upload};

use crate::failure::Failure;

/// Something that answers. Each deployment has one.
pub trait Target: Send + Sync + 'static {
    /// The events of an answer. Dropping it cancels the request.
    type Events: Events;

    /// Sends the request. Dropping the future cancels it.
    fn generate(&self, ask: Ask<'_>) -> impl Future<Output = Result<Self::Events, Failure>> + Send;

    /// The model's name at the target, for `x-octet-model`; stars in it as they are.
    fn model(&self) -> &str;

    /// How many tokens the request's prompt is, exactly; `None` where that is not known before it is sent.
    fn count_tokens(&self, _request: &Arc<GenerateRequest>) -> impl Future<Output = Option<u64>> + Send {
        async { None }
    }

    /// Longest prompt in tokens, where the target knows better than the configuration.
    fn window_tokens(&self) -> Option<u64> {
        None
    }

    /// Whether it tells log-probabilities: they are what a cascade goes by.
    fn has_logprobs(&self) -> bool {
        true
    }

    /// Whether the model is in this process: asking it for a second answer beside the first costs little, for the prompt is computed once.
    fn is_local(&self) -> bool {
        false
    }

    /// An embedding of a text by the model, where it makes them here.
    fn embed(&self, _text: &str) -> impl Future<Output = Option<Vec<f32>>> + Send {
        async { None }
    }

    /// Whether it can go on from an answer that broke off. The request then ends with the assistant's message so far, and
    /// has `continue_final` set.
    fn continues(&self, _sent: &Sent) -> bool {
        false
    }

    /// Whether there are answers that it [goes on from](Target::continues). What passes through unread cannot be gone on from, so
    /// streams that somebody could mend are read.
    fn may_continue(&self) -> bool {
        false
    }

    /// Tokens of the request's prompt that it has in its cache, where that is known at once.
    fn cached_tokens(&self, _request: &GenerateRequest) -> Option<u64> {
        None
    }

    /// Requests that wait there or are being answered, others' included, where that is known at once.
    fn load(&self) -> Option<u32> {
        None
    }

    /// Asks whether it is well.
    fn check(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }
}

/// A request for a target.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// What to generate. Its `model` is the name that the client asked for.
    pub request: &'a Arc<GenerateRequest>,
    /// The name that led to the group, aliases followed.
    pub name: &'a str,
    /// The group's name.
    pub group: &'a GroupName,
    /// The request as it came, where a target that speaks the client's dialect may hand it on as it is.
    pub original: Option<&'a Original>,
    /// Names the trace that it belongs to (W3C's `traceparent`), for targets over HTTP.
    pub traceparent: Option<&'a str>,
    /// The client has the beginning of the answer already, which is the request's last message.
    pub resumed: bool,
}

/// A client's request as it came.
#[derive(Debug, Clone)]
pub struct Original {
    /// What it is written in.
    pub dialect: Dialect,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its JSON.
    pub body: Bytes,
    /// Its body instead, where that is no JSON and is sent on while it comes.
    pub upload: Option<Arc<Upload>>,
}

impl Original {
    /// Whether some of it was sent that is not there any more: then nobody else can be asked.
    pub fn is_spent(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.is_spent())
    }
}

impl Ask<'_> {
    /// The model's name at the target: in `template` each star becomes what the group's star stood for.
    pub fn fill<'b>(&self, template: &'b str) -> Cow<'b, str> {
        fill(self.group, self.name, template)
    }
}

/// `template` with what the stars of `group` stood for in `name`.
pub(crate) fn fill<'b>(group: &GroupName, name: &str, template: &'b str) -> Cow<'b, str> {
    if !template.contains('*') {
        return Cow::Borrowed(template);
    }
    group.fill(name, template).map_or(Cow::Borrowed(template), Cow::Owned)
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// An event, in no dialect.
    Event(Event),
    /// Bytes in the client's own dialect: of a stream, whole events; else the whole answer. They go out as they are.
    Raw(Bytes),
}

impl From<Event> for Piece {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

/// The pieces of an answer as they come. Raw ones and events do not mix, and a raw answer that is not complete ends with a failure.
pub trait Events: Send + 'static {
    /// The next piece; `None` after the last. A failure ends them. Can be given up and called again without losing an event.
    fn next(&mut self) -> impl Future<Output = Option<Result<Piece, Failure>>> + Send;

    /// The next event, if it is there already.
    fn try_next(&mut self) -> Option<Result<Piece, Failure>> {
        None
    }

    /// Whether it comes over a connection: the task that reads from one hands on a piece at a time, and gets its turn in between.
    fn is_remote(&self) -> bool {
        false
    }

    /// Tokens counted in a raw answer that has ended.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// The headers of a raw answer.
    fn headers(&self) -> Option<&HeaderMap> {
        None
    }
}

/// What a client has got of an answer that broke off.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sent {
    /// The reasoning.
    pub reasoning: String,
    /// The text.
    pub text: String,
    /// Pieces that it came in: at most so many tokens, for servers that send each token when it is there.
    pub pieces: u32,
}

impl Sent {
    /// Whether something of the answer itself was said, beside thoughts and white space.
    pub fn is_begun(&self) -> bool {
        !self.text.trim().is_empty()
    }
}
