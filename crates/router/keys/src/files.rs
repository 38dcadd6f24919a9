//! Which files a database is made of, and whether they are still those that were opened. Used by `store`.

use std::path::{Path, PathBuf};

/// What SQLite adds to the name: the file itself, its log, and the log's index. Whoever deletes one of the last two takes what was
/// written last away from all others.
pub const FILES: [&str; 3] = ["", "-wal", "-shm"];

/// The file with what SQLite adds to its name.
pub fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// What tells a file from another one of its name.
pub type Identity = (u64, u64);

/// `None` where there is no file, and where the system has no word for it: there open files cannot be deleted.
pub fn identity(path: &Path) -> Option<Identity> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}
