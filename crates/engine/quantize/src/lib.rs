//! Makes quantised weights.
//!
//! [`quantize`] turns rows of floats into blocks of any type that GGUF files have; [`types`] says which tensor of a file gets which type;
//! [`base`] keeps what a model predicts, for those that are compared with it; [`make`] is a model with other types, whose tensors are
//! quantised when they are read.

mod affine;
pub mod base;
mod canonical;
mod codebook;
mod encode;
mod error;
mod file_type;
mod fit;
mod importance;
mod iq;
mod k;
mod lanes;
mod make;
mod mix;
mod projector;
mod single;
mod symmetric;

pub use encode::{TYPES, quantize};
pub use error::Error;
pub use file_type::{FileType, UnknownFileType};
pub use importance::{Importance, Seen};
pub use make::{Options, TensorType, make};
pub use mix::{Facts, is_quantised, types};
pub use projector::projector;
