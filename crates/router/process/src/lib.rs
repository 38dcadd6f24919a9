//! Servers started on demand, as llama-swap's entries describe them. Used by the router, which requests a [`Lease`] of [`Processes`]
//! before it sends a request to one.
//!
//! `processes` starts and stops them as `octet_swap` decides; `groups` says which run together; `supervise` runs one server from start
//! to end; `child` has the operating-system part.
#![cfg(unix)]

mod check;
mod child;
mod error;
mod groups;
mod log;
mod processes;
mod supervise;

pub use error::Error;
pub use octet_swap::{Patience, Phase};
pub use processes::{Lease, Options, Processes, Status};
