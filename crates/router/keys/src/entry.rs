//! The account of a key, a user or a team, in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::account::Account;
use crate::profile::OwnerKind;
use crate::table::KeyRow;
use crate::{KeyId, Limits, Now, Profile, Refusal, Usd};

/// Information about a key, a user or a team.
#[derive(Debug, Clone)]
pub struct KeyInfo {
    /// Its id in logs.
    pub id: KeyId,
    /// A key's name; of a user or a team, its id in requests.
    pub name: String,
    /// Its limits.
    pub limits: Limits,
    /// Creation time, in seconds since 1970 UTC.
    pub created: i64,
    /// Revocation time.
    pub revoked: Option<i64>,
    /// Spent in the budget's period, or in total without a budget.
    pub spent: Usd,
    /// When the budget is reset.
    pub resets: Option<i64>,
    /// Its owners and metadata.
    pub profile: Profile,
}

/// All accounts.
pub(crate) type Entries = HashMap<KeyId, Arc<Entry>>;

/// New accounts that are not written yet.
pub(crate) type NewEntries = Mutex<HashMap<KeyId, (KeyRow, Arc<Entry>)>>;

/// One account.
pub(crate) struct Entry {
    pub(crate) id: KeyId,
    /// What it is, if it is not a key.
    pub(crate) kind: Option<OwnerKind>,
    pub(crate) hash: blake3::Hash,
    account: Mutex<Account>,
    owners: RwLock<Owners>,
}

/// A key's owners: the accounts that its requests also count for.
#[derive(Default)]
struct Owners {
    /// The user's and the team's, in this order.
    accounts: Vec<Arc<Entry>>,
    /// Its team does not exist.
    is_orphan: bool,
}

impl Entry {
    pub(crate) fn new(row: KeyRow) -> Self {
        let (id, kind, hash) = (KeyId::of(&row.hash), row.kind, row.hash);
        Self { id, kind, hash, account: Mutex::new(Account::new(row)), owners: RwLock::default() }
    }

    pub(crate) fn account(&self) -> MutexGuard<'_, Account> {
        lock(&self.account)
    }

    /// The accounts of its user and team.
    pub(crate) fn owners(&self) -> Result<Vec<Arc<Entry>>, Refusal> {
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        // Its team was deleted, and the limits with it.
        if owners.is_orphan { Err(Refusal::Revoked) } else { Ok(owners.accounts.clone()) }
    }

    /// Whether it is valid, with its user and team.
    pub(crate) fn standing(&self, now: Now) -> Result<(), Refusal> {
        self.account().standing(now)?;
        self.owners()?
            .iter()
            .try_for_each(|o| o.account().standing(now).map_err(|refusal| o.refusal(refusal)))
    }

    /// A refusal in the form for the client of one of its keys.
    pub(crate) fn refusal(&self, refusal: Refusal) -> Refusal {
        match self.kind {
            Some(kind) => Refusal::Owner { kind, refusal: Box::new(refusal) },
            None => refusal,
        }
    }

    /// Applies the file's state; returns whether its user or team has changed, so that it must be [linked](Self::link).
    pub(crate) fn sync(&self, row: KeyRow, now: Now) -> bool {
        let mut account = self.account();
        let is_moved = account.profile.user != row.profile.user || account.profile.team != row.profile.team;
        account.sync(row, now);
        is_moved
    }

    /// Links a key to the accounts of its user and team. Users and teams have none.
    pub(crate) fn link(&self, entries: &Entries) {
        if self.kind.is_some() {
            return;
        }
        let (user, team) = {
            let account = self.account();
            (account.profile.user.clone(), account.profile.team.clone())
        };
        let of = |kind: OwnerKind, id: Option<String>| id.map(|id| KeyId::of(&kind.hash(&id)));
        let (user, team) = (of(OwnerKind::User, user), of(OwnerKind::Team, team));
        let is_orphan = team.is_some_and(|id| !entries.contains_key(&id));
        let accounts =
            [user, team].into_iter().flatten().filter_map(|id| entries.get(&id).cloned()).collect();
        *self.owners.write().unwrap_or_else(PoisonError::into_inner) = Owners { accounts, is_orphan };
    }
}

/// The hash of the account of all requests together ([`Store::set_total`](crate::Store::set_total)). No key has it: keys are hashed without
/// this text.
pub(crate) fn total_hash() -> blake3::Hash {
    blake3::derive_key("octet 2026-11-22 the budget of all requests together", b"").into()
}

/// After a panic the lock still guards valid counts: each change is one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
