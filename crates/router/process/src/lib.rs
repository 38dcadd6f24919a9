//! Servers started on demand, as llama-swap's entries describe them. Used by the router, which requests a [`Lease`] of [`Processes`]
//! before it sends a request to one.
//!
//! `scheduler` decides what to start, stop and admit, independent of processes and clocks; `supervise` runs one server from start to
//! end; `child` has the operating-system part.
#![cfg(unix)]

mod check;
mod child;
mod error;
mod log;
mod processes;
mod scheduler;
mod supervise;

pub use error::Error;
pub use processes::{Lease, Options, Processes, Status};
pub use scheduler::{Membership, Patience, Phase, Scheduler, Step};
