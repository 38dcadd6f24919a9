//! Virtual keys: allowed models, rate limits, budgets, and usage.
//!
//! [`Store`] keeps all keys in memory, besides their file or PostgreSQL database: [`Store::authorize`] does not read the disk. It returns a [`Grant`] with a
//! reservation until [`Grant::settle`] states the usage. One thread writes spend once per second. If it cannot be written, keys with a
//! budget are refused: they could otherwise spend it again after a crash.
//!
//! Several processes may open the file: each adds its spend, and reads the others' within a second, so a running server refuses a key soon
//! after `octet keys revoke`.
//!
//! A key may belong to a user and a team ([`Profile`]). These have accounts like keys, in the same table, and a request counts for all of
//! them.

mod account;
mod backend;
pub mod calendar;
mod change;
mod clock;
mod end_users;
mod entry;
mod error;
mod files;
mod grant;
mod inner;
mod limits;
mod litellm;
mod money;
mod options;
mod own;
mod owners;
mod postgres;
mod postgres_connect;
mod postgres_leases;
mod postgres_rows;
mod profile;
mod refusal;
mod responses;
mod schema;
mod secret;
mod sqlite;
mod store;
mod table;
mod tags;
mod total;
mod transaction;
mod window;

pub use clock::{Clock, Now};
pub use entry::KeyInfo;
pub use error::Error;
pub use grant::{Grant, Limited, Spending};
pub use limits::{Budget, Limits, Period, matches_pattern};
pub use litellm::{Foreign, litellm};
pub use money::{Ask, Prices, Usage, Usd};
pub use options::Options;
pub use own::{OWN_USER, own_key};
pub use profile::{EndUser, Member, OwnerKind, Profile};
pub use refusal::Refusal;
pub use responses::{ResponseRow, Responses};
pub use secret::{KeyId, Secret};
pub use store::{Draft, Store};
pub use table::{Filter, UsageRow};
pub use tags::TagRow;
pub use total::budget;
pub use transaction::{Transaction, UNNAMED};
