//! The CPU backend: the team of threads and the kernels that it runs. Start in `backend`.

pub mod acts;
mod arbiter;
mod attend;
pub mod backend;
mod bandwidth;
mod delta;
pub mod huge;
pub mod isa;
pub mod kernels;
mod linear;
mod mlp;
mod moe;
pub mod pack;
pub mod profile;
mod routes;
pub mod speed;
pub mod team;
pub mod topology;
pub mod vector;
mod word;

pub use arbiter::Arbiter;
pub use backend::{Cpu, CpuOptions};
