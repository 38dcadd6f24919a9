//! What an operator does with keys, users and teams, and what these spent, over HTTP, in the shapes of LiteLLM's proxy. For the server's own key.
//! Called by the routes.
//!
//! | file | paths |
//! |---|---|
//! | `keys` | `/key/...` |
//! | `users` | `/user/...` |
//! | `teams` | `/team/...` |
//! | `spend` | `/spend/...`, `/global/spend/report` |
//! | `wish` | what a key, a user or a team is to be |
//! | `shapes` | these as they are told |
//! | `asking` | who may ask, and how the file is waited for |

mod asking;
mod keys;
mod shapes;
mod spend;
mod teams;
mod users;
mod wish;

use std::sync::Arc;

use axum::Router;

use crate::app::App;

/// The endpoints.
pub fn routes() -> Router<Arc<App>> {
    keys::routes().merge(users::routes()).merge(teams::routes()).merge(spend::routes())
}
