//! How to open a model, and the resulting memory limits. Made by the caller of `Engine::open`.

use std::time::Duration;

use octet_compute::backend::{KvType, KvTypes};
use octet_compute::batch::PAGE_TOKENS;
use octet_compute::cpu::{Arbiter, CpuOptions};

use super::speculation;
use crate::Error;
use crate::cache::DiskOptions;
use crate::device::Device;
use crate::models::config::{CONTEXT_MAX, Config};
use crate::models::derive::snapshot_bytes;
use crate::models::unread::check_window;
use crate::models::{self, Limits};
use crate::report::Report;
use crate::sampler::SamplingDefaults;
use crate::vision;

/// Settings for opening a model.
#[derive(Debug, Clone)]
pub struct Options {
    /// Maximum tokens of a sequence; `None` means the model's context, at most [`DEFAULT_CONTEXT`]; `Some(0)` the model's full
    /// context, as in llama.cpp.
    pub context: Option<usize>,
    /// Tokens that the KV cache holds for all sequences and the prefix cache; `None` means one context.
    pub kv_tokens: Option<usize>,
    /// Types of keys and values.
    pub kv: KvTypes,
    /// See [`Limits::page_groups`].
    pub page_groups: bool,
    /// Maximum number of concurrent sequences.
    pub max_seqs: usize,
    /// Maximum number of tokens per step.
    pub batch_tokens: usize,
    /// Target time of a step while answers are generated: the prompts' share of steps is reduced to reach it, but not below
    /// [`MIXED_TOKENS_MIN`] tokens, so steps of a slow machine may take longer.
    pub step_time_max: Duration,
    /// Maximum number of prompt tokens scored at once; each needs a row of logits.
    pub score_tokens: usize,
    /// Memory for snapshots of recurrent states and of windows in bytes; `None` means [`SNAPSHOTS_SINGLE`] of them.
    pub snapshot_memory: Option<u64>,
    /// Also store cached pages and states on disk.
    pub disk: Option<DiskOptions>,
    /// Speculative decoding.
    pub speculation: speculation::Options,
    /// The tower that reads images.
    pub vision: Option<vision::Options>,
    /// Default sampling settings instead of those in the model's files.
    pub sampling: SamplingDefaults,
    /// Threads and kernels of the processor.
    pub cpu: CpuOptions,
    /// Another device; `None` means the processor.
    pub device: Option<Device>,
    /// Engines that share an arbiter compute one at a time.
    pub arbiter: Arbiter,
}

/// Default context of models with a larger one.
pub const DEFAULT_CONTEXT: usize = 16_384;
/// Snapshots that one conversation needs: at its last message, and at the beginning and the end of the answer.
pub const SNAPSHOTS_SINGLE: usize = 3;
/// Texts that an encoder computes at once, at least.
const ENCODED_TEXTS: usize = 32;
/// Minimum number of prompt tokens in a step with answers.
pub const MIXED_TOKENS_MIN: usize = 16;

impl Default for Options {
    fn default() -> Self {
        Self {
            context: None,
            kv_tokens: None,
            kv: KvType::F16.into(),
            page_groups: true,
            max_seqs: 1,
            batch_tokens: 512,
            step_time_max: Duration::from_millis(250),
            score_tokens: 1,
            snapshot_memory: None,
            disk: None,
            speculation: speculation::Options::default(),
            vision: None,
            sampling: SamplingDefaults::default(),
            cpu: CpuOptions::default(),
            device: None,
            arbiter: Arbiter::default(),
        }
    }
}

impl Options {
    /// The device.
    pub fn device(&self) -> Device {
        self.device.clone().unwrap_or_else(|| Device::cpu(self.cpu.clone(), self.arbiter.clone()))
    }

    /// These settings for a model: an encoder computes several texts as a whole in each step, remembers nothing of them, and keeps the keys and
    /// values of one layer only, so these are exact. Other models whose positions are learned have no longer context than these. Does nothing
    /// for all others, or a second time.
    pub fn for_config(&self, config: &Config) -> Self {
        let mut options = self.clone();
        if config.encoder().is_none() {
            if config.has_context_max() {
                let context = self.context_for(config.context_length).min(config.context_length);
                options.context = Some(context);
            }
            return options;
        }
        let mut context = self.context_for(config.context_length);
        if config.has_context_max() {
            context = context.min(config.context_length);
        }
        options.context = Some(context);
        options.batch_tokens = self.batch_tokens.max(context);
        options.max_seqs = self.max_seqs.max(ENCODED_TEXTS);
        // A page for the rest of each text.
        options.kv_tokens = Some(options.batch_tokens + options.max_seqs * PAGE_TOKENS);
        options.kv = KvType::F32.into();
        options.speculation =
            speculation::Options { mode: speculation::Mode::Off, ..self.speculation.clone() };
        options.disk = None;
        options
    }

