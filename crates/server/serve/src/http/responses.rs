//! OpenAI's Responses API: creating and storing responses. `stored_responses` returns and deletes them.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::Response;
use octet_api::core::{Answer, GenerateRequest};
use octet_api::openai::responses::{self, ResponseWriter};
use octet_api::{ApiError, shortened};
use octet_router::Dialect as Wire;

use super::call::{Call, call};
use super::generate::generate;
use super::reply::{Form, SSE};
use super::response_store::{KeptResponses, NewResponse, Referred};
use super::{body, routed};
use crate::app::App;
use crate::gateway::Caller;
use crate::gateway::read::Own;
use crate::memory_budget::MemoryPermit;

const FORM: Form = Form {
    writer: |r| Box::new(ResponseWriter::new(r)),
    whole: responses::response,
    changed: |body, _| responses::events(body),
    stream_type: SSE,
    done: keep,
};

fn keep(owner: Option<&Arc<str>>, request: &GenerateRequest, answer: &Answer) -> Option<NewResponse> {
    request.store.then(|| NewResponse {
        id: answer.id.clone(),
        owner: owner.cloned(),
        conversation: responses::conversation(request, answer),
        input_len: responses::input_len(request),
        body: responses::response(request, answer),
    })
}

/// `POST /v1/responses`
pub async fn create(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let (mut bytes, mut share) = c.body.into_parts();
        let mut own = Own::default();
        if let Some(gateway) = c.app.gateway().cloned() {
            let wire = Wire::OpenAiResponses;
            let mut request = None;
            if let Some(peeked) = routed::peek(&mut share, &bytes, wire).await? {
                own = peeked.own;
                bytes = peeked.body.unwrap_or(bytes);
                request = Some(peeked.request).filter(|r| routed::passes(&gateway, r, wire));
            }
            own.cached_as = Some((wire, bytes.clone()));
            if let Some(request) = request {
                // What only this server knows is not forwarded to a provider that has the Responses API and stores its own.
                let referred = referred(&c.app, &c.sender.caller, &mut share, &bytes).await?;
                if referred.is_empty() {
                    let context = c.sender.context(c.app.memory_budget.shared(share), own);
                    return routed::parsed(&c.app, &gateway, context, request, Some((wire, bytes)), FORM)
                        .await;
                }
            }
        }
        let parsed = read(&c.app, &c.sender.caller, &mut share, bytes).await?;
        if let Some(gateway) = c.app.gateway().cloned() {
            let context = c.sender.context(c.app.memory_budget.shared(share), own);
            return routed::parsed(&c.app, &gateway, context, parsed, None, FORM).await;
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
    let found = Arc::new(referred(app, caller, share, &bytes).await?);
    let reader = Arc::clone(&found);
    let parse = move |bytes: &[u8]| {
        let mut referred = Referred::new(&reader);
        let parsed = responses::parse_with(bytes, &mut |id| referred.item(id))?;
        Ok((parsed, referred.bytes))
    };
    // The stored items that a short request refers to may be long.
    let len = bytes.len() + found.values().map(|kept| kept.bytes).sum::<usize>();
    let (mut parsed, referred_bytes) = body::parse_of(&app.memory_budget, share, bytes, len, parse).await?;
    app.memory_budget.take_kept(share, referred_bytes)?;
    if let Some(id) = &parsed.previous_response_id {
        let Some(kept) = found.get(responses::bare(id)) else {
            let what = format!(
                "the response '{}' is not stored (unknown or expired); send its items instead",
                shortened(id)
            );
            let error = ApiError::invalid("previous_response_id", what);
            return Err(ApiError { code: Some("previous_response_not_found".into()), ..error });
        };
        app.memory_budget.take_kept(share, kept.bytes)?;
        responses::follow(&mut parsed, kept.conversation.clone());
    }
    Ok(parsed)
}

/// The stored responses that a request refers to, directly or by their items.
async fn referred(
    app: &App,
    caller: &Caller,
    share: &mut MemoryPermit,
    body: &Bytes,
) -> Result<KeptResponses, ApiError> {
    if app.kept.is_empty() {
        return Ok(KeptResponses::new());
    }
    // A body that cannot be read here is the provider's to refuse.
    let ids = body::read_bytes(share, body, |body: &Bytes| responses::referenced(body)).await?;
    if ids.is_empty() {
        return Ok(KeptResponses::new());
    }
    app.kept.find(&ids, caller, |bytes| app.memory_budget.take_kept(share, bytes)).await
}
