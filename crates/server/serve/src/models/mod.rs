//! The served models and their loading.

mod loaded;
mod memory;
mod names;
mod registry;
mod roles;
mod spec;
mod tool_prefixes;
mod tools;

pub use loaded::Loaded;
pub use memory::{FreeMemory, Memory, OnDevice};
pub use registry::{AcquireError, Lease, Registry, Unhealthy};
pub use spec::{BoxError, MakeEngine, ModelCard, ModelSpec, Open};
