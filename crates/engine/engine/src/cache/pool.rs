//! KV pages and state slots with reference counts. The memory itself belongs to the backend. Used by the prefix cache, and directly
//! for single sequences (`bench`, tests).

use octet_compute::batch::PAGE_TOKENS;

use crate::Error;
use crate::models::Model;

/// A single sequence: its tokens, the pages of their keys and values, its state slot. Released with [`Pool::free`].
#[derive(Debug)]
pub struct Sequence {
    /// Tokens whose keys, values and state are in the caches.
    pub tokens: Vec<u32>,
    /// Page numbers; page `i` holds positions `i * PAGE_TOKENS ..`.
    pub pages: Vec<u32>,
    /// State slot.
    pub slot: usize,
}

/// Reference counts of a page.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    /// Sequences with the page in their tables, plus `kept`.
    refs: u32,
    /// Prefix cache nodes with the page: more than one if it was cached while incomplete and the sequence continued with other tokens
    /// than the node.
    kept: u32,
}

impl Use {
    fn is_idle(self) -> bool {
        self.kept > 0 && self.refs == self.kept
    }
}

/// Pages and slots of one model. A page may be in the tables of several sequences; the callers coordinate writes.
#[derive(Debug)]
pub struct Pool {
    pages: Vec<Use>,
    free: Vec<u32>,
    /// Pages that only the prefix cache uses.
    idle: usize,
    /// Free slots, of sequences and spare ones.
    slots: Vec<usize>,
    /// Sequences that have a slot, and how many may.
    sequences: usize,
    sequences_max: usize,
    total_slots: usize,
}

impl Pool {
    /// All of a model's pages and slots, free.
    pub fn new(model: &dyn Model) -> Self {
        let shape = model.cache_shape();
        Self {
            pages: vec![Use::default(); shape.pages],
            free: (0..shape.pages as u32).rev().collect(),
            idle: 0,
            slots: (0..shape.slots).rev().collect(),
            sequences: 0,
            sequences_max: model.limits().slots.min(shape.slots),
            total_slots: shape.slots,
        }
    }

    /// Total positions in all pages.
    pub fn capacity(&self) -> usize {
        self.pages.len() * PAGE_TOKENS
    }
    /// Total pages.
    pub fn total(&self) -> usize {
        self.pages.len()
    }
    /// Free pages.
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }
    /// Pages that only the prefix cache uses.
    pub fn idle_pages(&self) -> usize {
        self.idle
    }
    /// Number of sequences that still get a slot, once no sequence has a spare one.
    pub fn free_slots(&self) -> usize {
        self.sequences_max - self.sequences
    }
    /// Slots in use, spare ones included.
    pub fn used_slots(&self) -> usize {
        self.total_slots - self.slots.len()
    }

    /// Takes a free page, with one reference.
    pub fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.pages[page as usize] = Use { refs: 1, kept: 0 };
        Some(page)
    }

    /// Adds a sequence's reference to `page`.
    pub fn retain(&mut self, page: u32) {
        let p = &mut self.pages[page as usize];
        assert!(p.refs > 0, "a page in use");
        self.idle -= usize::from(p.is_idle());
        p.refs += 1;
    }

    /// Removes one.
    pub fn release(&mut self, page: u32) {
        let p = &mut self.pages[page as usize];
        assert!(p.refs > p.kept, "a page that a sequence uses");
        p.refs -= 1;
        self.idle += usize::from(p.is_idle());
        if p.refs == 0 {
            self.free.push(page);
        }
    }

    /// Adds a prefix cache node's reference to a page that a sequence uses.
    pub fn keep(&mut self, page: u32) {
        let p = &mut self.pages[page as usize];
        assert!(p.refs > p.kept, "a page that a sequence uses");
        p.kept += 1;
        p.refs += 1;
    }

    /// Removes one.
    pub fn release_kept(&mut self, page: u32) {
        let p = &mut self.pages[page as usize];
        assert!(p.kept > 0, "a page of the prefix cache");
        let was_idle = p.is_idle();
        p.kept -= 1;
        p.refs -= 1;
        if p.refs == 0 {
            self.idle -= usize::from(was_idle);
            self.free.push(page);
        }
    }

    /// Number of references to the page.
    pub fn refs(&self, page: u32) -> u32 {
        self.pages[page as usize].refs
    }

    /// True if only the prefix cache uses the page.
    pub fn is_idle(&self, page: u32) -> bool {
        self.pages[page as usize].is_idle()
    }

    /// A free slot for a sequence. Its state is undefined.
    pub fn take_slot(&mut self) -> Option<usize> {
        if self.sequences == self.sequences_max {
            return None;
        }
        let slot = self.slots.pop()?;
        self.sequences += 1;
        Some(slot)
    }
    /// Releases a sequence's slot.
    pub fn release_slot(&mut self, slot: usize) {
        self.sequences -= 1;
        self.release_spare(slot);
    }
    /// A second slot for a sequence. Its state is undefined.
    pub fn take_spare(&mut self) -> Option<usize> {
        self.slots.pop()
    }
    /// Releases it.
    pub fn release_spare(&mut self, slot: usize) {
        debug_assert!(!self.slots.contains(&slot));
        self.slots.push(slot);
    }

    /// An empty sequence with capacity for `capacity` tokens in its vectors.
    pub fn sequence(&mut self, model: &mut dyn Model, capacity: usize) -> Result<Sequence, Error> {
        let slot = self.take_slot().ok_or(Error::NoSlot)?;
        model.reset_slot(slot);
        Ok(Sequence {
            tokens: Vec::with_capacity(capacity),
            pages: Vec::with_capacity(capacity.div_ceil(PAGE_TOKENS)),
            slot,
        })
    }

    /// Acquires pages for `more` tokens.
    pub fn reserve(&mut self, seq: &mut Sequence, more: usize) -> Result<(), Error> {
        let tokens = seq.tokens.len() + more;
        let need = tokens.div_ceil(PAGE_TOKENS).saturating_sub(seq.pages.len());
        if need > self.free.len() {
            return Err(Error::ContextFull { tokens, context: self.capacity() });
        }
        seq.pages.extend((0..need).filter_map(|_| self.take()));
        Ok(())
    }

    /// Empties `seq`.
    pub fn clear(&mut self, model: &mut dyn Model, seq: &mut Sequence) {
        model.reset_slot(seq.slot);
        seq.tokens.clear();
        seq.pages.drain(..).for_each(|p| self.release(p));
    }

    /// Releases everything of a sequence.
    pub fn free(&mut self, seq: Sequence) {
        seq.pages.into_iter().for_each(|p| self.release(p));
        self.release_slot(seq.slot);
    }
}
