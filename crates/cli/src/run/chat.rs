//! The chat loop: reads input, answers it, and passes commands on.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::commands::execute;
use super::heat;
use super::input::{Input, Typed};
use super::interrupt::Interrupt;
use super::print::{Printer, Reasoning};
use super::session::Session;
use super::state::{Answers, Chat, Last, Next};
use super::tools::{TURNS_MAX, Toolbox};
use crate::advice::{Place, advice};
use crate::chat::Conversation;
use crate::images::{dropped, part};
use crate::maker::Opening;
use crate::sampling;
use crate::stderr::note;
use crate::units::count;

/// Settings of a chat.
pub struct Options {
    /// A first prompt to answer, after its images.
    pub first: Option<(Vec<Value>, String)>,
    /// The file for the input history.
    pub history: Option<PathBuf>,
    pub show: Reasoning,
    pub interrupt: Interrupt,
    /// The terminal shows UTF-8.
    pub utf8: bool,
    /// Tools of MCP servers.
    pub tools: Option<Toolbox>,
}

/// Opens a model, with a note if it is slow. The returned function loads the model and continues a conversation.
pub type Open<'a> = dyn Fn(&str) -> anyhow::Result<Load<'a>> + 'a;
/// Loads an opened model, and continues a conversation that began as the model before begins its own.
pub type Load<'a> = Box<dyn FnOnce(Conversation, &Opening) -> anyhow::Result<Session> + 'a>;

/// Reads and answers until the user exits.
pub fn run(session: Session, model: String, options: &mut Options, open: &Open<'_>) -> anyhow::Result<()> {
    let (changed, answers) = (Vec::new(), Answers::default());
    let (utf8, tools) = (options.utf8, options.tools.as_ref().map(Toolbox::names).unwrap_or_default());
    let mut chat = Chat { session, model, changed, last: None, answers, images: Vec::new(), utf8, tools };
    let mut input = Input::new(options.history.as_deref())?;
    if matches!(input, Input::Editor { .. }) {
        chat.print_header();
    }
    let before = chat.session.chat.messages.clone();
    if let Some((images, text)) = &options.first {
        chat.session.chat.ask(images.clone(), text);
    }
    if chat.session.chat.is_waiting() {
        chat.answer(options, before)?;
    }
    let mut interrupted = false;
    loop {
        let typed = input.read()?;
        if typed == Typed::Interrupted && interrupted {
            return Ok(());
        }
        interrupted = typed == Typed::Interrupted;
        match typed {
            Typed::End => return Ok(()),
            Typed::Interrupted => note!("Ctrl-C again, Ctrl-D or /bye to leave"),
            Typed::Text(text) => match text.strip_prefix('/') {
                Some(command) => match execute(command, &mut chat) {
                    Ok(Next::Stay) => {}
                    Ok(Next::Answer { before }) => chat.answer(options, before)?,
                    Ok(Next::Model(name)) => chat = chat.change_model(name, open)?,
                    Ok(Next::Leave) => return Ok(()),
                    Err(e) => complain(&e, ""),
                },
                None if text.trim().is_empty() => {}
                None => {
                    let before = chat.session.chat.messages.clone();
                    match chat.ask(text.trim()) {
                        Ok(true) => chat.answer(options, before)?,
                        Ok(false) => {}
                        Err(e) => complain(&e, ""),
                    }
                }
            },
        }
    }
}

impl Chat {
    fn print_header(&self) {
        // The end of a path is the most specific part.
        let name = Path::new(&self.model).file_name().unwrap_or_default().to_string_lossy();
        note!("{name}, {} tokens of context. /help lists the commands.", self.session.engine.context());
        let begins = self.session.chat.opening.len();
        if begins > 0 {
            note!(
                "The conversation begins with {} of the model's maker; /save shows them.",
                count(begins, "message")
            );
        }
    }

