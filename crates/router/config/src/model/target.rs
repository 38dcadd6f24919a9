//! The target of a request: another server, a model in this process, or a server that is started first. Made into clients by
//! the upstream crate and into engines by the server.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::Secret;

/// The target.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant)] // there are as many as lines in a file, made once
pub enum Target {
    /// Another server, over HTTP.
    Remote(Remote),
    /// A model in this process (`model: octet/...`).
    Local(Local),
    /// A server that is started on demand (`model: process/...`): one of [`super::Config::processes`].
    Process(ProcessTarget),
}

impl Target {
    /// Changes of its requests.
    pub fn changes(&self) -> &Changes {
        match self {
            Self::Remote(t) => &t.changes,
            Self::Local(t) => &t.changes,
            Self::Process(t) => &t.changes,
        }
    }
}

/// Another server.
#[derive(Debug, Clone, PartialEq)]
pub struct Remote {
    /// Its API.
    pub provider: Provider,
    /// The model's name there, without the provider's prefix. A `*` in it stands for the match of the group's wildcard
    /// ([`super::GroupName::fill`]).
    pub model: String,
    /// The base URL of its API, without a final slash: `http://127.0.0.1:8007/v1`, `https://api.anthropic.com`,
    /// `https://NAME.openai.azure.com`. Always filled in.
    pub api_base: String,
    /// Its key, if it requires one.
    pub api_key: Option<Secret>,
    /// `organization`, sent to OpenAI.
    pub organization: Option<String>,
    /// `api_version`: Azure's query parameter.
    pub api_version: Option<String>,
    /// `extra_headers`, sent with each request. Values may be keys and are not printed.
    pub extra_headers: Vec<(String, Secret)>,
    /// `continues`: it can continue an assistant message, in vLLM's way.
    pub continues: bool,
    /// Whether it has OpenAI's `/responses`.
    pub responses: ResponsesUse,
    /// How its requests are authenticated.
    pub auth: Auth,
    /// The model as in the table of families, `openai/gpt-5` ([`crate::Accepts::of`]); `*` as in [`Remote::model`]. Empty: no family.
    pub family: String,
    /// Changes of its requests.
    pub changes: Changes,
}

/// Which requests use a server's `/responses`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResponsesUse {
    /// None: it has no such endpoint. (OpenAI itself always has it.)
    #[default]
    None,
    /// Requests to `/v1/responses`.
    Same,
    /// Chats, too: `openai/responses/NAME`.
    Chats,
}

/// How requests to a server are authenticated.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Auth {
    /// By [`Remote::api_key`], if there is one.
    #[default]
    Key,
    /// Each request is signed: AWS Signature Version 4.
    Aws(Aws),
    /// By an access token that is fetched and reused until it expires.
    Google(Google),
    /// By an access token of Microsoft Entra ID.
    Entra(Entra),
}

impl Auth {
    /// Its secrets, which are removed from a provider's texts.
    pub fn secrets(&self) -> Vec<&Secret> {
        match self {
            Self::Key | Self::Google(Google::Machine { .. }) => Vec::new(),
            Self::Aws(aws) => {
                let mut all = vec![&aws.access_key_id, &aws.secret_access_key];
                all.extend(&aws.session_token);
                all
            }
            Self::Entra(entra) => vec![&entra.client_secret],
            Self::Google(Google::Service { private_key, .. }) => vec![private_key],
            Self::Google(Google::User { client_secret, refresh_token, .. }) => {
                vec![client_secret, refresh_token]
            }
        }
    }
}

/// The keys that sign requests to AWS.
#[derive(Debug, Clone, PartialEq)]
pub struct Aws {
    /// `us-east-1`.
    pub region: String,
    /// The key's id.
    pub access_key_id: Secret,
    /// The key.
    pub secret_access_key: Secret,
    /// The token of temporary keys.
    pub session_token: Option<Secret>,
}

/// An application in Entra ID: OAuth client credentials.
#[derive(Debug, Clone, PartialEq)]
pub struct Entra {
    /// The token endpoint: `https://login.microsoftonline.com/TENANT/oauth2/v2.0/token`.
    pub token_uri: String,
    /// The application's id.
    pub client_id: String,
    /// Its secret.
    pub client_secret: Secret,
    /// The token's scope.
    pub scope: String,
}

/// The account at Google Cloud.
#[derive(Debug, Clone, PartialEq)]
pub enum Google {
    /// A service account: a signed assertion is exchanged for a token.
    Service {
        /// `client_email`.
        email: String,
        /// `private_key`: PEM, PKCS #8.
        private_key: Secret,
        /// `private_key_id`.
        key_id: Option<String>,
        /// The token endpoint.
        token_uri: String,
    },
    /// A user, as stored by `gcloud auth application-default login`.
    User {
        /// `client_id`.
        client_id: String,
        /// `client_secret`.
        client_secret: Secret,
        /// `refresh_token`.
        refresh_token: Secret,
        /// The token endpoint.
        token_uri: String,
    },
    /// The account of a virtual machine at Google, from its metadata server.
    Machine {
        /// The address of the metadata server.
        base: String,
    },
}

/// The API of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provider {
    /// OpenAI itself.
    OpenAi,
    /// A server or service with OpenAI's chat completions: vLLM, llama.cpp, SGLang, Groq, OpenRouter, ...
    OpenAiCompatible,
    /// Anthropic's messages.
    Anthropic,
    /// Google's Gemini: `generateContent` and `streamGenerateContent`.
    Gemini,
    /// OpenAI's API as Azure hosts it: deployments in the path, `api-key`, `api-version`.
    AzureOpenAi,
    /// Ollama's own API (`/api/chat`).
    Ollama,
    /// Amazon Bedrock's `Converse`, for any of its models.
    Bedrock,
    /// Anthropic's models at Bedrock: its messages by `InvokeModel`.
    BedrockAnthropic,
    /// Gemini at Google Cloud's Vertex AI.
    Vertex,
    /// Anthropic's models at Vertex AI: its messages by `rawPredict`.
    VertexAnthropic,
}

