//! The CPU backend: the team of threads and the kernels that it runs.

pub mod isa;
pub mod team;
pub mod vector;
