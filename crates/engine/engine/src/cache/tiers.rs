//! Between memory and disk: which of a prompt is there, how it gets into a sequence's pages and slot, and when pages and
//! states are stored.
//!
//! Pages are stored soon after they are filed, a few in each step; they are small and each is written once. States are
//! large and most are soon passed by better ones, so they are stored when they make way in memory, when there is nothing
//! else to do, and at the end.

use std::sync::Arc;
use std::time::Duration;

use octet_compute::batch::PAGE_TOKENS;

use super::disk::{Disk, Reading};
use super::key::{Key, page_key, state_key};
use super::tree::{self, NodeId, SnapshotId};
use super::{Cache, Found, Lease, TOKENS_MIN};
use crate::models::Model;

/// Tokens that reading from disk must save beyond what is in memory.
const WORTH_READING: usize = PAGE_TOKENS;
/// Pages that are copied out at once for a snapshot that makes way; where it lacks more, it is not stored.
const PAGES_AT_ONCE: usize = 64;

/// A state, and how many tokens it is past the last whole page.
type StateKey = (Key, usize);

/// What is to be read.
#[derive(Debug, Clone)]
pub struct OnDisk {
    /// Whole pages after those that are in memory.
    pages: Vec<Key>,
    state: Option<StateKey>,
}

/// What a sequence is waiting for.
#[derive(Debug)]
pub struct Loading {
    reading: Reading,
    /// Where it goes on when all is there.
    position: usize,
    /// Index of the first page to come.
    first: usize,
    /// How many pages come, before the state.
    pages: usize,
    state: Option<Arc<Vec<u8>>>,
}

/// How far the files of a sequence have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// More is to come.
    Pending,
    /// All is there.
    Complete,
    /// Something is damaged or gone. The sequence is to begin again.
    Failed,
}

impl Cache {
    /// Where disk reaches further than memory.
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
            if !self.recurrent {
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
        // Pages without a state tell where prompts part, across restarts too.
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

    /// Gives a sequence the pages that it will need, and starts to read what goes there.
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
            true => self.disk.as_mut().and_then(|d| d.read(&on_disk.pages, on_disk.state)),
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

    /// Puts what has come, at most `files` of them, where it belongs; waits at most `wait` for the first.
    pub(crate) fn arrive(
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
                model.load_page(lease.pages[l.first + at] as usize, &first);
                continue;
            }
            model.load_slot(lease.slot, &first);
            l.state = Some(Arc::new(first));
            if let Some(page) = parts.next() {
                model.load_page(lease.pages[l.first + l.pages] as usize, &page);
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

    /// Files what has come from disk, for others to find.
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
            self.add_snapshot(model, parent, tail, host, tokens.len(), state);
        }
    }

    /// Notes pages that are to be stored.
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

    /// Stores some of the pages that wait for it, at most `most`. True where more are left that can be.
    pub(crate) fn save_pages(&mut self, model: &mut dyn Model, most: usize) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        disk.poll();
        let mut saved = 0;
        while saved < most && self.disk.as_ref().is_some_and(Disk::takes_more) {
            let Some(id) = self.unsaved.pop_front() else { return false };
            // The number may be another node's by now, which is then as good.
            let Some(node) = self.tree.nodes.get_mut(id).filter(|n| n.queued) else { continue };
            node.queued = false;
            if self.recurrent && node.need == 0 {
                continue; // of no use without a snapshot; if there is one later, it comes here again
            }
            saved += usize::from(self.save_page(model, id));
        }
        !self.unsaved.is_empty() && !self.disk.as_ref().is_some_and(Disk::holds_off)
    }

    /// Stores the page of a node; false where it has none, or it is stored already.
    fn save_page(&mut self, model: &mut dyn Model, id: NodeId) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let node = &self.tree.nodes[id];
        let (Some((page, _)), Some(parent)) = (node.page, node.parent) else { return false };
        if disk.will_have(&node.key) || !node.is_full() || !node.is_resident() {
            return false;
        }
        let mut bytes = vec![0; model.cache_shape().page_bytes()];
        model.save_page(page as usize, &mut bytes);
        if model.has_failed() {
            return false; // the next step says why
        }
        disk.store_page(node.key, &self.tree.nodes[parent].key, node.start / PAGE_TOKENS, bytes);
        true
    }

    /// Stores a snapshot with what it lacks of its pages, if it is worth it: not one a few tokens after another, as at the
    /// end of a prompt after its last message. False where the disk does not take it.
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
        let page = host.and_then(|h| self.tree.nodes[h].page).map(|(page, _)| {
            let mut bytes = vec![0; model.cache_shape().page_bytes()];
            model.save_page(page as usize, &mut bytes);
            bytes
        });
        if model.has_failed() {
            return false; // the next step says why
        }
        let s = &self.tree.snapshots[&id];
        let Some(disk) = &mut self.disk else { return true };
        let parent = &self.tree.nodes[parent];
        let depth = parent.end() / PAGE_TOKENS;
        disk.store_state(key, &parent.key, depth, s.tail.len(), Arc::clone(&s.state), page)
    }

    /// The same for a snapshot that makes way: what the disk does not take is lost, and counted.
    pub(super) fn save_last_time(&mut self, model: &mut dyn Model, id: SnapshotId) {
        let saved = self.save_snapshot(model, id);
        if let Some(disk) = &mut self.disk {
            disk.stats.dropped += u64::from(!saved);
        }
    }

    /// Stores a snapshot that is not stored yet; the least valuable one, so that the others are the last to make way on
    /// disk. False where there is none, or the disk takes none.
    pub(crate) fn save_next(&mut self, model: &mut dyn Model) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        disk.poll();
        if !disk.takes_more() {
            return !disk.holds_off();
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

    /// Stores everything that is worth it, and waits until it is written, or cannot be.
    pub(crate) fn flush(&mut self, model: &mut dyn Model) {
        if let Some(disk) = &mut self.disk {
            disk.try_again();
            // what could not be written then perhaps can be now
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
