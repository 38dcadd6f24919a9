//! Users and teams: made, listed, deleted. Used by the router's `/user/...` and `/team/...`.
//!
//! Each is a row of the table of keys, with the hash of no key, as the budget of all requests is. So its budget begins anew, is written, is
//! shared by processes and is held to as the budgets of keys are. [`Store::edit_for`] changes it.

use crate::entry::KeyInfo;
use crate::profile::{OwnerKind, check_id};
use crate::store::Store;
use crate::table::KeyRow;
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
        check_id(&format!("{}'s", kind.name()), id)?;
        limits.check()?;
        profile.check()?;
        let hash = kind.hash(id);
        let made = KeyRow::new(hash, id, limits, self.inner.clock().now().unix);
        let made = KeyRow { kind: Some(kind), profile, ..made };
        self.inner.transact(|rows| {
            if rows.iter().any(|row| row.hash == hash) {
                return Err(Error::Exists { kind: kind.name(), id: id.into() });
            }
            rows.push(made);
            Ok(())
        })?;
        self.owner(kind, id)
    }

    /// Deletes a user or a team, and takes back its keys. A user is no member of teams any more.
    ///
    /// # Errors
    /// When it is not there, or the file cannot be written.
    pub fn delete_owner(&self, kind: OwnerKind, id: &str) -> Result<(), Error> {
        let (hash, now) = (kind.hash(id), self.inner.clock().now().unix);
        self.inner.transact(|rows| {
            let many = rows.len();
            rows.retain(|row| row.hash != hash);
            if rows.len() == many {
                return Err(Error::NoSuchOwner { kind: kind.name(), id: id.into() });
            }
            for row in rows {
                let owner = match kind {
                    OwnerKind::User => &row.profile.user,
                    OwnerKind::Team => &row.profile.team,
                };
                if row.kind.is_none() && owner.as_deref() == Some(id) {
                    row.revoked = row.revoked.or(Some(now));
                }
                if kind == OwnerKind::User {
                    row.profile.members.retain(|m| m.user != id);
                }
            }
            Ok(())
        })
    }

    /// Changes who belongs to a team.
    ///
    /// # Errors
    /// When it is not there, they cannot be meant, or the file cannot be written.
    pub fn edit_members(&self, team: &str, edit: impl FnOnce(&mut Vec<Member>)) -> Result<(), Error> {
        let hash = OwnerKind::Team.hash(team);
        self.inner.transact(|rows| {
            let row = rows.iter_mut().find(|row| row.hash == hash);
            let none = || Error::NoSuchOwner { kind: OwnerKind::Team.name(), id: team.into() };
            let profile = &mut row.ok_or_else(none)?.profile;
            edit(&mut profile.members);
            profile.check()
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
