//! Answers of families in which text has a header, as calls have: Functionary 3.2, Muse Glimmer, Kimi K3.

use octet_parser::{CallSyntax, Piece};

use super::Rules;
use super::texts::{any_text, text};
use crate::{Error, Header, Vocabulary, lark};

/// The rule `start` for an answer that is `body`, after its header unless the body has headers itself. Reasoning comes first: up to the
/// text `reasoning` if the answer begins within it, and otherwise if the model likes.
pub fn start(
    vocabulary: &Vocabulary,
    header: &Header,
    reasoning: Option<&str>,
    body: &str,
    calls: bool,
) -> String {
    let mut rules = Rules::default();
    let open = if calls { String::new() } else { text(vocabulary, &header.text.open) };
    let thought = match (reasoning, &header.reasoning) {
        (Some(close), _) => any_text(&mut rules, vocabulary, close),
        (None, Some(tags)) => {
            let close = any_text(&mut rules, vocabulary, &tags.close);
            format!("({}{close})? ", text(vocabulary, &tags.open))
        }
        (None, None) => String::new(),
    };
    rules.rule("start", &format!("{thought}{open}{body}"));
    rules.text
}

/// Replaces rule `body` by calls, after text if it is allowed (`allows_text`); an answer may then be text alone.
pub(super) fn body(
    rules: &mut Rules,
    vocabulary: &Vocabulary,
    header: &Header,
    syntax: &CallSyntax,
    allows_text: bool,
) -> Result<(), Error> {
    rules.text.truncate(rules.text.rfind("body: section").unwrap_or(rules.text.len()));
    let (open, close) = (text(vocabulary, &header.text.open), text(vocabulary, &header.text.close));
    // Text that has an end precedes calls, even if it is empty.
    let before = if close.is_empty() { String::new() } else { format!("{open}{close}") };
    if !allows_text {
        rules.rule("body", &format!("{before}section"));
        return Ok(());
    }
    let trigger = syntax.trigger();
    if vocabulary.special(trigger).is_some() {
        // No text contains a token.
        let between = match (&syntax.separator.as_deref(), syntax.open.as_slice()) {
            (Some([Piece::Text(separator), ..]), [Piece::Text(open), ..]) => {
                separator.strip_suffix(open.as_str()).unwrap_or_default()
            }
            _ => "",
        };
        let (alone, end) =
            if close.is_empty() { ("section | ", text(vocabulary, between)) } else { ("", close) };
        rules.rule("body", &format!("{alone}{open}/(?s:.*)/ ({end}section?)?"));
        return Ok(());
    }
    if syntax.open != [Piece::Text(trigger.into())] {
        let what = format!("the model has no token {trigger}, so calls within text cannot be recognised");
        return Err(Error::Tools(what));
    }
    // What begins calls may be text as well, unless a letter follows, or what begins calls once more.
    let mark = lark::literal(trigger);
    rules.rule("body", &format!("section | {open}text"));
    rules.rule("text", "PLAIN | marked (calls | OTHER text)");
    rules.rule(&format!("marked[suffix={}]", mark.trim_end()), "/(?s:.*)/");
    let mark = regex_syntax::escape(trigger).replace('/', "\\/");
    rules.rule("PLAIN", &format!("/(?s:.*)/ & ~/(?s:.*){mark}(?s:.*)/"));
    let first: String = trigger.chars().take(1).map(|c| regex_syntax::escape(&c.to_string())).collect();
    rules.rule("OTHER", &format!("/[^a-zA-Z0-9_{}]/", first.replace('/', "\\/")));
    Ok(())
}
