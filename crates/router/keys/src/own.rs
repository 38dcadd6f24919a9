//! What requests with the server's own key use. That key is in no file and has no limits, and its usage is kept beside that of the others.
//! Used by the router, and by whoever shows usage.

use std::sync::Arc;

use crate::KeyId;
use crate::account::Reserved;
use crate::entry::{Entry, KeyInfo};
use crate::grant::Grant;
use crate::limits::Limits;
use crate::store::Store;
use crate::table::{Counts, KeyRow};

/// As the account is called.
const NAME: &str = "master-key";

/// No key has it: keys are texts, and are hashed without this.
fn hash() -> blake3::Hash {
    blake3::derive_key("octet 2026-11-23 the server's own key", b"").into()
}

/// What the usage of the server's own key is kept under.
pub fn own_key() -> KeyId {
    KeyId::of(&hash())
}

/// An account that is in memory alone.
pub(crate) fn entry() -> Entry {
    Entry::new(KeyRow::new(hash(), NAME, Limits::default(), 0))
}

impl Store {
    /// The server's own key, for lists of what was used.
    pub fn own(&self) -> KeyInfo {
        self.inner.info(&self.inner.own)
    }

    /// A request with the server's own key: nothing limits it, and what it takes is counted.
    pub fn grant_own(&self, model: &str) -> Grant {
        Grant {
            store: self.inner.clone(),
            entry: Arc::clone(&self.inner.own),
            owners: Vec::new(),
            model: Some(model.into()),
            reserved: Some(Reserved::default()),
            more: Counts::default(),
        }
    }
}
