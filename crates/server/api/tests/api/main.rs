//! The tests of the dialects, in one program: each test program is linked separately.

mod accepted;
mod anthropic;
mod clients;
mod common;
mod dialects;
mod digits;
mod foreign;
mod gemini;
mod history;
mod images;
mod llama;
mod ollama;
mod openai_chat;
mod openai_completions;
mod openai_legacy;
mod openai_provider;
mod openai_responses;
mod openai_upstream_responses;
mod other_providers;
mod tokens;
mod videos;
