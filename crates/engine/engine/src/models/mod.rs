//! Architectures by name, and the one virtual call that hides which backend runs them.

mod architectures;
pub mod config;
pub mod decoder;
mod device;
mod keys;
pub mod loader;
pub mod rope;

pub use architectures::{ARCHITECTURES, Architecture, QkNorm};
pub use device::Device;

use std::sync::Arc;

use octet_compute::backend::{Backend, CacheShape, KvType, KvTypes, Pass, StepShape};
pub use octet_compute::inspect::Inspect;
use octet_compute::{Batch, ExpertCounts, batch::PAGE_TOKENS};

use crate::Error;
use config::Config;
use decoder::{Decoder, Scratch};
use loader::{Loader, Progress};

/// How much memory a model's caches and activations may take, and what to load.
#[derive(Debug, Clone)]
pub struct Limits {
    /// KV pages of [`PAGE_TOKENS`] positions, shared by all sequences.
    pub pages: usize,
    /// State slots: sequences that run at once.
    pub slots: usize,
    /// Copies of a slot that are kept beside them, in ordinary memory. Nothing is set aside for them; they are on the
    /// bill all the same.
    pub snapshots: usize,
    /// Tokens of one step.
    pub batch_tokens: usize,
    /// Rows of logits of one step.
    pub batch_outputs: usize,
    /// Types of keys and values.
    pub kv: KvTypes,
    /// Load the multi-token-prediction block, where the file has one.
    pub mtp: bool,
}

impl Limits {
    /// Room for one sequence of `context` tokens.
    pub fn single(context: usize) -> Self {
        Self {
            pages: context.div_ceil(PAGE_TOKENS),
            slots: 1,
            snapshots: 0,
            batch_tokens: 512.min(context.max(1)),
            batch_outputs: 1,
            kv: KvType::F16.into(),
            mtp: false,
        }
    }
}

/// A loaded model with its caches. One step at a time; every method is called from the thread that owns it.
pub trait Model: Send {
    /// Its dimensions.
    fn config(&self) -> &Config;
    /// Its caches' sizes.
    fn cache_shape(&self) -> &CacheShape;
    /// Limits that it was loaded with.
    fn limits(&self) -> &Limits;
    /// Tokens that each expert of each layer was chosen for since it was loaded; with 0 experts for a dense model. What
    /// is counted shows while steps run.
    fn expert_counts(&self) -> &Arc<ExpertCounts>;
    /// What runs it.
    fn backend(&mut self) -> &mut dyn Inspect;
    /// Runs one step and returns the logits of `batch.outputs`, `[outputs, vocab]`.
    ///
    /// # Errors
    /// When the device failed: the states of the batch's sequences are undefined then.
    ///
    /// # Panics
    /// When the batch is larger than the limits, or a token is not in the vocabulary.
    fn step(&mut self, batch: &Batch) -> Result<&[f32], Error>;
    /// The logits that the last step returned.
    fn last_logits(&self) -> &[f32];
    /// The states after the final norm of the last step's tokens, `[tokens, hidden]`.
    fn hidden(&mut self) -> Result<&[f32], Error>;
    /// Like `step`; `probe` sees the residual stream `[tokens, hidden]` after the embedding (0) and after each layer,
    /// and last the state after the final norm (`layers + 1`).
    fn step_traced(&mut self, batch: &Batch, probe: &mut dyn FnMut(usize, &[f32])) -> Result<&[f32], Error>;
    /// Multi-token prediction: `hidden` holds the trunk's states after the final norm `[tokens, hidden]`, and
    /// `batch.tokens` the token after each. `None` when the block is not loaded.
    fn step_mtp(&mut self, batch: &Batch, hidden: &[f32]) -> Result<Option<&[f32]>, Error>;
    /// Makes a state slot that of an empty sequence.
    fn reset_slot(&mut self, slot: usize);
    /// Copies the state of a slot.
    fn copy_slot(&mut self, from: usize, to: usize);
    /// Copies a KV page.
    fn copy_page(&mut self, from: usize, to: usize);
    /// Writes a slot's state (`cache_shape().slot_bytes()` bytes) into `out`.
    fn save_slot(&mut self, slot: usize, out: &mut [u8]);
    /// The inverse of `save_slot`.
    fn load_slot(&mut self, slot: usize, data: &[u8]);
    /// Writes a page (`cache_shape().page_bytes()` bytes) into `out`.
    fn save_page(&mut self, page: usize, out: &mut [u8]);
    /// The inverse of `save_page`.
    fn load_page(&mut self, page: usize, data: &[u8]);
}

