//! The index of cached prefixes: a tree of token pages, with snapshots of recurrent states. `policy` decides what to keep, and `cache`
//! moves data.
//!
//! A node is a page of 64 tokens after its parent's, or an incomplete page without children. No node's tokens are a prefix of a
//! sibling's: a page that grows beyond a node replaces it. Nodes outlive their pages as ghosts of a few hundred bytes, which show
//! where prompts diverge and explain misses.
//!
//! A snapshot belongs to the last page border before it, with its `tail` of tokens after that border, so that it is found whichever
//! page follows.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use octet_compute::batch::PAGE_TOKENS;
use slab::Slab;

use super::key::{Key, page_key};
use super::pool::{Pages, Pool};

pub type NodeId = usize;
/// Unique; never reused.
pub type SnapshotId = u64;

#[derive(Debug)]
pub struct Node {
    pub parent: Option<NodeId>,
    /// 1 to 64 tokens; none for a root.
    pub tokens: Vec<u32>,
    /// First token and node of each child.
    pub children: Vec<(u32, NodeId)>,
    /// For full pages and roots.
    pub key: Key,
    /// The page with its keys and values, and the number of its rows that belong to this node.
    pub page: Option<(u32, usize)>,
    /// The same of layers with a window, if they have pages of their own: while a snapshot needs it.
    pub windowed: Option<(u32, usize)>,
    /// Snapshots whose window it is in.
    pub windows: u32,
    /// It is queued for storing on disk.
    pub queued: bool,
    /// Tokens before this page.
    pub start: usize,
    /// Sequences whose path ends here.
    pub pins: u32,
    /// Snapshots that need this page to be of use.
    pub need: u32,
    /// When it was last on the path of a request.
    pub used: u64,
    /// Snapshots at this node.
    pub snapshots: Vec<SnapshotId>,
}

impl Node {
    /// Whether all of its keys and values are in memory.
    pub fn is_resident(&self) -> bool {
        self.page.is_some_and(|(_, rows)| rows == self.tokens.len()) || self.parent.is_none()
    }
    pub fn is_full(&self) -> bool {
        self.tokens.len() == PAGE_TOKENS
    }
    /// Number of tokens up to its end.
    pub fn end(&self) -> usize {
        self.start + self.tokens.len()
    }
}

/// A copy of a recurrent state.
#[derive(Debug)]
pub struct Snapshot {
    /// The node of the page border before it.
    pub parent: NodeId,
    /// Tokens after that border, less than a page.
    pub tail: Vec<u32>,
    /// The child of `parent` whose page has the tail's keys and values; `None` without a tail.
    pub host: Option<NodeId>,
    /// Tokens of the sequence at that point.
    pub position: usize,
    /// The state. All pages up to `position` are in memory, too.
    pub state: Arc<Vec<u8>>,
    /// The eviction clock at its last use.
    pub base: f64,
    /// Number of uses.
    pub hits: u32,
    pub used: u64,
    /// Sequences that are resuming from it.
    pub pins: u32,
    /// It was passed to the disk tier.
    pub offered: bool,
}

/// The known prefix of a prompt.
#[derive(Debug)]
pub struct Walk {
    /// Nodes of whole pages, the root first.
    pub path: Vec<NodeId>,
    /// Number of known tokens, including those after the last whole page.
    pub matched: usize,
    /// The child of the last node that shares most of the following tokens.
    pub child: Option<NodeId>,
}

#[derive(Debug, Default)]
pub struct Tree {
    pub nodes: Slab<Node>,
    pub snapshots: BTreeMap<SnapshotId, Snapshot>,
    pub by_key: HashMap<Key, NodeId>,
    next_snapshot: SnapshotId,
    clock: u64,
}

/// Length of the common prefix.
pub fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Makes `page` with `rows` valid rows the page of a node, unless its own has as many.
fn give(own: &mut Option<(u32, usize)>, page: u32, rows: usize, pages: &mut Pages) {
    match *own {
        Some((_, has)) if has >= rows => {}
        Some((old, _)) if old == page => *own = Some((page, rows)),
        old => {
            if let Some((old, _)) = old {
                pages.release_kept(old);
            }
            pages.keep(page);
            *own = Some((page, rows));
        }
    }
}

