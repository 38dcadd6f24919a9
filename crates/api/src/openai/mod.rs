//! OpenAI's dialects, with the extra fields that vLLM's and llama.cpp's clients send.

pub mod chat;
pub mod error;
mod fields;
mod logprobs;
pub mod responses;
mod usage;

pub(crate) use fields::{check_tool_choice, schema, stop, unique};
