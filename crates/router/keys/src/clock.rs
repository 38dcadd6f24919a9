//! What time it is, twice: on the calendar, for budgets and expiry, and since the start, for limits a minute. Read by `store`
//! and `grant`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// One reading of a [`Clock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Seconds since 1970 UTC. May jump, as the system's clock does.
    pub unix: i64,
    /// Seconds since the clock was made. Never goes back.
    pub second: u64,
}

/// The system's clock, or one that is turned by hand.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System(Instant),
    Manual(Arc<Mutex<Now>>),
}

impl Clock {
    /// The system's.
    pub fn system() -> Self {
        Self(Source::System(Instant::now()))
    }

    /// A clock that stands at `unix` until [`Clock::advance`] turns it: to see what happens next month.
    pub fn manual(unix: i64) -> Self {
        Self(Source::Manual(Arc::new(Mutex::new(Now { unix, second: 0 }))))
    }

    /// Turns a clock of [`Clock::manual`], and all its clones, forward. The system's goes on by itself.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(now) = &self.0 {
            let mut now = now.lock().unwrap_or_else(PoisonError::into_inner);
            now.unix = now.unix.saturating_add_unsigned(by.as_secs());
            now.second = now.second.saturating_add(by.as_secs());
        }
    }

    /// The time.
    pub fn now(&self) -> Now {
        match &self.0 {
            Source::System(start) => {
                // A clock before 1970 is wrong; then it is 1970.
                let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let unix = i64::try_from(unix.as_secs()).unwrap_or(i64::MAX);
                Now { unix, second: start.elapsed().as_secs() }
            }
            Source::Manual(now) => *now.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}
