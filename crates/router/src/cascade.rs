//! Easy requests to a fast group, hard ones to a strong one: by what a request looks like, and by how sure the fast one is
//! of its first tokens (`confidence`). Called by `dispatch`.

use octet_api::core::GenerateRequest;
use regex::Regex;

use crate::confidence::Confidence;
use crate::size::{Size, has_code, has_images, system_text};

/// A name behind which two groups stand.
#[derive(Debug, Clone)]
pub struct Cascade {
    /// What clients ask for.
    pub name: String,
    /// The group that answers if nothing speaks against it.
    pub fast: String,
    /// The group that answers otherwise.
    pub strong: String,
    /// The first that applies decides.
    pub rules: Vec<Rule>,
    /// Where no rule applies: how sure the fast group has to be. `None` trusts it.
    pub confidence: Option<Confidence>,
}

/// If all conditions hold, a group answers.
#[derive(Debug, Clone)]
pub struct Rule {
    /// At least one.
    pub when: Vec<Condition>,
    /// The group's name.
    pub to: String,
}

/// Something about a request.
#[derive(Debug, Clone)]
pub enum Condition {
    /// Its prompt is at least so many tokens: counted where the fast group can count, else a token for 4 bytes.
    TokensMin(u64),
    /// Its prompt is at most so many tokens.
    TokensMax(u64),
    /// Its text is at least so many bytes.
    BytesMin(u64),
    /// Its text is at most so many bytes.
    BytesMax(u64),
    /// It has tools, or none.
    Tools(bool),
    /// A question has a fence of code, or none.
    Code(bool),
    /// It has pictures, or none.
    Images(bool),
    /// A header is there, with a value that matches.
    Header {
        /// In small letters.
        name: String,
        /// `None` takes any.
        value: Option<Regex>,
    },
    /// The instructions match.
    System(Regex),
}

impl Condition {
    fn name(&self) -> String {
        match self {
            Self::TokensMin(n) => format!("tokens>={n}"),
            Self::TokensMax(n) => format!("tokens<={n}"),
            Self::BytesMin(n) => format!("bytes>={n}"),
            Self::BytesMax(n) => format!("bytes<={n}"),
            Self::Tools(yes) => format!("tools={yes}"),
            Self::Code(yes) => format!("code={yes}"),
            Self::Images(yes) => format!("images={yes}"),
            Self::Header { name, .. } => format!("header={name}"),
            Self::System(_) => "system".into(),
        }
    }
}

/// What conditions look at.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    /// The request.
    pub request: &'a GenerateRequest,
    /// Its size.
    pub size: Size,
    /// Its prompt's tokens, where they were counted.
    pub tokens: Option<u64>,
    /// Names in small letters, and values.
    pub headers: &'a [(String, String)],
}

impl Look<'_> {
    fn holds(&self, condition: &Condition) -> bool {
        let tokens = self.tokens.unwrap_or(self.size.tokens());
        match condition {
            Condition::TokensMin(n) => tokens >= *n,
            Condition::TokensMax(n) => tokens <= *n,
            Condition::BytesMin(n) => self.size.bytes >= *n,
            Condition::BytesMax(n) => self.size.bytes <= *n,
            Condition::Tools(yes) => self.request.chat().is_some_and(|c| !c.tools.is_empty()) == *yes,
            Condition::Code(yes) => has_code(self.request) == *yes,
            Condition::Images(yes) => has_images(self.request) == *yes,
            Condition::Header { name, value } => self
                .headers
                .iter()
                .any(|(n, v)| n == name && value.as_ref().is_none_or(|wanted| wanted.is_match(v))),
            Condition::System(wanted) => wanted.is_match(&system_text(self.request)),
        }
    }
}

impl Cascade {
    /// The groups that it names.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        [&self.fast, &self.strong].into_iter().chain(self.rules.iter().map(|r| &r.to)).map(String::as_str)
    }

    /// Whether a rule asks for tokens.
    pub fn counts_tokens(&self) -> bool {
        let mut all = self.rules.iter().flat_map(|r| &r.when);
        all.any(|c| matches!(c, Condition::TokensMin(_) | Condition::TokensMax(_)))
    }

    /// The first rule that applies: what it looks at, and whom it names.
    pub fn rule(&self, look: &Look<'_>) -> Option<(String, &str)> {
        let applies = |rule: &&Rule| !rule.when.is_empty() && rule.when.iter().all(|c| look.holds(c));
        let rule = self.rules.iter().find(applies)?;
        let names: Vec<String> = rule.when.iter().map(Condition::name).collect();
        Some((names.join("&"), &rule.to))
    }
}
