//! Ranges of a block of memory: which parts are free.

use std::ops::Range;

use range_alloc::RangeAllocator;

/// Ranges start at multiples of this. Most drivers ask for 16 to 256 bytes.
const GRAIN_BYTES: u64 = 256;

/// The free ranges of a block. Neighbours are merged, and a new range comes out of the smallest one that fits.
#[derive(Debug)]
pub(crate) struct Ranges(RangeAllocator<u64>);

impl Ranges {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(RangeAllocator::new(0..bytes))
    }

    /// Takes `bytes` bytes. Returns the range to give back, and the multiple of `alignment` in it where the bytes start.
    pub(crate) fn take(&mut self, bytes: u64, alignment: u64) -> Option<(Range<u64>, u64)> {
        // Every range starts at a multiple of the grain, so only a larger alignment needs extra bytes.
        let extra = alignment.max(GRAIN_BYTES) - GRAIN_BYTES;
        let len = bytes.max(1).checked_next_multiple_of(GRAIN_BYTES)?.checked_add(extra)?;
        let range = self.0.allocate_range(len).ok()?;
        let start = range.start.next_multiple_of(alignment.max(1));
        Some((range, start))
    }

    /// Gives a range back that [`Ranges::take`] returned.
    pub(crate) fn give_back(&mut self, range: Range<u64>) {
        self.0.free_range(range);
    }

    /// Whether nothing is taken.
    pub(crate) fn is_unused(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: u64 = 1 << 20;

    proptest! {
        /// Ranges never overlap, start where they must, lie in the block; and a block whose ranges were all given back is whole again.
        #[test]
        fn ranges_are_disjoint_aligned_and_come_back(
            steps in prop::collection::vec((1u64..200_000, 0u32..17, any::<prop::sample::Index>(), 0u32..3), 1..200),
        ) {
            let mut ranges = Ranges::new(BLOCK);
            let mut taken: Vec<(Range<u64>, Range<u64>)> = Vec::new();
            for (bytes, shift, which, action) in steps {
                if action == 0 && !taken.is_empty() {
                    ranges.give_back(taken.swap_remove(which.index(taken.len())).0);
                } else if let Some((whole, start)) = ranges.take(bytes, 1 << shift) {
                    let used = start..start + bytes;
                    prop_assert!(start.is_multiple_of(1 << shift));
                    prop_assert!(whole.start <= used.start && used.end <= whole.end && whole.end <= BLOCK);
                    prop_assert!(taken.iter().all(|(w, _)| w.end <= whole.start || whole.end <= w.start));
                    taken.push((whole, used));
                }
                prop_assert_eq!(ranges.is_unused(), taken.is_empty());
            }
            for (whole, _) in taken {
                ranges.give_back(whole);
            }
            prop_assert!(ranges.is_unused());
            prop_assert_eq!(ranges.take(BLOCK, 1), Some((0..BLOCK, 0)));
        }
    }

    #[test]
    fn a_hole_is_used_again_beside_a_range_that_stays() {
        let mut ranges = Ranges::new(4096);
        let (first, _) = ranges.take(1000, 16).unwrap();
        let (stays, _) = ranges.take(16, 16).unwrap();
        let (last, _) = ranges.take(2000, 16).unwrap();
        assert_eq!(ranges.take(1000, 16), None);
        ranges.give_back(first.clone());
        ranges.give_back(last);
        // The smallest that fits: the hole, not the end of the block.
        assert_eq!(ranges.take(1024, 16).unwrap().0, first);
        ranges.give_back(stays);
        // Its range and the end of the block are one again.
        assert_eq!(ranges.take(3072, 16).unwrap().0, 1024..4096);
        assert_eq!(ranges.take(0, 16), None);
        assert_eq!(Ranges::new(4096).take(u64::MAX, 16), None);
    }
}
