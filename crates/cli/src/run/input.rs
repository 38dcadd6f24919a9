//! Lines that a user types: with an editor and history on a terminal, as they come otherwise. Called by `run::chat`.

use std::io::{BufRead, ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};

use crate::stderr::note;
use anyhow::Context;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

/// Opens and closes a text of several lines.
const QUOTES: &str = "\"\"\"";

/// Most bytes of a line that no terminal limits.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub enum Typed {
    /// A line, or several between `"""`.
    Text(String),
    /// Ctrl-C; true where nothing stood in the line.
    Interrupted(bool),
    /// Ctrl-D, or the end of the file.
    End,
}

/// Where lines come from.
pub enum Input {
    Editor { editor: Box<DefaultEditor>, history: Option<PathBuf> },
    Lines,
}

impl Input {
    /// An editor on a terminal, with the history of former sessions.
    pub fn new(history: Option<&Path>) -> anyhow::Result<Self> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Lines);
        }
        let mut editor = DefaultEditor::new().context("the terminal")?;
        let mut kept = None;
        if let Some(path) = history {
            match open_history(&mut editor, path) {
                Ok(()) => kept = Some(path.to_path_buf()),
                Err(e) => note!("note: {}: {e}; what is typed is not kept", path.display()),
            }
        }
        Ok(Self::Editor { editor: Box::new(editor), history: kept })
    }

    /// The next text.
    pub fn read(&mut self) -> anyhow::Result<Typed> {
        let first = match self.line(">>> ")? {
            Typed::Text(line) => line,
            other => return Ok(other),
        };
        let text = match first.trim_start().strip_prefix(QUOTES) {
            None => first,
            Some(rest) => match self.until_quotes(rest)? {
                Typed::Text(text) => text,
                other => return Ok(other),
            },
        };
        if let Self::Editor { editor, history } = self {
            editor.add_history_entry(text.as_str())?;
            if let Some(path) = history {
                editor.append_history(path).with_context(|| path.display().to_string())?;
            }
        }
        Ok(Typed::Text(text))
    }

    /// Lines up to one that ends with `"""`.
    fn until_quotes(&mut self, first: &str) -> anyhow::Result<Typed> {
        let mut lines = Vec::new();
        let mut line = first.to_string();
        loop {
            if let Some(last) = line.trim_end().strip_suffix(QUOTES) {
                lines.push(last.to_string());
                break;
            }
            lines.push(line);
            line = match self.line("... ")? {
                Typed::Text(line) => line,
                // What was typed so far is given up, as in a shell.
                Typed::Interrupted(_) => return Ok(Typed::Interrupted(false)),
                Typed::End => break,
            };
        }
        Ok(Typed::Text(lines.join("\n").trim_matches('\n').to_string()))
    }

    fn line(&mut self, prompt: &str) -> anyhow::Result<Typed> {
        loop {
            let line = match self {
                Self::Editor { editor, .. } => match editor.readline(prompt) {
                    Ok(line) => Some(line),
                    Err(ReadlineError::Interrupted) => return Ok(Typed::Interrupted(true)),
                    Err(ReadlineError::Eof) => return Ok(Typed::End),
                    Err(ReadlineError::Io(e)) if e.kind() == ErrorKind::InvalidData => None,
                    Err(e) => return Err(e).context("the terminal"),
                },
                Self::Lines => {
                    let mut line = Vec::new();
                    let mut input = std::io::stdin().lock().take(LINE_BYTES_MAX + 1);
                    input.read_until(b'\n', &mut line).context("standard input")?;
                    if line.is_empty() {
                        return Ok(Typed::End);
                    }
                    let too_long = line.len() as u64 > LINE_BYTES_MAX;
                    anyhow::ensure!(!too_long, "standard input: a line of more than {LINE_BYTES_MAX} bytes");
                    String::from_utf8(line).ok()
                }
            };
            match line {
                Some(line) => return Ok(Typed::Text(line.trim_end_matches(['\n', '\r']).to_string())),
                // One slip must not cost the conversation.
                None => note!("error: that line is not UTF-8; it counts as not typed"),
            }
        }
    }
}

fn open_history(editor: &mut DefaultEditor, path: &Path) -> Result<(), ReadlineError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match editor.load_history(path) {
        Err(ReadlineError::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => editor.save_history(path),
        other => other,
    }
}
