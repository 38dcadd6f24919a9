//! The files of a database, and whether they are still those that were opened.

use std::path::{Path, PathBuf};

/// Suffixes of SQLite's files: the database, its log, and the log's index. Deleting one of the last two loses
/// the latest changes.
pub const FILES: [&str; 3] = ["", "-wal", "-shm"];

/// The path with a suffix.
pub fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Device and inode, which distinguish a file from a new one of the same name.
pub type Identity = (u64, u64);

/// `None` without a file, and on systems without inodes: there open files cannot be deleted.
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
