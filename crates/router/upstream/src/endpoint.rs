//! The address, authentication and settings of a provider's model. Created once from a configuration; calls of [`Client`](crate::Client)
//! borrow it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use octet_config::{Accepts, Auth, Provider, Remote, ResponsesFor, ResponsesUse, header};
use serde_json::{Map, Value};

use crate::auth::Token;
use crate::dialect::{Dialect, Passed};
use crate::escape::path_segment;
use crate::failure::Failure;
use crate::overlay::Overlay;

/// Time limits. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Of the whole call, to the answer's last byte.
    pub whole: Option<Duration>,
    /// From the request to the first piece of a stream.
    pub first_chunk: Option<Duration>,
    /// Between two pieces of an answer.
    pub idle: Option<Duration>,
}

impl Default for Timeouts {
    /// Ten minutes, as in OpenAI's and LiteLLM's clients; five without any bytes.
    fn default() -> Self {
        Self {
            whole: Some(Duration::from_secs(600)),
            first_chunk: None,
            idle: Some(Duration::from_secs(300)),
        }
    }
}

/// Default maximum size of an answer: a complete one or a stream, embeddings included.
pub const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Maximum tokens of Anthropic's answers if nothing is known of the model: its dialect requires a limit.
pub const MAX_TOKENS: u32 = 8192;

/// Settings of an [`Endpoint`].
#[derive(Debug, Clone)]
pub struct Settings {
    /// Provider, address, key, and changes of requests.
    pub remote: Remote,
    /// Default parameters, by OpenAI's names.
    pub params: Map<String, Value>,
    /// Limits of time.
    pub timeouts: Timeouts,
    /// Maximum size of an answer.
    pub answer_bytes_max: u64,
    /// The configured limit of answers in tokens. Default: the model family's.
    pub max_tokens: Option<u32>,
}

impl Settings {
    /// Default settings.
    pub fn new(remote: Remote) -> Self {
        Self {
            remote,
            params: Map::new(),
            timeouts: Timeouts::default(),
            answer_bytes_max: ANSWER_BYTES_MAX,
            max_tokens: None,
        }
    }
}

/// Why an [`Endpoint`] cannot be created. Names the setting, and shows no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidEndpoint(pub String);

/// A provider's model, ready to be called: addresses and headers are built once.
#[derive(Debug, Clone)]
pub struct Endpoint {
    shared: Arc<Shared>,
    model: String,
    accepts: Arc<Accepts>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    /// Scheme, host and path without a final slash.
    scheme: Scheme,
    authority: http::uri::Authority,
    path: String,
    headers: HeaderMap,
    /// `Settings::params` and `Edits::set` for translated requests.
    defaults: Overlay,
    forced: Overlay,
    /// The access token, if requests carry one.
    token: Token,
}

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Dialect(Dialect),
    /// Gemini, complete or streamed.
    GenerateContent {
        stream: bool,
    },
    /// Bedrock, complete or streamed.
    Converse {
        stream: bool,
    },
    /// Anthropic's messages at another host, complete or streamed.
    Hosted {
        stream: bool,
    },
    /// Gemini's token count.
    CountTokens,
    /// Gemini's embeddings.
    BatchEmbed,
    /// Embeddings at Vertex AI.
    Predict,
    /// The list of models.
    Models,
    /// A cheap request to check health.
    Probe,
}

