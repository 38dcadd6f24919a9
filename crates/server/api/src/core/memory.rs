//! The memory that a request takes, as its server counts it. Created by the server; every copy of the request holds it.

use std::fmt::Debug;
use std::sync::Arc;

use crate::ApiError;

/// A share of a server's memory for requests.
pub trait RequestMemory: Debug + Send + Sync {
    /// Counts the values of a body that is parsed.
    ///
    /// # Errors
    /// If the server has no memory left for them.
    fn take_values(&self, body: &[u8]) -> Result<(), ApiError>;

    /// Counts the values of a body that is parsed, and the copy that is written of it, until the result is dropped.
    ///
    /// # Errors
    /// If the server has no memory left for them.
    fn borrow_values(&self, body: &[u8]) -> Result<Box<dyn Send>, ApiError>;
}

/// A request's share, which is released when the last copy of the request is dropped: threads that work on one may outlive the client's
/// connection. The default holds nothing.
#[derive(Debug, Clone, Default)]
pub struct MemoryHandle(Option<Arc<dyn RequestMemory>>);

impl MemoryHandle {
    /// Holds this share.
    pub fn new(memory: Arc<dyn RequestMemory>) -> Self {
        Self(Some(memory))
    }

    /// Counts the values of a body that is parsed.
    ///
    /// # Errors
    /// If the server has no memory left for them.
    pub fn take_values(&self, body: &[u8]) -> Result<(), ApiError> {
        self.0.as_ref().map_or(Ok(()), |memory| memory.take_values(body))
    }

    /// Counts the values of a body that is parsed, and the copy that is written of it, until the result is dropped.
    ///
    /// # Errors
    /// If the server has no memory left for them.
    pub fn borrow_values(&self, body: &[u8]) -> Result<Option<Box<dyn Send>>, ApiError> {
        self.0.as_ref().map(|memory| memory.borrow_values(body)).transpose()
    }
}

/// Always equal: it is no part of what a client asks for.
impl PartialEq for MemoryHandle {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
