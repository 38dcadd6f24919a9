//! What all requests share: the models, the settings, the metrics, kept responses. Made once, by `Server`.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use octet_api::ApiError;
use octet_api::core::ModelInfo;
use octet_parser::ReasoningFormat;

use crate::gateway::{Caller, Gateway, Routes};
use crate::http::ResponseStore;
use crate::memory_budget::MemoryBudget;
use crate::models::{BoxError, Memory, ModelSpec, Registry};
use crate::ops::history::{self, History};
use crate::ops::{Keys, Metrics};
use crate::pipeline::{BlockingPool, unknown, unnamed};
use crate::streams::Streams;
use crate::warnings::Warnings;

/// How to serve.
#[derive(Clone)]
pub struct Options {
    /// What to serve, the default model first; at least one, unless there are routes.
    pub models: Vec<ModelSpec>,
    /// What models may take together.
    pub memory: Memory,
    /// Requests that may wait for a model to be loaded. (How many may wait for one that is, its own options say.)
    pub load_queue: usize,
    /// Who may come in.
    pub keys: Keys,
    /// Web pages that may use the server from a browser, by origin; `*` is all.
    pub cors_origins: Vec<String>,
    /// Other servers that the page may call, by origin: where its user's tools are.
    pub page_connect: Vec<String>,
    /// It listens to its own machine only. ([`crate::Server::bind`] knows.)
    pub local: bool,
    /// Longest body of a request; all requests may take eight times as much together until their prompts are tokens.
    pub body_bytes_max: usize,
    /// Longest time of a request, from its last byte to the last of its answer; `None` is any.
    pub timeout: Option<Duration>,
    /// Where reasoning goes.
    pub reasoning: ReasoningFormat,
    /// Refuse what otherwise is accepted with a warning: fields that are unknown, or only tune.
    pub strict: bool,
    /// Maximum number of open connections. Further ones get an error.
    pub connections_max: usize,
    /// Prompts that are rendered and tokenized at once, of all requests; the rest of the processors is the models'.
    pub prompts_at_once: usize,
    /// The router in front, which has all names then.
    pub routes: Option<Routes>,
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
            page_connect: Vec::new(),
            local: true,
            body_bytes_max: 32 << 20,
            timeout: Some(Duration::from_secs(3600)),
            reasoning: ReasoningFormat::default(),
            strict: false,
            connections_max: 1024,
            prompts_at_once: std::thread::available_parallelism().map_or(1, |n| n.get() / 2).max(1),
            routes: None,
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
    /// What was measured in the last hour.
    pub history: History,
    /// Responses that clients asked to keep.
    pub kept: ResponseStore,
    /// Streams that outlive their connection.
    pub streams: Streams,
    /// What requests may take together until their prompts are tokens.
    pub memory_budget: MemoryBudget,
    /// Does what takes a processor for a while.
    pub blocking_pool: BlockingPool,
    /// What becomes of warnings.
    pub warnings: Warnings,
    gateway: OnceLock<Arc<Gateway>>,
}

impl App {
    /// Opens each model's file to see what it is; loads none. With routes it belongs into a runtime of tokio's.
    pub fn new(mut options: Options) -> Result<Arc<Self>, BoxError> {
        if options.models.is_empty() && options.routes.is_none() {
            return Err("there is no model to serve".into());
        }
        let specs = std::mem::take(&mut options.models);
        let routes = options.routes.take();
        let models = Registry::new(specs, options.memory.clone(), options.load_queue)?;
        let memory_budget = MemoryBudget::new(options.body_bytes_max);
        let blocking_pool = BlockingPool::new(options.prompts_at_once);
        let keys = options.keys.clone();
        let warnings = Warnings::new(options.strict);
        let app = Arc::new(Self {
            options,
            models,
            metrics: Metrics::default(),
            history: History::default(),
            kept: ResponseStore::default(),
            streams: Streams::default(),
            memory_budget,
            blocking_pool,
            warnings,
            gateway: OnceLock::new(),
        });
        if let Some(routes) = routes {
            let gateway = Gateway::new(&Arc::downgrade(&app), &app.models, routes, keys)?;
            app.gateway.get_or_init(|| Arc::new(gateway));
        }
        Ok(app)
    }

    /// Keeps a sample of each model's metrics now and again, as long as it runs. It costs a tenth of a millisecond every ten seconds, and
    /// nothing where tokens are made.
    pub async fn keep_history(self: Arc<Self>) {
        loop {
            for index in 0..self.models.count() {
                self.history.push(index, Instant::now(), self.metrics.sample(&self.models, index));
            }
            tokio::time::sleep(history::INTERVAL).await;
        }
    }

    /// The router in front, if there is one.
    pub fn gateway(&self) -> Option<&Arc<Gateway>> {
        self.gateway.get()
    }

    /// Which model of the registry a client means, for what only a model in this process can do.
    pub fn find(&self, name: &str) -> Result<usize, ApiError> {
        match self.gateway() {
            Some(gateway) => gateway.local(name),
            None if name.is_empty() => self.models.sole().ok_or_else(|| unnamed(&self.models.known())),
            None => self.models.find(name).ok_or_else(|| unknown(name, &self.models.known())),
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

    /// What is meant where no model is named; empty where there is none.
    pub fn default_name(&self, caller: &Caller) -> String {
        let first = |all: Vec<ModelInfo>| all.into_iter().next().map(|m| m.id).unwrap_or_default();
        match self.gateway() {
            Some(gateway) => {
                let all = gateway.list(caller);
                let here = all.iter().position(|m| gateway.local(&m.id).is_ok()).unwrap_or(0);
                first(all.into_iter().skip(here).collect())
            }
            None => first(self.models.list()),
        }
    }

    /// All names, for lists: those that `caller` may use.
    pub fn list(&self, caller: &Caller) -> Vec<ModelInfo> {
        self.gateway().map_or_else(|| self.models.list(), |gateway| gateway.list(caller))
    }

    /// One name, as lists show it.
    pub fn info(&self, name: &str, caller: &Caller) -> Result<ModelInfo, ApiError> {
        match self.gateway() {
            Some(gateway) => gateway.info(name, caller),
            None => Ok(self.models.info(self.find(name)?)),
        }
    }

    /// What is known of all models that `caller` may use, as LiteLLM's proxy tells it.
    pub fn model_info(&self, caller: &Caller) -> serde_json::Value {
        if let Some(gateway) = self.gateway() {
            return gateway.model_info(caller);
        }
        let all = self.models.list().into_iter().map(|m| {
            serde_json::json!({
                "model_name": m.id, "litellm_params": {"model": m.id},
                "model_info": {
                    "id": m.id, "mode": "chat", "max_input_tokens": m.context_length,
                    "supports_function_calling": m.abilities.tools, "supports_reasoning": m.abilities.thinking,
                },
            })
        });
        serde_json::json!({"data": all.collect::<Vec<_>>()})
    }

    /// Requests at work.
    pub fn busy(&self) -> usize {
        self.models.busy() + self.gateway().map_or(0, |g| g.busy())
    }
}
