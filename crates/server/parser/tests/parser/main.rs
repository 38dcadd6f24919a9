//! The tests of the parser of answers, in one program: each test program is linked separately.

mod answers;
mod channels;
mod headers;
mod late_reports;
mod nested;
mod reports;
mod support;
mod templates;
