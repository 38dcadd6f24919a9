//! What all requests share: the models, the settings, the metrics, kept responses. Made once, by `Server`.

use std::sync::Arc;
use std::time::Duration;

use octet_parser::ReasoningFormat;

use crate::http::Kept;
use crate::models::{BoxError, Memory, ModelSpec, Registry};
use crate::ops::{Keys, Metrics};
use crate::pipeline::Apart;
use crate::room::Room;

/// How to serve.
#[derive(Clone)]
pub struct Options {
    /// What to serve, the default model first; at least one.
    pub models: Vec<ModelSpec>,
    /// What models may take together.
    pub memory: Memory,
    /// Requests that may wait for a model to be loaded. (How many may wait for one that is, its own options say.)
    pub load_queue: usize,
    /// Who may come in.
    pub keys: Keys,
    /// Web pages that may use the server from a browser, by origin; `*` is all.
    pub cors_origins: Vec<String>,
    /// It listens to its own machine only. ([`crate::Server::bind`] knows.)
    pub local: bool,
    /// Longest body of a request; all requests may take eight times as much together until their prompts are tokens.
    pub body_bytes_max: usize,
    /// Longest time of a request, from its last byte to the last of its answer; `None` is any.
    pub timeout: Option<Duration>,
    /// Where reasoning goes.
    pub reasoning: ReasoningFormat,
    /// Connections at once. Further ones are told so.
    pub connections_max: usize,
    /// Prompts that are rendered and tokenized at once, of all requests; the rest of the processors is the models'.
    pub prompts_at_once: usize,
}

impl Options {
    /// Serves these models, with nothing special about it.
    pub fn new(models: Vec<ModelSpec>) -> Self {
        Self {
            models,
            memory: Memory::default(),
            load_queue: 64,
            keys: Keys::default(),
            cors_origins: Vec::new(),
            local: true,
            body_bytes_max: 32 << 20,
            timeout: Some(Duration::from_secs(3600)),
            reasoning: ReasoningFormat::default(),
            connections_max: 1024,
            prompts_at_once: std::thread::available_parallelism().map_or(1, |n| n.get() / 2).max(1),
        }
    }
}

/// What all requests share.
pub struct App {
    /// The settings. (Their models have moved to the registry.)
    pub options: Options,
    /// The models.
    pub models: Arc<Registry>,
    /// What is measured.
    pub metrics: Metrics,
    /// Responses that clients asked to keep.
    pub kept: Kept,
    /// What requests may take together until their prompts are tokens.
    pub room: Room,
    /// Does what takes a processor for a while.
    pub apart: Apart,
}

impl App {
    /// Opens each model's file to see what it is; loads none.
    pub fn new(mut options: Options) -> Result<Arc<Self>, BoxError> {
        if options.models.is_empty() {
            return Err("there is no model to serve".into());
        }
        let specs = std::mem::take(&mut options.models);
        let models = Registry::new(specs, options.memory.clone(), options.load_queue)?;
        let room = Room::new(options.body_bytes_max);
        let apart = Apart::new(options.prompts_at_once);
        Ok(Arc::new(Self {
            options,
            models,
            metrics: Metrics::default(),
            kept: Kept::default(),
            room,
            apart,
        }))
    }
}
