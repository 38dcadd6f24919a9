//! Loads models, and hides the backend behind one virtual call per step.

pub mod architectures;
pub mod config;
pub mod decoder;
pub mod delta;
pub mod derive;
mod kept;
mod kernels;
pub mod keys;
mod load;
mod load_parts;
pub mod loader;
pub(crate) mod mtp;
pub mod plan;
pub mod pool;
mod recent;
pub mod rope;
mod stacks;
pub(crate) mod stored;
pub mod streams;
pub mod tensor;
pub(crate) mod unread;
pub mod windows;

pub use architectures::{ARCHITECTURES, Architecture, MISSING};
pub use config::context_length;
pub use load::{load, load_while};
pub use mtp::{DraftVocab, Guess, Rows};

use std::sync::Arc;

use octet_compute::backend::{Backend, CacheShape, KvType, KvTypes, Out, Part, Pass};
use octet_compute::batch::{PAGE_TOKENS, PageGroup, Redo};
pub use octet_compute::inspect::Inspect;
use octet_compute::picks::Pick;
use octet_compute::{Batch, ExpertCounts};

use crate::Error;
use config::Config;
use decoder::{Decoder, Scratch};

/// Sizes of a model's caches and buffers, and what to load.
#[derive(Debug, Clone)]
pub struct Limits {
    /// KV pages of [`PAGE_TOKENS`] positions, shared by all sequences.
    pub pages: usize,
    /// Layers with a window have pages of their own, for the window only, where that takes less memory ([`derive::windowed_pages`]). Needs
    /// page tables of both groups ([`octet_compute::batch::Tables`]).
    pub page_groups: bool,
    /// State slots: the maximum number of concurrent sequences.
    pub slots: usize,
    /// Further slots, into which steps that are submitted ahead write new states.
    pub spare_slots: usize,
    /// Snapshots of slots in ordinary memory. Not allocated in advance, but included in memory estimates. With pages of windows, so many windows
    /// of earlier positions can be kept, too.
    pub snapshots: usize,
    /// Maximum number of tokens per step.
    pub batch_tokens: usize,
    /// Maximum rows of logits per step.
    pub batch_outputs: usize,
    /// Maximum guesses of one sequence per step.
    pub guesses: usize,
    /// Types of keys and values.
    pub kv: KvTypes,
    /// Load the multi-token-prediction block, if the file has one.
    pub mtp: bool,
    /// The tokens that it drafts among.
    pub draft_vocab: DraftVocab,
}

