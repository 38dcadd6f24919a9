//! Parses values of settings like the programs that own them.

use std::path::{Path, PathBuf};

/// A flag, as the Python libraries parse it.
pub(crate) fn is_true(text: &str) -> bool {
    matches!(text.trim().to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true" | "y" | "t")
}

/// `~/x` below the home folder; anything else as it is.
pub(crate) fn expand(path: &str, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix('~'), home) {
        (Some(""), Some(home)) => home.to_path_buf(),
        (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(path),
    }
}
