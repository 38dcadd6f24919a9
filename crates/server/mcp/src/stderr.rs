//! What a server's program writes to its standard error: the end of it, for errors.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;

/// How much of the end is kept.
const KEPT_BYTES: usize = 8 << 10;
/// How much of a line is shown.
const LINE_CHARS_MAX: usize = 300;
/// How long the rest of an ended program's output is waited for: a program that it started may hold it open.
const END: Duration = Duration::from_secs(1);

/// The end of what a program wrote.
#[derive(Default)]
pub struct Said {
    end: Arc<Mutex<Vec<u8>>>,
    /// Closed when the program has closed its output.
    open: Mutex<Option<watch::Receiver<()>>>,
}

impl Said {
    /// Reads the output to its end, so that the program never waits for a reader.
    pub fn listen(&self, mut stderr: impl AsyncRead + Send + Unpin + 'static) {
        let (sender, receiver) = watch::channel(());
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiver);
        let end = Arc::clone(&self.end);
        tokio::spawn(async move {
            let _open = sender;
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = stderr.read(&mut bytes).await {
                let mut end = end.lock().unwrap_or_else(PoisonError::into_inner);
                end.extend_from_slice(&bytes[..n]);
                let too_many = end.len().saturating_sub(KEPT_BYTES);
                end.drain(..too_many);
            }
        });
    }

    /// Waits for the rest of the output of a program that has ended.
    pub async fn until_the_end(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(mut open) = open {
            // An error means that it is closed.
            let _ = tokio::time::timeout(END, open.changed()).await;
        }
    }

    /// An error with the most telling of the program's last lines, if it wrote some.
    pub fn added_to(&self, why: String) -> String {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        match telling(&String::from_utf8_lossy(&end)) {
            Some(line) => format!("{why}; on standard error: {line}"),
            None => why,
        }
    }
}

/// The last line that names an error, or else the last line: some runtimes end with their version.
fn telling(text: &str) -> Option<String> {
    // Terminals must not obey it.
    let clean =
        |line: &str| line.chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect::<String>();
    let lines: Vec<String> = text.lines().map(clean).filter(|line| !line.trim().is_empty()).collect();
    let named = lines.iter().rev().find(|line| line.to_ascii_lowercase().contains("error:"));
    named.or(lines.last()).map(|line| line.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_names_the_error_is_told() {
        let python = "Traceback (most recent call last):\n  File \"x\", line 1\nModuleNotFoundError: No module named 'mcp'\n";
        assert_eq!(telling(python).unwrap(), "ModuleNotFoundError: No module named 'mcp'");
        let node = "  throw err;\n\nError: Cannot find module '/x.js'\n    at y\n\nNode.js v22.1.0\n";
        assert_eq!(telling(node).unwrap(), "Error: Cannot find module '/x.js'");
        assert_eq!(telling("starting\n\u{1b}[31mno token\r\n \n").unwrap(), "[31mno token");
        assert_eq!(telling(" \n"), None);
        assert_eq!(telling(&"x".repeat(5000)).unwrap().len(), LINE_CHARS_MAX);
    }

    #[tokio::test]
    async fn the_end_is_kept() {
        let said = Said::default();
        assert_eq!(said.added_to("gone".into()), "gone");
        let text = "noise\n".repeat(10_000) + "no key is set\n";
        said.listen(std::io::Cursor::new(text.into_bytes()));
        said.until_the_end().await;
        assert_eq!(said.added_to("gone".into()), "gone; on standard error: no key is set");
        assert!(said.end.lock().unwrap().len() <= KEPT_BYTES);
    }
}
