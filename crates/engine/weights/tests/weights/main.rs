//! The tests of readers of models' files, in one program: each test program is linked separately.

#[path = "../support/mod.rs"]
mod support;

mod configs;
mod formats;
mod gguf;
mod hf;
mod quant;
mod schemes;
mod twins;
