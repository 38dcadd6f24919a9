//! Cancels computations that take too long. llguidance can take seconds for one mask within all of its size limits; a thread checks
//! the clock and cancels. Owned by the vocabulary, used by `matcher`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

use crate::Error;

/// A matcher's computation.
struct Slot {
    /// Its start in milliseconds of the watchdog's clock, plus one; 0 if there is none.
    since: AtomicU64,
    cancel: CancellationHandle,
}

struct Watched {
    slots: Vec<Weak<Slot>>,
    stop: bool,
}

struct Shared {
    watched: Mutex<Watched>,
    changed: Condvar,
    start: Instant,
    limit: Duration,
}

/// The thread, which sleeps while there is nothing to watch and ends when this is dropped.
pub struct Watchdog(Arc<Shared>);

/// A matcher's registration with the watchdog.
pub struct Watch {
    slot: Arc<Slot>,
    shared: Arc<Shared>,
}

impl Watchdog {
    /// Starts the thread. Computations longer than `limit` are cancelled.
    pub fn new(limit: Duration) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            watched: Mutex::new(Watched { slots: Vec::new(), stop: false }),
            changed: Condvar::new(),
            start: Instant::now(),
            limit,
        });
        let thread = shared.clone();
        std::thread::Builder::new()
            .name("octet-watchdog".into())
            .spawn(move || thread.run())
            .map_err(|e| Error::Vocabulary(format!("no thread to watch over masks could be started: {e}")))?;
        Ok(Self(shared))
    }

    /// Registers a matcher that `cancel` cancels.
    pub fn watch(&self, cancel: CancellationHandle) -> Watch {
        self.0.watch(cancel)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.lock().stop = true;
        self.0.changed.notify_one();
    }
}

impl Watch {
    /// Runs `work`, which is cancelled if it takes too long.
    pub fn over<T>(&self, work: impl FnOnce() -> T) -> T {
        self.slot.since.store(self.shared.now() + 1, Ordering::Relaxed);
        let out = work();
        self.slot.since.store(0, Ordering::Relaxed);
        out
    }

    /// Registers another matcher.
    pub fn another(&self, cancel: CancellationHandle) -> Self {
        self.shared.watch(cancel)
    }
}

impl Shared {
    fn watch(self: &Arc<Self>, cancel: CancellationHandle) -> Watch {
        let slot = Arc::new(Slot { since: AtomicU64::new(0), cancel });
        self.lock().slots.push(Arc::downgrade(&slot));
        self.changed.notify_one();
        Watch { slot, shared: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        // No code that holds the lock can leave the list inconsistent.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Cancels computations that take too long at `now`, and removes dropped matchers.
    fn cancel_overdue(&self, watched: &mut Watched, now: u64) {
        let limit = self.limit.as_millis() as u64;
        watched.slots.retain(|weak| {
            let Some(slot) = weak.upgrade() else { return false };
            let since = slot.since.load(Ordering::Relaxed);
            if since != 0 && now.saturating_sub(since - 1) >= limit {
                slot.cancel.cancel();
            }
            true
        });
    }

    fn run(&self) {
        let mut watched = self.lock();
        while !watched.stop {
            self.cancel_overdue(&mut watched, self.now());
            watched = if watched.slots.is_empty() {
                self.changed.wait(watched).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.changed.wait_timeout(watched, self.limit / 4).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest time that anything here may take: on a machine that has other work a millisecond is soon a second.
    const TIME_MAX: Duration = Duration::from_secs(60);

    #[test]
    fn slow_work_is_cancelled() {
        let dog = Watchdog::new(Duration::from_millis(40)).unwrap();
        let slow = CancellationHandle::default();
        let watch = dog.watch(slow.clone());
        let began = Instant::now();
        watch.over(|| {
            while !slow.is_cancelled() && began.elapsed() < TIME_MAX {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert!(slow.is_cancelled());
        assert!(began.elapsed() >= Duration::from_millis(39));
    }

    #[test]
    fn nothing_else_is_cancelled() {
        // The thread has its second look after a quarter of this; all others are the test's, at times of its own.
        let limit = Duration::from_secs(3600);
        let dog = Watchdog::new(limit).unwrap();
        let look = |later: Duration| {
            dog.0.cancel_overdue(&mut dog.0.lock(), dog.0.now() + later.as_millis() as u64);
        };
        let (busy, idle) = (CancellationHandle::default(), CancellationHandle::default());
        let (watch_busy, watch_idle) = (dog.watch(busy.clone()), dog.watch(idle.clone()));
        // Many short ones are no long one.
        for _ in 0..20 {
            watch_idle.over(|| look(limit / 10));
        }
        watch_busy.over(|| {
            look(limit / 2);
            assert!(!busy.is_cancelled());
            look(limit);
        });
        assert!(busy.is_cancelled() && !idle.is_cancelled());
    }

    #[test]
    fn the_thread_ends_with_the_watchdog() {
        let dog = Watchdog::new(Duration::from_millis(10)).unwrap();
        let weak = Arc::downgrade(&dog.0);
        drop(dog.watch(CancellationHandle::default()));
        drop(dog);
        let began = Instant::now();
        while weak.strong_count() > 0 && began.elapsed() < TIME_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(weak.strong_count(), 0);
    }
}
