//! Users and teams: creates, lists and deletes them.
//!
//! Each is a row of the table of keys, with a hash that no key has, like the global budget. So its budget is reset, written, shared between
//! processes and enforced like those of keys. [`Store::edit_for`] changes one; [`Store::transact`] several at once.

use crate::entry::KeyInfo;
use crate::profile::OwnerKind;
use crate::store::Store;
use crate::{Error, KeyId, Limits, Member, Profile};

impl Store {
    /// Creates a user or a team.
    ///
    /// # Errors
    /// If it exists, the limits are invalid, or the file cannot be written.
    pub fn create_owner(
        &self,
        kind: OwnerKind,
        id: &str,
        limits: Limits,
        profile: Profile,
    ) -> Result<KeyInfo, Error> {
        self.transact(|all| all.create_owner(kind, id, limits, profile))?;
        self.owner(kind, id)
    }

    /// Deletes a user or a team, and revokes its keys. The user leaves all teams.
    ///
    /// # Errors
    /// If it does not exist, or the file cannot be written.
    pub fn delete_owner(&self, kind: OwnerKind, id: &str) -> Result<(), Error> {
        self.transact(|all| all.delete_owners(kind, &[id.to_string()]))
    }

    /// Changes the members of a team.
    ///
    /// # Errors
    /// If it does not exist, the members are invalid, or the file cannot be written.
    pub fn edit_members(&self, team: &str, edit: impl FnOnce(&mut Vec<Member>)) -> Result<(), Error> {
        self.transact(|all| {
            all.edit_members(team, |members| {
                edit(members);
                Ok(())
            })
        })
    }

    /// The id of a key, valid or not.
    pub fn id(&self, key: &str) -> Option<KeyId> {
        self.inner.find(key).map(|entry| entry.id)
    }

    /// A user or a team.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn owner(&self, kind: OwnerKind, id: &str) -> Result<KeyInfo, Error> {
        let entry = self.inner.get(KeyId::of(&kind.hash(id))).filter(|e| e.kind == Some(kind));
        let entry = entry.ok_or_else(|| Error::NoSuchOwner { kind: kind.name(), id: id.into() })?;
        Ok(self.inner.info(&entry))
    }

    /// All users or all teams, by id.
    pub fn owners(&self, kind: OwnerKind) -> Vec<KeyInfo> {
        let all = self.inner.all();
        let mut all: Vec<KeyInfo> =
            all.iter().filter(|e| e.kind == Some(kind)).map(|e| self.inner.info(e)).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}
