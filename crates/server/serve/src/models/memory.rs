//! Memory limits of all models together: the machine's memory, and that of graphics devices. Set by the caller of the server, read by
//! `registry`.

use std::sync::Arc;

/// Returns the free memory in bytes; `None` if it is unknown or not limited.
pub type FreeMemory = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

/// The limits.
#[derive(Clone)]
pub struct Memory {
    /// The system's free memory.
    pub free: FreeMemory,
    /// The user's limit.
    pub limit: Option<u64>,
}

impl Default for Memory {
    /// No limits.
    fn default() -> Self {
        Self { free: Arc::new(|| None), limit: None }
    }
}

/// What a model takes that runs on a graphics device.
#[derive(Clone)]
pub struct OnDevice {
    /// The device's name: `vulkan:0`. Models with the same one share its memory.
    pub name: String,
    /// Bytes of the device's own memory.
    pub bytes: u64,
    /// Bytes of the machine's memory besides: the embedding table, snapshots, experts that lie there.
    pub machine_bytes: u64,
    /// What the device has left.
    pub free: FreeMemory,
    /// What models may take of it together.
    pub limit: Option<u64>,
}

impl std::fmt::Debug for OnDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnDevice")
            .field("name", &self.name)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
