//! The driver's compiled kernels in a file, so that the next start compiles nothing.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::kernel;

/// Bytes of the hash at the start of the file.
const HASH_BYTES: usize = 32;
/// A larger file is not one of ours.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// A file for one device and driver. Its content starts with a hash of the device, the driver, our kernels and the rest, so a driver never
/// reads a file that is damaged or that another version wrote.
#[derive(Debug)]
pub(crate) struct KernelCache {
    path: PathBuf,
    key: blake3::Hash,
}

impl KernelCache {
    /// `device` names device and driver, `id` is unique to their compiled kernels.
    pub(crate) fn new(folder: &Path, device: &str, id: [u8; 16]) -> Self {
        let mut key = blake3::Hasher::new();
        key.update(device.as_bytes()).update(&id);
        kernel::all_spirv().for_each(|code| {
            key.update(code);
        });
        let name: String = id.iter().map(|b| format!("{b:02x}")).collect();
        Self { path: folder.join(format!("vulkan-{name}.bin")), key: key.finalize() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn hash(&self, data: &[u8]) -> blake3::Hash {
        blake3::Hasher::new().update(self.key.as_bytes()).update(data).finalize()
    }

    /// The data that was saved last; empty without a file, and if the file is damaged or another version's.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn load(&self) -> io::Result<Vec<u8>> {
        let metadata = match std::fs::metadata(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            metadata => metadata?,
        };
        // Reading a pipe would wait for its writer.
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        if metadata.len() > FILE_BYTES_MAX {
            return Ok(Vec::new());
        }
        let mut file = std::fs::read(&self.path)?;
        if file.len() < HASH_BYTES || self.hash(&file[HASH_BYTES..]).as_bytes()[..] != file[..HASH_BYTES] {
            return Ok(Vec::new());
        }
        Ok(file.split_off(HASH_BYTES))
    }

    /// The same; empty also if the file cannot be read, which is reported to `notice`.
    pub(crate) fn load_or_report(&self, notice: Option<fn(&str)>) -> Vec<u8> {
        self.load().unwrap_or_else(|e| {
            if let Some(notice) = notice {
                notice(&format!("saved kernels cannot be read: {}: {e}", self.path.display()));
            }
            Vec::new()
        })
    }

    /// Replaces the file as a whole.
    pub(crate) fn save(&self, data: &[u8]) -> io::Result<()> {
        // A file that cannot be read is replaced, too.
        if data.is_empty() || self.load().is_ok_and(|saved| saved == data) {
            return Ok(());
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        // Another model or process may write the same file now.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(self.hash(data).as_bytes())?;
        file.write_all(data)?;
        file.persist(&self.path).map_err(|e| e.error)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_saved_for_this_device_comes_back() {
        let temporary = tempfile::tempdir().expect("a folder");
        let folder = temporary.path().join("cache");
        let open = |device: &str, id| KernelCache::new(&folder.join("new"), device, [id; 16]);
        let load = |cache: &KernelCache| cache.load().expect("it is readable");
        let (cache, data) = (open("card, driver 1", 7), vec![1, 2, 3]);
        assert_eq!(load(&cache), [0; 0]);
        cache.save(&data).expect("it is written");
        assert_eq!(load(&cache), data);
        // Another driver's, another device's.
        assert_eq!(load(&open("card, driver 2", 7)), [0; 0]);
        assert_eq!(load(&open("card, driver 1", 8)), [0; 0]);
        // A flipped bit, a missing end.
        let whole = std::fs::read(cache.path()).expect("it is there");
        for at in [0, HASH_BYTES, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(cache.path(), &damaged).expect("it is written");
            assert_eq!(load(&cache), [0; 0], "byte {at}");
        }
        for len in [0, HASH_BYTES - 1, whole.len() - 1] {
            std::fs::write(cache.path(), &whole[..len]).expect("it is written");
            assert_eq!(load(&cache), [0; 0], "{len} bytes");
        }
        cache.save(&[4]).expect("it is replaced");
        assert_eq!(load(&cache), [4]);
        // A larger file is not read. It is sparse here.
        let large = std::fs::File::create(cache.path()).expect("a file");
        large.set_len(FILE_BYTES_MAX + 1).expect("a size");
        assert_eq!(load(&cache), [0; 0]);
        cache.save(&[5]).expect("it is replaced");
        assert_eq!(load(&cache), [5]);
        assert_eq!(
            std::fs::read_dir(folder.join("new")).expect("a folder").count(),
            1,
            "nothing is left over"
        );
        std::fs::remove_dir_all(&folder).expect("it is empty");
        // A file where the folder should be.
        std::fs::write(&folder, "").expect("it is written");
        assert!(open("card, driver 1", 7).save(&data).is_err());
    }

    /// Models that are loaded at the same time save their kernels to the same file.
    #[test]
    fn many_threads_can_save_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = KernelCache::new(folder.path(), "card", [7; 16]);
        std::thread::scope(|scope| {
            for i in 0..8u8 {
                let cache = &cache;
                scope.spawn(move || (0..50).for_each(|j| cache.save(&[i, j]).expect("it is written")));
            }
        });
        assert_eq!(cache.load().expect("it is readable").len(), 2);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left over");
    }

    /// What is not a file is an error, and a pipe without a writer is not waited for.
    #[cfg(unix)]
    #[test]
    fn what_is_not_a_file_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = KernelCache::new(folder.path(), "card", [7; 16]);
        std::fs::create_dir_all(cache.path()).expect("a folder at its place");
        assert_eq!(cache.load().expect_err("a folder").to_string(), "not a regular file");
        assert!(cache.save(&[1]).is_err());
        std::fs::remove_dir(cache.path()).expect("it is empty");
        let made = std::process::Command::new("mkfifo").arg(cache.path()).status().expect("mkfifo");
        assert!(made.success());
        assert_eq!(cache.load().expect_err("a pipe").to_string(), "not a regular file");
        cache.save(&[1]).expect("it is replaced");
        assert_eq!(cache.load().expect("a file"), [1]);
    }
}