impl Endpoint {
    /// Builds addresses and headers.
    ///
    /// # Errors
    /// An invalid address, model name or header.
    pub fn new(settings: Settings) -> Result<Self, InvalidEndpoint> {
        let remote = &settings.remote;
        let invalid = |what: &str| {
            InvalidEndpoint(format!("api_base of '{}' ({}) {what}", remote.model, remote.provider.name()))
        };
        // The parser's error might show a password in the address.
        let uri: Uri = remote.api_base.parse().map_err(|_| invalid("is not a valid URL"))?;
        let parts = uri.into_parts();
        let scheme = parts.scheme.filter(|s| *s == Scheme::HTTP || *s == Scheme::HTTPS);
        let (Some(scheme), Some(authority)) = (scheme, parts.authority) else {
            return Err(invalid("must be a URL like http://127.0.0.1:8000/v1"));
        };
        if authority.as_str().contains('@') {
            return Err(invalid("contains a name or a password; set api_key or a header in extra_headers"));
        }
        if parts.path_and_query.as_ref().is_some_and(|p| p.query().is_some()) {
            return Err(invalid("has a query; set api_version or a header in extra_headers"));
        }
        if remote.model.is_empty() {
            return Err(InvalidEndpoint(format!("the model of {authority} has no name")));
        }
        let path = parts.path_and_query.map(|p| p.path().trim_end_matches('/').to_string());
        let headers = headers(remote)?;
        let model = remote.model.clone();
        let accepts = Arc::new(Accepts::of(&remote.family));
        let path = path.unwrap_or_default();
        let defaults = Overlay::new(&settings.params);
        let forced = Overlay::new(&remote.changes.edits.set);
        let token = Token::default();
        let shared = Shared { settings, scheme, authority, path, headers, defaults, forced, token };
        Ok(Self { shared: Arc::new(shared), model, accepts })
    }

    /// The same with another model name, for names with wildcards.
    pub fn with_model(&self, model: impl Into<String>) -> Self {
        let model = model.into();
        let family = &self.shared.settings.remote.family;
        let accepts = match family.split_once('/').filter(|(_, pattern)| pattern.contains('*')) {
            Some((provider, _)) => Arc::new(Accepts::of(&format!("{provider}/{model}"))),
            None => Arc::clone(&self.accepts),
        };
        Self { shared: Arc::clone(&self.shared), model, accepts }
    }

    /// What the model accepts.
    pub(crate) fn accepts(&self) -> &Accepts {
        &self.accepts
    }

