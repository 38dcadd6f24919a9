//! Writes an answer to standard output while it comes. Called by `run` and `run::chat`.

use std::io::{self, Write};
use std::ops::ControlFlow;

use super::interrupt::Interrupt;

/// What a piece of text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What the model thinks.
    Reasoning,
    /// The answer.
    Content,
}

/// How reasoning is told from the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasoning {
    /// In dim letters: on a terminal.
    Dim,
    /// Between `<think>` and `</think>`: in a file.
    Tags,
    /// Not at all.
    Hidden,
}

/// One answer on its way out.
pub struct Printer<'a> {
    reasoning: Reasoning,
    interrupt: &'a Interrupt,
    last: Option<Kind>,
    ends_line: bool,
    error: Option<io::Error>,
}

impl<'a> Printer<'a> {
    pub fn new(reasoning: Reasoning, interrupt: &'a Interrupt) -> Self {
        Self { reasoning, interrupt, last: None, ends_line: true, error: None }
    }

    /// Writes a piece; breaks where Ctrl-C was pressed or nobody reads any more.
    pub fn piece(&mut self, kind: Kind, text: &str) -> ControlFlow<()> {
        if let Err(e) = self.write(kind, text) {
            self.error = Some(e);
            return ControlFlow::Break(());
        }
        self.interrupt.flow()
    }

    fn write(&mut self, kind: Kind, text: &str) -> io::Result<()> {
        if text.is_empty() || (kind == Kind::Reasoning && self.reasoning == Reasoning::Hidden) {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        match (self.last, kind, self.reasoning) {
            (None, Kind::Reasoning, Reasoning::Tags) => out.write_all(b"<think>\n")?,
            (Some(Kind::Reasoning), Kind::Content, Reasoning::Tags) => out.write_all(b"\n</think>\n\n")?,
            (Some(Kind::Reasoning), Kind::Content, _) => out.write_all(b"\n\n")?,
            _ => {}
        }
        self.last = Some(kind);
        self.ends_line = text.ends_with('\n');
        if kind == Kind::Reasoning && self.reasoning == Reasoning::Dim {
            write!(out, "{}", console::style(text).dim())?;
        } else {
            out.write_all(text.as_bytes())?;
        }
        out.flush()
    }

    /// The answer is over.
    pub fn end(self) -> io::Result<()> {
        if let Some(e) = self.error {
            return Err(e);
        }
        let mut out = io::stdout().lock();
        if !self.ends_line {
            writeln!(out)?;
        }
        out.flush()
    }
}
