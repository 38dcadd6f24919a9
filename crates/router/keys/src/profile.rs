//! Whose a key is, and who belongs to a team. Kept by `table`, held to by `entry`; `owners` changes it.

use serde_json::{Map, Value};

use crate::{Error, Period};

/// Longest id of a user or a team, in bytes.
pub(crate) const ID_BYTES_MAX: usize = 200;
/// Most members of a team.
const MEMBERS_MAX: usize = 5000;
/// Longest description, in bytes of JSON.
const ABOUT_BYTES_MAX: usize = 64 << 10;

/// What has an account beside keys: its limits hold for all of its keys together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnerKind {
    /// A person or a program.
    User,
    /// Some users.
    Team,
}

impl OwnerKind {
    /// As it is called in the file, and in refusals.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Team => "team",
        }
    }

    pub(crate) fn read(name: &str) -> Option<Self> {
        [Self::User, Self::Team].into_iter().find(|kind| kind.name() == name)
    }

    /// The hash of its row, which no key has: keys are hashed without the words before.
    pub(crate) fn hash(self, id: &str) -> blake3::Hash {
        blake3::derive_key("octet 2026-11-23 a user or a team", format!("{} {id}", self.name()).as_bytes())
            .into()
    }
}

/// Who belongs to a team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The user's id.
    pub user: String,
    /// `admin` or `user`; it is shown, and has no effect.
    pub role: String,
}

/// Whose a key is, and what is said of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Of a key: the id of its user. Where there is no such user, it is a label.
    pub user: Option<String>,
    /// Of a key: the id of its team, which exists.
    pub team: Option<String>,
    /// Requests are refused until that is undone.
    pub blocked: bool,
    /// Of a team: its members.
    pub members: Vec<Member>,
    /// What else is said of it: shown, and without effect.
    pub about: Map<String, Value>,
}

/// The name of the period in what is said of a key, a user or a team.
const PERIOD: &str = "budget_duration";

impl Profile {
    /// Of what has no budget: how long one lasts that it is given later.
    pub fn kept_period(&self) -> Option<Period> {
        self.about.get(PERIOD)?.as_str()?.parse().ok()
    }

    /// Keeps that, or forgets it.
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

/// Refuses what cannot be an id.
pub(crate) fn check_id(whose: &str, id: &str) -> Result<(), Error> {
    let is_id = !id.is_empty() && id.len() <= ID_BYTES_MAX && !id.contains(char::is_control);
    if is_id {
        Ok(())
    } else {
        Err(Error::Invalid(format!("a {whose} id has 1 to {ID_BYTES_MAX} bytes, on one line")))
    }
}
