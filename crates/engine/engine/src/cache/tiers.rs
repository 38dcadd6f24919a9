//! Between memory and disk: finds a prompt's data on disk, loads it into a sequence's pages and slot, and stores pages and states.
//!
//! Pages are stored soon after they are cached, a few in each step; they are small and written once. States are large and most are
//! soon superseded, so they are stored when they are evicted from memory, when the engine is idle, and at shutdown.

use std::sync::Arc;
use std::time::Duration;

use octet_compute::backend::CacheShape;
use octet_compute::batch::{PAGE_TOKENS, PageGroup};

use super::disk::{Disk, Reading};
use super::key::{Key, page_key, state_key};
use super::tree::{self, NodeId, SnapshotId};
use super::{Cache, Found, Lease, TOKENS_MIN};
use crate::models::Model;
use crate::models::derive::pages_of;

/// Minimum number of tokens that reading from disk must save.
const WORTH_READING: usize = PAGE_TOKENS;
/// Maximum number of pages copied at once for an evicted snapshot; a snapshot that needs more is not stored.
const PAGES_AT_ONCE: usize = 64;

/// A state's key, and its distance to the last whole page in tokens.
type StateKey = (Key, usize);

/// Most bytes of a window's pages.
pub fn window_bytes_max(shape: &CacheShape) -> usize {
    shape.page_bytes(PageGroup::Windowed) * shape.windowed.map_or(0, |w| pages_of(w.window))
}

/// Data to read.
#[derive(Debug, Clone)]
pub struct OnDisk {
    /// Whole pages after those in memory.
    pages: Vec<Key>,
    state: Option<StateKey>,
}

/// Data that a sequence waits for.
#[derive(Debug)]
pub struct Loading {
    reading: Reading,
    /// The position where it resumes.
    position: usize,
    /// Index of the first page to read.
    first: usize,
    /// Number of pages to read before the state.
    pages: usize,
    state: Option<Arc<Vec<u8>>>,
}

/// The progress of reading a sequence's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// More files will arrive.
    Pending,
    /// Everything has arrived.
    Complete,
    /// A file is damaged or missing. The sequence must start again.
    Failed,
}

/// The contents of a page.
fn page_bytes(model: &mut dyn Model, page: u32) -> Vec<u8> {
    let mut bytes = vec![0; model.cache_shape().page_bytes(PageGroup::All)];
    model.save_page(PageGroup::All, page as usize, &mut bytes);
    bytes
}

/// Loads a state and the pages of a window after it; returns the state.
fn load_state(model: &mut dyn Model, lease: &Lease, mut bytes: Vec<u8>) -> Vec<u8> {
    let shape = model.cache_shape();
    let (slot, page) = (shape.slot_bytes(), shape.page_bytes(PageGroup::Windowed));
    if slot > 0 {
        model.load_slot(lease.slot, &bytes[..slot]);
    }
    for (data, to) in bytes[slot..].chunks_exact(page.max(1)).zip(lease.windowed.used()) {
        model.load_page(PageGroup::Windowed, *to as usize, data);
    }
    bytes.truncate(slot);
    bytes
}

impl Cache {
    /// Extends `found` by data on disk.
    pub(super) fn find_on_disk(
        &self,
        root: NodeId,
        walk: &tree::Walk,
        tokens: &[u32],
        most: usize,
        found: &mut Found,
    ) {
        let Some(disk) = &self.disk else { return };
        let nodes = &self.tree.nodes;
        let resident = walk.path[1..].iter().take_while(|n| nodes[**n].is_resident()).count();
        let mut keys = vec![nodes[root].key];
        let mut best: Option<(usize, usize, Option<StateKey>)> = None;
        for pages in 0.. {
            let (at, parent) = (pages * PAGE_TOKENS, keys[pages]);
            if at > most {
                break;
            }
            if !self.from_snapshots {
                best = Some((at, pages, None));
            }
            for tail in disk.tails(&parent) {
                let Some(rest) = tokens.get(at..at + tail).filter(|_| at + tail <= most) else { continue };
                let key = state_key(&parent, rest);
                if disk.has(&key) {
                    best = Some((at + tail, pages, Some((key, tail))));
                    break;
                }
            }
            let Some(page) = tokens.get(at..at + PAGE_TOKENS) else { break };
            let key = walk.path.get(pages + 1).map_or_else(|| page_key(&parent, page), |n| nodes[*n].key);
            if pages >= resident && !disk.has(&key) {
                break;
            }
            keys.push(key);
        }
        // Pages without a state show where prompts diverge, also across restarts.
        found.matched = found.matched.max((keys.len() - 1) * PAGE_TOKENS);
        let Some((position, pages, state)) = best else { return };
        if position < found.position + WORTH_READING {
            return;
        }
        let have = resident.min(pages);
        let missing = keys[1 + have..=pages].to_vec();
        *found = Found {
            root: found.root,
            position,
            matched: found.matched.max(position),
            path: walk.path[1..=have].to_vec(),
            host: None,
            snapshot: None,
            disk: Some(Box::new(OnDisk { pages: missing, state })),
        };
    }

