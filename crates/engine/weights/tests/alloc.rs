//! The readers' memory stays in proportion to the file, whatever counts it states. Alone in its binary, because it
//! watches every allocation of the process.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use octet_weights::{gguf, hf};
use proptest::prelude::*;
use support::*;

struct Watched;
/// Largest single allocation so far, in bytes.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; a counter is all that is added.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract, and `ptr` is from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        LARGEST.fetch_max(new_size, Ordering::Relaxed);
        // SAFETY: the caller keeps `realloc`'s contract, and `ptr` is from `System`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// Far above what files of a few hundred bytes need, and far below what any stated count of theirs would.
const BYTES_MAX: usize = 256 << 10;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn allocations_do_not_follow_stated_counts(
        hf in any::<bool>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut files = tiny_llama();
        let (header, bytes) = Raw::small().build();
        let mut bytes = if hf { files["model.safetensors"].to_vec() } else { bytes.to_vec() };
        let len = if hf { bytes.len() } else { header };
        for (at, byte) in edits {
            bytes[at.index(len)] = byte;
        }
        LARGEST.store(0, Ordering::Relaxed);
        let opened = if hf {
            files.insert("model.safetensors".into(), bytes.into());
            hf::from_files("m", files)
        } else {
            gguf::from_bytes("m", bytes.into())
        };
        if let Ok(m) = opened {
            for t in m.tensors() {
                m.optional(&t.name).unwrap();
            }
        }
        let largest = LARGEST.load(Ordering::Relaxed);
        prop_assert!(largest < BYTES_MAX, "{largest} bytes at once");
    }
}
