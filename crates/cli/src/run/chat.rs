//! The chat: reads what is typed, obeys commands, answers the rest. Called by `run`.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::input::{Input, Typed};
use super::interrupt::Interrupt;
use super::print::{Printer, Reasoning};
use super::session::Session;
use crate::advice::{Place, advice};
use crate::chat::{Conversation, read_json};
use crate::sampling;
use crate::stderr::note;

const HELP: &str = "\
  /set                    show the settings
  /set NAME VALUE         change one: temperature, top_p, top_k, min_p, seed, num_predict, ...
  /set system TEXT        what the model is told before the conversation; without TEXT nothing
  /set think on|off       let the model think before it answers
  /set kwargs JSON        variables of the chat template
  /regenerate             answer once more
  /clear                  forget the conversation; what was told with /set system or --system stays
  /save FILE, /load FILE  keep the conversation as JSON, go on with one
  /bye                    leave; Ctrl-D does too
\"\"\" begins and ends a text of several lines. Ctrl-C stops an answer.
A line that begins with a space is no command.";

/// What a chat runs with.
pub struct Options {
    /// What the model was called.
    pub model: String,
    /// Answered first, like a question at the end of a conversation that was loaded.
    pub first: Option<String>,
    /// Where what is typed is kept.
    pub history: Option<PathBuf>,
    pub show: Reasoning,
    pub interrupt: Interrupt,
}

/// Reads and answers until the user leaves.
pub fn run(session: &mut Session, options: &Options) -> anyhow::Result<()> {
    let mut input = Input::new(options.history.as_deref())?;
    if matches!(input, Input::Editor { .. }) {
        // Of a path its end tells most.
        let name = Path::new(&options.model).file_name().unwrap_or_default().to_string_lossy();
        note!("{name}, {} tokens of context. /help lists the commands.", session.engine.context());
    }
    let before = session.chat.messages.clone();
    if let Some(text) = &options.first {
        session.chat.say("user", text);
    }
    if session.chat.is_waiting() {
        answer(session, options, before)?;
    }
    let mut interrupted = false;
    loop {
        let typed = input.read()?;
        if typed == Typed::Interrupted(true) && interrupted {
            return Ok(());
        }
        interrupted = typed == Typed::Interrupted(true);
        match typed {
            Typed::End => return Ok(()),
            Typed::Interrupted(_) => note!("Ctrl-C again, Ctrl-D or /bye to leave"),
            Typed::Text(text) => match text.strip_prefix('/') {
                Some(command) => match obey(command, session, options) {
                    Ok(Next::Stay) => {}
                    Ok(Next::Answer { before }) => answer(session, options, before)?,
                    Ok(Next::Leave) => return Ok(()),
                    Err(e) => complain(&e, ""),
                },
                None if text.trim().is_empty() => {}
                None => {
                    let before = session.chat.messages.clone();
                    session.chat.say("user", text.trim());
                    answer(session, options, before)?;
                }
            },
        }
    }
}

/// What follows a command.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Stay,
    /// `before` are the messages to go back to where that fails.
    Answer {
        before: Vec<Value>,
    },
    Leave,
}

/// Carries out a command, without its slash.
fn obey(command: &str, session: &mut Session, options: &Options) -> anyhow::Result<Next> {
    let (word, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    match word {
        "help" | "?" => note!("{HELP}"),
        "bye" | "exit" | "quit" => return Ok(Next::Leave),
        "set" => set(rest, session)?,
        "clear" => {
            session.clear();
            let stays = if session.system.is_some() { "; the system message stays" } else { "" };
            note!("the conversation is forgotten{stays}");
        }
        "regenerate" | "r" => {
            let messages = &mut session.chat.messages;
            let question = messages.iter().rposition(|m| m["role"] != "assistant");
            let question = question.context("there is nothing to answer yet")?;
            let before = messages.clone();
            messages.truncate(question + 1);
            return Ok(Next::Answer { before });
        }
        "save" => {
            let path = path(rest, "save")?;
            save(path, &session.save(&options.model)).with_context(|| path.display().to_string())?;
            note!("{}: {} messages", path.display(), session.chat.input(false).messages.len());
        }
        "load" => {
            let path = path(rest, "load")?;
            let chat = Conversation::open(path)?;
            session.check(&chat).with_context(|| path.display().to_string())?;
            session.chat = chat;
            note!("{}: {} messages", path.display(), session.chat.input(false).messages.len());
        }
        _ => anyhow::bail!(
            "there is no /{word}; /help lists the commands, and a space in front makes it a text"
        ),
    }
    Ok(Next::Stay)
}

fn path<'a>(rest: &'a str, command: &str) -> anyhow::Result<&'a Path> {
    ensure!(!rest.is_empty(), "which file? /{command} FILE");
    Ok(Path::new(rest))
}

