//! A model in lists, independent of dialects. Made by the server; written by the dialects' `models` modules.

/// Metadata of a model, and whether it is loaded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelInfo {
    /// The name by which clients request it.
    pub id: String,
    /// Its other names.
    pub aliases: Vec<String>,
    /// When its file was written, in seconds since 1970 UTC.
    pub created_s: u64,
    /// A digest of its content: hexadecimal, at least 12 digits (clients show the first 12). `None` if nothing was hashed.
    pub digest: Option<String>,
    /// Size of its files.
    pub size_bytes: u64,
    /// `gguf` or `safetensors`.
    pub format: String,
    /// The architecture: `qwen35moe`.
    pub family: String,
    /// Number of parameters.
    pub parameters: u64,
    /// `Q4_K_M`, `BF16`, ...
    pub quantization: String,
    /// Maximum context, as served.
    pub context_length: u32,
    /// The context that it was trained for.
    pub trained_context_length: u32,
    /// Length of its hidden state (and of embeddings).
    pub embedding_length: u32,
    /// Its abilities.
    pub abilities: Abilities,
    /// Its chat template.
    pub template: Option<String>,
    /// Its license.
    pub license: Option<String>,
    /// `None` if it is not loaded.
    pub loaded: Option<Loaded>,
    /// Why it cannot answer now: its device was lost. `None` if it can.
    pub unhealthy: Option<String>,
}

/// The abilities of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Abilities {
    /// It generates text.
    pub completion: bool,
    /// Its template supports tools.
    pub tools: bool,
    /// It can reason before it answers.
    pub thinking: bool,
    /// It computes embeddings.
    pub embedding: bool,
    /// It sees images.
    pub vision: bool,
}

/// A loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Loaded {
    /// Its memory in bytes, caches included.
    pub memory_bytes: u64,
    /// The part of it on an accelerator.
    pub accelerator_bytes: u64,
    /// When it will be unloaded without further requests, in seconds since 1970 UTC. `None`: never.
    pub expires_s: Option<u64>,
}
