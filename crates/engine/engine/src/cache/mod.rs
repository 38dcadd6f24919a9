//! The prefix cache: pages of keys and values and snapshots of recurrent states, shared by all sequences of a model. Owned by the
//! engine, called between steps.
//!
//! A sequence holds a [`Lease`]. It resumes at the deepest position where all necessary data is present: for models with recurrent
//! layers or with pages of windows a snapshot, for others any token. Whole pages are shared; the page that a sequence continues to write
//! is its own copy.
//!
//! Layers with a window may have pages of their own (`CacheShape::windowed`). A sequence releases those that have left its window; the
//! cache keeps those in the windows of snapshots.
//! Unused data stays until its memory is needed; the least valuable is evicted first.
//!
//! `tree` is the index, `policy` values its entries, `pool` counts the users of pages; `disk` stores files, and `tiers` moves data
//! between memory and disk.

mod disk;
mod fingerprint;
mod key;
mod known;
mod lease;
mod miss;
mod policy;
mod pool;
mod tiers;
mod tree;

use std::collections::VecDeque;
use std::sync::Arc;

use octet_compute::batch::{PAGE_TOKENS, PageGroup};

use crate::Error;
use crate::models::Model;
use disk::Disk;
pub use disk::{DiskOptions, DiskStats};
pub(crate) use fingerprint::{Contents, fingerprint};
pub use key::Key;
pub use lease::Lease;
pub use miss::{Miss, MissReport};
pub(crate) use policy::{TOKENS_MIN, checkpoints};
pub use pool::{Pool, Sequence};
pub(crate) use tiers::Arrival;
use tree::{NodeId, Snapshot, SnapshotId, Tree};

/// Number of nodes kept beyond those with data: a million tokens, about 6 MB.
const GHOSTS_MAX: usize = 1 << 14;

/// Contents and counters of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Pages in all.
    pub pages: usize,
    /// Pages in the tables of running sequences.
    pub pages_used: usize,
    /// Pages used only by the cache.
    pub pages_idle: usize,
    /// Snapshots in memory.
    pub snapshots: usize,
    /// Bytes of their states.
    pub snapshot_bytes: u64,
    /// Snapshots taken.
    pub taken: u64,
    /// Snapshots from which a sequence resumed.
    pub hits: u64,
    /// Snapshots evicted from memory.
    pub evicted: u64,
    /// The disk tier; all 0 without a folder.
    pub disk: DiskStats,
}

/// Pages and states of one model, and their index.
pub struct Cache {
    pool: Pool,
    tree: Tree,
    /// Sequences resume from snapshots only: the model has recurrent layers, or pages of windows.
    from_snapshots: bool,
    slot_bytes: usize,
    /// Maximum size of states in memory, in bytes.
    snapshot_bytes_max: u64,
    snapshot_bytes: u64,
    /// See `policy`.
    clock: f64,
    /// Buffers of dropped states, reused because mapping new memory costs more than copying.
    spare: Vec<Vec<u8>>,
    fingerprint: Key,
    disk: Option<Disk>,
    /// Pages to be stored on disk, in order.
    unsaved: VecDeque<NodeId>,
    /// Incremented by changes that may give a waiting prompt room, or a longer cached prefix.
    version: u64,
    stats: CacheStats,
}

/// Where a prompt can resume.
#[derive(Debug, Clone)]
pub struct Found {
    root: Option<NodeId>,
    /// Tokens that need not be computed.
    pub position: usize,
    /// Tokens of the prefix known from earlier sequences, cached or not.
    pub matched: usize,
    /// Nodes of the whole pages before `position`.
    path: Vec<NodeId>,
    /// The node whose page has the keys and values of the rest.
    host: Option<NodeId>,
    snapshot: Option<SnapshotId>,
    /// Data to read from disk to resume there.
    disk: Option<Box<tiers::OnDisk>>,
}

impl Found {
    /// A sequence without caching: it reads and leaves nothing.
    pub fn uncached() -> Self {
        Self { root: None, position: 0, matched: 0, path: Vec::new(), host: None, snapshot: None, disk: None }
    }
    /// The same, but its results are cached.
    pub fn from_start(self) -> Self {
        Self { position: 0, path: Vec::new(), host: None, snapshot: None, disk: None, ..self }
    }
}

