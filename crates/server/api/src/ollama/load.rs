//! Requests without a prompt: Ollama's clients load and unload models so. Read by the parsers of chat and generate.

use serde_json::{Value, json};

use crate::core::{GenerateRequest, KeepAlive};
use crate::time::rfc3339;

/// What a client asks for at `/api/chat` or `/api/generate`.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// An answer.
    Generate(Box<GenerateRequest>),
    /// A model in memory, or out of it.
    Load(Load),
}

/// A model is to be loaded now and kept for a while; unloaded, if that is no time at all.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// The model's name as the client knows it.
    pub model: String,
    /// How long it is to stay.
    pub keep_alive: Option<KeepAlive>,
}

impl Load {
    /// Whether the model is to be unloaded.
    pub fn unloads(&self) -> bool {
        self.keep_alive == Some(KeepAlive::Seconds(0.0))
    }

    /// The answer once that is done: one object, also where a stream was asked for. `chat` says which endpoint it was, `now_s`
    /// the time in seconds since 1970 UTC.
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
