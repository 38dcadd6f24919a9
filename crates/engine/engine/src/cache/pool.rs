//! KV pages and state slots, counted by who uses them. The memory itself belongs to the backend. Used by the prefix
//! cache, and directly by whatever runs a single sequence (`bench`, tests).

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

/// Use of one page.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    /// Sequences that have it in their tables, plus `kept`.
    refs: u32,
    /// Nodes of the prefix cache that have it: more than one where a page was filed while it was not full, and the
    /// sequence went on with other tokens than the node.
    kept: u32,
}

impl Use {
    fn is_idle(self) -> bool {
        self.kept > 0 && self.refs == self.kept
    }
}

/// Pages and slots of one model. A page may be in the tables of several sequences; who writes to it is up to them.
#[derive(Debug)]
pub struct Pool {
    pages: Vec<Use>,
    free: Vec<u32>,
    /// Pages that only the prefix cache has.
    idle: usize,
    slots: Vec<usize>,
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
            total_slots: shape.slots,
        }
    }

    /// Positions that all pages together hold.
    pub fn capacity(&self) -> usize {
        self.pages.len() * PAGE_TOKENS
    }
    /// Pages in all.
    pub fn total(&self) -> usize {
        self.pages.len()
    }
    /// Pages that nobody has.
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }
    /// Pages that only the prefix cache has.
    pub fn idle_pages(&self) -> usize {
        self.idle
    }
    /// Slots that nobody has.
    pub fn free_slots(&self) -> usize {
        self.slots.len()
    }
    /// Slots in all.
    pub fn total_slots(&self) -> usize {
        self.total_slots
    }

    /// A free page, with one user.
    pub fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.pages[page as usize] = Use { refs: 1, kept: 0 };
        Some(page)
    }

    /// One more sequence uses `page`.
    pub fn retain(&mut self, page: u32) {
        let p = &mut self.pages[page as usize];
        assert!(p.refs > 0, "a page in use");
        self.idle -= usize::from(p.is_idle());
        p.refs += 1;
    }

    /// One less.
    pub fn release(&mut self, page: u32) {
        let p = &mut self.pages[page as usize];
        assert!(p.refs > p.kept, "a page that a sequence uses");
        p.refs -= 1;
        self.idle += usize::from(p.is_idle());
        if p.refs == 0 {
            self.free.push(page);
        }
    }

    /// A node of the prefix cache keeps a page that a sequence uses.
    pub fn keep(&mut self, page: u32) {
        let p = &mut self.pages[page as usize];
        assert!(p.refs > p.kept, "a page that a sequence uses");
        p.kept += 1;
        p.refs += 1;
    }

    /// A node of the prefix cache lets go of a page.
    pub fn let_go(&mut self, page: u32) {
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

    /// How many have the page.
    pub fn refs(&self, page: u32) -> u32 {
        self.pages[page as usize].refs
    }

    /// True where only the prefix cache has the page.
    pub fn is_idle(&self, page: u32) -> bool {
        self.pages[page as usize].is_idle()
    }

    /// A free slot. Its state is whatever its last user left.
    pub fn take_slot(&mut self) -> Option<usize> {
        self.slots.pop()
    }
    /// Gives a slot back.
    pub fn release_slot(&mut self, slot: usize) {
        debug_assert!(!self.slots.contains(&slot));
        self.slots.push(slot);
    }

    /// An empty sequence with room for `capacity` tokens in its vectors.
    pub fn sequence(&mut self, model: &mut dyn Model, capacity: usize) -> Result<Sequence, Error> {
        let slot =
            self.take_slot().ok_or_else(|| Error::CacheFull { what: "every state slot is taken".into() })?;
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

    /// Gives everything of a sequence back.
    pub fn free(&mut self, seq: Sequence) {
        seq.pages.into_iter().for_each(|p| self.release(p));
        self.release_slot(seq.slot);
    }
}
