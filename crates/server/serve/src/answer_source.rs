//! What the writers of answers know of an answer, whoever gives it. Implemented by a local run (`pipeline`) and by a request that the
//! router answers (`gateway`).

use std::sync::Arc;

use octet_api::core::GenerateRequest;
use octet_router::Piece;

/// What is known of an answer before it comes, for its headers.
#[derive(Debug, Default)]
pub struct Facts {
    /// The model that answers, where the router has chosen it already.
    pub model: Option<String>,
    /// How the router found it.
    pub route: Option<String>,
    /// What of the request has no effect.
    pub warnings: Vec<String>,
    /// Why the prompt was not found in the cache, where that was asked.
    pub cache_miss: Option<String>,
    /// Its entry in the cache of responses, and whether it comes from there.
    pub response_cache: Option<(String, bool)>,
}

/// An answer on its way. Its counts of tokens come as [`octet_api::core::Event::Usage`]. Dropping it cancels the request.
pub trait AnswerSource: Send + 'static {
    /// The request that is answered.
    fn request(&self) -> Arc<GenerateRequest>;

    /// What its headers say.
    fn facts(&mut self) -> Facts;

    /// The virtual key that asked.
    fn owner(&self) -> Option<&Arc<str>>;

    /// Whether another server answers: then pieces come one by one, from a task that needs its turn in between.
    fn is_remote(&self) -> bool;

    /// The next piece; `None` after the last. Can be given up and called again.
    fn next(&mut self) -> impl Future<Output = Option<Piece>> + Send;

    /// The next piece, if it is there already.
    fn try_next(&mut self) -> Option<Piece>;

    /// These bytes of the answer go out, as its dialect has them.
    fn wrote(&mut self, _bytes: &[u8]) {}

    /// All of the answer has gone out.
    fn finished(&mut self) {}
}