impl Cache {
    /// For a model that has just been loaded. `disk` has a folder, and the hash of everything that affects the model's results.
    pub fn new(
        model: &dyn Model,
        snapshot_bytes_max: u64,
        disk: Option<(&DiskOptions, Key)>,
    ) -> Result<Self, Error> {
        let pool = Pool::new(model);
        let shape = model.cache_shape();
        let fingerprint = disk.map_or(Key::default(), |d| d.1);
        let disk = match disk {
            Some((options, _)) => {
                let page = shape.page_bytes(PageGroup::All);
                Some(Disk::open(options, page, shape.slot_bytes() + tiers::window_bytes_max(shape))?)
            }
            None => None,
        };
        Ok(Self {
            stats: CacheStats { pages: pool.all.total(), ..CacheStats::default() },
            pool,
            tree: Tree::default(),
            from_snapshots: shape.slot_bytes() > 0 || shape.windowed.is_some(),
            slot_bytes: shape.slot_bytes(),
            snapshot_bytes_max,
            snapshot_bytes: 0,
            clock: 0.0,
            spare: Vec::new(),
            fingerprint,
            disk,
            unsaved: VecDeque::new(),
            version: 0,
        })
    }

    /// A number that changes when data is cached, released or dropped: until then, what did not fit still does not fit.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// True if sequences resume from snapshots only.
    pub fn needs_snapshots(&self) -> bool {
        self.from_snapshots
    }
    /// True if layers with a window have pages of their own.
    pub fn has_windows(&self) -> bool {
        self.pool.windowed.total() > 0
    }
    /// The pages and slots.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Current contents and counters.
    pub fn stats(&self) -> CacheStats {
        let pages = &self.pool.all;
        CacheStats {
            pages_used: pages.total() - pages.free() - pages.idle(),
            pages_idle: pages.idle(),
            snapshots: self.tree.snapshots.len(),
            snapshot_bytes: self.snapshot_bytes,
            disk: self.disk.as_ref().map_or(DiskStats::default(), Disk::stats),
            ..self.stats
        }
    }

    /// Finds where a sequence of these tokens can resume. Always leaves a token to compute, as its logits are needed.
    pub fn find(&mut self, salt: &str, tokens: &[u32]) -> Found {
        let root = self.tree.root(key::root_key(&self.fingerprint, salt));
        let walk = self.tree.walk(root, tokens);
        let most = tokens.len() - 1;
        let mut found = Found { root: Some(root), matched: walk.matched, ..Found::uncached() };
        if self.from_snapshots {
            self.find_snapshot(&walk, tokens, most, &mut found);
        } else {
            self.find_pages(&walk, tokens, most, &mut found);
        }
        self.find_on_disk(root, &walk, tokens, most, &mut found);
        found
    }

    fn find_snapshot(&self, walk: &tree::Walk, tokens: &[u32], most: usize, found: &mut Found) {
        for (pages, &node) in walk.path.iter().enumerate() {
            let at = pages * PAGE_TOKENS;
            for id in &self.tree.nodes[node].snapshots {
                let s = &self.tree.snapshots[id];
                if s.position <= most && s.position > found.position && tokens[at..].starts_with(&s.tail) {
                    found.position = s.position;
                    found.snapshot = Some(*id);
                    found.host = s.host;
                    found.path = walk.path[1..=pages].to_vec();
                }
            }
        }
    }

    fn find_pages(&self, walk: &tree::Walk, tokens: &[u32], most: usize, found: &mut Found) {
        let nodes = &self.tree.nodes;
        let resident = walk.path[1..].iter().take_while(|n| nodes[**n].is_resident()).count();
        let pages = resident.min(most / PAGE_TOKENS);
        found.path = walk.path[1..=pages].to_vec();
        let at = pages * PAGE_TOKENS;
        found.position = at;
        for &(_, c) in &nodes[walk.path[pages]].children {
            let rows = nodes[c].page.map_or(0, |(_, rows)| rows).min(most - at);
            let same = tree::common(&nodes[c].tokens, &tokens[at..]).min(rows);
            if at + same > found.position {
                (found.position, found.host) = (at + same, Some(c));
            }
        }
    }

