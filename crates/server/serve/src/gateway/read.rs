//! Reads clients' bodies, partly or fully.
//!
//! A forwarded request is read for its model and a few other fields. The provider handles the rest, including fields that Octet does not
//! know.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use octet_api::anthropic::{count_tokens, messages};
use octet_api::core::{Completion, EmbedRequest, GenerateRequest, Input, MemoryHandle};
use octet_api::ollama::{self, Call};
use octet_api::openai::{chat, completions, embeddings, responses};
use octet_api::{ApiError, ErrorKind, gemini};
use octet_router::{Dialect, Failure, Original, RequestOptions, from_api};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::blocking::run_sized;
use crate::fields::Fields;

/// Whether a request in this dialect is for text.
pub fn generates(dialect: Dialect) -> bool {
    !is_embedding(dialect) && !is_count(dialect) && !matches!(dialect, Dialect::Passed(_))
}

/// Whether it is for a token count.
pub fn is_count(dialect: Dialect) -> bool {
    matches!(dialect, Dialect::AnthropicCountTokens | Dialect::GeminiCountTokens)
}

/// Whether it is for embeddings.
pub fn is_embedding(dialect: Dialect) -> bool {
    use Dialect::*;
    matches!(dialect, OpenAiEmbeddings | OllamaEmbed | GeminiEmbed | GeminiBatchEmbed)
}

/// The fields that are read of a forwarded body.
#[derive(Deserialize)]
struct Peek<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    max_tokens: Option<u32>,
    #[serde(default)]
    max_completion_tokens: Option<u32>,
    /// Of Responses.
    #[serde(default)]
    max_output_tokens: Option<u32>,
    /// Several answers: to each prompt, those of which the best are returned, several prompts.
    #[serde(borrow, default)]
    n: Option<&'a RawValue>,
    #[serde(borrow, default)]
    best_of: Option<&'a RawValue>,
    #[serde(borrow, default)]
    prompt: Option<&'a RawValue>,
    /// Ollama's options.
    #[serde(borrow, default)]
    options: Option<&'a RawValue>,
    #[serde(default)]
    user: Option<String>,
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow, default)]
    litellm_metadata: Option<&'a RawValue>,
    #[serde(default)]
    num_retries: Option<u32>,
    #[serde(default)]
    fallbacks: Option<Vec<Fallback>>,
    #[serde(default)]
    timeout: Option<f64>,
    #[serde(borrow, default)]
    tags: Option<&'a RawValue>,
    #[serde(borrow, default)]
    cache: Option<&'a RawValue>,
    #[serde(default, rename = "generationConfig")]
    generation_config: Option<GenerationConfig>,
}

/// Gemini's field with the number of answers and their maximum length.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GenerationConfig {
    #[serde(default, alias = "max_output_tokens")]
    max_output_tokens: Option<u32>,
    #[serde(default, alias = "candidate_count")]
    candidate_count: Option<f64>,
}

impl Peek<'_> {
    /// The maximum length of an answer, by the name that the dialect has for it.
    fn max_tokens(&self, dialect: Dialect) -> Option<u32> {
        #[derive(Deserialize)]
        struct Options {
            num_predict: Option<i64>,
        }
        match dialect {
            Dialect::OpenAiResponses => self.max_output_tokens,
            Dialect::OllamaChat | Dialect::OllamaGenerate => {
                let options = serde_json::from_str::<Options>(self.options?.get()).ok()?;
                u32::try_from(options.num_predict?).ok()
            }
            _ => {
                let of_config = self.generation_config.as_ref().and_then(|c| c.max_output_tokens);
                self.max_completion_tokens.or(self.max_tokens).or(of_config)
            }
        }
    }

    /// Whether the numbers of answers are whole numbers, so that what they cost is known. Some providers read `"128"` as a number.
    fn has_counts(&self) -> bool {
        let is_count = |text: &str| text.parse::<f64>().is_ok_and(|n| n >= 1.0 && n.fract() == 0.0);
        [self.n, self.best_of].into_iter().flatten().all(|n| n.get() == "null" || is_count(n.get()))
    }

    /// Number of answers that the provider may bill.
    fn answers(&self) -> u32 {
        let number = |field: Option<&RawValue>| field.and_then(|n| n.get().parse::<f64>().ok());
        let candidates = self.generation_config.as_ref().and_then(|c| c.candidate_count);
        let each =
            [number(self.n), number(self.best_of), candidates].into_iter().flatten().fold(1.0, f64::max);
        let prompts = self.prompt.map_or(1, prompts);
        // The conversion saturates.
        (each as u32).saturating_mul(u32::try_from(prompts).unwrap_or(u32::MAX)).max(1)
    }
}

