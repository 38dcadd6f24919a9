//! What is told of a request: names, times, counts and costs. Prompts and answers are not in it.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use crate::context::TraceContext;

/// A request that is over.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its name in the log and in the header `x-request-id`.
    pub id: String,
    /// Its trace.
    pub context: TraceContext,
    /// `chat`, `text_completion` or `embeddings`: OpenTelemetry's names.
    pub operation: &'static str,
    /// When it came.
    pub began: SystemTime,
    /// How long it took, answer included.
    pub took: Duration,
    /// To the first piece of the answer.
    pub first: Option<Duration>,
    /// The name that the client asked for.
    pub asked: String,
    /// Whether the answer comes in pieces.
    pub stream: bool,
    /// Most tokens of the answer.
    pub max_tokens: Option<u32>,
    /// Sampling temperature, where it was read.
    pub temperature: Option<f64>,
    /// Whom the client says that it asks for.
    pub user: Option<String>,
    /// Id and name of the virtual key.
    pub key: Option<(String, String)>,
    /// The key's user and team.
    pub owner: (Option<String>, Option<String>),
    /// `tags` of the request.
    pub tags: Vec<String>,
    /// `metadata` of the request.
    pub metadata: Map<String, Value>,
    /// Who answered.
    pub answered: Option<Answered>,
    /// Tokens of the prompt, those of them from the provider's cache, and tokens of the answer.
    pub usage: Option<(u64, u64, u64)>,
    /// US dollars.
    pub cost: f64,
    /// Its entry in the cache of responses, if it was answered from there.
    pub cached: bool,
    /// What went wrong.
    pub error: Option<Error>,
    /// Who was asked, in order.
    pub attempts: Vec<Attempt>,
}

/// Who answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The provider, by LiteLLM's name.
    pub provider: String,
    /// The model's name there.
    pub model: String,
    /// The deployment's id.
    pub deployment: String,
    /// Its group.
    pub group: String,
}

/// A deployment that was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its id.
    pub deployment: String,
    /// Its group.
    pub group: String,
    /// When, from the request's beginning.
    pub after: Duration,
    /// How long it took; to the end of the answer if it answered.
    pub took: Duration,
    /// What went wrong.
    pub error: Option<Error>,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What kind it is.
    pub kind: String,
    /// In words.
    pub message: String,
    /// The HTTP status, where there was one.
    pub status: Option<u16>,
}
