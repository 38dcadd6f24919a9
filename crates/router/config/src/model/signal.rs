//! A model's confidence in its first tokens, as a number (`confidence.signal`), and weights that predict it from the prompt. Read by
//! `read::cascades`; computed by the router.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::Value;

/// A measure of one token, from the model's distribution over the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// `top1`: probability of the most probable token, 0 to 1.
    Top1,
    /// `margin`: difference between the log-probabilities of the first and the second, in nats.
    Margin,
    /// `entropy`: of the five most probable tokens and the rest as one, in nats. Lower is more confident.
    Entropy,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Top1, Self::Margin, Self::Entropy];

    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Top1 => "top1",
            Self::Margin => "margin",
            Self::Entropy => "entropy",
        }
    }

    /// Whether a greater value is more confident.
    pub fn rises(self) -> bool {
        self != Self::Entropy
    }
}

/// How the measures of a window's tokens are aggregated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Over {
    /// `mean`.
    Mean,
    /// `q25`: this quantile, 0 to 1, from the least confident token; `min` is 0. Interpolated between tokens.
    Quantile(f64),
}

/// A measure of a window: `margin.q25`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Signal {
    /// Of each token.
    pub measure: Measure,
    /// Over the tokens.
    pub over: Over,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.measure.name();
        match self.over {
            Over::Mean => write!(f, "{name}.mean"),
            Over::Quantile(0.0) => write!(f, "{name}.min"),
            Over::Quantile(q) => write!(f, "{name}.q{}", (q * 1e4).round() / 100.0),
        }
    }
}

impl FromStr for Signal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            let what = "top1, margin or entropy, then .mean, .min or a quantile like .q25: margin.q25";
            format!("confidence.signal is {}; it must be {what}", crate::problem::quoted(text))
        };
        let (measure, over) = text.split_once('.').unwrap_or((text, "mean"));
        let measure = Measure::ALL.into_iter().find(|m| m.name() == measure).ok_or_else(unknown)?;
        let over = match over {
            "mean" => Over::Mean,
            "min" => Over::Quantile(0.0),
            _ => {
                let percent =
                    over.strip_prefix('q').filter(|n| n.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
                let percent =
                    percent.and_then(|n| n.parse::<f64>().ok()).filter(|n| (0.0..=100.0).contains(n));
                Over::Quantile(percent.ok_or_else(unknown)? / 100.0)
            }
        };
        Ok(Self { measure, over })
    }
}

/// A signal and its threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// The signal.
    pub signal: Signal,
    /// Its minimum; of [`Measure::Entropy`] its maximum.
    pub threshold: f64,
}

/// Logistic regression over an embedding of the prompt: `1 / (1 + exp(-(weights . embedding + bias)))` is the probability that the
/// fast model's answer is right (RouteLLM's idea, arXiv 2406.18665).
#[derive(Clone, PartialEq)]
pub struct Prerouter {
    /// One per dimension.
    pub weights: Arc<[f64]>,
    /// The constant term.
    pub bias: f64,
    /// Requests with a lower probability are sent to the strong group directly.
    pub threshold: f64,
    /// The group whose local model computes the embedding. `None`: the fast one.
    pub embed: Option<String>,
}

impl Prerouter {
    /// Reads a weights file: `{"bias": 0.1, "weights": [0.2, ...]}`.
    ///
    /// # Errors
    /// A message for the user.
    pub fn read(text: &str, threshold: f64, embed: Option<String>) -> Result<Self, String> {
        let file: Value = serde_json::from_str(text).map_err(|e| format!("it is not JSON: {e}"))?;
        let numbers = file["weights"].as_array().ok_or("it has no list of weights")?;
        let weights: Option<Arc<[f64]>> = numbers.iter().map(Value::as_f64).collect();
        let weights = weights.filter(|w| !w.is_empty()).ok_or("its weights are not numbers")?;
        let bias = file["bias"].as_f64().ok_or("it has no bias")?;
        Ok(Self { weights, bias, threshold, embed })
    }

    /// The text of a weights file.
    pub fn write(weights: &[f64], bias: f64) -> String {
        format!("{:#}\n", serde_json::json!({"bias": bias, "weights": weights}))
    }

    /// The probability that the fast model's answer to this prompt is right; `None` for an embedding of another length.
    pub fn probability(&self, embedding: &[f32]) -> Option<f64> {
        if embedding.len() != self.weights.len() {
            return None;
        }
        let dot: f64 = self.weights.iter().zip(embedding).map(|(w, x)| w * f64::from(*x)).sum();
        let p = 1.0 / (1.0 + (-(dot + self.bias)).exp());
        p.is_finite().then_some(p)
    }
}

impl fmt::Debug for Prerouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prerouter({} weights, threshold {})", self.weights.len(), self.threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_as_they_are_written() {
        for text in ["top1.mean", "margin.min", "entropy.q25", "margin.q12.5", "top1.q100"] {
            assert_eq!(text.parse::<Signal>().unwrap().to_string(), text);
        }
        assert_eq!("margin".parse::<Signal>().unwrap().to_string(), "margin.mean");
        for text in [
            "",
            "top2",
            "margin.",
            "margin.q",
            "margin.q101",
            "margin.q-1",
            "margin.max",
            "margin.qNaN",
            "margin.q1e9",
        ] {
            assert!(text.parse::<Signal>().unwrap_err().contains("margin.q25"), "{text}");
        }
    }

    #[test]
    fn weights_are_read_as_they_are_written() {
        let read = |text: &str| Prerouter::read(text, 0.5, None);
        let p = read(&Prerouter::write(&[1.0, -2.5e-9], 0.25)).unwrap();
        assert_eq!((&p.weights[..], p.bias), (&[1.0, -2.5e-9][..], 0.25));
        assert_eq!(p.probability(&[-0.25, 0.0]), Some(0.5));
        assert_eq!(p.probability(&[1.0]), None);
        assert_eq!(p.probability(&[f32::NAN, 1.0]), None);
        for text in [
            "",
            "[]",
            "{}",
            r#"{"weights": [], "bias": 0}"#,
            r#"{"weights": ["1"], "bias": 0}"#,
            r#"{"weights": [1]}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
