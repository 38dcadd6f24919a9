//! What a pull tells its caller while it runs. The command line draws it; tests record it.

use std::time::{Duration, Instant};

use crate::Error;

/// One thing that happened during a pull.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A source is asked.
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
    /// What an earlier, interrupted pull left is read again, for the checksum.
    Checking {
        /// File name.
        file: &'a str,
        /// Bytes to read.
        bytes: u64,
    },
    /// A file begins.
    Started {
        /// File name.
        file: &'a str,
        /// Which file of how many, from 1.
        position: (usize, usize),
        /// Bytes to have in the end, where known.
        total: Option<u64>,
        /// Bytes that an earlier pull left.
        resumed: u64,
    },
    /// Some more bytes are on disk; at most about ten times a second, and once at the end.
    Advanced {
        /// File name.
        file: &'a str,
        /// Bytes on disk.
        bytes: u64,
        /// Bytes to have in the end, where known.
        total: Option<u64>,
        /// Bytes per second over the last seconds.
        rate: f64,
    },
    /// A try failed; another follows.
    Retrying {
        /// File name.
        file: &'a str,
        /// Why.
        why: &'a Error,
        /// How long until the next try.
        delay: Duration,
    },
    /// A compressed file is unpacked.
    Unpacking {
        /// File name.
        file: &'a str,
    },
    /// The file is complete, verified and in its place.
    Finished {
        /// File name.
        file: &'a str,
        /// Its size.
        bytes: u64,
    },
    /// Anything else that a user should know.
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

/// A [`Progress`] that says nothing.
pub struct Silent;

impl Progress for Silent {
    fn event(&self, _: Event<'_>) {}
}

/// How often [`Event::Advanced`] is sent.
const TICK: Duration = Duration::from_millis(100);
/// The rate is averaged over about this long.
const RATE_WINDOW_S: f64 = 3.0;

/// Counts the bytes of one file and sends [`Event::Advanced`] at a bearable pace.
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

    /// Announces the file, with what an earlier pull left in `part`.
    pub fn begin(&self, part: &std::path::Path, position: (usize, usize)) {
        let left = std::fs::metadata(part).map_or(0, |m| m.len());
        let resumed = if self.total.is_some_and(|total| left <= total) { left } else { 0 };
        self.progress.event(Event::Started { file: self.file, position, total: self.total, resumed });
    }

    /// The file now has `bytes` bytes; not counted into the rate.
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
