//! A running sequence's share of the caches: how it is acquired, grown, forked and released.

use octet_compute::batch::{PAGE_TOKENS, PageGroup, Redo, Tables};

use super::tiers::Loading;
use super::tree::{Node, NodeId};
use super::{Cache, Found};
use crate::Error;
use crate::models::Model;

/// A sequence's pages of layers with a window, if these have pages of their own.
#[derive(Debug, Default)]
pub struct WindowTable {
    /// Page numbers; page `i` holds positions `i * PAGE_TOKENS ..`. Those before `first` are no longer the sequence's.
    pages: Vec<u32>,
    first: usize,
}

impl WindowTable {
    /// Without pages for the positions before page `first`.
    fn from(first: usize, capacity: usize) -> Self {
        let mut pages = Vec::with_capacity(capacity);
        pages.resize(first, 0);
        Self { pages, first }
    }

    /// The pages that the sequence uses.
    pub(super) fn used(&self) -> &[u32] {
        &self.pages[self.first..]
    }

    /// Page number `i`, if it is the sequence's.
    pub(super) fn get(&self, i: usize) -> Option<u32> {
        self.pages.get(i).copied().filter(|_| i >= self.first)
    }
}

/// A sequence's page table and state slot. Released with [`Cache::release`].
#[derive(Debug)]
pub struct Lease {
    /// Page numbers; page `i` holds positions `i * PAGE_TOKENS ..`.
    pub pages: Vec<u32>,
    pub(super) windowed: WindowTable,
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
    /// Page tables of the first `positions` positions.
    pub fn tables(&self, positions: usize) -> Tables<'_> {
        let pages = positions.div_ceil(PAGE_TOKENS);
        let windowed = &self.windowed.pages[..pages.min(self.windowed.pages.len())];
        Tables { all: &self.pages[..pages], windowed }
    }

    /// Positions that all of its pages cover.
    pub fn covered(&self) -> usize {
        let windowed = self.windowed.pages.len();
        PAGE_TOKENS * if windowed == 0 { self.pages.len() } else { self.pages.len().min(windowed) }
    }

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
        let windowed = self.window_of(found, capacity);
        let mut path = Vec::with_capacity(capacity / PAGE_TOKENS);
        for &node in &found.path {
            if let Some((page, _)) = self.tree.nodes[node].page {
                self.pool.all.retain(page);
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
            windowed,
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

    /// The pages of the window at `found`, but for an incomplete one.
    fn window_of(&mut self, found: &Found, capacity: usize) -> WindowTable {
        let Some(first) = self.pool.first_windowed(found.position) else { return WindowTable::default() };
        let capacity = capacity.div_ceil(PAGE_TOKENS);
        if found.disk.is_some() {
            return WindowTable::from(first, capacity); // read from there
        }
        let mut window = WindowTable::from(first.min(found.path.len()), capacity);
        for &node in found.path.iter().skip(first) {
            let page = self.tree.nodes[node].windowed.map(|(page, _)| page).expect("its snapshot keeps it");
            self.pool.windowed.retain(page);
            window.pages.push(page);
        }
        window
    }

    /// Restores the state, and copies the page that the sequence continues to write.
    fn resume(&mut self, model: &mut dyn Model, found: &Found, mut lease: Lease) -> Option<Lease> {
        if let Some(id) = found.snapshot
            && let Some(s) = self.tree.snapshots.get_mut(&id)
        {
            s.pins += 1;
        }
        let mut ok = true;
        if let Some(host) = found.host {
            let Node { page, windowed, .. } = self.tree.nodes[host];
            let page = page.map(|(from, _)| self.copy(model, PageGroup::All, from));
            lease.pages.extend(page.flatten());
            let windowed = windowed
                .filter(|_| self.pool.windowed.total() > 0)
                .map(|(from, _)| self.copy(model, PageGroup::Windowed, from));
            lease.windowed.pages.extend(windowed.flatten());
            ok = page != Some(None) && windowed != Some(None);
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

    /// A copy of a page, if there is one for it.
    fn copy(&mut self, model: &mut dyn Model, group: PageGroup, from: u32) -> Option<u32> {
        self.pool.group(group).retain(from); // it must not be evicted for its own copy
        let page = self.page(model, group);
        if let Some(to) = page {
            model.copy_page(group, from as usize, to as usize);
        }
        self.pool.group(group).release(from);
        page
    }

    /// Acquires pages for `tokens` tokens in total; false if there are not enough.
    pub fn grow(&mut self, model: &mut dyn Model, lease: &mut Lease, tokens: usize) -> bool {
        while lease.pages.len() * PAGE_TOKENS < tokens {
            let Some(page) = self.page(model, PageGroup::All) else { return false };
            lease.pages.push(page);
        }
        while self.has_windows() && lease.windowed.pages.len() * PAGE_TOKENS < tokens {
            let Some(page) = self.page(model, PageGroup::Windowed) else { return false };
            lease.windowed.pages.push(page);
        }
        true
    }

    /// The same with free pages alone: nothing that is cached makes room.
    pub fn grow_freely(&mut self, lease: &mut Lease, tokens: usize) -> bool {
        while lease.pages.len() * PAGE_TOKENS < tokens {
            let Some(page) = self.pool.all.take() else { return false };
            lease.pages.push(page);
        }
        while self.has_windows() && lease.windowed.pages.len() * PAGE_TOKENS < tokens {
            let Some(page) = self.pool.windowed.take() else { return false };
            lease.windowed.pages.push(page);
        }
        true
    }

    /// Releases the pages before the window of a sequence's next token.
    pub fn slide(&mut self, lease: &mut Lease) {
        let Some(first) = self.pool.first_windowed(lease.computed) else { return };
        let window = &mut lease.windowed;
        let first = first.clamp(window.first, window.pages.len());
        window.pages[window.first..first].iter().for_each(|p| self.pool.windowed.release(*p));
        window.first = first;
    }

    /// A second sequence at the same position: shares all whole pages, and gets copies of the rest.
    pub fn fork(&mut self, model: &mut dyn Model, lease: &Lease) -> Option<Lease> {
        debug_assert!(lease.redo.len == 0, "answers branch off at the end of their prompt");
        let slot = self.pool.take_slot()?;
        let whole = lease.computed / PAGE_TOKENS;
        let is_whole = lease.computed.is_multiple_of(PAGE_TOKENS);
        let mut copies = [None, None];
        let used = [Some(lease.pages[whole.min(lease.pages.len() - 1)]), lease.windowed.get(whole)];
        for (i, group) in [PageGroup::All, PageGroup::Windowed].into_iter().enumerate() {
            let Some(from) = used[i].filter(|_| !is_whole) else { continue };
            copies[i] = self.copy(model, group, from);
            if copies[i].is_none() {
                copies[0].into_iter().for_each(|p| self.pool.all.release(p));
                self.pool.release_slot(slot);
                return None;
            }
        }
        let mut pages = Vec::with_capacity(lease.pages.capacity());
        for &page in &lease.pages[..whole] {
            self.pool.all.retain(page);
            pages.push(page);
        }
        pages.extend(copies[0]);
        let WindowTable { pages: own, first } = &lease.windowed;
        let mut windowed = WindowTable::from(*first, own.capacity());
        for &page in own.get(*first..whole).unwrap_or(&[]) {
            self.pool.windowed.retain(page);
            windowed.pages.push(page);
        }
        windowed.pages.extend(copies[1]);
        model.copy_slot(lease.slot, slot);
        if let Some(last) = lease.path.last().copied().or(lease.root) {
            self.tree.nodes[last].pins += 1;
        }
        Some(Lease {
            pages,
            windowed,
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
        let has_state = self.slot_bytes > 0;
        if has_state && lease.spare.is_none() {
            lease.spare = self.pool.take_spare();
        }
        !has_state || lease.spare.is_some()
    }

    /// Takes it back.
    pub fn release_spare(&mut self, lease: &mut Lease) {
        lease.spare.take().into_iter().for_each(|slot| self.pool.release_spare(slot));
    }

    /// Ends a sequence. Its cached parts remain.
    pub fn release(&mut self, lease: Lease) {
        self.version += 1;
        lease.windowed.used().iter().for_each(|p| self.pool.windowed.release(*p));
        lease.pages.into_iter().for_each(|p| self.pool.all.release(p));
        self.pool.release_slot(lease.slot);
        lease.spare.into_iter().for_each(|slot| self.pool.release_spare(slot));
        if let Some(last) = lease.path.last().copied().or(lease.root) {
            self.tree.nodes[last].pins -= 1;
        }
    }
}
