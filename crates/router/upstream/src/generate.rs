//! Translates a neutral request for any provider.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use octet_api::anthropic::messages::{self, MessageReader};
use octet_api::bedrock::{self, ConverseReader, InvokedReader};
use octet_api::core::{Event, GenerateRequest, Input};
use octet_api::dialect::{Body, StreamReader};
use octet_api::digits;
use octet_api::gemini::{self, ContentReader};
use octet_api::ollama::{self, LineReader};
use octet_api::openai::chat::{self, ChunkReader, Flavor};
use octet_api::openai::responses::{self, ResponseReader};
use octet_api::{ApiError, ErrorKind};
use octet_config::{Changes, Off, Provider, ReasoningForm, Thinking};
use serde_json::{Map, Value};

use crate::accept::{self, Names, Report, Rules};
use crate::blocking::run_sized;
use crate::client::Client;
use crate::dialect::Dialect;
use crate::edit;
use crate::endpoint::{Endpoint, MAX_TOKENS, Operation};
use crate::events::Events;
use crate::failure::{Failure, FailureKind};
use crate::image_urls::{has_image_urls, image_url_refused, video_refused};
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
        let asked = self.with_images(endpoint, request).await?;
        let to = endpoint.clone();
        let written = run_sized(bytes, move || write(&to, &asked)).await?;
        let Written { operation, body, warnings, names } = written.map_err(|e| e.without_keys(endpoint))?;
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
            let events = Events::stream(answer.body, reader(endpoint, operation), endpoint);
            return Ok(events.of_request(warnings, names));
        }
        let read = self.answers().whole(answer.body).await;
        let (bytes, memory) = read.map_err(|e| e.without_keys(endpoint))?;
        let from = endpoint.clone();
        // The bytes are freed before the events are read.
        match run_sized(bytes.len(), move || events(&from, operation, &bytes)).await? {
            Ok(events) => Ok(Events::whole(events, memory, endpoint).of_request(warnings, names)),
            Err(e) => Err(Failure::reported(e, None).without_keys(endpoint)),
        }
    }
}

impl Client {
    /// The request with its images, if the provider takes no addresses of images.
    async fn with_images(
        &self,
        endpoint: &Endpoint,
        request: &Arc<GenerateRequest>,
    ) -> Result<Arc<GenerateRequest>, Failure> {
        let provider = endpoint.provider();
        let refused = |e| Failure { status: None, ..Failure::reported(e, None) };
        if let Some(e) = video_refused(request) {
            return Err(refused(e));
        }
        if provider.takes_image_urls() || !has_image_urls(request) {
            return Ok(Arc::clone(request));
        }
        let Some(images) = self.images() else {
            // Where the dialect has no form for them, they may be left out.
            let drops = provider == Provider::Bedrock && endpoint.settings().remote.changes.drop_params;
            let error = image_url_refused(request, provider.name()).filter(|_| !drops);
            return error.map_or_else(|| Ok(Arc::clone(request)), |e| Err(refused(e)));
        };
        let mut with = (**request).clone();
        images.download(&mut with).await.map_err(refused)?;
        Ok(Arc::new(with))
    }
}

/// Whether the answer is one of `/responses`.
fn is_response(operation: Operation) -> bool {
    operation == Operation::Dialect(Dialect::OpenAiResponses)
}

fn reader(endpoint: &Endpoint, operation: Operation) -> Box<dyn StreamReader> {
    match endpoint.provider() {
        _ if is_response(operation) => Box::new(ResponseReader::new()),
        Provider::OpenAi | Provider::OpenAiCompatible | Provider::AzureOpenAi => Box::new(ChunkReader::new()),
        Provider::Anthropic | Provider::VertexAnthropic => Box::new(MessageReader::new()),
        Provider::Gemini | Provider::Vertex => Box::new(ContentReader::new()),
        Provider::Bedrock => Box::new(ConverseReader::new()),
        Provider::BedrockAnthropic => Box::new(InvokedReader::new()),
        Provider::Ollama => Box::new(LineReader::new()),
    }
}

fn events(endpoint: &Endpoint, operation: Operation, body: &[u8]) -> Result<Vec<Event>, ApiError> {
    match endpoint.provider() {
        _ if is_response(operation) => responses::events(body),
        Provider::OpenAi | Provider::OpenAiCompatible | Provider::AzureOpenAi => chat::events(body),
        Provider::Anthropic | Provider::BedrockAnthropic | Provider::VertexAnthropic => {
            messages::events(body)
        }
        Provider::Gemini | Provider::Vertex => gemini::events(body),
        Provider::Bedrock => bedrock::events(body),
        Provider::Ollama => ollama::chat::events(body),
    }
}

/// A provider's request.
pub(crate) struct Written {
    pub(crate) operation: Operation,
    pub(crate) body: Bytes,
    /// What was changed or left out for the model.
    pub(crate) warnings: Vec<String>,
    /// The client's names of tools.
    pub(crate) names: Names,
}

