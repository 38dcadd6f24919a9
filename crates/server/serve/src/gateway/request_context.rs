//! What the router needs besides a request: who sent it, the memory that it holds, its fields for the router. Created by `http`.

use hyper::HeaderMap;
use hyper::header::HeaderName;
use octet_api::core::MemoryHandle;

use super::caller::Caller;
use super::read::{Own, add_tags};
use crate::ops::Trace;

/// LiteLLM's header with tags, in addition to those in the body.
const TAGS: HeaderName = HeaderName::from_static("x-litellm-tags");

/// Who sent a request.
pub struct Sender {
    /// The request's id and figures for the log.
    pub trace: Trace,
    /// The authenticated client.
    pub caller: Caller,
    /// The request's headers.
    pub headers: HeaderMap,
    /// The request's path.
    pub path: Box<str>,
}

impl Sender {
    /// The context of a request that holds `memory`.
    pub fn context(self, memory: MemoryHandle, own: Own) -> RequestContext {
        RequestContext { sender: self, memory, own }
    }
}

/// What the router needs besides the request itself.
pub struct RequestContext {
    /// Who sent it.
    pub sender: Sender,
    /// The memory that it holds.
    pub memory: MemoryHandle,
    /// The fields of its body that are for the router.
    pub own: Own,
}

impl RequestContext {
    /// Adds the tags in the request's header.
    pub fn with_tags(mut self) -> Self {
        let sent = self.sender.headers.get_all(TAGS).iter().filter_map(|v| v.to_str().ok());
        add_tags(&mut self.own.tags, sent.flat_map(|v| v.split(',')).map(str::to_string));
        self
    }
}
