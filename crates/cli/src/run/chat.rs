//! The chat: reads what is typed, obeys commands, answers the rest. Called by `run`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::input::{Input, Typed};
use super::interrupt::Interrupt;
use super::print::{Printer, Reasoning};
use super::session::Session;
use crate::chat::read_json;
use crate::sampling;

const HELP: &str = "\
  /set                    show the settings
  /set NAME VALUE         change one: temperature, top_p, top_k, min_p, seed, num_predict, ...
  /set system TEXT        what the model is told before the conversation; without TEXT nothing
  /set think on|off       let the model think before it answers
  /set kwargs JSON        variables of the chat template
  /regenerate             answer once more
  /clear                  forget the conversation
  /save FILE, /load FILE  keep the conversation as JSON, go on with one
  /bye                    leave; Ctrl-D does too
\"\"\" begins and ends a text of several lines. Ctrl-C stops an answer.
A line that begins with a space is no command.";

/// What a chat runs with.
pub struct Options {
    /// What the model was called.
    pub model: String,
    /// Answered first.
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
        eprintln!("{name}, {} tokens of context. /help lists the commands.", session.engine.context());
    }
    if let Some(text) = &options.first {
        session.chat.say("user", text);
        answer(session, options)?;
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
            Typed::Interrupted(_) => eprintln!("Ctrl-C again, Ctrl-D or /bye to leave"),
            Typed::Text(text) => match text.strip_prefix('/') {
                Some(command) => match obey(command, session, options) {
                    Ok(Next::Stay) => {}
                    Ok(Next::Answer) => answer(session, options)?,
                    Ok(Next::Leave) => return Ok(()),
                    Err(e) => eprintln!("error: {e:#}"),
                },
                None if text.trim().is_empty() => {}
                None => {
                    session.chat.say("user", text.trim());
                    answer(session, options)?;
                }
            },
        }
    }
}

/// What follows a command.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Stay,
    Answer,
    Leave,
}

/// Carries out a command, without its slash.
fn obey(command: &str, session: &mut Session, options: &Options) -> anyhow::Result<Next> {
    let (word, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    match word {
        "help" | "?" => eprintln!("{HELP}"),
        "bye" | "exit" | "quit" => return Ok(Next::Leave),
        "set" => set(rest, session)?,
        "clear" => {
            session.chat.messages.clear();
            eprintln!("the conversation is forgotten");
        }
        "regenerate" | "r" => {
            let question = session.chat.messages.iter().rposition(|m| m["role"] != "assistant");
            let question = question.context("there is nothing to answer yet")?;
            session.chat.messages.truncate(question + 1);
            return Ok(Next::Answer);
        }
        "save" => {
            let path = path(rest, "save")?;
            let text = format!("{:#}\n", session.save(&options.model));
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
            eprintln!("{}: {} messages", path.display(), session.chat.input(false).messages.len());
        }
        "load" => {
            let path = path(rest, "load")?;
            session.chat.load(read_json(path)?).with_context(|| path.display().to_string())?;
            eprintln!("{}: {} messages", path.display(), session.chat.input(false).messages.len());
        }
        _ => anyhow::bail!(
            "there is no /{word}; /help lists the commands, and a space in front makes it a text"
        ),
    }
    Ok(Next::Stay)
}

fn path<'a>(rest: &'a str, command: &str) -> anyhow::Result<&'a Path> {
    anyhow::ensure!(!rest.is_empty(), "which file? /{command} FILE");
    Ok(Path::new(rest))
}

fn set(rest: &str, session: &mut Session) -> anyhow::Result<()> {
    let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let value = value.trim();
    let chat = &mut session.chat;
    match name {
        "" => {}
        "system" => chat.system = Some(value.to_string()).filter(|v| !v.is_empty()),
        "think" => {
            let on = match value {
                "on" | "true" => true,
                "off" | "false" => false,
                _ => anyhow::bail!("/set think on, or /set think off"),
            };
            chat.variables.insert("enable_thinking".into(), on.into());
        }
        "kwargs" => {
            chat.variables = serde_json::from_str(value).context("expected a JSON object")?;
        }
        _ => sampling::set(&mut session.request, name, value)?.with_context(|| {
            format!("there is no setting '{name}'; there are {}, system, think, kwargs", sampling::NAMES)
        })?,
    }
    if name.is_empty() {
        eprintln!("{}", sampling::describe(&session.request));
        eprintln!("system {:?}", chat.system.as_deref().unwrap_or(""));
        eprintln!("kwargs {}", serde_json::Value::Object(chat.variables.clone()));
    }
    Ok(())
}

/// Answers the conversation. What goes wrong with the question is said, and the question taken back.
fn answer(session: &mut Session, options: &Options) -> anyhow::Result<()> {
    options.interrupt.begin();
    let mut printer = Printer::new(options.show, &options.interrupt);
    let reply = session.answer(&mut |kind, text| printer.piece(kind, text));
    printer.end()?;
    let stopped = options.interrupt.end();
    match reply {
        Ok(reply) => {
            if std::io::stderr().is_terminal() {
                let stopped = if stopped { "stopped; " } else { "" };
                eprintln!("{}", console::style(format!("{stopped}{}", reply.summary())).dim().for_stderr());
            }
            session.chat.messages.push(reply.message());
        }
        Err(e) => {
            session.chat.messages.pop();
            eprintln!("error: {e:#}; the question is taken back");
        }
    }
    Ok(())
}
