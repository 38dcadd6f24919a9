//! One deployment: a target of a group, with its weight and limits. Chosen by the router.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{GroupName, Target};
use crate::Span;

/// One entry of `model_list`.
#[derive(Debug, Clone, PartialEq)]
pub struct Deployment {
    /// `model_info.id`, or one derived from the entry, so that it is the same after a reload. Unique.
    pub id: String,
    /// `model_name`: the name for clients.
    pub group: GroupName,
    /// The target.
    pub target: Target,
    /// `weight`: its share of the group's requests, relative to the others. Default: `rpm`, else
    /// `tpm`, if all of the group have it; otherwise all are equal. 0 gets no requests.
    pub weight: Option<f64>,
    /// `order`: lower ones first; higher ones only if no lower one can answer. Default: last.
    pub order: Option<u32>,
    /// `rpm`: maximum requests per minute.
    pub rpm: Option<u64>,
    /// `tpm`: maximum tokens per minute, of prompts and answers.
    pub tpm: Option<u64>,
    /// `max_parallel_requests`: maximum concurrent requests.
    pub max_parallel_requests: Option<u32>,
    /// `timeout`: time limit of one attempt. `None`: [`super::RouterSettings::timeout`].
    pub timeout: Option<Duration>,
    /// `stream_timeout`: time limit to a stream's first piece. `None`: [`super::RouterSettings::stream_timeout`].
    pub stream_timeout: Option<Duration>,
    /// `cooldown_time`: cooldown after failures. `None`: [`super::RouterSettings::cooldown_time`].
    pub cooldown_time: Option<Duration>,
    /// `num_retries` (or `max_retries`) of the entry. `None`: [`super::RouterSettings::num_retries`].
    pub num_retries: Option<u32>,
    /// `silent_model`: the group that gets a copy of each request; its answers are discarded.
    pub shadow: Option<Shadow>,
    /// Default parameters of requests, by OpenAI's names: `temperature`, `top_p`,
    /// `max_tokens`, `stop`, `seed`, `reasoning_effort`, ...
    pub params: Map<String, Value>,
    /// `tags`: which requests it answers, with `router_settings.enable_tag_filtering`.
    pub tags: Vec<String>,
    /// Facts about the model.
    pub info: ModelInfo,
    /// The entry's place in the file.
    pub span: Span,
}

/// Copies of requests for another group.
#[derive(Debug, Clone, PartialEq)]
pub struct Shadow {
    /// The group that gets them.
    pub group: String,
    /// Share of the requests, 0 to 1 (`silent_share`; default 1).
    pub share: f64,
}

/// `model_info`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelInfo {
    /// `litellm_params.model` as in the file, `openai/gpt-4o`; empty for a process under its own name.
    pub written: String,
    /// `mock_response`: the text of every answer; nothing is sent to a provider.
    pub mock: Option<String>,
    /// `discover: dns`: the name in its address stands for several servers.
    pub discovers: bool,
    /// Its purpose.
    pub mode: Mode,
    /// `base_model`: the model, if the deployment has another name (Azure).
    pub base_model: Option<String>,
    /// `max_input_tokens`: maximum tokens of a prompt.
    pub max_input_tokens: Option<u64>,
    /// `max_output_tokens`, or `max_tokens`.
    pub max_output_tokens: Option<u64>,
    /// Its name in the price list, `openai/gpt-4o`; `*` stands for the requested name. `None`: the entry has a price,
    /// or its address is not the provider's.
    pub priced_as: Option<String>,
    /// USD per prompt token.
    pub input_cost_per_token: Option<f64>,
    /// USD per prompt token read from the provider's cache (`cache_read_input_token_cost`).
    pub cached_input_cost_per_token: Option<f64>,
    /// USD per prompt token written to the provider's cache (`cache_creation_input_token_cost`).
    pub cache_write_cost_per_token: Option<f64>,
    /// USD per answer token.
    pub output_cost_per_token: Option<f64>,
    /// `supports_vision`, if set; else `true` for models that see according to the table of families.
    pub supports_vision: Option<bool>,
    /// `supports_function_calling`, if set.
    pub supports_function_calling: Option<bool>,
    /// `supports_reasoning`, if set.
    pub supports_reasoning: Option<bool>,
    /// `access_groups`: names that virtual keys may use for it.
    pub access_groups: Vec<String>,
    /// `disable_background_health_check`: excluded from background health checks.
    pub unchecked: bool,
    /// All other fields, for clients of `/model/info`. They have no effect.
    pub other: Map<String, Value>,
}

/// The purpose of a deployment (`mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// `chat` (also `responses`).
    #[default]
    Chat,
    /// `completion`.
    Completion,
    /// `embedding`.
    Embedding,
    /// `audio_transcription`, `image_generation` and similar modes, whose requests are forwarded unread.
    Passed(&'static str),
}

/// A deployment that cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub struct Skipped {
    /// Its group.
    pub group: GroupName,
    /// Why, and what to do: `the environment variable GROQ_API_KEY is not set`.
    pub reason: String,
    /// The entry's place in the file.
    pub span: Span,
}
