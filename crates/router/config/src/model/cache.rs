//! The cache of responses. Looked at by the server and by the crate that keeps them.

use std::time::Duration;

use crate::Secret;

/// `litellm_settings.cache` and `cache_params`: answers are kept, and given again when the same request comes again.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseCache {
    /// Where they are kept.
    pub store: CacheStore,
    /// `ttl`: how long. `None`: 10 minutes in memory, 1 minute in Redis, as LiteLLM does.
    pub ttl: Option<Duration>,
    /// `namespace`: what the names of entries begin with.
    pub namespace: Option<String>,
    /// `supported_call_types`: which requests are looked at.
    pub calls: CachedCalls,
    /// `mode: default_off`: only requests that say `cache: {use-cache: true}`.
    pub opt_in: bool,
    /// `max_messages`: conversations with more messages are not looked at (4). `None`: all are.
    pub messages_max: Option<usize>,
    /// `shared_between_keys`: a virtual key may get what another one's request was answered with (false).
    pub shared: bool,
}

/// Where answers are kept.
#[derive(Debug, Clone, PartialEq)]
pub enum CacheStore {
    /// In this process' memory.
    Memory {
        /// What they may take together.
        bytes_max: u64,
    },
    /// In Redis.
    Redis(RedisServer),
}

/// A Redis server.
#[derive(Debug, Clone, PartialEq)]
pub struct RedisServer {
    /// Its whole address, `redis://` or `rediss://`, instead of all that follows.
    pub url: Option<Secret>,
    /// Its name.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Who logs in.
    pub username: Option<String>,
    /// With what.
    pub password: Option<Secret>,
    /// `ssl`: over TLS.
    pub tls: bool,
    /// `db`: the number of its database.
    pub db: i64,
}

/// Which requests are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedCalls {
    /// Chats, in OpenAI's and Ollama's dialects.
    pub chat: bool,
    /// Completions of a text.
    pub text: bool,
    /// Vectors.
    pub embeddings: bool,
    /// OpenAI's responses.
    pub responses: bool,
    /// Chats in Anthropic's dialect.
    pub messages: bool,
}

impl Default for CachedCalls {
    fn default() -> Self {
        Self { chat: true, text: true, embeddings: true, responses: true, messages: true }
    }
}
