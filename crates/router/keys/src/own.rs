//! Usage of the server's own key. That key is in no file and has no limits; its usage is stored with that of the others.

use crate::KeyId;
use crate::entry::Entry;
use crate::limits::Limits;
use crate::table::KeyRow;

/// The user that LiteLLM assigns to the server's own key. No user has this id.
pub const OWN_USER: &str = "default_user_id";

/// The account's name.
const NAME: &str = "master-key";

/// No key has this hash: keys are hashed without this text.
fn hash() -> blake3::Hash {
    blake3::derive_key("octet 2026-11-23 the server's own key", b"").into()
}

/// The id for the usage of the server's own key.
pub fn own_key() -> KeyId {
    KeyId::of(&hash())
}

/// An account that exists only in memory.
pub(crate) fn entry() -> Entry {
    Entry::new(KeyRow::new(hash(), NAME, Limits::default(), 0))
}
