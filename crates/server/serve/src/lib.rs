//! The server: OpenAI's, Anthropic's and Ollama's APIs over the engine. Started by `octet serve`.
//!
//! A request goes down like this: `http` reads it in its dialect into a `core::GenerateRequest`; `pipeline` waits for its model
//! (`models`), renders and tokenises its prompt, compiles its grammar, queues it, and turns the engine's events into
//! `core::Event`s; `http` writes those in the dialect again. `ops` counts, logs and keeps the door. Where a configuration of routes is
//! given, `gateway` stands between `http` and the rest: it has all names, and the models of this process are some of those who answer.

mod answer_source;
mod app;
mod connections;
mod gateway;
mod header;
mod http;
mod http2;
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
pub use ops::{Keys, experts_json};
pub use server::{Reserved, Server, Stage};
