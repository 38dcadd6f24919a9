//! KV pages and state slots, handed out to sequences. The memory itself belongs to the backend.

use octet_compute::batch::PAGE_TOKENS;

use crate::Error;
use crate::models::Model;

/// What one sequence has in the caches: its tokens so far, the pages of their keys and values, its state slot.
/// Given back with [`Pool::free`].
#[derive(Debug)]
pub struct Sequence {
    /// Tokens whose keys, values and state are in the caches.
    pub tokens: Vec<u32>,
    /// Page numbers; page `i` holds positions `i * PAGE_TOKENS ..`.
    pub pages: Vec<u32>,
    /// State slot.
    pub slot: usize,
}

/// A copy of a sequence's recurrent state after `tokens` tokens: the only place that a Gated DeltaNet sequence can go
/// back to, for its state can not be truncated.
#[derive(Debug)]
pub struct Snapshot {
    /// Tokens of the sequence at that point.
    pub tokens: usize,
    slot: usize,
}

/// Free pages and free slots of one model.
#[derive(Debug)]
pub struct Pool {
    pages: Vec<u32>,
    slots: Vec<usize>,
    total_pages: usize,
}

impl Pool {
    /// All of a model's pages and slots, free.
    pub fn new(model: &dyn Model) -> Self {
        let shape = model.cache_shape();
        Self {
            pages: (0..shape.pages as u32).rev().collect(),
            slots: (0..shape.slots).rev().collect(),
            total_pages: shape.pages,
        }
    }

    /// Positions that all pages together hold.
    pub fn capacity(&self) -> usize {
        self.total_pages * PAGE_TOKENS
    }

    fn slot(&mut self) -> Result<usize, Error> {
        self.slots.pop().ok_or_else(|| Error::CacheFull { what: "every state slot is taken".into() })
    }

    /// An empty sequence with room for `capacity` tokens in its vectors.
    pub fn sequence(&mut self, model: &mut dyn Model, capacity: usize) -> Result<Sequence, Error> {
        let slot = self.slot()?;
        model.reset_slot(slot);
        Ok(Sequence {
            tokens: Vec::with_capacity(capacity),
            pages: Vec::with_capacity(capacity.div_ceil(PAGE_TOKENS)),
            slot,
        })
    }

    /// Makes room for `more` tokens after those that `seq` has.
    pub fn reserve(&mut self, seq: &mut Sequence, more: usize) -> Result<(), Error> {
        let tokens = seq.tokens.len() + more;
        let need = tokens.div_ceil(PAGE_TOKENS).saturating_sub(seq.pages.len());
        if need > self.pages.len() {
            return Err(Error::ContextFull { tokens, context: self.capacity() });
        }
        seq.pages.extend(self.pages.drain(self.pages.len() - need..).rev());
        Ok(())
    }

    /// Keeps the recurrent state of `seq` as it is now.
    pub fn snapshot(&mut self, model: &mut dyn Model, seq: &Sequence) -> Result<Snapshot, Error> {
        let slot = self.slot()?;
        model.copy_slot(seq.slot, slot);
        Ok(Snapshot { tokens: seq.tokens.len(), slot })
    }

    /// Cuts `seq` after `tokens` tokens. Only for models without recurrent layers: their state can not be cut.
    pub fn truncate(&mut self, seq: &mut Sequence, tokens: usize) {
        seq.tokens.truncate(tokens);
        let keep = seq.tokens.len().div_ceil(PAGE_TOKENS).min(seq.pages.len());
        self.pages.extend(seq.pages.drain(keep..));
    }

    /// Takes `seq` back to where `snapshot` of it was made.
    pub fn restore(&mut self, model: &mut dyn Model, seq: &mut Sequence, snapshot: &Snapshot) {
        assert!(snapshot.tokens <= seq.tokens.len(), "a snapshot of this sequence is not ahead of it");
        model.copy_slot(snapshot.slot, seq.slot);
        self.truncate(seq, snapshot.tokens);
    }

    /// Empties `seq`.
    pub fn clear(&mut self, model: &mut dyn Model, seq: &mut Sequence) {
        model.reset_slot(seq.slot);
        seq.tokens.clear();
        self.pages.append(&mut seq.pages);
    }

    /// Gives a snapshot's slot back.
    pub fn drop_snapshot(&mut self, snapshot: Snapshot) {
        self.slots.push(snapshot.slot);
    }

    /// Gives everything of a sequence back.
    pub fn free(&mut self, seq: Sequence) {
        self.pages.extend(seq.pages);
        self.slots.push(seq.slot);
    }
}
