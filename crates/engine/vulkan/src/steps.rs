//! Steps: recorded once for each shape, and replayed with another batch in the block.

use std::sync::Arc;
use std::time::Duration;

use octet_compute::backend::{Axes, Pass, TableRow};
use octet_compute::batch::Batch;
use octet_compute::{Error, ExpertCounts};
use octet_weights::Matrix;

use crate::backend::{Vulkan, chunks};
use crate::block::Block;
use crate::record::Recording;
use crate::traffic::Traffic;
use crate::verbs::Scratch;

/// Maximum number of recordings to keep.
const RECORDINGS_MAX: usize = 64;
/// Counts of experts that are read together, into the stack.
const COUNTS_READ: usize = 256;
/// Larger steps are recorded each time: recording takes little time compared with them.
pub(crate) const REPLAY_TOKENS_MAX: usize = 16;

/// Work of the host before a recorded step is replayed.
#[derive(Clone)]
pub(crate) enum Prologue {
    /// Writes these rows of a table into the block, from this value on, times a factor.
    Embed(Arc<Matrix>, TableRow, usize, f32),
    /// Writes sines and cosines, times a factor, as those of the rotation of this number, by the coordinates of each pair if there are any.
    Angles(Arc<[f32]>, f32, usize, Option<Axes>),
}

/// A recorded step.
pub(crate) struct Step {
    pub(crate) key: StepKey,
    pub(crate) recording: Recording,
    pub(crate) prologue: Vec<Prologue>,
    pub(crate) traffic: Traffic,
}

/// The shape of a step. A recording fits all batches of the same shape.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepKey {
    pub(crate) pass: Pass,
    pub(crate) tokens: usize,
    pub(crate) spans: usize,
    pub(crate) outputs: usize,
    pub(crate) chunks: usize,
    /// Which blocks, picks and counts it uses, and whether its tokens are those that the step before picked.
    pub(crate) side: usize,
    pub(crate) follows: bool,
}

impl StepKey {
    /// That of a step over `batch`.
    pub(crate) fn new(pass: Pass, batch: &Batch, side: usize, follows: bool) -> Self {
        Self {
            pass,
            tokens: batch.len(),
            spans: batch.spans().len(),
            outputs: batch.outputs().len(),
            chunks: chunks(batch),
            side,
            follows,
        }
    }

    /// Whether a recording of such a step is kept.
    pub(crate) fn is_short(&self) -> bool {
        self.pass == Pass::Trunk && self.tokens <= REPLAY_TOKENS_MAX
    }
}

/// A submitted step.
pub(crate) struct Flight {
    /// Its submission.
    pub(crate) number: u64,
    pub(crate) side: usize,
    /// Bytes that it reads.
    pub(crate) bytes: u64,
}

/// Writes a table's rows of the batch, times `scale`, into the block, from value `first` on.
fn gather(block: &Block, table: &Matrix, which: TableRow, first: usize, scale: f32, batch: &Batch) {
    let mut row = vec![0.0; table.cols];
    let mut words = vec![0; table.cols];
    for i in 0..batch.len() {
        table.dequantize_row(which.of(batch, i, table.rows), &mut row);
        words.iter_mut().zip(&row).for_each(|(w, x)| *w = (scale * x).to_bits());
        block.rows.write_words((4 * (first + i * table.cols)) as u64, &words);
    }
}

/// Writes sines and cosines of each position and frequency into the block, as those of rotation `index`.
fn angles(block: &Block, index: usize, frequencies: &[f32], scale: f32, axes: Option<&Axes>, batch: &Batch) {
    let mut words = vec![0; 2 * frequencies.len()];
    for t in 0..batch.len() {
        let (position, turn) = (batch.positions()[t], batch.turn_of(t));
        for (i, (pair, frequency)) in words.chunks_exact_mut(2).zip(frequencies).enumerate() {
            let at = axes.map_or(position, |axes| turn[usize::from(axes.of_pair[i])]);
            let (sin, cos) = (at as f32 * frequency).sin_cos();
            (pair[0], pair[1]) = ((sin * scale).to_bits(), (cos * scale).to_bits());
        }
        block.angles[index].write_words((4 * t * words.len()) as u64, &words);
    }
}

impl Vulkan {
    /// Writes `batch` into the block, unless a step has done that.
    pub(crate) fn use_batch(&mut self, batch: &Batch) -> Result<(), Error> {
        if self.in_step {
            return Ok(());
        }
        self.before_host_write()?;
        self.block_mut()?.fill(batch)
    }

