//! OpenAI's Responses API: returning and deleting stored responses, and listing their input items. `responses` stores them.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use octet_api::openai::responses::{self, PageQuery};
use octet_api::{ApiError, ErrorKind, shortened};

use super::Dialect;
use super::call::{caller, trace};
use super::error::{json, named};
use super::response_store::KeptResponse;
use crate::app::App;
use crate::blocking::run_sized;
use crate::memory_budget::MemoryPermit;

/// The path's id, or why it cannot be read.
type Id = Result<Path<String>, PathRejection>;

fn missing(id: &str) -> ApiError {
    let what = format!("the response '{}' is not stored (unknown or expired)", shortened(id));
    ApiError::new(ErrorKind::NotFound, what)
}

/// Stored responses are returned whole: streaming or parts of them are refused.
fn no_query(request: &Request) -> Result<(), ApiError> {
    let Some(name) = request.uri().query().and_then(|q| q.split(['=', '&']).find(|n| !n.is_empty())) else {
        return Ok(());
    };
    let name = shortened(name);
    Err(ApiError::invalid(&*name, format!("'{name}' is not supported here; leave the query out")))
}

fn kept(app: &App, id: Id, request: &Request) -> Result<Arc<KeptResponse>, ApiError> {
    let id = named(id)?;
    app.kept.get(&id, &caller(request)).ok_or_else(|| missing(&id))
}

fn answered(result: Result<Response, ApiError>, request: &Request) -> Response {
    result.unwrap_or_else(|e| Dialect::OpenAi.error(&e, Some(&trace(request))))
}

/// `GET /v1/responses/{id}`
pub async fn get(State(app): State<Arc<App>>, id: Id, request: Request) -> Response {
    let kept = no_query(&request).and_then(|()| kept(&app, id, &request));
    answered(kept.map(|kept| json(200, kept.body.clone())), &request)
}

/// `GET /v1/responses/{id}/input_items`
pub async fn input_items(State(app): State<Arc<App>>, id: Id, request: Request) -> Response {
    let asked = page_query(&request).and_then(|query| Ok((query, kept(&app, id, &request)?)));
    let trace = trace(&request);
    let page = match asked {
        Ok((query, kept)) => page(&app, kept, query).await,
        Err(e) => Err(e),
    };
    page.map_or_else(|e| Dialect::OpenAi.error(&e, Some(&trace)), |page| json(200, page))
}

fn page_query(request: &Request) -> Result<PageQuery, ApiError> {
    let Query(query) = Query::<Vec<(String, String)>>::try_from_uri(request.uri())
        .map_err(|e| ApiError::new(ErrorKind::InvalidRequest, e.body_text()))?;
    PageQuery::parse(query)
}

/// A page of input items, within the memory budget: it may have most of the conversation.
async fn page(app: &App, kept: Arc<KeptResponse>, query: PageQuery) -> Result<String, ApiError> {
    let mut share = MemoryPermit::default();
    app.memory_budget.take_kept(&mut share, kept.bytes)?;
    let bytes = kept.bytes;
    let write = move || {
        let page = kept.input_page(&query).map(|page| page.to_string());
        drop(share);
        page
    };
    run_sized(bytes, write).await?
}

/// `DELETE /v1/responses/{id}`
pub async fn delete(State(app): State<Arc<App>>, id: Id, request: Request) -> Response {
    let removed = no_query(&request).and_then(|()| named(id)).and_then(|id| {
        let is_removed = app.kept.remove(&id, &caller(&request));
        if is_removed { Ok(json(200, responses::deleted(&id).to_string())) } else { Err(missing(&id)) }
    });
    answered(removed, &request)
}
