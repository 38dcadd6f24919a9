//! Clients' bodies, as much of them as somebody needs to know. Used by the endpoints and by targets that do not speak the client's
//! dialect.
//!
//! A request that passes through is read for its model, and little else: what the provider makes of the rest is its business,
//! fields that nobody here knows included.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Bytes;
use octet_api::anthropic::{count_tokens, messages};
use octet_api::core::{Completion, EmbedRequest, GenerateRequest, Input};
use octet_api::ollama::{self, Call};
use octet_api::openai::{chat, completions, embeddings, responses};
use octet_api::{ApiError, ErrorKind};
use octet_router::{Dialect, Original, Wishes};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// Whether a request in this dialect is for text.
pub fn generates(dialect: Dialect) -> bool {
    !is_embedding(dialect) && dialect != Dialect::AnthropicCountTokens
}

/// Whether it is for vectors.
pub fn is_embedding(dialect: Dialect) -> bool {
    matches!(dialect, Dialect::OpenAiEmbeddings | Dialect::OllamaEmbed)
}

/// What is read of a body that passes through.
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
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    metadata: Option<Metadata>,
    #[serde(default)]
    num_retries: Option<u32>,
    #[serde(default)]
    fallbacks: Option<Vec<Fallback>>,
    #[serde(default)]
    timeout: Option<f64>,
    #[serde(default)]
    tags: Option<IgnoredAny>,
    #[serde(default)]
    cache: Option<IgnoredAny>,
}

/// A name, or a mapping with parameters beside it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Fallback {
    Name(String),
    With { model: String },
}

/// What a body says to the router, in LiteLLM's names. No provider gets to see it.
#[derive(Debug, Default)]
pub struct Own {
    /// Retries and fallbacks.
    pub wishes: Wishes,
    /// Most time for the request.
    pub timeout: Option<Duration>,
}

/// The fields of a body that are the router's.
const OWN: [&str; 5] = ["num_retries", "fallbacks", "timeout", "tags", "cache"];

/// A body without what is the router's. What else it says stays as it is, in its order: what a provider caches begins alike.
fn without_own(body: &[u8], dialect: Dialect) -> Option<Bytes> {
    struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);
    impl<'de> Deserialize<'de> for Fields<'de> {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct All;
            impl<'de> serde::de::Visitor<'de> for All {
                type Value = Fields<'de>;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> Result<Fields<'de>, A::Error> {
                    let mut out = Vec::new();
                    while let Some(entry) = map.next_entry()? {
                        out.push(entry);
                    }
                    Ok(Fields(out))
                }
            }
            deserializer.deserialize_map(All)
        }
    }
    let Fields(all) = serde_json::from_slice(body).ok()?;
    // LiteLLM's proxy keeps OpenAI's `metadata` to itself; in Anthropic's dialect it is the provider's.
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

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    user_id: Option<String>,
}

/// A body as far as routing goes by it.
pub struct Peeked {
    /// The request.
    pub request: GenerateRequest,
    /// What of it is the router's.
    pub own: Own,
    /// The body without that, if there was any.
    pub body: Option<Bytes>,
}

/// Reads a body as far as routing goes by it; `None` where the body is not even that, and has to be read to say why.
pub fn peek(body: &[u8], dialect: Dialect) -> Option<Peeked> {
    let mut peek: Peek<'_> = serde_json::from_slice(body).ok()?;
    let ours = peek.num_retries.is_some() || peek.fallbacks.is_some() || peek.timeout.is_some();
    let ours = ours || peek.tags.is_some() || peek.cache.is_some() || peek.metadata.is_some();
    let mut own = Own::default();
    if ours {
        let names = |f: Fallback| match f {
            Fallback::Name(name) | Fallback::With { model: name } => name,
        };
        let fallbacks = peek.fallbacks.take().map(|all| all.into_iter().map(names).collect());
        own.wishes = Wishes { retries: peek.num_retries, fallbacks };
        own.timeout = peek.timeout.and_then(|s| Duration::try_from_secs_f64(s).ok()).filter(|t| !t.is_zero());
    }
    let left = if ours { Some(without_own(body, dialect)?) } else { None };
    let mut out = shallow(peek.model.into_owned());
    out.stream = peek.stream.unwrap_or(false);
    out.max_tokens = peek.max_completion_tokens.or(peek.max_tokens);
    out.user = peek.user.or_else(|| peek.metadata.and_then(|m| m.user_id));
    (!out.model.is_empty()).then_some(Peeked { request: out, own, body: left })
}

/// What of a body is the router's, and the body without that.
pub fn split(body: Bytes, dialect: Dialect) -> (Own, Bytes) {
    match peek(&body, dialect) {
        Some(Peeked { own, body: Some(left), .. }) => (own, left),
        _ => (Own::default(), body),
    }
}

/// A request of which no more than this is known.
pub fn shallow(model: String) -> GenerateRequest {
    GenerateRequest::new(model, Input::Completion(Completion::default()))
}

/// Whether a request is one of which more has to be read before somebody else than a provider of its dialect can answer: readers
/// leave none without a prompt.
pub fn is_shallow(request: &GenerateRequest) -> bool {
    matches!(&request.input, Input::Completion(c) if c.prompts.is_empty())
}

/// All of a request for text.
pub fn request(original: &Original) -> Result<GenerateRequest, ApiError> {
    let body = &original.body[..];
    let of_ollama = |call| match call {
        Call::Generate(request) => Ok(*request),
        Call::Load(_) => Err(ApiError::invalid("messages", "there is nothing to answer")),
    };
    match original.dialect {
        Dialect::OpenAiChat => chat::parse(body),
        Dialect::OpenAiCompletions => completions::parse(body),
        Dialect::AnthropicMessages => messages::parse(body),
        Dialect::OpenAiResponses => {
            let parsed = responses::parse(body)?;
            match parsed.previous_response_id {
                None => Ok(parsed),
                Some(_) => Err(ApiError::invalid(
                    "previous_response_id",
                    "the response before this one is kept by a provider that does not answer now",
                )),
            }
        }
        Dialect::OllamaChat => of_ollama(ollama::chat::parse(body)?),
        Dialect::OllamaGenerate => of_ollama(ollama::generate::parse(body)?),
        other => Err(ApiError::new(ErrorKind::Internal, format!("{other:?} is not for text"))),
    }
}

/// All of a request for vectors.
pub fn embedding(original: &Original) -> Result<EmbedRequest, ApiError> {
    match original.dialect {
        Dialect::OllamaEmbed => ollama::embed::parse(&original.body),
        _ => embeddings::parse(&original.body),
    }
}

/// What is wrong with a request of which not even the model can be read.
pub fn check(original: &Original) -> Result<(), ApiError> {
    match original.dialect {
        Dialect::AnthropicCountTokens => count_tokens::parse(&original.body).map(drop),
        dialect if is_embedding(dialect) => embedding(original).map(drop),
        _ => request(original).map(drop),
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
        assert_eq!((own.wishes, own.timeout, left), (Wishes::default(), None, None));
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
