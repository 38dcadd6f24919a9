//! The identity of a file, to know whether it is still the same one.

use std::path::{Path, PathBuf};

/// The identity and modification time of a file: if they are unchanged, so are its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Absolute, without links.
    pub path: PathBuf,
    /// Size in bytes.
    pub size: u64,
    /// When its bytes were changed, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// When its bytes or anything else of it was changed, by the system's own clock, which no program can set back: 0
    /// where the system does not say.
    pub changed_ns: i64,
    /// The inode number, which distinguishes files that had the same path: 0 if the system has none.
    pub inode: u64,
}

impl Stamp {
    /// The identity of the file that is at `path` now.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let path = std::fs::canonicalize(path)?;
        let meta = std::fs::metadata(&path)?;
        Self::new(path, &meta)
    }

    /// The identity of the file at `path`, which is absolute and without links, from what an open file says of itself.
    ///
    /// # Errors
    /// If the system does not say when the file was changed.
    pub fn new(path: PathBuf, meta: &std::fs::Metadata) -> std::io::Result<Self> {
        let since = meta.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let modified_ns = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX); // in the year 2262
        #[cfg(unix)]
        let (changed_ns, inode) = {
            use std::os::unix::fs::MetadataExt;
            (meta.ctime().saturating_mul(1_000_000_000).saturating_add(meta.ctime_nsec()), meta.ino())
        };
        #[cfg(not(unix))]
        let (changed_ns, inode) = (0, 0);
        Ok(Self { path, size: meta.len(), modified_ns, changed_ns, inode })
    }
}
