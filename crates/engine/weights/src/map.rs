//! A model file in memory: mapped read-only, or bytes.

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use memmap2::Mmap;

use crate::Error;
use crate::lost_pages::Watched;
use crate::ranges::RangeFile;
use crate::stamp::Stamp;

/// Pages are dropped in units of this: a multiple of every page size in use (4, 16 and 64 KiB).
const PAGE_MAX: usize = 64 << 10;

/// A file's bytes and its name for messages. If a mapped file is truncated while it is read (`cp` over it, a download to the same path), its
/// missing pages read as zeros, and [`Mapped::check`] says so. (Other systems than Linux end the process.) Replacing the file by a rename
/// is safe, and is how this project's own tools write.
pub struct Mapped {
    /// Its path as given; for bytes in memory, their name in messages.
    pub name: String,
    /// All of it.
    pub bytes: Bytes,
    /// The identity and state of the file when it was opened; `None` for bytes in memory.
    pub stamp: Option<Stamp>,
    map: Option<Arc<Map>>,
    /// The same file, once ranges were read from it.
    ranges: OnceLock<Arc<RangeFile>>,
    /// The file, if pages that were read should also leave the system's cache.
    drops: Option<File>,
}

/// Keeps the mapping alive for as long as any slice of it.
struct Pages(Arc<Map>);

/// A mapping; first what watches it is dropped. It is not watched if the system cannot, or thousands are.
struct Map {
    watched: Option<Watched>,
    pages: Mmap,
}

impl Deref for Map {
    type Target = Mmap;
    fn deref(&self) -> &Mmap {
        &self.pages
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        &self.0.pages
    }
}

