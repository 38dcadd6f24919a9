//! The free memory, as it was measured for one model. Filled and read by `memory`, dropped by `host`.

use std::time::Instant;

/// The free memory for a model, as measured a moment ago. Measuring takes milliseconds, so it is done by a task.
#[derive(Default)]
pub(super) struct FreeNow {
    pub measured: Option<Measured>,
    /// The model for which it is being measured.
    pub measuring: Option<usize>,
    /// Number of changes: what was measured before the last one is dropped.
    pub changes: u64,
}

impl FreeNow {
    /// A model was loaded or unloaded: measures again.
    pub fn forget(&mut self) {
        self.changes += 1;
        (self.measured, self.measuring) = (None, None);
    }
}

/// Measured for this model, then.
pub(super) struct Measured {
    pub model: usize,
    pub at: Instant,
    /// The machine's, and that of the model's device; `None` if it is unknown or not limited.
    pub free: Result<[Option<u64>; 2], String>,
}
