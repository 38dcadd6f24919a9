//! Calls of derived syntaxes whose first tag was forgotten.
//!
//! What follows that tag, and a tool's name, may begin a call: at the beginning of a line, or behind a call. It is one as soon as a tag of
//! the syntax has come: then it is parsed again with the tag before it. If none comes it is text, unless it is all of the answer and looks
//! complete.

use super::{Call, Parser, Zone};
use crate::changes::Change;
use crate::native::Plan;

/// By this length a call that is an object has named its tool.
const OBJECT_BYTES: usize = 256;

/// The beginnings of such calls, for the tools of a request.
#[derive(Debug, Default)]
pub struct Heads {
    /// Whole beginnings without white space, each with the text that is missing before it.
    all: Vec<(String, String)>,
    /// The same for objects, which name their tools later; and the names as they are written there.
    objects: Vec<(String, String)>,
    names: Vec<String>,
    /// The syntax's tags.
    tags: Vec<String>,
}

impl Heads {
    pub fn of(plan: &Plan, names: &[&str]) -> Self {
        let mut out = Self { tags: plan.tags.clone(), ..Self::default() };
        for (missing, text, behind) in &plan.heads {
            match behind {
                Some(behind) => {
                    let head = |name: &&str| (format!("{text}{name}{behind}"), missing.clone());
                    out.all.extend(names.iter().map(head));
                }
                None => out.objects.push((format!("{text}{{\""), missing.clone())),
            }
        }
        out.names = names.iter().map(|name| format!(":\"{name}\"")).collect();
        out
    }

    /// Whether a call may begin with this character.
    fn begin_with(&self, c: char) -> bool {
        self.all.iter().chain(&self.objects).any(|(head, _)| head.starts_with(c))
    }
}

/// Scans such a call.
#[derive(Debug, Default)]
pub struct Scan {
    /// The text so far without white space, until the tool is named.
    came: String,
    /// The text that is missing before it, once the tool is named.
    missing: Option<String>,
}

/// What it is.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    More,
    Text,
    /// A call behind this text.
    Call(String),
}

impl Scan {
    /// The text that is missing before all of an answer that may be a call without any tag.
    pub fn whole(&self, held: &str) -> Option<String> {
        self.missing.clone().filter(|_| held.trim_end().ends_with(['}', ']', ')']))
    }

    /// Processes the character at the end of the held text.
    pub fn step(&mut self, heads: &Heads, c: char, held: &str) -> Found {
        if self.missing.is_none() && !c.is_whitespace() {
            self.came.push(c);
            let came = self.came.as_str();
            let begins =
                |(head, _): &&(String, String)| head.starts_with(came) || came.starts_with(head.as_str());
            let whole = |(head, _): &&(String, String)| came.starts_with(head.as_str());
            let mut found = heads.all.iter().find(whole);
            if found.is_none() && heads.names.iter().any(|name| came.ends_with(name.as_str())) {
                found = heads.objects.iter().find(whole);
            }
            let may_be_object = came.len() < OBJECT_BYTES && heads.objects.iter().any(|h| begins(&h));
            self.missing = found.map(|(_, missing)| missing.clone());
            if self.missing.is_none() && !may_be_object && !heads.all.iter().any(|h| begins(&h)) {
                return Found::Text;
            }
        }
        let is_tag = |tag: &String| tag.ends_with(c) && held.ends_with(tag.as_str());
        match &self.missing {
            Some(missing) if held.starts_with('<') || heads.tags.iter().any(is_tag) => {
                Found::Call(missing.clone())
            }
            _ => Found::More,
        }
    }
}

impl Parser {
    /// Whether a call without its first tag may begin with this character.
    pub(super) fn may_begin_untagged(&self, c: char) -> bool {
        let at_line = !self.started || self.gap.ends_with('\n');
        self.options.untagged_calls
            && self.heads.begin_with(c)
            && at_line
            && self.made_up == 0
            && self.zone == Zone::Content
            && self.format.text.is_none()
            && self.takes_calls()
    }

    /// Begins it.
    pub(super) fn begin_untagged(&mut self, c: char) {
        self.quoted = false;
        self.held.clear();
        self.call = Some(Call::Untagged(Scan::default()));
        self.in_call(crate::tags::Token::Char(c));
    }

    /// The next character of it.
    pub(super) fn untagged(&mut self, found: Found) {
        match found {
            Found::More => {}
            Found::Text => self.give_up(self.held.len()),
            Found::Call(missing) => {
                self.changes.add(Change::Mended);
                self.call = None;
                self.skip = 0;
                self.made_up = missing.len();
                let held = std::mem::take(&mut self.held);
                self.again.push((missing + &held, 0));
            }
        }
    }

    /// A call that was parsed with made-up text before it is none, and its first `end` bytes are text: drops the made-up text. Returns the
    /// number of bytes that are text, which is at least one character.
    pub(super) fn without_made_up(&mut self, end: usize) -> usize {
        let made_up = std::mem::take(&mut self.made_up);
        if made_up == 0 {
            return end;
        }
        let in_held = made_up.min(self.held.len());
        self.held.drain(..in_held);
        if let Some((_, at)) = self.again.last_mut() {
            *at += made_up - in_held;
        }
        let first = self.held.chars().next().map_or(0, char::len_utf8);
        end.saturating_sub(in_held).max(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(heads: &Heads, text: &str) -> Option<(usize, Found)> {
        let mut scan = Scan::default();
        let mut all =
            text.char_indices().map(|(at, c)| (at, scan.step(heads, c, &text[..at + c.len_utf8()])));
        all.find(|(_, found)| *found != Found::More)
    }

    #[test]
    fn a_call_is_one_once_a_tag_has_come() {
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        let heads = Heads {
            all: vec![pair("[get(", "<call>"), pair("get<", "<call>")],
            objects: vec![pair("[{\"", "<call>")],
            names: vec![":\"get\"".into()],
            tags: vec!["<key>".into(), "</call>".into()],
        };
        let call = |at: usize| Some((at, Found::Call("<call>".into())));
        assert_eq!(find(&heads, "[get(a='<b>')]</call>"), call(20));
        assert_eq!(find(&heads, "get\n<key>"), call(8));
        assert_eq!(find(&heads, "[ {\"name\": \"get\"}]</call>"), call(24));
        assert_eq!(find(&heads, "get(1)"), Some((3, Found::Text)));
        assert_eq!(find(&heads, "[{\"name\": \"put\"}]</call>"), None);
        assert_eq!(
            find(&heads, &format!("[{{\"name\": \"{}", "x".repeat(300))).map(|f| f.1),
            Some(Found::Text)
        );
    }
}
