//! Copies of requests for a group whose answers are discarded (`silent_model`): how many run, and how they end. Sent by `dispatch` after the
//! request itself, and dropped if they could delay others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::failure::{Failure, FailureKind};

/// Maximum number of concurrent copies.
const AT_ONCE_MAX: usize = 16;

/// The copies of a router. Clones share them.
#[derive(Debug, Clone)]
pub struct Shadows {
    room: Arc<Semaphore>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    dropped: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
}

/// Counts of copies since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShadowCounts {
    /// Dropped: the limit was reached, or the target was not idle.
    pub dropped: u64,
    /// They were answered.
    pub answered: u64,
    /// They were not.
    pub failed: u64,
}

impl Default for Shadows {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(AT_ONCE_MAX)), counts: Arc::default() }
    }
}

/// Cancels a copy if its request is given up.
#[derive(Debug)]
pub struct CopyGuard(Option<AbortHandle>);

impl CopyGuard {
    /// The request is answered: the copy may continue.
    pub fn release(&mut self) {
        self.0 = None;
    }
}

impl Drop for CopyGuard {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

impl Shadows {
    /// The counts.
    pub fn counts(&self) -> ShadowCounts {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        ShadowCounts {
            dropped: get(&self.counts.dropped),
            answered: get(&self.counts.answered),
            failed: get(&self.counts.failed),
        }
    }

    /// Runs a copy until it is answered, if the limit allows.
    pub(crate) fn send(
        &self,
        copy: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) -> Option<CopyGuard> {
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let counts = Arc::clone(&self.counts);
        let task = tokio::spawn(async move {
            let count = match copy.await {
                Ok(()) => &counts.answered,
                Err(f) if f.kind == FailureKind::Cancelled => &counts.dropped,
                Err(_) => &counts.failed,
            };
            count.fetch_add(1, Ordering::Relaxed);
            drop(room);
        });
        Some(CopyGuard(Some(task.abort_handle())))
    }
}
