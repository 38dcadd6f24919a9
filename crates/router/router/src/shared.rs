//! Limits and cooldowns that several processes share. Implemented by the server; asked by `turn` and `dispatch`, besides each process's own
//! `state`.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::limit::{Exhausted, ExpectedTokens, SharedPermit};
use crate::state::Limits;

/// The result of [`Shared::acquire`]; nothing if the other processes cannot be asked.
pub type Acquired = Result<Option<Box<dyn SharedPermit>>, Exhausted>;

/// What the other processes know.
pub trait Shared: Debug + Send + Sync {
    /// Counts a request at a deployment.
    fn acquire<'a>(
        &'a self,
        deployment: &'a str,
        limits: &'a Limits,
        tokens: ExpectedTokens,
    ) -> Pin<Box<dyn Future<Output = Acquired> + Send + 'a>>;

    /// A deployment, or one of its models, is in cooldown.
    fn cooled(&self, deployment: &str, model: Option<&str>, time: Duration);
}
