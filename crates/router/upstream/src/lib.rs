//! HTTP clients of the providers behind the router. Independent of routing, retries and budgets.
//!
//! [`Client`] has the connections, an [`Endpoint`] the address of a model and the changes of its requests, a [`Failure`] the classified
//! error that the router decides by.
//!
//! There are two ways to call a provider. [`Client::generate`] translates between a neutral request and neutral events: any client reaches
//! any provider. [`Client::forward`] is for a client and a provider with the same dialect: the client's bytes are sent with another model
//! name, and the provider's bytes come back unchanged; only the end of the answer, errors and the token count are read. Endpoints that
//! Octet does not parse ([`Passed`], files and batches) are forwarded the same way, unread in both directions; a client's [`Upload`] is
//! streamed.
//!
//! Keys appear only in headers: no error, log or `Debug` output shows one, and no redirect is followed with one.

mod accept;
mod asked;
mod auth;
pub mod blocking;
mod body;
mod client;
mod connect;
mod dialect;
mod edit;
mod encoding;
mod endpoint;
mod escape;
mod events;
mod failure;
mod forward;
mod generate;
mod image_urls;
mod lists;
mod long;
mod overlay;
mod overrides;
mod rewrite;
mod skim;
mod tls;
mod upload;
mod watch;

pub use client::Client;
pub use connect::Limits;
pub use dialect::{Dialect, Passed};
pub use endpoint::{ANSWER_BYTES_MAX, Endpoint, InvalidEndpoint, MAX_TOKENS, Settings, Timeouts};
pub use events::Events;
pub use failure::{Failure, FailureKind};
pub use forward::{Forward, Raw};
pub use image_urls::{ImageFetcher, has_image_urls, image_url_refused, is_public};
pub use lists::Listed;
pub use long::AnswerMemory;
pub use overrides::Overrides;
pub use upload::Upload;
