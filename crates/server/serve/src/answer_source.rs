//! The interface between an answer and its writers. Implemented by a local run (`pipeline`) and by a routed request (`gateway`).

use std::sync::Arc;

use octet_api::core::GenerateRequest;
use octet_router::{AnswerMemory, Piece};

/// Facts about an answer that are known before its first event; sent as headers.
#[derive(Debug, Default)]
pub struct Facts {
    /// The model that answers, if the router has chosen it already.
    pub model: Option<String>,
    /// How the router chose it.
    pub route: Option<String>,
    /// Fields of the request that have no effect.
    pub warnings: Vec<String>,
    /// Why the prompt was not in the cache, if the client asked.
    pub cache_miss: Option<String>,
    /// The key of its entry in the response cache, and whether the answer comes from there.
    pub response_cache: Option<(String, bool)>,
}

/// An answer in progress. Token counts arrive as [`octet_api::core::Event::Usage`]. Dropping it cancels the request.
pub trait AnswerSource: Send + 'static {
    /// The request that is answered. One that was read partly is complete from the first event on: the answer's form depends on it.
    fn request(&self) -> Arc<GenerateRequest>;

    /// Facts for its headers.
    fn facts(&mut self) -> Facts;

    /// The virtual key of the client.
    fn owner(&self) -> Option<&Arc<str>>;

    /// Whether another server answers. Its pieces then come one by one from a task that must run in between.
    fn is_remote(&self) -> bool;

    /// Whether it is a whole answer in its client's dialect that must be sent on as it arrives.
    fn flows(&self) -> bool {
        false
    }

    /// The memory that a long answer takes, for as long as its text is kept.
    fn memory(&self) -> Option<AnswerMemory> {
        None
    }

    /// The next piece; `None` after the last. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Piece>> + Send;

    /// The next piece, if it is available now.
    fn try_next(&mut self) -> Option<Piece>;

    /// Called with the bytes that are sent to the client, in its dialect.
    fn wrote(&mut self, _bytes: &[u8]) {}

    /// Called when the whole answer has been sent.
    fn finished(&mut self) {}
}