impl Mapped {
    /// Maps `path` read-only.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let io = |e| Error::io(&name, e);
        // Checked before opening: opening a named pipe would wait for a writer.
        let meta = std::fs::metadata(path).map_err(io)?;
        if !meta.is_file() {
            return Err(Error::format(&name, "is not a regular file; a model file cannot be read from it"));
        }
        let file = File::open(path).map_err(io)?;
        // Of the open file: the path may name another one by now.
        let opened = file.metadata().map_err(io)?;
        let stamp = Stamp::new(std::fs::canonicalize(path).map_err(io)?, &opened).map_err(io)?;
        // SAFETY: the mapping is read-only and never handed out as anything but bytes, for which every bit pattern is
        // valid. What a map cannot exclude is that somebody rewrites or truncates the file meanwhile; then values
        // change or pages are missing. Every structure is copied out and checked once, and no length or offset
        // is ever read from the map a second time, so such a change cannot lead to an access out of bounds.
        let pages = unsafe { Mmap::map(&file) }.map_err(io)?;
        let start = pages.as_ptr() as usize;
        let watched = if pages.is_empty() { None } else { Watched::new(start..start + pages.len()).ok() };
        let map = Arc::new(Map { watched, pages });
        // Loading reads each tensor once from front to back: large read-ahead, and early reclaim of what was read.
        // A hint only, so a refusal does not matter.
        #[cfg(unix)]
        let _ = map.advise(memmap2::Advice::Sequential);
        let bytes = Bytes::from_owner(Pages(map.clone()));
        Ok(Self {
            name,
            bytes,
            stamp: Some(stamp),
            map: Some(map),
            ranges: OnceLock::new(),
            drops: Some(file),
        })
    }

    /// Bytes in memory as a file called `name`.
    pub(crate) fn in_memory(name: &str, bytes: Bytes) -> Self {
        Self { name: name.into(), bytes, stamp: None, map: None, ranges: OnceLock::new(), drops: None }
    }

    /// The file, to read ranges from; `None` for bytes in memory.
    pub(crate) fn ranges(&self) -> Result<Option<Arc<RangeFile>>, Error> {
        let Some(stamp) = &self.stamp else { return Ok(None) };
        if let Some(open) = self.ranges.get() {
            return Ok(Some(open.clone()));
        }
        let open = Arc::new(RangeFile::open(&self.name, stamp)?);
        Ok(Some(self.ranges.get_or_init(|| open).clone()))
    }

    /// Whether all that was read of the file so far was there.
    ///
    /// # Errors
    /// If the file was truncated, or the drive could not read it.
    pub fn check(&self) -> Result<(), Error> {
        let watched = self.map.as_ref().and_then(|map| map.watched.as_ref());
        if watched.is_some_and(Watched::is_lost) {
            let what = "could not be read as it was when it was opened: it was truncated, or the drive failed; load it again";
            return Err(Error::format(&self.name, what));
        }
        Ok(())
    }

    /// Keeps pages that are read in the system's cache, for the next start. Otherwise released pages leave it, too: if memory has no
    /// room for a file and its packed weights, the kernel would evict first what is read last.
    pub(crate) fn keep_cached(&mut self) {
        self.drops = None;
    }

    /// Starts reading `range` ahead of page faults.
    pub fn will_read(&self, range: &Range<usize>) {
        #[cfg(unix)]
        if let Some(map) = self.map.as_ref().filter(|_| range.len() >= PAGE_MAX) {
            let _ = map.advise_range(memmap2::Advice::WillNeed, range.start, range.len()); // a hint only
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Removes the whole pages of `range` from this process's resident memory: it will not be read soon.
    pub fn release(&self, range: &Range<usize>) {
        // Rounded inwards: the pages at both ends may contain a part of a neighbour that is still in use.
        let pages = range.start.next_multiple_of(PAGE_MAX)..range.end / PAGE_MAX * PAGE_MAX;
        #[cfg(unix)]
        if let Some(map) = self.map.as_ref().filter(|_| !pages.is_empty()) {
            // SAFETY: DONTNEED throws away what was written to private or anonymous pages. These are read-only pages
            // of a shared file mapping, so the next access reads the same bytes from the file again.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, pages.start, pages.len())
            };
            #[cfg(target_os = "linux")]
            if let Some(file) = &self.drops {
                let length = std::num::NonZeroU64::new(pages.len() as u64);
                let _ = rustix::fs::fadvise(file, pages.start as u64, length, rustix::fs::Advice::DontNeed); // a hint only
            }
        }
        #[cfg(not(unix))]
        let _ = pages;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pages_read_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let want: Vec<u8> = (0..5 * PAGE_MAX).map(|i| (i * 31 % 251) as u8).collect();
        std::fs::write(&path, &want).unwrap();
        let m = Mapped::open(&path).unwrap();
        let all = 0..want.len();
        for range in [100..200, 1..PAGE_MAX, 1000..4 * PAGE_MAX + 5, all] {
            m.will_read(&range);
            let slice = m.bytes.slice(range.clone());
            m.release(&range);
            assert_eq!(slice, want[range]);
            assert_eq!(m.bytes, want);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_that_is_truncated_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, vec![7; 5 * PAGE_MAX]).unwrap();
        let m = Mapped::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(PAGE_MAX as u64).unwrap();
        assert!(m.bytes[..PAGE_MAX].iter().all(|b| *b == 7) && m.check().is_ok());
        let rest = m.bytes.slice(PAGE_MAX..);
        assert!(rest.iter().all(|b| *b == 0));
        let said = m.check().unwrap_err().to_string();
        assert!(said.contains("truncated") && said.contains("x"), "{said}");
    }

    #[test]
    fn a_path_that_is_not_a_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let said = Mapped::open(dir.path()).err().unwrap().to_string();
        assert!(said.contains("is not a regular file"), "{said}");
        let said = Mapped::open(&dir.path().join("none.gguf")).err().unwrap().to_string();
        assert!(said.contains("none.gguf"), "{said}");
        std::fs::write(dir.path().join("empty"), b"").unwrap();
        assert!(Mapped::open(&dir.path().join("empty")).unwrap().bytes.is_empty());
    }
}
