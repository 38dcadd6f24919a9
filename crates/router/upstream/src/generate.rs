//! Translates a neutral request for any provider. Called by the router if client and provider have different dialects, or if
//! it must read the answer.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use octet_api::anthropic::messages::{self, MessageReader};
use octet_api::bedrock::{self, ConverseReader, InvokedReader};
use octet_api::core::{Event, GenerateRequest, Input};
use octet_api::dialect::{Body, StreamReader};
use octet_api::gemini::{self, ContentReader};
use octet_api::ollama::{self, LineReader};
use octet_api::openai::chat::{self, ChunkReader, Flavor};
use octet_api::openai::responses::{self, ResponseReader};
use octet_api::{ApiError, ErrorKind};
use octet_config::{Changes, Provider};
use serde_json::{Map, Value};

use crate::blocking::run_sized;
use crate::client::Client;
use crate::edit;
use crate::endpoint::{Dialect, Endpoint, Operation};
use crate::events::Events;
use crate::failure::{Failure, FailureKind};
use crate::overlay::clear;

impl Client {
    /// Requests an answer, complete or streamed. Returns when the answer has begun; its first piece is
    /// awaited by [`Events`], within the endpoint's limits.
    ///
    /// # Errors
    /// All failures before that: see [`FailureKind`](crate::FailureKind).
    pub async fn generate(&self, endpoint: &Endpoint, request: &GenerateRequest) -> Result<Events, Failure> {
        self.generate_in(endpoint, &Arc::new(request.clone()), 0, None).await
    }

    /// The same for a request of about `bytes` bytes, within a trace (by the header `traceparent`). Long requests are translated on a
    /// blocking thread.
    ///
    /// # Errors
    /// As [`Client::generate`].
    pub async fn generate_in(
        &self,
        endpoint: &Endpoint,
        request: &Arc<GenerateRequest>,
        bytes: usize,
        traceparent: Option<&str>,
    ) -> Result<Events, Failure> {
        let (to, asked) = (endpoint.clone(), Arc::clone(request));
        let written = run_sized(bytes, move || write(&to, &asked)).await?;
        let (operation, body) = written.map_err(|e| e.without_keys(endpoint))?;
        let mut headers = HeaderMap::new();
        if let Some(value) = traceparent.and_then(|t| HeaderValue::from_str(t).ok()) {
            headers.insert("traceparent", value);
        }
        let answer = self.send_with(endpoint, operation, Some(body), request.stream, headers).await?;
        answer.check_content_type()?;
        // Some servers return a complete answer although a stream was requested.
        let whole = !request.stream
            || (answer.content_type() == "application/json" && endpoint.provider() != Provider::Ollama);
        if !whole {
            return Ok(Events::stream(answer.body, reader(endpoint), endpoint));
        }
        let read = self.answers().whole(answer.body).await;
        let (bytes, memory) = read.map_err(|e| e.without_keys(endpoint))?;
        let from = endpoint.clone();
        // The bytes are freed before the events are read.
        match run_sized(bytes.len(), move || events(&from, &bytes)).await? {
            Ok(events) => Ok(Events::whole(events, memory, endpoint)),
            Err(e) => Err(Failure::reported(e, None).without_keys(endpoint)),
        }
    }
}

fn reader(endpoint: &Endpoint) -> Box<dyn StreamReader> {
    match endpoint.provider() {
        _ if endpoint.asks_responses() => Box::new(ResponseReader::new()),
        Provider::OpenAi | Provider::OpenAiCompatible | Provider::AzureOpenAi => Box::new(ChunkReader::new()),
        Provider::Anthropic | Provider::VertexAnthropic => Box::new(MessageReader::new()),
        Provider::Gemini | Provider::Vertex => Box::new(ContentReader::new()),
        Provider::Bedrock => Box::new(ConverseReader::new()),
        Provider::BedrockAnthropic => Box::new(InvokedReader::new()),
        Provider::Ollama => Box::new(LineReader::new()),
    }
}

fn events(endpoint: &Endpoint, body: &[u8]) -> Result<Vec<Event>, ApiError> {
    match endpoint.provider() {
        _ if endpoint.asks_responses() => responses::events(body),
        Provider::OpenAi | Provider::OpenAiCompatible | Provider::AzureOpenAi => chat::events(body),
        Provider::Anthropic | Provider::BedrockAnthropic | Provider::VertexAnthropic => {
            messages::events(body)
        }
        Provider::Gemini | Provider::Vertex => gemini::events(body),
        Provider::Bedrock => bedrock::events(body),
        Provider::Ollama => ollama::chat::events(body),
    }
}

/// The provider's request.
pub(crate) fn write(endpoint: &Endpoint, request: &GenerateRequest) -> Result<(Operation, Bytes), Failure> {
    let remote = &endpoint.settings().remote;
    let changes = &remote.changes;
    let provider = endpoint.provider();
    let mut r = request.clone();
    let mut left = changes.clone();
    // Parameters with OpenAI's names are changed before the translation; the rest is the provider's.
    left.edits.drop.retain(|name| !clear(&mut r, name));
    endpoint.forced().apply(&mut r, true);
    left.edits.set = endpoint.forced().rest.clone();
    if provider != Provider::OpenAiCompatible {
        switch_thinking(&mut left, &mut r);
    }
    endpoint.defaults().apply(&mut r, false);
    let (operation, body) = translate(endpoint, &r).map_err(|e| Failure {
        status: None,
        ..Failure::reported(ApiError { kind: ErrorKind::InvalidRequest, ..e }, None)
    })?;
    let Body { mut json, dropped } = body;
    if let [first, ..] = dropped.as_slice()
        && !changes.drop_params
    {
        let names = dropped.iter().map(|n| format!("'{n}'")).collect::<Vec<_>>().join(", ");
        let what = format!(
            "{} has nothing like {names}: leave it out, or set drop_params: true to have it left out",
            provider.name()
        );
        let param = Some((*first).to_string());
        return Err(Failure { param, ..Failure::new(FailureKind::BadRequest, what) });
    }
    edit::apply(&left, &endpoint.defaults().rest, &mut json);
    Ok((operation, to_bytes(json)))
}