/// Number of prompts in a text, a list of tokens, or a list of these.
fn prompts(field: &RawValue) -> usize {
    struct Count;
    impl<'de> Visitor<'de> for Count {
        type Value = usize;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<usize, A::Error> {
            let Some(first) = all.next_element::<&RawValue>()? else { return Ok(1) };
            let mut prompts = 1;
            while all.next_element::<IgnoredAny>()?.is_some() {
                prompts += 1;
            }
            Ok(if first.get().starts_with(['"', '[']) { prompts } else { 1 })
        }
    }
    serde_json::Deserializer::from_str(field.get()).deserialize_seq(Count).unwrap_or(1)
}

/// LiteLLM's `cache` field: a request's settings for the response cache.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct CacheControl {
    /// Do not answer from the cache.
    pub no_cache: Option<bool>,
    /// Do not store the answer.
    pub no_store: Option<bool>,
    /// Use the cache although the configuration has `mode: default_off`.
    pub use_cache: Option<bool>,
    /// Lifetime of the stored answer in seconds.
    pub ttl: Option<f64>,
    /// Maximum age of a stored answer in seconds.
    #[serde(alias = "s-max-age")]
    pub s_maxage: Option<f64>,
    /// Only answers of this namespace are used.
    pub namespace: Option<String>,
}

impl CacheControl {
    /// Reads it; an invalid value disables the cache for the request.
    fn read(text: &RawValue) -> Self {
        let none = || Self { no_cache: Some(true), no_store: Some(true), ..Self::default() };
        // A list would be read as the fields in their order.
        let object = Some(text.get()).filter(|text| text.starts_with('{'));
        object.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(none)
    }
}

/// A name, or an object with a name and parameters.
#[derive(Deserialize)]
#[serde(untagged)]
enum Fallback {
    Name(String),
    With { model: String },
}

/// Fields of a body that are for the router, by LiteLLM's names. They are removed before a body is forwarded.
#[derive(Debug, Default)]
pub struct Own {
    /// Retries and fallbacks.
    pub options: RequestOptions,
    /// Time limit of the request.
    pub timeout: Option<Duration>,
    /// Tags for callbacks and usage counts: `tags`, and those in `metadata`.
    pub tags: Vec<String>,
    /// `metadata` for callbacks.
    pub metadata: Map<String, Value>,
    /// Settings for the response cache.
    pub cache: CacheControl,
    /// The body for the cache key, if it is not forwarded unchanged.
    pub cached_as: Option<(Dialect, Bytes)>,
}

/// The names of these fields.
const OWN: [&str; 6] = ["num_retries", "fallbacks", "timeout", "tags", "cache", "litellm_metadata"];

/// A body without the router's fields. The other fields keep their bytes and order, so that prefixes in a provider's cache stay the same.
fn without_own(body: &[u8], dialect: Dialect) -> Option<Bytes> {
    let all = serde_json::from_slice::<Fields>(body).ok()?.0?;
    // As in LiteLLM's proxy, OpenAI's `metadata` is not forwarded; Anthropic's is.
    let metadata =
        matches!(dialect, Dialect::OpenAiChat | Dialect::OpenAiCompletions | Dialect::OpenAiEmbeddings);
    let is_own = |name: &str| OWN.contains(&name) || (metadata && name == "metadata");
    let mut out = String::with_capacity(body.len());
    for (name, value) in all.iter().filter(|(name, _)| !is_own(name)) {
        out.push(if out.is_empty() { '{' } else { ',' });
        out += &serde_json::to_string(name).ok()?;
        out.push(':');
        out += value.get();
    }
    out += if out.is_empty() { "{}" } else { "}" };
    Some(out.into())
}

/// Maximum number of tags of a request, and maximum bytes of one.
const TAGS_MAX: usize = 32;
const TAG_BYTES_MAX: usize = 128;
/// Maximum size of the metadata for callbacks, in bytes.
const METADATA_BYTES_MAX: usize = 16 << 10;

/// Adds tags. Invalid ones, and those above the limits, are left out.
pub fn add_tags(tags: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    for tag in more.into_iter().map(|t| t.trim().to_string()) {
        let is_tag = !tag.is_empty() && tag.len() <= TAG_BYTES_MAX && !tag.contains(char::is_control);
        if is_tag && tags.len() < TAGS_MAX && !tags.contains(&tag) {
            tags.push(tag);
        }
    }
}

