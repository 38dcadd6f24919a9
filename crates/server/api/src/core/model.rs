//! A model in lists, independent of dialects. Made by the server; written by the dialects' `models` modules.

use serde_json::Value;

use super::message::{Message, Role};

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
    /// What its maker set for requests that do not say otherwise.
    pub defaults: ModelDefaults,
    /// `None` if it is not loaded.
    pub loaded: Option<Loaded>,
    /// Why it cannot answer now: its device was lost. `None` if it can.
    pub unhealthy: Option<String>,
}

/// What a model's maker set beside its file, for requests that do not say otherwise: Ollama's `SYSTEM`, `MESSAGE` and `PARAMETER`. Those
/// of sampling are in the engine's settings, too.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelDefaults {
    /// The system message of conversations that do not begin with one.
    pub system: Option<String>,
    /// Messages that every conversation begins with.
    pub messages: Vec<Message>,
    /// Texts that end an answer and are not part of it.
    pub stop: Vec<String>,
    /// All settings by name, as they were written.
    pub parameters: Vec<(String, Value)>,
}

impl ModelDefaults {
    /// A conversation's messages with this beginning; `None` if there is nothing to add. The client's instructions replace the maker's,
    /// and stay first.
    pub fn begin(&self, own: &[Message]) -> Option<Vec<Message>> {
        let is_instruction = |m: &&Message| matches!(m.role, Role::System | Role::Developer);
        let (first, rest) = own.split_at(own.iter().take_while(is_instruction).count());
        let system = self
            .system
            .iter()
            .filter(|_| first.is_empty())
            .map(|text| Message::text(Role::System, text.as_str()));
        let before: Vec<Message> = system.chain(first.iter().cloned()).collect();
        let adds = before.len() > first.len() || !self.messages.is_empty();
        adds.then(|| {
            before.into_iter().chain(self.messages.iter().cloned()).chain(rest.iter().cloned()).collect()
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_makers_messages_stand_behind_the_instructions() {
        let texts = |all: Vec<Message>| {
            all.iter().map(|m| m.content[0].as_text().unwrap().to_string()).collect::<Vec<_>>().join(" ")
        };
        let (of, user) = (|role, text: &str| Message::text(role, text), Role::User);
        let messages = vec![of(user, "a"), of(Role::Assistant, "b")];
        let defaults = ModelDefaults { system: Some("S".into()), messages, ..ModelDefaults::default() };
        assert_eq!(texts(defaults.begin(&[of(user, "q")]).unwrap()), "S a b q");
        assert_eq!(texts(defaults.begin(&[of(Role::Developer, "own"), of(user, "q")]).unwrap()), "own a b q");
        let system = ModelDefaults { messages: Vec::new(), ..defaults };
        assert_eq!(texts(system.begin(&[of(user, "q")]).unwrap()), "S q");
        assert_eq!(system.begin(&[of(Role::System, "own"), of(user, "q")]), None);
        assert_eq!(ModelDefaults::default().begin(&[of(user, "q")]), None);
    }
}
