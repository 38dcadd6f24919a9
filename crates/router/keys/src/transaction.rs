//! Transactions on keys, users and teams: all changes are made, or none.

use std::collections::HashMap;

use crate::limits::Period;
use crate::litellm::Foreign;
use crate::own::OWN_USER;
use crate::profile::{Member, OwnerKind, check_id};
use crate::secret;
use crate::store::{Draft, Store, check_name};
use crate::table::{KeyRow, check_many};
use crate::{Error, KeyId, Limits, Profile, Secret};

/// The name of keys without a name.
pub const UNNAMED: &str = "unnamed";

/// All keys, users and teams in the file, without concurrent changes: what is read here is still true when the changes are written.
pub struct Transaction<'a> {
    rows: &'a mut Vec<KeyRow>,
    /// The index of each row.
    places: HashMap<KeyId, usize>,
    /// Seconds since 1970 UTC.
    now: i64,
}

impl Store {
    /// Makes changes in the file and in memory; if `work` fails, none. Other processes wait meanwhile.
    ///
    /// # Errors
    /// Those of `work`, and if the file cannot be read or written.
    pub fn transact<T, E: From<Error>>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let now = self.inner.clock().now().unix;
        self.inner.transact(|rows| {
            let places = places(rows);
            work(&mut Transaction { rows, places, now })
        })
    }
}

fn places(rows: &[KeyRow]) -> HashMap<KeyId, usize> {
    rows.iter().enumerate().map(|(place, row)| (KeyId::of(&row.hash), place)).collect()
}

