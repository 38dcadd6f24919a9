//! Changes of keys, users and teams, in the file and in memory. Used by `store`, `owners` and `total`.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use rusqlite::TransactionBehavior;

use crate::entry::{Entry, lock};
use crate::store::Inner;
use crate::table::{self, KeyRow};
use crate::{Error, KeyId};

impl Inner {
    /// Changes rows in the file and in memory: all that `edit` does, or nothing. Other processes wait meanwhile.
    pub(crate) fn transact(
        &self,
        edit: impl FnOnce(&mut Vec<KeyRow>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // What was spent is written first, so that the file's sum is the whole.
        self.tick()?;
        let mut file = lock(&self.file);
        let tx =
            file.db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|e| self.sqlite(e))?;
        let mut rows = table::keys(&tx).map_err(|e| self.unread(e))?;
        let old: HashMap<blake3::Hash, KeyRow> = rows.iter().map(|r| (r.hash, r.clone())).collect();
        edit(&mut rows)?;
        table::check_many(rows.len())?;
        let kept: HashSet<blake3::Hash> = rows.iter().map(|r| r.hash).collect();
        let gone: Vec<KeyId> = old.keys().filter(|hash| !kept.contains(hash)).map(KeyId::of).collect();
        let is_new = |row: &&KeyRow| old.get(&row.hash) != Some(*row);
        let write = || -> rusqlite::Result<()> {
            rows.iter().filter(is_new).try_for_each(|row| table::put(&tx, row))?;
            gone.iter().try_for_each(|id| table::delete(&tx, *id))?;
            tx.commit()
        };
        write().map_err(|e| self.sqlite(e))?;
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        for row in rows {
            match entries.get(&KeyId::of(&row.hash)) {
                Some(entry) if is_new(&&row) => entry.account().sync(row),
                Some(_) => {}
                // Also what another process made meanwhile: whoever looked for it goes on with it.
                None => {
                    let entry = Arc::new(Entry::new(row));
                    entries.insert(entry.id, entry);
                }
            }
        }
        for id in gone {
            entries.remove(&id);
        }
        Entry::link_all(&entries);
        Ok(())
    }
}
