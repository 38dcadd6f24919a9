//! How sure a model is of its first tokens: they are held back and measured, and an answer that begins unsurely is dropped.
//! Used by `attempt`; thresholds are found with `calibrate`.
//!
//! A token's log-probability says how likely it was; the margin, how much likelier than the next best. Means over a window
//! of tokens are compared with thresholds, and the worst window counts: a model that is lost is so at one place.

use std::collections::VecDeque;
use std::time::Duration;

use octet_api::core::{Event, TokenLogprob};

/// What is asked of the first tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Confidence {
    /// So many tokens are held back and measured; at least 1.
    pub tokens: usize,
    /// Means are of so many tokens in a row; at least 1, at most `tokens`.
    pub window: usize,
    /// The mean log-probability of no window may be less.
    pub logprob_min: Option<f64>,
    /// The mean margin of no window may be less, in nats.
    pub margin_min: Option<f64>,
    /// Nothing is held back for longer than this after the first token; then the answer is kept.
    pub hold_max: Duration,
}

impl Default for Confidence {
    fn default() -> Self {
        Self { tokens: 24, window: 8, logprob_min: None, margin_min: None, hold_max: Duration::from_secs(5) }
    }
}

/// What is known so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Too little.
    Watching,
    /// The answer is good enough.
    Kept,
    /// It is not.
    Escalated,
    /// There is nothing to measure, for this reason: it is kept.
    Unmeasured(&'static str),
}

impl Verdict {
    /// For a trace.
    pub fn name(self) -> &'static str {
        match self {
            Self::Watching => "watching",
            Self::Kept => "kept",
            Self::Escalated => "escalated",
            Self::Unmeasured(why) => why,
        }
    }
}

/// Measures one answer.
#[derive(Debug, Clone)]
pub struct Meter {
    rules: Confidence,
    last: VecDeque<(f64, Option<f64>)>,
    /// Tokens measured.
    pub tokens: usize,
    /// Of the worst window.
    pub logprob: Option<f64>,
    /// Of the worst window.
    pub margin: Option<f64>,
    verdict: Verdict,
}

impl Meter {
    /// Nothing is measured yet.
    pub fn new(rules: &Confidence) -> Self {
        Self {
            rules: rules.clone(),
            last: VecDeque::new(),
            tokens: 0,
            logprob: None,
            margin: None,
            verdict: Verdict::Watching,
        }
    }

    /// What is known so far.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// How long the answer may be held back.
    pub fn hold_max(&self) -> Duration {
        self.rules.hold_max
    }

    /// The next event of the answer.
    pub fn see(&mut self, event: &Event) -> Verdict {
        if self.verdict != Verdict::Watching {
            return self.verdict;
        }
        match event {
            Event::Logprobs { tokens, .. } => tokens.iter().for_each(|t| self.token(t)),
            Event::Text { .. } if self.tokens == 0 => {
                self.verdict = Verdict::Unmeasured("no log-probabilities came");
            }
            // A call has no log-probabilities in any dialect: what came before it is what there is.
            Event::ToolCallStart { .. } | Event::Finished { .. } => self.end("nothing to measure"),
            _ => {}
        }
        self.verdict
    }

    /// It was held back for long enough.
    pub fn give_up(&mut self) {
        if self.verdict == Verdict::Watching {
            self.verdict = Verdict::Unmeasured("held back too long");
        }
    }

    /// It can not be measured.
    pub fn skip(&mut self, why: &'static str) {
        self.verdict = Verdict::Unmeasured(why);
    }

    fn token(&mut self, token: &TokenLogprob) {
        let Some(logprob) = token.logprob.map(f64::from).filter(|_| self.verdict == Verdict::Watching) else {
            return;
        };
        self.tokens += 1;
        if self.last.len() == self.rules.window.max(1) {
            self.last.pop_front();
        }
        // -inf is an honest value of a log-probability, but no mean can be made of it.
        self.last.push_back((logprob.max(LOGPROB_MIN), margin(token)));
        if self.last.len() == self.rules.window.max(1) {
            self.measure();
        }
        if self.verdict == Verdict::Watching && self.tokens >= self.rules.tokens {
            self.verdict = Verdict::Kept;
        }
    }

    /// The answer was shorter than what would be held back.
    fn end(&mut self, nothing: &'static str) {
        if self.tokens == 0 {
            self.verdict = Verdict::Unmeasured(nothing);
            return;
        }
        if self.logprob.is_none() {
            self.measure();
        }
        if self.verdict == Verdict::Watching {
            self.verdict = Verdict::Kept;
        }
    }

    fn measure(&mut self) {
        let n = self.last.len() as f64;
        let logprob = self.last.iter().map(|t| t.0).sum::<f64>() / n;
        let margins: Option<Vec<f64>> = self.last.iter().map(|t| t.1).collect();
        let margin = margins.map(|all| all.iter().sum::<f64>() / n);
        self.logprob = Some(self.logprob.map_or(logprob, |worst| worst.min(logprob)));
        self.margin = match (self.margin, margin) {
            (Some(worst), Some(now)) => Some(worst.min(now)),
            (worst, now) => worst.or(now),
        };
        let low = |least: Option<f64>, value: Option<f64>| least.zip(value).is_some_and(|(l, v)| v < l);
        if low(self.rules.logprob_min, Some(logprob)) || low(self.rules.margin_min, margin) {
            self.verdict = Verdict::Escalated;
        }
    }
}

/// Less likely is not told apart.
const LOGPROB_MIN: f64 = -100.0;

/// How much likelier the best token was than the second, in nats; `None` where only one was told.
fn margin(token: &TokenLogprob) -> Option<f64> {
    let [first, second, ..] = token.top.as_slice() else { return None };
    Some((f64::from(first.logprob) - f64::from(second.logprob).max(LOGPROB_MIN)).max(0.0))
}
