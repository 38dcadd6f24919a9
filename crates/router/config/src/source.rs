//! Everything outside of the file: variables and other files. Passed in, so that only the CLI reads the environment.

use std::io;
use std::path::Path;

/// Where variables and files come from.
pub trait Source {
    /// The variable of this name, if it is set and not empty.
    fn variable(&self, name: &str) -> Option<String>;

    /// The text of a file of at most `bytes_max` bytes.
    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<String>;

    /// Unsupported keys that need not be enforced, as `--ignore-unsupported` names them: `guardrails`,
    /// `general_settings.allowed_ips`. `*` is all of them.
    fn ignores(&self) -> &[String] {
        &[]
    }
}

/// A source with keys that need not be enforced.
pub struct Ignoring<'a, S> {
    /// Where variables and files come from.
    pub source: S,
    /// The keys.
    pub keys: &'a [String],
}

impl<S: Source> Source for Ignoring<'_, S> {
    fn variable(&self, name: &str) -> Option<String> {
        self.source.variable(name)
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<String> {
        self.source.read(path, bytes_max)
    }

    fn ignores(&self) -> &[String] {
        self.keys
    }
}

/// Files from the disk, variables from a function.
pub struct Disk<F>(pub F);

impl<F: Fn(&str) -> Option<String>> Source for Disk<F> {
    fn variable(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|v| !v.trim().is_empty())
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<String> {
        read_file(path, bytes_max)
    }
}

/// The text of a regular file of at most `bytes_max` bytes. A name from a client cannot make the server wait or use much memory
/// with a pipe or a device.
///
/// # Errors
/// If it is not a regular file, larger, not UTF-8, or cannot be read.
pub fn read_file(path: &Path, bytes_max: u64) -> io::Result<String> {
    use io::Read;
    // Checked before it is opened: opening a pipe blocks until another process writes to it.
    regular(&std::fs::metadata(path)?)?;
    let file = std::fs::File::open(path)?;
    // It may have been replaced since the check.
    regular(&file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let what = format!("it is larger than {}", size(bytes_max));
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{} KiB", bytes >> 10)
    }
}

fn regular(meta: &std::fs::Metadata) -> io::Result<()> {
    if meta.is_file() {
        return Ok(());
    }
    let what = if meta.is_dir() { "a folder" } else { special(meta.file_type()) };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, not a regular file")))
}

#[cfg(unix)]
fn special(kind: std::fs::FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(not(unix))]
fn special(_: std::fs::FileType) -> &'static str {
    "something else"
}