    /// Acquires a sequence's pages, and starts reading their data.
    pub(super) fn load(
        &mut self,
        model: &mut dyn Model,
        position: usize,
        on_disk: &OnDisk,
        mut lease: Lease,
    ) -> Option<Lease> {
        (lease.computed, lease.kept) = (0, 0);
        let first = lease.pages.len();
        let reading = match self.grow(model, &mut lease, position) {
            true => {
                let shape = model.cache_shape();
                let state = on_disk.state.map(|(key, tail)| {
                    let window = lease.windowed.used().len() * shape.page_bytes(PageGroup::Windowed);
                    let page = (tail > 0).then(|| shape.page_bytes(PageGroup::All));
                    (key, std::iter::once(shape.slot_bytes() + window).chain(page).collect())
                });
                self.disk.as_mut().and_then(|d| d.read(&on_disk.pages, state))
            }
            false => None,
        };
        let Some(reading) = reading else {
            self.release(lease);
            return None;
        };
        model.reset_slot(lease.slot);
        let pages = on_disk.pages.len();
        lease.loading = Some(Box::new(Loading { reading, position, first, pages, state: None }));
        Some(lease)
    }

    /// Installs up to `files` files that have arrived; waits at most `wait` for the first.
    pub(crate) fn install_loaded(
        &mut self,
        model: &mut dyn Model,
        lease: &mut Lease,
        tokens: &[u32],
        files: usize,
        wait: Duration,
    ) -> Arrival {
        let (Some(mut loading), Some(disk)) = (lease.loading.take(), &mut self.disk) else {
            return Arrival::Failed;
        };
        let l = &mut *loading;
        for i in 0..files {
            if l.reading.is_done() {
                break;
            }
            let at = l.reading.done;
            let wait = if i == 0 { wait } else { Duration::ZERO };
            let parts = match disk.next(&mut l.reading, wait) {
                Ok(Some(parts)) => parts,
                Ok(None) => break,
                Err(()) => return Arrival::Failed,
            };
            let mut parts = parts.into_iter();
            let Some(first) = parts.next() else { return Arrival::Failed };
            if at < l.pages {
                model.load_page(PageGroup::All, lease.pages[l.first + at] as usize, &first);
                continue;
            }
            l.state = Some(Arc::new(load_state(model, lease, first)));
            if let Some(page) = parts.next() {
                model.load_page(PageGroup::All, lease.pages[l.first + l.pages] as usize, &page);
            }
        }
        if !l.reading.is_done() {
            lease.loading = Some(loading);
            return Arrival::Pending;
        }
        disk.stats.hits += 1;
        disk.stats.tokens += l.position as u64;
        (lease.computed, lease.kept) = (l.position, l.position);
        let state = l.state.take();
        self.install(model, lease, &tokens[..lease.computed], state);
        Arrival::Complete
    }

    /// Adds data from disk to the tree, for other sequences.
    fn install(
        &mut self,
        model: &mut dyn Model,
        lease: &mut Lease,
        tokens: &[u32],
        state: Option<Arc<Vec<u8>>>,
    ) {
        let Some(root) = lease.root else { return };
        let host = self.file(lease, root, tokens);
        let parent = lease.path.last().copied().unwrap_or(root);
        let tail = &tokens[tokens.len() - tokens.len() % PAGE_TOKENS..];
        if let Some(state) = state
            && self.tree.snapshot_at(parent, tail).is_none()
        {
            self.add_snapshot(model, lease, parent, tail, host, state);
        }
    }

    /// Queues pages for storing.
    pub(super) fn queue_pages(&mut self, path: &[NodeId]) {
        let Some(disk) = &self.disk else { return };
        for &id in path {
            let node = &mut self.tree.nodes[id];
            if !node.queued && node.is_full() && !disk.will_have(&node.key) {
                node.queued = true;
                self.unsaved.push_back(id);
            }
        }
    }

