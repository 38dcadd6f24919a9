//! The batch block: all that varies from step to step, in memory that both sides see. Kernels read positions, page tables and spans
//! from it, so a recorded step runs again with another batch. Filled by `backend` before a step.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::batch::{Batch, PAGE_TOKENS, PageGroup};

use crate::memory::{Buffer, Memory, Place};

/// The block, and the offsets of its parts in words.
pub(crate) struct Block {
    pub(crate) words: Arc<Buffer>,
    /// Sine and cosine of each token and pair of dimensions, of each rotation. There are more if a step needs them.
    pub(crate) angles: Vec<Arc<Buffer>>,
    /// Rows of embeddings.
    pub(crate) rows: Arc<Buffer>,
    /// Position of each token.
    pub(crate) positions: u32,
    /// Start of each token's page table of each group, from `pages` on.
    pub(crate) tables: [u32; 2],
    /// `page * 64 + row` of each token in each group.
    pub(crate) places: [u32; 2],
    /// `(start, len, slot | from << 16, guesses | redo.first << 8 | redo.len << 16)` of each span.
    pub(crate) spans: u32,
    /// Tokens whose logits are requested.
    pub(crate) outputs: u32,
    /// First position and end of what each token sees in both directions: only its own, unless it is in a block.
    pub(crate) seen: u32,
    /// Page tables.
    pub(crate) pages: u32,
    staged: Vec<u32>,
}

impl Block {
    /// For steps of up to `tokens` tokens and page tables of `pages` pages, angles of `pairs` pairs, and rows of `cols` columns.
    pub(crate) fn new(
        memory: &Memory,
        tokens: usize,
        pages: usize,
        pairs: usize,
        cols: usize,
    ) -> Result<Self, Error> {
        let t = tokens as u32;
        let len = 12 * tokens + pages;
        Ok(Self {
            words: memory.buffer(4 * len as u64, Place::Host)?,
            angles: vec![memory.buffer(8 * (tokens * pairs) as u64, Place::Host)?],
            rows: memory.buffer(8 * (tokens * cols) as u64, Place::Host)?,
            positions: 0,
            tables: [t, 2 * t],
            places: [3 * t, 4 * t],
            spans: 5 * t,
            outputs: 9 * t,
            seen: 10 * t,
            pages: 12 * t,
            staged: vec![0; len],
        })
    }

    /// Makes room for the angles of this many rotations.
    pub(crate) fn add_angles(&mut self, memory: &Memory, rotations: usize) -> Result<(), Error> {
        while self.angles.len() < rotations {
            self.angles.push(memory.buffer(self.angles[0].bytes, Place::Host)?);
        }
        Ok(())
    }

    /// Writes a batch. The device must not be using the block.
    pub(crate) fn fill(&mut self, batch: &Batch) -> Result<(), Error> {
        let most = self.tables[0] as usize;
        let room = self.staged.len() - self.pages as usize;
        if batch.len() > most || batch.pages().len() > room {
            return Err(Error(format!(
                "a step of {} tokens and {} pages is larger than what was planned for: {most} and {room}",
                batch.len(),
                batch.pages().len()
            )));
        }
        let at = |from: u32, i: usize| from as usize + i;
        for (s, span) in batch.spans().iter().enumerate() {
            for t in span.start..span.start + span.len {
                let position = batch.positions()[t];
                self.staged[at(self.positions, t)] = position;
                let seen = batch.block_of(t).map(|p| p as u32);
                self.staged[at(self.seen, 2 * t)..][..2].copy_from_slice(&seen);
                let groups = [(PageGroup::All, span.pages), (PageGroup::Windowed, span.windowed)];
                for (i, (group, table)) in groups.into_iter().enumerate() {
                    let (page, row) = batch.page_of(span, group, position as usize);
                    self.staged[at(self.tables[i], t)] = table as u32;
                    self.staged[at(self.places[i], t)] = (page * PAGE_TOKENS + row) as u32;
                }
            }
            let guessed = span.guesses | span.redo.first << 8 | span.redo.len << 16;
            let slots = span.slot | span.from << 16;
            let words = [span.start as u32, span.len as u32, slots as u32, guessed as u32];
            self.staged[at(self.spans, 4 * s)..][..4].copy_from_slice(&words);
        }
        let outputs = self.outputs as usize;
        self.staged[outputs..][..batch.outputs().len()].copy_from_slice(batch.outputs());
        let pages = self.pages as usize;
        self.staged[pages..][..batch.pages().len()].copy_from_slice(batch.pages());
        self.words.write_words(0, &self.staged[..pages + batch.pages().len()]);
        Ok(())
    }
}
