//! The driver's compiled kernels in a file, so that the next start compiles nothing. Called by `compile`.

use std::io::Write;
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

    /// What was saved last; empty if there is nothing, or nothing that fits.
    pub(crate) fn load(&self) -> Vec<u8> {
        let is_small = std::fs::metadata(&self.path).is_ok_and(|m| m.len() <= FILE_BYTES_MAX);
        let Some(mut file) = is_small.then(|| std::fs::read(&self.path).ok()).flatten() else {
            return Vec::new();
        };
        if file.len() < HASH_BYTES || self.hash(&file[HASH_BYTES..]).as_bytes()[..] != file[..HASH_BYTES] {
            return Vec::new();
        }
        file.split_off(HASH_BYTES)
    }

    /// Replaces the file as a whole.
    pub(crate) fn save(&self, data: &[u8]) -> std::io::Result<()> {
        if data.is_empty() || self.load() == data {
            return Ok(());
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        // Another process may write the same file.
        let temporary = self.path.with_extension(format!("{}.tmp", std::process::id()));
        let written = std::fs::File::create(&temporary).and_then(|mut file| {
            file.write_all(self.hash(data).as_bytes())?;
            file.write_all(data)
        });
        let saved = written.and_then(|()| std::fs::rename(&temporary, &self.path));
        if saved.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        saved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_saved_for_this_device_comes_back() {
        let folder = std::env::temp_dir().join(format!("octet-kernel-cache-{}", std::process::id()));
        let open = |device: &str, id| KernelCache::new(&folder.join("new"), device, [id; 16]);
        let (cache, data) = (open("card, driver 1", 7), vec![1, 2, 3]);
        assert_eq!(cache.load(), [0; 0]);
        cache.save(&data).expect("it is written");
        assert_eq!(cache.load(), data);
        // Another driver's, another device's.
        assert_eq!(open("card, driver 2", 7).load(), [0; 0]);
        assert_eq!(open("card, driver 1", 8).load(), [0; 0]);
        // A flipped bit, a missing end.
        let whole = std::fs::read(cache.path()).expect("it is there");
        for at in [0, HASH_BYTES, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(cache.path(), &damaged).expect("it is written");
            assert_eq!(cache.load(), [0; 0], "byte {at}");
        }
        for len in [0, HASH_BYTES - 1, whole.len() - 1] {
            std::fs::write(cache.path(), &whole[..len]).expect("it is written");
            assert_eq!(cache.load(), [0; 0], "{len} bytes");
        }
        cache.save(&[4]).expect("it is replaced");
        assert_eq!(cache.load(), [4]);
        assert_eq!(
            std::fs::read_dir(folder.join("new")).expect("a folder").count(),
            1,
            "nothing is left over"
        );
        std::fs::remove_dir_all(&folder).expect("it is empty");
        // A file where the folder should be.
        std::fs::write(&folder, "").expect("it is written");
        assert!(open("card, driver 1", 7).save(&data).is_err());
        std::fs::remove_file(&folder).expect("it was there");
    }
}
