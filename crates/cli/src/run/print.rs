//! Writes an answer to standard output while it comes. Called by `run` and `run::chat`.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;

use super::interrupt::Interrupt;
use super::markdown::Markdown;

/// What a piece of text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What the model thinks.
    Reasoning,
    /// The answer.
    Content,
}

/// Where reasoning goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasoning {
    /// To standard output in dim letters, before the answer: on a terminal.
    Dim,
    /// To standard error: standard output is a file or a pipe, which gets the answer alone.
    Stderr,
    /// Nowhere.
    Hidden,
}

/// Columns of the terminal as it is now.
fn columns() -> usize {
    usize::from(console::Term::stdout().size().1).max(COLUMNS_MIN)
}

/// In a narrower terminal words break.
const COLUMNS_MIN: usize = 10;

/// One answer on its way out.
pub struct Printer<'a> {
    reasoning: Reasoning,
    interrupt: &'a Interrupt,
    last: Option<Kind>,
    ends_line: bool,
    /// On a terminal: the part of the answer that is being written.
    markdown: Option<Markdown>,
    error: Option<io::Error>,
}

impl<'a> Printer<'a> {
    pub fn new(reasoning: Reasoning, interrupt: &'a Interrupt) -> Self {
        let markdown = io::stdout().is_terminal().then(|| Markdown::new(false));
        Self { reasoning, interrupt, last: None, ends_line: true, markdown, error: None }
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
        if self.last != Some(kind) {
            self.flush()?;
            // What the model thinks is dim, and stays as it is.
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
            // Who closed standard error still wants the answer.
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

    /// Writes what was held back; what follows begins anew.
    fn flush(&mut self) -> io::Result<()> {
        let Some(markdown) = &mut self.markdown else { return Ok(()) };
        let text = std::mem::replace(markdown, Markdown::new(false)).finish(columns());
        self.put(self.last.unwrap_or(Kind::Content), &text)
    }

    /// The answer is over.
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
