//! The tests of structured output, in one program: each program is linked by itself.

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod hostile;
mod json;
mod tools;
