//! User input: with line editing and history on a terminal, line by line otherwise.

use std::io::{BufRead, ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Cmd, Context, Editor, Helper, KeyCode, KeyEvent, Modifiers};

use super::commands::NAMES;
use crate::sampling;
use crate::stderr::note;

/// Begins and ends a multi-line text.
const QUOTES: &str = "\"\"\"";

/// Maximum size of input that is not typed.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// One input.
#[derive(Debug, PartialEq, Eq)]
pub enum Typed {
    /// One or several lines.
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the end of the file.
    End,
}

/// The source of input.
pub enum Input {
    Editor { editor: Box<Editor<Typing, DefaultHistory>>, history: Option<PathBuf> },
    Lines,
}

/// Decides when input is complete, and completes commands.
pub struct Typing(FilenameCompleter);

impl Helper for Typing {}
impl Highlighter for Typing {}
impl Hinter for Typing {
    type Hint = String;
}

impl Validator for Typing {
    fn validate(&self, typed: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        let open = is_open(typed.input());
        Ok(if open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Completer for Typing {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..pos];
        if ["/save ", "/load ", "/model "].iter().any(|c| typed.starts_with(c)) {
            return self.0.complete(line, pos, context);
        }
        let (start, names): (_, Vec<&str>) = match typed.strip_prefix("/set ") {
            Some(_) => (5, sampling::NAMES.split(", ").chain(["system", "think", "kwargs"]).collect()),
            None => (0, NAMES.to_vec()),
        };
        let word = &typed[start..];
        let fit = names.into_iter().filter(|name| !word.is_empty() && name.starts_with(word));
        let pair = |name: &str| Pair { display: name.into(), replacement: format!("{name} ") };
        Ok((start, fit.map(pair).collect()))
    }
}

impl Input {
    /// An editor on a terminal, with the history of earlier sessions.
    pub fn new(history: Option<&Path>) -> anyhow::Result<Self> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Lines);
        }
        let mut editor = Editor::new().context("the terminal")?;
        editor.set_helper(Some(Typing(FilenameCompleter::new())));
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        let mut kept = None;
        if let Some(path) = history {
            match open_history(&mut editor, path) {
                Ok(()) => kept = Some(path.to_path_buf()),
                Err(e) => note!("note: {}: {e}; the input history is not saved", path.display()),
            }
        }
        Ok(Self::Editor { editor: Box::new(editor), history: kept })
    }

    /// The next input.
    pub fn read(&mut self) -> anyhow::Result<Typed> {
        let Self::Editor { editor, history } = self else { return read_lines() };
        let text = loop {
            match editor.readline(">>> ") {
                Ok(text) => break text,
                Err(ReadlineError::Interrupted) => return Ok(Typed::Interrupted),
                Err(ReadlineError::Eof) => return Ok(Typed::End),
                Err(ReadlineError::Io(e)) if e.kind() == ErrorKind::InvalidData => complain(),
                Err(e) => return Err(e).context("the terminal"),
            }
        };
        editor.add_history_entry(text.as_str())?;
        if let Some(path) = history {
            editor.append_history(path).with_context(|| path.display().to_string())?;
        }
        Ok(Typed::Text(without_quotes(&text)))
    }
}

/// One line of standard input, or several in quotes.
fn read_lines() -> anyhow::Result<Typed> {
    let mut text: Option<String> = None;
    loop {
        let mut line = Vec::new();
        let mut input = std::io::stdin().lock().take(TEXT_BYTES_MAX as u64 + 1);
        input.read_until(b'\n', &mut line).context("standard input")?;
        if line.is_empty() {
            return Ok(text.map_or(Typed::End, |text| Typed::Text(without_quotes(&text))));
        }
        let all = text.as_ref().map_or(0, String::len) + line.len();
        anyhow::ensure!(all <= TEXT_BYTES_MAX, "standard input: a text of more than {TEXT_BYTES_MAX} bytes");
        let Ok(line) = String::from_utf8(line) else {
            complain();
            continue;
        };
        let line = line.trim_end_matches(['\n', '\r']);
        let read = text.map_or_else(|| line.to_string(), |text| format!("{text}\n{line}"));
        if !is_open(&read) {
            return Ok(Typed::Text(without_quotes(&read)));
        }
        text = Some(read);
    }
}

/// Reports bad input without ending the conversation.
fn complain() {
    note!("error: that line is not UTF-8; it was ignored");
}

/// Whether quotes are open.
fn is_open(text: &str) -> bool {
    text.trim_start().strip_prefix(QUOTES).is_some_and(|rest| !rest.trim_end().ends_with(QUOTES))
}

/// The text in quotes, or all of it.
fn without_quotes(text: &str) -> String {
    match text.trim_start().strip_prefix(QUOTES) {
        None => text.to_string(),
        Some(rest) => {
            let rest = rest.trim_end();
            rest.strip_suffix(QUOTES).unwrap_or(rest).trim_matches('\n').to_string()
        }
    }
}

fn open_history(editor: &mut Editor<Typing, DefaultHistory>, path: &Path) -> Result<(), ReadlineError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match editor.load_history(path) {
        Err(ReadlineError::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => editor.save_history(path),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_lines_together() {
        assert!(is_open("\"\"\"one") && is_open(" \"\"\"") && is_open("\"\"\"one\"\"\" two\n"));
        assert!(!is_open("one") && !is_open("\"\"\"one\"\"\" ") && !is_open("\"\"\"\n\"\"\"\n"));
        assert_eq!(without_quotes("\"\"\"\none\n two\n\"\"\" "), "one\n two");
        assert_eq!(without_quotes("  one"), "  one");
        assert_eq!(without_quotes("\"\"\"one"), "one");
    }
}