fn texts(value: Option<&Value>) -> impl Iterator<Item = String> {
    let all = value.and_then(Value::as_array).into_iter().flatten();
    all.filter_map(|v| v.as_str().map(str::to_string))
}

/// Reads an object; empty if it is something else, or too large.
fn object(text: Option<&RawValue>) -> Map<String, Value> {
    let text = text.filter(|t| t.get().len() <= METADATA_BYTES_MAX);
    text.and_then(|t| serde_json::from_str(t.get()).ok()).unwrap_or_default()
}

/// The fields of a body that routing needs.
pub struct Peeked {
    /// The request.
    pub request: GenerateRequest,
    /// Its fields for the router.
    pub own: Own,
    /// The body without those fields, if it had any.
    pub body: Option<Bytes>,
}

/// Reads the fields that routing needs; `None` if they are invalid: a full parse then gives the error.
pub fn peek(body: &[u8], dialect: Dialect) -> Option<Peeked> {
    let mut peek: Peek<'_> = serde_json::from_slice(body).ok()?;
    if matches!(dialect, Dialect::OpenAiChat | Dialect::OpenAiCompletions) && !peek.has_counts() {
        return None;
    }
    let ours = peek.num_retries.is_some() || peek.fallbacks.is_some() || peek.timeout.is_some();
    let ours = ours || peek.tags.is_some() || peek.cache.is_some() || peek.metadata.is_some();
    let ours = ours || peek.litellm_metadata.is_some();
    let mut own = Own::default();
    if ours {
        let names = |f: Fallback| match f {
            Fallback::Name(name) | Fallback::With { model: name } => name,
        };
        let fallbacks = peek.fallbacks.take().map(|all| all.into_iter().map(names).collect());
        own.options = RequestOptions { retries: peek.num_retries, fallbacks };
        let tags = peek.tags.and_then(|t| serde_json::from_str(t.get()).ok());
        add_tags(&mut own.tags, texts(tags.as_ref()));
        own.metadata = object(peek.metadata);
        own.metadata.extend(object(peek.litellm_metadata));
        let tags = own.metadata.shift_remove("tags");
        add_tags(&mut own.tags, texts(tags.as_ref()));
        own.cache = peek.cache.map(CacheControl::read).unwrap_or_default();
        own.timeout = peek.timeout.and_then(|s| Duration::try_from_secs_f64(s).ok()).filter(|t| !t.is_zero());
    }
    let left = if ours { Some(without_own(body, dialect)?) } else { None };
    let mut out = shallow(peek.model.to_string());
    out.stream = peek.stream.unwrap_or(matches!(dialect, Dialect::OllamaChat | Dialect::OllamaGenerate));
    out.max_tokens = peek.max_tokens(dialect);
    out.n = peek.answers();
    out.user = peek.user.or_else(|| own.metadata.get("user_id")?.as_str().map(str::to_string));
    (!out.model.is_empty()).then_some(Peeked { request: out, own, body: left })
}

/// A request of which only the model is known.
pub fn shallow(model: String) -> GenerateRequest {
    GenerateRequest::new(model, Input::Completion(Completion::default()))
}

/// Whether only a part of a request was read: a target that does not speak its dialect needs all of it. Fully read requests always have a
/// prompt.
pub fn is_shallow(request: &GenerateRequest) -> bool {
    matches!(&request.input, Input::Completion(c) if c.prompts.is_empty())
}

/// The request in full: if only a part of it was read, `original` is parsed, once for all targets. Both hold the same memory permit.
///
/// # Errors
/// Those of [`parse`].
pub async fn whole(
    request: &Arc<GenerateRequest>,
    original: Option<&Arc<Original>>,
) -> Result<Arc<GenerateRequest>, Failure> {
    let Some(original) = original.filter(|_| is_shallow(request)) else { return Ok(Arc::clone(request)) };
    if let Some(parsed) = original.parsed.get() {
        return Ok(Arc::clone(parsed));
    }
    let (model, stream, memory) = (request.model.clone(), request.stream, request.memory.clone());
    let parsed = parse(original, &memory, self::request).await?;
    // Keep-alive affects all clients, and who sent the body is not known here.
    let parsed = GenerateRequest { model, stream, keep_alive: request.keep_alive, memory, ..parsed };
    Ok(Arc::clone(original.parsed.get_or_init(|| Arc::new(parsed))))
}

