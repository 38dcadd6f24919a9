//! Calls in a syntax that was read off a chat template. Called by `tools`.

use octet_parser::{CallSyntax, JsonType, Piece, Tagged, tags};
use serde_json::Value;

use super::{Arguments, Rules, hermes, subject};
use crate::schema::pointer_segment;
use crate::{Error, Tool, Vocabulary, lark};

/// Text of the syntax, with its tags as the tokens that they are.
pub(super) fn text(vocabulary: &Vocabulary, text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    let special = |t: &str| Some((t.len(), vocabulary.special(t)?));
    while let Some((at, (len, id))) =
        tags(rest).find_map(|t| Some((t.as_ptr() as usize - rest.as_ptr() as usize, special(t)?)))
    {
        if at > 0 {
            out.push_str(&lark::literal(&rest[..at]));
        }
        // What ends an answer ends it by itself.
        if vocabulary.eos().contains(&id) {
            return out;
        }
        out.push_str(&lark::token(id));
        rest = &rest[at + len..];
    }
    if !rest.is_empty() {
        out.push_str(&lark::literal(rest));
    }
    out
}

/// Any text up to this tag, and the tag.
pub(super) fn any_text(rules: &mut Rules, vocabulary: &Vocabulary, tag: &str) -> String {
    if let Some(id) = vocabulary.special(tag) {
        return format!("/(?s:.*)/ {}", lark::token(id));
    }
    let rule = format!("any_text[suffix={}]", lark::literal(tag).trim_end());
    if !rules.text.lines().any(|line| line.starts_with(&rule)) {
        rules.rule(&rule, "/(?s:.*)/");
    }
    "any_text ".into()
}

fn piece(vocabulary: &Vocabulary, piece: &Piece) -> String {
    match piece {
        Piece::Text(t) => text(vocabulary, t),
        Piece::Id => "/[a-zA-Z0-9]{9}/ ".into(),
        Piece::Number(_) => "/[0-9]{1,3}/ ".into(),
        // Where they stand between calls there are none.
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
    rules.rule("body", &format!("{open}one {more}{close}"));
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
    let mut out = String::new();
    for p in &syntax.call {
        out.push_str(&match p {
            // Within an object it is a text of JSON: between its quotation marks nothing else changes.
            Piece::Name if syntax.object.is_some() => {
                lark::literal(Value::from(tool.name.as_str()).to_string().trim_matches('"'))
            }
            Piece::Name => lark::literal(&tool.name),
            Piece::Arguments(octet_parser::Arguments::Json) => {
                let prepared = hermes::arguments(given)?;
                rules.warnings.extend(prepared.warnings.iter().cloned());
                lark::json(&prepared)
            }
            Piece::Arguments(octet_parser::Arguments::Tagged(tagged)) => {
                parameters(rules, vocabulary, tagged, i, given)?
            }
            Piece::Arguments(octet_parser::Arguments::Python | octet_parser::Arguments::Gemma) => {
                let what = "are not enforced in this model's syntax";
                rules.warnings.push(format!("{}: {what}", subject(tool)));
                "/[^)}]*/ ".into()
            }
            other => piece(vocabulary, other),
        });
    }
    rules.rule(&format!("call{i}"), &out);
    Ok(())
}

/// The parameters that the schema lists, in its order.
fn parameters(
    rules: &mut Rules,
    vocabulary: &Vocabulary,
    tagged: &Tagged,
    i: usize,
    given: Option<&Arguments<'_>>,
) -> Result<String, Error> {
    let close = tagged.close.trim();
    let behind = &tagged.close[tagged.close.find(close).unwrap_or(0) + close.len()..];
    let behind = if behind.is_empty() { String::new() } else { lark::literal(behind) };
    let any = any_text(rules, vocabulary, close);
    let Some(arguments) = given.filter(|a| a.schema.is_object()) else { return Ok(String::new()) };
    let whole = arguments.prepare(arguments.schema, &arguments.path, true)?;
    rules.warnings.extend(whole.warnings);
    let required: Vec<&str> =
        arguments.schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut out = String::new();
    for (j, (name, schema)) in arguments.schema["properties"].as_object().into_iter().flatten().enumerate() {
        let path = format!("{}/properties/{}", arguments.path, pointer_segment(name));
        let of = schema["type"].as_str().and_then(JsonType::named);
        let choices: Option<Vec<&str>> =
            schema["enum"].as_array().and_then(|all| all.iter().map(Value::as_str).collect());
        let end = text(vocabulary, &tagged.close);
        let value = match (of, choices) {
            (Some(_), _) => format!("{}{end}", lark::json(&arguments.prepare(schema, &path, false)?)),
            (None, Some(choices)) => {
                let choices: Vec<String> = choices.into_iter().map(lark::literal).collect();
                format!("({}) {end}", choices.join("| "))
            }
            (None, None) => format!("{any}{behind}"),
        };
        let head = text(vocabulary, &format!("{}{name}{}", tagged.open, tagged.middle(of)));
        let rule = format!("parameter{i}_{j}");
        rules.rule(&rule, &format!("{head}{value}"));
        out.push_str(&if required.contains(&name.as_str()) {
            format!("{rule} ")
        } else {
            format!("[{rule}] ")
        });
    }
    Ok(out)
}