    /// The context for a model whose own is `made_for`.
    pub fn context_for(&self, made_for: usize) -> usize {
        match self.context {
            None => made_for.min(DEFAULT_CONTEXT),
            Some(0) => made_for,
            Some(tokens) => tokens,
        }
    }

    /// The limits for loading a model. Fails if its context is longer than a window that is not computed.
    pub fn limits_for(&self, file: &octet_weights::Model) -> Result<Limits, Error> {
        let config = Config::read(file)?;
        check_window(file, &config.plan, self.context_for(config.context_length))?;
        self.limits(config.context_length, snapshot_bytes(&config.plan, self.kv))
    }

    /// The limits for loading a model whose own context is `made_for`, in the terms of [`crate::report::Report::memory`];
    /// `snapshot_bytes` is the size of its snapshots ([`snapshot_bytes`]). Fails above [`CONTEXT_MAX`].
    pub fn limits(&self, made_for: usize, snapshot_bytes: u64) -> Result<Limits, Error> {
        let context = self.context_for(made_for);
        let kv_tokens = self.kv_tokens.unwrap_or(context);
        let longest = context.max(kv_tokens);
        if longest > CONTEXT_MAX {
            return Err(Error::ContextTooLong { context: longest, most: CONTEXT_MAX });
        }
        let snapshots = match (self.snapshot_memory, snapshot_bytes) {
            (_, 0) => 0,
            (None, _) => SNAPSHOTS_SINGLE,
            (Some(bytes), each) => (bytes / each) as usize,
        };
        let slots = self.max_seqs.max(1);
        let batch_tokens = self.batch_tokens.clamp(1, longest.max(1)).max(slots);
        Ok(Limits {
            // One more: a sequence that resumes within a page has a copy of it.
            pages: kv_tokens.div_ceil(PAGE_TOKENS) + 1,
            page_groups: self.page_groups,
            slots,
            // So that a step can be submitted ahead of one running answer. Others take free slots.
            spare_slots: usize::from(self.device.as_ref().is_some_and(Device::runs_ahead)),
            snapshots,
            batch_tokens,
            // One row for each sequence, and more for scored prompts or guesses.
            batch_outputs: slots - 1
                + self.score_tokens.max(1 + self.speculation.step_guesses(slots)).min(batch_tokens),
            guesses: self.speculation.guesses(),
            kv: self.kv,
            mtp: self.speculation.uses_mtp(),
            draft_vocab: self.speculation.vocab,
        })
    }

    /// The limits of the draft model `small`, for a main model whose context is `made_for`. Fails if `small` has none of its own.
    pub fn draft_limits(&self, made_for: usize, small: &octet_weights::Model) -> Result<Limits, Error> {
        let context = self.context_for(made_for).min(models::context_length(small)?);
        let kv_tokens = self.kv_tokens.unwrap_or(context).max(context);
        let slots = self.max_seqs.max(1);
        Ok(Limits {
            pages: kv_tokens.div_ceil(PAGE_TOKENS) + slots,
            page_groups: false,
            // One more, for the state of a sequence while it follows its guesses.
            slots: slots + 1,
            spare_slots: 0,
            snapshots: 0,
            batch_tokens: speculation::DRAFT_READ_TOKENS,
            batch_outputs: 1,
            guesses: 0,
            kv: self.kv,
            mtp: false,
            draft_vocab: models::DraftVocab::default(),
        })
    }

    /// Memory of the draft model in bytes, weights and caches; 0 without one.
    pub fn draft_memory(&self, made_for: usize) -> Result<u64, Error> {
        let Some(small) = self.draft_model() else { return Ok(0) };
        let limits = self.draft_limits(made_for, small)?;
        Ok(Report::new(small)?.memory(&limits, self.cpu.exact).total())
    }

    /// The draft model, if one is used.
    pub fn draft_model(&self) -> Option<&octet_weights::Model> {
        let is_used = self.speculation.mode == speculation::Mode::Draft;
        self.speculation.draft.as_deref().filter(|_| is_used)
    }
}
