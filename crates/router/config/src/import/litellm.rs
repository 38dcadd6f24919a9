//! LiteLLM's config.yaml: it is valid as it is; keys without effect here are commented out, each with its reason.

use super::lines::{extent, put_hash};
use super::llama_swap::quote;
use super::{Imported, with_notes};
use crate::source::Source;
use crate::yaml::{self, Entry, Node, Value};
use crate::{Problem, Problems, Span, load, sections};

/// Translates it. The result passes `octet config check`.
pub(super) fn import(file: &str, text: &str, source: &dyn Source) -> Result<Imported, Problems> {
    let mut out = Commented::new(file, text);
    let mut changes: Vec<(u32, String)> = Vec::new();
    // One at a time, because one problem can cause others. Errors first: notes may disappear with them.
    loop {
        let (problems, notes) = load::look(file, &out.text(), source)?;
        let unused = notes.iter().find(|n| *n.span.file == *file && sections::is_unused(&n.key));
        let (span, text) = match (problems.first(), unused) {
            (Some(Problem { span, text }), _) => (span.clone(), text.clone()),
            (None, Some(note)) => (note.span.clone(), format!("{}: {}", note.key, note.text)),
            (None, None) => {
                changes.extend(notes.iter().map(|n| (out.origin(&n.span), format!("{}: {}", n.key, n.text))));
                break;
            }
        };
        let line = out.origin(&span);
        match out.take_out(&span, &text)? {
            Done::Commented => changes.push((line, format!("now a comment: {text}"))),
            Done::Unfolded => {}
            Done::Nothing => return Err(Problems(problems)),
        }
    }
    changes.sort();
    let changes = changes.into_iter().map(|(line, text)| format!("line {line}: {text}")).collect();
    Ok(with_notes("LiteLLM's file", changes, &out.with_reasons()))
}

/// The result of commenting out a place.
enum Done {
    /// A part that contains it was commented out.
    Commented,
    /// A part that contains it was in braces, and was split into lines.
    Unfolded,
    /// No part that contains it has its own lines.
    Nothing,
}

/// A file of which parts are commented out.
struct Commented<'a> {
    file: &'a str,
    lines: Vec<String>,
    /// For each line: its number in the user's file.
    origins: Vec<u32>,
    /// For each line: the reasons that are written above it.
    reasons: Vec<Vec<String>>,
}

impl<'a> Commented<'a> {
    fn new(file: &'a str, text: &str) -> Self {
        let lines: Vec<String> = text.lines().map(String::from).collect();
        Self {
            file,
            origins: (1..).take(lines.len()).collect(),
            reasons: vec![Vec::new(); lines.len()],
            lines,
        }
    }

    fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }

    fn origin(&self, span: &Span) -> u32 {
        if *span.file != *self.file {
            return span.line;
        }
        self.origins.get(span.line as usize - 1).copied().unwrap_or(span.line)
    }

    fn with_reasons(&self) -> String {
        let mut out = String::new();
        for (line, reasons) in self.lines.iter().zip(&self.reasons) {
            let indent: String = line.chars().take_while(|c| *c == ' ').collect();
            for reason in reasons {
                out += &format!("{indent}# octet: {reason}\n");
            }
            out += &format!("{line}\n");
        }
        out
    }

    /// Comments out the smallest part that contains a place.
    fn take_out(&mut self, at: &Span, reason: &str) -> Result<Done, Problems> {
        let text = self.text();
        let root = yaml::parse(&self.file.into(), &text, &mut Vec::new()).map_err(|p| Problems(vec![p]))?;
        let mut parts = Vec::new();
        holding(&root, (at, reason), &mut parts);
        let smallest = parts.len();
        for (i, part) in parts.iter().enumerate().rev() {
            let begin = self.begin(part);
            let Some(lines) = extent(&self.lines, &begin, part.key.is_none()) else { continue };
            if i + 1 < smallest
                && let Some(unfolded) = self.unfolded(part, &self.lines[lines.clone()])
            {
                let count = unfolded.len();
                let origin = self.origins[lines.start];
                self.lines.splice(lines.clone(), unfolded);
                self.origins.splice(lines.clone(), vec![origin; count]);
                self.reasons.splice(lines, vec![Vec::new(); count]);
                return Ok(Done::Unfolded);
            }
            put_hash(&mut self.lines[lines.clone()], &begin);
            let reason = reason.lines().collect::<Vec<_>>().join(" ");
            self.reasons[lines.start].push(reason);
            return Ok(Done::Commented);
        }
        Ok(Done::Nothing)
    }

    /// The start of a part: an item starts at its dash.
    fn begin(&self, part: &Part) -> Span {
        let line = self.lines.get(part.span.line as usize - 1).map_or("", |l| l.as_str());
        let before: Vec<char> = line.chars().take(part.span.column as usize - 1).collect();
        let dash = before.iter().rposition(|c| *c == '-').filter(|_| part.key.is_none());
        Span { column: dash.map_or(part.span.column, |at| at as u32 + 1), ..part.span.clone() }
    }

    /// The lines of a part whose value is in braces or brackets, one per entry.
    fn unfolded(&self, part: &Part, lines: &[String]) -> Option<Vec<String>> {
        let at = &part.node.span;
        let first = self.lines.get(at.line as usize - 1)?.chars().nth(at.column as usize - 1)?;
        let inner: Vec<String> = match &part.node.value {
            Value::Map(entries) if first == '{' => {
                entries.iter().map(|e| format!("{}: {}", quote(&e.key), flow(&e.node))).collect()
            }
            Value::List(items) if first == '[' && part.key.is_some() => {
                items.iter().map(|i| format!("- {}", flow(i))).collect()
            }
            _ => return None,
        };
        // Anchors must stay.
        if inner.is_empty() || lines.iter().any(|l| l.contains('&')) {
            return None;
        }
        let column = part.span.column as usize - 1;
        let begin: String = lines[0].chars().take(column).collect();
        let indent = " ".repeat(column);
        Some(match part.key {
            Some(key) => {
                let head = format!("{begin}{}:", quote(key));
                std::iter::once(head).chain(inner.iter().map(|l| format!("{indent}  {l}"))).collect()
            }
            None => {
                let begins = std::iter::once(&begin).chain(std::iter::repeat(&indent));
                begins.zip(&inner).map(|(begin, l)| format!("{begin}{l}")).collect()
            }
        })
    }
}

/// A key with its value, or an item of a list.
struct Part<'a> {
    span: &'a Span,
    key: Option<&'a str>,
    node: &'a Node,
}

/// The parts that contain a place, from the outside in. A mapping starts at its first key: it is the
/// key if the message names it.
fn holding<'a>(node: &'a Node, complaint: (&Span, &str), out: &mut Vec<Part<'a>>) {
    let (at, text) = complaint;
    let before = |span: &Span| *span.file == *at.file && (span.line, span.column) <= (at.line, at.column);
    let part = match &node.value {
        Value::Map(entries) => {
            let entries = entries.iter().filter(|e: &&Entry| before(&e.span));
            let Some(e) = entries.max_by_key(|e| (e.span.line, e.span.column)) else { return };
            if e.span == *at && !names(text, &e.key) {
                return;
            }
            Part { span: &e.span, key: Some(&e.key), node: &e.node }
        }
        Value::List(items) => {
            let Some(i) = items.iter().rfind(|i| before(&i.span)) else { return };
            Part { span: &i.span, key: None, node: i }
        }
        _ => return,
    };
    let node = part.node;
    out.push(part);
    holding(node, complaint, out);
}

/// Whether a message is about this key itself, and not about a missing one beside it.
fn names(text: &str, key: &str) -> bool {
    ["' ", "':", ": ", " is not supported"].iter().any(|after| text.contains(&format!("{key}{after}")))
}

/// A value in one line, in the syntax that YAML shares with JSON.
fn flow(node: &Node) -> String {
    match &node.value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Int(i) => i.to_string(),
        Value::Float(f) => format!("{f:?}"),
        Value::Text(t) => quote(t),
        Value::List(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Map(entries) => {
            let inner: Vec<String> =
                entries.iter().map(|e| format!("{}: {}", quote(&e.key), flow(&e.node))).collect();
            format!("{{{}}}", inner.join(", "))
        }
    }
}
