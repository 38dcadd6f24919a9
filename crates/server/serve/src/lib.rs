//! The HTTP server: OpenAI's, Anthropic's, Ollama's and Gemini's APIs over the engine. Started by `octet serve`.
//!
//! The path of a request: `http` parses its dialect into a `core::GenerateRequest`. `pipeline` waits for the model (`models`), renders
//! and tokenises the prompt, compiles the grammar, queues the request, and turns the engine's events into `core::Event`s. `http`
//! writes those in the client's dialect. `ops` has metrics, logs and API keys. With a configuration of routes, `gateway` stands
//! between `http` and `pipeline`: it resolves all names, and models of this process are some of its targets.

mod answer_source;
mod app;
mod blocking;
mod connections;
mod fields;
mod gateway;
mod header;
mod http;
mod http2;
mod inference;
mod linger;
mod memory_budget;
mod models;
mod observed;
mod ops;
mod pipeline;
mod server;
mod streams;
mod warnings;

pub use app::{App, Options};
pub use gateway::{Gateway, MakeModel, Reload, Routes, check};
pub use models::{BoxError, FreeMemory, MakeEngine, Memory, ModelCard, ModelSpec, OnDevice, Open};
pub use octet_parser::{ReasoningFormat, ToolSyntax};
pub use octet_upstream::ImageFetcher;
pub use ops::{Keys, experts_json, write_json as log_requests_as_fields};
pub use pipeline::{AnswerReader, ReaderEnd};
pub use server::{Reserved, Server, Stage};
