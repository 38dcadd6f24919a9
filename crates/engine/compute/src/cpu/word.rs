//! A number that threads wait for: they spin briefly, then sleep.

use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Condvar, Mutex, PoisonError};

/// A number on cache lines of its own, changed by one thread and waited for by others.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Word {
    value: AtomicU32,
    sleeping: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Word {
    /// The number. What its writer wrote before is visible after.
    pub fn get(&self) -> u32 {
        self.value.load(Acquire)
    }

    /// Sets it while no thread waits for it.
    pub fn reset(&self, value: u32) {
        self.value.store(value, Relaxed);
    }

    /// Sets it, and wakes sleeping threads.
    pub fn set(&self, value: u32) {
        self.value.store(value, SeqCst);
        self.wake();
    }

    /// Adds to it, and wakes sleeping threads; returns the old value.
    pub fn add(&self, n: u32) -> u32 {
        let before = self.value.fetch_add(n, SeqCst);
        self.wake();
        before
    }

    /// Wakes sleeping threads, so that they check their other conditions.
    pub fn wake(&self) {
        // Either this sees the sleeper, or the sleeper sees the new value before it sleeps: all four are SeqCst.
        if self.sleeping.load(SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// Returns when `done` is true for the number. After `spins` turns it sleeps: then the processor is free, and the system can move
    /// threads there that wait for another processor of this team.
    pub fn wait(&self, spins: u32, done: impl Fn(u32) -> bool) {
        for _ in 0..spins {
            if done(self.value.load(Acquire)) {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleeping.fetch_add(1, SeqCst);
        while !done(self.value.load(SeqCst)) {
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping.fetch_sub(1, SeqCst);
    }
}
