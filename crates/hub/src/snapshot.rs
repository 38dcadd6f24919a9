//! The files of a snapshot in the cache, and the removal of older ones.

use std::path::{Path, PathBuf};

use crate::cache::{Entry, read_dir, remove_file};
use crate::error::Error;
use crate::reference::is_safe;

/// Paths of all files of a snapshot, relative to it. Links to bytes that are not there do not count.
pub(crate) fn files(snapshot: &Path) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for (name, path) in read_dir(&snapshot.join(&folder))? {
            let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            match std::fs::metadata(&path) {
                // A link to a folder could lead anywhere, including to itself.
                Ok(m) if m.is_dir() && !path.is_symlink() => folders.push(name),
                Ok(m) if m.is_file() && is_safe(&name) => found.push(name),
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The blobs that the links of a snapshot point to.
pub(crate) fn blobs_of(snapshot: &Path) -> Result<Vec<String>, Error> {
    // On file systems without links, the file itself is there.
    let target = |file: &String| std::fs::read_link(snapshot.join(file)).ok();
    let name = |t: PathBuf| Some(t.file_name()?.to_str()?.to_string());
    Ok(files(snapshot)?.iter().filter_map(target).filter_map(name).collect())
}

/// After downloading a new version from a URL: removes older ones and what their pulls left. The caller holds the entry's lock.
pub(crate) fn drop_old(entry: &Entry, keep: &str) -> Result<(), Error> {
    for commit in entry.commits()?.iter().filter(|c| *c != keep) {
        let snapshot = entry.snapshot(commit);
        std::fs::remove_dir_all(&snapshot).map_err(|e| Error::io(&snapshot, e))?;
    }
    let used = blobs_of(&entry.snapshot(keep))?;
    for (name, path) in read_dir(&entry.blobs())? {
        if !used.contains(&name) {
            remove_file(&path)?;
        }
    }
    Ok(())
}
