//! Clients' bodies, as much of them as somebody needs to know. Used by the endpoints and by targets that do not speak the client's
//! dialect.
//!
//! A request that passes through is read for its model, and little else: what the provider makes of the rest is its business,
//! fields that nobody here knows included.

use std::borrow::Cow;

use octet_api::anthropic::{count_tokens, messages};
use octet_api::core::{Completion, EmbedRequest, GenerateRequest, Input};
use octet_api::ollama::{self, Call};
use octet_api::openai::{chat, completions, embeddings};
use octet_api::{ApiError, ErrorKind};
use octet_router::{Dialect, Original};
use serde::Deserialize;

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
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    user_id: Option<String>,
}

/// The request as far as routing goes by it; `None` where the body is not even that, and has to be read to say why.
pub fn peek(body: &[u8]) -> Option<GenerateRequest> {
    let peek: Peek<'_> = serde_json::from_slice(body).ok()?;
    let mut out = shallow(peek.model.into_owned());
    out.stream = peek.stream.unwrap_or(false);
    out.max_tokens = peek.max_completion_tokens.or(peek.max_tokens);
    out.user = peek.user.or_else(|| peek.metadata.and_then(|m| m.user_id));
    (!out.model.is_empty()).then_some(out)
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
        let read = peek(body).unwrap();
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
        let read = peek(br#"{"model": "m", "metadata": {"user_id": "x"}, "stream": null}"#).unwrap();
        assert_eq!((read.user.as_deref(), read.stream), (Some("x"), false));
    }
}
