//! The tests of clients of providers, in one program: each program is linked by itself.

mod common;
mod upstream_answers;
mod upstream_clouds;
mod upstream_faults;
mod upstream_forward;
mod upstream_images;
mod upstream_requests;
mod upstream_rules;
mod upstream_thinking;
