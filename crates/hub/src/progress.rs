//! Progress events of a pull. The command line displays them; tests record them.

use std::time::{Duration, Instant};

use crate::Error;

/// An event of a pull.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A source is being tried.
    Trying {
        /// In words: `Hugging Face, user/repo`.
        source: &'a str,
    },
    /// The source failed; the next one is tried.
    Failed {
        /// As in [`Event::Trying`].
        source: &'a str,
        /// Why.
        why: &'a Error,
    },
    /// Another process downloads this file; this one waits for it.
    Waiting {
        /// File name.
        file: &'a str,
    },
    /// The part left by an interrupted pull is read again, for the checksum.
    Checking {
        /// File name.
        file: &'a str,
        /// Bytes to read.
        bytes: u64,
    },
    /// A download starts.
    Started {
        /// File name.
        file: &'a str,
        /// Index and number of files, from 1.
        position: (usize, usize),
        /// Total bytes, if known.
        total: Option<u64>,
        /// Bytes left by an earlier pull.
        resumed: u64,
    },
    /// More bytes are on disk; sent at most about ten times per second, and once at the end.
    Advanced {
        /// File name.
        file: &'a str,
        /// Bytes on disk.
        bytes: u64,
        /// Total bytes, if known.
        total: Option<u64>,
        /// Bytes per second over the last seconds.
        rate: f64,
    },
    /// An attempt failed and will be retried.
    Retrying {
        /// File name.
        file: &'a str,
        /// Why.
        why: &'a Error,
        /// Time until the next attempt.
        delay: Duration,
    },
    /// A compressed file is unpacked.
    Unpacking {
        /// File name.
        file: &'a str,
    },
    /// The file is complete, verified and in place.
    Finished {
        /// File name.
        file: &'a str,
        /// Its size.
        bytes: u64,
    },
    /// Another message for the user.
    Note(&'a str),
}

/// Receives [`Event`]s. Any `Fn(Event)` is one.
pub trait Progress: Sync {
    /// Called from the pulling thread; should return quickly.
    fn event(&self, event: Event<'_>);
}

impl<F: Fn(Event<'_>) + Sync> Progress for F {
    fn event(&self, event: Event<'_>) {
        self(event);
    }
}

/// A [`Progress`] that ignores all events.
pub struct Silent;

impl Progress for Silent {
    fn event(&self, _: Event<'_>) {}
}

/// How often [`Event::Advanced`] is sent.
const TICK: Duration = Duration::from_millis(100);
/// The rate is averaged over about this time.
const RATE_WINDOW_S: f64 = 3.0;

/// Counts the bytes of one file and sends [`Event::Advanced`] at a limited rate.
pub(crate) struct Meter<'a> {
    progress: &'a dyn Progress,
    pub file: &'a str,
    pub total: Option<u64>,
    bytes: u64,
    rate: Option<f64>,
    last: (Instant, u64),
}

impl<'a> Meter<'a> {
    pub fn new(progress: &'a dyn Progress, file: &'a str, total: Option<u64>) -> Self {
        Self { progress, file, total, bytes: 0, rate: None, last: (Instant::now(), 0) }
    }

    pub fn event(&self, event: Event<'_>) {
        self.progress.event(event);
    }

    /// Announces the file, with the bytes of an earlier pull in `part`.
    pub fn begin(&self, part: &std::path::Path, position: (usize, usize)) {
        let left = std::fs::metadata(part).map_or(0, |m| m.len());
        let resumed = if self.total.is_some_and(|total| left <= total) { left } else { 0 };
        self.progress.event(Event::Started { file: self.file, position, total: self.total, resumed });
    }

    /// Sets the file's size, without counting it in the rate.
    pub fn set(&mut self, bytes: u64) {
        self.bytes = bytes;
        self.last = (Instant::now(), bytes);
    }

    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        let elapsed = self.last.0.elapsed();
        if elapsed >= TICK {
            let seconds = elapsed.as_secs_f64();
            let now = (self.bytes - self.last.1) as f64 / seconds;
            let weight = 1.0 - (-seconds / RATE_WINDOW_S).exp();
            self.rate = Some(self.rate.map_or(now, |old| old + weight * (now - old)));
            self.last = (Instant::now(), self.bytes);
            self.send();
        }
    }

    pub fn done(&self) {
        self.send();
    }

    fn send(&self) {
        self.progress.event(Event::Advanced {
            file: self.file,
            bytes: self.bytes,
            total: self.total,
            rate: self.rate.unwrap_or(0.0),
        });
    }
}
