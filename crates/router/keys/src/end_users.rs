//! End users: their accounts are made when a request first names them, in memory, and written with the next batch.

use std::sync::{Arc, PoisonError};

use crate::backend::Backend;
use crate::entry::{Entry, lock};
use crate::inner::Inner;
use crate::profile::{EndUser, OwnerKind, check_id};
use crate::table::{KEYS_MAX, KeyRow};
use crate::{Error, KeyId, Limits};

/// Clients choose the names, so they get only a part of the room for all accounts; further ones are not counted.
const END_USERS_MAX: usize = KEYS_MAX as usize / 2;

impl Inner {
    /// The account of an end user; a new one if there is a budget for those.
    pub(crate) fn end_user(&self, user: EndUser<'_>) -> Option<Arc<Entry>> {
        let long;
        let name = match check_id("end user's", user.id) {
            Ok(()) => user.id,
            Err(_) => {
                long = blake3::hash(user.id.as_bytes()).to_hex();
                long.as_str()
            }
        };
        let hash = OwnerKind::EndUser.hash(name);
        let id = KeyId::of(&hash);
        let known = || self.get(id).filter(|entry| entry.hash == hash);
        if let Some(entry) = known() {
            return Some(entry);
        }
        let budget = user.budget?;
        let mut new = lock(&self.new);
        // It may have been written meanwhile.
        if let Some(entry) = known().or_else(|| new.get(&id).map(|(_, entry)| Arc::clone(entry))) {
            return Some(entry);
        }
        if self.entries.read().unwrap_or_else(PoisonError::into_inner).len() + new.len() >= END_USERS_MAX {
            tracing::warn!("there are {END_USERS_MAX} accounts: a new end user has no budget");
            return None;
        }
        let limits = Limits { budget: Some(budget), ..Limits::default() };
        let row = KeyRow::new(hash, name, limits, self.clock().now().unix);
        let row = KeyRow { kind: Some(OwnerKind::EndUser), ..row };
        let entry = Arc::new(Entry::new(row.clone()));
        new.insert(id, (row, Arc::clone(&entry)));
        Some(entry)
    }

    /// Writes new accounts, so that their spend can be written. With the backend locked.
    pub(crate) fn write_new(&self, backend: &mut dyn Backend) -> Result<(), Error> {
        let rows: Vec<KeyRow> = lock(&self.new).values().map(|(row, _)| row.clone()).collect();
        if rows.is_empty() {
            return Ok(());
        }
        backend.insert(&rows)?;
        let mut new = lock(&self.new);
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        for row in rows {
            let id = KeyId::of(&row.hash);
            if let Some((_, entry)) = new.remove(&id) {
                entries.entry(id).or_insert(entry);
            }
        }
        Ok(())
    }
}
