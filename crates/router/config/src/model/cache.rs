//! The response cache. Read by the server and the `cache` crate.

use std::time::Duration;

use crate::Secret;

/// `litellm_settings.cache` and `cache_params`: answers are stored, and returned for the same request.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseCache {
    /// Where answers are stored.
    pub store: CacheStore,
    /// `ttl`: the lifetime of an answer. `None`: 10 minutes in memory, 1 minute in Redis, as in LiteLLM.
    pub ttl: Option<Duration>,
    /// `namespace`: the prefix of the entries' names.
    pub namespace: Option<String>,
    /// `supported_call_types`: which requests are cached.
    pub calls: CachedCalls,
    /// `mode: default_off`: only requests with `cache: {use-cache: true}`.
    pub opt_in: bool,
    /// `max_messages`: longer conversations are not cached (4). `None`: no limit.
    pub messages_max: Option<usize>,
    /// `shared_between_keys`: a virtual key may get the answers of other keys' requests (false).
    pub shared: bool,
}

/// Where answers are stored.
#[derive(Debug, Clone, PartialEq)]
pub enum CacheStore {
    /// In the memory of this process.
    Memory {
        /// Maximum size of all answers.
        bytes_max: u64,
    },
    /// In Redis.
    Redis(RedisServer),
}

/// A Redis server.
#[derive(Debug, Clone, PartialEq)]
pub struct RedisServer {
    /// Its URL, `redis://` or `rediss://`, instead of the following fields.
    pub url: Option<Secret>,
    /// Its name.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The user name.
    pub username: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// `ssl`: use TLS.
    pub tls: bool,
    /// `db`: the number of its database.
    pub db: i64,
}

/// Which requests are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedCalls {
    /// Chats, in OpenAI's and Ollama's dialects.
    pub chat: bool,
    /// Text completions.
    pub text: bool,
    /// Embeddings.
    pub embeddings: bool,
    /// OpenAI's Responses API.
    pub responses: bool,
    /// Chats in Anthropic's dialect.
    pub messages: bool,
}

impl Default for CachedCalls {
    fn default() -> Self {
        Self { chat: true, text: true, embeddings: true, responses: true, messages: true }
    }
}
