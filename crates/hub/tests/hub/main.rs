//! The tests of this crate, in one program: each test program is linked separately.

mod connections;
mod huggingface;
mod network;
mod support;
mod web;
mod wheel;
