//! Evaluates texts with a model: logits after each token, perplexity, and divergence from another model.

use octet_compute::Batch;
use octet_compute::batch::PAGE_TOKENS;

use crate::Error;
use crate::engine::Options;
use crate::experts::ExpertUsage;
use crate::models::config::Config;
use crate::models::loader::Progress;
use crate::models::{Limits, Model};
use crate::sampler::SamplerError;

/// A model for evaluating texts.
pub struct Scorer {
    model: Box<dyn Model>,
    batch: Batch,
    pages: Vec<u32>,
    context: usize,
    /// Number of tokens read of the current text.
    past: usize,
}

impl Scorer {
    /// Loads a model; up to `options.score_tokens` tokens are read at once.
    pub fn open(
        file: &octet_weights::Model,
        options: &Options,
        progress: Progress<'_>,
    ) -> Result<Self, Error> {
        let config = Config::read(file)?;
        if config.encoder().is_some() {
            let what = "is an encoder: it gives no probabilities of tokens";
            return Err(Error::Request(format!("{}: {what}", file.origin)));
        }
        let made_for = config.context_length;
        let context = options.context_for(made_for);
        let limits = Limits { page_groups: false, ..options.limits_for(file)? };
        let batch = Batch::with_capacity(limits.batch_outputs, 1, limits.pages);
        let pages = (0..limits.pages as u32).collect();
        let model = options.device().load(file, limits, progress)?;
        Ok(Self { model, batch, pages, context, past: 0 })
    }

    /// Maximum number of tokens of a text.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Maximum number of tokens per [`Scorer::read`].
    pub fn at_once(&self) -> usize {
        self.model.limits().batch_outputs
    }

    /// Size of a row of logits.
    pub fn vocab(&self) -> usize {
        self.model.config().vocab
    }

    /// Expert usage of the tokens read; `None` for a dense model.
    pub fn experts(&self) -> Option<ExpertUsage> {
        ExpertUsage::read(self.model.config(), self.model.expert_counts())
    }

    /// Starts a new text.
    pub fn begin(&mut self) {
        self.model.reset_slot(0);
        self.past = 0;
    }

    /// Reads the next tokens of the text, at most [`Scorer::at_once`], and returns the logits after each, `[tokens, vocab]`. Fails for
    /// unknown ids, texts longer than the context, and logits that are not finite.
    pub fn read(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        if tokens.is_empty() || tokens.len() > self.at_once() {
            return Err(Error::Request(format!("1 to {} tokens can be scored at once", self.at_once())));
        }
        if let Some(id) = tokens.iter().find(|&&id| id as usize >= self.vocab()) {
            return Err(Error::Request(format!(
                "token id {id} is not in the vocabulary of {}",
                self.vocab()
            )));
        }
        let end = self.past + tokens.len();
        if end > self.context {
            return Err(Error::ContextFull { tokens: end, context: self.context });
        }
        self.batch.clear();
        self.batch.push(tokens, self.past, 0, &self.pages[..end.div_ceil(PAGE_TOKENS)], tokens.len());
        self.past = end;
        let logits = self.model.step(&self.batch)?;
        SamplerError::check(logits)?;
        Ok(logits)
    }
}

/// Natural logarithm of the sum of the exponentials.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    f64::from(max) + logits.iter().map(|v| f64::from(v - max).exp()).sum::<f64>().ln()
}

/// Negative log-probability of `id` given `logits`, in nats.
pub fn negative_log_likelihood(logits: &[f32], id: u32) -> f64 {
    log_sum_exp(logits) - f64::from(logits[id as usize])
}

/// The divergence of a model's prediction from a reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Divergence {
    /// Kullback-Leibler divergence of the reference from the model, `sum p ln(p / q)` in nats; 0 if they are equal.
    pub kl: f64,
    /// Both have the same most probable token.
    pub same_top: bool,
    /// Probability of the actual next token: the model's minus the reference's.
    pub probability: f64,
}

impl Divergence {
    /// Compares two rows of logits; `next` is the actual next token.
    pub fn between(reference: &[f32], model: &[f32], next: u32) -> Self {
        let (p_sum, q_sum) = (log_sum_exp(reference), log_sum_exp(model));
        let kl = reference.iter().zip(model).map(|(&p, &q)| {
            let (p, q) = (f64::from(p) - p_sum, f64::from(q) - q_sum);
            p.exp() * (p - q)
        });
        let i = next as usize;
        Self {
            // Negative only by rounding.
            kl: kl.sum::<f64>().max(0.0),
            same_top: top(reference) == top(model),
            probability: (f64::from(model[i]) - q_sum).exp() - (f64::from(reference[i]) - p_sum).exp(),
        }
    }
}

/// The most probable token, the first among equals.
fn top(logits: &[f32]) -> usize {
    logits.iter().enumerate().fold(0, |best, (i, v)| if *v > logits[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_matches_the_probabilities() {
        // p = 1/2, 1/4, 1/4 and q = 1/4, 1/4, 1/2: 1/2 ln 2 - 1/4 ln 2.
        let (p, q) = ([2f32.ln() + 5.0, 5.0, 5.0], [-3.0, -3.0, 2f32.ln() - 3.0]);
        let d = Divergence::between(&p, &q, 2);
        assert!((d.kl - 0.25 * 2f64.ln()).abs() < 1e-6, "{d:?}");
        assert!((d.probability - 0.25).abs() < 1e-6 && !d.same_top, "{d:?}");
        let same = Divergence::between(&p, &p, 0);
        assert_eq!((same.kl, same.probability, same.same_top), (0.0, 0.0, true));
        assert!((negative_log_likelihood(&p, 0) - 2f64.ln()).abs() < 1e-6);
    }
}
