//! llama-server's own endpoints: completions, infill, embeddings, reranking, slots.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use octet_api::core::{EmbedRequest, GenerateRequest, Usage};
use octet_api::llama::{self, rerank};
use octet_api::openai;
use octet_api::{ApiError, ErrorKind};
use octet_router::{Dialect as Wire, Passed};
use serde_json::{Value, json};

use super::Dialect;
use super::call::{Call, call, trace};
use super::checked_answer::{text_of, with_texts};
use super::error::json as json_response;
use super::generate::generate;
use super::openai::keep_nothing;
use super::reply::{Form, SSE};
use super::status::{ModelQuery, about};
use super::tokens::permit;
use super::{body, openai as openai_http, passthrough, routed};
use crate::app::App;
use crate::gateway::read::{Own, shallow};
use crate::pipeline::{embed, rank};
use crate::warnings::{add_header, messages};

const COMPLETION: Form = Form {
    writer: |r| Box::new(llama::Writer::new(r)),
    whole: llama::response,
    changed: |body, events| with_texts(events, text_of(body, "content")),
    stream_type: SSE,
    done: keep_nothing,
};

/// `POST /completion`
pub async fn completion(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| answer(c, llama::completion)).await
}

/// `POST /completions`: llama-server's endpoint, and OpenAI's without `/v1`. A body with a model and without `n_predict` is OpenAI's.
pub async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |mut c: Call| async move {
        let is_native = c.body.has("n_predict").await? || !c.body.has("model").await?;
        if is_native { answer(c, llama::completion).await } else { openai_http::complete(c).await }
    })
    .await
}

/// `POST /infill`
pub async fn infill(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| answer(c, llama::infill)).await
}

async fn answer(
    c: Call,
    parse: fn(&[u8]) -> Result<GenerateRequest, ApiError>,
) -> Result<Response, ApiError> {
    let (parsed, share) = body::parse(c.body, parse).await?;
    if let Some(gateway) = c.app.gateway().cloned() {
        let context = c.sender.context(c.app.memory_budget.shared(share), Own::default());
        return routed::parsed(&c.app, &gateway, context, parsed, None, COMPLETION).await;
    }
    generate(c.app, c.sender.trace, &c.sender.headers, (parsed, share), COMPLETION).await
}

/// `POST /embedding`
pub async fn embedding(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, vectors).await
}

/// `POST /embeddings`: llama-server's endpoint, and OpenAI's without `/v1`. Only llama-server's has `content`.
pub async fn embeddings(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |mut c: Call| async move {
        if c.body.has("content").await? { vectors(c).await } else { openai_http::embed_inputs(c).await }
    })
    .await
}

async fn vectors(c: Call) -> Result<Response, ApiError> {
    let ((parsed, normalised), share) = body::parse(c.body, llama::embeddings).await?;
    if let Some(gateway) = c.app.gateway().cloned() {
        // Translated to OpenAI's form, which other providers understand too.
        let asked = Value::Object(openai::embeddings::body(&parsed, &parsed.model)).to_string().into_bytes();
        let asked = (asked.into(), share);
        let got = routed::bytes(&c.app, &gateway, c.sender, Wire::OpenAiEmbeddings, asked).await?;
        return Ok(json_response(200, llama::vectors(&openai::embeddings::read(&got.0)?)));
    }
    let index = c.app.find(&parsed.model)?;
    let parsed = Arc::new(EmbedRequest { memory: c.app.memory_budget.shared(share), ..parsed });
    let vectors = embed(&c.app.inference, &c.sender.trace, index, Arc::clone(&parsed), !normalised).await?;
    let mut response = json_response(200, llama::vectors(&vectors));
    add_header(&mut response, messages(&parsed.warnings));
    Ok(response)
}

/// `POST /rerank`, `/v1/rerank`, `/v2/rerank`, `/reranking`, `/v1/reranking`
pub async fn reranking(State(app): State<Arc<App>>, request: Request) -> Response {
    let path = request.uri().path().to_string();
    call(app, request, |mut c: Call| async move {
        if let Some(gateway) = c.app.gateway()
            && c.body.model().await?.is_some_and(|name| gateway.is_elsewhere(&name))
        {
            return passthrough::json(c, Passed::Rerank, &path).await;
        }
        let (mut parsed, _share) = body::parse(c.body, rerank::parse).await?;
        c.app.inference.warnings.note(&parsed.warnings)?;
        permit(&c.app, &c.sender.caller, &parsed.model)?;
        let bill = match c.app.gateway() {
            Some(gateway) => {
                let asked = shallow(gateway.name(&parsed.model).into());
                // Each document's prompt contains the query.
                let texts = parsed.documents.iter().map(|d| d.len() + parsed.query.len());
                gateway.authorize(&c.sender.caller, &asked, texts.sum::<usize>() as u64)?
            }
            None => None,
        };
        let index = c.app.find(&parsed.model)?;
        if parsed.model.is_empty() {
            parsed.model = c.app.models().card(index).info.id;
        }
        let parsed = Arc::new(parsed);
        let ranking = rank(&c.app.inference, &c.sender.trace, index, Arc::clone(&parsed)).await?;
        if let Some(bill) = bill {
            let usage = Usage { prompt_tokens: ranking.prompt_tokens, ..Usage::default() };
            bill.settle(Some(&usage), 0);
        }
        let mut response = json_response(200, rerank::response(&parsed, &ranking)?);
        add_header(&mut response, messages(&parsed.warnings));
        Ok(response)
    })
    .await
}

/// `GET /slots`: one for each concurrent answer. Requests are not bound to slots, so only the number of busy ones is exact. With
/// `fail_on_no_slot`, 503 if all are busy.
pub async fn slots(
    State(app): State<Arc<App>>,
    which: Result<Query<ModelQuery>, QueryRejection>,
    request: Request,
) -> Response {
    let fails = which.as_ref().is_ok_and(|Query(which)| which.fails_without_slot());
    let mut is_full = false;
    let answer = about(&app, which, &request, |index| {
        let states = slot_states(&app, index);
        is_full = all_busy(&states);
        states
    });
    if fails && is_full {
        let e = ApiError::new(ErrorKind::Overloaded, "all slots are busy");
        return Dialect::OpenAi.error(&e, Some(&trace(&request)));
    }
    answer
}

/// Whether there are slots, and all are busy.
fn all_busy(states: &Value) -> bool {
    states.as_array().is_some_and(|all| !all.is_empty() && all.iter().all(|s| s["is_processing"] == true))
}

fn slot_states(app: &App, index: usize) -> Value {
    let Some(loaded) = app.models().loaded(index) else { return json!([]) };
    let rules = loaded.handle.rules();
    let running = loaded.handle.stats().running;
    let slot = |id: usize| json!({"id": id, "n_ctx": rules.context, "speculative": false, "is_processing": id < running});
    (0..rules.max_seqs).map(slot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_are_all_busy() {
        for (busy, want) in [(vec![], false), (vec![true, false], false), (vec![true, true], true)] {
            let states = busy.iter().map(|b| json!({"is_processing": b})).collect();
            assert_eq!(all_busy(&states), want, "{states}");
        }
    }
}
