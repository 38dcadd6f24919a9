//! The tests of readers of models' files, in one program: each program is linked by itself.

#[path = "../support/mod.rs"]
mod support;

mod gguf;
mod hf;
mod quant;
mod twins;
