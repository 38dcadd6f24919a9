//! What answers requests: a provider, the engine in this process, or a test's mock. Implemented by the server; driven by
//! `dispatch`.

use std::future::Future;
use std::sync::Arc;

use octet_api::core::{Event, GenerateRequest};

use crate::failure::Failure;

/// Something that answers. Each deployment has one.
pub trait Target: Send + Sync + 'static {
    /// The events of an answer. Dropping it cancels the request.
    type Events: Events;

    /// Sends the request. Dropping the future cancels it.
    fn generate(&self, ask: Ask) -> impl Future<Output = Result<Self::Events, Failure>> + Send;

    /// The model's name at the target, for `x-octet-model`. `captures` is what the stars of the group's name stood for.
    fn model(&self, captures: &[String]) -> String;

    /// How many tokens the request's prompt is, exactly; `None` where that is not known before it is sent.
    fn count_tokens(&self, _request: &Arc<GenerateRequest>) -> impl Future<Output = Option<u64>> + Send {
        async { None }
    }

    /// Whether it can go on from an answer that broke off. The request then ends with the assistant's message so far, and
    /// has `continue_final` set.
    fn continues(&self, _sent: &Sent) -> bool {
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
#[derive(Debug, Clone)]
pub struct Ask {
    /// What to generate. Its `model` is the name that the client asked for.
    pub request: Arc<GenerateRequest>,
    /// What the stars of the group's name stood for.
    pub captures: Arc<[String]>,
}

/// The events of an answer as they come.
pub trait Events: Send + 'static {
    /// The next event; `None` after the last. A failure ends them. Can be given up and called again without losing an event.
    fn next(&mut self) -> impl Future<Output = Option<Result<Event, Failure>>> + Send;

    /// The next event, if it is there already.
    fn try_next(&mut self) -> Option<Result<Event, Failure>> {
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
