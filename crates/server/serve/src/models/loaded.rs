//! A loaded model: its engine, template, tokenizer and answer format. Created by the registry.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use octet_api::core::{ModelDefaults, Roles};
use octet_engine::scheduler::Handle;
use octet_engine::template::{ChatTemplate, ProbeBudget};
use octet_engine::tokenizer::{Special, TokenKind, Tokenizer};
use octet_grammar::{Constraint, Grammar, Matcher, Token, Vocabulary};
use octet_parser::{Format, ToolSyntax};
use octet_weights::Metadata;
use serde_json::{Map, Value};

use super::roles::{roles, shows_video};
use super::spec::{BoxError, ModelSpec};
use super::tool_prefixes::ToolPrefixes;
use super::tools::Tools;

/// The progress of loading a model.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    all: AtomicU64,
}

impl Progress {
    fn set(&self, done: u64, all: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
    }

    /// From 0 to 1.
    pub fn share(&self) -> f64 {
        let all = self.all.load(Ordering::Relaxed);
        if all == 0 { 0.0 } else { self.done.load(Ordering::Relaxed) as f64 / all as f64 }
    }
}

/// A loaded model.
pub struct Loaded {
    /// Its engine.
    pub handle: Handle,
    /// Its chat template, or why it has none.
    pub template: Result<ChatTemplate, String>,
    /// How its answers are parsed.
    pub format: Format,
    /// How tools are presented to it.
    pub tools: Tools,
    /// The roles that its template accepts.
    pub roles: Roles,
    /// Default variables of the template.
    pub template_kwargs: Map<String, Value>,
    /// The prompt for reranking, with `{query}` and `{document}` in it, if the model's file has one.
    pub rerank_template: Option<String>,
    /// Default maximum length of an answer.
    pub predict: Option<u32>,
    /// Default maximum number of reasoning tokens.
    pub reasoning_budget: Option<u32>,
    /// What its maker set for requests that do not say otherwise.
    pub defaults: ModelDefaults,
    /// Texts and tokens that end an answer, for requests that name none.
    pub stops: (Vec<String>, Vec<u32>),
    /// The token that ends reasoning.
    pub think_end: Option<u32>,
    /// The token that begins a call.
    pub call_begin: Option<u32>,
    /// How long loading took.
    pub load_time: Duration,
    vocabulary: OnceLock<Result<Arc<Vocabulary>, String>>,
    grammars: Mutex<Vec<(Constraint, Grammar)>>,
    /// Prompt beginnings with tools, for reuse.
    pub tool_prefixes: ToolPrefixes,
}

/// Number of compiled constraints that are kept for reuse.
const GRAMMARS_MAX: usize = 16;

impl Loaded {
    /// Loads a model. Blocking; runs on its own thread.
    pub(crate) fn open(spec: &ModelSpec, progress: &Arc<Progress>) -> Result<Self, BoxError> {
        let began = Instant::now();
        let file = (spec.open)()?;
        let metadata = template_metadata(&file.metadata);
        let rerank_template = file.metadata.opt_str("tokenizer.chat_template.rerank")?.map(str::to_string);
        let handle = match spec.engine.clone() {
            Some(make) => {
                let options = spec.options.engine.clone();
                Handle::start(spec.options.queue, move || make(&file, &options))?
            }
            None => {
                let told = Arc::clone(progress);
                Handle::open(file, &spec.options, move |done, all| told.set(done, all))?
            }
        };
        let tokenizer = &handle.rules().tokenizer;
        let template = match &spec.chat_template {
            Some(source) => ChatTemplate::new(source, &metadata, tokenizer),
            None => ChatTemplate::from_metadata(&metadata, tokenizer),
        };
        let template = template.map_err(|e| e.to_string());
        for name in spec.template_kwargs.keys() {
            if let Some(why) = template.as_ref().ok().and_then(|t| t.check_variable(name).err()) {
                tracing::warn!("{}: --chat-template-kwargs: '{name}' {why}", spec.name);
            }
        }
        let asked = spec.tool_syntax.as_ref();
        let budget = ProbeBudget::default();
        let (tools, format) = match &template {
            Ok(template) => Tools::of(template, tokenizer, &spec.template_kwargs, asked, &budget),
            Err(_) => {
                (Tools::default(), Format { tools: asked.cloned().unwrap_or_default(), ..Format::default() })
            }
        };
        let mut roles =
            template.as_ref().map_or_else(|_| Roles::default(), |t| roles(t, &spec.template_kwargs, &budget));
        let reader = handle.rules().images.as_ref();
        roles.images = reader.is_some();
        let video = reader.filter(|reader| reader.video.is_some()).and_then(|reader| reader.tower.video);
        roles.videos = video.zip(template.as_ref().ok()).is_some_and(|(video, template)| {
            shows_video(template, &spec.template_kwargs, &budget, video.mark)
        });
        warn_of_missed(&spec.name, &budget);
        let reasoning = format.reasoning.clone().unwrap_or_default();
        Ok(Self {
            rerank_template,
            predict: spec.predict,
            reasoning_budget: spec.reasoning_budget,
            stops: tokenizer.part_stops(&spec.defaults.stop),
            defaults: spec.defaults.clone(),
            tools,
            roles,
            think_end: tokenizer.special_id(&reasoning.close),
            call_begin: tokenizer.special_id(format.tools.trigger()),
            format,
            template,
            template_kwargs: spec.template_kwargs.clone(),
            load_time: began.elapsed(),
            vocabulary: OnceLock::new(),
            grammars: Mutex::new(Vec::new()),
            tool_prefixes: ToolPrefixes::default(),
            handle,
        })
    }