    pub(crate) fn scratch(&self) -> Result<&Scratch, Error> {
        self.scratch.as_ref().ok_or_else(|| Error("a step needs a cache first".into()))
    }

    pub(crate) fn block(&self) -> Result<&Block, Error> {
        let blocks = self.blocks.as_ref().ok_or_else(|| Error("a step needs a cache first".into()))?;
        Ok(&blocks[self.side])
    }

    fn block_mut(&mut self) -> Result<&mut Block, Error> {
        let blocks = self.blocks.as_mut().ok_or_else(|| Error("a step needs a cache first".into()))?;
        Ok(&mut blocks[self.side])
    }

    /// Called before the host writes into the block outside of a step: submits commands that would read it, and waits for their end.
    pub(crate) fn before_host_write(&mut self) -> Result<(), Error> {
        if self.in_step {
            return Ok(());
        }
        self.recorder.flush()?;
        self.recorder.wait_for_all()
    }

    /// Where `values` values of embeddings go in the block, which has room for `room`.
    pub(crate) fn take_rows(&mut self, values: usize, room: usize) -> Result<usize, Error> {
        if !self.in_step || self.is_noting_kernels() {
            return Ok(0);
        }
        if self.rows_used + values > room {
            // A large step that reads several tables: those before are copied before they are overwritten.
            self.recorder.flush()?;
            (self.rows_used, self.is_split) = (0, true);
        }
        let first = self.rows_used;
        self.rows_used += values;
        Ok(first)
    }

    /// Submits the commands of a layer, if the step is long: drivers reset a device that computes for seconds without a pause.
    pub(crate) fn end_of_layer(&mut self, tokens: usize) -> Result<(), Error> {
        if self.in_step && tokens > REPLAY_TOKENS_MAX && !self.is_noting_kernels() {
            self.is_split = true;
            self.recorder.flush()?;
            self.pace.end_layer(std::mem::take(&mut self.recorder.spent));
        }
        Ok(())
    }

    /// Runs a prologue for this batch.
    pub(crate) fn prepare(&mut self, prologue: &Prologue, batch: &Batch) -> Result<(), Error> {
        if self.is_noting_kernels() {
            return Ok(());
        }
        let block = self.block()?;
        match prologue {
            Prologue::Embed(table, row, first, scale) => gather(block, table, *row, *first, *scale, batch),
            Prologue::Angles(frequencies, scale, index, axes) => {
                angles(block, *index, frequencies, *scale, axes.as_ref(), batch);
            }
        }
        Ok(())
    }

    /// Submits a step: a recording, if there is one for its shape. What was recorded before runs first.
    pub(crate) fn start(
        &mut self,
        pass: Pass,
        batch: &Batch,
        body: impl FnOnce(&mut Self),
    ) -> Result<Flight, Error> {
        self.tokens = batch.len();
        let key = StepKey::new(pass, batch, self.side, self.follows);
        // Where given embeddings go differs from step to step.
        let known = batch.given().0.is_empty().then(|| self.steps.iter().position(|s| s.key == key));
        match known.flatten() {
            Some(i) => self.replay(i, batch),
            None => self.record_step(key, batch, body),
        }
    }

    /// Begins to record a step over `batch`: the verbs that follow are its commands.
    pub(crate) fn begin_recording(&mut self, batch: &Batch) -> Result<(), Error> {
        let tokens = batch.len();
        self.recorder.flush()?;
        if !batch.spans().is_empty() {
            self.block_mut()?.fill(batch)?;
        }
        self.prologue.clear();
        self.rows_used = 0;
        self.prepared = None;
        self.recorder.traffic = Traffic::default();
        if let Some(timer) = &mut self.recorder.timer {
            timer.begin_step(batch);
        }
        (self.in_step, self.is_split) = (true, false);
        self.recorder.by_stage = tokens > REPLAY_TOKENS_MAX && self.pace.is_by_stage(tokens);
        self.recorder.spent = Duration::ZERO;
        Ok(())
    }

    /// Ends the recording of a step of so many tokens, which is not submitted yet.
    ///
    /// # Errors
    /// If a verb has failed.
    pub(crate) fn end_recording(&mut self, tokens: usize) -> Result<(), Error> {
        (self.in_step, self.recorder.by_stage) = (false, false);
        self.pace.end_step(tokens);
        match self.fault.take() {
            None => Ok(()),
            Some(e) => {
                self.recorder.abandon();
                Err(e)
            }
        }
    }

