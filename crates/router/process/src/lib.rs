//! Servers that are started on demand: llama-swap's entries. Used by the router, which asks [`Processes`] for a [`Lease`]
//! before it sends a request to one.
//!
//! `scheduler` decides what starts, stops and is let through, and knows neither processes nor clocks; `supervise` runs one
//! server from its start to its end; `child` is what the operating system has to do with it.
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