/// Other providers have no chat template variables, except the one to enable reasoning.
fn switch_thinking(changes: &mut Changes, r: &mut GenerateRequest) {
    let forced = changes.edits.set.shift_remove(edit::KWARGS);
    let default = std::mem::take(&mut changes.chat_template_kwargs);
    let Input::Chat(chat) = &mut r.input else { return };
    let enabled = |v: Option<&Value>| v.and_then(Value::as_bool);
    let forced = enabled(forced.as_ref().and_then(|v| v.get("enable_thinking")));
    let default = enabled(default.get("enable_thinking"));
    chat.reasoning.enabled = forced.or(chat.reasoning.enabled).or(default);
}

pub(crate) fn to_bytes(json: Map<String, Value>) -> Bytes {
    Value::Object(json).to_string().into()
}

fn translate(endpoint: &Endpoint, r: &GenerateRequest) -> Result<(Operation, Body), ApiError> {
    let model = endpoint.model();
    Ok(match endpoint.provider() {
        _ if endpoint.asks_responses() => {
            (Operation::Dialect(Dialect::OpenAiResponses), responses::body(r, model)?)
        }
        Provider::OpenAiCompatible => {
            (Operation::Dialect(Dialect::OpenAiChat), chat::body(r, model, Flavor::Extended)?)
        }
        Provider::OpenAi | Provider::AzureOpenAi => {
            (Operation::Dialect(Dialect::OpenAiChat), chat::body(r, model, Flavor::OpenAi)?)
        }
        Provider::Anthropic => (Operation::Dialect(Dialect::AnthropicMessages), messages(endpoint, r)?),
        Provider::BedrockAnthropic => {
            let mut body = messages(endpoint, r)?;
            // Both are in the address.
            body.json.shift_remove("model");
            body.json.shift_remove("stream");
            body.json.insert("anthropic_version".into(), BEDROCK_VERSION.into());
            (Operation::Hosted { stream: r.stream }, body)
        }
        Provider::VertexAnthropic => {
            let mut body = messages(endpoint, r)?;
            body.json.shift_remove("model");
            body.json.insert("anthropic_version".into(), VERTEX_VERSION.into());
            (Operation::Hosted { stream: r.stream }, body)
        }
        Provider::Bedrock => (Operation::Converse { stream: r.stream }, bedrock::body(r)?),
        Provider::Gemini | Provider::Vertex => {
            let provider =
                gemini::Provider { levels: version(model, "gemini-").is_some_and(|v| v >= (3, 0)) };
            (Operation::GenerateContent { stream: r.stream }, gemini::body(r, provider)?)
        }
        Provider::Ollama => (Operation::Dialect(Dialect::OllamaChat), ollama::chat::body(r, model)?),
    })
}

/// Anthropic's messages.
fn messages(endpoint: &Endpoint, r: &GenerateRequest) -> Result<Body, ApiError> {
    let model = endpoint.model();
    let max_tokens = endpoint.settings().max_tokens;
    messages::body(r, model, messages::Provider { max_tokens, adaptive: adaptive(model) })
}

/// Versions of Anthropic's messages as Bedrock and Vertex AI name them.
const BEDROCK_VERSION: &str = "bedrock-2023-05-31";
const VERTEX_VERSION: &str = "vertex-2023-10-16";

/// Whether an Anthropic model chooses its own reasoning effort: from 4.6 on.
fn adaptive(model: &str) -> bool {
    ["claude-opus-", "claude-sonnet-", "claude-haiku-"]
        .iter()
        .any(|family| version(model, family).is_some_and(|v| v >= (4, 6)))
}

/// The version that follows `family` in a model's name: `claude-sonnet-4-5-20250929` is 4.5, `gemini-3-pro-preview` 3.0.
fn version(model: &str, family: &str) -> Option<(u32, u32)> {
    let rest = &model[model.find(family)? + family.len()..];
    // A date is not a version.
    let mut numbers = rest.split(['-', '.']).map(|n| n.parse::<u32>().ok().filter(|n| *n < 1000));
    Some((numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_off_names() {
        for (name, expected) in [
            ("claude-sonnet-4-5-20250929", Some((4, 5))),
            ("claude-sonnet-4-20250514", Some((4, 0))),
            ("claude-opus-4-6", Some((4, 6))),
            ("claude-opus-5", Some((5, 0))),
            ("claude-3-7-sonnet-20250219", None),
            ("anthropic.claude-opus-4-7-v1", Some((4, 7))),
        ] {
            let found = ["claude-opus-", "claude-sonnet-"].iter().find_map(|f| version(name, f));
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(version("gemini-2.5-flash", "gemini-"), Some((2, 5)));
        assert_eq!(version("gemini-3-pro-preview", "gemini-"), Some((3, 0)));
        assert_eq!(version("gemini-pro", "gemini-"), None);
        assert!(adaptive("claude-sonnet-4-6") && !adaptive("claude-sonnet-4-5"));
    }
}
