//! The tests of servers that are started on demand, in one program: each program is linked by itself.

#[cfg(unix)]
mod common;
mod pool;
#[cfg(unix)]
mod process_servers;
mod scheduler;
