//! OpenAI's dialects, with the extra fields that vLLM's and llama.cpp's clients send.

pub mod chat;
pub mod completions;
mod custom;
pub mod embeddings;
mod envelope;
pub mod error;
mod experts;
mod fields;
mod foreign;
mod logit_bias;
mod logprobs;
pub mod models;
mod prompts;
pub mod responses;
mod samplers;
pub use samplers::{sampler_letter, sampler_name};
mod usage;
mod video;

/// `system_fingerprint`: this server and its version.
pub(crate) const FINGERPRINT: &str = concat!("octet-", env!("CARGO_PKG_VERSION"));

pub use usage::{usage_in, usage_of};

pub(crate) use fields::{
    SAMPLERS, TOP_LOGPROBS_MAX, at_most, check_tool_choice, function_type, no_parameters, sampling, schema,
    seed, stop, structured, tools, unique,
};
pub(crate) use foreign::{FOREIGN, drop_repeated};
pub(crate) use logit_bias::biases;
pub(crate) use logprobs::{Token, finite};
pub use prompts::MEDIA_MARKER;
pub(crate) use prompts::prompts;
pub(crate) use usage::WireTimings;
