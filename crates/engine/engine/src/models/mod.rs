//! Architectures by name, and the one virtual call that hides which backend runs them.

mod architectures;
pub mod config;
pub mod decoder;
mod device;
mod keys;
pub mod loader;
pub(crate) mod mtp;
mod recent;
pub mod rope;

pub use architectures::{ARCHITECTURES, Architecture, QkNorm};
pub use device::Device;
pub use mtp::{DraftVocab, Guess, Rows};

use std::sync::Arc;

use octet_compute::backend::{Backend, CacheShape, KvType, KvTypes, Pass, StepShape};
use octet_compute::batch::{PAGE_TOKENS, Redo};
pub use octet_compute::inspect::Inspect;
use octet_compute::picks::{PICKS, Pick};
use octet_compute::{Batch, ExpertCounts};

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
    /// Guesses of one sequence in a step, at most.
    pub guesses: usize,
    /// Types of keys and values.
    pub kv: KvTypes,
    /// Load the multi-token-prediction block, where the file has one.
    pub mtp: bool,
    /// The tokens that it drafts among.
    pub draft_vocab: DraftVocab,
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
            guesses: 0,
            kv: KvType::F16.into(),
            mtp: false,
            draft_vocab: DraftVocab::default(),
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
    /// Lets steps find the largest logits of each row on the device, where logits lie in a memory of its own: of those whose bit is set in `sampleable`. Called
    /// before the first step.
    fn prepare_picks(&mut self, _sampleable: &[u32]) -> Result<(), Error> {
        Ok(())
    }
    /// Like `step`; leaves the logits where they are if [`Model::picks`] has the largest of each row, and then returns true.
    fn step_picking(&mut self, batch: &Batch) -> Result<bool, Error> {
        self.step(batch).map(|_| false)
    }
    /// The [`PICKS`] largest logits of a row of the last step, which picked, in the order of their ids.
    fn picks(&mut self, _row: usize, _out: &mut Vec<Pick>) {}
    /// The logits that the last step returned; none if it picked.
    fn last_logits(&self) -> &[f32];
    /// Calls `work` once with each number below `count` and the logits that the last step returned, on all threads that compute. False,
    /// and nothing is done, where there are none, or the logits do not lie in the machine's memory.
    fn share_logits(&mut self, _count: usize, _work: &(dyn Fn(usize, &[f32]) + Sync)) -> bool {
        false
    }
    /// The states after the final norm of the last step's tokens, `[tokens, hidden]`.
    fn hidden(&mut self) -> Result<&[f32], Error>;
    /// Like `step`; `probe` sees the residual stream `[tokens, hidden]` after the embedding (0) and after each layer,
    /// and last the state after the final norm (`layers + 1`).
    fn step_traced(&mut self, batch: &Batch, probe: &mut dyn FnMut(usize, &[f32])) -> Result<&[f32], Error>;
    /// Multi-token prediction: `hidden` holds the trunk's states after the final norm `[tokens, hidden]`, and
    /// `batch.tokens` the token after each. `None` when the block is not loaded.
    fn step_mtp(&mut self, batch: &Batch, hidden: &[f32]) -> Result<Option<&[f32]>, Error>;
    /// True where the multi-token-prediction block is loaded.
    fn has_mtp(&self) -> bool {
        false
    }
    /// These tokens stand in a text that the block drafts for, the latest last: from now on it may guess them too, however rare they are
    /// ([`DraftVocab::recent`]). Does nothing without the block, or where it drafts among all tokens.
    fn note(&mut self, _tokens: &[u32]) {}
    /// The block's pass after a step: writes the keys and values of `fill`, and one guess for each sequence of `draft` into `out`, which
    /// has one token each. Both name rows of the last step, and the tokens that follow these. Does nothing without the block. The last
    /// step's logits and states are gone then.
    fn draft(&mut self, _fill: &Rows, _draft: &Rows, _out: &mut [Guess]) -> Result<(), Error> {
        Ok(())
    }
    /// Guesses on: `batch` has the last guess of each of the first sequences of the last `draft` or `draft_more`.
    fn draft_more(&mut self, _batch: &Batch, _out: &mut [Guess]) -> Result<(), Error> {
        Ok(())
    }
    /// Brings the state of `slot` up to guesses of its last step that were right. Needed before the slot is copied or saved; a step that
    /// goes on with the sequence may do it on the way ([`Batch::speculate`]).
    fn redo(&mut self, _slot: usize, _redo: Redo) -> Result<(), Error> {
        Ok(())
    }
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
    /// Whether the device has failed since the last step: what was saved is worth nothing, and the next step says why.
    fn has_failed(&self) -> bool {
        false
    }
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
    let decoder =
        Loader::new(model, &mut be, &config, progress).decoder(limits.mtp.then_some(limits.draft_vocab))?;
    let shape = decoder.cache_shape(limits.pages, limits.slots, limits.guesses, limits.kv);
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
    let mtp = match &decoder.mtp {
        Some(block) => Some(mtp::State::new(&mut be, &limits, &config, block)?),
        None => None,
    };
    let counts = Arc::new(decoder.expert_counts(&be, step.experts, &step));
    // Only where they have to be copied from the backend's own memory.
    let copied = if be.borrow(&scratch.logits).is_some() { 0 } else { limits.batch_outputs * config.vocab };
    let logits = vec![0.0; copied];
    Ok(Box::new(Loaded {
        be,
        decoder,
        cache,
        scratch,
        counts,
        mtp,
        redo: Batch::with_capacity(0, 1, 0),
        picked: Vec::with_capacity(PICKS),
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

/// Most rows of a step of which the largest logits are found on the device.
const PICKED_ROWS_MAX: usize = 64;

struct Loaded<B: Backend> {
    be: B,
    decoder: Decoder<B>,
    cache: B::Cache,
    scratch: Scratch<B>,
    counts: Arc<ExpertCounts>,
    /// What the multi-token-prediction block works on, where it is loaded.
    mtp: Option<mtp::State<B>>,
    redo: Batch,
    /// `[outputs, vocab]` of the last step, where the backend does not lend its own.
    logits: Vec<f32>,
    outputs: usize,
    /// Tokens of the last step.
    tokens: usize,
    /// What was picked of a row.
    picked: Vec<Pick>,
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

    /// One step, whose logits stay on the device.
    fn compute(&mut self, batch: &Batch) -> Result<(), Error> {
        let Self { be, decoder, cache, scratch, counts, .. } = self;
        be.step(Pass::Trunk, batch, |be| {
            decoder.forward(be, scratch, cache, counts, batch, &mut |_, _, _| {});
        })?;
        be.count_experts(counts);
        Ok(())
    }

    /// What has failed outside of a step, since what was read then is not what was computed.
    fn check_failure(&mut self) -> Result<(), Error> {
        match self.be.has_failed() {
            true => Ok(self.be.step(Pass::Other, &Batch::default(), |_| {})?),
            false => Ok(()),
        }
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
        self.compute(batch)?;
        self.read_logits(batch);
        self.check_failure()?;
        Ok(self.last_logits())
    }

    fn prepare_picks(&mut self, sampleable: &[u32]) -> Result<(), Error> {
        let (rows, vocab) = (self.limits.batch_outputs.min(PICKED_ROWS_MAX), self.config.vocab);
        self.decoder.picks = self.be.prepare_picks(rows, vocab, sampleable)?;
        Ok(())
    }

    fn step_picking(&mut self, batch: &Batch) -> Result<bool, Error> {
        let rows = batch.outputs().len();
        if !self.decoder.picks || rows > PICKED_ROWS_MAX {
            return self.step(batch).map(|_| false);
        }
        self.check(batch);
        self.compute(batch)?;
        let mut is_picked = true;
        for row in 0..rows {
            is_picked &= self.be.picks(row, &mut self.picked);
        }
        if is_picked {
            (self.outputs, self.tokens, self.states_current) = (0, batch.len(), false);
        } else {
            self.read_logits(batch);
        }
        self.check_failure()?;
        Ok(is_picked)
    }

    fn picks(&mut self, row: usize, out: &mut Vec<Pick>) {
        self.be.picks(row, out);
    }

    fn has_failed(&self) -> bool {
        self.be.has_failed()
    }

    fn last_logits(&self) -> &[f32] {
        let logits = self.be.borrow(&self.scratch.logits).unwrap_or(&self.logits);
        &logits[..self.outputs * self.config.vocab]
    }

    fn share_logits(&mut self, count: usize, work: &(dyn Fn(usize, &[f32]) + Sync)) -> bool {
        let n = self.outputs * self.config.vocab;
        self.be.share(&self.scratch.logits, count, &|i, logits| work(i, &logits[..n]))
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
        self.check_failure()?;
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
        let Self { be, decoder, cache, scratch, counts, mtp: state, .. } = self;
        let (Some(mtp), Some(state)) = (&decoder.mtp, state) else { return Ok(None) };
        let hidden = be.vector(hidden)?;
        be.step(Pass::Other, batch, |be| {
            let work = &mut state.work;
            decoder.forward_mtp(mtp, be, scratch, cache, counts, batch, &hidden, work, false);
        })?;
        be.count_experts(counts);
        Ok(Some(self.read_logits(batch)))
    }

    fn has_mtp(&self) -> bool {
        self.mtp.is_some()
    }

    fn note(&mut self, tokens: &[u32]) {
        let Self { be, decoder, mtp: state, .. } = self;
        if let (Some(head), Some(state)) = (decoder.mtp.as_mut().and_then(|m| m.head.as_mut()), state) {
            state.note(be, &decoder.head, head, tokens);
        }
    }

    fn draft(&mut self, fill: &Rows, draft: &Rows, out: &mut [Guess]) -> Result<(), Error> {
        self.check(&fill.batch);
        self.check(&draft.batch);
        (self.outputs, self.tokens) = (0, 0);
        let Self { be, decoder, cache, scratch, counts, mtp: state, .. } = self;
        let (Some(mtp), Some(state)) = (&decoder.mtp, state) else { return Ok(()) };
        // Both before either, which overwrites the trunk's states.
        be.norm_outputs(&fill.from, &scratch.h, &decoder.norm, decoder.eps, &mut state.hidden);
        be.norm_outputs(&draft.from, &scratch.h, &decoder.norm, decoder.eps, &mut state.own);
        if !fill.batch.is_empty() {
            let (batch, hidden, work) = (&fill.batch, &state.hidden, &mut state.work);
            be.step(Pass::Other, batch, |be| {
                decoder.fill_mtp(mtp, be, scratch, cache, batch, hidden, work);
            })?;
        }
        if draft.batch.is_empty() {
            return Ok(());
        }
        state.draft(decoder, mtp, be, scratch, cache, counts, &draft.batch, out)
    }

    fn draft_more(&mut self, batch: &Batch, out: &mut [Guess]) -> Result<(), Error> {
        self.check(batch);
        let Self { be, decoder, cache, scratch, counts, mtp: state, .. } = self;
        match (&decoder.mtp, state) {
            (Some(mtp), Some(state)) => state.draft(decoder, mtp, be, scratch, cache, counts, batch, out),
            _ => Ok(()),
        }
    }

    fn redo(&mut self, slot: usize, redo: Redo) -> Result<(), Error> {
        if redo.len == 0 || self.shape.slot_bytes() == 0 {
            return Ok(());
        }
        let Self { be, decoder, cache, scratch, redo: batch, .. } = self;
        batch.clear();
        batch.push_redo(slot, redo);
        Ok(be.step(Pass::Other, batch, |be| decoder.redo(be, scratch, cache, batch))?)
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
