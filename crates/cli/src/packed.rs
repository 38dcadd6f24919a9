//! Packed weights that are kept for the next start: where they are, and of which models.

use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use octet_compute::cpu::packed_file::{KeptFile, PackedFiles};

use crate::stderr::note;

/// Their folder: `octet/packed` in the user's cache folder; none without a home folder.
fn dir() -> Option<PathBuf> {
    Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("octet").join("packed"))
}

/// Where they are kept.
pub fn files() -> Option<PackedFiles> {
    Some(PackedFiles::new(dir()?, |message| note!("note: {message}")))
}

/// All of them.
pub fn all() -> Vec<KeptFile> {
    dir().map(|dir| PackedFiles::list(&dir)).unwrap_or_default()
}

/// Whether `kept` is of the model at `path`: a file, or a folder of files.
pub fn is_of(kept: &KeptFile, path: &Path) -> bool {
    let is = |path: &Path| path.canonicalize().is_ok_and(|path| path == kept.model);
    let inside = std::fs::read_dir(path).into_iter().flatten().flatten();
    is(path) || inside.into_iter().any(|entry| is(&entry.path()))
}

/// Removes those that `which` names, and returns their bytes.
pub fn remove(which: impl Fn(&KeptFile) -> bool) -> std::io::Result<u64> {
    let mut freed = 0;
    for kept in all().into_iter().filter(which) {
        std::fs::remove_file(&kept.path)?;
        freed += kept.bytes;
    }
    Ok(freed)
}
