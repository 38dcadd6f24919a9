//! What models may take of the machine's memory together. Set by who starts the server, asked by `registry`.

use std::sync::Arc;

/// Tells how many bytes may still be taken; `None` where that is not known, or does not matter.
pub type FreeMemory = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

/// What models may take together.
#[derive(Clone)]
pub struct Memory {
    /// What the system has left.
    pub free: FreeMemory,
    /// What the user allows.
    pub limit: Option<u64>,
}

impl Default for Memory {
    /// All that is asked for.
    fn default() -> Self {
        Self { free: Arc::new(|| None), limit: None }
    }
}
