//! The index of the cache's folder: a tree of pages and states by name, in order of use. Does not access files.
//!
//! Only leaves are evicted, least recently used first: a page is useless without those before it, and so is a state without its pages.
//! Files of several models share one folder and one budget.

use std::collections::{BTreeSet, HashMap};

use super::super::key::Key;

/// The first half of a [`Key`]: a file's name. The whole key is checked when the file is read.
pub type Name = [u8; 16];

/// The name for a key.
pub fn name_of(key: &Key) -> Name {
    let mut name = Name::default();
    name.copy_from_slice(&key[..16]);
    name
}

/// A file, as its name describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    pub name: Name,
    /// The page before it; if `depth` is 0 a root, which has no file.
    pub parent: Name,
    /// Number of whole pages before it.
    pub depth: u32,
    /// `None` for a page; for a state, its distance to its parent in tokens.
    pub tail: Option<u8>,
}

const EXTENSION: &str = ".octet-cache";

impl Item {
    /// Its file name.
    pub fn file(&self) -> String {
        let hex = |n: &Name| n.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let kind = self.tail.map_or("page".into(), |t| format!("state{t}"));
        format!("{}-{}-{kind}-{}{EXTENSION}", hex(&self.parent), hex(&self.name), self.depth)
    }

    /// The inverse; `None` for other files.
    pub fn parse(file: &str) -> Option<Self> {
        let mut parts = file.strip_suffix(EXTENSION)?.split('-');
        let (parent, name) = (parts.next()?, parts.next()?);
        let (kind, depth) = (parts.next()?, parts.next()?);
        let tail = match kind.strip_prefix("state") {
            Some(tail) => Some(tail.parse().ok()?),
            None => None,
        };
        let item = Self { name: unhex(name)?, parent: unhex(parent)?, depth: depth.parse().ok()?, tail };
        // Only the canonical spelling is accepted, so that a file is found, written and removed under one name.
        (item.file() == file).then_some(item)
    }
}

fn unhex(text: &str) -> Option<Name> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut name = Name::default();
    for (i, byte) in name.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(name)
}

#[derive(Debug)]
struct Entry {
    item: Item,
    bytes: u64,
    used: u64,
    children: Vec<Name>,
}

#[derive(Debug, Default)]
pub struct Index {
    entries: HashMap<Name, Entry>,
    /// Entries without children, least recently used first.
    leaves: BTreeSet<(u64, Name)>,
    /// States by the page before them.
    states: HashMap<Name, Vec<(u8, Name)>>,
    bytes: u64,
    clock: u64,
}

