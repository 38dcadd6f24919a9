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
use crate::gateway::Caller;
use crate::memory_budget::MemoryPermit;
use crate::ops::Trace;

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

/// A stored response of the path's id. The request itself is not kept while the database is asked.
async fn kept(
    app: &App,
    id: Id,
    caller: &Caller,
    share: &mut MemoryPermit,
) -> Result<Arc<KeptResponse>, ApiError> {
    let id = named(id)?;
    let take = |bytes| app.memory_budget.take_kept(share, bytes);
    app.kept.get(&id, caller, take).await?.ok_or_else(|| missing(&id))
}

fn answered(result: Result<Response, ApiError>, trace: &Trace) -> Response {
    result.unwrap_or_else(|e| Dialect::OpenAi.error(&e, Some(trace)))
}

/// `GET /v1/responses/{id}`
pub async fn get(State(app): State<Arc<App>>, id: Id, request: Request) -> Response {
    let (caller, trace, query) = (caller(&request), trace(&request), no_query(&request));
    drop(request);
    let answer = async {
        query?;
        let mut share = MemoryPermit::default();
        let kept = kept(&app, id, &caller, &mut share).await?;
        Ok(json(200, kept.body.clone()))
    };
    answered(answer.await, &trace)
}

/// `GET /v1/responses/{id}/input_items`
pub async fn input_items(State(app): State<Arc<App>>, id: Id, request: Request) -> Response {
    let (caller, trace, query) = (caller(&request), trace(&request), page_query(&request));
    drop(request);
    let answer = async {
        let query = query?;
        let mut share = MemoryPermit::default();
        let kept = kept(&app, id, &caller, &mut share).await?;
        Ok(json(200, page(&app, kept, query).await?))
    };
    answered(answer.await, &trace)
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
    let (caller, trace, query) = (caller(&request), trace(&request), no_query(&request));
    drop(request);
    let answer = async {
        query?;
        let id = named(id)?;
        let is_removed = app.kept.remove(&id, &caller).await?;
        if is_removed { Ok(json(200, responses::deleted(&id).to_string())) } else { Err(missing(&id)) }
    };
    answered(answer.await, &trace)
}
