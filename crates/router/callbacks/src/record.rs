//! The record of a request: names, times, counts and costs, without prompts and answers.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use crate::context::TraceContext;

/// A finished request.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its id in the log and in the header `x-request-id`.
    pub id: String,
    /// Its trace.
    pub context: TraceContext,
    /// `chat`, `text_completion` or `embeddings`: OpenTelemetry's names.
    pub operation: &'static str,
    /// When it arrived.
    pub began: SystemTime,
    /// Its duration, including the answer.
    pub took: Duration,
    /// Time to the first piece of the answer.
    pub first: Option<Duration>,
    /// The requested model name.
    pub requested_model: String,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Maximum tokens of the answer.
    pub max_tokens: Option<u32>,
    /// Sampling temperature, if it was parsed.
    pub temperature: Option<f64>,
    /// The client's `user` field.
    pub user: Option<String>,
    /// Id and name of the virtual key.
    pub key: Option<(String, String)>,
    /// The key's user and team.
    pub owner: (Option<String>, Option<String>),
    /// `tags` of the request.
    pub tags: Vec<String>,
    /// `metadata` of the request.
    pub metadata: Map<String, Value>,
    /// The deployment that answered.
    pub answered: Option<Answered>,
    /// Prompt tokens, those of them from the provider's cache, and answer tokens.
    pub usage: Option<(u64, u64, u64)>,
    /// US dollars.
    pub cost: f64,
    /// It was answered from the response cache.
    pub cached: bool,
    /// The error, if it failed.
    pub error: Option<Error>,
    /// All attempts, in order.
    pub attempts: Vec<Attempt>,
}

/// The deployment that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The provider, by LiteLLM's name.
    pub provider: String,
    /// The model's name at the provider.
    pub model: String,
    /// The deployment's id.
    pub deployment: String,
    /// Its group.
    pub group: String,
}

/// An attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its id.
    pub deployment: String,
    /// Its group.
    pub group: String,
    /// Start time, relative to the request's.
    pub after: Duration,
    /// Duration; to the end of the answer if it answered.
    pub took: Duration,
    /// The error, if it failed.
    pub error: Option<Error>,
}

/// An error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Its kind.
    pub kind: String,
    /// Its message.
    pub message: String,
    /// The HTTP status, if there was one.
    pub status: Option<u16>,
}
