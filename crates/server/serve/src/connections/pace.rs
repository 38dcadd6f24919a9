//! The speed of a request body, and its time limit.

use std::time::Duration;

use tokio::time::Instant;

/// An idle connection may be closed for a new one after this time; before, its request may be about to arrive.
pub(super) const IDLE_MIN: Duration = Duration::from_millis(500);
/// Base time for a body to arrive, and maximum time without any bytes.
pub(super) const BODY_GRACE: Duration = Duration::from_secs(20);
/// Each block of this many bytes extends the deadline by a second (Apache's mod_reqtimeout has the same rule and numbers).
const BODY_BYTES_PER_S: u64 = 500;
/// Maximum time for a body to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(120);
/// A connection whose body arrives at least this fast is not evicted.
const FAST_BYTES_PER_S: u64 = 16 << 10;

/// The progress of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    since: Instant,
    pub(super) last: Instant,
    pub(super) bytes: u64,
}

impl Pace {
    pub(super) fn start(now: Instant) -> Self {
        Self { since: now, last: now, bytes: 0 }
    }

    /// The time limit if no more bytes arrive.
    pub(super) fn deadline(&self) -> Instant {
        let earned = BODY_GRACE + Duration::from_secs(self.bytes / BODY_BYTES_PER_S);
        (self.since + earned.min(BODY_TIME_MAX)).min(self.last + BODY_GRACE)
    }

    /// Bytes per second, if it is so slow that its connection may be evicted.
    pub(super) fn slow(&self, now: Instant) -> Option<u64> {
        let time = now - self.since;
        let rate = (self.bytes as f64 / time.as_secs_f64().max(1e-9)) as u64;
        let slow = time >= IDLE_MIN && (rate < FAST_BYTES_PER_S || now - self.last >= IDLE_MIN);
        slow.then_some(rate)
    }
}