    /// Records a step and submits it. Keeps the recording if the step can be replayed.
    fn record_step(
        &mut self,
        key: StepKey,
        batch: &Batch,
        body: impl FnOnce(&mut Self),
    ) -> Result<Flight, Error> {
        self.begin_recording(batch)?;
        body(self);
        self.end_recording(key.tokens)?;
        let traffic = self.recorder.traffic;
        let mut flight = Flight { number: 0, side: key.side, bytes: traffic.of(batch) };
        let Some(recording) = self.recorder.finish()? else { return Ok(flight) };
        self.last_step = (recording.barriers, recording.dispatches);
        let mut sent = self.recorder.submit(&recording);
        let is_timed = self.recorder.timer.is_some();
        let keep = !self.is_split && !is_timed && key.is_short() && batch.given().0.is_empty();
        if keep && sent.is_ok() {
            if self.steps.len() == RECORDINGS_MAX
                && let Some(old) = self.steps.pop_front()
            {
                self.recorder.recycle(old.recording);
            }
            let prologue = self.prologue.clone();
            self.steps.push_back(Step { key, recording, prologue, traffic });
        } else {
            if let Ok(number) = sent {
                sent = self.recorder.wait_for(number).map(|_| number);
            }
            self.recorder.recycle(recording);
        }
        flight.number = sent?;
        Ok(flight)
    }

    /// Writes another batch for a recording of its shape, which is submitted next.
    pub(crate) fn begin_replay(&mut self, batch: &Batch, prologue: &[Prologue]) -> Result<(), Error> {
        self.recorder.flush()?;
        self.block_mut()?.fill(batch)?;
        prologue.iter().try_for_each(|p| self.prepare(p, batch))
    }

    /// Submits the recording with this index with another batch.
    fn replay(&mut self, index: usize, batch: &Batch) -> Result<Flight, Error> {
        // The least recently used recording is dropped first.
        let step = self.steps.remove(index).expect("found by the caller");
        let begun = self.begin_replay(batch, &step.prologue);
        self.last_step = (step.recording.barriers, step.recording.dispatches);
        let bytes = step.traffic.of(batch);
        let sent = begun.and_then(|()| self.recorder.submit(&step.recording));
        self.steps.push_back(step);
        Ok(Flight { number: sent?, side: self.side, bytes })
    }

    /// Adds the counts of experts since the last call to `counts`.
    pub(crate) fn add_counts(&mut self, counts: &ExpertCounts) -> Result<(), Error> {
        self.recorder.flush()?;
        let Some(scratch) = &self.scratch else { return Ok(()) };
        let [layers, experts, tokens, top_k] = scratch.counted;
        if experts == 0 {
            return Ok(());
        }
        let counted = &scratch.counts[self.read_side];
        let mut bytes = [0; 4 * COUNTS_READ];
        let all = layers * experts;
        for first in (0..all).step_by(COUNTS_READ) {
            let bytes = &mut bytes[..4 * COUNTS_READ.min(all - first)];
            counted.read(4 * first as u64, bytes);
            for (i, b) in bytes.as_chunks::<4>().0.iter().enumerate() {
                let (layer, expert) = ((first + i) / experts, (first + i) % experts);
                match u32::from_le_bytes(*b) {
                    0 => {}
                    n => {
                        counts.add(layer, expert, n as usize);
                        self.bytes_read += self.expert_bytes.get(layer).copied().unwrap_or(0);
                    }
                }
            }
        }
        if counts.is_traced() {
            let stride = 4 * (top_k + 1);
            let mut routes = vec![0; self.tokens * stride];
            for layer in (0..layers).filter(|layer| self.own_layers.contains(layer)) {
                counted.read((4 * all + layer * tokens * stride) as u64, &mut routes);
                for (token, route) in routes.chunks_exact(stride).enumerate() {
                    let word = |i: usize| u32::from_le_bytes(route.as_chunks::<4>().0[i]);
                    let experts = (0..top_k).map(|k| word(k) as usize);
                    counts.record(layer, token, experts, f32::from_bits(word(top_k)));
                }
            }
        }
        self.clear_counts(self.read_side)
    }

    /// Sets the counts of experts of a side to zero. Its step has ended.
    pub(crate) fn clear_counts(&mut self, side: usize) -> Result<(), Error> {
        let scratch = self.scratch()?;
        let [layers, experts, ..] = scratch.counted;
        scratch.counts[side].clear(0, (4 * layers * experts) as u64);
        Ok(())
    }
}