/// Writes a conversation. Takes the place of another conversation only, and of that when all is written.
fn save(path: &Path, conversation: &Value) -> anyhow::Result<()> {
    // A link stays one; what it leads to is the file.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if let Ok(there) = std::fs::symlink_metadata(&path) {
        // Anything else could make us wait for ever when it is opened.
        ensure!(there.is_file(), "is no file");
        let is_ours = read_json(&path).and_then(Conversation::load).is_ok();
        ensure!(is_ours, "there is such a file, and it is no conversation; give another name");
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Its errors name the temporary file, which says nothing to anybody.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|e| std::io::Error::from(e.kind()))?;
    writeln!(file.as_file_mut(), "{conversation:#}")?;
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|e| e.error)?;
    Ok(())
}

fn set(rest: &str, session: &mut Session) -> anyhow::Result<()> {
    let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let value = value.trim();
    let chat = &mut session.chat;
    match name {
        "" => {}
        "system" => {
            session.system = Some(value.to_string()).filter(|v| !v.is_empty());
            chat.system = session.system.clone();
        }
        "think" => {
            let on = match value {
                "on" | "true" => true,
                "off" | "false" => false,
                _ => anyhow::bail!("/set think on, or /set think off"),
            };
            chat.variables.insert("enable_thinking".into(), on.into());
        }
        "kwargs" => {
            let variables = serde_json::from_str(value).context("expected a JSON object")?;
            let changed = Conversation { variables, ..chat.clone() };
            session.check(&changed)?;
            session.chat = changed;
        }
        _ => sampling::set(&mut session.request, name, value)?.with_context(|| {
            format!("there is no setting '{name}'; there are {}, system, think, kwargs", sampling::NAMES)
        })?,
    }
    for line in settings(session, name) {
        note!("{line}");
    }
    Ok(())
}

/// The settings as they are; with a name the lines that have it.
fn settings(session: &Session, name: &str) -> Vec<String> {
    let chat = &session.chat;
    let system = format!("system {:?}", chat.system.as_deref().unwrap_or(""));
    let kwargs = format!("kwargs {}", serde_json::Value::Object(chat.variables.clone()));
    let sampling = sampling::describe(&session.request);
    match name {
        "" => sampling.lines().map(String::from).chain([system, kwargs]).collect(),
        "system" => vec![system],
        "think" | "kwargs" => vec![kwargs],
        _ => sampling::described(&session.request, name).into_iter().collect(),
    }
}

/// Answers the conversation. Where that fails, it says why and goes back to the messages `before`.
fn answer(session: &mut Session, options: &Options, before: Vec<Value>) -> anyhow::Result<()> {
    options.interrupt.begin();
    let mut printer = Printer::new(options.show, &options.interrupt);
    let reply = session.answer(&mut |kind, text| printer.piece(kind, text));
    printer.end()?;
    let stopped = options.interrupt.end();
    match reply {
        Ok(reply) => {
            if std::io::stderr().is_terminal() {
                let stopped = if stopped { "stopped; " } else { "" };
                note!("{}", console::style(format!("{stopped}{}", reply.summary())).dim().for_stderr());
            }
            if session.is_full(&reply) {
                let context = session.engine.context();
                note!(
                    "note: the answer ends here because the context of {context} tokens is full; /clear begins anew"
                );
            }
            session.chat.messages.push(reply.message());
        }
        Err(e) => {
            session.chat.messages = before;
            complain(&e, "; the conversation is as it was before");
        }
    }
    Ok(())
}

/// Prints an error, what became of the conversation, and what to do.
fn complain(e: &anyhow::Error, then: &str) {
    note!("error: {}{then}", crate::described(e));
    if let Some(advice) = advice(e, Place::Chat) {
        note!("{advice}");
    }
}
