//! Remembers the hashes of model files in a small file in the cache's folder, so that a model is hashed at its first start only.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use octet_weights::Stamp;
use serde::{Deserialize, Serialize};

use super::disk::make_dir;
use super::key::Key;

/// The file. Its name changes with the way of hashing.
const FILE: &str = "model-hashes-1.json";
/// A larger file is ignored.
const BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    size: u64,
    modified_ns: i64,
    changed_ns: i64,
    inode: u64,
    /// In hexadecimal.
    hash: String,
}

impl Entry {
    fn is_of(&self, stamp: &Stamp) -> bool {
        let Stamp { path: _, size, modified_ns, changed_ns, inode } = stamp;
        (&self.size, &self.modified_ns, &self.changed_ns, &self.inode)
            == (size, modified_ns, changed_ns, inode)
    }
}

/// Hashes of files by path.
#[derive(Debug, Default)]
pub struct Known(BTreeMap<String, Entry>);

impl Known {
    /// Reads the file. If it is missing or damaged, models are hashed again.
    pub fn read(dir: &Path) -> Self {
        let path = dir.join(FILE);
        let is_ours = std::fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() <= BYTES_MAX);
        let text = if is_ours { std::fs::read(&path).unwrap_or_default() } else { Vec::new() };
        Self(serde_json::from_slice(&text).unwrap_or_default())
    }

    /// The stored hash of a file, if the file is unchanged.
    pub fn get(&self, stamp: &Stamp) -> Option<Key> {
        let entry = self.0.get(stamp.path.to_str()?).filter(|e| e.is_of(stamp))?;
        blake3::Hash::from_hex(&entry.hash).ok().map(Key::from)
    }

    /// Stores a file's hash. A file whose path is not Unicode is hashed every time.
    pub fn insert(&mut self, stamp: &Stamp, hash: Key) {
        let Some(path) = stamp.path.to_str() else { return };
        let Stamp { path: _, size, modified_ns, changed_ns, inode } = *stamp;
        let hash = blake3::Hash::from(hash).to_hex().to_string();
        self.0.insert(path.into(), Entry { size, modified_ns, changed_ns, inode, hash });
    }

    /// Writes the file, without entries of deleted files. If two processes write at once, one wins, and the other's models are hashed
    /// again.
    pub fn write(&mut self, dir: &Path) -> std::io::Result<()> {
        self.0.retain(|path, _| Path::new(path).exists());
        make_dir(dir)?;
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(&serde_json::to_vec_pretty(&self.0)?)?;
        file.persist(dir.join(FILE)).map_err(|e| e.error)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_valid_for_an_unchanged_file() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model.gguf");
        std::fs::write(&model, "weights").unwrap();
        let stamp = Stamp::of(&model).unwrap();
        let gone = Stamp { path: dir.path().join("gone.gguf"), ..stamp.clone() };
        let cache = dir.path().join("cache");
        let mut known = Known::read(&cache);
        known.insert(&stamp, [7; 32]);
        known.insert(&gone, [8; 32]);
        known.write(&cache).unwrap();
        let known = Known::read(&cache);
        assert_eq!(known.get(&stamp), Some([7; 32]));
        assert_eq!(known.get(&gone), None, "it is no more");
        for other in [
            Stamp { size: 8, ..stamp.clone() },
            Stamp { modified_ns: stamp.modified_ns + 1, ..stamp.clone() },
            Stamp { changed_ns: stamp.changed_ns + 1, ..stamp.clone() },
            Stamp { inode: stamp.inode + 1, ..stamp.clone() },
        ] {
            assert_eq!(known.get(&other), None, "{other:?}");
        }
        for damage in ["", "{", "[]", r#"{"x": 1}"#] {
            std::fs::write(cache.join(FILE), damage).unwrap();
            assert_eq!(Known::read(&cache).get(&stamp), None);
        }
    }
}
