//! One deployment: a target that answers to a group's name, with its weight and limits. Chosen by the router.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{GroupName, Target};
use crate::Span;

/// One entry of `model_list`.
#[derive(Debug, Clone, PartialEq)]
pub struct Deployment {
    /// `model_info.id`, or one made from all that the entry says (so that it is the same after a reload). Unique.
    pub id: String,
    /// `model_name`: what clients ask for.
    pub group: GroupName,
    /// Who answers.
    pub target: Target,
    /// `weight`: its share of the group's requests against the others'. `None` where it is not said; then `rpm` and after
    /// it `tpm` are weights where all of the group have them, and otherwise all are the same. 0 gets none.
    pub weight: Option<f64>,
    /// `order`: lower ones first; higher ones are tried only where no lower one can answer. Those that do not say come last.
    pub order: Option<u32>,
    /// `rpm`: most requests in a minute.
    pub rpm: Option<u64>,
    /// `tpm`: most tokens in a minute, of prompts and answers.
    pub tpm: Option<u64>,
    /// `max_parallel_requests`: most requests at once.
    pub max_parallel_requests: Option<u32>,
    /// `timeout`: longest time of one attempt. `None`: [`super::RouterSettings::timeout`].
    pub timeout: Option<Duration>,
    /// `stream_timeout`: longest time to a stream's first piece. `None`: [`super::RouterSettings::stream_timeout`].
    pub stream_timeout: Option<Duration>,
    /// `cooldown_time`: how long it rests after failures. `None`: [`super::RouterSettings::cooldown_time`].
    pub cooldown_time: Option<Duration>,
    /// `num_retries` (or `max_retries`) of the entry. `None`: [`super::RouterSettings::num_retries`].
    pub num_retries: Option<u32>,
    /// `silent_model`: the group that gets a copy of each request; its answers are discarded.
    pub shadow: Option<Shadow>,
    /// Sampling and other parameters, in OpenAI's names, for requests that do not give them: `temperature`, `top_p`,
    /// `max_tokens`, `stop`, `seed`, `reasoning_effort`, ...
    pub params: Map<String, Value>,
    /// `tags`: which requests it answers, where `router_settings.enable_tag_filtering` says that tags choose.
    pub tags: Vec<String>,
    /// What is known about the model.
    pub info: ModelInfo,
    /// Where the entry stands.
    pub span: Span,
}

/// Copies of requests for another group.
#[derive(Debug, Clone, PartialEq)]
pub struct Shadow {
    /// The group that gets them.
    pub group: String,
    /// Share of the requests, 0 to 1 (`silent_share`; 1 where it is not said).
    pub share: f64,
}

/// `model_info`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelInfo {
    /// `litellm_params.model` as the file has it, `openai/gpt-4o`; empty for a process under its own name.
    pub written: String,
    /// What it is for.
    pub mode: Mode,
    /// `base_model`: the model, if the name does not tell (Azure's deployments).
    pub base_model: Option<String>,
    /// `max_input_tokens`: the window for prompts.
    pub max_input_tokens: Option<u64>,
    /// `max_output_tokens`, or `max_tokens`.
    pub max_output_tokens: Option<u64>,
    /// What the list of prices knows it as, `openai/gpt-4o`; a star stands for what clients ask for. `None`: it has a price of its own,
    /// or is reached at an address that is not the provider's.
    pub priced_as: Option<String>,
    /// USD for a token of the prompt.
    pub input_cost_per_token: Option<f64>,
    /// USD for a token of the prompt that a provider's cache held (`cache_read_input_token_cost`).
    pub cached_input_cost_per_token: Option<f64>,
    /// USD for a token of the prompt that a provider's cache takes in (`cache_creation_input_token_cost`).
    pub cache_write_cost_per_token: Option<f64>,
    /// USD for a token of the answer.
    pub output_cost_per_token: Option<f64>,
    /// `supports_vision`, where it is said.
    pub supports_vision: Option<bool>,
    /// `supports_function_calling`, where it is said.
    pub supports_function_calling: Option<bool>,
    /// `supports_reasoning`, where it is said.
    pub supports_reasoning: Option<bool>,
    /// `access_groups`: names that virtual keys may use for it.
    pub access_groups: Vec<String>,
    /// `disable_background_health_check`: it is left out of the checks beside the requests.
    pub unchecked: bool,
    /// All else that stands there, for clients that ask `/model/info`. Changes nothing here.
    pub other: Map<String, Value>,
}

/// What a deployment is for (`mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// `chat` (also `responses`).
    #[default]
    Chat,
    /// `completion`.
    Completion,
    /// `embedding`.
    Embedding,
    /// `audio_transcription`, `image_generation` and the like: what is passed on unread.
    Passed(&'static str),
}

/// A deployment that cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub struct Skipped {
    /// Its group.
    pub group: GroupName,
    /// Why, and what to do: `the environment variable GROQ_API_KEY is not set`.
    pub reason: String,
    /// Where the entry stands.
    pub span: Span,
}
