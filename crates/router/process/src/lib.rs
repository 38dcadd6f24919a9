//! Servers started on demand, as llama-swap's entries describe them.
//!
//! [`swap`] decides what runs where not all fits, for servers and for loaded models; `processes` starts and stops servers as it decides;
//! `groups` says which run together; `supervise` runs one server from start to end; `child` has the operating-system part. Servers need
//! Unix, [`swap`] does not.

#[cfg(unix)]
mod check;
#[cfg(unix)]
mod child;
#[cfg(unix)]
mod error;
#[cfg(unix)]
mod groups;
#[cfg(unix)]
mod log;
#[cfg(unix)]
mod processes;
#[cfg(unix)]
mod supervise;
pub mod swap;

#[cfg(unix)]
pub use error::Error;
#[cfg(unix)]
pub use processes::{Lease, Options, Processes, Status};
pub use swap::{Patience, Phase};
