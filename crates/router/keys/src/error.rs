//! What can go wrong with the file of keys, and how SQLite's errors are told apart. Used by everything here.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Why the file of keys cannot be used, or a change was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is something else.
    #[error("{path} is not a database of keys: {why}; name another file, or move this one away")]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// What it is.
        why: String,
    },
    /// The file was written by a later version.
    #[error(
        "{path} was written by a newer Octet: its schema is {found}, this one knows {known}; use the newer one, or \
         another file"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The schema's version in it.
        found: i64,
        /// The one that we know.
        known: i64,
    },
    /// The file or its folder may not be written.
    #[error("{path} cannot be written: it is read-only; its folder has to be writable too")]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// No room is left.
    #[error(
        "{path} cannot be written: the disk is full, or the file has reached its largest size ({bytes_max} bytes)"
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// The largest size that the options give it.
        bytes_max: u64,
    },
    /// Another process writes and does not end.
    #[error("{path} is locked by another process; it has the file open for writing")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// What the file holds makes no sense.
    #[error("{path} is damaged: {what}; restore it from a copy, or move it away to begin anew")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The file was deleted, or another one is in its place.
    #[error(
        "{path} was deleted or replaced while it was in use: put it back, or start the server anew with the new one"
    )]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be opened.
    #[error("{path} cannot be opened: {why}")]
    Unopened {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// Anything else that SQLite says.
    #[error("{path}: {source}")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What it says.
        source: rusqlite::Error,
    },
    /// No key is called so.
    #[error("there is no key '{0}'; `octet keys list` shows them")]
    NoSuchKey(String),
    /// No user or team is called so.
    #[error("there is no {kind} '{id}'")]
    NoSuchOwner {
        /// `user` or `team`.
        kind: &'static str,
        /// Its id.
        id: String,
    },
    /// A user or a team is called so.
    #[error("the {kind} '{id}' exists")]
    Exists {
        /// `user` or `team`.
        kind: &'static str,
        /// Its id.
        id: String,
    },
    /// A key in force is called so.
    #[error("a key with the name '{0}' exists; choose another name, or revoke that key first")]
    NameTaken(String),
    /// Several keys are called so.
    #[error("several keys are called '{name}': {ids}; name one by its id")]
    Ambiguous {
        /// The name.
        name: String,
        /// Their ids.
        ids: String,
    },
    /// A setting that cannot be meant.
    #[error("{0}")]
    Invalid(String),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers, so no key can be made: {0}")]
    NoRandomness(String),
    /// No thread could be started.
    #[error("the thread that writes {path} cannot be started: {source}")]
    Thread {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// Names the file, and tells the errors apart that a user can do something about.
pub(crate) fn from_sqlite(path: &Path, bytes_max: u64, e: rusqlite::Error) -> Error {
    let path = path.to_path_buf();
    match e.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Error::NotOurs { path, why: "it is no SQLite database".into() },
        Some(ErrorCode::ReadOnly) => Error::ReadOnly { path },
        Some(ErrorCode::DiskFull) => Error::Full { path, bytes_max },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::Locked { path },
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            Error::Unopened { path, why: e.to_string() }
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::TooBig) => Error::Damaged { path, what: e.to_string() },
        _ => Error::Sqlite { path, source: e },
    }
}
