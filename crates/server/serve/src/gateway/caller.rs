//! The authenticated client. Determined by `auth`; used by all endpoints.

use std::sync::Arc;

/// The virtual key of a request. Never printed.
#[derive(Clone)]
pub struct Bearer {
    pub(super) secret: Arc<str>,
    /// Its id in logs.
    pub id: Arc<str>,
}

/// The authenticated client.
#[derive(Clone, Default)]
pub enum Caller {
    /// It may do everything: there are no keys, or it sent one of the server's own.
    #[default]
    Trusted,
    /// It sent a virtual key.
    Key(Bearer),
}
