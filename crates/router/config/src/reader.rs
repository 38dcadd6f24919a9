//! Shared state while a file is read: the source of variables, and the problems so far. Created by `load`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Number, Value as Json};

use crate::problem::quoted;
use crate::source::Source;
use crate::yaml::{Entry, Node, Value};
use crate::{Note, Problem, Secret, Span, header};

/// Collects all errors, so that they are reported together.
pub(crate) struct Reader<'a> {
    source: &'a dyn Source,
    /// `environment_variables`: take precedence over those of the process, as in LiteLLM.
    variables: RefCell<Vec<(String, String)>>,
    problems: RefCell<Vec<Problem>>,
    notes: RefCell<Vec<Note>>,
    /// Why an entry is left out, if that is not an error: a variable that is not set, an unknown provider.
    missing: RefCell<Option<Vec<String>>>,
    /// Keys of `--ignore-unsupported` that were found in the file.
    excused: RefCell<BTreeSet<String>>,
    /// Keys that were read: sections and names. For the test that every declared key is read.
    asked: RefCell<BTreeSet<(&'static str, &'static str)>>,
}

/// Reads a text from the environment.
const VARIABLE: &str = "os.environ/";
/// Reads a secret from a file,
const FILE: &str = "file:";
/// of at most this size: longer ones are not keys.
const KEY_BYTES_MAX: u64 = 16 << 10;

impl<'a> Reader<'a> {
    pub fn new(source: &'a dyn Source) -> Self {
        Self {
            source,
            variables: RefCell::default(),
            problems: RefCell::default(),
            notes: RefCell::default(),
            missing: RefCell::default(),
            excused: RefCell::default(),
            asked: RefCell::default(),
        }
    }

    /// Reports an error.
    pub fn wrong(&self, span: &Span, text: impl Into<String>) {
        self.problems.borrow_mut().push(Problem { span: span.clone(), text: text.into() });
    }

    /// Reports an unsupported key that protects something or changes answers. A key that is off is not reported.
    pub fn unsupported(&self, entry: &Entry, path: &str, why: &str) {
        if !entry.node.value.is_off() {
            self.not_enforced(&entry.span, path, why);
        }
    }

    /// The same for a value: `path` is its name in `--ignore-unsupported`.
    pub fn not_enforced(&self, span: &Span, path: &str, why: &str) {
        let short = path.rsplit('.').next().unwrap_or(path);
        if let Some(name) = self.source.ignores().iter().find(|n| [path, short, "*"].contains(&n.as_str())) {
            self.excused.borrow_mut().insert(name.clone());
            self.note(span, path, format!("NOT ENFORCED, because of --ignore-unsupported: {why}"));
        } else {
            let way = format!("to start without it: --ignore-unsupported {path}");
            self.wrong(span, format!("{path} is not supported: {why} ({way})"));
        }
    }

    /// Adds a note.
    pub fn note(&self, span: &Span, key: impl Into<String>, text: impl Into<String>) {
        let note = Note { span: span.clone(), key: key.into(), text: text.into() };
        let mut notes = self.notes.borrow_mut();
        if !notes.contains(&note) {
            notes.push(note);
        }
    }

    /// Sets a variable for the rest of the file.
    pub fn set_variable(&self, name: &str, value: String) {
        self.variables.borrow_mut().push((name.to_string(), value));
    }

    /// A variable of the file or of the process.
    pub fn variable(&self, name: &str) -> Option<String> {
        let own = self.variables.borrow().iter().rev().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        own.or_else(|| self.source.variable(name)).filter(|v| !v.trim().is_empty())
    }

    /// Reads a file.
    pub fn read(&self, path: &Path, bytes_max: u64) -> std::io::Result<String> {
        self.source.read(path, bytes_max)
    }

    /// Reports a required variable that is not set.
    pub fn lacks(&self, span: &Span, name: &str) {
        match &mut *self.missing.borrow_mut() {
            Some(missing) => missing.push(format!("the environment variable {name} is not set")),
            None => self.wrong(
                span,
                format!("the environment variable {name} is not set: set it, or use a value instead"),
            ),
        }
    }

    /// Leaves an entry out for this reason; outside of an entry it is an error.
    pub fn unfit(&self, span: &Span, reason: impl Into<String>) {
        match &mut *self.missing.borrow_mut() {
            Some(missing) => missing.push(reason.into()),
            None => self.wrong(span, reason),
        }
    }

