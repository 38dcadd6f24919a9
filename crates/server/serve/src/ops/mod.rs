//! Operations: metrics, access log, API keys, origin checks.

mod access;
mod experts;
pub mod history;
mod keys;
mod metrics;
mod origin;
mod plain;
mod requests;
mod routes;
mod speculation;
mod stored;
mod trace;

pub use access::{log, write_json};
pub use experts::experts_json;
pub use keys::{Keys, NO_KEY};
pub use metrics::{Metrics, Model, RequestCost};
pub use origin::{foreign_host, is_foreign, is_trustworthy};
pub use plain::{PLAIN, plain, wants_plain};
pub use requests::RequestLog;
pub use trace::Trace;