/// The provider's request.
pub(crate) fn write(endpoint: &Endpoint, request: &GenerateRequest) -> Result<Written, Failure> {
    let remote = &endpoint.settings().remote;
    let changes = &remote.changes;
    let provider = endpoint.provider();
    let mut r = request.clone();
    let mut left = changes.clone();
    // Parameters with OpenAI's names are changed before the translation; the rest is the provider's.
    left.edits.drop.retain(|name| !clear(&mut r, name));
    endpoint.forced().apply(&mut r, true);
    left.edits.set = endpoint.forced().rest.clone();
    if provider != Provider::OpenAiCompatible || endpoint.accepts().openai_form {
        switch_thinking(&mut left, &mut r);
    }
    endpoint.defaults().apply(&mut r, false);
    let names = Names::fit(endpoint.accepts(), &mut r);
    let (operation, body) = translate(endpoint, &r).map_err(|e| Failure {
        status: None,
        ..Failure::reported(ApiError { kind: ErrorKind::InvalidRequest, ..e }, None)
    })?;
    let Body { mut json, dropped, reasons } = body;
    let mut report = Report::default();
    let rules = endpoint.rules(dialect_of(operation));
    check_dropped(&rules, provider, &dropped, &reasons, &mut report)?;
    edit::apply(&left, &endpoint.defaults().rest, &mut json);
    accept::apply(&rules, &mut json, &mut report)?;
    Ok(Written { operation, body: to_bytes(json), warnings: report.warnings, names })
}

/// Refuses fields that the provider's dialect does not have, unless they are to be dropped.
fn check_dropped(
    rules: &Rules<'_>,
    provider: Provider,
    dropped: &[&str],
    reasons: &[String],
    report: &mut Report,
) -> Result<(), Failure> {
    let Some(first) = dropped.first() else { return Ok(()) };
    if rules.changes.drop_params {
        for name in dropped {
            report.warn(name, &format!("is left out: {} has no such field", provider.name()));
        }
        return Ok(());
    }
    let names = dropped.iter().map(|n| format!("'{n}'")).collect::<Vec<_>>().join(", ");
    let what = match reasons.first() {
        Some(reason) => format!("{reason}: change it, or set drop_params: true to have the field left out"),
        None => format!(
            "{} has nothing like {names}: leave it out, or set drop_params: true to have it left out",
            provider.name()
        ),
    };
    let param = Some((*first).to_string());
    Err(Failure { param, ..Failure::new(FailureKind::BadRequest, what) })
}

/// The dialect of an operation's body.
fn dialect_of(operation: Operation) -> Dialect {
    match operation {
        Operation::Dialect(dialect) => dialect,
        Operation::Hosted { .. } => Dialect::AnthropicMessages,
        Operation::GenerateContent { .. } => Dialect::Gemini,
        // No rules apply to the others.
        _ => Dialect::OllamaChat,
    }
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
    digits::text(&Value::Object(json)).into()
}

fn translate(endpoint: &Endpoint, r: &GenerateRequest) -> Result<(Operation, Body), ApiError> {
    let model = endpoint.model();
    Ok(match endpoint.provider() {
        _ if endpoint.asks_responses() || needs_responses(endpoint, r) => {
            (Operation::Dialect(Dialect::OpenAiResponses), responses::body(r, model)?)
        }
        Provider::OpenAiCompatible if !endpoint.accepts().openai_form => {
            (Operation::Dialect(Dialect::OpenAiChat), chat::body(r, model, Flavor::Extended)?)
        }
        Provider::OpenAi | Provider::AzureOpenAi | Provider::OpenAiCompatible => {
            let keeps = matches!(endpoint.accepts().reasoning, Some(form) if form != ReasoningForm::Omit);
            let flavor = if keeps { Flavor::OpenAiWithReasoning } else { Flavor::OpenAi };
            (Operation::Dialect(Dialect::OpenAiChat), chat::body(r, model, flavor)?)
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
            let levels = version(model, "gemini-").is_some_and(|v| v >= (3, 0));
            let provider = gemini::Provider { levels, always_thinks: endpoint.accepts().off == Off::Never };
            (Operation::GenerateContent { stream: r.stream }, gemini::body(r, provider)?)
        }
        Provider::Ollama => (Operation::Dialect(Dialect::OllamaChat), ollama::chat::body(r, model)?),
    })
}

/// Anthropic's messages.
fn messages(endpoint: &Endpoint, r: &GenerateRequest) -> Result<Body, ApiError> {
    let (model, accepts) = (endpoint.model(), endpoint.accepts());
    let limit = endpoint.settings().max_tokens.or(accepts.output_tokens_max);
    let adaptive = accepts.thinking.map_or_else(|| adaptive(model), |thinking| thinking != Thinking::Budget);
    let max_tokens = limit.unwrap_or(MAX_TOKENS);
    messages::body(r, model, messages::Provider { max_tokens, is_limit: limit.is_some(), adaptive })
}

/// Whether a chat must use `/responses`, as its tools and its effort say.
fn needs_responses(endpoint: &Endpoint, r: &GenerateRequest) -> bool {
    let Some(chat) = r.chat() else { return false };
    let effort = (chat.reasoning.enabled == Some(false)).then_some("none");
    accept::tools_need_responses(endpoint.accepts(), !chat.tools.is_empty(), effort)
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
