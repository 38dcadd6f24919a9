//! Calls in a syntax derived from a chat template.

use octet_parser::{Arguments as Form, CallSyntax, Piece, Tagged};
use serde_json::Value;

use super::bare::Bare;
use super::texts::text;
use super::{Arguments, Rules, hermes, literal, xml};
use crate::{Error, Tool, Vocabulary, lark};

fn piece(vocabulary: &Vocabulary, piece: &Piece) -> String {
    match piece {
        Piece::Text(t) => text(vocabulary, t),
        Piece::Id => "/[a-zA-Z0-9]{9}/ ".into(),
        Piece::Number(_) => "/[0-9]{1,3}/ ".into(),
        // There are none between calls.
        Piece::Name | Piece::Arguments(_) => String::new(),
    }
}

fn pieces(vocabulary: &Vocabulary, all: &[Piece]) -> String {
    all.iter().map(|p| piece(vocabulary, p)).collect()
}

/// Writes rule `body`: one of these calls, or several.
pub(super) fn section(
    rules: &mut Rules,
    vocabulary: &Vocabulary,
    syntax: &CallSyntax,
    calls: &[String],
    several: bool,
) {
    let more = match syntax.separator.as_deref().filter(|_| several) {
        Some(separator) => format!("({}one)* ", pieces(vocabulary, separator)),
        None => String::new(),
    };
    rules.rule("one", &calls.join(" | "));
    let (open, close) = (pieces(vocabulary, &syntax.open), pieces(vocabulary, &syntax.close));
    rules.rule("calls", &format!("one {more}{close}"));
    rules.rule("section", &format!("{open}calls"));
    rules.rule("body", "section");
}

/// Allows the answer to be text that does not begin like a call: calls are recognised by position.
pub(super) fn or_text(rules: &mut Rules, syntax: &CallSyntax) {
    let first: String =
        syntax.trigger().chars().take(1).map(|c| regex_syntax::escape(&c.to_string())).collect();
    let body = rules.text.rfind("body: section").unwrap_or(rules.text.len());
    rules.text.truncate(body);
    rules.rule("body", &format!("section | /\\s*[^\\s{first}](?s:.*)/ | \"\""));
}

/// Writes rule `call{i}`.
pub(super) fn write(
    rules: &mut Rules,
    vocabulary: &Vocabulary,
    syntax: &CallSyntax,
    i: usize,
    tool: &Tool,
    given: Option<&Arguments<'_>>,
) -> Result<(), Error> {
    let at = syntax.call.iter().position(|p| matches!(p, Piece::Arguments(_))).unwrap_or(syntax.call.len());
    let mut out = String::new();
    for p in &syntax.call[..at] {
        out.push_str(&match p {
            // Within an object it is a JSON string: between its quotation marks nothing else changes.
            Piece::Name if syntax.object.is_some() => {
                lark::literal(Value::from(tool.name.as_str()).to_string().trim_matches('"'))
            }
            Piece::Name => lark::literal(&tool.name),
            other => piece(vocabulary, other),
        });
    }
    let end = pieces(vocabulary, syntax.call.get(at + 1..).unwrap_or_default());
    out.push_str(&match syntax.call.get(at) {
        Some(Piece::Arguments(Form::Tagged(tagged))) => {
            xml::list(rules, &i.to_string(), given, &form(vocabulary, tagged)?, &end)?
        }
        Some(Piece::Arguments(form @ (Form::Python | Form::Gemma | Form::Nested(_)))) => {
            literal::members(rules, vocabulary, form, (i, tool), given, &end)?
        }
        _ => {
            let prepared = hermes::arguments(given)?;
            rules.warnings.extend(prepared.warnings.iter().cloned());
            format!("{}{end}", lark::json(&prepared))
        }
    });
    rules.rule(&format!("call{i}"), &out);
    Ok(())
}

/// The form of a tool's parameters between these tags.
fn form(vocabulary: &Vocabulary, tagged: &Tagged) -> Result<xml::Form, Error> {
    let bare = Bare::closed_by(vocabulary, &tagged.close, text(vocabulary, &tagged.close));
    let close = tagged.close.escape_debug();
    // Each type may have a text of its own: a wrong one does not change the value.
    let mut others: Vec<&str> = tagged.others.iter().map(|(_, t)| t.as_str()).collect();
    others.dedup();
    let others: Vec<String> = others.into_iter().map(|t| text(vocabulary, t)).collect();
    Ok(xml::Form {
        open: text(vocabulary, &tagged.open),
        text: text(vocabulary, &tagged.text),
        other: match others.as_slice() {
            [] => text(vocabulary, &tagged.text),
            [one] => one.clone(),
            several => format!("({}) ", several.join("| ")),
        },
        bare: bare
            .ok_or_else(|| Error::Tools(format!("what ends a value, '{close}', cannot be enforced")))?,
    })
}
