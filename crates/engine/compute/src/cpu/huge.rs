//! Memory in huge pages, for packed weights and large caches: zeroed, or a part of a mapped file.

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};

use super::map::{FileMap, HUGE_BYTES};

/// Zeroed bytes at an address that is a multiple of 64 (of a huge page, if they are large enough).
///
/// Its own mapping: huge pages avoid the TLB misses of streaming gigabytes, and dropping it returns the memory to the system
/// immediately. Pages become resident when they are first written.
pub struct HugeVec {
    map: Area,
    start: usize,
    len: usize,
}

enum Area {
    None,
    Own(MmapRaw),
    /// Can only be read.
    File(Arc<FileMap>),
}

impl HugeVec {
    /// No bytes.
    pub const fn none() -> Self {
        Self { map: Area::None, start: 0, len: 0 }
    }

    /// `len` zeroed bytes, or the system's error.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        if len == 0 {
            return Ok(Self::none());
        }
        if len < HUGE_BYTES {
            return Ok(Self { map: Area::Own(MmapMut::map_anon(len)?.into()), start: 0, len });
        }
        let mapped = len.checked_add(HUGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapMut::map_anon(mapped)?;
        let start = map.as_ptr().align_offset(HUGE_BYTES);
        // Only whole huge pages: a half-used last one would be resident in full. A system without them refuses the
        // advice, and then the memory is merely slower.
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(memmap2::Advice::HugePage, start, len / HUGE_BYTES * HUGE_BYTES);
        Ok(Self { map: Area::Own(map.into()), start, len })
    }

    /// Bytes of a mapped file, which begin at a multiple of 64.
    ///
    /// # Panics
    /// If the file has no such bytes.
    pub(super) fn of_file(map: &Arc<FileMap>, range: Range<usize>) -> Self {
        assert!(range.start.is_multiple_of(64) && range.start <= range.end && range.end <= map.len());
        Self { map: Area::File(map.clone()), start: range.start, len: range.len() }
    }
}

impl HugeVec {
    /// The address of `range`, which may be written, unless it is a file's, as long as nobody else uses these bytes: no reference to all of
    /// them is made.
    ///
    /// # Panics
    /// If it does not lie within.
    pub(super) fn part(&self, range: Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {}", self.len);
        match &self.map {
            Area::Own(map) => map.as_mut_ptr().wrapping_add(self.start + range.start),
            Area::File(map) => map.start().wrapping_add(self.start + range.start),
            Area::None => std::ptr::NonNull::dangling().as_ptr(),
        }
    }
}

impl Deref for HugeVec {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and never unmapped before `self` is dropped; who writes through `part` has no such reference beside it.
        unsafe { std::slice::from_raw_parts(self.part(0..self.len), self.len) }
    }
}

impl DerefMut for HugeVec {
    fn deref_mut(&mut self) -> &mut [u8] {
        assert!(!matches!(self.map, Area::File(_)), "a mapped file can only be read");
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.part(0..self.len), self.len) }
    }
}

impl AsRef<[u8]> for HugeVec {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zeroed_aligned_and_of_the_requested_length() {
        for len in [0, 1, 4096, HUGE_BYTES - 1, HUGE_BYTES, 3 * HUGE_BYTES + 17] {
            let mut v = HugeVec::zeroed(len).unwrap();
            assert_eq!(v.len(), len);
            assert!(v.iter().all(|&b| b == 0));
            if len > 0 {
                assert_eq!(v.as_ptr() as usize % 64, 0);
                v[len - 1] = 1;
            }
            if len >= HUGE_BYTES {
                assert_eq!(v.as_ptr() as usize % HUGE_BYTES, 0);
            }
        }
    }

    #[test]
    fn more_memory_than_available_is_an_error() {
        assert!(HugeVec::zeroed(usize::MAX).is_err());
        assert!(HugeVec::zeroed(usize::MAX / 2).is_err());
    }
}
