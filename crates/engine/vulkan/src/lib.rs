//! The Vulkan backend: the verbs of `octet_compute` as compute kernels, for graphics cards of every maker. Start in `backend`.
//!
//! Kernels are GLSL in `shaders/`; the SPIR-V that is built from them lies in `spirv/`, so a build needs no shader compiler.

mod ahead;
pub mod backend;
mod block;
mod cache;
mod compile;
mod copies;
pub mod device;
mod experts;
#[doc(hidden)]
pub mod faults;
mod floors;
mod hooks;
mod inspect;
mod kernel;
mod kernel_cache;
mod memory;
mod pace;
mod pack;
mod picks;
mod pipeline;
mod ranges;
mod reads;
mod record;
mod selftest;
mod snapshots;
pub mod split;
mod steps;
mod timer;
mod traffic;
mod transfer;
mod verbs;
mod weights;

pub use ahead::reads_table;
pub use backend::{Vulkan, VulkanOptions};
pub use cache::device_row_bytes;
pub use device::{DeviceInfo, DeviceKind, devices};
pub use memory::MemoryLimit;
pub use split::{Share, Split};
pub use weights::device_bytes;