    /// Runs `read`; reasons to leave the entry out are returned instead of reported.
    pub fn leaving_out<T>(&self, read: impl FnOnce() -> T) -> (T, Vec<String>) {
        *self.missing.borrow_mut() = Some(Vec::new());
        let result = read();
        (result, self.missing.borrow_mut().take().unwrap_or_default())
    }

    /// Records that a key was read.
    pub fn ask(&self, section: &'static str, key: &'static str) {
        self.asked.borrow_mut().insert((section, key));
    }

    /// The keys that were read.
    #[cfg(test)]
    pub fn asked(&self) -> BTreeSet<(&'static str, &'static str)> {
        self.asked.borrow().clone()
    }

    /// Problems and notes, in the order of the file.
    pub fn finish(self, file: &str) -> (Vec<Problem>, Vec<Note>) {
        let (mut problems, mut notes) = (self.problems.into_inner(), self.notes.into_inner());
        let excused = self.excused.into_inner();
        for name in self.source.ignores().iter().filter(|n| *n != "*" && !excused.contains(*n)) {
            let span = Span { file: file.into(), line: 1, column: 1 };
            let text = format!("the file has no unsupported key '{name}'");
            notes.push(Note { span, key: "--ignore-unsupported".into(), text });
        }
        problems.sort_by_key(|p| (p.span.file.clone(), p.span.line, p.span.column));
        problems.dedup();
        notes.sort_by_key(|n| (n.span.file.clone(), n.span.line, n.span.column));
        (problems, notes)
    }

    /// Whether there are errors so far.
    pub fn failed(&self) -> bool {
        !self.problems.borrow().is_empty()
    }

    /// A text, with `os.environ/NAME` resolved; `None` if the variable is not set.
    pub fn resolve(&self, span: &Span, text: &str) -> Option<String> {
        let Some(name) = text.strip_prefix(VARIABLE) else { return Some(text.to_string()) };
        let value = self.variable(name.trim());
        if value.is_none() {
            self.lacks(span, name.trim());
        }
        value
    }

    /// A secret: resolved, or from a file. All of them are sent in headers, or compared with one. `what`: its description in
    /// errors.
    pub fn secret(&self, span: &Span, what: &str, text: &str) -> Option<Secret> {
        let text = match text.strip_prefix(FILE) {
            Some(path) => match self.read(&self.path(span, path), KEY_BYTES_MAX) {
                Ok(text) => text,
                Err(e) => {
                    self.wrong(span, format!("{}: {e}", quoted(path)));
                    return None;
                }
            },
            None => self.resolve(span, text)?,
        };
        let secret = Secret::new(&text);
        if secret.is_none() {
            self.wrong(span, "the key is empty: use os.environ/NAME, file:PATH or the key, or remove it");
        }
        secret.filter(|s| self.sendable(span, what, s.expose()))
    }

    /// Whether a text can be sent in a header; reports it otherwise.
    pub fn sendable(&self, span: &Span, what: &str, text: &str) -> bool {
        let wrong = header::wrong_value(text);
        if let Some(why) = wrong {
            self.wrong(span, format!("{what} {why}"));
        }
        wrong.is_none()
    }

    /// A path relative to the folder of the file that contains it.
    pub fn path(&self, span: &Span, path: &str) -> PathBuf {
        folder(span).join(path)
    }

    /// A value that is passed on unchanged. `os.environ/NAME` is resolved.
    pub fn json(&self, node: &Node) -> Json {
        match &node.value {
            Value::Null => Json::Null,
            Value::Bool(b) => Json::Bool(*b),
            Value::Int(i) => integer(*i).map_or(Json::Null, Json::Number),
            Value::Float(f) => Number::from_f64(*f).map_or(Json::Null, Json::Number),
            Value::Text(t) => self.resolve(&node.span, t).map_or(Json::Null, Json::String),
            Value::List(items) => Json::Array(items.iter().map(|i| self.json(i)).collect()),
            Value::Map(entries) => Json::Object(self.json_map(entries)),
        }
    }

    /// The same for a mapping.
    pub fn json_map(&self, entries: &[Entry]) -> Map<String, Json> {
        entries.iter().map(|e| (e.key.clone(), self.json(&e.node))).collect()
    }
}

/// The folder of the file that contains `span`.
pub(crate) fn folder(span: &Span) -> &Path {
    Path::new(&*span.file).parent().unwrap_or(Path::new(""))
}

/// YAML's integers have 64 bits, signed or unsigned.
fn integer(i: i128) -> Option<Number> {
    u64::try_from(i).map(Number::from).or_else(|_| i64::try_from(i).map(Number::from)).ok()
}
