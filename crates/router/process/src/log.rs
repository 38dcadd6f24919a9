//! The last output of a server. Filled by a thread of `child`, shown when a start fails.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Mutex, MutexGuard, PoisonError};

const LINES_MAX: usize = 200;
const LINE_BYTES_MAX: usize = 2048;

/// The last lines of standard output and standard error, in the order in which they were written.
#[derive(Debug, Default)]
pub struct Log(Mutex<VecDeque<String>>);

impl Log {
    fn lines(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line.
    pub fn push(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(line).trim_end().to_string();
        if line.is_empty() {
            return;
        }
        let mut lines = self.lines();
        if lines.len() == LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The last `n` lines.
    pub fn last(&self, n: usize) -> Vec<String> {
        let lines = self.lines();
        lines.iter().skip(lines.len().saturating_sub(n)).cloned().collect()
    }

    /// Reads all lines until the pipe closes. Overlong lines are cut.
    pub fn fill(&self, mut from: impl Read) {
        let mut line = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let n = match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    self.push(format!("(the rest cannot be read: {e})").as_bytes());
                    break;
                }
            };
            for piece in chunk[..n].split_inclusive(|b| matches!(b, b'\n' | b'\r')) {
                line.extend_from_slice(piece);
                if line.len() >= LINE_BYTES_MAX || line.ends_with(b"\n") || line.ends_with(b"\r") {
                    self.push(&line);
                    line.clear();
                }
            }
        }
        self.push(&line);
    }
}