/// Positions that a model was made for.
pub fn context_length(model: &octet_weights::Model) -> Result<usize, Error> {
    Ok(Config::read(model)?.context_length)
}

/// Fails where the model's heads cannot be held in these types.
pub(crate) fn check_kv(origin: &str, config: &Config, kv: KvTypes) -> Result<(), Error> {
    let named = |e| octet_compute::Error(format!("{origin}: {e}"));
    Ok(kv.check(config.head_dim).map_err(named)?)
}

/// Loads a model into `be`. Fails where the file has tensors that nothing here computes with: the model would run, and
/// give other text than it was made to.
pub fn load<B: Backend + Inspect>(
    model: &octet_weights::Model,
    mut be: B,
    limits: Limits,
    progress: Progress<'_>,
) -> Result<Box<dyn Model>, Error> {
    let config = Config::read(model)?;
    // Here already, before gigabytes are packed.
    check_kv(&model.origin, &config, limits.kv)?;
    if limits.pages > u32::MAX as usize {
        let what = format!("a cache of {} pages is more than can be numbered", limits.pages);
        return Err(octet_compute::Error(what).into());
    }
    let decoder = Loader::new(model, &mut be, &config, progress).decoder(limits.mtp)?;
    let shape = decoder.cache_shape(limits.pages, limits.slots, limits.kv);
    let step = StepShape {
        tokens: limits.batch_tokens,
        outputs: limits.batch_outputs,
        heads: config.heads,
        intermediate: config.intermediate.max(config.moe.map_or(0, |m| m.shared_intermediate)),
        experts: config.moe.map_or(0, |m| m.experts),
        top_k: config.moe.map_or(0, |m| m.top_k),
        expert_intermediate: config.moe.map_or(0, |m| m.intermediate),
    };
    let cache = be.cache(&shape, step)?;
    let scratch = decoder.scratch(&mut be, limits.batch_tokens, limits.batch_outputs)?;
    let mtp_state = match decoder.mtp {
        Some(_) => Some(be.buf(limits.batch_tokens * config.hidden)?),
        None => None,
    };
    let counts = Arc::new(decoder.expert_counts(config.moe.map_or(0, |m| m.experts)));
    // Only where they have to be copied from the backend's own memory.
    let copied = if be.borrow(&scratch.logits).is_some() { 0 } else { limits.batch_outputs * config.vocab };
    let logits = vec![0.0; copied];
    Ok(Box::new(Loaded {
        be,
        decoder,
        cache,
        scratch,
        counts,
        mtp_state,
        normed: None,
        logits,
        states: Vec::new(),
        states_current: false,
        outputs: 0,
        tokens: 0,
        config,
        shape,
        limits,
    }))
}

struct Loaded<B: Backend> {
    be: B,
    decoder: Decoder<B>,
    cache: B::Cache,
    scratch: Scratch<B>,
    counts: Arc<ExpertCounts>,
    /// The multi-token-prediction block's own state `[tokens, hidden]`, where it is loaded.
    mtp_state: Option<B::Buf>,
    /// `[outputs, vocab]` of the last step, where the backend does not lend its own.
    logits: Vec<f32>,
    outputs: usize,
    /// Tokens of the last step.
    tokens: usize,
    /// For [`Model::hidden`]: `[batch_tokens, hidden]`, what was read from it, and whether it is of the last step.
    normed: Option<B::Buf>,
    states: Vec<f32>,
    states_current: bool,
    config: Config,
    shape: CacheShape,
    limits: Limits,
}

impl<B: Backend + Inspect> Loaded<B> {
    fn read_logits(&mut self, batch: &Batch) -> &[f32] {
        (self.outputs, self.tokens, self.states_current) = (batch.outputs().len(), batch.len(), false);
        if !self.logits.is_empty() {
            let n = self.outputs * self.config.vocab;
            self.be.read(&self.scratch.logits, &mut self.logits[..n]);
        }
        self.last_logits()
    }

