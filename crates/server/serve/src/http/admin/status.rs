//! `/admin/status`: the router's state for the admin page.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use octet_api::{ApiError, ErrorKind};

use super::access::manager;
use crate::app::App;
use crate::http::call::{caller, trace};
use crate::http::error::{Dialect, json as json_response};

/// `GET /admin/status`: needs the server's own key.
pub async fn status(State(app): State<Arc<App>>, request: Request) -> Response {
    let none = || {
        ApiError::new(ErrorKind::NotFound, "there is no router here: octet serve --config FILE starts one")
    };
    let gateway = manager(&app, &caller(&request)).and_then(|()| app.gateway().ok_or_else(none));
    match gateway {
        Ok(gateway) => json_response(200, gateway.overview().to_string()),
        Err(e) => Dialect::OpenAi.error(&e, Some(&trace(&request))),
    }
}
