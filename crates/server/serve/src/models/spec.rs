//! A model to be served, as the caller describes it, and the metadata known without loading it. Created by the command and by tests;
//! read by the registry.

use std::sync::Arc;
use std::time::Duration;

use octet_api::core::{Abilities, ModelDefaults, ModelInfo};
use octet_engine::engine::{self, Engine, Pooling};
use octet_engine::report::Report;
use octet_engine::scheduler;
use octet_parser::{Format, ToolSyntax};
use serde_json::{Map, Value};

use super::memory::OnDevice;

/// Any error of the caller's.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Opens a model's file; called each time the model is loaded.
pub type Open = Arc<dyn Fn() -> Result<octet_weights::Model, BoxError> + Send + Sync>;

/// Creates an engine from a model's file.
pub type MakeEngine =
    Arc<dyn Fn(&octet_weights::Model, &engine::Options) -> Result<Engine, octet_engine::Error> + Send + Sync>;

/// A model to serve.
#[derive(Clone)]
pub struct ModelSpec {
    /// Its listed name.
    pub name: String,
    /// Further names that clients may use.
    pub aliases: Vec<String>,
    /// Opens its file.
    pub open: Open,
    /// Modification time of its file, in seconds since 1970 UTC.
    pub created_s: u64,
    /// Engine and scheduler options.
    pub options: scheduler::Options,
    /// What it takes where it runs on a graphics device. `None`: all is the machine's memory.
    pub on_device: Option<OnDevice>,
    /// What runs it. Default: the CPU.
    pub engine: Option<MakeEngine>,
    /// A chat template that replaces its own.
    pub chat_template: Option<String>,
    /// Default variables of the template.
    pub template_kwargs: Map<String, Value>,
    /// Syntax of its tool calls; `None` derives it from the template.
    pub tool_syntax: Option<ToolSyntax>,
    /// How token states become a vector; `None` uses the file's setting, else the mean.
    pub pooling: Option<Pooling>,
    /// Default maximum length of an answer.
    pub predict: Option<u32>,
    /// Default maximum number of reasoning tokens, if the model reasons.
    pub reasoning_budget: Option<u32>,
    /// How long it stays loaded after its last request; `None` means forever.
    pub keep_alive: Option<Duration>,
    /// What its maker set for requests that do not say otherwise.
    pub defaults: ModelDefaults,
}

impl std::fmt::Debug for ModelSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelSpec").field("name", &self.name).field("aliases", &self.aliases).finish()
    }
}

impl ModelSpec {
    /// A model with default settings.
    pub fn new(name: impl Into<String>, open: Open) -> Self {
        Self {
            name: name.into(),
            aliases: Vec::new(),
            open,
            created_s: 0,
            options: scheduler::Options::default(),
            on_device: None,
            engine: None,
            chat_template: None,
            template_kwargs: Map::new(),
            tool_syntax: None,
            pooling: None,
            predict: None,
            reasoning_budget: None,
            keep_alive: None,
            defaults: ModelDefaults::default(),
        }
    }
}

/// Metadata of a model that is known without loading it.
#[derive(Debug, Clone)]
pub struct ModelCard {
    /// Its entry in lists; `loaded` is `None`.
    pub info: ModelInfo,
    /// What it takes of the machine's memory when it is loaded, caches included.
    pub memory_bytes: u64,
    /// What it takes of a graphics device's, if it runs on one.
    pub on_device: Option<OnDevice>,
    /// How states of tokens become a vector.
    pub pooling: Pooling,
}

impl ModelCard {
    /// Bytes that it takes of a device's memory; of the machine's, where none is named.
    pub(crate) fn bytes_of(&self, device: Option<&str>) -> u64 {
        match device {
            None => self.memory_bytes,
            Some(name) => self.on_device.as_ref().filter(|on| on.name == name).map_or(0, |on| on.bytes),
        }
    }

    /// Bytes that it takes of a graphics device's memory.
    pub fn accelerator_bytes(&self) -> u64 {
        self.on_device.as_ref().map_or(0, |on| on.bytes)
    }

    /// Opens the model's file, and reads what it says about itself.
    pub(crate) fn read(spec: &ModelSpec) -> Result<Self, BoxError> {
        let file = (spec.open)()?;
        let report = Report::new(&file)?;
        let config = &report.config;
        let engine = &spec.options.engine.for_config(config);
        let limits = engine.limits(config.context_length, report.snapshot_bytes(engine.kv))?;
        let text = |key: &str| file.metadata.opt_str(key).map(|s| s.map(str::to_string));
        let template =
            spec.chat_template.clone().map_or_else(|| text("tokenizer.chat_template"), |t| Ok(Some(t)))?;
        let reasons = template.as_deref().is_some_and(|t| Format::detect(t).reasoning.is_some());
        // Templates without tools get the generic form.
        let calls = template.is_some() || spec.tool_syntax.is_some();
        let pooling = file.metadata.opt_u32(&format!("{}.pooling_type", config.architecture.name))?;
        let kept = ["tokenizer.huggingface.json", "tokenizer.tekken.json", "tokenizer.tiktoken.model"];
        let is_gguf = kept.iter().all(|key| file.metadata.get(key).is_none());
        Ok(Self {
            memory_bytes: match &spec.on_device {
                Some(on) => on.machine_bytes,
                None => report
                    .with_slots(report.memory(&limits, engine.cpu.exact), engine.cpu.expert_slots)
                    .with_draft(engine.draft_memory(config.context_length)?)
                    .total(),
            },
            on_device: spec.on_device.clone(),
            pooling: spec.pooling.unwrap_or(match pooling {
                _ if config.encoder().is_some() => config.encoder().map_or(Pooling::Mean, |e| e.pooling),
                Some(POOLING_LAST) => Pooling::Last,
                Some(POOLING_CLS) => Pooling::Cls,
                _ => Pooling::Mean,
            }),
            info: ModelInfo {
                id: spec.name.clone(),
                // A pattern is no name.
                aliases: spec.aliases.iter().filter(|name| !name.contains('*')).cloned().collect(),
                created_s: spec.created_s,
                digest: None,
                size_bytes: report.bytes,
                format: if is_gguf { "gguf" } else { "safetensors" }.into(),
                family: config.architecture.name.into(),
                parameters: report.parameters,
                quantization: report.types.first().map(|t| t.ty.to_string()).unwrap_or_default(),
                context_length: u32::try_from(engine.context_for(config.context_length)).unwrap_or(u32::MAX),
                trained_context_length: u32::try_from(config.context_length).unwrap_or(u32::MAX),
                embedding_length: u32::try_from(config.embedding_length()).unwrap_or(u32::MAX),
                abilities: Abilities {
                    completion: config.encoder().is_none(),
                    tools: config.encoder().is_none() && calls && spec.tool_syntax != Some(ToolSyntax::None),
                    thinking: reasons,
                    embedding: config.encoder().is_none_or(|e| !e.ranks),
                    vision: engine.vision.is_some(),
                },
                template,
                license: text("general.license")?,
                defaults: spec.defaults.clone(),
                loaded: None,
                unhealthy: None,
            },
        })
    }
}

/// `pooling_type` of GGUF files: the first token's state.
const POOLING_CLS: u32 = 2;
/// The last token's state.
const POOLING_LAST: u32 = 3;
