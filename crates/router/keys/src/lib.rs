//! Virtual keys: who may ask which models, how often and for how much money, and what was used. Used by the router for each
//! request, and by `octet keys` and `octet usage`.
//!
//! [`Store`] keeps all keys in memory beside their file: [`Store::authorize`] reads no disk. It gives a [`Grant`] that holds
//! a reservation until [`Grant::settle`] says what the answer took. What was spent is written behind, once a second, by one
//! thread. Where it cannot be written, keys with a budget are refused: they would otherwise spend it again after a crash.
//!
//! Several processes may have the file open: each adds what it spent, and sees within a second what the others did, so a key
//! that `octet keys revoke` takes back is refused by a running server.
//!
//! A key may be a user's and a team's ([`Profile`]). These have accounts as keys do, in the same table, and a request counts for all of them.

mod account;
pub mod calendar;
mod change;
mod clock;
mod entry;
mod error;
mod files;
mod grant;
mod limits;
mod money;
mod own;
mod owners;
mod profile;
mod refusal;
mod schema;
mod secret;
mod store;
mod table;
mod tags;
mod total;
mod transaction;
mod window;

pub use clock::{Clock, Now};
pub use entry::KeyInfo;
pub use error::Error;
pub use grant::Grant;
pub use limits::{Budget, Limits, Period};
pub use money::{Ask, Prices, Usage, Usd};
pub use own::{OWN_USER, own_key};
pub use profile::{Member, OwnerKind, Profile};
pub use refusal::Refusal;
pub use secret::{KeyId, Secret};
pub use store::{Draft, Options, Store};
pub use table::{Filter, UsageRow};
pub use tags::TagRow;
pub use total::budget;
pub use transaction::{Transaction, UNNAMED};
