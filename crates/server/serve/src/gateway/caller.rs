//! Who asks. Found out by `auth`; used by all who answer.

use std::sync::Arc;

/// A virtual key as a request brought it. Never printed.
#[derive(Clone)]
pub struct Bearer {
    pub(super) secret: Arc<str>,
    /// What it is called in logs.
    pub id: Arc<str>,
}

/// Who asks.
#[derive(Clone, Default)]
pub enum Caller {
    /// Whoever may do everything: there are no keys, or it brought one of the server's own.
    #[default]
    Trusted,
    /// Somebody with a virtual key.
    Key(Bearer),
}
