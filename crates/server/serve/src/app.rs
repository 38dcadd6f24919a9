//! The state that all requests share: models, settings, metrics, stored responses. Created once, by `Server`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use octet_api::ApiError;
use octet_api::core::ModelInfo;
use octet_parser::ReasoningFormat;
use octet_upstream::ImageFetcher;

use crate::gateway::{Caller, Gateway, Routes};
use crate::http::ResponseStore;
use crate::inference::Inference;
use crate::memory_budget::MemoryBudget;
use crate::models::{BoxError, Memory, ModelSpec, Registry};
use crate::ops::history::{self, History};
use crate::ops::{Keys, Metrics};
use crate::pipeline::{BlockingPool, unknown, unnamed};
use crate::streams::Streams;
use crate::warnings::Warnings;

/// The server's settings.
#[derive(Clone)]
pub struct Options {
    /// The models, the default one first; at least one, unless there are routes.
    pub models: Vec<ModelSpec>,
    /// The memory that all models may use together.
    pub memory: Memory,
    /// Maximum number of requests that wait for a model to be loaded. (Each model's own options bound the queue of a loaded one.)
    pub load_queue: usize,
    /// The API keys.
    pub keys: Keys,
    /// Origins of web pages that may use the server from a browser; `*` allows all.
    pub cors_origins: Vec<String>,
    /// Origins of other servers that the page may call, for its user's tools.
    pub page_connect: Vec<String>,
    /// Further host names that mean this machine; `*` is any. A server on the loopback interface that needs no key refuses others.
    pub host_names: Vec<String>,
    /// Where the page's conversations are kept; `None`: in the browser alone.
    pub page_store: Option<Arc<octet_conversations::Store>>,
    /// Tools of the operator's MCP servers, for the page; `None`: there are none.
    pub mcp: Option<Arc<octet_mcp::Tools>>,
    /// The server listens on the loopback interface only. (Set by [`crate::Server::bind`].)
    pub local: bool,
    /// Maximum request body size. All requests together may use eight times as much until their prompts are tokenized.
    pub body_bytes_max: usize,
    /// Free memory when the server starts, in bytes: long requests get a tenth of it at most. `None` if unknown.
    pub free_at_start: Option<u64>,
    /// Download images that requests give by address, from public addresses; else they are refused.
    pub image_urls: Option<ImageFetcher>,
    /// Maximum time of a request, from its last byte to the last byte of its answer; `None` for no limit.
    pub timeout: Option<Duration>,
    /// Where reasoning is sent.
    pub reasoning: ReasoningFormat,
    /// Refuse fields that are otherwise accepted with a warning: unknown ones, and those that only tune.
    pub strict: bool,
    /// Maximum number of open connections. Further ones get an error.
    pub connections_max: usize,
    /// Maximum number of connections beyond those that are told so, and of those that are closed for others.
    pub spare_connections: usize,
    /// Maximum number of prompts that are rendered and tokenized at once; the other processors are left to the models.
    pub prompts_at_once: usize,
    /// The router; if there is one, it resolves all names.
    pub routes: Option<Routes>,
}

impl Options {
    /// These models with default settings.
    pub fn new(models: Vec<ModelSpec>) -> Self {
        Self {
            models,
            memory: Memory::default(),
            load_queue: 64,
            keys: Keys::default(),
            cors_origins: Vec::new(),
            page_connect: Vec::new(),
            host_names: Vec::new(),
            page_store: None,
            mcp: None,
            local: true,
            body_bytes_max: 32 << 20,
            free_at_start: None,
            image_urls: None,
            timeout: Some(Duration::from_secs(3600)),
            reasoning: ReasoningFormat::default(),
            strict: false,
            connections_max: 1024,
            spare_connections: 64,
            prompts_at_once: std::thread::available_parallelism().map_or(1, |n| n.get() / 2).max(1),
            routes: None,
        }
    }
}

/// The state that all requests share.
pub struct App {
    /// The settings. (Its `models` have moved to the registry.)
    pub options: Options,
    /// The models of this process, and what requests for them share.
    pub inference: Arc<Inference>,
    /// Metrics of the last hour.
    pub history: History,
    /// Responses that clients asked to store.
    pub kept: ResponseStore,
    /// Streams that survive their connection.
    pub streams: Streams,
    /// Limits the memory of all requests until their prompts are tokenized.
    pub memory_budget: MemoryBudget,
    gateway: Option<Arc<Gateway>>,
}

/// The names that huggingface_hub's client and Strands Agents send when their user names no model.
const UNNAMED: [&str; 2] = ["dummy", "default"];

