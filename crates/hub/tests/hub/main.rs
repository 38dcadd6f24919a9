//! The tests of fetching models, in one program: each program is linked by itself.

mod connections;
mod huggingface;
mod network;
mod support;
mod web;
mod wheel;
