//! The CPU backend: the team of threads and the kernels that it runs. Start in `backend`.

pub mod acts;
mod attend;
pub mod backend;
mod bandwidth;
mod delta;
pub mod huge;
pub mod isa;
pub mod kernels;
mod linear;
mod moe;
pub mod pack;
pub mod profile;
pub mod team;
pub mod topology;
pub mod vector;

pub use backend::{Cpu, CpuOptions};
