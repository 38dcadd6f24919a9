//! The state of a chat between inputs. Changed by `run::chat` and `run::commands`.

use std::time::Duration;

use octet_engine::experts::ExpertUsage;
use serde_json::Value;

use super::session::Session;

/// A running chat.
pub struct Chat {
    pub session: Session,
    /// The model's name.
    pub model: String,
    /// Changed sampling settings in order: they are applied to another model, too.
    pub changed: Vec<(String, String)>,
    pub last: Option<Last>,
    pub answers: Answers,
    /// Images for the next question, as parts of a message.
    pub images: Vec<Value>,
    /// The terminal shows UTF-8.
    pub utf8: bool,
    /// Names of the tools that the model may call.
    pub tools: Vec<String>,
}

/// The last answer.
pub struct Last {
    /// Its statistics.
    pub summary: String,
    /// Context tokens of its prompt and itself.
    pub context: usize,
    /// Expert usage of its tokens, prompt included.
    pub experts: Option<ExpertUsage>,
}

/// All answers of the loaded model.
#[derive(Default)]
pub struct Answers {
    pub number: usize,
    pub tokens: usize,
    /// Tokens after each answer's first, and their time.
    pub after_first: usize,
    pub time: Duration,
    /// Time from each question to the first token.
    pub prompt_time: Duration,
}

/// What happens after a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Stay,
    /// `before` are the messages to restore if that fails.
    Answer {
        before: Vec<Value>,
    },
    /// Change the model.
    Model(String),
    Leave,
}
