//! The table of call syntaxes that rendering a template cannot show.

use crate::reasoning::ReasoningTags;
use crate::syntax::{Arguments, CallSyntax, JsonType, Keys, Piece, Tagged};
use crate::text::TextTags;

fn text(text: &str) -> Piece {
    Piece::Text(text.into())
}

/// `open[{"name": NAME, "arguments": {...}}, ...]close`.
fn list(open: &str, close: &str) -> CallSyntax {
    let arguments = Piece::Arguments(Arguments::Json);
    CallSyntax {
        open: vec![text(&format!("{open}["))],
        call: vec![text("{\"name\": \""), Piece::Name, text("\", \"arguments\": "), arguments, text("}")],
        separator: Some(vec![text(", ")]),
        close: vec![text(&format!("]{close}"))],
        object: Some(Keys { name: "name".into(), arguments: "arguments".into() }),
    }
}

/// `open[NAME(key=value, ...), ...]close`.
fn python(open: &str, close: &str) -> CallSyntax {
    CallSyntax {
        open: vec![text(&format!("{open}["))],
        call: vec![Piece::Name, text("("), Piece::Arguments(Arguments::Python), text(")")],
        separator: Some(vec![text(", ")]),
        close: vec![text(&format!("]{close}"))],
        object: None,
    }
}

/// Whether a text contains the tags of gpt-oss' messages.
pub(crate) fn is_harmony(text: &str) -> bool {
    ["<|channel|>", "<|message|>", "<|call|>"].iter().all(|tag| text.contains(tag))
}

/// Kimi K3, whose answers are sections between tokens: reasoning, text, calls. All end alike, so comparing does not show where one does.
pub(super) fn sections(template: &str) -> Option<(ReasoningTags, TextTags, CallSyntax)> {
    if !["<|open|>", "<|close|>", "<|sep|>", "'argument'"].iter().all(|t| template.contains(t)) {
        return None;
    }
    let open = |name: &str| format!("<|open|>{name}<|sep|>");
    let close = |name: &str| format!("<|close|>{name}<|sep|>");
    let middle = |of: &str| format!("\" type=\"{of}\"<|sep|>");
    let others = [
        (JsonType::Number, "number"),
        (JsonType::Boolean, "boolean"),
        (JsonType::Null, "null"),
        (JsonType::Array, "array"),
        (JsonType::Object, "object"),
    ];
    let arguments = Piece::Arguments(Arguments::Tagged(Tagged {
        open: "<|open|>argument key=\"".into(),
        text: middle("string"),
        others: others.map(|(of, name)| (of, middle(name))).into(),
        close: close("argument"),
    }));
    let index = [text("\" index=\""), Piece::Number(1), text("\"<|sep|>")];
    let call = [text("<|open|>call tool=\""), Piece::Name].into_iter().chain(index);
    let calls = CallSyntax {
        open: vec![text(&open("tools"))],
        call: call.chain([arguments, text(&close("call"))]).collect(),
        separator: Some(Vec::new()),
        close: vec![text(&close("tools"))],
        object: None,
    };
    let reasoning = ReasoningTags { open: open("think"), close: close("think") };
    Some((
        reasoning,
        TextTags { open: open("response"), close: close("response"), end: close("message") },
        calls,
    ))
}

/// Families whose templates mention the tags of calls but write no calls, or only by means that are not allowed here.
pub(super) fn named_in(template: &str) -> Option<CallSyntax> {
    let has = |text: &str| template.contains(text);
    if has("xml_tools") && has("<tool_call>") {
        // SmolLM3: Hermes' syntax.
        let mut hermes = list("<tool_call>\n", "");
        (hermes.open, hermes.close) = (vec![text("<tool_call>\n")], vec![text("\n</tool_call>")]);
        hermes.separator = Some(vec![text("\n</tool_call>\n<tool_call>\n")]);
        return Some(hermes);
    }
    if has("<|tool_call_start|>") || has("<|tool_list_start|>") || has("List of tools: [") {
        return Some(python("<|tool_call_start|>", "<|tool_call_end|>")); // LFM2
    }
    if has("<|tool_call|>") {
        // Granite 3; Phi-4 mini closes it.
        return Some(list("<|tool_call|>", if has("<|/tool_call|>") { "<|/tool_call|>" } else { "" }));
    }
    if has("<|tool_calls_section_begin|>") {
        // Kimi K2, for templates that modify lists.
        let arguments = Piece::Arguments(Arguments::Json);
        let call = vec![
            Piece::Name,
            text(":"),
            Piece::Number(0),
            text("<|tool_call_argument_begin|>"),
            arguments,
            text("<|tool_call_end|>"),
        ];
        return Some(CallSyntax {
            open: vec![text("<|tool_calls_section_begin|><|tool_call_begin|>functions.")],
            call,
            separator: Some(vec![text("<|tool_call_begin|>functions.")]),
            close: vec![text("<|tool_calls_section_end|>")],
            object: None,
        });
    }
    None
}