impl Transaction<'_> {
    /// Creates a key. The secret is returned and stored nowhere.
    ///
    /// # Errors
    /// If another key has the name, the limits are invalid, there is no such team, or there are too many keys.
    pub fn create(&mut self, name: &str, limits: Limits, profile: Profile) -> Result<(Secret, KeyId), Error> {
        check_name(name)?;
        self.check_free(name)?;
        limits.check()?;
        profile.check()?;
        self.check_team(&profile)?;
        let secret = Secret::new()?;
        let Some(hash) = secret::hash(secret.reveal()) else {
            return Err(Error::NoRandomness("it made no key".into()));
        };
        let row = KeyRow { profile, ..KeyRow::new(hash, name, limits, self.now) };
        Ok((secret, self.push(row)?))
    }

    /// Creates a user or a team.
    ///
    /// # Errors
    /// If it exists, the id is that of the server's own user, the limits are invalid, or there are too many.
    pub fn create_owner(
        &mut self,
        kind: OwnerKind,
        id: &str,
        limits: Limits,
        profile: Profile,
    ) -> Result<KeyId, Error> {
        check_id(&format!("{}'s", kind.name()), id)?;
        limits.check()?;
        profile.check()?;
        if kind == OwnerKind::User && id == OWN_USER {
            let why = format!("the user '{id}' is the one of the server's own key; choose another id");
            return Err(Error::Invalid(why));
        }
        if self.has_owner(kind, id) {
            return Err(Error::Exists { kind: kind.name(), id: id.into() });
        }
        let row = KeyRow::new(kind.hash(id), id, limits, self.now);
        self.push(KeyRow { kind: Some(kind), profile, ..row })
    }

    /// Adds a key, a user or a team of another program, with its spend. A key whose name is taken gets a number. False if it is already
    /// there.
    ///
    /// # Errors
    /// If its limits are invalid, there is no such team, or there are too many.
    pub fn import(&mut self, foreign: &Foreign) -> Result<bool, Error> {
        let mut row = foreign.row.clone();
        if self.places.contains_key(&KeyId::of(&row.hash)) {
            return Ok(false);
        }
        row.limits.check()?;
        row.profile.check()?;
        match row.kind {
            Some(kind) => check_id(&format!("{}'s", kind.name()), &row.name)?,
            None => {
                if row.name.is_empty() {
                    row.name = UNNAMED.into();
                }
                check_name(&row.name)?;
                let wanted = row.name.clone();
                let mut n = 1;
                while self.check_free(&row.name).is_err() {
                    n += 1;
                    row.name = format!("{wanted}-{n}");
                }
                self.check_team(&row.profile)?;
            }
        }
        // Its spend is that of the current period.
        row.window = row.limits.budget.map_or(Period::Ever, |b| b.period).start(row.created, self.now);
        self.push(row)?;
        Ok(true)
    }

    /// Adds a row.
    fn push(&mut self, row: KeyRow) -> Result<KeyId, Error> {
        check_many(self.rows.len() + 1)?;
        let id = KeyId::of(&row.hash);
        self.places.insert(id, self.rows.len());
        self.rows.push(row);
        Ok(id)
    }

    /// Deletes users or teams, and revokes their keys. Users leave all teams. An id that is named twice counts once.
    ///
    /// # Errors
    /// If one does not exist.
    pub fn delete_owners(&mut self, kind: OwnerKind, ids: &[String]) -> Result<(), Error> {
        let mut gone = HashMap::new();
        for id in ids {
            let row = self.owner_row(kind, id)?;
            gone.insert(row.hash, id.as_str());
        }
        let is_gone = |id: Option<&String>| id.is_some_and(|id| gone.contains_key(&kind.hash(id)));
        self.rows.retain(|row| !gone.contains_key(&row.hash));
        for row in self.rows.iter_mut() {
            let owner = match kind {
                OwnerKind::User => row.profile.user.as_ref(),
                OwnerKind::Team => row.profile.team.as_ref(),
                OwnerKind::EndUser => None,
            };
            if row.kind.is_none() && is_gone(owner) {
                row.revoked = row.revoked.or(Some(self.now));
            }
            if kind == OwnerKind::User {
                row.profile.members.retain(|m| !is_gone(Some(&m.user)));
            }
        }
        self.places = places(self.rows);
        Ok(())
    }

    /// Changes a key, a user or a team.
    ///
    /// # Errors
    /// Those of `edit`; if there is no such row or team, another key has the new name, or the limits are invalid.
    pub fn edit<E: From<Error>>(
        &mut self,
        id: KeyId,
        edit: impl FnOnce(&mut Draft) -> Result<(), E>,
    ) -> Result<(), E> {
        let row = self.row(id)?;
        let mut draft =
            Draft { name: row.name.clone(), limits: row.limits.clone(), profile: row.profile.clone() };
        edit(&mut draft)?;
        let joins = draft.profile.team != row.profile.team;
        if draft.name != row.name {
            if let Some(kind) = row.kind {
                return Err(Error::Invalid(format!("the id of a {} stays as it is", kind.name())).into());
            }
            check_name(&draft.name)?;
            self.check_free(&draft.name)?;
        }
        draft.limits.check()?;
        draft.profile.check()?;
        if joins {
            self.check_team(&draft.profile)?;
        }
        let now = self.now;
        let row = self.row(id)?;
        row.limit(draft.limits, now);
        (row.name, row.profile) = (draft.name, draft.profile);
        Ok(())
    }

    /// Changes the members of a team.
    ///
    /// # Errors
    /// Those of `edit`; if there is no such team, or its members are invalid.
    pub fn edit_members<E: From<Error>>(
        &mut self,
        team: &str,
        edit: impl FnOnce(&mut Vec<Member>) -> Result<(), E>,
    ) -> Result<(), E> {
        let profile = &mut self.owner_row(OwnerKind::Team, team)?.profile;
        edit(&mut profile.members)?;
        Ok(profile.check()?)
    }

    /// Revokes a key. It stays in the list, and its usage is kept as long as all usage is.
    ///
    /// # Errors
    /// If there is no such key.
    pub fn revoke(&mut self, id: KeyId) -> Result<(), Error> {
        let now = self.now;
        let row = self.row(id)?;
        row.revoked = row.revoked.or(Some(now));
        Ok(())
    }

    /// All users or all teams: their ids and profiles.
    pub fn owners(&self, kind: OwnerKind) -> impl Iterator<Item = (&str, &Profile)> {
        self.rows
            .iter()
            .filter(move |row| row.kind == Some(kind))
            .map(|row| (row.name.as_str(), &row.profile))
    }

    /// Whether the user or team exists.
    pub fn has_owner(&self, kind: OwnerKind, id: &str) -> bool {
        self.places.contains_key(&KeyId::of(&kind.hash(id)))
    }

    /// Refuses a new name that another valid key has. Keys without a name share [`UNNAMED`].
    fn check_free(&self, name: &str) -> Result<(), Error> {
        let has_it = |row: &KeyRow| row.kind.is_none() && row.revoked.is_none() && row.name == name;
        if name != UNNAMED && self.rows.iter().any(has_it) {
            return Err(Error::NameTaken(name.into()));
        }
        Ok(())
    }

    /// Refuses a key of a team that does not exist.
    fn check_team(&self, profile: &Profile) -> Result<(), Error> {
        let Some(team) = &profile.team else { return Ok(()) };
        if self.has_owner(OwnerKind::Team, team) { Ok(()) } else { Err(no_owner(OwnerKind::Team, team)) }
    }

    fn row(&mut self, id: KeyId) -> Result<&mut KeyRow, Error> {
        let row = self.places.get(&id).and_then(|place| self.rows.get_mut(*place));
        row.ok_or_else(|| Error::NoSuchKey(id.to_string()))
    }

    fn owner_row(&mut self, kind: OwnerKind, id: &str) -> Result<&mut KeyRow, Error> {
        self.row(KeyId::of(&kind.hash(id))).map_err(|_| no_owner(kind, id))
    }
}

fn no_owner(kind: OwnerKind, id: &str) -> Error {
    Error::NoSuchOwner { kind: kind.name(), id: id.into() }
}
