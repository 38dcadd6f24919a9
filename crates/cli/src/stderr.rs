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

/// The same for the log: what cannot be written is lost, and no thread of the server ends with it. (`tracing-subscriber` would
/// say by `eprintln!` that it cannot write to standard error.)
pub struct Log;

impl std::io::Write for Log {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let _ = std::io::stderr().write_all(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
