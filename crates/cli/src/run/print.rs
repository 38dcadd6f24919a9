//! Writes an answer to standard output while it is generated.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;

use super::interrupt::Interrupt;
use super::markdown::Markdown;

/// The kind of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reasoning.
    Reasoning,
    /// The answer.
    Content,
}

/// How to show reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasoning {
    /// Dimmed on standard output before the answer, on a terminal.
    Dim,
    /// On standard error: standard output is a file or a pipe, which gets only the answer.
    Stderr,
    /// Not at all.
    Hidden,
}

/// The terminal's current width in columns.
fn columns() -> usize {
    usize::from(console::Term::stdout().size().1).max(COLUMNS_MIN)
}

/// In a narrower terminal words are split.
const COLUMNS_MIN: usize = 10;

/// An answer being written.
pub struct Printer<'a> {
    reasoning: Reasoning,
    interrupt: &'a Interrupt,
    last: Option<Kind>,
    ends_line: bool,
    /// On a terminal: formats the current part of the answer.
    markdown: Option<Markdown>,
    error: Option<io::Error>,
}

impl<'a> Printer<'a> {
    pub fn new(reasoning: Reasoning, interrupt: &'a Interrupt) -> Self {
        let markdown = io::stdout().is_terminal().then(|| Markdown::new(false));
        Self { reasoning, interrupt, last: None, ends_line: true, markdown, error: None }
    }

    /// Writes a piece; breaks if Ctrl-C was pressed or the output was closed.
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
        if self.last != Some(kind) {
            self.flush()?;
            // Reasoning is dimmed, and not formatted.
            let styled = kind == Kind::Content && console::colors_enabled();
            self.markdown = self.markdown.is_some().then(|| Markdown::new(styled));
        }
        if (self.last, kind) == (Some(Kind::Reasoning), Kind::Content) {
            match self.reasoning {
                Reasoning::Stderr => self.put(Kind::Reasoning, "\n\n")?,
                Reasoning::Dim | Reasoning::Hidden => io::stdout().write_all(b"\n\n")?,
            }
        }
        self.last = Some(kind);
        if kind == Kind::Content || self.reasoning == Reasoning::Dim {
            self.ends_line = text.ends_with('\n');
        }
        match &mut self.markdown {
            Some(markdown) => {
                let text = markdown.push(text, columns());
                self.put(kind, &text)
            }
            None => self.put(kind, text),
        }
    }

    fn put(&self, kind: Kind, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if kind == Kind::Reasoning && self.reasoning == Reasoning::Stderr {
            // If standard error is closed, the answer continues.
            let _ = write!(io::stderr(), "{}", console::style(text).for_stderr().dim());
            return Ok(());
        }
        let mut out = io::stdout().lock();
        if kind == Kind::Reasoning && self.reasoning == Reasoning::Dim {
            write!(out, "{}", console::style(text).dim())?;
        } else {
            out.write_all(text.as_bytes())?;
        }
        out.flush()
    }

    /// Writes held-back text, and resets the formatting.
    fn flush(&mut self) -> io::Result<()> {
        let Some(markdown) = &mut self.markdown else { return Ok(()) };
        let text = std::mem::replace(markdown, Markdown::new(false)).finish(columns());
        self.put(self.last.unwrap_or(Kind::Content), &text)
    }

    /// Ends the answer.
    pub fn end(mut self) -> io::Result<()> {
        if let Some(e) = self.error {
            return Err(e);
        }
        self.flush()?;
        let mut out = io::stdout().lock();
        if !self.ends_line {
            writeln!(out)?;
        }
        out.flush()
    }
}
