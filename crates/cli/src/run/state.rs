//! What a chat holds between two lines that are typed. Changed by `run::chat` and `run::commands`.

use std::time::Duration;

use octet_engine::experts::ExpertUsage;
use serde_json::Value;

use super::session::Session;

/// A conversation at work.
pub struct Chat {
    pub session: Session,
    /// What the model was called.
    pub model: String,
    /// Settings of sampling that were changed, in this order: another model gets them too.
    pub changed: Vec<(String, String)>,
    pub last: Option<Last>,
    pub answers: Answers,
    /// The terminal shows UTF-8.
    pub utf8: bool,
}

/// The last answer.
pub struct Last {
    /// What it cost.
    pub summary: String,
    /// Tokens of the context that it and its prompt took.
    pub context: usize,
    /// Where its tokens went, those of its prompt included.
    pub experts: Option<ExpertUsage>,
}

/// All answers of the model that is loaded.
#[derive(Default)]
pub struct Answers {
    pub number: usize,
    pub tokens: usize,
    /// Tokens after each answer's first, and the time that they took.
    pub after_first: usize,
    pub time: Duration,
    /// From each question to the first token.
    pub prompt_time: Duration,
}

/// What follows a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Stay,
    /// `before` are the messages to go back to where that fails.
    Answer {
        before: Vec<Value>,
    },
    /// Another model.
    Model(String),
    Leave,
}