impl Tree {
    pub fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn node(&mut self, parent: Option<NodeId>, start: usize, tokens: &[u32], key: Key) -> NodeId {
        let used = self.now();
        let id = self.nodes.insert(Node {
            parent,
            tokens: tokens.to_vec(),
            children: Vec::new(),
            key,
            page: None,
            windowed: None,
            windows: 0,
            queued: false,
            start,
            pins: 0,
            need: 0,
            used,
            snapshots: Vec::new(),
        });
        if let Some(p) = parent {
            self.nodes[p].children.push((tokens[0], id));
        }
        if parent.is_none() || tokens.len() == PAGE_TOKENS {
            self.by_key.insert(key, id);
        }
        id
    }

    /// The root of chains that begin with `key`.
    pub fn root(&mut self, key: Key) -> NodeId {
        match self.by_key.get(&key) {
            Some(&id) => id,
            None => self.node(None, 0, &[], key),
        }
    }

    /// The child with exactly these tokens.
    fn child(&self, node: NodeId, tokens: &[u32]) -> Option<NodeId> {
        let of_first = self.nodes[node].children.iter().filter(|c| c.0 == tokens[0]);
        of_first.map(|c| c.1).find(|&c| self.nodes[c].tokens == tokens)
    }

    /// Follows `tokens` from `root` as far as they match.
    pub fn walk(&self, root: NodeId, tokens: &[u32]) -> Walk {
        let mut path = vec![root];
        let (mut node, mut at) = (root, 0);
        while let Some(page) = tokens.get(at..at + PAGE_TOKENS)
            && let Some(next) = self.child(node, page)
        {
            path.push(next);
            (node, at) = (next, at + PAGE_TOKENS);
        }
        let (mut matched, mut child) = (at, None);
        if let Some(&first) = tokens.get(at) {
            for &(_, c) in self.nodes[node].children.iter().filter(|c| c.0 == first) {
                let same = at + common(&self.nodes[c].tokens, &tokens[at..]);
                if same > matched {
                    (matched, child) = (same, Some(c));
                }
            }
        }
        Walk { path, matched, child }
    }

    /// The child of `parent` with `tokens` (at most a page), added if necessary; gets `page` unless its own has as many rows. Rows of
    /// an incomplete page after `tokens` are undefined.
    pub fn file(&mut self, parent: NodeId, tokens: &[u32], page: u32, pool: &mut Pool) -> NodeId {
        let start = self.nodes[parent].end();
        let mut found = None;
        for &(_, c) in self.nodes[parent].children.iter().filter(|c| c.0 == tokens[0]) {
            let n = &self.nodes[c];
            if tokens.starts_with(&n.tokens) {
                found = Some(c);
            } else if n.tokens.starts_with(tokens) {
                // Of several matching children, one whose page has enough rows.
                let has = n.page.is_some_and(|(_, rows)| rows >= tokens.len());
                if has || found.is_none() {
                    found = Some(c);
                }
            }
        }
        let full_key = |t: &Self| page_key(&t.nodes[parent].key, tokens);
        let id = match found {
            None => {
                let key = if tokens.len() == PAGE_TOKENS { full_key(self) } else { Key::default() };
                self.node(Some(parent), start, tokens, key)
            }
            Some(id) => {
                if self.nodes[id].tokens.len() < tokens.len() {
                    self.nodes[id].tokens = tokens.to_vec();
                    if tokens.len() == PAGE_TOKENS {
                        let key = full_key(self);
                        self.nodes[id].key = key;
                        self.by_key.insert(key, id);
                    }
                }
                id
            }
        };
        self.give_page(id, page, tokens.len(), pool);
        id
    }

    /// Gives a node `page` with `rows` valid rows, unless its own has as many.
    pub fn give_page(&mut self, id: NodeId, page: u32, rows: usize, pool: &mut Pool) {
        let now = self.now();
        let node = &mut self.nodes[id];
        node.used = now;
        give(&mut node.page, page, rows, &mut pool.all);
    }

