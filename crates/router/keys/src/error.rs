//! Errors of the key file, and the classification of SQLite's errors.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Why the key file cannot be used, or a change failed.
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
        /// The supported version.
        known: i64,
    },
    /// The file or its folder is not writable.
    #[error("{path} cannot be written: it is read-only; its folder has to be writable too")]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// The disk is full, or the file has its maximum size.
    #[error(
        "{path} cannot be written: the disk is full, or the file has reached its largest size ({bytes_max} bytes)"
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// The maximum size in the options.
        bytes_max: u64,
    },
    /// Another process holds the write lock too long.
    #[error("{path} is locked by another process; it has the file open for writing")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file has invalid content.
    #[error("{path} is damaged: {what}; restore it from a copy, or move it away to start with a new one")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error.
        what: String,
    },
    /// The file was deleted or replaced.
    #[error(
        "{path} was deleted or replaced while it was in use: put it back, or restart the server with the new one"
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
        /// The system's error.
        why: String,
    },
    /// PostgreSQL cannot be reached, or reports an error.
    #[error("{place}: {what}")]
    Database {
        /// Its address, without the password.
        place: String,
        /// The error.
        what: String,
    },
    /// Any other error of SQLite.
    #[error("{path}: {source}")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// The error.
        source: rusqlite::Error,
    },
    /// There is no key with this name or id.
    #[error("there is no key '{0}'; `octet keys list` shows them")]
    NoSuchKey(String),
    /// There is no such user or team.
    #[error("there is no {kind} '{id}'")]
    NoSuchOwner {
        /// `user` or `team`.
        kind: &'static str,
        /// Its id.
        id: String,
    },
    /// The user or team exists already.
    #[error("the {kind} '{id}' exists")]
    Exists {
        /// `user` or `team`.
        kind: &'static str,
        /// Its id.
        id: String,
    },
    /// A valid key has this name already.
    #[error("a key with the name '{0}' exists; choose another name, or revoke that key first")]
    NameTaken(String),
    /// Several keys have this name.
    #[error("several keys are called '{name}': {ids}; name one by its id")]
    Ambiguous {
        /// The name.
        name: String,
        /// Their ids.
        ids: String,
    },
    /// An invalid setting.
    #[error("{0}")]
    Invalid(String),
    /// The system returns no random numbers.
    #[error("the system gives no random numbers, so no key can be made: {0}")]
    NoRandomness(String),
    /// No thread could be started.
    #[error("the thread that writes {path} cannot be started: {source}")]
    Thread {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Adds the file's name, and separates the errors that a user can fix.
pub(crate) fn from_sqlite(path: &Path, bytes_max: u64, e: rusqlite::Error) -> Error {
    let path = path.to_path_buf();
    match e.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Error::NotOurs { path, why: "it is not an SQLite database".into() },
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
