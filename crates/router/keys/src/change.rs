//! Changes of keys, users and teams, in the file and in memory.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use crate::backend::Backend;
use crate::entry::{Entries, Entry, lock};
use crate::inner::Inner;
use crate::table::{self, KeyRow};
use crate::{Error, KeyId};

/// A transaction, which is undone unless it was committed.
struct Open<'a>(Option<&'a mut (dyn Backend + 'static)>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(backend) = self.0.take() {
            backend.rollback();
        }
    }
}

impl Inner {
    /// Changes rows in the file and in memory: everything that `edit` does, or nothing. Other processes wait meanwhile.
    pub(crate) fn transact<T, E: From<Error>>(
        &self,
        edit: impl FnOnce(&mut Vec<KeyRow>) -> Result<T, E>,
    ) -> Result<T, E> {
        // Unwritten spend is written first, so that the file's sum is complete.
        self.tick()?;
        let mut backend = lock(&self.backend);
        let mut rows = backend.begin()?;
        let mut open = Open(Some(backend.as_mut()));
        let old: HashMap<blake3::Hash, KeyRow> = rows.iter().map(|r| (r.hash, r.clone())).collect();
        let out = edit(&mut rows)?;
        table::check_many(rows.len())?;
        let kept: HashSet<blake3::Hash> = rows.iter().map(|r| r.hash).collect();
        let gone: Vec<KeyId> = old.keys().filter(|hash| !kept.contains(hash)).map(KeyId::of).collect();
        let is_new = |row: &KeyRow| old.get(&row.hash) != Some(row);
        let changed: Vec<&KeyRow> = rows.iter().filter(|row| is_new(row)).collect();
        if let Some(backend) = open.0.take() {
            backend.commit(&changed, &gone)?;
        }
        self.adopt(rows, is_new);
        Ok(out)
    }

    /// Applies rows that another process has changed, and deletes those that are gone.
    pub(crate) fn adopt_some(&self, rows: Vec<KeyRow>, gone: &[KeyId]) {
        let mut entries = self.entries.read().unwrap_or_else(PoisonError::into_inner).clone();
        let now = self.clock().now();
        let (mut owners_changed, mut moved) = (false, Vec::new());
        for row in rows {
            let id = KeyId::of(&row.hash);
            match entries.get(&id).filter(|e| e.hash == row.hash) {
                Some(entry) => {
                    if entry.sync(row, now) {
                        moved.push(Arc::clone(entry));
                    }
                }
                None => {
                    let entry = Arc::new(Entry::new(row));
                    owners_changed |= entry.kind.is_some();
                    moved.push(Arc::clone(&entry));
                    entries.insert(id, entry);
                }
            }
        }
        for id in gone {
            owners_changed |= entries.remove(id).is_some_and(|e| e.kind.is_some());
        }
        if owners_changed {
            entries.values().for_each(|e| e.link(&entries));
        } else {
            moved.iter().for_each(|e| e.link(&entries));
        }
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = entries;
    }

    /// Replaces the known rows by those of the file; existing accounts keep their state. Called with the file locked, so that no two calls
    /// run at once.
    pub(crate) fn adopt(&self, rows: Vec<KeyRow>, is_new: impl Fn(&KeyRow) -> bool) {
        // Requests continue meanwhile: they only wait for the exchange at the end.
        let mut old = self.entries.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut entries = Entries::with_capacity(rows.len());
        let now = self.clock().now();
        let (mut owners_changed, mut moved) = (false, Vec::new());
        for row in rows {
            let id = KeyId::of(&row.hash);
            let known = old.get(&id).is_some_and(|e| e.hash == row.hash);
            let entry = match known.then(|| old.remove(&id)).flatten() {
                Some(entry) => {
                    if is_new(&row) && entry.sync(row, now) {
                        moved.push(Arc::clone(&entry));
                    }
                    entry
                }
                None => {
                    let entry = Arc::new(Entry::new(row));
                    owners_changed |= entry.kind.is_some();
                    moved.push(Arc::clone(&entry));
                    entry
                }
            };
            entries.insert(id, entry);
        }
        owners_changed |= old.values().any(|e| e.kind.is_some());
        if owners_changed {
            entries.values().for_each(|e| e.link(&entries));
        } else {
            moved.iter().for_each(|e| e.link(&entries));
        }
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = entries;
    }
}
