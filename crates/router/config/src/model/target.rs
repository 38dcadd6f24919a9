//! Who answers a request: another server, a model in this process, or a server that is started first. Built into clients by
//! the upstream crate and into engines by the server.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::Secret;

/// Who answers.
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
    /// How requests are changed on their way.
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
    /// The API that it speaks.
    pub provider: Provider,
    /// The model's name there, without the provider's prefix. A `*` in it stands for what the group's wildcard matched
    /// ([`super::GroupName::fill`]).
    pub model: String,
    /// Where its API begins, without a slash at the end: `http://127.0.0.1:8007/v1`, `https://api.anthropic.com`,
    /// `https://NAME.openai.azure.com`. Always filled in.
    pub api_base: String,
    /// Its key, if it wants one.
    pub api_key: Option<Secret>,
    /// `organization`, sent to OpenAI.
    pub organization: Option<String>,
    /// `api_version`: Azure's, as a query parameter.
    pub api_version: Option<String>,
    /// `extra_headers`, sent with each request. Values may be keys, so they are not printed.
    pub extra_headers: Vec<(String, Secret)>,
    /// `continues`: it can continue an assistant message, in vLLM's way.
    pub continues: bool,
    /// Whether it has OpenAI's `/responses`.
    pub responses: ResponsesUse,
    /// How its requests are authenticated.
    pub auth: Auth,
    /// How requests are changed on their way.
    pub changes: Changes,
}

/// Which requests use a server's `/responses`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResponsesUse {
    /// Nothing: it has none, as far as is known. (OpenAI itself does, whatever this says.)
    #[default]
    None,
    /// What clients ask at `/v1/responses`.
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
    /// By an access token that is fetched and kept until it expires.
    Google(Google),
    /// The same, of Microsoft's Entra ID.
    Entra(Entra),
}

impl Auth {
    /// The secrets that it consists of. A provider may repeat what it was sent.
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

/// What signs requests to AWS.
#[derive(Debug, Clone, PartialEq)]
pub struct Aws {
    /// `us-east-1`.
    pub region: String,
    /// Names the key.
    pub access_key_id: Secret,
    /// The key.
    pub secret_access_key: Secret,
    /// Belongs to temporary keys.
    pub session_token: Option<Secret>,
}

/// An application that Entra ID gives an access token: OAuth's client credentials.
#[derive(Debug, Clone, PartialEq)]
pub struct Entra {
    /// Where tokens are given: `https://login.microsoftonline.com/TENANT/oauth2/v2.0/token`.
    pub token_uri: String,
    /// Names the application.
    pub client_id: String,
    /// Its secret.
    pub client_secret: Secret,
    /// What the token is for.
    pub scope: String,
}

/// Whose access token is sent to Google Cloud.
#[derive(Debug, Clone, PartialEq)]
pub enum Google {
    /// A service account: a signed statement is exchanged for a token.
    Service {
        /// `client_email`.
        email: String,
        /// `private_key`: PEM, PKCS #8.
        private_key: Secret,
        /// `private_key_id`.
        key_id: Option<String>,
        /// Where tokens are given.
        token_uri: String,
    },
    /// A user, as `gcloud auth application-default login` leaves it.
    User {
        /// `client_id`.
        client_id: String,
        /// `client_secret`.
        client_secret: Secret,
        /// `refresh_token`.
        refresh_token: Secret,
        /// Where tokens are given.
        token_uri: String,
    },
    /// The machine's own account, which a virtual machine of Google's asks its host for.
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
    /// As it is written before a model's name, and in metrics.
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
}

/// How a request is changed before it is sent. In this order: parameters are dropped, renamed, set; `extra_body` is merged in.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// Parameters that are dropped, renamed and set.
    pub edits: Edits,
    /// `extra_body`: merged into the body, objects key by key; beats what the client sent.
    pub extra_body: Map<String, Value>,
    /// `chat_template_kwargs` (its own, and those in `extra_body`): merged into the request's; the client's win, unless they
    /// stand in [`Edits::set`].
    pub chat_template_kwargs: Map<String, Value>,
    /// `drop_params`: parameters that the target cannot take are left out; otherwise such a request is refused.
    pub drop_params: bool,
}

/// Parameters that are edited by name. A name is a path with dots for what lies deeper: `metadata.user`, `tools[*].strict`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Edits {
    /// `additional_drop_params`, or llama-swap's `stripParams`: left out.
    pub drop: Vec<String>,
    /// `rename_params`: old name, new name.
    pub rename: Vec<(String, String)>,
    /// `set_params`, or llama-swap's `setParams`: as they are here, whatever the client says.
    pub set: Map<String, Value>,
}

/// A model in this process.
#[derive(Debug, Clone, PartialEq)]
pub struct Local {
    /// What stands behind `octet/`: a path, a short name, `hf:user/repo:QUANT`, an address. A path is as written: relative
    /// to the folder of the file that names it.
    pub model: String,
    /// The folder that relative paths start from.
    pub base: PathBuf,
    /// How it is loaded.
    pub engine: EngineSettings,
    /// How requests are changed on their way.
    pub changes: Changes,
}

/// The flags of `octet serve` for one model, by the same names. `None` is the flag's default (or what the command line says).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineSettings {
    /// `ctx_size` (`max_model_len`): tokens of context.
    pub ctx_size: Option<usize>,
    /// `ubatch_size`: tokens of a prompt that are processed at once.
    pub ubatch_size: Option<usize>,
    /// `batch_size`: the same; the smaller one counts.
    pub batch_size: Option<usize>,
    /// `kv_cache_dtype`: `f16`, `f32` or `q8_0`.
    pub kv_cache_dtype: Option<String>,
    /// `cache_type_k`: the same of the keys alone.
    pub cache_type_k: Option<String>,
    /// `cache_type_v`: the same of the values alone.
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
    /// `parallel` (`max_num_seqs`): answers that are generated at once.
    pub parallel: Option<usize>,
    /// `max_queue`: answers that may wait for their turn.
    pub max_queue: Option<usize>,
    /// `kv_tokens`: tokens that the KV cache holds.
    pub kv_tokens: Option<usize>,
    /// `cache_ram`: bytes for snapshots (a plain number in the file counts MiB).
    pub cache_ram: Option<u64>,
    /// `cache_disk`: the folder.
    pub cache_disk: Option<PathBuf>,
    /// `cache_disk_size` in bytes.
    pub cache_disk_size: Option<u64>,
    /// `keep_alive`.
    pub keep_alive: Option<KeepAlive>,
    /// `reasoning_format`: `deepseek`, `hidden`, `none`.
    pub reasoning_format: Option<String>,
    /// `tool_call_parser`: `qwen3_coder`, `hermes`, `none`.
    pub tool_call_parser: Option<String>,
    /// `chat_template`: a file.
    pub chat_template: Option<PathBuf>,
    /// `speculative`: `auto`, `off`, `mtp`, `lookup`, `draft=MODEL`.
    pub speculative: Option<String>,
    /// `draft_max` (`num_speculative_tokens`): most tokens to guess in a step.
    pub draft_max: Option<usize>,
}

/// How long an idle model stays loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// So long.
    For(Duration),
    /// Until the server ends, or its memory is needed.
    Forever,
}

/// A server that is started on demand.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessTarget {
    /// [`super::Process::id`].
    pub process: String,
    /// The model's name in requests to it: [`super::Process::use_model_name`], or the process' id.
    pub model: String,
    /// As [`Remote::continues`].
    pub continues: bool,
    /// How requests are changed on their way; the process' own filters are in it.
    pub changes: Changes,
}
