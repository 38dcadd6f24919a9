//! A model's confidence in a token, and in a window of tokens, from their log-probabilities.

use octet_api::core::TokenLogprob;
use octet_config::{Measure, Over, Signal};

/// Number of top tokens that [`Measure::Entropy`] uses: as many as every provider returns.
pub const ENTROPY_TOP: u32 = 5;

/// Lower bound of log-probabilities: no mean can include -inf.
const LOGPROB_MIN: f32 = -100.0;

/// The measures of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    /// Its log-probability.
    pub logprob: f64,
    /// See [`Measure::Top1`].
    pub top1: f64,
    /// See [`Measure::Margin`]; `None` without a second token.
    pub margin: Option<f64>,
    /// See [`Measure::Entropy`]; `None` without a second token.
    pub entropy: Option<f64>,
}

impl Token {
    /// `None` for a token without a log-probability.
    pub fn of(token: &TokenLogprob) -> Option<Self> {
        let sane = |l: f32| f64::from(if l.is_nan() { LOGPROB_MIN } else { l.clamp(LOGPROB_MIN, 0.0) });
        let logprob = sane(token.logprob?);
        let top: Vec<f64> = token.top.iter().take(ENTROPY_TOP as usize).map(|t| sane(t.logprob)).collect();
        let first = top.first().copied().unwrap_or(logprob);
        let second = top.get(1).copied();
        let entropy = || {
            let rest = (1.0 - top.iter().map(|l| l.exp()).sum::<f64>()).max(0.0);
            let of_rest = if rest > 0.0 { rest * rest.ln() } else { 0.0 };
            (-top.iter().map(|l| l.exp() * l).sum::<f64>() - of_rest).max(0.0)
        };
        Some(Self {
            logprob,
            top1: first.exp(),
            margin: second.map(|second| (first - second).max(0.0)),
            entropy: second.map(|_| entropy()),
        })
    }

    fn measure(&self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::Top1 => Some(self.top1),
            Measure::Margin => self.margin,
            Measure::Entropy => self.entropy,
        }
    }
}

/// Number of top tokens that `signal` needs.
pub fn top(signal: Signal) -> u32 {
    if signal.measure == Measure::Entropy { ENTROPY_TOP } else { 2 }
}

/// The value of `signal` over these tokens; tokens without the measure are left out. `None` if no token has it.
pub fn value(signal: Signal, tokens: &[Token]) -> Option<f64> {
    let mut all: Vec<f64> = tokens.iter().filter_map(|t| t.measure(signal.measure)).collect();
    if all.is_empty() {
        return None;
    }
    match signal.over {
        Over::Mean => Some(all.iter().sum::<f64>() / all.len() as f64),
        Over::Quantile(q) => {
            all.sort_by(f64::total_cmp);
            // From the least confident: for entropy that is the highest.
            if !signal.measure.rises() {
                all.reverse();
            }
            let at = q.clamp(0.0, 1.0) * (all.len() - 1) as f64;
            let (low, part) = (at.floor() as usize, at.fract());
            let high = (low + 1).min(all.len() - 1);
            Some(all[low] + (all[high] - all[low]) * part)
        }
    }
}

/// Whether this value is below the confidence of `threshold`.
pub fn is_below(signal: Signal, value: f64, threshold: f64) -> bool {
    if signal.measure.rises() { value < threshold } else { value > threshold }
}