    /// The rules for requests in a dialect.
    pub(crate) fn rules(&self, dialect: Dialect) -> crate::accept::Rules<'_> {
        crate::accept::Rules {
            accepts: &self.accepts,
            dialect,
            changes: &self.shared.settings.remote.changes,
            output_tokens_max: self.shared.settings.max_tokens,
        }
    }

    /// Whether [`Client::forward`](crate::Client::forward) can be used for this body: [`Endpoint::speaks`], and the model does not need it in
    /// another dialect.
    pub fn forwards(&self, dialect: Dialect, body: &[u8]) -> bool {
        let is_elsewhere =
            || dialect == Dialect::OpenAiChat && crate::accept::uses_responses(&self.accepts, body);
        self.speaks(dialect) && !is_elsewhere()
    }

    /// Which provider.
    pub fn provider(&self) -> Provider {
        self.shared.settings.remote.provider
    }

    /// The model's name at the provider.
    pub fn model(&self) -> &str {
        &self.model
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.shared.scheme == Scheme::HTTPS
    }

    /// Host and port, for messages and metrics.
    pub fn host(&self) -> &str {
        self.shared.authority.as_str()
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Whether [`Client::forward`](crate::Client::forward) parses bodies of this dialect completely, because nested fields are changed.
    pub(crate) fn parses(&self, dialect: Dialect) -> bool {
        !matches!(dialect, Dialect::Passed(_)) && crate::edit::goes_deep(&self.shared.settings.remote.changes)
    }

    /// Whether the provider speaks a client's dialect itself, so that [`Client::forward`](crate::Client::forward) can be used. Not if
    /// parameters must be set or changed by OpenAI's names, which other dialects do not have.
    pub fn speaks(&self, dialect: Dialect) -> bool {
        use Dialect::*;
        let has_openai_s_paths =
            matches!(self.provider(), Provider::OpenAi | Provider::OpenAiCompatible | Provider::AzureOpenAi);
        if matches!(dialect, Passed(_)) {
            return has_openai_s_paths;
        }
        let changes = &self.shared.settings.remote.changes;
        let edited = changes.edits != octet_config::Edits::default()
            || !self.shared.settings.params.is_empty()
            || !changes.chat_template_kwargs.is_empty();
        if edited && !matches!(dialect, OpenAiChat | OpenAiCompletions | OpenAiResponses | OpenAiEmbeddings) {
            return false;
        }
        if self.asks_responses() && matches!(dialect, OpenAiChat | OpenAiResponses) {
            return dialect == OpenAiResponses;
        }
        if dialect == OpenAiChat && self.accepts.answers_in_parts {
            return false;
        }
        match self.provider() {
            Provider::OpenAi => {
                matches!(dialect, OpenAiChat | OpenAiCompletions | OpenAiResponses | OpenAiEmbeddings)
            }
            Provider::OpenAiCompatible => {
                matches!(dialect, OpenAiChat | OpenAiCompletions | OpenAiEmbeddings)
                    || (dialect == OpenAiResponses
                        && self.shared.settings.remote.responses == ResponsesUse::Same)
            }
            Provider::AzureOpenAi => {
                matches!(dialect, OpenAiChat | OpenAiCompletions | OpenAiEmbeddings)
                    || (dialect == OpenAiResponses && self.azure_v1())
            }
            Provider::Anthropic => matches!(dialect, AnthropicMessages | AnthropicCountTokens),
            Provider::Ollama => matches!(dialect, OllamaChat | OllamaGenerate | OllamaEmbed),
            Provider::Gemini | Provider::Vertex => matches!(dialect, Gemini | GeminiCountTokens),
            Provider::Bedrock | Provider::BedrockAnthropic | Provider::VertexAnthropic => false,
        }
    }

    /// Whether chats use the provider's `/responses`.
    pub(crate) fn asks_responses(&self) -> bool {
        let has_responses =
            matches!(self.provider(), Provider::OpenAi | Provider::OpenAiCompatible | Provider::AzureOpenAi);
        self.shared.settings.remote.responses == ResponsesUse::Chats
            || (has_responses && self.accepts.responses == ResponsesFor::All)
    }

    /// How requests are authenticated.
    pub(crate) fn auth(&self) -> &Auth {
        &self.shared.settings.remote.auth
    }

    /// The access token.
    pub(crate) fn token(&self) -> &Token {
        &self.shared.token
    }

    pub(crate) fn defaults(&self) -> &Overlay {
        &self.shared.defaults
    }

    pub(crate) fn forced(&self) -> &Overlay {
        &self.shared.forced
    }

    /// Removes keys from a provider's text: some repeat them.
    pub(crate) fn hide_keys(&self, text: &mut String) {
        let remote = &self.shared.settings.remote;
        let headers = remote.extra_headers.iter().map(|(_, value)| value);
        let secrets = remote.api_key.iter().chain(headers).chain(remote.auth.secrets());
        secrets.for_each(|secret| hide(text, secret.expose()));
        if let Some(token) = self.shared.token.known() {
            hide(text, &token);
        }
    }

    /// Headers of every request, except those about the body.
    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.shared.headers
    }

    /// The address of an operation.
    pub(crate) fn uri(&self, operation: Operation) -> Result<Uri, Failure> {
        self.address(self.path(operation))
    }

    fn address(&self, path: String) -> Result<Uri, Failure> {
        let path: PathAndQuery = path.parse().map_err(|_| {
            Failure::new(
                crate::FailureKind::NotFound,
                format!("the model's name '{}' cannot be used in a URL", self.model),
            )
        })?;
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.shared.scheme.clone());
        parts.authority = Some(self.shared.authority.clone());
        parts.path_and_query = Some(path);
        Uri::from_parts(parts).map_err(|e| Failure::protocol(format!("the URL is invalid: {e}")))
    }

    fn path(&self, operation: Operation) -> String {
        let base = self.shared.path.as_str();
        match self.provider() {
            // Cohere has it beside its OpenAI-compatible address.
            Provider::OpenAiCompatible if operation == RERANK && base.ends_with(COHERE) => {
                format!("{}/v2/rerank", base.trim_end_matches(COHERE))
            }
            Provider::OpenAiCompatible | Provider::OpenAi => format!("{base}{}", openai_path(operation)),
            Provider::AzureOpenAi => self.azure_path(base, operation),
            Provider::Anthropic => anthropic_path(base, operation),
            Provider::Gemini => {
                let model = path_segment(self.model.strip_prefix("models/").unwrap_or(&self.model));
                google_path(format_args!("{base}/models"), "?pageSize=1000", &model, operation)
            }
            Provider::Bedrock | Provider::BedrockAnthropic => {
                bedrock_path(base, &path_segment(&self.model), operation)
            }
            Provider::Vertex => {
                let model = path_segment(&self.model);
                google_path(format_args!("{base}/publishers/google/models"), "", &model, operation)
            }
            Provider::VertexAnthropic => {
                let model = path_segment(&self.model);
                let base = format!("{base}/publishers/anthropic/models");
                match operation {
                    Operation::Models => base,
                    Operation::Probe => format!("{base}/{model}"),
                    Operation::Hosted { stream: true } => format!("{base}/{model}:streamRawPredict"),
                    _ => format!("{base}/{model}:rawPredict"),
                }
            }
            Provider::Ollama => ollama_path(base, operation),
        }
    }

    /// The address of an object of the account: `path` follows `/v1`, and may have a query.
    pub(crate) fn uri_beside(&self, path: &str) -> Result<Uri, Failure> {
        let base = self.shared.path.as_str();
        let path = match self.provider() {
            Provider::AzureOpenAi => {
                let base = base.trim_end_matches("/openai/v1").trim_end_matches("/openai");
                let version = self.shared.settings.remote.api_version.as_deref();
                if self.azure_v1() {
                    format!("{base}/openai/v1{path}")
                } else {
                    let version = path_segment(version.unwrap_or(AZURE_API_VERSION));
                    let and = if path.contains('?') { '&' } else { '?' };
                    format!("{base}/openai{path}{and}api-version={version}")
                }
            }
            _ => format!("{base}{path}"),
        };
        self.address(path)
    }

    fn azure_path(&self, base: &str, operation: Operation) -> String {
        let rest = openai_path(operation);
        let version = self.shared.settings.remote.api_version.as_deref();
        let base = base.trim_end_matches("/openai/v1").trim_end_matches("/openai");
        if self.azure_v1() {
            return format!("{base}/openai/v1{rest}");
        }
        let default = match operation {
            Operation::Dialect(Dialect::OpenAiResponses) => AZURE_RESPONSES_API_VERSION,
            _ => AZURE_API_VERSION,
        };
        let version = path_segment(version.unwrap_or(default));
        match operation {
            Operation::Models | Operation::Probe => format!("{base}/openai/models?api-version={version}"),
            // The model is in the body.
            Operation::Dialect(Dialect::OpenAiResponses) => {
                format!("{base}/openai/responses?api-version={version}")
            }
            _ => {
                format!("{base}/openai/deployments/{}{rest}?api-version={version}", path_segment(&self.model))
            }
        }
    }

    /// Azure's newer addresses have the model in the body.
    fn azure_v1(&self) -> bool {
        let version = self.shared.settings.remote.api_version.as_deref();
        self.shared.path.ends_with("/openai/v1") || matches!(version, Some("v1" | "latest" | "preview"))
    }
}

