//! The tests of the command, in one program: each test program is linked separately.

mod cascade;
mod common;
mod compare;
mod config_command;
mod endpoint;
mod eval;
mod experts;
mod images;
mod inside;
mod keys_cli;
#[cfg(target_os = "linux")]
mod larger;
mod llama_cpp;
mod machine;
#[cfg(unix)]
mod mcp;
mod measure;
#[cfg(target_os = "linux")]
mod packed;
mod plan;
mod quantize;
mod route_command;
#[cfg(unix)]
mod routers;
mod served;
#[cfg(unix)]
mod terminal;
mod text;
mod usage;
