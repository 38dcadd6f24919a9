//! The table of call syntaxes that rendering a template cannot show. Used by `derive`.

use crate::syntax::{Arguments, CallSyntax, Keys, Piece};

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
