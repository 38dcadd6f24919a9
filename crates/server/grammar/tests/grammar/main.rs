//! The tests of structured output, in one program: each test program is linked separately.

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod headers;
mod hostile;
mod json;
mod tools;
