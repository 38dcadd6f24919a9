//! The tests of the parser of answers, in one program: each program is linked by itself.

mod answers;
mod support;
mod templates;
