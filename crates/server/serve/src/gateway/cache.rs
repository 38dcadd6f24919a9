//! The response cache: which requests use it, their keys, and how long answers are stored. Used by `http` and `routed_request`;
//! `octet_cache` stores the answers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use octet_api::ApiError;
use octet_api::core::GenerateRequest;
use octet_cache::{Cache, ENTRY_BYTES_MAX, Key, KeyMaker};
use octet_config::{CachedCalls, Condition, Config, ResponseCache};
use octet_router::{Dialect, Resolved};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Gateway;
use super::caller::Caller;
use super::request_context::RequestContext;
use crate::blocking::run_sized;
use crate::memory_budget::{MemoryBudget, MemoryPermit};

/// Maximum length of a request's namespace.
const NAMESPACE_BYTES_MAX: usize = 256;

/// The cache and its settings.
#[derive(Debug)]
pub struct Responses {
    settings: ResponseCache,
    cache: Cache,
    /// Headers that rules of cascades test, in lower case.
    headers: Vec<String>,
}

impl Responses {
    /// The configuration's cache; `old` if its settings are the same.
    pub fn new(config: &Config, old: Option<&Arc<Self>>) -> Result<Option<Arc<Self>>, String> {
        let Some(settings) = &config.cache else { return Ok(None) };
        let conditions = config.cascades.iter().flat_map(|c| &c.rules).flat_map(|r| &r.when);
        let headers = conditions.filter_map(|c| match c {
            Condition::Header(header) => Some(header.name.clone()),
            _ => None,
        });
        let headers: Vec<String> = headers.collect();
        if let Some(old) = old.filter(|old| old.settings == *settings && old.headers == headers) {
            return Ok(Some(Arc::clone(old)));
        }
        Ok(Some(Arc::new(Self { settings: settings.clone(), cache: Cache::new(settings)?, headers })))
    }

    /// Number of failed Redis requests.
    pub fn errors(&self) -> u64 {
        self.cache.errors()
    }

    /// The answers.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Its type, by the configuration's name.
    pub fn kind(&self) -> &'static str {
        if self.cache.is_local() { "local" } else { "redis" }
    }

    /// Its settings without addresses and passwords.
    pub fn settings(&self) -> Value {
        let s = &self.settings;
        json!({
            "type": self.kind(), "namespace": s.namespace, "ttl": s.ttl.map(|t| t.as_secs_f64()),
            "mode": if s.opt_in { "default_off" } else { "default_on" }, "shared_between_keys": s.shared,
        })
    }
}

/// A request that may be answered from the cache, or whose answer may be stored.
#[derive(Debug)]
pub struct Lookup {
    responses: Arc<Responses>,
    key: Key,
    may_get: bool,
    may_put: bool,
    age_max: Option<Duration>,
    ttl: Option<Duration>,
}

/// The fields of a body that decide whether the cache is used.
#[derive(Deserialize)]
struct CacheFields<'a> {
    #[serde(default)]
    messages: Option<Vec<IgnoredAny>>,
    /// Gemini's messages.
    #[serde(default)]
    contents: Option<Vec<IgnoredAny>>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    #[serde(default)]
    store: Option<bool>,
}

impl CacheFields<'_> {
    /// Number of messages of the conversation; input items of the Responses API count as messages.
    fn messages(&self, dialect: Dialect) -> usize {
        let items = || {
            let input = self.input.filter(|_| dialect == Dialect::OpenAiResponses)?;
            serde_json::from_str::<Vec<IgnoredAny>>(input.get()).ok().map(|items| items.len())
        };
        let messages = self.messages.as_ref().or(self.contents.as_ref());
        messages.map(Vec::len).or_else(items).unwrap_or(0)
    }
}

/// Whether the fields of a body allow that its answer is cached.
fn uses_cache(body: &[u8], dialect: Dialect, messages_max: Option<usize>) -> bool {
    let Ok(fields) = serde_json::from_slice::<CacheFields<'_>>(body) else { return false };
    // A stored response has its own id, by which the client continues it.
    let is_stored = dialect == Dialect::OpenAiResponses && fields.store != Some(false);
    !is_stored && messages_max.is_none_or(|most| fields.messages(dialect) <= most)
}

fn seconds(s: Option<f64>) -> Option<Duration> {
    s.and_then(|s| Duration::try_from_secs_f64(s.max(0.0)).ok())
}

/// Whether the configuration caches answers of this dialect.
fn is_cached(calls: CachedCalls, dialect: Dialect) -> bool {
    match dialect {
        Dialect::OpenAiChat | Dialect::OllamaChat | Dialect::Gemini => calls.chat,
        Dialect::OpenAiCompletions | Dialect::OllamaGenerate => calls.text,
        Dialect::OpenAiEmbeddings | Dialect::OllamaEmbed => calls.embeddings,
        Dialect::GeminiEmbed | Dialect::GeminiBatchEmbed => calls.embeddings,
        Dialect::OpenAiResponses => calls.responses,
        Dialect::AnthropicMessages => calls.messages,
        _ => false,
    }
}

