//! Every kernel of Octet, behind one set of verbs. Read `backend.rs` first.

pub mod backend;
pub mod batch;
pub mod cpu;
pub mod reference;

pub use backend::{Backend, Error};
pub use batch::Batch;
