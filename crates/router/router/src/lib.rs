//! Routing: which deployment answers a request, and what happens if it fails. Owned by the server; knows no HTTP.
//!
//! A [`Router`] is created from a configuration and [`Target`]s: providers behind `octet-upstream`, the engine in this process, mocks in
//! tests. The server sends it a [`Call`] and gets a [`Reply`]: `decide` waits until a deployment answers (then [`Reply::route`] has the
//! values for the headers), `next` returns the pieces. Dropping the reply cancels everything.
//!
//! | file | what |
//! |---|---|
//! | `table` | names and their groups of deployments; immutable, replaced by [`Router::reload`] |
//! | `state`, `window` | the state of a deployment at run time; survives a reload |
//! | `choose`, `hash` | which deployment of a group: a pure function |
//! | `prefix` | which prompts a deployment has seen |
//! | `policy`, `retry` | retries, cooldown, fallbacks |
//! | `request`, `dispatch`, `attempt`, `reply` | one request; its way to an answer; one attempt; the answer |
//! | `remote`, `resume` | a provider as a target; continuation of a broken answer |
//! | `cascade`, `confidence`, `signal`, `probe`, `calls`, `self_check`, `calibrate` | a fast group and a strong one |
//! | `shadow`, `health` | background work: copies of requests, health checks |
//! | `shared` | limits and cooldowns of several processes |
//! | `trace` | every decision, as data |

mod ask;
mod attempt;
pub mod calibrate;
pub mod calls;
mod cascade;
pub mod choose;
pub mod confidence;
mod dispatch;
mod explain;
mod failure;
pub mod hash;
pub mod health;
mod limit;
mod policy;
pub mod prefix;
mod probe;
mod remote;
mod reply;
mod request;
mod resume;
mod retry;
mod router;
mod schema;
pub mod self_check;
mod shadow;
mod shared;
pub mod signal;
mod size;
pub mod state;
mod table;
mod tags;
mod target;
pub mod trace;
mod turn;
mod usage;
mod window;

pub use failure::{Failure, FailureKind, from_api};
pub use limit::{Exhausted, ExpectedTokens, LimitKind, SharedPermit};
pub use octet_upstream::{AnswerMemory, Dialect, Passed, Upload};
pub use policy::{Cooldown, Fallbacks, Policy, Retries};
pub use remote::Remote;
pub use reply::Reply;
pub use request::{Allowed, Call, RequestOptions};
pub use router::Router;
pub use shadow::ShadowCounts;
pub use shared::{Acquired, Shared};
pub use size::{Size, answers, bytes_with_images, last_user_text};
pub use table::{Deployment, Group, Resolved, Table, TableError};
pub use target::{Ask, Events, Original, Piece, Sent, Target};
pub use trace::{Answered, Route, Spent, Step};
pub use usage::UsageBounds;