impl Gateway {
    /// The cache entry of a request; `None` if the request does not use the cache, or there is none.
    ///
    /// An answer depends on the dialect, the body, the deployments that may answer, the headers that are forwarded or that routing uses, and
    /// the caller: each virtual key has its own entries unless the configuration shares them. `stream_type` is the content type of a
    /// streamed answer.
    pub async fn lookup(
        &self,
        memory_budget: &MemoryBudget,
        context: &RequestContext,
        request: &GenerateRequest,
        (dialect, body): (Dialect, &Bytes),
        stream_type: &str,
    ) -> Result<Option<Lookup>, ApiError> {
        let Some(responses) = self.responses() else { return Ok(None) };
        let (caller, headers, own) = (&context.sender.caller, &context.sender.headers, &context.own);
        let settings = &responses.settings;
        let control = &own.cache;
        let (may_get, may_put) = (control.no_cache != Some(true), control.no_store != Some(true));
        let is_wanted = !settings.opt_in || control.use_cache == Some(true);
        let namespace = control.namespace.as_deref().or(settings.namespace.as_deref());
        let namespace = namespace.filter(|n| !n.is_empty());
        let is_namespace = |n: &str| n.len() <= NAMESPACE_BYTES_MAX && !n.contains(char::is_control);
        if !is_cached(settings.calls, dialect)
            || !is_wanted
            || !(may_get || may_put)
            || !namespace.is_none_or(is_namespace)
        {
            return Ok(None);
        }
        let mut maker = KeyMaker::new();
        maker.text(match caller {
            Caller::Key(key) if !settings.shared => &key.id,
            _ => "",
        });
        maker.text(&format!("{dialect:?} {}", request.stream));
        // Gemini's streams have two forms.
        if request.stream && dialect == Dialect::Gemini {
            maker.text(stream_type);
        }
        self.answering(&request.model, &mut maker);
        if self.router().table().policy.tags.is_some() {
            own.tags.iter().for_each(|tag| maker.text(tag));
            maker.text("");
        }
        let names = PASSING.iter().copied().chain(responses.headers.iter().map(String::as_str));
        for (name, value) in names.flat_map(|name| headers.get_all(name).iter().map(move |v| (name, v))) {
            maker.text(name);
            maker.text(&String::from_utf8_lossy(value.as_bytes()));
        }
        let (messages_max, json, budget) = (settings.messages_max, body.clone(), memory_budget.clone());
        let memory = context.memory.clone();
        let add = move || {
            // The memory of the parsed body is taken only meanwhile.
            let mut share = MemoryPermit::default();
            let is_added = uses_cache(&json, dialect, messages_max)
                && budget.take_values(&mut share, &json).is_ok()
                && maker.json(&json);
            // The body's own is kept until here, even if the client disconnects.
            drop((json, memory));
            is_added.then_some(maker)
        };
        let Some(maker) = run_sized(body.len(), add).await? else { return Ok(None) };
        let key = maker.key(namespace.map(Into::into));
        let (age_max, ttl) = (seconds(control.s_maxage), seconds(control.ttl));
        Ok(Some(Lookup { responses, key, may_get, may_put, age_max, ttl }))
    }

    /// Adds the deployments that may answer for `name` to the key: another configuration may answer differently.
    fn answering(&self, name: &str, maker: &mut KeyMaker) {
        let table = self.router().table();
        let name = self.name(name).to_string();
        let names = match table.resolve(&name) {
            Resolved::Cascade { cascade, .. } => vec![cascade.fast.clone(), cascade.strong.clone()],
            _ => vec![name.clone()],
        };
        for name in &names {
            let Resolved::Group { group, .. } = table.resolve(name) else { continue };
            maker.text(group.name.as_str());
            let mut ids: Vec<&str> = group.deployments.iter().map(|d| d.id()).collect();
            ids.sort_unstable();
            ids.iter().for_each(|id| maker.text(id));
        }
    }
}

/// Client headers that are forwarded to a provider and change its answer.
const PASSING: [&str; 2] = ["anthropic-beta", "openai-beta"];

impl Lookup {
    /// The stored answer, as the bytes that were sent to another client.
    pub async fn get(&self) -> Option<Bytes> {
        if !self.may_get {
            return None;
        }
        self.responses.cache.get(&self.key, self.age_max).await
    }

    /// The key, as shown in headers.
    pub fn key(&self) -> String {
        self.key.to_string()
    }

    /// Collects an answer to store it.
    pub fn keep(self) -> Option<Keep> {
        self.may_put.then_some(Keep { lookup: self, answer: Vec::new(), is_too_long: false })
    }
}

/// An answer that is collected while it is sent to the client.
#[derive(Debug)]
pub struct Keep {
    lookup: Lookup,
    answer: Vec<u8>,
    is_too_long: bool,
}

impl Keep {
    /// Adds bytes that were sent.
    pub fn add(&mut self, bytes: &[u8]) {
        if self.is_too_long || self.answer.len() + bytes.len() > ENTRY_BYTES_MAX {
            self.is_too_long = true;
            self.answer = Vec::new();
        } else {
            self.answer.extend_from_slice(bytes);
        }
    }

    /// Stores the answer: all of it was sent.
    pub fn done(self) {
        if self.is_too_long || self.answer.is_empty() {
            return;
        }
        let Self { lookup: Lookup { responses, key, ttl, .. }, answer, .. } = self;
        if responses.cache.is_local() {
            responses.cache.put_local(&key, &answer, ttl);
        } else {
            // The client does not wait for Redis.
            tokio::spawn(async move { responses.cache.put(&key, &answer, ttl).await });
        }
    }
}
