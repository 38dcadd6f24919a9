//! Model swapping: if models and servers do not all fit on one machine, which of them run, which requests wait, and which entry is evicted.
//!
//! `scheduler` decides: plain state, no clock, no tasks. `pool` carries its steps out and hands a [`Lease`] to each request. What the
//! entries are, which of them fit together and how one starts is the caller's, a [`Host`].

mod pool;
mod scheduler;

pub use pool::{Host, Lease, Pool, Refused, Waiter};
pub use scheduler::{Fit, Patience, Phase, Rules, Running, Scheduler, Step};
