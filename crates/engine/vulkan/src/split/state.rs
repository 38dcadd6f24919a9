//! What is known of a buffer that exists on several devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// All devices have the newest content.
pub(super) const ALL: u32 = u32::MAX;

/// What is known of a buffer. The steps that change it share it, as a replay does not call the verbs.
pub(super) struct State {
    /// A bit for each device that has the newest content.
    valid: AtomicU32,
    /// Values from the start that were written: the others are not copied.
    len: AtomicUsize,
    /// It has its values since it was made.
    pub(super) is_constant: bool,
}

impl State {
    pub(super) fn new(is_constant: bool) -> Arc<Self> {
        Arc::new(Self { valid: AtomicU32::new(ALL), len: AtomicUsize::new(0), is_constant })
    }

    pub(super) fn valid(&self) -> u32 {
        self.valid.load(Relaxed)
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    pub(super) fn set(&self, valid: u32, len: usize) {
        self.valid.store(valid, Relaxed);
        self.len.store(len, Relaxed);
    }
}
