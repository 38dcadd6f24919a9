//! A fair lock that lets one model of a process compute at a time. Two thread teams on the same processors slow each other
//! down by far more than half: every barrier of one waits for a time slice of the other. `Cpu` holds it during a step.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a step keeps the permit while others wait: much longer than a thread takes to wake up, much shorter than a
/// token takes.
const QUANTUM: Duration = Duration::from_millis(2);

/// Decides which backend computes. Clones share one queue.
#[derive(Clone, Default)]
pub struct Arbiter(Arc<Queue>);

#[derive(Default)]
struct Queue {
    /// Number of the permit that is held, or will be next.
    serving: Mutex<u64>,
    moved: Condvar,
    /// Permits requested and returned so far.
    requested: AtomicU64,
    returned: AtomicU64,
}

/// Permission to compute, until dropped.
pub(super) struct Permit {
    queue: Arc<Queue>,
    number: u64,
    since: Instant,
}

impl std::fmt::Debug for Arbiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Arbiter")
    }
}

/// Equal if they share a queue.
impl PartialEq for Arbiter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Arbiter {
    /// Waits for the permit, first come, first served.
    pub(super) fn acquire(&self) -> Permit {
        let number = self.0.requested.fetch_add(1, Relaxed);
        self.0.wait_for(number);
        Permit { queue: Arc::clone(&self.0), number, since: Instant::now() }
    }

    /// Permits requested so far, and whether one of them is not returned yet.
    pub(super) fn activity(&self) -> (u64, bool) {
        let requested = self.0.requested.load(Relaxed);
        (requested, self.0.returned.load(Relaxed) < requested)
    }
}

impl Permit {
    /// Passes the permit on and requeues, if others wait and this one has been held for [`QUANTUM`].
    pub fn yield_if_due(&mut self) {
        if self.queue.requested.load(Relaxed) == self.number + 1 || self.since.elapsed() < QUANTUM {
            return;
        }
        let next = self.queue.requested.fetch_add(1, Relaxed);
        self.queue.advance();
        self.queue.wait_for(next);
        (self.number, self.since) = (next, Instant::now());
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.queue.advance();
    }
}

impl Queue {
    fn wait_for(&self, number: u64) {
        // The number is valid even if a thread panicked.
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        while *serving != number {
            serving = self.moved.wait(serving).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn advance(&self) {
        *self.serving.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.returned.fetch_add(1, Relaxed);
        self.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn one_at_a_time_and_all_get_a_permit() {
        let arbiter = Arbiter::default();
        let (inside, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..100 {
                        let mut permit = arbiter.acquire();
                        assert_eq!(inside.fetch_add(1, Relaxed), 0);
                        assert_eq!(inside.fetch_sub(1, Relaxed), 1);
                        permit.yield_if_due();
                        done.fetch_add(1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), 400);
    }

    #[test]
    fn a_long_step_lets_others_compute_in_between() {
        let arbiter = Arbiter::default();
        let mut long = arbiter.acquire();
        let seen = AtomicUsize::new(0);
        std::thread::scope(|s| {
            s.spawn(|| {
                let _permit = arbiter.acquire();
                seen.store(1, Relaxed);
            });
            // Ends only if the permit is passed on.
            while seen.load(Relaxed) == 0 {
                long.yield_if_due();
            }
        });
    }

    #[test]
    fn a_panic_releases_the_permit() {
        let arbiter = Arbiter::default();
        let other = arbiter.clone();
        let thread = std::thread::spawn(move || {
            let _permit = other.acquire();
            panic!("expected by this test");
        });
        assert!(thread.join().is_err());
        drop(arbiter.acquire());
    }
}
