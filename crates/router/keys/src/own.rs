//! What requests with the server's own key use. That key is in no file and has no limits, and its usage is kept beside that of the others.
//! Used by `store` and `total`, and by whoever shows usage.

use crate::KeyId;
use crate::entry::Entry;
use crate::limits::Limits;
use crate::table::KeyRow;

/// Whose the server's own key is said to be, as in LiteLLM. No user has this id.
pub const OWN_USER: &str = "default_user_id";

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
