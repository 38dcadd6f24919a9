//! The CPU backend: the team of threads and the kernels that it runs.

pub mod acts;
pub mod huge;
pub mod isa;
pub mod kernels;
pub mod pack;
pub mod team;
pub mod vector;
