//! Notes and errors on standard error. Used by every file of this crate.

/// Like `eprintln!`, for a standard error that may be closed or full: the message is lost, and the exit code reports the result.
/// `eprintln!` would panic, so that a finished answer would look like a failure.
macro_rules! note {
    () => { $crate::stderr::line(format_args!("")) };
    ($($text:tt)*) => { $crate::stderr::line(format_args!($($text)*)) };
}

pub(crate) use note;

use crate::wrap::Wrap;

/// Writes a line; on a terminal it ends between words.
pub fn line(text: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    let mut text = text.to_string();
    let terminal = console::Term::stderr();
    let size = if terminal.is_term() { terminal.size_checked() } else { None };
    if let Some((_, columns)) = size.filter(|(_, columns)| *columns > 0) {
        text = wrapped(&text, columns.into());
    }
    text.push('\n');
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// A text, with control sequences, on a terminal of `columns`.
fn wrapped(text: &str, columns: usize) -> String {
    let (mut wrap, mut out) = (Wrap::default(), String::new());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\x1b' {
            wrap.push(c, columns, &mut out);
            continue;
        }
        let mut code = String::from(c);
        for c in chars.by_ref() {
            code.push(c);
            if c.is_ascii_alphabetic() {
                break;
            }
        }
        wrap.style(&code);
    }
    wrap.flush(columns, &mut out);
    out
}

/// The same for the log: lines that cannot be written are lost, and no thread of the server ends. (`tracing-subscriber` would report
/// the failure with `eprintln!`.)
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

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn styles_take_no_room() {
        assert_eq!(wrapped("\x1b[2m12 tokens, 3 steps\x1b[0m", 12), "\x1b[2m12 tokens, 3\nsteps\x1b[0m");
    }
}