    /// Pages needed to extend the sequence to `tokens` tokens, without those that it would share.
    pub fn pages_needed(&self, found: &Found, tokens: usize) -> usize {
        let shared = |n: &&NodeId| self.tree.nodes[**n].page.is_some_and(|(p, _)| !self.pool.all.is_idle(p));
        tokens.div_ceil(PAGE_TOKENS) - found.path.iter().filter(shared).count()
    }

    /// Pages available for running sequences.
    pub fn pages_available(&self) -> usize {
        self.pool.all.free() + self.pool.all.idle()
    }

    /// A free page; evicts idle data if necessary.
    fn page(&mut self, model: &mut dyn Model, group: PageGroup) -> Option<u32> {
        loop {
            let pages = self.pool.group(group);
            if let Some(page) = pages.take() {
                return Some(page);
            }
            if pages.idle() == 0 || !self.reclaim(model) {
                return None;
            }
        }
    }

    /// Frees at least one page.
    fn reclaim(&mut self, model: &mut dyn Model) -> bool {
        if self.from_snapshots {
            // Evicts a snapshot and the pages that only it needs.
            let Some((id, value)) = self.tree.least_valuable(|s| s.pins == 0) else { return false };
            self.clock = self.clock.max(value);
            self.save_last_time(model, id);
            self.evict(id);
            return true; // If there is still no page, the caller tries again.
        }
        let nodes = &self.tree.nodes;
        let idle = |id: &NodeId| nodes[*id].page.is_some_and(|(p, _)| self.pool.all.is_idle(p));
        let bare = |id: &NodeId| nodes[*id].children.iter().all(|c| nodes[c.1].page.is_none());
        let mut tips: Vec<(u64, NodeId)> =
            nodes.iter().map(|(id, n)| (n.used, id)).filter(|(_, id)| idle(id) && bare(id)).collect();
        tips.sort_unstable();
        // Several at a time: finding them visits all nodes.
        let some = tips.len().min(16);
        tips.truncate(some);
        for (_, id) in tips {
            self.drop_page(id);
        }
        some > 0
    }

    fn drop_page(&mut self, node: NodeId) {
        if let Some((page, _)) = self.tree.nodes[node].page.take() {
            self.version += 1;
            self.pool.all.release_kept(page);
        }
    }

    fn drop_windowed(&mut self, node: NodeId) {
        if let Some((page, _)) = self.tree.nodes[node].windowed.take() {
            self.version += 1;
            self.pool.windowed.release_kept(page);
        }
    }

    /// Nodes of the window of a snapshot, the last one first; none without pages of windows.
    fn window_nodes(&self, s: &Snapshot) -> Vec<NodeId> {
        let first = self.pool.first_windowed(s.position);
        first.map_or_else(Vec::new, |first| self.tree.last_nodes(s.parent, s.host, first))
    }

    /// Drops a snapshot and the pages that only it needed.
    fn evict(&mut self, id: SnapshotId) {
        let Some(s) = self.tree.remove_snapshot(id) else { return };
        self.version += 1;
        self.stats.evicted += 1;
        for node in self.window_nodes(&s) {
            self.tree.nodes[node].windows -= 1;
            if self.tree.nodes[node].windows == 0 {
                self.drop_windowed(node);
            }
        }
        self.snapshot_bytes -= self.slot_bytes as u64;
        self.recycle(s.state);
        if let Some(host) = s.host {
            self.drop_if_useless(host);
        }
        let mut at = Some(s.parent);
        while let Some(node) = at {
            self.drop_if_useless(node);
            at = self.tree.nodes[node].parent;
        }
    }

    fn drop_if_useless(&mut self, node: NodeId) {
        if self.tree.nodes[node].need == 0 {
            self.drop_page(node);
        }
    }

