//! A running sequence's share of the caches: how it is acquired, grown, forked and released.

use octet_compute::batch::{PAGE_TOKENS, Redo};

use super::tiers::Loading;
use super::tree::NodeId;
use super::{Cache, Found};
use crate::Error;
use crate::models::Model;

/// A sequence's page table and state slot. Released with [`Cache::release`].
#[derive(Debug)]
pub struct Lease {
    /// Page numbers; page `i` holds positions `i * PAGE_TOKENS ..`.
    pub pages: Vec<u32>,
    /// State slot.
    pub slot: usize,
    /// Another slot, into which a step that is submitted ahead writes the new state. Until then `slot` has the state of `computed` tokens.
    pub spare: Option<usize>,
    /// Tokens whose keys, values and state are computed.
    pub computed: usize,
    /// Accepted guesses at their end that the state does not include yet.
    pub redo: Redo,
    /// Tokens at the last snapshot, or where the sequence resumed.
    pub kept: usize,
    /// The root of its chain; `None` if nothing of it is cached.
    pub(super) root: Option<NodeId>,
    /// Nodes of its whole pages that are in the tree. The last one, or the root, is pinned.
    pub(super) path: Vec<NodeId>,
    /// Data being read from disk; the sequence waits for it.
    pub(super) loading: Option<Box<Loading>>,
}

impl Lease {
    /// True if both sequences share their cached prefix.
    pub fn shares_cache_with(&self, found: &Found) -> bool {
        self.root.is_some() && self.root == found.root
    }

    /// Updates the state to `computed` tokens.
    pub(super) fn settle(&mut self, model: &mut dyn Model) -> Result<(), Error> {
        model.redo(self.slot, self.redo)?;
        self.redo = Redo { first: self.redo.first + self.redo.len, len: 0 };
        Ok(())
    }

    /// True while it waits for data from disk.
    pub fn is_loading(&self) -> bool {
        self.loading.is_some()
    }
}

impl Cache {
    /// Starts a sequence at `found`, with capacity for `capacity` tokens in its vectors. `None` if no slot or page is available.
    pub fn acquire(&mut self, model: &mut dyn Model, found: &Found, capacity: usize) -> Option<Lease> {
        let slot = self.pool.take_slot()?;
        let mut pages = Vec::with_capacity(capacity.div_ceil(PAGE_TOKENS));
        let mut path = Vec::with_capacity(capacity / PAGE_TOKENS);
        for &node in &found.path {
            if let Some((page, _)) = self.tree.nodes[node].page {
                self.pool.retain(page);
                pages.push(page);
                path.push(node);
            }
        }
        let last = path.last().copied().or(found.root);
        if let Some(last) = last {
            self.tree.nodes[last].pins += 1;
            self.tree.touch(last);
        }
        let lease = Lease {
            pages,
            slot,
            spare: None,
            computed: found.position,
            redo: Redo::default(),
            kept: found.position,
            root: found.root,
            path,
            loading: None,
        };
        match &found.disk {
            Some(on_disk) => self.load(model, found.position, on_disk, lease),
            None => self.resume(model, found, lease),
        }
    }

    /// Restores the state, and copies the page that the sequence continues to write.
    fn resume(&mut self, model: &mut dyn Model, found: &Found, mut lease: Lease) -> Option<Lease> {
        if let Some(id) = found.snapshot
            && let Some(s) = self.tree.snapshots.get_mut(&id)
        {
            s.pins += 1;
        }
        let mut ok = true;
        if let Some((from, _)) = found.host.and_then(|h| self.tree.nodes[h].page) {
            self.pool.retain(from); // it must not be evicted for its own copy
            let page = self.page(model);
            if let Some(to) = page {
                model.copy_page(from as usize, to as usize);
                lease.pages.push(to);
            }
            self.pool.release(from);
            ok = page.is_some();
        }
        match found.snapshot.and_then(|id| self.tree.snapshots.get_mut(&id).map(|s| (id, s))) {
            Some((id, s)) => {
                s.pins -= 1;
                if ok {
                    s.hits += 1;
                    self.stats.hits += 1;
                    model.load_slot(lease.slot, &s.state);
                    self.touch_snapshot(id);
                }
            }
            None => model.reset_slot(lease.slot),
        }
        if ok {
            return Some(lease);
        }
        self.release(lease);
        None
    }

    /// Acquires pages for `tokens` tokens in total; false if there are not enough.
    pub fn grow(&mut self, model: &mut dyn Model, lease: &mut Lease, tokens: usize) -> bool {
        while lease.pages.len() * PAGE_TOKENS < tokens {
            let Some(page) = self.page(model) else { return false };
            lease.pages.push(page);
        }
        true
    }

    /// The same with free pages alone: nothing that is cached makes room.
    pub fn grow_freely(&mut self, lease: &mut Lease, tokens: usize) -> bool {
        while lease.pages.len() * PAGE_TOKENS < tokens {
            let Some(page) = self.pool.take() else { return false };
            lease.pages.push(page);
        }
        true
    }

    /// A second sequence at the same position: shares all whole pages, and gets copies of the rest.
    pub fn fork(&mut self, model: &mut dyn Model, lease: &Lease) -> Option<Lease> {
        debug_assert!(lease.redo.len == 0, "answers branch off at the end of their prompt");
        let slot = self.pool.take_slot()?;
        let mut pages = Vec::with_capacity(lease.pages.capacity());
        let whole = lease.computed / PAGE_TOKENS;
        let mut copy = None;
        if !lease.computed.is_multiple_of(PAGE_TOKENS) {
            let Some(page) = self.page(model) else {
                self.pool.release_slot(slot);
                return None;
            };
            model.copy_page(lease.pages[whole] as usize, page as usize);
            copy = Some(page);
        }
        for &page in &lease.pages[..whole] {
            self.pool.retain(page);
            pages.push(page);
        }
        pages.extend(copy);
        model.copy_slot(lease.slot, slot);
        if let Some(last) = lease.path.last().copied().or(lease.root) {
            self.tree.nodes[last].pins += 1;
        }
        Some(Lease {
            pages,
            slot,
            spare: None,
            computed: lease.computed,
            redo: lease.redo,
            kept: lease.kept,
            root: lease.root,
            path: lease.path.clone(),
            loading: None,
        })
    }

    /// Gives a sequence a spare slot if it has a state; false if none is free.
    pub fn take_spare(&mut self, lease: &mut Lease) -> bool {
        if self.recurrent && lease.spare.is_none() {
            lease.spare = self.pool.take_spare();
        }
        !self.recurrent || lease.spare.is_some()
    }

    /// Takes it back.
    pub fn release_spare(&mut self, lease: &mut Lease) {
        lease.spare.take().into_iter().for_each(|slot| self.pool.release_spare(slot));
    }

    /// Ends a sequence. Its cached parts remain.
    pub fn release(&mut self, lease: Lease) {
        self.version += 1;
        lease.pages.into_iter().for_each(|p| self.pool.release(p));
        self.pool.release_slot(lease.slot);
        lease.spare.into_iter().for_each(|slot| self.pool.release_spare(slot));
        if let Some(last) = lease.path.last().copied().or(lease.root) {
            self.tree.nodes[last].pins -= 1;
        }
    }
}