    /// Stores up to `most` queued pages. True if more can be stored.
    pub(crate) fn save_pages(&mut self, model: &mut dyn Model, most: usize) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        disk.poll();
        let mut saved = 0;
        while saved < most && self.disk.as_ref().is_some_and(Disk::takes_more) {
            let Some(id) = self.unsaved.pop_front() else { return false };
            // The id may belong to another node by now, which may be stored just as well.
            let Some(node) = self.tree.nodes.get_mut(id).filter(|n| n.queued) else { continue };
            node.queued = false;
            if self.from_snapshots && node.need == 0 {
                continue; // of no use without a snapshot; if there is one later, it comes here again
            }
            saved += usize::from(self.save_page(model, id));
        }
        !self.unsaved.is_empty() && !self.disk.as_ref().is_some_and(Disk::in_backoff)
    }

    /// Stores the page of a node; false if it has none or it is already stored.
    fn save_page(&mut self, model: &mut dyn Model, id: NodeId) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let node = &self.tree.nodes[id];
        let (Some((page, _)), Some(parent)) = (node.page, node.parent) else { return false };
        if disk.will_have(&node.key) || !node.is_full() || !node.is_resident() {
            return false;
        }
        let bytes = page_bytes(model, page);
        if model.has_failed() {
            return false; // The next step returns the error.
        }
        disk.store_page(node.key, &self.tree.nodes[parent].key, node.start / PAGE_TOKENS, bytes);
        true
    }

    /// Stores a snapshot and those of its pages that are not stored, if it is worth it: not if another is a few tokens before it, as
    /// at a prompt's end after its last message. False if the disk does not accept it.
    fn save_snapshot(&mut self, model: &mut dyn Model, id: SnapshotId) -> bool {
        let Some(disk) = &mut self.disk else { return true };
        disk.poll();
        let s = &self.tree.snapshots[&id];
        let (parent, host) = (s.parent, s.host);
        let key = state_key(&self.tree.nodes[parent].key, &s.tail);
        if disk.will_have(&key) || s.position < WORTH_READING || self.tree.saves(id) < TOKENS_MIN {
            return true;
        }
        if !disk.takes_more() {
            return false;
        }
        let mut missing = Vec::new();
        let mut at = parent;
        while let Some(up) = self.tree.nodes[at].parent {
            if !disk.will_have(&self.tree.nodes[at].key) {
                missing.push(at);
            }
            at = up;
        }
        if missing.len() > PAGES_AT_ONCE {
            return false;
        }
        for id in missing.into_iter().rev() {
            self.save_page(model, id);
        }
        let page = host.and_then(|h| self.tree.nodes[h].page).map(|(page, _)| page_bytes(model, page));
        let state = self.with_window(model, id);
        if model.has_failed() {
            return false; // the next step says why
        }
        let s = &self.tree.snapshots[&id];
        let Some(disk) = &mut self.disk else { return true };
        let parent = &self.tree.nodes[parent];
        let depth = parent.end() / PAGE_TOKENS;
        disk.store_state(key, &parent.key, depth, s.tail.len(), state, page)
    }

    /// A snapshot's state, and the pages of its window after it.
    fn with_window(&self, model: &mut dyn Model, id: SnapshotId) -> Arc<Vec<u8>> {
        let s = &self.tree.snapshots[&id];
        let (nodes, page) = (self.window_nodes(s), model.cache_shape().page_bytes(PageGroup::Windowed));
        if nodes.is_empty() || page == 0 {
            return Arc::clone(&s.state);
        }
        let mut bytes = vec![0; s.state.len() + nodes.len() * page];
        let (state, pages) = bytes.split_at_mut(s.state.len());
        state.copy_from_slice(&s.state);
        for (node, out) in nodes.iter().rev().zip(pages.chunks_exact_mut(page)) {
            if let Some((page, _)) = self.tree.nodes[*node].windowed {
                model.save_page(PageGroup::Windowed, page as usize, out);
            }
        }
        Arc::new(bytes)
    }

    /// The same for an evicted snapshot: if the disk does not accept it, it is lost and counted.
    pub(super) fn save_last_time(&mut self, model: &mut dyn Model, id: SnapshotId) {
        let saved = self.save_snapshot(model, id);
        if let Some(disk) = &mut self.disk {
            disk.stats.dropped += u64::from(!saved);
        }
    }

    /// Stores the least valuable snapshot that is not stored yet, so that the most valuable are evicted last on disk. False if there
    /// is none, or the disk accepts none.
    pub(crate) fn save_next(&mut self, model: &mut dyn Model) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        disk.poll();
        if !disk.takes_more() {
            return !disk.in_backoff();
        }
        let nodes = &self.tree.nodes;
        let unsaved = |s: &tree::Snapshot| {
            !s.offered
                && s.position >= WORTH_READING
                && !disk.will_have(&state_key(&nodes[s.parent].key, &s.tail))
        };
        let Some((id, _)) = self.tree.least_valuable(unsaved) else { return false };
        if let Some(s) = self.tree.snapshots.get_mut(&id) {
            s.offered = true; // once is enough: it may be too large for the budget
        }
        self.save_snapshot(model, id);
        true
    }

    /// Stores everything worth storing, and waits until it is written or has failed.
    pub(crate) fn flush(&mut self, model: &mut dyn Model) {
        if let Some(disk) = &mut self.disk {
            disk.try_again();
            // Writes that failed before may work now.
            self.tree.snapshots.values_mut().for_each(|s| s.offered = false);
        }
        loop {
            let pages = self.save_pages(model, usize::MAX);
            let Some(disk) = &mut self.disk else { return };
            disk.flush();
            if !pages && !self.save_next(model) {
                break;
            }
        }
    }
}