impl Index {
    /// Total size of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Number of files.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    pub fn has(&self, name: &Name) -> bool {
        self.entries.contains_key(name)
    }
    pub fn item(&self, name: &Name) -> Option<Item> {
        self.entries.get(name).map(|e| e.item)
    }
    /// States after the page (or root) `parent`: lengths of their tails, and names.
    pub fn states(&self, parent: &Name) -> &[(u8, Name)] {
        self.states.get(parent).map_or(&[], Vec::as_slice)
    }

    /// Adds a file as the most recently used one; false if its parent is missing or it exists already.
    pub fn insert(&mut self, item: Item, bytes: u64) -> bool {
        if self.has(&item.name) {
            return false;
        }
        if item.depth > 0 {
            let Some(parent) = self.entries.get_mut(&item.parent) else { return false };
            if parent.item.tail.is_some() {
                return false; // nothing follows a state
            }
            if parent.children.is_empty() {
                self.leaves.remove(&(parent.used, item.parent));
            }
            parent.children.push(item.name);
        }
        self.clock += 1;
        if let Some(tail) = item.tail {
            self.states.entry(item.parent).or_default().push((tail, item.name));
        }
        self.leaves.insert((self.clock, item.name));
        self.entries.insert(item.name, Entry { item, bytes, used: self.clock, children: Vec::new() });
        self.bytes += bytes;
        true
    }

    /// Marks files as used.
    pub fn touch(&mut self, names: impl Iterator<Item = Name>) {
        self.clock += 1;
        for name in names {
            if let Some(e) = self.entries.get_mut(&name) {
                if e.children.is_empty() {
                    self.leaves.remove(&(e.used, name));
                    self.leaves.insert((self.clock, name));
                }
                e.used = self.clock;
            }
        }
    }

    /// Removes a leaf.
    fn remove_leaf(&mut self, name: Name) -> Option<Item> {
        let e = self.entries.remove(&name)?;
        self.leaves.remove(&(e.used, name));
        self.bytes -= e.bytes;
        let parent = e.item.parent;
        if e.item.tail.is_some()
            && let Some(states) = self.states.get_mut(&parent)
        {
            states.retain(|s| s.1 != name);
            if states.is_empty() {
                self.states.remove(&parent);
            }
        }
        if e.item.depth > 0
            && let Some(p) = self.entries.get_mut(&parent)
        {
            p.children.retain(|c| *c != name);
            // A use of the removed file was also a use of its parent.
            p.used = p.used.max(e.used);
            if p.children.is_empty() {
                self.leaves.insert((p.used, parent));
            }
        }
        Some(e.item)
    }

    /// Removes a file and all that follow it; returns them, to be deleted.
    pub fn remove(&mut self, name: Name) -> Vec<Item> {
        let (mut all, mut i) = (vec![name], 0);
        while i < all.len() {
            all.extend(self.entries.get(&all[i]).into_iter().flat_map(|e| &e.children));
            i += 1;
        }
        all.into_iter().rev().filter_map(|n| self.remove_leaf(n)).collect()
    }

    /// Removes the least recently used files until at most `most` bytes remain; returns them, to be deleted.
    pub fn shrink(&mut self, most: u64) -> Vec<Item> {
        let mut gone = Vec::new();
        while self.bytes > most
            && let Some(&(_, name)) = self.leaves.first()
        {
            gone.extend(self.remove_leaf(name));
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(n: u8) -> Name {
        [n; 16]
    }
    fn page(n: u8, parent: u8, depth: u32) -> Item {
        Item { name: name(n), parent: name(parent), depth, tail: None }
    }
    fn state(n: u8, parent: u8, depth: u32) -> Item {
        Item { tail: Some(3), ..page(n, parent, depth) }
    }

    #[test]
    fn entries_with_dependents_are_evicted_last() {
        let mut index = Index::default();
        for item in [page(1, 0, 0), page(2, 1, 1), state(3, 2, 2), page(4, 1, 1), state(5, 4, 2)] {
            assert!(index.insert(item, 10));
        }
        assert!(!index.insert(page(9, 8, 5), 10), "it has nothing to follow");
        assert!(!index.insert(page(9, 3, 3), 10), "nothing follows a state");
        assert_eq!(index.states(&name(2)), [(3, name(3))]);
        index.touch([name(1), name(2), name(3)].into_iter());
        let names = |items: Vec<Item>| items.iter().map(|i| i.name[0]).collect::<Vec<_>>();
        assert_eq!(names(index.shrink(30)), [5, 4]);
        assert_eq!(names(index.remove(name(2))), [3, 2]);
        assert_eq!((index.bytes(), index.len()), (10, 1));
        assert_eq!(names(index.shrink(0)), [1]);
        assert!(index.leaves.is_empty() && index.states.is_empty());
    }

    #[test]
    fn only_own_file_names_are_parsed() {
        for item in [page(0xa7, 1, 12), state(3, 0xff, 0)] {
            assert_eq!(Item::parse(&item.file()), Some(item));
        }
        let file = page(1, 2, 3).file();
        for other in
            ["", "x", ".octet-cache", "a-b-page-0.octet-cache", &file[1..], &file.replace("3.", "+3.")]
        {
            assert_eq!(Item::parse(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn leaves_have_no_children(
            steps in prop::collection::vec((0u8..4, 1u8..30, 0u8..30), 1..200),
        ) {
            let mut index = Index::default();
            for (what, n, m) in steps {
                match what {
                    0 => {
                        let depth = index.item(&name(m)).map_or(0, |p| p.depth + 1);
                        let tail = n.is_multiple_of(3).then_some(7);
                        index.insert(Item { tail, ..page(n, m, depth) }, u64::from(n));
                    }
                    1 => index.touch([name(n), name(m)].into_iter()),
                    2 => drop(index.remove(name(n))),
                    _ => drop(index.shrink(u64::from(n) * 10)),
                }
                let bytes: u64 = index.entries.values().map(|e| e.bytes).sum();
                prop_assert_eq!(index.bytes(), bytes);
                let leaves: BTreeSet<_> = index.entries.values().filter(|e| e.children.is_empty())
                    .map(|e| (e.used, e.item.name)).collect();
                prop_assert_eq!(&index.leaves, &leaves);
                for e in index.entries.values() {
                    let parent = index.entries.get(&e.item.parent);
                    prop_assert!(e.item.depth == 0 || parent.is_some_and(|p| p.children.contains(&e.item.name)));
                }
                prop_assert_eq!(
                    index.states.values().map(Vec::len).sum::<usize>(),
                    index.entries.values().filter(|e| e.item.tail.is_some()).count()
                );
            }
        }
    }
}
