//! Files mapped read-only, in huge pages where the system has them: packed weights that were written to a file.
//!
//! Pages that the file no longer has, or that the drive cannot read, become zeros, and the mapping counts as lost: the steps that use it
//! fail.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use octet_weights::lost_pages::Watched;

/// Size and alignment of a huge page on x86-64 and on most of aarch64.
pub(super) const HUGE_BYTES: usize = 2 << 20;

/// A mapped file, from an address that is a multiple of a huge page.
pub(super) struct FileMap {
    /// None once it is about to be removed.
    watched: Option<Watched>,
    start: usize,
    len: usize,
    /// What was reserved to find such an address.
    reserved: Range<usize>,
}

impl FileMap {
    /// Maps the first `len` bytes of a file, which it has.
    pub fn new(file: &File, len: usize) -> io::Result<Self> {
        let bytes = len
            .checked_next_multiple_of(HUGE_BYTES)
            .and_then(|n| n.checked_add(HUGE_BYTES))
            .filter(|_| len > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let first = map(null_mut(), bytes, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        let start = first.next_multiple_of(HUGE_BYTES);
        let mut made = Self { watched: None, start, len, reserved: first..first + bytes };
        map(start as *mut _, len, libc::PROT_READ, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd())?;
        made.watched = Some(Watched::new(start..start + len)?);
        // Hints: without them the pages are small.
        made.advise(0..len, libc::MADV_HUGEPAGE);
        Ok(made)
    }

    /// Its address.
    pub fn start(&self) -> *mut u8 {
        self.start as *mut u8
    }
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Some of its bytes.
    ///
    /// # Panics
    /// If they do not lie within.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {}", self.len);
        // SAFETY: mapped as long as `self`, and any bytes are valid. If the file is written to meanwhile they change: they are compared
        // with a checksum, and then only multiplied.
        unsafe { std::slice::from_raw_parts(self.start().wrapping_add(range.start), range.len()) }
    }

    /// Whether a page was missing, or bytes were wrong.
    pub fn is_lost(&self) -> bool {
        self.watched.as_ref().is_some_and(Watched::is_lost)
    }
    /// Bytes of it are wrong.
    pub fn lose(&self) {
        self.watched.iter().for_each(Watched::lose);
    }

    /// Whether nearly all of its pages are in memory. `range` begins with a huge page.
    pub fn is_cached(&self, range: Range<usize>) -> bool {
        debug_assert!(range.end <= self.len);
        // SAFETY: only asks the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
        let mut pages = vec![0_u8; range.len().div_ceil(page)];
        // SAFETY: mapped, and a byte for each page.
        let said =
            unsafe { libc::mincore((self.start + range.start) as *mut _, range.len(), pages.as_mut_ptr()) };
        let cached = pages.iter().filter(|p| **p & 1 == 1).count();
        said == 0 && cached >= pages.len() - pages.len() / 16
    }

    /// Reads pages before they are needed; a hint. `range` begins with a huge page.
    pub fn read_ahead(&self, range: Range<usize>) {
        self.advise(range, libc::MADV_POPULATE_READ);
    }

    fn advise(&self, range: Range<usize>, advice: i32) {
        debug_assert!(range.end <= self.len);
        // SAFETY: such advice changes no byte of a mapping.
        unsafe { libc::madvise((self.start + range.start) as *mut _, range.len(), advice) };
    }

    /// The share of it that is mapped in huge pages; `None` if the system does not say.
    pub fn huge_share(&self) -> Option<f64> {
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let own = format!("{:x}-", self.start);
        let mut lines = maps.lines().skip_while(|l| !l.starts_with(&own));
        let huge = lines.find_map(|l| l.strip_prefix("FilePmdMapped:"))?.trim().strip_suffix("kB")?;
        Some(huge.trim().parse::<f64>().ok()? * 1024.0 / self.len as f64)
    }

    /// Replaces a part of the mapping by a copy of it in huge pages, which needs the file no longer. Others may read it meanwhile. `range`
    /// begins and ends with a huge page; before each of them, `wait` may wait, or end the copy by `false`.
    pub fn copy(&self, range: Range<usize>, wait: &mut dyn FnMut() -> bool) -> io::Result<()> {
        let (to, len) = (self.start + range.start, range.len());
        debug_assert!(to.is_multiple_of(HUGE_BYTES) && len.is_multiple_of(HUGE_BYTES));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let first = map(null_mut(), len + HUGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1)?;
        let copy = first.next_multiple_of(HUGE_BYTES);
        // SAFETY: new memory.
        unsafe { libc::madvise(copy as *mut _, len, libc::MADV_HUGEPAGE) };
        let whole = (0..len).step_by(HUGE_BYTES).all(|at| {
            let from = self.bytes(range.start + at..range.start + at + HUGE_BYTES);
            let goes_on = wait();
            if goes_on {
                // SAFETY: new memory of `len` bytes, of which nobody else knows.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), (copy + at) as *mut u8, HUGE_BYTES) };
            }
            goes_on
        });
        // SAFETY: memory of this length at `copy`; the file's pages are mapped. `mremap` replaces them in one step: whoever reads them
        // waits for its end and finds the same bytes.
        let moved = unsafe {
            whole
                && libc::mprotect(copy as *mut _, len, libc::PROT_READ) == 0
                && libc::mremap(
                    copy as *mut _,
                    len,
                    len,
                    libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                    to as *mut u8,
                ) != libc::MAP_FAILED
        };
        let result = if moved { Ok(()) } else { Err(io::Error::last_os_error()) };
        unmap(first..copy);
        unmap(if moved { copy + len } else { copy }..first + len + HUGE_BYTES);
        result
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        self.watched = None;
        unmap(self.reserved.clone());
    }
}

fn map(at: *mut libc::c_void, len: usize, protection: i32, flags: i32, file: i32) -> io::Result<usize> {
    // SAFETY: `at` is null, or lies in memory that the caller has reserved.
    let got = unsafe { libc::mmap(at, len, protection, flags, file, 0) };
    if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
}

fn unmap(range: Range<usize>) {
    if !range.is_empty() {
        // SAFETY: the caller's own, which nobody uses any more.
        unsafe { libc::munmap(range.start as *mut _, range.len()) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn file(len: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().write_all_at(&bytes, 0).expect("written");
        (file, bytes)
    }

    #[test]
    fn a_copy_has_the_same_bytes_and_needs_no_file() {
        let (file, bytes) = file(3 * HUGE_BYTES + 4097);
        let map = FileMap::new(file.as_file(), bytes.len()).expect("mapped");
        assert!(map.start.is_multiple_of(HUGE_BYTES) && map.bytes(0..bytes.len()) == bytes);
        map.read_ahead(0..HUGE_BYTES);
        assert!(map.is_cached(0..HUGE_BYTES) && map.is_cached(0..bytes.len()), "it was just written");
        assert!(map.copy(0..HUGE_BYTES, &mut || false).is_err(), "it was told to end");
        assert!(map.huge_share().is_none_or(|share| (0.0..=1.0).contains(&share)));
        let all = std::thread::scope(|scope| {
            let reader = scope.spawn(|| (0..20).all(|_| map.bytes(0..bytes.len()) == bytes));
            for i in 0..3 {
                map.copy(i * HUGE_BYTES..(i + 1) * HUGE_BYTES, &mut || true).expect("copied");
            }
            reader.join().expect("no panic")
        });
        assert!(all && map.bytes(0..bytes.len()) == bytes);
        file.as_file().set_len(0).expect("truncated");
        assert_eq!(map.bytes(0..3 * HUGE_BYTES), &bytes[..3 * HUGE_BYTES]);
        assert!(!map.is_lost());
        assert!(map.bytes(3 * HUGE_BYTES..bytes.len()).iter().all(|b| *b == 0) && map.is_lost());
    }

    #[test]
    fn a_file_that_is_truncated_is_lost_and_nothing_else() {
        let (file, bytes) = file(1 << 20);
        let (other, _) = self::file(1 << 20);
        let map = FileMap::new(file.as_file(), bytes.len()).expect("mapped");
        let second = FileMap::new(other.as_file(), 1 << 20).expect("mapped");
        file.as_file().set_len(256 << 10).expect("truncated");
        assert_eq!(map.bytes(0..256 << 10), &bytes[..256 << 10]);
        assert!(!map.is_lost());
        assert!(map.bytes(256 << 10..1 << 20).iter().all(|b| *b == 0));
        assert!(map.is_lost() && !second.is_lost());
        assert_eq!(second.bytes(0..1 << 20), bytes);
        drop(map);
        assert!(FileMap::new(file.as_file(), 0).is_err());
    }
}
