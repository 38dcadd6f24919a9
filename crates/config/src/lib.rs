//! The router's configuration: one file, read into plain data ([`Config`]). Used by the router, the upstream clients and the CLI.
//!
//! `model` is what everybody else sees: every default is filled in, every secret resolved, every name checked.

pub mod model;
mod secret;
mod span;

pub use model::*;
pub use secret::Secret;
pub use span::{Note, Span};
