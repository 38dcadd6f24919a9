//! The owners of a key, and the members of a team. Stored by `table`, enforced by `entry`, changed by `owners`.

use serde_json::{Map, Value};

use crate::{Budget, Error, Period};

/// Maximum length of a user's or team's id, in bytes.
pub(crate) const ID_BYTES_MAX: usize = 200;
/// Maximum number of members of a team.
const MEMBERS_MAX: usize = 5000;
/// Maximum size of the metadata, in bytes of JSON.
const ABOUT_BYTES_MAX: usize = 64 << 10;

/// Accounts besides keys: their limits apply to all of their keys together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnerKind {
    /// A person or a program.
    User,
    /// A group of users.
    Team,
    /// Who uses a client: the `user` that its requests name. No key belongs to one.
    EndUser,
}

impl OwnerKind {
    /// Its name in the file and in refusals.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Team => "team",
            Self::EndUser => "end user",
        }
    }

    pub(crate) fn read(name: &str) -> Option<Self> {
        [Self::User, Self::Team, Self::EndUser].into_iter().find(|kind| kind.name() == name)
    }

    /// The hash of its row, which no key has: keys are hashed without this prefix.
    pub(crate) fn hash(self, id: &str) -> blake3::Hash {
        blake3::derive_key("octet 2026-11-23 a user or a team", format!("{} {id}", self.name()).as_bytes())
            .into()
    }
}

/// The end user of a request.
#[derive(Debug, Clone, Copy)]
pub struct EndUser<'a> {
    /// The name that the client gives.
    pub id: &'a str,
    /// The budget of end users that have none of their own; without it, only those are counted that were created.
    pub budget: Option<Budget>,
}

/// A member of a team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The user's id.
    pub user: String,
    /// `admin` or `user`; shown, without effect.
    pub role: String,
}

/// The owners of an account and its metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Of a key: the id of its user. If there is no such user, it is only a label.
    pub user: Option<String>,
    /// Of a key: the id of its team, which exists.
    pub team: Option<String>,
    /// Requests are refused until it is unblocked.
    pub blocked: bool,
    /// Of a team: its members.
    pub members: Vec<Member>,
    /// Metadata: shown, without effect.
    pub about: Map<String, Value>,
}

/// The metadata's field with the period.
const PERIOD: &str = "budget_duration";

impl Profile {
    /// Of an account without a budget: the period of a budget that is added later.
    pub fn kept_period(&self) -> Option<Period> {
        self.about.get(PERIOD)?.as_str()?.parse().ok()
    }

    /// Sets or removes that period.
    pub fn keep_period(&mut self, period: Option<Period>) {
        match period {
            Some(period) => drop(self.about.insert(PERIOD.into(), period.to_string().into())),
            None => drop(self.about.remove(PERIOD)),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let ids = self.user.iter().chain(&self.team).chain(self.members.iter().map(|m| &m.user));
        for id in ids {
            check_id("user's or team's", id)?;
        }
        if self.members.len() > MEMBERS_MAX {
            return Err(Error::Invalid(format!("a team has at most {MEMBERS_MAX} members")));
        }
        if !self.about.is_empty() && Value::from(self.about.clone()).to_string().len() > ABOUT_BYTES_MAX {
            let what = format!("names, addresses and metadata have at most {ABOUT_BYTES_MAX} bytes together");
            return Err(Error::Invalid(what));
        }
        Ok(())
    }
}

/// Refuses invalid ids.
pub(crate) fn check_id(whose: &str, id: &str) -> Result<(), Error> {
    let is_id = !id.is_empty() && id.len() <= ID_BYTES_MAX && !id.contains(char::is_control);
    if is_id {
        Ok(())
    } else {
        Err(Error::Invalid(format!("a {whose} id has 1 to {ID_BYTES_MAX} bytes, on one line")))
    }
}
