//! Texts of a call syntax in Lark.

use octet_parser::tags;

use super::Rules;
use crate::{Vocabulary, lark};

/// A text of the syntax, with its tags as tokens. A mark before nested tags is a lexeme of its own without a token, too: several tags may
/// follow it.
pub(super) fn text(vocabulary: &Vocabulary, text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(tag) = tags(rest).find(|t| t.starts_with(']') || vocabulary.special(t).is_some()) {
        let at = tag.as_ptr() as usize - rest.as_ptr() as usize;
        if at > 0 {
            out.push_str(&lark::literal(&rest[..at]));
        }
        match vocabulary.special(tag) {
            // An end token ends the answer by itself.
            Some(id) if vocabulary.eos().contains(&id) => return out,
            Some(id) => out.push_str(&lark::token(id)),
            None => out.push_str(&lark::literal(tag)),
        }
        rest = &rest[at + tag.len()..];
    }
    if !rest.is_empty() {
        out.push_str(&lark::literal(rest));
    }
    out
}

/// Any text up to and including this tag.
pub(super) fn any_text(rules: &mut Rules, vocabulary: &Vocabulary, tag: &str) -> String {
    // No text contains a token.
    if tags(tag).next().is_some_and(|t| tag.starts_with(t) && vocabulary.special(t).is_some()) {
        return format!("/(?s:.*)/ {}", text(vocabulary, tag));
    }
    let rule = format!("any_text[suffix={}]", lark::literal(tag).trim_end());
    if !rules.text.lines().any(|line| line.starts_with(&rule)) {
        rules.rule(&rule, "/(?s:.*)/");
    }
    "any_text ".into()
}
