//! A file and all files that it includes, as one configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::problem::quoted;
use crate::read;
use crate::reader::{Reader, folder};
use crate::source::Source;
use crate::yaml::{self, Entry, FILE_BYTES_MAX, Node, Value};
use crate::{Config, Note, Problem, Problems, Span};

/// Maximum number of included files.
const FILES_MAX: usize = 64;

impl Config {
    /// Reads a file.
    pub fn load(path: &Path, source: &dyn Source) -> Result<Self, Problems> {
        let file = path.display().to_string();
        let text = source.read(path, FILE_BYTES_MAX as u64).map_err(|e| {
            let span = Span { file: file.as_str().into(), line: 1, column: 1 };
            Problems(vec![Problem { span, text: format!("the file cannot be read: {e}") }])
        })?;
        Self::parse(&file, &text, source)
    }

    /// Reads the text of a file named `file`; included files are relative to its folder.
    pub fn parse(file: &str, text: &str, source: &dyn Source) -> Result<Self, Problems> {
        let reader = Reader::new(source);
        let mut files = Vec::new();
        let root = gather(&reader, file.into(), text, &mut files);
        let config = root.and_then(|root| match foreign(&root) {
            Some(at) => {
                let text = "these are the keys of llama-swap: `octet config import FILE > octet.yaml` translates its file";
                reader.wrong(at, text);
                None
            }
            None => read::config(&reader, &root),
        });
        let (mut problems, notes) = reader.finish(file);
        match config {
            Some(config) if problems.is_empty() => Ok(Self { files, notes, ..config }),
            _ => {
                if problems.is_empty() {
                    let span = Span { file: file.into(), line: 1, column: 1 };
                    problems.push(Problem { span, text: "the file cannot be parsed".into() });
                }
                Err(Problems(problems))
            }
        }
    }
}

/// The place of llama-swap's models, if this is its file.
fn foreign(root: &Node) -> Option<&Span> {
    let Value::Map(entries) = &root.value else { return None };
    let has = |name: &str| entries.iter().any(|e| e.key == name);
    let models = entries.iter().find(|e| e.key == "models" && matches!(e.node.value, Value::Map(_)))?;
    (!has("model_list") && !has("processes") && !has("include")).then_some(&models.span)
}

/// The problems and notes of a file, for imports.
pub(crate) fn look(
    file: &str,
    text: &str,
    source: &dyn Source,
) -> Result<(Vec<Problem>, Vec<Note>), Problems> {
    let span: Arc<str> = file.into();
    yaml::parse(&span, text, &mut Vec::new()).map_err(|problem| Problems(vec![problem]))?;
    let reader = Reader::new(source);
    if let Some(root) = gather(&reader, span, text, &mut Vec::new()) {
        read::config(&reader, &root);
    }
    Ok(reader.finish(file))
}

/// A file with those that it includes.
fn gather(reader: &Reader, file: Arc<str>, text: &str, files: &mut Vec<PathBuf>) -> Option<Node> {
    files.push(PathBuf::from(&*file));
    let mut notes = Vec::new();
    let mut root = match yaml::parse(&file, text, &mut notes) {
        Ok(root) => {
            notes.iter().for_each(|n| reader.note(&n.span, &n.key, &n.text));
            root
        }
        Err(problem) => {
            reader.wrong(&problem.span, problem.text);
            return None;
        }
    };
    let Value::Map(entries) = &mut root.value else {
        // An empty file gets the same error as one without models.
        if root.value != Value::Null {
            reader.wrong(
                &root.span,
                format!("a configuration must be a mapping of keys to values, not {}", root.value.describe()),
            );
            return None;
        }
        return Some(root);
    };
    for (span, name) in included(reader, entries) {
        if name.contains("://") {
            reader.wrong(
                &span,
                format!("include: {} is not on this machine; only files are included", quoted(&name)),
            );
            continue;
        }
        let path = folder(&span).join(&name);
        if files.contains(&path) {
            reader.wrong(&span, format!("include: {} was already included", quoted(&name)));
            continue;
        }
        if files.len() >= FILES_MAX {
            reader.wrong(&span, format!("include: more than {FILES_MAX} files"));
            return None;
        }
        let other = match reader.read(&path, FILE_BYTES_MAX as u64) {
            Ok(text) => gather(reader, path.display().to_string().into(), &text, files)?,
            Err(e) => {
                reader.wrong(&span, format!("include: {}: {e}", quoted(&name)));
                continue;
            }
        };
        if let Value::Map(others) = other.value {
            merge(reader, entries, others, true);
        }
    }
    Some(root)
}

fn included(reader: &Reader, entries: &[Entry]) -> Vec<(Span, String)> {
    let Some(entry) = entries.iter().find(|e| e.key == "include") else { return Vec::new() };
    let items = match &entry.node.value {
        Value::List(items) => items.as_slice(),
        Value::Null => &[],
        _ => std::slice::from_ref(&entry.node),
    };
    let name = |item: &Node| match &item.value {
        Value::Text(t) => Some((item.span.clone(), t.clone())),
        other => {
            reader.wrong(
                &item.span,
                format!("include: expected the name of a file, found {}", other.describe()),
            );
            None
        }
    };
    items.iter().filter_map(name).collect()
}

/// Adds an included file's keys: top-level lists are joined, mappings merged key by key; the included file takes precedence.
fn merge(reader: &Reader, into: &mut Vec<Entry>, from: Vec<Entry>, top: bool) {
    for entry in from {
        if top && entry.key == "include" {
            continue;
        }
        let Some(own) = into.iter_mut().find(|e| e.key == entry.key) else {
            into.push(entry);
            continue;
        };
        match (&mut own.node.value, entry.node.value) {
            (Value::Map(own), Value::Map(other)) if top => merge(reader, own, other, false),
            (Value::List(own), Value::List(other)) if top => own.extend(other),
            (_, Value::Null) => {}
            (own_value, other) => {
                if *own_value != Value::Null {
                    let text =
                        format!("it replaces the value in {}: included files take precedence", own.span);
                    reader.note(&entry.span, entry.key, text);
                }
                own.node = Node { span: entry.node.span, value: other };
            }
        }
    }
}