impl Limits {
    /// Limits for one sequence of `context` tokens.
    pub fn single(context: usize) -> Self {
        Self {
            pages: context.div_ceil(PAGE_TOKENS),
            page_groups: false,
            slots: 1,
            spare_slots: 0,
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

/// The result of [`Model::step_ahead`].
#[derive(Debug, Clone, Copy)]
pub struct Ahead {
    /// The step was still running when the host began to wait for it. Otherwise nobody knows when it ended.
    pub was_running: bool,
    /// The next step is submitted.
    pub is_next_submitted: bool,
}

/// A loaded model with its caches. Runs one step at a time; all methods are called from the thread that owns it.
pub trait Model: Send {
    /// Its dimensions.
    fn config(&self) -> &Config;
    /// Its caches' sizes.
    fn cache_shape(&self) -> &CacheShape;
    /// The limits it was loaded with.
    fn limits(&self) -> &Limits;
    /// Expert counts of each layer since the model was loaded; with 0 experts for a dense model. May be read while steps run.
    fn expert_counts(&self) -> &Arc<ExpertCounts>;
    /// Its backend.
    fn backend(&mut self) -> &mut dyn Inspect;
    /// Whether batches may give embeddings ([`Batch::give`]), and whether tokens may see each other in both directions ([`Batch::see`]).
    fn takes_images(&self) -> [bool; 2] {
        [false; 2]
    }
    /// Runs one step and returns the logits of `batch.outputs`, `[outputs, vocab]`.
    ///
    /// # Errors
    /// If the device failed: the states of the batch's sequences are then undefined.
    ///
    /// # Panics
    /// If the batch exceeds the limits, or a token is not in the vocabulary.
    fn step(&mut self, batch: &Batch) -> Result<&[f32], Error>;
    /// Lets steps find the largest logits of each row on the device, if logits lie in its own memory. Only tokens whose bit is set in
    /// `sampleable` count. Called before the first step.
    fn prepare_picks(&mut self, _sampleable: &[u32]) -> Result<(), Error> {
        Ok(())
    }
    /// Like `step`. If [`Model::picks`] has the largest logits of each row, it leaves the logits on the device and returns true.
    fn step_picking(&mut self, batch: &Batch) -> Result<bool, Error> {
        self.step(batch).map(|_| false)
    }
    /// Whether a step can follow one of `rows` rows in [`Model::step_ahead`]. The first time, prepares for that, which takes memory of the machine.
    fn can_follow(&mut self, _rows: usize) -> bool {
        false
    }
    /// Runs a step as [`Model::step_picking`] does, with picks of all rows, or waits for it if it was the last call's `next`.
    ///
    /// `next` is a step of one token for each row of this one: the token with the largest logit ([`octet_compute::picks::best`]), whatever the
    /// batch says. It is submitted behind this step, so that the device goes on while the host processes this step's results. The next call has to be
    /// for it, or [`Model::drop_next`]. Only where [`Model::can_follow`].
    fn step_ahead(&mut self, batch: &Batch, _next: Option<&Batch>) -> Result<Ahead, Error> {
        self.step_picking(batch).map(|_| Ahead { was_running: true, is_next_submitted: false })
    }
    /// Waits for a submitted `next`, and drops its results and failures. States that it wrote are undefined.
    ///
    /// # Errors
    /// If the device is lost.
    fn drop_next(&mut self) -> Result<(), Error> {
        Ok(())
    }
    /// The [`octet_compute::picks::PICKS`] largest logits of a row in the order of their ids, if the last step picked.
    fn picks(&mut self, _row: usize, _out: &mut Vec<Pick>) {}
    /// The logits that the last step returned; empty if it picked.
    fn last_logits(&self) -> &[f32];
    /// Calls `work` once for each number below `count` with the last step's logits, on all compute threads. Returns false without
    /// calling it if there are no such threads, or the logits are not in ordinary memory.
    fn share_logits(&mut self, _count: usize, _work: &(dyn Fn(usize, &[f32]) + Sync)) -> bool {
        false
    }
    /// The last layers of an encoder ([`plan::Pool`]): a text's pooled state `[hidden]` to its vector or score. Others return it as it is.
    fn pool(&mut self, state: &[f32]) -> Result<Vec<f32>, Error> {
        Ok(state.to_vec())
    }
    /// The hidden states of the last step's tokens after the final norm, `[tokens, hidden]`.
    fn hidden(&mut self) -> Result<&[f32], Error>;
    /// Like `step`; `probe` receives the residual stream `[tokens, hidden]` after the embedding (0) and after each layer, and finally
    /// the state after the final norm (`layers + 1`).
    fn step_traced(&mut self, batch: &Batch, probe: &mut dyn FnMut(usize, &[f32])) -> Result<&[f32], Error>;
    /// Multi-token prediction: `hidden` has the trunk's states after the final norm `[tokens, hidden]`, and `batch.tokens` the token
    /// after each. `None` if the block is not loaded.
    fn step_mtp(&mut self, batch: &Batch, hidden: &[f32]) -> Result<Option<&[f32]>, Error>;
    /// True where the multi-token-prediction block is loaded.
    fn has_mtp(&self) -> bool {
        false
    }
    /// Notes tokens of a text that the block drafts for, the latest last: from now on it can draft them, however rare they are
    /// ([`DraftVocab::recent`]). Does nothing without the block, or if it drafts among all tokens.
    fn note(&mut self, _tokens: &[u32]) {}
    /// The block's pass after a step: writes the keys and values of `fill`, and one guess for each sequence of `draft` (one token
    /// each) into `out`. Both name rows of the last step, and the tokens after them. Does nothing without the block. Overwrites the
    /// last step's logits and states.
    fn draft(&mut self, _fill: &Rows, _draft: &Rows, _out: &mut [Guess]) -> Result<(), Error> {
        Ok(())
    }
    /// Drafts the next guess: `batch` has the last guess of each of the first sequences of the last `draft` or `draft_more`.
    fn draft_more(&mut self, _batch: &Batch, _out: &mut [Guess]) -> Result<(), Error> {
        Ok(())
    }
    /// Updates the state of `slot` by accepted guesses of its last step. Required before the slot is copied or saved; the sequence's
    /// next step can include it ([`Batch::speculate`]).
    fn redo(&mut self, _slot: usize, _redo: Redo) -> Result<(), Error> {
        Ok(())
    }
    /// Resets a state slot to an empty sequence.
    fn reset_slot(&mut self, slot: usize);
    /// Copies the state of a slot.
    fn copy_slot(&mut self, from: usize, to: usize);
    /// Copies a KV page.
    fn copy_page(&mut self, group: PageGroup, from: usize, to: usize);
    /// Writes a slot's state (`cache_shape().slot_bytes()` bytes) into `out`.
    fn save_slot(&mut self, slot: usize, out: &mut [u8]);
    /// The inverse of `save_slot`.
    fn load_slot(&mut self, slot: usize, data: &[u8]);
    /// Whether the device has failed since the last step: saved data is then invalid, and the next step returns the error.
    fn has_failed(&self) -> bool {
        false
    }
    /// Writes a page (`cache_shape().page_bytes(group)` bytes) into `out`.
    fn save_page(&mut self, group: PageGroup, page: usize, out: &mut [u8]);
    /// The inverse of `save_page`.
    fn load_page(&mut self, group: PageGroup, page: usize, data: &[u8]);
}

/// Most rows of a step of which the largest logits are found on the device.
const PICKED_ROWS_MAX: usize = 64;

struct Loaded<B: Backend> {
    be: B,
    decoder: Decoder<B>,
    cache: B::Cache,
    scratch: Scratch<B>,
    counts: Arc<ExpertCounts>,
    /// Buffers of the multi-token-prediction block, if loaded.
    mtp: Option<mtp::State<B>>,
    redo: Batch,
    /// Logits of the last step `[outputs, vocab]`, if the backend does not lend its buffer.
    logits: Vec<f32>,
    outputs: usize,
    /// Number of tokens of the last step.
    tokens: usize,
    /// Scratch: the picks of a row.
    picked: Vec<Pick>,
    /// The `next` of the last [`Model::step_ahead`] is submitted.
    is_ahead: bool,
    /// For [`Model::hidden`]: a buffer `[batch_tokens, hidden]`, its copy, and whether it is of the last step.
    normed: Option<B::Buf>,
    states: Vec<f32>,
    states_current: bool,
    config: Config,
    shape: CacheShape,
    limits: Limits,
}

impl<B: Backend + Inspect> Loaded<B> {
    fn read_logits(&mut self, batch: &Batch) -> &[f32] {
        let outputs = if self.decoder.head.is_some() { batch.outputs().len() } else { 0 };
        (self.outputs, self.tokens, self.states_current) = (outputs, batch.len(), false);
        if !self.logits.is_empty() {
            let n = self.outputs * self.config.vocab;
            self.be.read(&self.scratch.logits, &mut self.logits[..n]);
        }
        self.last_logits()
    }

    /// Runs one step whose logits stay on the device.
    fn compute(&mut self, batch: &Batch) -> Result<(), Error> {
        self.check_alone();
        let given = self.given(batch)?;
        let Self { be, decoder, cache, scratch, counts, .. } = self;
        be.step(Pass::Trunk, batch, |be| {
            decoder.forward(be, scratch, cache, counts, batch, given.as_ref(), &mut |_, _, _| {});
        })?;
        be.count_experts(counts);
        Ok(())
    }

    /// The embeddings that a batch gives, in the backend's memory.
    fn given(&mut self, batch: &Batch) -> Result<Option<B::Buf>, Error> {
        let (tokens, rows) = batch.given();
        Ok(if tokens.is_empty() { None } else { Some(self.be.vector(rows)?) })
    }

    /// Submits a step whose logits stay on the device.
    fn submit(&mut self, batch: &Batch, follows: bool) -> Result<(), Error> {
        self.check(batch);
        let Self { be, decoder, cache, scratch, counts, .. } = self;
        Ok(be.submit(batch, follows, |be| {
            decoder.forward(be, scratch, cache, counts, batch, None, &mut |_, _, _| {});
        })?)
    }

    /// Returns a failure outside of a step: data read since then is invalid.
    fn check_failure(&mut self) -> Result<(), Error> {
        match self.be.has_failed() {
            true => Ok(self.be.step(Pass::Other, &Batch::default(), |_| {})?),
            false => Ok(()),
        }
    }

    /// Other steps would drop the submitted one, whose caller waits for it.
    fn check_alone(&self) {
        assert!(!self.is_ahead, "the submitted step comes first");
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

    fn takes_images(&self) -> [bool; 2] {
        [Part::Images, Part::ImagesTogether].map(|part| self.be.supports(part))
    }

    fn step(&mut self, batch: &Batch) -> Result<&[f32], Error> {
        self.check(batch);
        self.compute(batch)?;
        self.read_logits(batch);
        self.check_failure()?;
        Ok(self.last_logits())
    }

    fn prepare_picks(&mut self, sampleable: &[u32]) -> Result<(), Error> {
        if self.decoder.head.is_none() {
            return Ok(());
        }
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

    fn can_follow(&mut self, rows: usize) -> bool {
        // A step that follows another one finds its tokens' rows of one table only.
        let one_table = self.decoder.per_layer.is_none() && self.decoder.added.is_empty();
        self.decoder.picks && one_table && self.be.can_follow(&mut self.decoder.embedding, rows)
    }

    fn step_ahead(&mut self, batch: &Batch, next: Option<&Batch>) -> Result<Ahead, Error> {
        if !std::mem::take(&mut self.is_ahead) {
            self.submit(batch, false)?;
        }
        let is_next_submitted = match next.map(|next| self.submit(next, true)) {
            None => false,
            Some(Ok(())) => true,
            Some(Err(e)) if self.be.is_lost() => return Err(e),
            // This step goes on. The next one is computed in its turn, and fails then if it has to.
            Some(Err(_)) => false,
        };
        let was_running = self.be.wait()?;
        self.be.count_experts(&self.counts);
        (self.outputs, self.tokens, self.states_current) = (0, batch.len(), false);
        self.check_failure()?;
        self.is_ahead = is_next_submitted;
        Ok(Ahead { was_running, is_next_submitted })
    }

    fn drop_next(&mut self) -> Result<(), Error> {
        self.is_ahead = false;
        Ok(self.be.discard()?)
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
        self.check_alone();
        let Self { be, decoder, scratch, .. } = self;
        let n = self.tokens;
        if self.states_current {
            return Ok(&self.states);
        }
        let normed = match &mut self.normed {
            Some(n) => n,
            // Allocated on first use: few models need it.
            none => none.insert(be.buf(self.limits.batch_tokens * decoder.hidden)?),
        };
        be.step(Pass::Other, &Batch::default(), |be| {
            be.norm(n, Some(&scratch.h), &decoder.norm, Out::Write(normed));
        })?;
        self.states.resize(n * decoder.hidden, 0.0);
        be.read(normed, &mut self.states);
        self.check_failure()?;
        self.states_current = true;
        Ok(&self.states)
    }

    fn pool(&mut self, state: &[f32]) -> Result<Vec<f32>, Error> {
        Ok(self.decoder.pool.apply(&mut self.be, state)?)
    }

    fn step_traced(&mut self, batch: &Batch, probe: &mut dyn FnMut(usize, &[f32])) -> Result<&[f32], Error> {
        self.check(batch);
        self.check_alone();
        let given = self.given(batch)?;
        let Self { be, decoder, cache, scratch, counts, .. } = self;
        let mut normed = be.buf(batch.len() * decoder.hidden)?;
        let mut row = vec![0.0; batch.len() * decoder.hidden];
        be.step(Pass::Other, batch, |be| {
            decoder.forward(be, scratch, cache, counts, batch, given.as_ref(), &mut |be, layer, h| {
                be.read(h, &mut row);
                probe(layer, &row);
            });
        })?;
        be.count_experts(counts);
        be.norm(batch.len(), Some(&scratch.h), &decoder.norm, Out::Write(&mut normed));
        be.read(&normed, &mut row);
        probe(decoder.layers + 1, &row);
        Ok(self.read_logits(batch))
    }

    fn step_mtp(&mut self, batch: &Batch, hidden: &[f32]) -> Result<Option<&[f32]>, Error> {
        self.check(batch);
        self.check_alone();
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
        let own = decoder.mtp.as_mut().and_then(|m| m.head.as_mut());
        if let (Some(head), Some(all), Some(state)) = (own, &decoder.head, state) {
            state.note(be, all, head, tokens);
        }
    }

    fn draft(&mut self, fill: &Rows, draft: &Rows, out: &mut [Guess]) -> Result<(), Error> {
        self.check(&fill.batch);
        self.check(&draft.batch);
        self.check_alone();
        (self.outputs, self.tokens) = (0, 0);
        let Self { be, decoder, cache, scratch, counts, mtp: state, .. } = self;
        let (Some(mtp), Some(state)) = (&decoder.mtp, state) else { return Ok(()) };
        // Both are read before either is written, which overwrites the trunk's states.
        be.norm_outputs(&fill.from, &scratch.h, &decoder.norm, &mut state.hidden);
        be.norm_outputs(&draft.from, &scratch.h, &decoder.norm, &mut state.own);
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
        self.check_alone();
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
        self.check_alone();
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
    fn copy_page(&mut self, group: PageGroup, from: usize, to: usize) {
        self.be.copy_page(&mut self.cache, group, from, to);
    }
    fn save_slot(&mut self, slot: usize, out: &mut [u8]) {
        self.be.save_slot(&self.cache, slot, out);
    }
    fn load_slot(&mut self, slot: usize, data: &[u8]) {
        self.be.load_slot(&mut self.cache, slot, data);
    }
    fn save_page(&mut self, group: PageGroup, page: usize, out: &mut [u8]) {
        self.be.save_page(&self.cache, group, page, out);
    }
    fn load_page(&mut self, group: PageGroup, page: usize, data: &[u8]) {
        self.be.load_page(&mut self.cache, group, page, data);
    }
}
