//! `/admin/requests`: the requests that run now, and the last ones that have ended, for the admin page.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use octet_api::{ApiError, ErrorKind};
use serde::Deserialize;
use serde_json::json;

use super::access::manager;
use crate::app::App;
use crate::http::call::{caller, trace};
use crate::http::error::{Dialect, json as json_response};

/// How many ended requests are returned if the client does not say.
const LIMIT: usize = 100;

/// The query.
#[derive(Deserialize)]
pub struct Asked {
    limit: Option<usize>,
}

/// `GET /admin/requests?limit=100`: needs the server's own key.
pub async fn requests(
    State(app): State<Arc<App>>,
    asked: Result<Query<Asked>, QueryRejection>,
    request: Request,
) -> Response {
    let answer = manager(&app, &caller(&request)).and_then(|()| {
        let Query(asked) = asked.map_err(|e| ApiError::new(ErrorKind::InvalidRequest, e.body_text()))?;
        let log = &app.inference.requests;
        Ok(json!({"running": log.running(), "ended": log.last(asked.limit.unwrap_or(LIMIT))}))
    });
    match answer {
        Ok(answer) => json_response(200, answer.to_string()),
        Err(e) => Dialect::OpenAi.error(&e, Some(&trace(&request))),
    }
}
