//! The neutral form that all dialects are parsed into and written from: a request to generate, and the events of its answer. The
//! server runs a [`GenerateRequest`] on its engine; the gateway sends it to a provider.

mod answer;
mod arguments;
mod embed;
mod event;
mod generic_tools;
mod image;
mod memory;
mod message;
mod model;
mod request;
mod sampling;
mod template;

pub use answer::{Answer, Block, Choice};
pub(crate) use arguments::RawObject;
pub use embed::{EmbedRequest, Embeddings, VectorEncoding};
pub use event::{Applied, Event, FinishReason, RoutedExperts, Timings, TokenLogprob, TopLogprob, Usage};
pub use generic_tools::WriteJson;
pub use image::{Frame, Image, ImageSource};
pub(crate) use image::{data_url, standard};
pub use memory::{MemoryHandle, RequestMemory};
pub use message::{CacheBreakpoint, Message, Part, ReasoningPart, Role, ToolCall};
pub use model::{Abilities, Loaded, ModelDefaults, ModelInfo};
pub use request::{
    CacheOptions, Chat, Completion, Effort, Family, GenerateRequest, Infill, Input, KeepAlive, LineLimits,
    Prompt, PromptPart, Reasoning, Reporting, ResponseFormat, Sampling, Tool, ToolChoice, ToolOrigin,
};
pub use sampling::MoreSampling;
pub use template::{Roles, SystemPlace, TemplateChat};
