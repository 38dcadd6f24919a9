//! What lies outside of the file: variables and other files. Passed in, so that only the CLI reads the environment.

use std::io;
use std::path::Path;

/// Where variables and files come from.
pub trait Source {
    /// The variable of this name, where it is set. (An empty one counts as not set.)
    fn variable(&self, name: &str) -> Option<String>;

    /// The text of a file.
    fn read(&self, path: &Path) -> io::Result<String>;
}

/// Files from the disk, variables from a function.
pub struct Disk<F>(pub F);

impl<F: Fn(&str) -> Option<String>> Source for Disk<F> {
    fn variable(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|v| !v.trim().is_empty())
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        use io::Read;
        let limit = crate::yaml::FILE_BYTES_MAX as u64 + 1;
        let mut text = String::new();
        std::fs::File::open(path)?.take(limit).read_to_string(&mut text)?;
        Ok(text)
    }
}