    fn recycle(&mut self, state: Arc<Vec<u8>>) {
        if self.spare.len() < 2
            && self.slot_bytes > 0
            && let Ok(bytes) = Arc::try_unwrap(state)
        {
            self.spare.push(bytes);
        }
    }

    /// Caches what `lease` has computed, `tokens` up to `lease.computed`, and takes a snapshot there if sequences resume from snapshots
    /// only, unless one exists.
    pub fn keep(&mut self, model: &mut dyn Model, lease: &mut Lease, tokens: &[u32]) {
        self.version += 1;
        let Some(root) = lease.root else { return };
        let at = lease.computed;
        if at == 0 || (self.from_snapshots && self.slot_bytes as u64 > self.snapshot_bytes_max) {
            return;
        }
        let host = self.file(lease, root, &tokens[..at]);
        lease.kept = at;
        if !self.from_snapshots {
            return;
        }
        let parent = lease.path.last().copied().unwrap_or(root);
        let tail = &tokens[at - at % PAGE_TOKENS..at];
        if let Some(id) = self.tree.snapshot_at(parent, tail) {
            self.touch_snapshot(id);
            return;
        }
        if lease.settle(model).is_err() {
            return; // The device failed: the next step returns the error.
        }
        let mut state = self.spare.pop().unwrap_or_else(|| vec![0; self.slot_bytes]);
        if self.slot_bytes > 0 {
            model.save_slot(lease.slot, &mut state);
        }
        if model.has_failed() {
            return; // as above
        }
        self.stats.taken += 1;
        self.add_snapshot(model, lease, parent, tail, host, Arc::new(state));
    }

    /// Adds a snapshot of what `lease` has computed; evicts others if there are too many.
    fn add_snapshot(
        &mut self,
        model: &mut dyn Model,
        lease: &Lease,
        parent: NodeId,
        tail: &[u32],
        host: Option<NodeId>,
        state: Arc<Vec<u8>>,
    ) {
        let (used, position) = (self.tree.now(), lease.computed);
        let snapshot = Snapshot {
            parent,
            tail: tail.to_vec(),
            host,
            position,
            state,
            base: self.clock,
            hits: 0,
            used,
            pins: 0,
            offered: false,
        };
        for node in self.window_nodes(&snapshot) {
            let start = self.tree.nodes[node].start;
            let page = lease.windowed.get(start / PAGE_TOKENS).expect("its window is the sequence's");
            self.tree.give_windowed(node, page, PAGE_TOKENS.min(position - start), &mut self.pool);
            self.tree.nodes[node].windows += 1;
        }
        self.tree.add_snapshot(snapshot);
        self.snapshot_bytes += self.slot_bytes as u64;
        // Those without a state take only pages, and there are at most a few for each.
        let most = if self.slot_bytes > 0 { usize::MAX } else { 4 * self.pool.all.total() };
        while self.snapshot_bytes > self.snapshot_bytes_max || self.tree.snapshots.len() > most {
            let Some((id, value)) = self.tree.least_valuable(|s| s.pins == 0) else { break };
            self.clock = self.clock.max(value);
            self.save_last_time(model, id);
            self.evict(id);
        }
    }

    fn touch_snapshot(&mut self, id: SnapshotId) {
        let (used, clock) = (self.tree.now(), self.clock);
        if let Some(s) = self.tree.snapshots.get_mut(&id) {
            (s.used, s.base) = (used, clock);
        }
    }

