//! The error type of this crate: what failed, why, and what to do about it.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a model could not be found, downloaded, stored or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is invalid.
    #[error("'{given}': {why}")]
    Reference {
        /// As typed.
        given: String,
        /// What is wrong, and what would be valid.
        why: String,
    },
    /// A local path that does not exist.
    #[error("{}: no such file or directory", .0.display())]
    NoSuchPath(PathBuf),
    /// The network must not be used.
    #[error("{0} is not on this machine, and downloads are off (--offline or HF_HUB_OFFLINE)")]
    Offline(String),
    /// A server did not provide the requested data.
    #[error("{url}: {what}")]
    Fetch {
        /// The URL, without credentials and query.
        url: String,
        /// What happened, and if known what to do.
        what: String,
        /// Whether a retry may help.
        class: Class,
    },
    /// The repository has no such file, or several.
    #[error("{repo}: {what}")]
    Choice {
        /// The repository or Python project.
        repo: String,
        /// What was searched, and what exists.
        what: String,
    },
    /// The downloaded bytes are not the expected ones. They are discarded.
    #[error(
        "{file}: the download is damaged: SHA-256 is {got}, expected {expected}; nothing was kept, pull it again"
    )]
    Checksum {
        /// The file.
        file: String,
        /// Lower-case hexadecimal.
        expected: String,
        /// Lower-case hexadecimal.
        got: String,
    },
    /// The downloaded file is not a model file.
    #[error("{file}: {what}")]
    NotAModel {
        /// The file.
        file: String,
        /// What it seems to be instead.
        what: String,
    },
    /// Not enough free space.
    #[error("{}: needs {} of free space, has {}; free some, or point HF_HUB_CACHE at another disk",
        dir.display(), size(*need), size(*have))]
    Space {
        /// The cache folder.
        dir: PathBuf,
        /// Bytes still to be written.
        need: u64,
        /// Bytes free.
        have: u64,
    },
    /// The disk became full while writing; the next pull resumes.
    #[error("{}: the disk is full; {} more are needed. What came so far is kept: free some space and pull again",
        path.display(), size(*need))]
    DiskFull {
        /// The file being written.
        path: PathBuf,
        /// Bytes still to be written.
        need: u64,
    },
    /// A system error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// No source of a short name succeeded.
    #[error("{name} could not be fetched from any of its {} sources:{}", tried.len(), list(tried))]
    Sources {
        /// The short name.
        name: String,
        /// Every source in the order tried, and why it failed.
        tried: Vec<(String, Error)>,
    },
    /// A setting (environment variable, pip.conf) is invalid.
    #[error("{setting}: {what}")]
    Setting {
        /// The setting.
        setting: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file in use cannot be removed.
    #[error("{0} is being downloaded by another process; stop it first")]
    Busy(String),
    /// The reference does not name anything that can be removed.
    #[error("{name} cannot be removed: {why}")]
    NotRemovable {
        /// As typed.
        name: String,
        /// Why, and what can be removed.
        why: String,
    },
}

/// Whether a retry may help, for [`Error::Fetch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// The server answered with this status, and would again.
    Status(u16),
    /// Overloaded, restarting, or a broken connection: a retry may help, after this time if the server gave one.
    Transient(Option<Duration>),
    /// No connection: unknown host, refused, timeout, proxy.
    Unreachable,
    /// The server does not support range requests.
    NoRanges,
    /// Another permanent error.
    Permanent,
}

impl Error {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }

    pub(crate) fn fetch(url: &url::Url, what: impl Into<String>, class: Class) -> Self {
        Self::Fetch { url: redacted(url), what: what.into(), class }
    }

    pub(crate) fn choice(repo: &str, what: impl Into<String>) -> Self {
        Self::Choice { repo: repo.into(), what: what.into() }
    }

    pub(crate) fn class(&self) -> Option<Class> {
        match self {
            Self::Fetch { class, .. } => Some(*class),
            _ => None,
        }
    }

    /// True for local failures: another source would not help.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Space { .. } | Self::DiskFull { .. } | Self::Io { .. } | Self::Busy(_))
    }
}

/// A URL without user, password, query and fragment (signed URLs have secrets in the query), for messages.
pub(crate) fn redacted(url: &url::Url) -> String {
    let mut url = url.clone();
    // Both fail only for URLs that cannot have credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

/// A size for users: `93.81 MiB`.
pub fn size(bytes: u64) -> String {
    humansize::format_size(bytes, humansize::BINARY)
}

fn list(tried: &[(String, Error)]) -> String {
    tried.iter().map(|(source, why)| format!("\n  - {source}: {why}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_printed() {
        let url = url::Url::parse("https://me:secret@host/a/b.gguf?signature=secret#secret").unwrap();
        assert_eq!(redacted(&url), "https://host/a/b.gguf");
    }
}
