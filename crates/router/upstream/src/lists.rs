//! Requests besides answers: embeddings, model lists, health checks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use octet_api::ApiError;
use octet_api::core::{EmbedRequest, Embeddings, Prompt};
use octet_api::{bedrock, gemini, ollama, openai};
use octet_config::Provider;
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::blocking::run_sized;
use crate::client::Client;
use crate::dialect::Dialect;
use crate::edit;
use crate::endpoint::{Endpoint, Operation};
use crate::failure::{Failure, FailureKind};
use crate::generate::to_bytes;

/// Maximum concurrent requests for embeddings, if several are necessary.
const BESIDE_MAX: usize = 8;

/// The bodies of a request for embeddings: several if the provider limits the texts of one.
fn write(endpoint: &Endpoint, request: &EmbedRequest) -> Result<(Operation, Vec<Bytes>), ApiError> {
    let settings = endpoint.settings();
    let model = endpoint.model();
    let usual = Operation::Dialect(Dialect::OpenAiEmbeddings);
    let (operation, bodies) = match endpoint.provider() {
        Provider::OpenAi | Provider::OpenAiCompatible | Provider::AzureOpenAi => {
            (usual, vec![openai::embeddings::body(request, model)])
        }
        Provider::Ollama => (usual, vec![ollama::embed::body(request, model)?]),
        Provider::Gemini => (Operation::BatchEmbed, vec![gemini::embed::body(request, model)?]),
        Provider::Vertex => (Operation::Predict, gemini::embed::vertex_bodies(request, model)?),
        Provider::Bedrock => (Operation::Hosted { stream: false }, bedrock::embed::bodies(request, model)?),
        other @ (Provider::Anthropic | Provider::BedrockAnthropic | Provider::VertexAnthropic) => {
            let what = format!("embeddings of {} are not supported", other.name());
            return Err(ApiError::invalid("model", what));
        }
    };
    let changed = bodies.into_iter().map(|mut body| {
        edit::apply(&settings.remote.changes, &settings.params, &mut body);
        to_bytes(body)
    });
    Ok((operation, changed.collect()))
}

/// A model in a provider's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name there.
    pub id: String,
    /// Its context in tokens, if the provider reports it.
    pub context_length: Option<u64>,
}

impl Client {
    /// Computes embeddings of texts.
    ///
    /// # Errors
    /// See [`FailureKind`].
    pub async fn embed(
        &self,
        endpoint: &Endpoint,
        request: &Arc<EmbedRequest>,
    ) -> Result<Embeddings, Failure> {
        let bytes = request.inputs.iter().map(Prompt::bytes).sum();
        let (to, asked) = (endpoint.clone(), Arc::clone(request));
        let written = run_sized(bytes, move || write(&to, &asked)).await?;
        let (operation, bodies) = written.map_err(|e| Failure::reported(e, None))?;
        let mut vectors = Embeddings::default();
        let mut bodies = bodies.into_iter();
        // Several requests are necessary only if a provider limits the texts of one. Some of them run concurrently.
        loop {
            let mut asking = JoinSet::new();
            for (at, body) in bodies.by_ref().take(BESIDE_MAX).enumerate() {
                let (client, endpoint) = (self.clone(), endpoint.clone());
                asking.spawn(async move { (at, client.embed_once(&endpoint, operation, body).await) });
            }
            if asking.is_empty() {
                break;
            }
            let mut got = Vec::new();
            while let Some(one) = asking.join_next().await {
                let (at, one) = one.map_err(|e| Failure::protocol(e.to_string()))?;
                got.push((at, one?));
            }
            got.sort_unstable_by_key(|(at, _)| *at);
            for (_, one) in got {
                vectors.prompt_tokens = vectors.prompt_tokens.saturating_add(one.prompt_tokens);
                vectors.model = one.model;
                vectors.vectors.extend(one.vectors);
            }
        }
        if vectors.vectors.len() != request.inputs.len() {
            let what = format!("{} vectors came for {} texts", vectors.vectors.len(), request.inputs.len());
            return Err(Failure::protocol(what));
        }
        Ok(vectors)
    }

    async fn embed_once(
        &self,
        endpoint: &Endpoint,
        operation: Operation,
        body: Bytes,
    ) -> Result<Embeddings, Failure> {
        let answer = self.send(endpoint, operation, Some(body), false).await?;
        answer.check_content_type()?;
        let counted = answer.headers.get("x-amzn-bedrock-input-token-count");
        let counted = counted.and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        let bytes = answer.body.whole().await.map_err(|e| e.without_keys(endpoint))?;
        let read = match endpoint.provider() {
            Provider::Ollama => ollama::embed::read(&bytes),
            Provider::Gemini => gemini::embed::read(&bytes),
            Provider::Vertex => gemini::embed::read_vertex(&bytes),
            Provider::Bedrock => bedrock::embed::read(&bytes, counted),
            _ => openai::embeddings::read(&bytes),
        };
        read.map_err(|e| Failure::reported(e, None).without_keys(endpoint))
    }

