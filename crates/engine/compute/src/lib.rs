//! Every kernel of Octet, behind one set of verbs. Read `backend.rs` first.

pub mod backend;
pub mod batch;
pub mod cpu;
mod experts;
pub mod inspect;
pub mod picks;
pub mod reference;
pub mod selftest;

pub use backend::{Backend, Error};
pub use batch::Batch;
pub use experts::{ExpertCounts, TokenRoutes};