    /// Adds a question with its images: those of `/image`, and files that are dropped into the text. False if there is only an image.
    fn ask(&mut self, text: &str) -> anyhow::Result<bool> {
        let (files, text) =
            if self.session.sees().is_ok() { dropped(text) } else { (Vec::new(), text.to_string()) };
        for file in &files {
            self.images.push(part(file)?);
        }
        if text.is_empty() {
            note!("{} for the next question", count(self.images.len(), "image"));
            return Ok(false);
        }
        self.session.chat.ask(std::mem::take(&mut self.images), &text);
        Ok(true)
    }

    /// Answers the conversation. If that fails, reports why and restores the messages `before`.
    fn answer(&mut self, options: &mut Options, before: Vec<Value>) -> anyhow::Result<()> {
        for _ in 0..=TURNS_MAX {
            if !self.answer_once(options, before.clone())? {
                break;
            }
        }
        Ok(())
    }

    /// Answers once. True if the model called tools, and has to go on with their results.
    fn answer_once(&mut self, options: &mut Options, before: Vec<Value>) -> anyhow::Result<bool> {
        let session = &mut self.session;
        let experts = session.engine.experts();
        options.interrupt.begin();
        let mut printer = Printer::new(options.show, &options.interrupt);
        let reply = session.answer(&mut |kind, text| printer.piece(kind, text));
        printer.end()?;
        let stopped = options.interrupt.end();
        match reply {
            Ok(reply) => {
                let summary = reply.summary();
                if std::io::stderr().is_terminal() {
                    let stopped = if stopped { "stopped; " } else { "" };
                    note!("{}", console::style(format!("{stopped}{summary}")).dim().for_stderr());
                }
                if session.is_full(&reply) {
                    let context = session.engine.context();
                    note!(
                        "note: the answer ends here because the context of {context} tokens is full; /clear starts a new conversation"
                    );
                }
                let a = &reply.answer;
                let now = session.engine.experts();
                self.answers.number += 1;
                self.answers.tokens += a.tokens.len();
                self.answers.after_first += a.tokens.len().saturating_sub(1);
                self.answers.time += a.generate_time;
                self.answers.prompt_time += a.prompt_time;
                self.last = Some(Last {
                    summary,
                    context: a.prompt_tokens + a.tokens.len(),
                    experts: now.zip(experts).map(|(now, before)| heat::since(now, &before)),
                });
                session.chat.messages.push(reply.message());
                if let Some(tools) = options.tools.as_mut().filter(|_| !reply.calls.is_empty() && !stopped) {
                    session.chat.messages.extend(tools.answer(&reply.calls));
                    return Ok(true);
                }
            }
            Err(e) => {
                session.chat.messages = before;
                complain(&e, "; the conversation is as it was before");
            }
        }
        Ok(false)
    }

    /// Changes the model; keeps the current one if the other cannot be loaded, or has no template for the conversation.
    fn change_model(mut self, name: String, open: &Open<'_>) -> anyhow::Result<Self> {
        let (load, old) = match open(&name).and_then(|load| Ok((load, open(&self.model)?))) {
            Ok(both) => both,
            Err(e) => {
                complain(&e, "");
                return Ok(self);
            }
        };
        let Session { engine, chat, system, opening, .. } = self.session;
        // Two models may not fit into memory.
        drop(engine);
        let loaded = load(chat.clone(), &opening).and_then(|session| {
            session.check(&session.chat)?;
            Ok(session)
        });
        let (mut session, is_new) = match loaded {
            Ok(session) => (session, true),
            Err(e) => {
                complain(&e, &format!("; {} stays", self.model));
                (old(chat, &opening)?, false)
            }
        };
        // What the user set stays.
        if system != opening.system {
            session.system = system;
        }
        self.session = session;
        for (name, value) in &self.changed {
            // It was valid once: all models have the same limits.
            sampling::set(&mut self.session.request, name, value)?;
        }
        (self.last, self.answers) = (None, Answers::default());
        if is_new {
            self.model = name;
            self.print_header();
        }
        Ok(self)
    }
}

/// Prints an error, the state of the conversation, and a hint.
fn complain(e: &anyhow::Error, then: &str) {
    note!("error: {}{then}", crate::described(e));
    if let Some(advice) = advice(e, Place::Chat) {
        note!("{advice}");
    }
}
