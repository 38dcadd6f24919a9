//! Names of groups, some with a wildcard: `openai/*`, `*`. Matched by the router against names that are not a group's.

use std::fmt;

use regex::Regex;

/// A group's name, in which each `*` matches any text.
#[derive(Clone)]
pub struct GroupName {
    text: String,
    pattern: Option<Regex>,
}

impl GroupName {
    /// Parses a name. `None` if it is too long to match (more than a thousand characters with wildcards).
    pub fn new(text: &str) -> Option<Self> {
        let pattern = match text.contains('*') {
            false => None,
            true if text.len() > 1000 => return None,
            true => {
                let parts: Vec<String> = text.split('*').map(regex::escape).collect();
                Some(Regex::new(&format!("^(?s:{})$", parts.join("(.*)"))).ok()?)
            }
        };
        Some(Self { text: text.to_string(), pattern })
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it contains a `*`.
    pub fn is_wildcard(&self) -> bool {
        self.pattern.is_some()
    }

    /// Whether `name` matches.
    pub fn matches(&self, name: &str) -> bool {
        self.pattern.as_ref().map_or(self.text == name, |p| p.is_match(name))
    }

    /// Its specificity: of several that match, the largest is used. Exact names before all wildcards, then by the
    /// number of characters that are not wildcards.
    pub fn specificity(&self) -> usize {
        match self.pattern {
            None => usize::MAX,
            Some(_) => self.text.chars().filter(|c| *c != '*').count(),
        }
    }

    /// `template` with each `*` replaced by the match of the same one here in `name`: for the group `openai/*` and the name
    /// `openai/gpt-4o`, `*` becomes `gpt-4o`. Surplus `*` stay. `None` if `name` does not match.
    pub fn fill(&self, name: &str, template: &str) -> Option<String> {
        let Some(pattern) = &self.pattern else { return self.matches(name).then(|| template.to_string()) };
        let captures = pattern.captures(name)?;
        let mut found = captures.iter().skip(1).flatten();
        let mut out = String::new();
        let mut parts = template.split('*').peekable();
        while let Some(part) = parts.next() {
            out += part;
            if parts.peek().is_some() {
                out += found.next().map_or("*", |m| m.as_str());
            }
        }
        Some(out)
    }
}

impl PartialEq for GroupName {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for GroupName {}

impl fmt::Debug for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
