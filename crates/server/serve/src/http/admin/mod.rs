//! What an operator does with keys, users and teams, and what these spent, over HTTP, in the shapes of LiteLLM's proxy. For the server's own key.
//! Called by the routes.
//!
//! | file | paths |
//! |---|---|
//! | `keys` | `/key/...` |
//! | `users` | `/user/...` |
//! | `teams` | `/team/...` |
//! | `cache` | `/cache/...` |
//! | `spend` | `/spend/...`, `/global/spend/report` |
//! | `status` | `/admin/status`; the page itself is `page`'s |
//! | `wish` | what a key, a user or a team is to be |
//! | `rules` | what the configuration says of new keys |
//! | `shapes` | these as they are told |
//! | `changes` | changes that are made whole or not at all |
//! | `asking` | who may ask, and how the file is waited for |

mod asking;
mod cache;
mod changes;
mod keys;
mod rules;
mod shapes;
mod spend;
mod status;
mod teams;
mod users;
mod wish;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use super::page;
use crate::app::App;

/// The endpoints.
pub fn routes() -> Router<Arc<App>> {
    let page = Router::new().route("/admin", get(page::admin)).route("/admin/status", get(status::status));
    page.merge(keys::routes())
        .merge(users::routes())
        .merge(teams::routes())
        .merge(spend::routes())
        .merge(cache::routes())
}