    /// The same for the page of layers with a window.
    pub fn give_windowed(&mut self, id: NodeId, page: u32, rows: usize, pool: &mut Pool) {
        give(&mut self.nodes[id].windowed, page, rows, &mut pool.windowed);
    }

    /// Nodes of the pages from number `first` on, the last one first: `host`, or else `parent`, and those before it.
    pub fn last_nodes(&self, parent: NodeId, host: Option<NodeId>, first: usize) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        let mut at = Some(host.unwrap_or(parent));
        while let Some(id) = at {
            let node = &self.nodes[id];
            if node.parent.is_none() || node.start / PAGE_TOKENS < first {
                break;
            }
            nodes.push(id);
            at = node.parent;
        }
        nodes
    }

    /// Marks all nodes up to `node` as used.
    pub fn touch(&mut self, node: NodeId) {
        let now = self.now();
        let mut at = Some(node);
        while let Some(id) = at {
            self.nodes[id].used = now;
            at = self.nodes[id].parent;
        }
    }

    /// The snapshot at exactly this position.
    pub fn snapshot_at(&self, parent: NodeId, tail: &[u32]) -> Option<SnapshotId> {
        self.nodes[parent].snapshots.iter().copied().find(|id| self.snapshots[id].tail == tail)
    }

    /// Adds a snapshot.
    pub fn add_snapshot(&mut self, snapshot: Snapshot) -> SnapshotId {
        self.next_snapshot += 1;
        let id = self.next_snapshot;
        self.nodes[snapshot.parent].snapshots.push(id);
        self.count(&snapshot, 1);
        self.snapshots.insert(id, snapshot);
        id
    }

    /// Changes the number of snapshots that need the pages of `s`.
    fn count(&mut self, s: &Snapshot, by: i32) {
        if let Some(host) = s.host {
            let host = &mut self.nodes[host];
            host.need = host.need.wrapping_add_signed(by);
        }
        let mut at = Some(s.parent);
        while let Some(id) = at {
            let node = &mut self.nodes[id];
            node.need = node.need.wrapping_add_signed(by);
            at = node.parent;
        }
    }

    /// Removes a snapshot. The caller handles the pages that it needed.
    pub fn remove_snapshot(&mut self, id: SnapshotId) -> Option<Snapshot> {
        let s = self.snapshots.remove(&id)?;
        self.nodes[s.parent].snapshots.retain(|x| *x != id);
        self.count(&s, -1);
        Some(s)
    }

    /// Removes a node without children; returns its parent.
    pub fn remove_leaf(&mut self, id: NodeId) -> Option<NodeId> {
        let node = self.nodes.remove(id);
        debug_assert!(node.children.is_empty() && node.page.is_none() && node.snapshots.is_empty());
        debug_assert!(node.windowed.is_none());
        if node.parent.is_none() || node.is_full() {
            self.by_key.remove(&node.key);
        }
        if let Some(p) = node.parent {
            self.nodes[p].children.retain(|c| c.1 != id);
        }
        node.parent
    }

    /// True for a node without data.
    pub fn is_ghost_leaf(&self, id: NodeId) -> bool {
        let n = &self.nodes[id];
        n.children.is_empty() && n.page.is_none() && n.pins == 0 && n.need == 0 && n.snapshots.is_empty()
    }

    /// Removes the least recently used ghosts until at most `most` nodes are left, or no ghost.
    pub fn forget(&mut self, most: usize) {
        while self.nodes.len() > most {
            let mut ghosts: Vec<(u64, NodeId)> = self
                .nodes
                .iter()
                .filter(|(id, _)| self.is_ghost_leaf(*id))
                .map(|(id, n)| (n.used, id))
                .collect();
            if ghosts.is_empty() {
                return;
            }
            ghosts.sort_unstable();
            // A tenth at a time: finding them visits all nodes.
            let enough = (self.nodes.len() - most).max(most / 10).max(1);
            for (_, id) in ghosts.into_iter().take(enough) {
                self.remove_leaf(id);
            }
        }
    }
}
