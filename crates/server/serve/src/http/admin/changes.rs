//! Transactions on keys, users and teams: all changes of a request, or none.

use std::collections::{HashMap, HashSet};

use octet_api::ApiError;
use octet_keys::{Draft, Error, KeyId, Member, OwnerKind, Profile, Secret, Store, Transaction, UNNAMED};
use serde_json::{Map, Value};

use super::access::{failed, wrong};
use super::rules::KeyRules;
use super::settings::{Entity, Settings};

/// An error of a change, from the request or from the store.
struct Refused(ApiError);

impl From<Error> for Refused {
    fn from(e: Error) -> Self {
        Self(failed(&e))
    }
}

/// Runs `work` in one transaction. If it fails, nothing is changed.
pub fn transact<T>(
    store: &Store,
    work: impl FnOnce(&mut Changes<'_, '_>) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    store.transact(|all| work(&mut Changes(all)).map_err(Refused)).map_err(|Refused(e)| e)
}

/// The changes of one request, with errors for its client.
pub struct Changes<'a, 'b>(&'a mut Transaction<'b>);

impl Changes<'_, '_> {
    /// Creates a key. Fails if another key has its name.
    pub fn create(&mut self, settings: Settings) -> Result<(Secret, KeyId), ApiError> {
        let name = settings.name.unwrap_or_else(|| UNNAMED.into());
        self.0.create(&name, settings.limits, settings.profile).map_err(|e| failed(&e))
    }

    /// Changes a key, a user or a team; `change` gets its current state.
    pub fn edit(
        &mut self,
        id: KeyId,
        change: impl FnOnce(&mut Draft) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        self.0.edit(id, |draft| change(draft).map_err(Refused)).map_err(|Refused(e)| e)
    }

    /// Creates a user or a team. Fails if another user has the email address.
    pub fn create_owner(&mut self, kind: OwnerKind, id: &str, settings: Settings) -> Result<(), ApiError> {
        self.0.create_owner(kind, id, settings.limits, settings.profile).map_err(|e| failed(&e))?;
        if kind == OwnerKind::User { self.check_email(id) } else { Ok(()) }
    }

    /// Whether there is an end user with this name.
    pub fn has_end_user(&self, id: &str) -> bool {
        self.0.has_owner(OwnerKind::EndUser, id)
    }

    /// Makes a user who is not there yet, as `rules` say; says whether that was so. Nobody looks whether another one has the address.
    pub fn ensure_user(&mut self, id: &str, email: Option<&str>, rules: &KeyRules) -> Result<bool, ApiError> {
        if self.0.has_owner(OwnerKind::User, id) {
            return Ok(false);
        }
        let Settings { limits, mut profile, .. } = rules.member()?;
        profile.about.extend(email.map(|email| (EMAIL.to_string(), Value::from(email))));
        self.0.create_owner(OwnerKind::User, id, limits, profile).map_err(|e| failed(&e))?;
        Ok(true)
    }

    /// Deletes users or teams.
    pub fn delete_owners(&mut self, kind: OwnerKind, ids: &[String]) -> Result<(), ApiError> {
        self.0.delete_owners(kind, ids).map_err(|e| failed(&e))
    }

    /// Adds users to a team, or changes their roles. The last role of a user named twice counts.
    pub fn join(&mut self, team: &str, new: Vec<Member>) -> Result<(), ApiError> {
        let enter = |members: &mut Vec<Member>| {
            *members = last_of_each(std::mem::take(members).into_iter().chain(new));
            Ok(())
        };
        self.0.edit_members(team, enter).map_err(|e: Error| failed(&e))
    }

    /// Fails if the team does not exist.
    pub fn need_team(&self, id: &str) -> Result<(), ApiError> {
        let none = || Error::NoSuchOwner { kind: OwnerKind::Team.name(), id: id.into() };
        if self.0.has_owner(OwnerKind::Team, id) { Ok(()) } else { Err(failed(&none())) }
    }

    /// User ids by email address.
    pub fn users_by_email(&self) -> HashMap<String, String> {
        let emails = self.0.owners(OwnerKind::User).filter_map(|(id, profile)| {
            Some((profile.about.get(EMAIL)?.as_str()?.to_string(), id.to_string()))
        });
        emails.collect()
    }

    /// Fails if another user has the email address of `user`.
    pub fn check_email(&self, user: &str) -> Result<(), ApiError> {
        let email = |profile: &Profile| profile.about.get(EMAIL).and_then(Value::as_str).map(String::from);
        let own = self.0.owners(OwnerKind::User).find(|(id, _)| *id == user);
        let Some(own) = own.and_then(|(_, profile)| email(profile)) else { return Ok(()) };
        let has_it = |(id, profile): (&str, &Profile)| id != user && email(profile).as_ref() == Some(&own);
        if self.0.owners(OwnerKind::User).any(has_it) {
            return Err(wrong(EMAIL, "a user with this 'user_email' exists"));
        }
        Ok(())
    }
}

/// The field with a user's email address.
pub const EMAIL: &str = "user_email";

/// Each user once, with the last role, in the order of the last entries.
pub fn last_of_each(members: impl Iterator<Item = Member>) -> Vec<Member> {
    let all: Vec<Member> = members.collect();
    let mut seen = HashSet::new();
    let mut kept: Vec<Member> = all.into_iter().rev().filter(|m| seen.insert(m.user.clone())).collect();
    kept.reverse();
    kept
}

/// Applies the fields of a request; returns notes about those without effect.
pub fn change(
    store: &Store,
    of: Entity,
    id: KeyId,
    fields: Map<String, Value>,
) -> Result<Vec<String>, ApiError> {
    let mut notes = Vec::new();
    transact(store, |all| {
        let mut user = None;
        all.edit(id, |draft| {
            notes = Settings::change(of, fields, draft)?;
            user = (of == Entity::User).then(|| draft.name.clone());
            Ok(())
        })?;
        user.map_or(Ok(()), |user| all.check_email(&user))
    })?;
    Ok(notes)
}

/// Blocks a key, a user or a team, or unblocks it.
pub fn set_blocked(store: &Store, id: KeyId, blocked: bool) -> Result<(), ApiError> {
    set_all_blocked(store, &[id], blocked)
}

/// Blocks or unblocks several: all of them or none.
pub fn set_all_blocked(store: &Store, ids: &[KeyId], blocked: bool) -> Result<(), ApiError> {
    transact(store, |all| {
        ids.iter().try_for_each(|id| {
            all.edit(*id, |draft| {
                draft.profile.blocked = blocked;
                Ok(())
            })
        })
    })
}
