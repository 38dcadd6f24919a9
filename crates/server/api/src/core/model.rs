//! A model as lists of models show it, in no dialect. Made by the server; written by the dialects' `models` modules.

/// What is known of a model without loading it, and whether it is loaded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelInfo {
    /// The name that clients ask for it by.
    pub id: String,
    /// When its file was written, in seconds since 1970 UTC.
    pub created_s: u64,
    /// Names its content: hexadecimal, at least 12 digits (clients show the first 12). `None` where nothing was hashed.
    pub digest: Option<String>,
    /// Of its files.
    pub size_bytes: u64,
    /// `gguf` or `safetensors`.
    pub format: String,
    /// The architecture: `qwen35moe`.
    pub family: String,
    /// How many numbers it is made of.
    pub parameters: u64,
    /// `Q4_K_M`, `BF16`, ...
    pub quantization: String,
    /// Longest context, as it is served.
    pub context_length: u32,
    /// Length of its hidden state.
    pub embedding_length: u32,
    /// What it can do.
    pub abilities: Abilities,
    /// Its chat template.
    pub template: Option<String>,
    /// Its license.
    pub license: Option<String>,
    /// `None` if it is not in memory.
    pub loaded: Option<Loaded>,
    /// Why it cannot answer just now, since the device that it runs on was lost; `None` if it can.
    pub unhealthy: Option<String>,
}

/// What a model can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Abilities {
    /// Generate text.
    pub completion: bool,
    /// Call tools: its template knows them.
    pub tools: bool,
    /// Think before it answers.
    pub thinking: bool,
    /// Turn texts into vectors.
    pub embedding: bool,
}

/// A model in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Loaded {
    /// What it takes in all, caches included.
    pub memory_bytes: u64,
    /// How much of that is an accelerator's.
    pub accelerator_bytes: u64,
    /// When it will be unloaded if nobody asks for it, in seconds since 1970 UTC. `None`: never.
    pub expires_s: Option<u64>,
}
