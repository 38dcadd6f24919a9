//! The CPU backend: the team of threads and the kernels that it runs. Start in `backend`.

pub mod activations;
mod arbiter;
mod attend;
mod backend;
mod bandwidth;
mod choice;
mod delta;
mod device;
mod glu;
pub mod huge;
pub mod isa;
pub mod kernels;
pub mod kind;
mod linear;
#[cfg_attr(not(target_os = "linux"), path = "map_none.rs")]
mod map;
mod memory;
mod moe;
mod observe;
pub mod pack;
pub mod packed_file;
mod plan;
pub mod profile;
mod recurrent;
mod routes;
mod rows;
mod scratch;
pub mod speed;
mod store;
pub mod team;
pub mod topology;
pub mod vector;
mod watch;
mod word;

pub use arbiter::Arbiter;
pub use bandwidth::Probe;
pub use device::{Cpu, CpuOptions};
pub use watch::{Sink, Watched};
