//! The tests of the router, in one program: each program is linked by itself.

mod common;
mod router_calibrate;
mod router_calls;
mod router_cascade;
mod router_checks;
mod router_choose;
mod router_cooldown;
mod router_dispatch;
mod router_faults;
mod router_options;
mod router_prefix;
mod router_sockets;
mod router_wildcards;
