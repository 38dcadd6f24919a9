//! KV pages and state slots with reference counts. The memory itself belongs to the backend.

use octet_compute::backend::Window;
use octet_compute::batch::{PAGE_TOKENS, PageGroup};

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

/// The pages of a group, with their users. A page may be in the tables of several sequences; the callers coordinate writes.
#[derive(Debug)]
pub struct Pages {
    pages: Vec<Use>,
    free: Vec<u32>,
    /// Pages that only the prefix cache uses.
    idle: usize,
}

impl Pages {
    /// All free.
    fn new(count: usize) -> Self {
        Self { pages: vec![Use::default(); count], free: (0..count as u32).rev().collect(), idle: 0 }
    }

    /// Total pages.
    pub fn total(&self) -> usize {
        self.pages.len()
    }
    /// Free pages.
    pub fn free(&self) -> usize {
        self.free.len()
    }
    /// Pages that only the prefix cache uses.
    pub fn idle(&self) -> usize {
        self.idle
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
}

/// Pages and slots of one model.
#[derive(Debug)]
pub struct Pool {
    /// Pages of layers that attend to all positions, or of all layers.
    pub all: Pages,
    /// Pages of layers with a window; none if these are among the others.
    pub windowed: Pages,
    /// The window of these layers.
    window: Option<Window>,
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
            all: Pages::new(shape.pages),
            windowed: Pages::new(shape.pages_of(PageGroup::Windowed)),
            window: shape.windowed.map(|w| w.window),
            slots: (0..shape.slots).rev().collect(),
            sequences: 0,
            sequences_max: model.limits().slots.min(shape.slots),
            total_slots: shape.slots,
        }
    }

    /// The pages of a group.
    pub fn group(&mut self, group: PageGroup) -> &mut Pages {
        match group {
            PageGroup::All => &mut self.all,
            PageGroup::Windowed => &mut self.windowed,
        }
    }
    /// Index of the first windowed page that a sequence needs whose next token is at `position`; `None` if there are no such pages.
    pub fn first_windowed(&self, position: usize) -> Option<usize> {
        self.window.map(|w| w.first(position) / PAGE_TOKENS)
    }
    /// Total positions in all pages.
    pub fn capacity(&self) -> usize {
        self.all.total() * PAGE_TOKENS
    }
    /// Number of sequences that still get a slot, once no sequence has a spare one.
    pub fn free_slots(&self) -> usize {
        self.sequences_max - self.sequences
    }
    /// Slots in use, spare ones included.
    pub fn used_slots(&self) -> usize {
        self.total_slots - self.slots.len()
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

    /// An empty sequence with capacity for `capacity` tokens in its vectors. Only for models without pages of windows.
    pub fn sequence(&mut self, model: &mut dyn Model, capacity: usize) -> Result<Sequence, Error> {
        debug_assert!(self.window.is_none(), "a sequence has one page table");
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
        if need > self.all.free() {
            return Err(Error::ContextFull { tokens, context: self.capacity() });
        }
        seq.pages.extend((0..need).filter_map(|_| self.all.take()));
        Ok(())
    }

    /// Empties `seq`.
    pub fn clear(&mut self, model: &mut dyn Model, seq: &mut Sequence) {
        model.reset_slot(seq.slot);
        seq.tokens.clear();
        seq.pages.drain(..).for_each(|p| self.all.release(p));
    }

    /// Releases everything of a sequence.
    pub fn free(&mut self, seq: Sequence) {
        seq.pages.into_iter().for_each(|p| self.all.release(p));
        self.release_slot(seq.slot);
    }
}
