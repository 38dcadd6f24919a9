//! Routes that try a fast model first. Read by the router for each request.

use std::fmt;

use regex::Regex;

use super::signal::{Prerouter, Threshold};
use crate::Span;

/// A name that is answered by a fast or a strong group.
#[derive(Debug, Clone, PartialEq)]
pub struct Cascade {
    /// The name for clients (`model_name`).
    pub name: String,
    /// The group for easy requests.
    pub fast: String,
    /// The group for hard requests.
    pub strong: String,
    /// The rules, in order; the first one that matches decides.
    pub rules: Vec<Rule>,
    /// Predicts from the prompt whether the fast model's answer will be right, if no rule decides.
    pub prerouter: Option<Prerouter>,
    /// The required confidence of the fast model, if no rule decides. `None`: it always answers.
    pub confidence: Option<Confidence>,
    /// Its place in the file.
    pub span: Span,
}

/// Decides requests without the fast model.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Its name in headers and logs: `name`, or `rule N`.
    pub name: String,
    /// All conditions must match. Never empty.
    pub when: Vec<Condition>,
    /// The side for matching requests (`to: fast
    /// strong`; default strong).
    pub to: Side,
    /// Whether the confidence is still checked if `to` is fast (`check: true`).
    pub check: bool,
}

/// One of a cascade's two groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Side {
    /// [`Cascade::fast`].
    Fast,
    /// [`Cascade::strong`].
    #[default]
    Strong,
}

/// A condition on a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// `min_tokens`: the prompt has at least this many tokens (counted by the fast model's tokenizer if it is available, else a
    /// quarter of its bytes).
    MinTokens(u64),
    /// `max_tokens`: the prompt has at most this many tokens.
    MaxTokens(u64),
    /// `min_messages`: the conversation has at least this many messages.
    MinMessages(u32),
    /// `max_messages`: the conversation has at most this many messages.
    MaxMessages(u32),
    /// `tools`: whether tools are given.
    Tools(bool),
    /// `code`: whether a message contains a code block.
    Code(bool),
    /// `images`: whether a message contains an image.
    Images(bool),
    /// `header`.
    Header(HeaderMatch),
    /// `system`: a pattern to search in the system prompt.
    System(Pattern),
    /// `user`: a pattern to search in the last user message.
    User(Pattern),
}

/// A header of the client's request.
#[derive(Debug, Clone, PartialEq)]
pub struct HeaderMatch {
    /// Its name in lower case.
    pub name: String,
    /// A pattern to search in its value. `None`: the header is present.
    pub value: Option<Pattern>,
}

/// A regular expression, searched anywhere in a text in linear time.
#[derive(Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles it with a memory limit. The error is a message for the user.
    pub fn new(text: &str) -> Result<Self, String> {
        let compiled = regex::RegexBuilder::new(text).size_limit(1 << 20).dfa_size_limit(1 << 20).build();
        compiled.map(Self).map_err(|e| e.to_string())
    }

    /// Whether it matches a part of `text`.
    pub fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.as_str())
    }
}

/// The required confidence of the fast model. Its first tokens are held back; below a threshold its answer is dropped and the
/// strong group answers instead.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Confidence {
    /// Number of measured tokens (16). Of a shorter answer all tokens are measured.
    pub window: u32,
    /// `signal` and `threshold`. `None`: not measured.
    pub signal: Option<Threshold>,
    /// `mean_logprob`: minimum mean of their natural log-probabilities: -0.5. `None`: not measured.
    pub mean_logprob: Option<f64>,
    /// `margin`: minimum mean difference between the log-probabilities of the first and second choice. `None`: not measured.
    pub margin: Option<f64>,
    /// `skip_thoughts`: reasoning tokens are not measured (true).
    pub skip_thoughts: bool,
    /// `probe`: the first tokens of a greedy copy of the request are measured instead of the answer's. `None`: if the model
    /// is in this process.
    pub probe: Option<bool>,
    /// `tool_calls`: calls are checked against the schemas of their tools (true).
    pub tool_calls: bool,
    /// `self_check`: minimum probability, 0 to 1, that the fast model calls its complete answer right. `None`: no self-check.
    pub self_check: Option<f64>,
}

impl Confidence {
    /// Default number of measured tokens.
    pub const WINDOW: u32 = 16;

    /// Without a threshold.
    pub const fn new(window: u32) -> Self {
        Self {
            window,
            signal: None,
            mean_logprob: None,
            margin: None,
            skip_thoughts: true,
            probe: None,
            tool_calls: true,
            self_check: None,
        }
    }

    /// Whether tokens are measured.
    pub fn measures_tokens(&self) -> bool {
        self.signal.is_some() || self.mean_logprob.is_some() || self.margin.is_some()
    }
}