impl Provider {
    /// Its name before a model's name, and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::OpenAiCompatible => "openai_compatible",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::AzureOpenAi => "azure",
            Self::Ollama => "ollama",
            Self::Bedrock | Self::BedrockAnthropic => "bedrock",
            Self::Vertex | Self::VertexAnthropic => "vertex_ai",
        }
    }

    /// Whether it downloads images by address; else it takes only their bytes.
    pub fn takes_image_urls(self) -> bool {
        use Provider::{Bedrock, BedrockAnthropic, Ollama, VertexAnthropic};
        !matches!(self, Bedrock | BedrockAnthropic | Ollama | VertexAnthropic)
    }
}

/// Changes of a request before it is sent. In this order: parameters are dropped, renamed, set; `extra_body` is merged in.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// Parameters that are dropped, renamed and set.
    pub edits: Edits,
    /// `extra_body`: merged into the body, objects key by key; takes precedence over the client.
    pub extra_body: Map<String, Value>,
    /// `chat_template_kwargs` (the entry's, and those in `extra_body`): merged into the request's; the client's take precedence, unless they
    /// are in [`Edits::set`].
    pub chat_template_kwargs: Map<String, Value>,
    /// `drop_params`: unsupported parameters are dropped; otherwise such a request is refused.
    pub drop_params: bool,
    /// `modify_params`: messages are added where the model requires them; otherwise such a request is refused.
    pub modify_params: bool,
}

/// Parameters that are edited by name. A name may be a path: `metadata.user`, `tools[*].strict`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Edits {
    /// `additional_drop_params`, or llama-swap's `stripParams`: dropped.
    pub drop: Vec<String>,
    /// `rename_params`: old name, new name.
    pub rename: Vec<(String, String)>,
    /// `set_params`, or llama-swap's `setParams`: take precedence over the client.
    pub set: Map<String, Value>,
}

/// A model in this process.
#[derive(Debug, Clone, PartialEq)]
pub struct Local {
    /// The text after `octet/`: a path, a short name, `hf:user/repo:QUANT`, a URL. A path is as written: relative
    /// to the folder of the file that names it.
    pub model: String,
    /// The folder of relative paths.
    pub base: PathBuf,
    /// The engine's settings.
    pub engine: EngineSettings,
    /// Changes of its requests.
    pub changes: Changes,
}

/// The flags of `octet serve` for one model, by the same names. `None` is the value on the command line, or the flag's default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineSettings {
    /// `ctx_size` (`max_model_len`): tokens of context.
    pub ctx_size: Option<usize>,
    /// `ubatch_size`: maximum tokens per step.
    pub ubatch_size: Option<usize>,
    /// `batch_size`: the same; the smaller one is used.
    pub batch_size: Option<usize>,
    /// `kv_cache_dtype`: `f16`, `f32` or `q8_0`.
    pub kv_cache_dtype: Option<String>,
    /// `cache_type_k`: the same for the keys.
    pub cache_type_k: Option<String>,
    /// `cache_type_v`: the same for the values.
    pub cache_type_v: Option<String>,
    /// `threads`.
    pub threads: Option<usize>,
    /// `isa`: `portable`, `avx2`, `avx-vnni`, `avx512`, `neon`, `neon-i8mm`.
    pub isa: Option<String>,
    /// `no_pin`.
    pub no_pin: Option<bool>,
    /// `exact`.
    pub exact: Option<bool>,
    /// `no_memory_check`.
    pub no_memory_check: Option<bool>,
    /// `no_packed`: keep no packed weights for the next start, and use none.
    pub no_packed: Option<bool>,
    /// `parallel` (`max_num_seqs`): maximum concurrent requests.
    pub parallel: Option<usize>,
    /// `max_queue`: maximum queued requests.
    pub max_queue: Option<usize>,
    /// `kv_tokens`: size of the KV cache in tokens.
    pub kv_tokens: Option<usize>,
    /// `cache_ram`: bytes for snapshots (a plain number in the file is in MiB).
    pub cache_ram: Option<u64>,
    /// `cache_disk`: the folder.
    pub cache_disk: Option<PathBuf>,
    /// `cache_disk_size` in bytes.
    pub cache_disk_size: Option<u64>,
    /// `keep_alive`.
    pub keep_alive: Option<KeepAlive>,
    /// `reasoning_format`: `deepseek`, `hidden`, `none`.
    pub reasoning_format: Option<String>,
    /// `tool_call_parser`: `qwen3_coder`, `hermes`, `openai`, `none`.
    pub tool_call_parser: Option<String>,
    /// `chat_template`: a file.
    pub chat_template: Option<PathBuf>,
    /// `speculative`: `auto`, `off`, `mtp`, `lookup`, `draft=MODEL`.
    pub speculative: Option<String>,
    /// `draft_max` (`num_speculative_tokens`): maximum draft tokens per step.
    pub draft_max: Option<usize>,
}

/// How long an idle model stays loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// This long.
    For(Duration),
    /// Until the server stops, or its memory is needed.
    Forever,
}

/// A server that is started on demand.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessTarget {
    /// [`super::Process::id`].
    pub process: String,
    /// The model's name in requests to it: [`super::Process::use_model_name`], or the process' id.
    pub model: String,
    /// See [`Remote::continues`].
    pub continues: bool,
    /// Changes of its requests, including the process' filters.
    pub changes: Changes,
}
