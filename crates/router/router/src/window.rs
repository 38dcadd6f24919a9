//! A deployment's counts of the last minute, and moving averages of its speed. Owned by `state`.

use std::time::Duration;

use tokio::time::Instant;

use crate::failure::{FailureKind, KINDS};

/// Length of the window in whole seconds: it covers any 60 consecutive seconds.
const SECONDS: usize = 61;
/// Maximum tokens of a request: providers' counts are not trusted, and sums must not overflow.
pub const TOKENS_MAX: u64 = 1 << 32;

/// Counts over some time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Requests sent.
    pub requests: u32,
    /// Tokens of prompts and answers.
    pub tokens: u64,
    /// Requests with an answer.
    pub answered: u32,
    /// Failed requests, by kind.
    pub failed: [u32; KINDS],
}

/// Counts of the last minute, per second.
#[derive(Debug)]
pub struct Window {
    epoch: Instant,
    /// The current second, since `epoch`.
    now: u64,
    seconds: Box<[Counts; SECONDS]>,
    total: Counts,
}

impl Window {
    /// An empty window.
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

    /// Counts a request of about `tokens`. Returns its second, for [`Window::correct`].
    pub fn sent(&mut self, now: Instant, tokens: u64) -> u64 {
        self.at(now);
        let tokens = tokens.min(TOKENS_MAX);
        for counts in [&mut self.seconds[slot(self.now)], &mut self.total] {
            counts.requests += 1;
            counts.tokens += tokens;
        }
        self.now
    }

    /// A request that was counted in `second`, with these tokens, was not sent.
    pub fn withdrawn(&mut self, now: Instant, second: u64, tokens: u64) {
        self.at(now);
        if self.now - second < SECONDS as u64 {
            let tokens = tokens.min(TOKENS_MAX).min(self.seconds[slot(second)].tokens);
            for counts in [&mut self.seconds[slot(second)], &mut self.total] {
                counts.requests = counts.requests.saturating_sub(1);
                counts.tokens -= tokens;
            }
        }
    }

    /// Corrects the tokens of the request sent in `second` from `guess` to `tokens`.
    pub fn correct(&mut self, now: Instant, second: u64, guess: u64, tokens: u64) {
        self.at(now);
        let (guess, tokens) = (guess.min(TOKENS_MAX), tokens.min(TOKENS_MAX));
        // An overestimate is subtracted from the second to which it was added, if that is in the window; additional tokens are added to the current one.
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

    /// Counts an answered request.
    pub fn answered(&mut self, now: Instant) {
        self.at(now);
        self.seconds[slot(self.now)].answered += 1;
        self.total.answered += 1;
    }

    /// Counts a failed request.
    pub fn failed(&mut self, now: Instant, kind: FailureKind) {
        self.at(now);
        self.seconds[slot(self.now)].failed[kind as usize] += 1;
        self.total.failed[kind as usize] += 1;
    }

    /// Resets the counts of answers and failures, after a recovery.
    pub fn forgive(&mut self) {
        for counts in self.seconds.iter_mut().chain([&mut self.total]) {
            counts.answered = 0;
            counts.failed = [0; KINDS];
        }
    }

    /// When the oldest counted request leaves the window.
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

/// Weight of a new sample.
const NEW_SHARE: f64 = 0.3;

impl Average {
    /// Adds a sample.
    pub fn add(&mut self, sample: Duration, now: Instant) {
        let s = sample.as_secs_f64();
        self.value_s = Some(self.value_s.map_or(s, |old| old + NEW_SHARE * (s - old)));
        self.at = Some(now);
    }

    /// The average; `None` before the first sample, and `ttl` after the last one.
    pub fn get(&self, ttl: Duration, now: Instant) -> Option<f64> {
        self.value_s.filter(|_| self.at.is_some_and(|at| now.saturating_duration_since(at) <= ttl))
    }
}
