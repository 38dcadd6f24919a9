//! Requests without a prompt, by which Ollama's clients load and unload models. Parsed by chat and generate.

use serde_json::{Value, json};

use crate::core::{GenerateRequest, KeepAlive};
use crate::time::rfc3339;

/// A request to `/api/chat` or `/api/generate`.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Generate an answer.
    Generate(Box<GenerateRequest>),
    /// Load or unload a model.
    Load(Load),
}

/// Load a model now and keep it for a while, or unload it if that time is 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// The model's name as the client knows it.
    pub model: String,
    /// How long it stays loaded.
    pub keep_alive: Option<KeepAlive>,
}

impl Load {
    /// Whether the model is to be unloaded.
    pub fn unloads(&self) -> bool {
        self.keep_alive == Some(KeepAlive::Seconds(0.0))
    }

    /// The response when done: one object, even if a stream was requested. `chat` selects the endpoint; `now_s` is the time in seconds
    /// since 1970 UTC.
    pub fn response(&self, chat: bool, now_s: u64) -> Value {
        let reason = if self.unloads() { "unload" } else { "load" };
        let mut out =
            json!({"model": self.model, "created_at": rfc3339(now_s), "done": true, "done_reason": reason});
        if chat {
            out["message"] = json!({"role": "assistant", "content": ""});
        } else {
            out["response"] = "".into();
        }
        out
    }
}
