//! OpenAI's Responses API: creating, storing, returning and deleting responses.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use octet_api::core::{Answer, GenerateRequest};
use octet_api::openai::responses::{self, ResponseWriter};
use octet_api::{ApiError, ErrorKind, shortened};
use octet_router::Dialect as Wire;

use super::call::{Call, call, caller, trace};
use super::error::{json, named};
use super::generate::generate;
use super::reply::{Form, SSE};
use super::response_store::Referred;
use super::routed;
use super::{Dialect, body};
use crate::app::App;
use crate::gateway::read::{Own, split};
use crate::gateway::{Caller, Gateway};
use crate::memory_budget::MemoryPermit;

const FORM: Form = Form {
    writer: |r| Box::new(ResponseWriter::new(r)),
    whole: responses::response,
    stream_type: SSE,
    done: keep,
};

fn keep(app: &App, owner: Option<&Arc<str>>, request: &GenerateRequest, answer: &Answer) {
    if request.store {
        let body = responses::response(request, answer);
        app.kept.put(&answer.id, owner, responses::conversation(request, answer), body);
    }
}

/// `POST /v1/responses`
pub async fn create(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let (mut bytes, mut share) = c.body.into_parts();
        let mut own = Own::default();
        if let Some(gateway) = c.app.gateway().cloned() {
            (own, bytes) = split(bytes, Wire::OpenAiResponses);
            own.cached_as = Some((Wire::OpenAiResponses, bytes.clone()));
            if passes(&c.app, &gateway, &c.sender.caller, &bytes) {
                let context = c.sender.context(share, own);
                return routed::passing(&c.app, &gateway, context, Wire::OpenAiResponses, bytes, FORM).await;
            }
        }
        let parsed = read(&c.app, &c.sender.caller, &mut share, bytes).await?;
        if let Some(gateway) = c.app.gateway().cloned() {
            return routed::parsed(&c.app, &gateway, c.sender.context(share, own), parsed, None, FORM).await;
        }
        generate(c.app, c.sender.trace, &c.sender.headers, (parsed, share), FORM).await
    })
    .await
}

/// Parses a request, with the stored items and the stored conversation that it refers to.
pub async fn read(
    app: &Arc<App>,
    caller: &Caller,
    share: &mut MemoryPermit,
    bytes: Bytes,
) -> Result<GenerateRequest, ApiError> {
    let (store, reader) = (Arc::clone(app), caller.clone());
    let parse = move |bytes: &[u8]| {
        let mut referred = Referred::new(&store.kept, &reader);
        let parsed = responses::parse_with(bytes, &mut |id| referred.item(id))?;
        Ok((parsed, referred.bytes))
    };
    // The stored bodies that a short request refers to may be long.
    let len = bytes.len() + app.kept.bytes();
    let (mut parsed, referred_bytes) = body::parse_of(&app.memory_budget, share, bytes, len, parse).await?;
    app.memory_budget.take_kept(share, referred_bytes)?;
    if let Some(id) = &parsed.previous_response_id {
        let Some(kept) = app.kept.get(id, caller) else {
            let what =
                format!("the response '{}' is not kept (any more); send its items instead", shortened(id));
            let error = ApiError::invalid("previous_response_id", what);
            return Err(ApiError { code: Some("previous_response_not_found".into()), ..error });
        };
        app.memory_budget.take_kept(share, kept.bytes)?;
        responses::follow(&mut parsed, kept.conversation.clone());
    }
    Ok(parsed)
}

/// Whether a request is forwarded to a provider that has the Responses API and stores them itself. Requests that continue a response
/// stored here are answered here.
fn passes(app: &App, gateway: &Gateway, caller: &Caller, body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Fields {
        model: String,
        #[serde(default)]
        previous_response_id: Option<String>,
    }
    let Ok(asked) = serde_json::from_slice::<Fields>(body) else { return false };
    let kept_here = asked.previous_response_id.is_some_and(|id| app.kept.get(&id, caller).is_some());
    !kept_here && gateway.passes(gateway.name(&asked.model), Wire::OpenAiResponses)
}

fn missing(id: &str) -> ApiError {
    let what = format!("the response '{}' is not kept, or not any more", shortened(id));
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

/// `GET /v1/responses/{id}`
pub async fn get(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let kept = no_query(&request).and_then(|()| named(id));
    let kept = kept.and_then(|id| app.kept.get(&id, &caller(&request)).ok_or_else(|| missing(&id)));
    match kept {
        Ok(kept) => json(200, kept.body.clone()),
        Err(e) => Dialect::OpenAi.error(&e, Some(&trace(&request))),
    }
}

/// `DELETE /v1/responses/{id}`
pub async fn delete(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let removed = no_query(&request)
        .and_then(|()| named(id))
        .and_then(|id| if app.kept.remove(&id, &caller(&request)) { Ok(id) } else { Err(missing(&id)) });
    match removed {
        Ok(id) => json(200, responses::deleted(&id).to_string()),
        Err(e) => Dialect::OpenAi.error(&e, Some(&trace(&request))),
    }
}
