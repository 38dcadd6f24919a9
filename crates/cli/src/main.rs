//! The `octet` command.
fn main() {}
