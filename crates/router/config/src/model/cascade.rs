//! Routes that ask a fast model first. Decided by the router, request by request.

use std::fmt;

use regex::Regex;

use super::signal::{Prerouter, Threshold};
use crate::Span;

/// A name that is answered by a fast group or a strong one.
#[derive(Debug, Clone, PartialEq)]
pub struct Cascade {
    /// What clients ask for (`model_name`).
    pub name: String,
    /// The group for what is easy.
    pub fast: String,
    /// The group for what is hard.
    pub strong: String,
    /// The rules, in order; the first whose conditions all hold decides.
    pub rules: Vec<Rule>,
    /// Guesses from the prompt alone whether the fast model will be right, where no rule decides.
    pub prerouter: Option<Prerouter>,
    /// How sure the fast model has to be where no rule decides. `None`: it always answers.
    pub confidence: Option<Confidence>,
    /// Where it stands.
    pub span: Span,
}

/// Which requests go where without asking the fast model.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// What is said about it in headers and logs: its `name`, or `rule N`.
    pub name: String,
    /// All have to hold. Never empty.
    pub when: Vec<Condition>,
    /// Where it sends them (`to: fast | strong`; strong where it is not said).
    pub to: Side,
    /// Whether the fast model still has to be sure where `to` is fast (`check: true`); otherwise its answer stands.
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

/// What holds for a request, or not.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// `min_tokens`: the prompt has at least so many (counted by the fast model's tokenizer where that is known, otherwise a
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
    /// `code`: whether there is a block of code in a message.
    Code(bool),
    /// `images`: whether there is an image in a message.
    Images(bool),
    /// `header`.
    Header(HeaderMatch),
    /// `system`: a pattern that is found in the system prompt.
    System(Pattern),
    /// `user`: a pattern that is found in the last message of the user.
    User(Pattern),
}

/// A header of the client's request.
#[derive(Debug, Clone, PartialEq)]
pub struct HeaderMatch {
    /// Its name in lower case.
    pub name: String,
    /// What is found in its value. `None`: it is there.
    pub value: Option<Pattern>,
}

/// A regular expression; linear in time, found anywhere in a text.
#[derive(Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles it, within a bound of memory; the error is for people.
    pub fn new(text: &str) -> Result<Self, String> {
        let compiled = regex::RegexBuilder::new(text).size_limit(1 << 20).dfa_size_limit(1 << 20).build();
        compiled.map(Self).map_err(|e| e.to_string())
    }

    /// Whether it is found in `text`.
    pub fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// As it is written.
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

/// How sure the fast model has to be. Its first tokens are held back; where a threshold is missed, its answer is abandoned and the
/// strong group answers instead.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Confidence {
    /// Tokens that are measured (16). A shorter answer is judged by what there is.
    pub window: u32,
    /// `signal` and `threshold`. `None`: not looked at.
    pub signal: Option<Threshold>,
    /// `mean_logprob`: least mean of their natural log-probabilities: -0.5. `None`: not looked at.
    pub mean_logprob: Option<f64>,
    /// `margin`: least mean of the difference between the first and the second choice's log-probability. `None`: not looked at.
    pub margin: Option<f64>,
    /// `skip_thoughts`: tokens of reasoning do not count (true).
    pub skip_thoughts: bool,
    /// `probe`: the first tokens of a greedy copy of the request are measured instead of the answer's own. `None`: where the model
    /// is in this process.
    pub probe: Option<bool>,
    /// `tool_calls`: calls are checked against the schemas of their tools (true).
    pub tool_calls: bool,
    /// `self_check`: least probability, 0 to 1, that the fast model calls its whole answer right. `None`: not asked.
    pub self_check: Option<f64>,
}

impl Confidence {
    /// Tokens that are measured where the file does not say.
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