/// Parses a client's body by one of the functions below: on a blocking thread if it is long. `memory` counts its values, and must be held
/// by the result.
///
/// # Errors
/// [`FailureKind::Memory`](octet_router::FailureKind) if there is no memory for the values; those of `parse`.
pub async fn parse<T: Send + 'static>(
    original: &Original,
    memory: &MemoryHandle,
    parse: fn(Dialect, &[u8]) -> Result<T, ApiError>,
) -> Result<T, Failure> {
    let (dialect, body, memory) = (original.dialect, original.body.clone(), memory.clone());
    let read = move || {
        memory.take_values(&body).map_err(Failure::memory)?;
        parse(dialect, &body).map_err(|e| from_api(&e))
    };
    run_sized(original.body.len(), read).await.map_err(|e| from_api(&e))?
}

/// Parses a request for text.
pub fn request(dialect: Dialect, body: &[u8]) -> Result<GenerateRequest, ApiError> {
    let of_ollama = |call| match call {
        Call::Generate(request) => Ok(*request),
        Call::Load(_) => Err(ApiError::invalid("messages", "there is nothing to answer")),
    };
    match dialect {
        Dialect::OpenAiChat => chat::parse(body),
        Dialect::OpenAiCompletions => completions::parse(body),
        Dialect::AnthropicMessages => messages::parse(body),
        Dialect::OpenAiResponses => {
            let parsed = responses::parse(body)?;
            match parsed.previous_response_id {
                None => Ok(parsed),
                Some(_) => Err(ApiError::invalid(
                    "previous_response_id",
                    "the previous response is stored by a provider that is not available",
                )),
            }
        }
        Dialect::OllamaChat => of_ollama(ollama::chat::parse(body)?),
        Dialect::OllamaGenerate => of_ollama(ollama::generate::parse(body)?),
        Dialect::Gemini => gemini::parse(body),
        other => Err(ApiError::new(ErrorKind::Internal, format!("{other:?} is not for text"))),
    }
}

/// Parses a request for embeddings.
pub fn embedding(dialect: Dialect, body: &[u8]) -> Result<EmbedRequest, ApiError> {
    match dialect {
        Dialect::OllamaEmbed => ollama::embed::parse(body),
        Dialect::GeminiEmbed => gemini::embed::parse(body),
        Dialect::GeminiBatchEmbed => gemini::embed::parse_batch(body),
        _ => embeddings::parse(body),
    }
}

/// Parses a request for a token count.
pub fn to_count(dialect: Dialect, body: &[u8]) -> Result<GenerateRequest, ApiError> {
    match dialect {
        Dialect::GeminiCountTokens => gemini::count_tokens::parse(body),
        _ => count_tokens::parse(body),
    }
}

/// The answer to a request for a token count.
pub fn counted(dialect: Dialect, tokens: u64) -> serde_json::Value {
    match dialect {
        Dialect::GeminiCountTokens => gemini::count_tokens::response(tokens),
        _ => count_tokens::response(tokens),
    }
}

/// The error of a request whose model cannot be read.
pub fn check(dialect: Dialect, body: &[u8]) -> Result<(), ApiError> {
    match dialect {
        dialect if is_count(dialect) => to_count(dialect, body).map(drop),
        dialect if is_embedding(dialect) => embedding(dialect, body).map(drop),
        _ => request(dialect, body).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_read_of_what_passes_through() {
        let body = br#"{"x_new": [1, {"a": "}"}], "model": "a\u0062", "stream": true, "max_tokens": 5, "user": "u"}"#;
        let peek = |body: &[u8]| peek(body, Dialect::OpenAiChat);
        let Peeked { request: read, own, body: left } = peek(body).unwrap();
        assert_eq!((own.options, own.timeout, left), (RequestOptions::default(), None, None));
        assert_eq!((read.model.as_str(), read.stream, read.max_tokens), ("ab", true, Some(5)));
        assert_eq!(read.user.as_deref(), Some("u"));
        assert!(is_shallow(&read));
        for wrong in [
            &b"{"[..],
            b"[]",
            b"{}",
            b"{\"model\": \"\"}",
            b"{\"model\": 1}",
            b"{\"model\":\"a\",\"model\":\"b\"}",
        ] {
            assert!(peek(wrong).is_none());
        }
        let read = peek(br#"{"model": "m", "metadata": {"user_id": "x"}, "stream": null}"#).unwrap().request;
        assert_eq!((read.user.as_deref(), read.stream), (Some("x"), false));
    }
}