const RERANK: Operation = Operation::Dialect(Dialect::Passed(Passed::Rerank));
const COHERE: &str = "/compatibility/v1";

/// Minimum length of a secret that is removed from texts: shorter ones occur in ordinary words.
const HIDDEN_BYTES_MIN: usize = 6;

/// Azure's last dated release.
const AZURE_API_VERSION: &str = "2024-10-21";
/// The last dated preview. Azure has responses since 2025-03-01-preview, and reasoning summaries in them since this one.
const AZURE_RESPONSES_API_VERSION: &str = "2025-04-01-preview";

fn anthropic_path(base: &str, operation: Operation) -> String {
    let base = base.trim_end_matches("/messages");
    let root = if base.ends_with("/v1") { base.to_string() } else { format!("{base}/v1") };
    let rest = match operation {
        Operation::Models | Operation::Probe => "/models",
        Operation::Dialect(Dialect::AnthropicCountTokens) => "/messages/count_tokens",
        _ => "/messages",
    };
    format!("{root}{rest}")
}

/// Gemini's paths, at Google's API for developers and in its cloud. `query`: the query of the list of models.
fn google_path(models: fmt::Arguments<'_>, query: &str, model: &str, operation: Operation) -> String {
    let method = match operation {
        Operation::Models => return format!("{models}{query}"),
        Operation::Probe => "",
        Operation::BatchEmbed => ":batchEmbedContents",
        Operation::CountTokens => ":countTokens",
        Operation::Predict => ":predict",
        Operation::GenerateContent { stream: true } => ":streamGenerateContent?alt=sse",
        _ => ":generateContent",
    };
    format!("{models}/{model}{method}")
}