    /// Adds the pages of `tokens` to the tree; returns the node of the incomplete one, if any.
    fn file(&mut self, lease: &mut Lease, root: NodeId, tokens: &[u32]) -> Option<NodeId> {
        let whole = tokens.len() / PAGE_TOKENS;
        let before = lease.path.last().copied().unwrap_or(root);
        let mut parent = root;
        for i in 0..whole {
            let page = lease.pages[i];
            match lease.path.get(i) {
                // It may have lost its page when its snapshots were evicted.
                Some(&node) => {
                    self.tree.give_page(node, page, PAGE_TOKENS, &mut self.pool);
                    parent = node;
                }
                None => {
                    let range = i * PAGE_TOKENS..(i + 1) * PAGE_TOKENS;
                    parent = self.tree.file(parent, &tokens[range], page, &mut self.pool);
                    lease.path.push(parent);
                }
            }
            // Another sequence has computed the same page: keep one copy.
            if let Some((theirs, _)) = self.tree.nodes[parent].page
                && theirs != page
            {
                self.pool.all.retain(theirs);
                self.pool.all.release(page);
                lease.pages[i] = theirs;
            }
        }
        self.tree.nodes[before].pins -= 1;
        self.tree.nodes[parent].pins += 1;
        self.tree.touch(parent);
        self.queue_pages(&lease.path);
        let rest = &tokens[whole * PAGE_TOKENS..];
        let host =
            (!rest.is_empty()).then(|| self.tree.file(parent, rest, lease.pages[whole], &mut self.pool));
        self.tree.forget(GHOSTS_MAX + self.pool.all.total());
        host
    }

    /// Drops everything that no running sequence uses.
    pub fn clear(&mut self) {
        let unused: Vec<SnapshotId> =
            self.tree.snapshots.iter().filter(|(_, s)| s.pins == 0).map(|(id, _)| *id).collect();
        unused.into_iter().for_each(|id| self.evict(id));
        let nodes: Vec<NodeId> = self.tree.nodes.iter().map(|(id, _)| id).collect();
        for id in nodes {
            if self.tree.nodes[id].need == 0 {
                self.drop_page(id);
            }
        }
        self.tree.forget(0);
    }

    /// Checks that every page is accounted for: in the table of one of `leases`, cached by a node, or free. For tests.
    pub fn audit<'a>(&self, leases: impl Iterator<Item = &'a Lease>) -> Result<(), String> {
        let mut refs = vec![0u32; self.pool.all.total()];
        let mut windowed = vec![0u32; self.pool.windowed.total()];
        let mut slots = 0;
        for l in leases {
            l.pages.iter().for_each(|p| refs[*p as usize] += 1);
            l.windowed.used().iter().for_each(|p| windowed[*p as usize] += 1);
            slots += 1 + usize::from(l.spare.is_some());
        }
        for (id, n) in &self.tree.nodes {
            if let Some((p, rows)) = n.page {
                refs[p as usize] += 1;
                if rows > n.tokens.len() || rows == 0 {
                    return Err(format!("node {id} has {rows} rows for {} tokens", n.tokens.len()));
                }
            }
            if let Some((p, _)) = n.windowed {
                windowed[p as usize] += 1;
            }
            if n.windowed.is_some() != (n.windows > 0) {
                return Err(format!("node {id} is in {} windows and has {:?}", n.windows, n.windowed));
            }
        }
        for s in self.tree.snapshots.values() {
            let mut at = Some(s.parent);
            while let Some(n) = at {
                if !self.tree.nodes[n].is_resident() {
                    return Err(format!("the snapshot at {} lacks a page", s.position));
                }
                at = self.tree.nodes[n].parent;
            }
            let rows = s.host.and_then(|h| self.tree.nodes[h].page).map_or(0, |(_, rows)| rows);
            if rows < s.tail.len() {
                return Err(format!("the snapshot at {} lacks its last page", s.position));
            }
            for node in self.window_nodes(s) {
                let n = &self.tree.nodes[node];
                let rows = n.windowed.map_or(0, |(_, rows)| rows);
                if rows < PAGE_TOKENS.min(s.position - n.start) {
                    return Err(format!("the snapshot at {} lacks a page of its window", s.position));
                }
            }
        }
        for (pages, refs) in [(&self.pool.all, &refs), (&self.pool.windowed, &windowed)] {
            for (page, &want) in refs.iter().enumerate() {
                let got = pages.refs(page as u32);
                if want != got {
                    return Err(format!("page {page} is used {want} times and counted {got} times"));
                }
            }
            if pages.free() != refs.iter().filter(|r| **r == 0).count() {
                return Err(format!("the pool says {pages:?}"));
            }
        }
        if slots != self.pool.used_slots() {
            return Err(format!("{slots} slots are in use; the pool says {:?}", self.pool));
        }
        Ok(())
    }
}
