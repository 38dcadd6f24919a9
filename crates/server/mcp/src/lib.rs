//! Tools of MCP servers (modelcontextprotocol.io): which there are, and calls of them.
//!
//! The operator names the servers in a file with the usual `mcpServers` object ([`Servers::parse`]). [`Tools`] starts or reaches them when
//! it is first asked, and once more when one has ended. What they send is untrusted: it is bounded, and never run.

mod client;
mod servers;
mod stderr;
mod tools;

pub use servers::{Problem, Reach, Server, Servers};
pub use tools::{Answer, Error, Listed, Tool, Tools};
