//! The API dialects: OpenAI's, Anthropic's, Ollama's and Gemini's (and for providers Bedrock's), each parsed into and written from one
//! neutral form ([`core`]). The server runs a neutral request on its engine; the gateway sends it to a provider in the provider's own
//! dialect. No engine, no HTTP, no async: bytes in, bytes out.
//!
//! One rule for requests (`rules.rs`): a field that changes the answer and is not supported is refused by name, with its path; a field
//! that only tunes, or is unknown, is accepted with a [`Warning`]. Duplicate keys are refused. Providers' answers are parsed
//! leniently.
//!
//! # What a server calls
//!
//! | endpoint | body | whole answer | stream |
//! |---|---|---|---|
//! | `POST /v1/chat/completions` | [`openai::chat::parse`] | [`openai::chat::response`] | [`openai::chat::ChunkWriter`] |
//! | `POST /v1/completions` | [`openai::completions::parse`] | [`openai::completions::response`] | [`openai::completions::CompletionWriter`] |
//! | `POST /v1/responses` | [`openai::responses::parse`] | [`openai::responses::response`] | [`openai::responses::ResponseWriter`] |
//! | `POST /v1/embeddings` | [`openai::embeddings::parse`] | [`openai::embeddings::response`] | |
//! | `GET /v1/models`, `/v1/models/{id}` | | [`openai::models::list`], [`openai::models::one`] | |
//! | `POST /v1/messages` | [`anthropic::messages::parse`] | [`anthropic::messages::response`] | [`anthropic::messages::MessageWriter`] |
//! | `POST /v1/messages/count_tokens` | [`anthropic::count_tokens::parse`] | [`anthropic::count_tokens::response`] | |
//! | the same `GET`s with the header `anthropic-version` | | [`anthropic::models::list`], [`anthropic::models::one`] | |
//! | `POST /api/chat` | [`ollama::chat::parse`] | [`ollama::chat::response`] | [`ollama::chat::writer`] |
//! | `POST /api/generate` | [`ollama::generate::parse`] | [`ollama::generate::response`] | [`ollama::generate::writer`] |
//! | `POST /api/embed` | [`ollama::embed::parse`] | [`ollama::embed::response`] | |
//! | `POST /api/embeddings` | [`ollama::embed::parse_old`] | [`ollama::embed::response_old`] | |
//! | `GET /api/tags`, `/api/ps`, `/api/version` | | [`ollama::models::tags`], [`ollama::models::ps`], [`ollama::models::version`] | |
//! | `POST /api/show` | [`ollama::models::parse_show`] | [`ollama::models::show`] | |
//! | `POST /v1beta/models/{model}:generateContent`, `:streamGenerateContent` | [`gemini::parse`] | [`gemini::response`] | [`gemini::ContentWriter`] |
//! | `POST .../{model}:countTokens` | [`gemini::count_tokens::parse`] | [`gemini::count_tokens::response`] | |
//! | `POST .../{model}:embedContent`, `:batchEmbedContents` | [`gemini::embed::parse`], [`gemini::embed::parse_batch`] | [`gemini::embed::response`], [`gemini::embed::response_batch`] | |
//! | `GET /v1beta/models`, `/v1beta/models/{model}` | | [`gemini::models::list`], [`gemini::models::one`] | |
//! | other `/api/...` | | [`ollama::error::unsupported_path`] | |
//! | `POST /completion`, `/completions` | [`llama::completion`] | [`llama::response`] | [`llama::Writer`] |
//! | `POST /infill` | [`llama::infill`] | the same | the same |
//! | `POST /embedding`, `/embeddings` | [`llama::embeddings`] | [`llama::vectors`] | |
//! | `POST /rerank` and its like | [`llama::rerank::parse`] | [`llama::rerank::response`] | |
//! | `POST /tokenize`, `/detokenize`, `/apply-template` | [`tokens::tokenize`], [`tokens::detokenize`], [`tokens::apply_template`] | | |
//!
//! A parser returns a [`core::GenerateRequest`] (Ollama's a [`ollama::Call`], which may load a model; embeddings a
//! [`core::EmbedRequest`]) or an [`ApiError`]. [`core::Chat::template`] converts a conversation to a chat template's inputs, and
//! refuses images. The answer is a series of [`core::Event`]s. If `request.stream`, each is passed to the endpoint's writer
//! ([`dialect::StreamWriter`]: `write`, and `end` once), and the bytes are sent as `text/event-stream` (Ollama's as
//! `application/x-ndjson`); else they are collected into a [`core::Answer`], written by `response`.
//!
//! An error before the answer's first byte has the status [`ApiError::status`] and the body [`openai::error::body`],
//! [`anthropic::error::body`], [`ollama::error::body`] or [`gemini::error::body`]; a later one is an [`core::Event::Error`] for the
//! writer.
//!
//! Responses with `store` are stored by the server: [`openai::responses::conversation`] returns what to store,
//! [`openai::responses::follow`] prepends it to the request that names it.

pub mod anthropic;
pub mod bedrock;
mod breakpoint;
mod calls;
pub mod core;
pub mod dialect;
pub mod digits;
mod error;
mod file;
pub mod gemini;
mod json;
pub mod llama;
pub mod ndjson;
pub mod ollama;
pub mod openai;
mod overflow;
mod proofs;
mod reader;
mod rules;
pub mod sse;
pub mod time;
pub mod tokens;
mod unread;

pub use error::{ApiError, ErrorKind};
pub use json::shortened;
pub use rules::Warning;
pub use time::rfc3339;
