//! HTTP clients of the providers behind the router. Called by `router`; knows nothing of choices, retries and budgets.
//!
//! [`Client`] has the connections, an [`Endpoint`] says where a model is and what is changed in requests for it, a
//! [`Failure`] says what went wrong in the words that the router decides by.
//!
//! Two ways lead to a provider. [`Client::generate`] takes a request in no dialect and gives events in none: any client
//! reaches any provider. [`Client::forward`] is for a client and a provider that speak the same: the client's bytes go out
//! with another model's name in them, the provider's bytes come back as they are, and nothing more is read of them than
//! tells a whole answer from a broken one, and its count of tokens. What Octet does not understand at all ([`Passed`], files and batches)
//! goes the same way, unread in both directions; a client's [`Upload`] is sent on while it comes.
//!
//! Keys stand in headers alone: no error, log or `Debug` shows one, and no redirect is followed with one.

mod auth;
mod body;
mod client;
mod connect;
mod edit;
mod encoding;
mod endpoint;
mod escape;
mod events;
mod failure;
mod forward;
mod generate;
mod lists;
mod overlay;
mod overrides;
mod rewrite;
mod tls;
mod upload;
mod watch;

pub use client::Client;
pub use connect::Limits;
pub use endpoint::{
    ANSWER_BYTES_MAX, Dialect, Endpoint, InvalidEndpoint, MAX_TOKENS, Passed, Settings, Timeouts,
};
pub use events::Events;
pub use failure::{Failure, FailureKind};
pub use forward::{Forward, Raw};
pub use lists::Listed;
pub use overrides::Overrides;
pub use upload::Upload;