impl App {
    /// Opens each model's file to read its metadata; loads none. With routes it must be called inside a tokio runtime.
    pub fn new(mut options: Options) -> Result<Arc<Self>, BoxError> {
        if options.models.is_empty() && options.routes.is_none() {
            return Err("there is no model to serve".into());
        }
        let specs = std::mem::take(&mut options.models);
        let routes = options.routes.take();
        let models = Registry::new(specs, options.memory.clone(), options.load_queue)?;
        let memory_budget = MemoryBudget::new(options.body_bytes_max, options.free_at_start);
        let longest = memory_budget.longest_body(options.body_bytes_max);
        if longest < options.body_bytes_max {
            tracing::warn!(
                "memory is short: requests may have at most {longest} bytes (--max-body is {})",
                options.body_bytes_max
            );
            options.body_bytes_max = longest;
        }
        let inference = Arc::new(Inference {
            models,
            metrics: Metrics::default(),
            requests: Arc::default(),
            blocking_pool: BlockingPool::new(options.prompts_at_once),
            warnings: Warnings::new(options.strict),
            image_urls: options.image_urls.clone(),
            timeout: options.timeout,
            reasoning: options.reasoning,
        });
        let gateway = match routes {
            Some(routes) => Some(Arc::new(Gateway::new(&inference, routes, options.keys.clone())?)),
            None => None,
        };
        let stored = gateway.as_ref().map_or(Ok(None), |gateway| gateway.stored_responses())?;
        Ok(Arc::new(Self {
            options,
            inference,
            history: History::default(),
            kept: ResponseStore::new(stored),
            streams: Streams::default(),
            memory_budget,
            gateway,
        }))
    }

    /// The models of this process.
    pub fn models(&self) -> &Arc<Registry> {
        &self.inference.models
    }

    /// Records a sample of each model's metrics every ten seconds, until cancelled. A sample takes a tenth of a millisecond.
    pub async fn keep_history(self: Arc<Self>) {
        loop {
            for index in 0..self.models().count() {
                self.history.push(index, Instant::now(), self.inference.metrics.sample(self.models(), index));
            }
            tokio::time::sleep(history::INTERVAL).await;
        }
    }

    /// The router, if there is one.
    pub fn gateway(&self) -> Option<&Arc<Gateway>> {
        self.gateway.as_ref()
    }

    /// The registry index of the model that a client names, for operations that need a model in this process.
    pub fn find(&self, name: &str) -> Result<usize, ApiError> {
        match self.gateway() {
            Some(gateway) => gateway.local(name),
            None if name.is_empty() => self.models().sole().ok_or_else(|| unnamed(&self.models().known())),
            None => {
                let found = self.models().find(name);
                let found = found.or_else(|| self.models().sole().filter(|_| UNNAMED.contains(&name)));
                found.ok_or_else(|| unknown(name, &self.models().known()))
            }
        }
    }

    /// The only name that `caller` may use, for requests that give none.
    pub fn sole_name(&self, caller: &Caller) -> Result<String, ApiError> {
        let names: Vec<String> = self.list(caller).into_iter().map(|m| m.id).collect();
        match names.as_slice() {
            [one] => Ok(one.clone()),
            many => Err(unnamed(&many.join(", "))),
        }
    }

    /// The model for requests that name none; empty if there is no default.
    pub fn default_name(&self, caller: &Caller) -> String {
        let first = |all: Vec<ModelInfo>| all.into_iter().next().map(|m| m.id).unwrap_or_default();
        match self.gateway() {
            Some(gateway) => {
                let all = gateway.list(caller);
                let here = all.iter().position(|m| gateway.local(&m.id).is_ok()).unwrap_or(0);
                first(all.into_iter().skip(here).collect())
            }
            None => first(self.models().list()),
        }
    }

    /// All models that `caller` may use, for lists.
    pub fn list(&self, caller: &Caller) -> Vec<ModelInfo> {
        self.gateway().map_or_else(|| self.models().list(), |gateway| gateway.list(caller))
    }

    /// One model, as lists show it.
    pub fn info(&self, name: &str, caller: &Caller) -> Result<ModelInfo, ApiError> {
        match self.gateway() {
            Some(gateway) => gateway.info(name, caller),
            None => Ok(self.models().info(self.find(name)?)),
        }
    }

    /// Metadata of all models that `caller` may use, in the format of LiteLLM's proxy.
    pub fn model_info(&self, caller: &Caller) -> serde_json::Value {
        if let Some(gateway) = self.gateway() {
            return gateway.model_info(caller);
        }
        let all = self.models().list().into_iter().map(|m| {
            serde_json::json!({
                "model_name": m.id, "litellm_params": {"model": m.id},
                "model_info": {
                    "id": m.id, "mode": "chat", "max_input_tokens": m.context_length,
                    "supports_function_calling": m.abilities.tools, "supports_reasoning": m.abilities.thinking,
                    "supports_vision": m.abilities.vision,
                },
            })
        });
        serde_json::json!({"data": all.collect::<Vec<_>>()})
    }

    /// Number of running requests.
    pub fn busy(&self) -> usize {
        self.models().busy() + self.gateway().map_or(0, |g| g.busy())
    }
}
