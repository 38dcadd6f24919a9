//! What a deployment did within the last minute, and moving averages of its speed. Held by `state`.

use std::time::Duration;

use tokio::time::Instant;

use crate::failure::{FailureKind, KINDS};

/// Seconds that are looked back, whole: any 60 seconds in a row are covered.
const SECONDS: usize = 61;
/// More tokens than any request has: what a provider counts is its word alone, and sums have to hold.
const TOKENS_MAX: u64 = 1 << 32;

/// Counts of some time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Requests sent.
    pub requests: u32,
    /// Tokens of prompts and answers.
    pub tokens: u64,
    /// Requests that were answered.
    pub answered: u32,
    /// Requests that were not, by kind.
    pub failed: [u32; KINDS],
}

/// Counts of the last minute, second by second.
#[derive(Debug)]
pub struct Window {
    epoch: Instant,
    /// The second that is being counted, since `epoch`.
    now: u64,
    seconds: Box<[Counts; SECONDS]>,
    total: Counts,
}

impl Window {
    /// Nothing has happened.
    pub fn new(epoch: Instant) -> Self {
        Self { epoch, now: 0, seconds: Box::new([Counts::default(); SECONDS]), total: Counts::default() }
    }

    /// The counts of the minute before `now`.
    pub fn at(&mut self, now: Instant) -> &Counts {
        let second = now.saturating_duration_since(self.epoch).as_secs();
        let passed = second.saturating_sub(self.now);
        for i in 1..=passed.min(SECONDS as u64) {
            let gone = std::mem::take(&mut self.seconds[slot(self.now + i)]);
            self.total.requests -= gone.requests;
            self.total.tokens -= gone.tokens;
            self.total.answered -= gone.answered;
            self.total.failed.iter_mut().zip(gone.failed).for_each(|(t, g)| *t -= g);
        }
        self.now = self.now.max(second);
        &self.total
    }

    /// The counts as of the last change.
    pub fn latest(&self) -> &Counts {
        &self.total
    }

    /// A request of about `tokens` is sent. Returns the second, for [`Window::correct`].
    pub fn sent(&mut self, now: Instant, tokens: u64) -> u64 {
        self.at(now);
        let tokens = tokens.min(TOKENS_MAX);
        for counts in [&mut self.seconds[slot(self.now)], &mut self.total] {
            counts.requests += 1;
            counts.tokens += tokens;
        }
        self.now
    }

    /// The request that was sent in `second` took `tokens`, not `guess`.
    pub fn correct(&mut self, now: Instant, second: u64, guess: u64, tokens: u64) {
        self.at(now);
        let (guess, tokens) = (guess.min(TOKENS_MAX), tokens.min(TOKENS_MAX));
        // What was guessed too high is taken off where it was put, if that is still counted; the rest is spent now.
        let live = self.now - second < SECONDS as u64;
        let too_much = guess.saturating_sub(tokens);
        if live && too_much > 0 {
            let taken = too_much.min(self.seconds[slot(second)].tokens);
            self.seconds[slot(second)].tokens -= taken;
            self.total.tokens -= taken;
        }
        let more = tokens.saturating_sub(guess);
        self.seconds[slot(self.now)].tokens += more;
        self.total.tokens += more;
    }

    /// A request was answered.
    pub fn answered(&mut self, now: Instant) {
        self.at(now);
        self.seconds[slot(self.now)].answered += 1;
        self.total.answered += 1;
    }

    /// A request failed.
    pub fn failed(&mut self, now: Instant, kind: FailureKind) {
        self.at(now);
        self.seconds[slot(self.now)].failed[kind as usize] += 1;
        self.total.failed[kind as usize] += 1;
    }

    /// Forgets how requests ended: a deployment that is back begins anew.
    pub fn forgive(&mut self) {
        for counts in self.seconds.iter_mut().chain([&mut self.total]) {
            counts.answered = 0;
            counts.failed = [0; KINDS];
        }
    }

    /// When the first of the counted requests leaves the window.
    pub fn next_expiry(&self) -> Option<Instant> {
        let first = (0..SECONDS as u64)
            .filter_map(|back| self.now.checked_sub(back))
            .filter(|s| self.seconds[slot(*s)].requests > 0)
            .min()?;
        Some(self.epoch + Duration::from_secs(first + SECONDS as u64))
    }
}

fn slot(second: u64) -> usize {
    (second % SECONDS as u64) as usize
}

/// An exponentially weighted moving average of seconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Average {
    value_s: Option<f64>,
    at: Option<Instant>,
}

/// What a new sample counts for.
const NEW_SHARE: f64 = 0.3;

impl Average {
    /// One more sample.
    pub fn add(&mut self, sample: Duration, now: Instant) {
        let s = sample.as_secs_f64();
        self.value_s = Some(self.value_s.map_or(s, |old| old + NEW_SHARE * (s - old)));
        self.at = Some(now);
    }

    /// The average; `None` before the first sample, and `ttl` after the last.
    pub fn get(&self, ttl: Duration, now: Instant) -> Option<f64> {
        self.value_s.filter(|_| self.at.is_some_and(|at| now.saturating_duration_since(at) <= ttl))
    }
}
