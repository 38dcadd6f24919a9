//! The tests of servers that are started on demand, in one program: each program is linked by itself.

mod common;
mod process_servers;