    /// The models of a provider.
    ///
    /// # Errors
    /// See [`FailureKind`].
    pub async fn models(&self, endpoint: &Endpoint) -> Result<Vec<Listed>, Failure> {
        let answer = self.send(endpoint, Operation::Models, None, false).await?;
        answer.check_content_type()?;
        let bytes = answer.body.whole().await.map_err(|e| e.without_keys(endpoint))?;
        listed(&bytes)
    }

    /// Checks that a provider is reachable and accepts the key; returns how long that took. No model is used, so a check costs nothing and
    /// loads nothing.
    ///
    /// # Errors
    /// See [`FailureKind`]. A server without a list of models passes.
    pub async fn probe(&self, endpoint: &Endpoint) -> Result<Duration, Failure> {
        let start = Instant::now();
        match self.send(endpoint, Operation::Probe, None, false).await {
            Ok(answer) => {
                answer.check_content_type()?;
                answer.body.whole().await.map_err(|e| e.without_keys(endpoint))?;
            }
            Err(e) if matches!(e.status, Some(404 | 405)) && e.kind != FailureKind::Authentication => {}
            Err(e) => return Err(e),
        }
        Ok(start.elapsed())
    }
}

/// OpenAI's and Anthropic's lists have `data`, Gemini's and Ollama's `models`, llama.cpp's both.
fn listed(body: &[u8]) -> Result<Vec<Listed>, Failure> {
    #[derive(Deserialize)]
    struct Wire {
        #[serde(default)]
        data: Option<Vec<Entry>>,
        #[serde(default)]
        models: Option<Vec<Entry>>,
    }
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        id: Option<String>,
        #[serde(default)]
        name: Option<String>,
        #[serde(default)]
        max_model_len: Option<u64>,
        #[serde(default)]
        max_input_tokens: Option<u64>,
        #[serde(default, rename = "inputTokenLimit")]
        input_token_limit: Option<u64>,
        #[serde(default)]
        meta: Option<Meta>,
    }
    #[derive(Deserialize)]
    struct Meta {
        #[serde(default)]
        n_ctx: Option<u64>,
    }
    let wire: Wire = serde_json::from_slice(body)
        .map_err(|e| Failure::protocol(format!("the provider's list of models cannot be read: {e}")))?;
    let entry = |e: Entry| {
        let id = e.id.or(e.name)?;
        let id = id.strip_prefix("models/").map_or(id.clone(), str::to_string);
        let context = e.max_model_len.or(e.max_input_tokens).or(e.input_token_limit);
        Some(Listed { id, context_length: context.or(e.meta.and_then(|m| m.n_ctx)) })
    };
    let Some(entries) = wire.data.or(wire.models) else {
        return Err(Failure::protocol("the provider's list of models has neither 'data' nor 'models'"));
    };
    Ok(entries.into_iter().filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_all_providers_are_read() {
        for (text, expected) in [
            (
                r#"{"object":"list","data":[{"id":"a","max_model_len":4096},{"id":"b"}]}"#,
                [("a", Some(4096)), ("b", None)],
            ),
            (
                r#"{"data":[{"type":"model","id":"a","display_name":"A","max_input_tokens":9},{"id":"b"}],"has_more":false}"#,
                [("a", Some(9)), ("b", None)],
            ),
            (
                r#"{"models":[{"name":"models/a","inputTokenLimit":7},{"name":"models/b"}]}"#,
                [("a", Some(7)), ("b", None)],
            ),
            (r#"{"models":[{"name":"a","model":"a","size":1},{"name":"b"}]}"#, [("a", None), ("b", None)]),
        ] {
            let got = listed(text.as_bytes()).unwrap();
            let got: Vec<(&str, Option<u64>)> =
                got.iter().map(|m| (m.id.as_str(), m.context_length)).collect();
            assert_eq!(got, expected, "{text}");
        }
        assert_eq!(listed(br#"{"models":[{"name":"x"}],"data":[{"id":"a"}]}"#).unwrap()[0].id, "a");
        assert_eq!(listed(b"{}").unwrap_err().kind, FailureKind::Protocol);
    }
}
