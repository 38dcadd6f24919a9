//! Management of keys, users and teams, and reports of their spend, in the shapes of LiteLLM's proxy. Needs the server's own key.
//!
//! | file | paths |
//! |---|---|
//! | `keys` | `/key/...` |
//! | `users` | `/user/...` |
//! | `teams` | `/team/...` |
//! | `customers` | `/customer/...`, `/end_user/...` |
//! | `cache` | `/cache/...` |
//! | `spend` | `/spend/...`, `/global/spend/report` |
//! | `status` | `/admin/status`; the page itself is `page`'s |
//! | `requests` | `/admin/requests` |
//! | `settings` | the fields of requests that create or change a key, a user or a team |
//! | `rules` | defaults and upper bounds for new keys, from the configuration |
//! | `shapes` | keys, users and teams in LiteLLM's JSON shapes |
//! | `changes` | transactions: all changes of a request, or none |
//! | `access` | authorization, blocking file work, paging |

mod access;
mod cache;
mod changes;
mod customers;
mod keys;
mod requests;
mod rules;
mod settings;
mod shapes;
mod spend;
mod status;
mod teams;
mod users;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use super::page;
use crate::app::App;

/// The endpoints.
pub fn routes() -> Router<Arc<App>> {
    let page = Router::new()
        .route("/admin", get(page::admin))
        .route("/admin/status", get(status::status))
        .route("/admin/requests", get(requests::requests));
    page.merge(keys::routes())
        .merge(users::routes())
        .merge(teams::routes())
        .merge(customers::routes())
        .merge(spend::routes())
        .merge(cache::routes())
}
