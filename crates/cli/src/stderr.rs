//! What is said beside the answer: notes and errors on standard error. Used by every file of this crate.

/// `eprintln!` for a standard error that may be closed or full: where nobody can be told, the work still counts, and
/// the exit code says how it went. `eprintln!` would panic, and with it a finished answer would look like a failure.
macro_rules! note {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

pub(crate) use note;