    /// Whether a token distinguishes the beginning of a tool call from text.
    pub fn tells_calls(&self) -> bool {
        let by_place = match &self.format.tools {
            ToolSyntax::Native(syntax) => syntax.at_start() || self.format.text.is_some(),
            ToolSyntax::Harmony => true,
            ToolSyntax::None | ToolSyntax::Qwen3Coder | ToolSyntax::Hermes => false,
        };
        by_place || self.call_begin.is_some()
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.handle.rules().tokenizer
    }

    /// Its vocabulary for constraints; built at the first call, which takes a second or two.
    fn vocabulary(&self) -> Result<&Arc<Vocabulary>, octet_grammar::Error> {
        let built = self.vocabulary.get_or_init(|| {
            vocabulary(self.tokenizer(), self.handle.rules().vocab).map_err(|e| e.to_string())
        });
        built.as_ref().map_err(|e| octet_grammar::Error::Vocabulary(e.clone()))
    }

    /// A matcher for a constraint. Compiles it unless cached: milliseconds, at worst seconds. Also returns the parts of the constraint
    /// that are not enforced.
    pub fn matcher(&self, constraint: &Constraint) -> Result<(Matcher, Vec<String>), octet_grammar::Error> {
        let lock = || self.grammars.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = lock();
        if let Some(at) = kept.iter().position(|(c, _)| c == constraint) {
            let found = kept.remove(at);
            let matcher = (found.1.matcher(), found.1.warnings().to_vec());
            kept.push(found);
            return Ok(matcher);
        }
        drop(kept);
        let grammar = Grammar::compile(self.vocabulary()?, constraint)?;
        let matcher = (grammar.matcher(), grammar.warnings().to_vec());
        let mut kept = lock();
        if kept.len() >= GRAMMARS_MAX {
            kept.remove(0);
        }
        kept.push((constraint.clone(), grammar));
        Ok(matcher)
    }
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// Warns of a template that is too slow to be probed: what was not probed counts as not supported.
fn warn_of_missed(model: &str, budget: &ProbeBudget) {
    let missed = budget.missed();
    if !missed.is_empty() {
        tracing::warn!(
            "{model}: the chat template takes too long; not all of this could be found out: {}. What was not found counts as not supported. \
             Give a simpler template with --chat-template, or the syntax of calls with --tool-call-parser",
            missed.join(", ")
        );
    }
}

/// The metadata keys that a chat template needs: the file itself moves to the engine.
fn template_metadata(metadata: &Metadata) -> Metadata {
    let mut out = Metadata::new(metadata.file());
    let ids = ["bos", "eos", "padding", "unknown"].map(|n| format!("tokenizer.ggml.{n}_token_id"));
    let keys = ["tokenizer.chat_template", "tokenizer.chat_template.tool_use"];
    for key in keys.into_iter().chain(ids.iter().map(String::as_str)) {
        if let Some(value) = metadata.get(key) {
            out.insert(key, value.clone());
        }
    }
    out
}

fn vocabulary(tokenizer: &Arc<Tokenizer>, rows: usize) -> Result<Arc<Vocabulary>, octet_grammar::Error> {
    let tags: std::collections::HashSet<&str> =
        tokenizer.guarded().iter().map(|(name, _)| name.as_str()).collect();
    let token = |id: u32| {
        let name = tokenizer.token_text(id).unwrap_or_default();
        match tokenizer.kind(id) {
            TokenKind::Unused | TokenKind::Unknown => Token::Unused,
            TokenKind::Control => Token::Special(name.into()),
            TokenKind::UserDefined if tags.contains(name) => Token::Special(name.into()),
            TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte => {
                Token::Text(tokenizer.token_bytes(id).to_vec())
            }
        }
    };
    let encoder = Arc::clone(tokenizer);
    let encode = move |text: &str| encoder.encode(text, Special::Text).ok();
    let rows = u32::try_from(rows.min(tokenizer.vocab_len())).unwrap_or(u32::MAX);
    Vocabulary::new((0..rows).map(token), tokenizer.eos_ids(), encode)
}
