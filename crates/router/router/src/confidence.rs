//! How sure a model is of its first tokens: they are held back and measured, and an answer that begins unsurely is dropped.
//! Used by `attempt`; thresholds are found with `calibrate`.
//!
//! A token's log-probability says how likely it was; the margin, how much likelier than the next best.

use std::time::Duration;

use octet_api::core::{Event, TokenLogprob};
use octet_config::Confidence;

/// An answer is held back for no longer than this after its first event; then it is kept.
pub const HOLD_MAX: Duration = Duration::from_secs(60);

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
    /// Log-probabilities whose text has not come yet: (of the token, margin).
    waiting: Vec<(f64, Option<f64>)>,
    tokens: u32,
    logprobs: f64,
    /// Over the tokens that had a second choice.
    margins: f64,
    margin_tokens: u32,
    verdict: Verdict,
}

impl Meter {
    /// Nothing is measured yet.
    pub fn new(rules: &Confidence) -> Self {
        Self {
            rules: *rules,
            waiting: Vec::new(),
            tokens: 0,
            logprobs: 0.0,
            margins: 0.0,
            margin_tokens: 0,
            verdict: Verdict::Watching,
        }
    }

    /// What is known so far.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Tokens measured.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Mean log-probability of the tokens so far.
    pub fn mean_logprob(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.logprobs / f64::from(self.tokens))
    }

    /// Mean margin of the tokens so far, in nats.
    pub fn mean_margin(&self) -> Option<f64> {
        (self.margin_tokens > 0).then(|| self.margins / f64::from(self.margin_tokens))
    }

    /// The next event of the answer.
    pub fn see(&mut self, event: &Event) -> Verdict {
        if self.verdict != Verdict::Watching {
            return self.verdict;
        }
        match event {
            Event::Logprobs { tokens, .. } => self.waiting.extend(tokens.iter().filter_map(measured)),
            Event::Reasoning { .. } if self.rules.skip_thoughts => self.waiting.clear(),
            Event::Reasoning { .. } => self.count(),
            Event::Text { text, .. } if !text.is_empty() => {
                self.count();
                if self.tokens == 0 {
                    self.verdict = Verdict::Unmeasured("no log-probabilities came");
                }
            }
            // A call has no log-probabilities in any dialect: what came before it is what there is.
            Event::ToolCallStart { .. } | Event::Finished { .. } => {
                self.count();
                self.end();
            }
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

    /// It cannot be measured.
    pub fn skip(&mut self, why: &'static str) {
        self.verdict = Verdict::Unmeasured(why);
    }

    fn count(&mut self) {
        for (logprob, margin) in std::mem::take(&mut self.waiting) {
            if self.verdict != Verdict::Watching {
                break;
            }
            self.tokens += 1;
            self.logprobs += logprob;
            if let Some(margin) = margin {
                self.margins += margin;
                self.margin_tokens += 1;
            }
            let window = self.rules.window.max(1);
            // Log-probabilities are never above 0: this sum will not become better.
            let hopeless = |least: f64| self.logprobs < least * f64::from(window);
            if self.rules.mean_logprob.is_some_and(hopeless) {
                self.verdict = Verdict::Escalated;
            } else if self.tokens >= window {
                self.judge();
            }
        }
    }

    /// The answer was shorter than the window.
    fn end(&mut self) {
        if self.verdict != Verdict::Watching {
        } else if self.tokens == 0 {
            self.verdict = Verdict::Unmeasured("nothing to measure");
        } else {
            self.judge();
        }
    }

    fn judge(&mut self) {
        let low = |least: Option<f64>, mean: Option<f64>| least.zip(mean).is_some_and(|(l, m)| m < l);
        let unsure =
            low(self.rules.mean_logprob, self.mean_logprob()) || low(self.rules.margin, self.mean_margin());
        self.verdict = if unsure { Verdict::Escalated } else { Verdict::Kept };
    }
}

/// Less likely is not told apart: no mean can be made of -inf.
const LOGPROB_MIN: f32 = -100.0;

fn measured(token: &TokenLogprob) -> Option<(f64, Option<f64>)> {
    let sane = |l: f32| f64::from(if l.is_nan() { LOGPROB_MIN } else { l.clamp(LOGPROB_MIN, 0.0) });
    let logprob = sane(token.logprob?);
    let margin = match token.top.as_slice() {
        [first, second, ..] => Some((sane(first.logprob) - sane(second.logprob)).max(0.0)),
        _ => None,
    };
    Some((logprob, margin))
}
