//! Options of a store.

use std::time::Duration;

use crate::Clock;

/// Options of a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// Interval at which spend is written and changes by other processes are read. A crash loses at most this much.
    pub flush_every: Duration,
    /// How long usage is kept.
    pub retention_days: u32,
    /// Maximum size of the file.
    pub bytes_max: u64,
    /// Interval at which the file is checked for being readable by others: overwriting it would go unnoticed otherwise. Large files are
    /// checked less often. Zero checks at every write.
    pub check_every: Duration,
    /// How long to wait for another process that writes.
    pub lock_timeout: Duration,
    /// The clock.
    pub clock: Clock,
}

impl Default for Options {
    /// Every second, 400 days, 1 GiB, every 5 s, 2 s, the system's clock.
    fn default() -> Self {
        Self {
            flush_every: Duration::from_secs(1),
            retention_days: 400,
            bytes_max: 1 << 30,
            check_every: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
            clock: Clock::system(),
        }
    }
}
