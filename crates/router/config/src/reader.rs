//! What is shared while a file is read: where variables come from, and what was found wrong so far. Made by `load`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Number, Value as Json};

use crate::problem::quoted;
use crate::source::Source;
use crate::yaml::{Entry, Node, Value};
use crate::{Note, Problem, Secret, Span, header};

/// Reads on after each mistake, so that the user hears of all of them at once.
pub(crate) struct Reader<'a> {
    source: &'a dyn Source,
    /// `environment_variables`: beat those of the process, as LiteLLM has it.
    variables: RefCell<Vec<(String, String)>>,
    problems: RefCell<Vec<Problem>>,
    notes: RefCell<Vec<Note>>,
    /// Why an entry is left out, if that is not an error: a variable that is not set, an unknown provider.
    missing: RefCell<Option<Vec<String>>>,
    /// Names in the user's list of what need not be enforced that were found in the file.
    excused: RefCell<BTreeSet<String>>,
    /// Keys that were looked for: sections and names. For the test that none is declared and then forgotten.
    asked: RefCell<BTreeSet<(&'static str, &'static str)>>,
}

/// Reads a text from the environment.
const VARIABLE: &str = "os.environ/";
/// Reads a secret from a file,
const FILE: &str = "file:";
/// which is no longer than this: longer ones are no keys.
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

    /// Something is wrong.
    pub fn wrong(&self, span: &Span, text: impl Into<String>) {
        self.problems.borrow_mut().push(Problem { span: span.clone(), text: text.into() });
    }

    /// A key that guards something, or changes answers, and has no effect here. What is switched off needs no word.
    pub fn unsupported(&self, entry: &Entry, path: &str, why: &str) {
        if !entry.node.value.is_off() {
            self.not_enforced(&entry.span, path, why);
        }
    }

    /// The same of a value: `path` is what `--ignore-unsupported` names it by.
    pub fn not_enforced(&self, span: &Span, path: &str, why: &str) {
        let short = path.rsplit('.').next().unwrap_or(path);
        if let Some(name) = self.source.ignores().iter().find(|n| [path, short, "*"].contains(&n.as_str())) {
            self.excused.borrow_mut().insert(name.clone());
            self.note(span, path, format!("NOT ENFORCED, as --ignore-unsupported says: {why}"));
        } else {
            let way = format!("to start without it: --ignore-unsupported {path}");
            self.wrong(span, format!("{path} is not supported: {why} ({way})"));
        }
    }

    /// Something is worth a word.
    pub fn note(&self, span: &Span, key: impl Into<String>, text: impl Into<String>) {
        let note = Note { span: span.clone(), key: key.into(), text: text.into() };
        let mut notes = self.notes.borrow_mut();
        if !notes.contains(&note) {
            notes.push(note);
        }
    }

    /// Sets a variable for what is read from now on.
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

    /// A variable that is needed and not set.
    pub fn lacks(&self, span: &Span, name: &str) {
        match &mut *self.missing.borrow_mut() {
            Some(missing) => missing.push(format!("the environment variable {name} is not set")),
            None => self.wrong(
                span,
                format!("the environment variable {name} is not set: set it, or write a value here"),
            ),
        }
    }

    /// An entry that cannot be offered is left out for this reason; elsewhere it is a mistake.
    pub fn unfit(&self, span: &Span, reason: impl Into<String>) {
        match &mut *self.missing.borrow_mut() {
            Some(missing) => missing.push(reason.into()),
            None => self.wrong(span, reason),
        }
    }

    /// Runs `read`; variables that are not set are no mistakes meanwhile, but the second result.
    pub fn leaving_out<T>(&self, read: impl FnOnce() -> T) -> (T, Vec<String>) {
        *self.missing.borrow_mut() = Some(Vec::new());
        let result = read();
        (result, self.missing.borrow_mut().take().unwrap_or_default())
    }

    /// A key was looked for.
    pub fn ask(&self, section: &'static str, key: &'static str) {
        self.asked.borrow_mut().insert((section, key));
    }

    /// What was looked for.
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

    /// Whether something is wrong so far.
    pub fn failed(&self) -> bool {
        !self.problems.borrow().is_empty()
    }

    /// A text with `os.environ/NAME` looked up; `None` where that is not set.
    pub fn resolve(&self, span: &Span, text: &str) -> Option<String> {
        let Some(name) = text.strip_prefix(VARIABLE) else { return Some(text.to_string()) };
        let value = self.variable(name.trim());
        if value.is_none() {
            self.lacks(span, name.trim());
        }
        value
    }

    /// A secret: looked up, or from a file. All of them are sent in headers, or compared with what came in one. `what` it is, for
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
            self.wrong(
                span,
                "the key is empty: write os.environ/NAME, file:PATH or the key, or leave it out",
            );
        }
        secret.filter(|s| self.sendable(span, what, s.expose()))
    }

    /// Whether a text can be sent in a header; it is a mistake where it cannot.
    pub fn sendable(&self, span: &Span, what: &str, text: &str) -> bool {
        let wrong = header::wrong_value(text);
        if let Some(why) = wrong {
            self.wrong(span, format!("{what} {why}"));
        }
        wrong.is_none()
    }

    /// A path that is meant from the folder of the file that it stands in.
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

    /// The same of a mapping.
    pub fn json_map(&self, entries: &[Entry]) -> Map<String, Json> {
        entries.iter().map(|e| (e.key.clone(), self.json(&e.node))).collect()
    }
}

/// The folder of the file that something stands in.
pub(crate) fn folder(span: &Span) -> &Path {
    Path::new(&*span.file).parent().unwrap_or(Path::new(""))
}

/// YAML's integers are read as 64 bits, with a sign or without.
fn integer(i: i128) -> Option<Number> {
    u64::try_from(i).map(Number::from).or_else(|_| i64::try_from(i).map(Number::from)).ok()
}
