//! The parts of a step over several devices, and the copies of the host between them.

use std::sync::Arc;

use super::state::State;
use crate::memory::Buffer;
use crate::record;

/// A copy of the host, in memory that it shares with each of two devices.
pub(super) struct Crossing {
    pub(super) from: (Arc<Buffer>, u64),
    pub(super) to: (Arc<Buffer>, u64),
    pub(super) bytes: u64,
}

impl Crossing {
    /// The device has finished writing, and the other one does not read yet.
    pub(super) fn copy(&self) {
        self.from.0.copy_to(self.from.1, &self.to.0, self.to.1, self.bytes);
    }
}

/// What one device does before another one goes on.
pub(super) struct Segment {
    pub(super) device: usize,
    pub(super) recording: record::Recording,
    /// The copy after its end; `None`: the step's last segment of the device.
    pub(super) crossing: Option<Crossing>,
}

/// A step that is being recorded.
pub(super) struct Recording {
    pub(super) tokens: usize,
    pub(super) segments: Vec<Segment>,
    /// The buffers that it has written.
    pub(super) written: Vec<Arc<State>>,
    /// It may be replayed.
    pub(super) is_kept: bool,
}
