//! How a model is opened, and the memory that follows from it. Made by the caller of `Engine::open`.

use std::time::Duration;

use octet_compute::backend::{KvType, KvTypes};
use octet_compute::batch::PAGE_TOKENS;
use octet_compute::cpu::{Arbiter, CpuOptions};

use super::speculation;
use crate::Error;
use crate::cache::DiskOptions;
use crate::models::config::CONTEXT_MAX;
use crate::models::{self, Device, Limits};
use crate::report::Report;
use crate::sampler::SamplingDefaults;

/// How a model is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Most tokens of a sequence; `None` is what the model was made for, at most [`DEFAULT_CONTEXT`]. `Some(0)` is all that the model was
    /// made for, as in llama.cpp.
    pub context: Option<usize>,
    /// Tokens that the KV cache holds for all sequences and for what is kept of earlier ones; `None` is one context.
    pub kv_tokens: Option<usize>,
    /// Types of keys and values.
    pub kv: KvTypes,
    /// Sequences that run at once.
    pub max_seqs: usize,
    /// Most tokens of a step.
    pub batch_tokens: usize,
    /// How long a step may take while answers are being generated: prompts get smaller parts of a step until it does.
    /// Never less than [`MIXED_TOKENS_MIN`] tokens, so a slow machine may take longer.
    pub step_time_max: Duration,
    /// Tokens of a prompt that are scored at once; each costs a row of logits.
    pub score_tokens: usize,
    /// Bytes for snapshots of recurrent states in memory; `None` is room for [`SNAPSHOTS_SINGLE`].
    pub snapshot_memory: Option<u64>,
    /// Keep cached pages and states on disk too.
    pub disk: Option<DiskOptions>,
    /// Several tokens a step.
    pub speculation: speculation::Options,
    /// Sampling instead of what the model's files ask for, where a request does not say.
    pub sampling: SamplingDefaults,
    /// Threads and kernels of the processor.
    pub cpu: CpuOptions,
    /// Another device to run on; `None` is the processor.
    pub device: Option<Device>,
    /// Engines that share an arbiter compute one at a time.
    pub arbiter: Arbiter,
}

/// Context of a model that was made for more, unless one is asked for.
pub const DEFAULT_CONTEXT: usize = 16_384;
/// Snapshots that one conversation needs: its last message, and the beginning and the end of the answer to it.
pub const SNAPSHOTS_SINGLE: usize = 3;
/// Least tokens of a prompt in a step that has answers too.
pub const MIXED_TOKENS_MIN: usize = 16;

impl Default for Options {
    fn default() -> Self {
        Self {
            context: None,
            kv_tokens: None,
            kv: KvType::F16.into(),
            max_seqs: 1,
            batch_tokens: 512,
            step_time_max: Duration::from_millis(250),
            score_tokens: 1,
            snapshot_memory: None,
            disk: None,
            speculation: speculation::Options::default(),
            sampling: SamplingDefaults::default(),
            cpu: CpuOptions::default(),
            device: None,
            arbiter: Arbiter::default(),
        }
    }
}

impl Options {
    /// Where it runs.
    pub fn device(&self) -> Device {
        self.device.clone().unwrap_or_else(|| Device::cpu(self.cpu.clone(), self.arbiter.clone()))
    }

    /// Tokens of context for a model that was made for `made_for`.
    pub fn context_for(&self, made_for: usize) -> usize {
        match self.context {
            None => made_for.min(DEFAULT_CONTEXT),
            Some(0) => made_for,
            Some(tokens) => tokens,
        }
    }

    /// What a model that was made for `made_for` tokens of context is loaded with, in the terms of
    /// [`crate::report::Report::memory`]; `slot_bytes` is the size of its recurrent state. Fails for more than
    /// [`CONTEXT_MAX`].
    pub fn limits(&self, made_for: usize, slot_bytes: u64) -> Result<Limits, Error> {
        let context = self.context_for(made_for);
        let kv_tokens = self.kv_tokens.unwrap_or(context);
        let longest = context.max(kv_tokens);
        if longest > CONTEXT_MAX {
            return Err(Error::ContextTooLong { context: longest, most: CONTEXT_MAX });
        }
        let snapshots = match (self.snapshot_memory, slot_bytes) {
            (_, 0) => 0,
            (None, _) => SNAPSHOTS_SINGLE,
            (Some(bytes), slot) => (bytes / slot) as usize,
        };
        let slots = self.max_seqs.max(1);
        let batch_tokens = self.batch_tokens.clamp(1, context.max(1)).max(slots);
        Ok(Limits {
            // One more: a sequence that resumes within a page has a copy of it.
            pages: kv_tokens.div_ceil(PAGE_TOKENS) + 1,
            slots,
            snapshots,
            batch_tokens,
            // one row for each sequence, more for one that is scored, or for guesses
            batch_outputs: slots - 1
                + self.score_tokens.max(1 + self.speculation.step_guesses(slots)).min(batch_tokens),
            guesses: self.speculation.guesses(),
            kv: self.kv,
            mtp: self.speculation.wants_mtp(),
            draft_vocab: self.speculation.vocab,
        })
    }

    /// What the draft model `small` is loaded with, for a model that was made for `made_for` tokens.
    pub(crate) fn draft_limits(
        &self,
        made_for: usize,
        small: &octet_weights::Model,
    ) -> Result<Limits, Error> {
        let context = self.context_for(made_for).min(models::context_length(small)?);
        let kv_tokens = self.kv_tokens.unwrap_or(context).max(context);
        let slots = self.max_seqs.max(1);
        Ok(Limits {
            pages: kv_tokens.div_ceil(PAGE_TOKENS) + slots,
            // one more, for the states of a sequence while it follows its guesses
            slots: slots + 1,
            snapshots: 0,
            batch_tokens: speculation::DRAFT_READ_TOKENS,
            batch_outputs: 1,
            guesses: 0,
            kv: self.kv,
            mtp: false,
            draft_vocab: models::DraftVocab::default(),
        })
    }

    /// Bytes that the draft model takes, weights and caches; 0 without one.
    pub fn draft_memory(&self, made_for: usize) -> Result<u64, Error> {
        match &self.speculation.draft {
            Some(small) if self.speculation.mode == speculation::Mode::Draft => {
                let limits = self.draft_limits(made_for, small)?;
                Ok(Report::new(small)?.memory(&limits, self.cpu.exact).total())
            }
            _ => Ok(0),
        }
    }
}