    fn check(&self, batch: &Batch) {
        assert!(
            batch.len() <= self.limits.batch_tokens && batch.outputs().len() <= self.limits.batch_outputs
        );
        assert!(batch.tokens().iter().all(|&t| (t as usize) < self.config.vocab));
    }
}

impl<B: Backend + Inspect> Model for Loaded<B> {
    fn config(&self) -> &Config {
        &self.config
    }
    fn cache_shape(&self) -> &CacheShape {
        &self.shape
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn expert_counts(&self) -> &Arc<ExpertCounts> {
        &self.counts
    }
    fn backend(&mut self) -> &mut dyn Inspect {
        &mut self.be
    }

    fn step(&mut self, batch: &Batch) -> Result<&[f32], Error> {
        self.check(batch);
        let Self { be, decoder, cache, scratch, counts, .. } = self;
        be.step(Pass::Trunk, batch, |be| {
            decoder.forward(be, scratch, cache, counts, batch, &mut |_, _, _| {});
        })?;
        be.count_experts(counts);
        Ok(self.read_logits(batch))
    }

    fn last_logits(&self) -> &[f32] {
        let logits = self.be.borrow(&self.scratch.logits).unwrap_or(&self.logits);
        &logits[..self.outputs * self.config.vocab]
    }

    fn hidden(&mut self) -> Result<&[f32], Error> {
        let Self { be, decoder, scratch, .. } = self;
        let n = self.tokens;
        if self.states_current {
            return Ok(&self.states);
        }
        let normed = match &mut self.normed {
            Some(n) => n,
            // few models are asked for it
            none => none.insert(be.buf(self.limits.batch_tokens * decoder.hidden)?),
        };
        be.step(Pass::Other, &Batch::default(), |be| {
            be.norm(n, &scratch.h, &decoder.norm, decoder.eps, normed);
        })?;
        self.states.resize(n * decoder.hidden, 0.0);
        be.read(normed, &mut self.states);
        self.states_current = true;
        Ok(&self.states)
    }

    fn step_traced(&mut self, batch: &Batch, probe: &mut dyn FnMut(usize, &[f32])) -> Result<&[f32], Error> {
        self.check(batch);
        let Self { be, decoder, cache, scratch, counts, .. } = self;
        let mut normed = be.buf(batch.len() * decoder.hidden)?;
        let mut row = vec![0.0; batch.len() * decoder.hidden];
        be.step(Pass::Other, batch, |be| {
            decoder.forward(be, scratch, cache, counts, batch, &mut |be, layer, h| {
                be.read(h, &mut row);
                probe(layer, &row);
            });
        })?;
        be.count_experts(counts);
        be.norm(batch.len(), &scratch.h, &decoder.norm, decoder.eps, &mut normed);
        be.read(&normed, &mut row);
        probe(decoder.layers.len() + 1, &row);
        Ok(self.read_logits(batch))
    }

    fn step_mtp(&mut self, batch: &Batch, hidden: &[f32]) -> Result<Option<&[f32]>, Error> {
        self.check(batch);
        let Self { be, decoder, cache, scratch, counts, mtp_state, .. } = self;
        let (Some(mtp), Some(state)) = (&decoder.mtp, mtp_state) else { return Ok(None) };
        let hidden = be.vector(hidden)?;
        be.step(Pass::Other, batch, |be| {
            decoder.forward_mtp(mtp, be, scratch, cache, counts, batch, &hidden, state);
        })?;
        be.count_experts(counts);
        Ok(Some(self.read_logits(batch)))
    }

    fn reset_slot(&mut self, slot: usize) {
        self.be.reset_slot(&mut self.cache, slot);
    }
    fn copy_slot(&mut self, from: usize, to: usize) {
        self.be.copy_slot(&mut self.cache, from, to);
    }
    fn copy_page(&mut self, from: usize, to: usize) {
        self.be.copy_page(&mut self.cache, from, to);
    }
    fn save_slot(&mut self, slot: usize, out: &mut [u8]) {
        self.be.save_slot(&self.cache, slot, out);
    }
    fn load_slot(&mut self, slot: usize, data: &[u8]) {
        self.be.load_slot(&mut self.cache, slot, data);
    }
    fn save_page(&mut self, page: usize, out: &mut [u8]) {
        self.be.save_page(&self.cache, page, out);
    }
    fn load_page(&mut self, page: usize, data: &[u8]) {
        self.be.load_page(&mut self.cache, page, data);
    }
}
