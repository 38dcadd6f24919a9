//! The time of the calendar, for budgets and expiry, and since the start, for limits per minute. Read by `store`
//! and `grant`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// One reading of a [`Clock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Seconds since 1970 UTC. May jump, as the system's clock does.
    pub unix: i64,
    /// Seconds since the clock was created. Never decreases.
    pub second: u64,
}

/// The system's clock, or one that is set by hand.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System(Instant),
    Manual(Arc<Mutex<Now>>),
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self(Source::System(Instant::now()))
    }

    /// A clock that stays at `unix` until [`Clock::advance`] is called, for tests of later times.
    pub fn manual(unix: i64) -> Self {
        Self(Source::Manual(Arc::new(Mutex::new(Now { unix, second: 0 }))))
    }

    /// Advances a clock of [`Clock::manual`] and all its clones. No effect on the system's.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(now) = &self.0 {
            let mut now = now.lock().unwrap_or_else(PoisonError::into_inner);
            now.unix = now.unix.saturating_add_unsigned(by.as_secs());
            now.second = now.second.saturating_add(by.as_secs());
        }
    }

    /// Sets the calendar of a clock of [`Clock::manual`] and all its clones, as a system's clock is set: no time passes.
    pub fn set(&self, unix: i64) {
        if let Source::Manual(now) = &self.0 {
            now.lock().unwrap_or_else(PoisonError::into_inner).unix = unix;
        }
    }

    /// The time.
    pub fn now(&self) -> Now {
        match &self.0 {
            Source::System(start) => {
                // A system clock before 1970 is wrong; 1970 is used instead.
                let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let unix = i64::try_from(unix.as_secs()).unwrap_or(i64::MAX);
                Now { unix, second: start.elapsed().as_secs() }
            }
            Source::Manual(now) => *now.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}
