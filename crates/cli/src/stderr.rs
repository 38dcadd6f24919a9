//! Notes and errors on standard error.

/// Like `eprintln!`, for a standard error that may be closed or full: the message is lost, and the exit code reports the result.
/// `eprintln!` would panic, so that a finished answer would look like a failure.
macro_rules! note {
    () => { $crate::stderr::line(format_args!("")) };
    ($($text:tt)*) => { $crate::stderr::line(format_args!($($text)*)) };
}

pub(crate) use note;

use crate::wrap;

/// Writes a line; on a terminal it ends between words.
pub fn line(text: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    let mut text = text.to_string();
    text = wrap::on(&console::Term::stderr(), &text);
    text.push('\n');
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// The same for the log: lines that cannot be written are lost, and no thread of the server ends. (`tracing-subscriber` would report
/// the failure with `eprintln!`.)
pub struct Log {
    /// Standard error is a terminal, and lines end between words there.
    pub wraps: bool,
}

/// Columns before what goes on in the next line of the log.
const LOG_INDENT: usize = 4;

impl std::io::Write for Log {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let _ = match self.wraps {
            true => {
                let line = String::from_utf8_lossy(buf);
                let line = wrap::hanging(&console::Term::stderr(), &line, LOG_INDENT);
                std::io::stderr().write_all(line.as_bytes())
            }
            false => std::io::stderr().write_all(buf),
        };
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
