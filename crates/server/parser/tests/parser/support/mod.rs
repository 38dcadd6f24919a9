//! What the tests of the parser share: tools, answers with what they mean, and ways to feed them.

pub mod answers;
pub mod render;

use octet_parser::{Format, Message, Options, Parser, ReasoningTags, Start, Tool, ToolSyntax};
use serde_json::json;

/// Tools of all kinds of parameters.
pub fn tools() -> Vec<Tool> {
    let tool = |name: &str, parameters| Tool { name: name.into(), parameters };
    vec![
        tool(
            "get_weather",
            json!({"type": "object", "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer"},
            }, "required": ["city"]}),
        ),
        tool(
            "write_file",
            json!({"type": "object", "properties": {
                "path": {"type": "string"},
                "content": {"type": "string"},
                "mode": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "meta": {"$ref": "#/$defs/meta"},
                "force": {"type": "boolean"},
            }, "$defs": {"meta": {"type": "object"}}}),
        ),
        tool("now", json!({"type": "object", "properties": {}})),
    ]
}

/// A parser of answers in `syntax`, with the tools.
pub fn parser(syntax: ToolSyntax, in_reasoning: bool, options: Options) -> Parser {
    let format = Format { reasoning: Some(ReasoningTags::default()), tools: syntax, text: None };
    Parser::new(format, Start { in_reasoning, ..Start::default() }, tools(), options)
}

/// The parsed form of an answer in these pieces.
pub fn feed<'a>(mut parser: Parser, pieces: impl IntoIterator<Item = &'a str>) -> Message {
    let mut message = Message::default();
    for piece in pieces {
        parser.push(piece, &mut |delta| message.add(delta));
    }
    parser.finish(&mut |delta| message.add(delta));
    message
}

/// Every split of `text` in two, and its characters one by one.
pub fn cuts(text: &str) -> Vec<Vec<&str>> {
    let at = text.char_indices().map(|(i, _)| i);
    let mut all: Vec<Vec<&str>> = at.clone().map(|i| vec![&text[..i], &text[i..]]).collect();
    all.push(at.map(|i| &text[i..i + text[i..].chars().next().map_or(0, char::len_utf8)]).collect());
    all
}