fn bedrock_path(base: &str, model: &str, operation: Operation) -> String {
    let method = match operation {
        // It has no model list: any answer shows that the server works.
        Operation::Models | Operation::Probe => return format!("{base}/"),
        Operation::Hosted { stream: true } => "invoke-with-response-stream",
        Operation::Hosted { .. } => "invoke",
        Operation::Converse { stream: true } => "converse-stream",
        _ => "converse",
    };
    format!("{base}/model/{model}/{method}")
}

fn ollama_path(base: &str, operation: Operation) -> String {
    let rest = match operation {
        Operation::Models => "/api/tags",
        Operation::Probe => "/api/version",
        Operation::Dialect(Dialect::OllamaGenerate) => "/api/generate",
        Operation::Dialect(Dialect::OllamaEmbed | Dialect::OpenAiEmbeddings) => "/api/embed",
        _ => "/api/chat",
    };
    format!("{}{rest}", base.trim_end_matches("/api"))
}

fn openai_path(operation: Operation) -> &'static str {
    match operation {
        Operation::Dialect(Dialect::OpenAiCompletions) => "/completions",
        Operation::Dialect(Dialect::OpenAiResponses) => "/responses",
        Operation::Dialect(Dialect::OpenAiEmbeddings) | Operation::BatchEmbed => "/embeddings",
        Operation::Dialect(Dialect::Passed(passed)) => passed.path(),
        Operation::Models | Operation::Probe => "/models",
        _ => "/chat/completions",
    }
}

fn headers(s: &Remote) -> Result<HeaderMap, InvalidEndpoint> {
    let mut out = HeaderMap::new();
    out.insert(USER_AGENT, HeaderValue::from_static(concat!("octet/", env!("CARGO_PKG_VERSION"))));
    out.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    out.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    out.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(key) = &s.api_key {
        let (name, value) = match s.provider {
            Provider::Anthropic => (HeaderName::from_static("x-api-key"), header_value(key.expose())),
            Provider::Gemini => (HeaderName::from_static("x-goog-api-key"), header_value(key.expose())),
            Provider::AzureOpenAi => (HeaderName::from_static("api-key"), header_value(key.expose())),
            _ => (AUTHORIZATION, header_value(&format!("Bearer {}", key.expose()))),
        };
        let value = value.ok_or_else(|| {
            InvalidEndpoint(format!(
                "the key of '{}' contains characters that are not allowed in a header",
                s.model
            ))
        })?;
        out.insert(name, value);
    }
    let mut plain = |name: &'static str, value: Option<&str>| {
        let Some(value) = value else { return Ok(()) };
        let value = HeaderValue::from_str(value).map_err(|_| {
            InvalidEndpoint(format!(
                "the {name} of '{}' contains characters that are not allowed in a header",
                s.model
            ))
        })?;
        out.insert(HeaderName::from_static(name), value);
        Ok(())
    };
    if s.provider == Provider::Anthropic {
        plain("anthropic-version", Some(s.api_version.as_deref().unwrap_or("2023-06-01")))?;
    }
    plain("openai-organization", s.organization.as_deref())?;
    for (name, value) in &s.extra_headers {
        if let Some(why) = header::wrong_name(name) {
            return Err(InvalidEndpoint(format!("the header '{name}' of '{}' {why}", s.model)));
        }
        let key: HeaderName = name
            .parse()
            .map_err(|_| InvalidEndpoint(format!("'{name}' of '{}' is not a valid header name", s.model)))?;
        let value = header_value(value.expose()).ok_or_else(|| {
            InvalidEndpoint(format!("the header '{name}' of '{}' has no valid value", s.model))
        })?;
        out.insert(key, value);
    }
    Ok(out)
}

/// A value that is not shown in logs.
fn header_value(secret: &str) -> Option<HeaderValue> {
    if header::wrong_value(secret).is_some() {
        return None;
    }
    let mut value = HeaderValue::from_str(secret).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Removes the words of a secret from a text.
fn hide(text: &mut String, secret: &str) {
    // `Bearer KEY` is two words.
    for word in secret.split_whitespace().filter(|w| w.len() >= HIDDEN_BYTES_MIN) {
        if text.contains(word) {
            *text = text.replace(word, "***");
        }
    }
}
