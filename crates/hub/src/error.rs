//! The one error of this crate: what could not be fetched, why, and what to do about it.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a model could not be found, fetched, kept or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is none that this crate understands.
    #[error("'{given}': {why}")]
    Reference {
        /// As typed.
        given: String,
        /// What is wrong, and what would be understood.
        why: String,
    },
    /// A local path that does not exist.
    #[error("{}: no such file or directory", .0.display())]
    NoSuchPath(PathBuf),
    /// The network may not be used.
    #[error("{0} is not on this machine, and HF_HUB_OFFLINE is set; unset it to download")]
    Offline(String),
    /// A server did not give what was asked for.
    #[error("{url}: {what}")]
    Fetch {
        /// The address, without credentials and query.
        url: String,
        /// What happened, and where known what to do.
        what: String,
        /// Whether another try may help.
        class: Class,
    },
    /// The repository has no such file, or more than one.
    #[error("{repo}: {what}")]
    Choice {
        /// The repository or Python project.
        repo: String,
        /// What was looked for and what there is.
        what: String,
    },
    /// The bytes are not those that were promised. Nothing of them is kept.
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
    /// What came is not a model file.
    #[error("{file}: {what}")]
    NotAModel {
        /// The file.
        file: String,
        /// What it looks like instead.
        what: String,
    },
    /// Not enough free space to begin.
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
    /// The disk ran full while writing; what was written stays, and the next pull goes on from there.
    #[error("{}: the disk is full; {} more are needed. What came so far is kept: free some space and pull again",
        path.display(), size(*need))]
    DiskFull {
        /// The file being written.
        path: PathBuf,
        /// Bytes still to be written.
        need: u64,
    },
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// No source of a short name answered.
    #[error("{name} could not be fetched from any of its {} sources:{}", tried.len(), list(tried))]
    Sources {
        /// The short name.
        name: String,
        /// Every source in the order tried, and why it failed.
        tried: Vec<(String, Error)>,
    },
    /// A setting (environment variable, pip.conf) is not usable.
    #[error("{setting}: {what}")]
    Setting {
        /// Where it stands.
        setting: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file in use cannot be removed.
    #[error("{0} is being downloaded by another process; stop it first")]
    Busy(String),
    /// The reference names nothing that may be removed.
    #[error("{name} cannot be removed: {why}")]
    NotRemovable {
        /// As typed.
        name: String,
        /// Why, and what can be.
        why: String,
    },
}

/// Whether another try may help, of [`Error::Fetch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// The server answered with this status, and will again.
    Status(u16),
    /// Overloaded, restarting, or the connection broke: another try may help, after this long if the server said so.
    Transient(Option<Duration>),
    /// No connection: unknown host, refused, timed out, proxy.
    Unreachable,
    /// The server does not send parts of files.
    NoRanges,
    /// Anything else that will not change by trying again.
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

    /// True where the machine, not the source, is at fault: trying another source would not help.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Space { .. } | Self::DiskFull { .. } | Self::Io { .. } | Self::Busy(_))
    }
}

/// A URL that may be printed: no user, password, query or fragment (signed URLs carry secrets in the query).
pub(crate) fn redacted(url: &url::Url) -> String {
    let mut url = url.clone();
    // Both fail only for URLs that can hold no credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

/// Bytes for people: `93.81 MiB`.
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
