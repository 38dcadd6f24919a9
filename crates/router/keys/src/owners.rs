//! Users and teams: made, listed, deleted. Used by the router's `/user/...` and `/team/...`.
//!
//! Each is a row of the table of keys, with the hash of no key, as the budget of all requests is. So its budget begins anew, is written, is
//! shared by processes and is held to as the budgets of keys are. [`Store::edit_for`] changes it; [`Store::transact`] several at once.

use crate::entry::KeyInfo;
use crate::profile::OwnerKind;
use crate::store::Store;
use crate::{Error, KeyId, Limits, Member, Profile};

impl Store {
    /// Makes a user or a team.
    ///
    /// # Errors
    /// When it exists, the limits cannot be meant, or the file cannot be written.
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

    /// Deletes a user or a team, and takes back its keys. A user is no member of teams any more.
    ///
    /// # Errors
    /// When it is not there, or the file cannot be written.
    pub fn delete_owner(&self, kind: OwnerKind, id: &str) -> Result<(), Error> {
        self.transact(|all| all.delete_owners(kind, &[id.to_string()]))
    }

    /// Changes who belongs to a team.
    ///
    /// # Errors
    /// When it is not there, they cannot be meant, or the file cannot be written.
    pub fn edit_members(&self, team: &str, edit: impl FnOnce(&mut Vec<Member>)) -> Result<(), Error> {
        self.transact(|all| {
            all.edit_members(team, |members| {
                edit(members);
                Ok(())
            })
        })
    }

    /// The id of a key, whether it is in force or not.
    pub fn id(&self, key: &str) -> Option<KeyId> {
        self.inner.find(key).map(|entry| entry.id)
    }

    /// A user or a team.
    ///
    /// # Errors
    /// When it is not there.
    pub fn owner(&self, kind: OwnerKind, id: &str) -> Result<KeyInfo, Error> {
        let entry = self.inner.get(KeyId::of(&kind.hash(id))).filter(|e| e.kind == Some(kind));
        let entry = entry.ok_or_else(|| Error::NoSuchOwner { kind: kind.name(), id: id.into() })?;
        Ok(self.inner.info(&entry))
    }

    /// All users, or all teams, by their ids.
    pub fn owners(&self, kind: OwnerKind) -> Vec<KeyInfo> {
        let all = self.inner.all();
        let mut all: Vec<KeyInfo> =
            all.iter().filter(|e| e.kind == Some(kind)).map(|e| self.inner.info(e)).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}
