//! The model's confidence in its first tokens: they are held back and measured, and an answer with low confidence or invalid tool calls is
//! discarded. Used by `attempt` and `probe`; `calibrate` finds thresholds.

use std::sync::Arc;
use std::time::Duration;

use octet_api::core::{Event, GenerateRequest};
use octet_config::{Confidence, Over, Signal};

use crate::calls::Calls;
use crate::signal::{self, Token, is_below};

/// Maximum time to hold an answer back after its first event; then it is kept.
pub const HOLD_MAX: Duration = Duration::from_secs(60);

/// The result so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Undecided.
    Watching,
    /// The answer is good enough.
    Kept,
    /// The answer is not good enough.
    Escalated,
    /// Nothing can be measured, for this reason: the answer is kept.
    Unmeasured(&'static str),
}

impl Verdict {
    /// The text for a trace.
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
    /// Tokens whose text has not arrived yet.
    waiting: Vec<Token>,
    tokens: Vec<Token>,
    logprobs: f64,
    /// The result for the tokens.
    measured: Verdict,
    calls: Option<Calls>,
    /// A call has begun: the answer is held back until it is complete.
    in_call: bool,
    /// Held-back pieces of text before a possible call, if tokens are not measured.
    pieces_left: u32,
    broken: Option<String>,
}

impl Meter {
    /// A meter before the first event.
    pub fn new(rules: &Confidence) -> Self {
        Self {
            rules: *rules,
            waiting: Vec::new(),
            tokens: Vec::new(),
            logprobs: 0.0,
            measured: Verdict::Watching,
            calls: None,
            in_call: false,
            pieces_left: 0,
            broken: None,
        }
    }

    /// Also checks the tool calls of the answer to `request`.
    pub fn checking(mut self, request: &Arc<GenerateRequest>) -> Self {
        self.calls = Calls::new(request).filter(|_| self.rules.tool_calls);
        self
    }

    /// The result so far, of tokens and calls.
    pub fn verdict(&self) -> Verdict {
        match self.measured {
            _ if self.broken.is_some() => Verdict::Escalated,
            Verdict::Kept | Verdict::Unmeasured(_) if self.in_call || self.pieces_left > 0 => {
                Verdict::Watching
            }
            measured => measured,
        }
    }

    /// The result so far of the tokens alone.
    pub fn measured(&self) -> Verdict {
        self.measured
    }

    /// Whether nothing is measured: neither tokens nor calls.
    pub fn is_idle(&self) -> bool {
        self.calls.is_none() && self.measured != Verdict::Watching
    }

    /// Whether there were tool calls that were checked, and their error.
    pub fn called(&self) -> Option<Option<&str>> {
        let any = self.calls.as_ref().is_some_and(Calls::any) && !self.in_call;
        any.then_some(self.broken.as_deref())
    }

    /// Number of measured tokens.
    pub fn tokens(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    /// Mean log-probability of the tokens so far.
    pub fn mean_logprob(&self) -> Option<f64> {
        (!self.tokens.is_empty()).then(|| self.logprobs / self.tokens.len() as f64)
    }

    /// Mean margin of the tokens so far, in nats.
    pub fn mean_margin(&self) -> Option<f64> {
        self.value(Signal { measure: octet_config::Measure::Margin, over: Over::Mean })
    }

    /// The value of `signal` over the tokens so far.
    pub fn value(&self, signal: Signal) -> Option<f64> {
        signal::value(signal, &self.tokens)
    }

    /// The next event of the answer.
    pub fn observe(&mut self, event: &Event) -> Verdict {
        if let Some(calls) = &mut self.calls {
            calls.observe(event);
        }
        if self.measured == Verdict::Watching {
            self.measure(event);
        }
        match (event, &self.calls) {
            (Event::ToolCallStart { .. }, Some(_)) => self.in_call = true,
            (Event::Text { text, .. }, _) if !text.is_empty() => {
                self.pieces_left = self.pieces_left.saturating_sub(1);
            }
            (Event::Finished { .. }, Some(calls)) => {
                self.broken = calls.broken();
                (self.in_call, self.pieces_left) = (false, 0);
            }
            _ => {}
        }
        self.verdict()
    }

    fn measure(&mut self, event: &Event) {
        match event {
            Event::Logprobs { tokens, .. } => self.waiting.extend(tokens.iter().filter_map(Token::of)),
            Event::Reasoning { .. } if self.rules.skip_thoughts => self.waiting.clear(),
            Event::Reasoning { .. } => self.count(),
            Event::Text { text, .. } if !text.is_empty() => {
                self.count();
                if self.tokens.is_empty() && self.measured == Verdict::Watching {
                    self.measured = Verdict::Unmeasured("no log-probabilities came");
                }
            }
            // Calls have no log-probabilities in any dialect: only the tokens before it count.
            Event::ToolCallStart { .. } | Event::Finished { .. } => {
                self.count();
                self.end();
            }
            _ => {}
        }
    }

    /// The maximum hold-back time has passed.
    pub fn give_up(&mut self) {
        (self.in_call, self.pieces_left) = (false, 0);
        self.calls = None;
        if self.measured == Verdict::Watching {
            self.measured = Verdict::Unmeasured("held back too long");
        }
    }

    /// Does not measure tokens.
    pub fn skip(&mut self, why: &'static str) {
        self.pieces_left = if self.calls.is_some() { self.rules.window } else { 0 };
        self.measured = Verdict::Unmeasured(why);
    }

    fn count(&mut self) {
        for token in std::mem::take(&mut self.waiting) {
            if self.measured != Verdict::Watching {
                break;
            }
            self.tokens.push(token);
            self.logprobs += token.logprob;
            if self.is_hopeless(&token) {
                self.measured = Verdict::Escalated;
            } else if self.tokens() >= self.rules.window.max(1) {
                self.judge();
            }
        }
    }

    /// Whether the remaining tokens of the window cannot raise the value to the threshold.
    fn is_hopeless(&self, last: &Token) -> bool {
        // Log-probabilities are never above 0, so this sum cannot increase.
        let window = f64::from(self.rules.window.max(1));
        let low = |least: f64| self.logprobs < least * window;
        let least_sure = |t: &octet_config::Threshold| {
            let value = signal::value(t.signal, std::slice::from_ref(last));
            t.signal.over == Over::Quantile(0.0) && value.is_some_and(|v| is_below(t.signal, v, t.threshold))
        };
        self.rules.mean_logprob.is_some_and(low) || self.rules.signal.as_ref().is_some_and(least_sure)
    }

    /// The answer was shorter than the window.
    fn end(&mut self) {
        if self.measured != Verdict::Watching {
        } else if self.tokens.is_empty() {
            self.measured = Verdict::Unmeasured("nothing to measure");
        } else {
            self.judge();
        }
    }

    fn judge(&mut self) {
        let low = |least: Option<f64>, mean: Option<f64>| least.zip(mean).is_some_and(|(l, m)| m < l);
        let signal = self.rules.signal.and_then(|t| Some((t, self.value(t.signal)?)));
        let unsure = low(self.rules.mean_logprob, self.mean_logprob())
            || low(self.rules.margin, self.mean_margin())
            || signal.is_some_and(|(t, value)| is_below(t.signal, value, t.threshold));
        self.measured = if unsure { Verdict::Escalated } else { Verdict::Kept };
    }
}
