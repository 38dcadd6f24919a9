//! The slash commands of a chat.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::heat::{self, Palette};
use super::session::Session;
use super::state::{Chat, Next};
use crate::chat::{Conversation, read_json};
use crate::sampling;
use crate::stderr::note;
use crate::units::{count, size};

/// Fits 80 columns. (A line break escaped in front of it would take its indentation.)
const HELP: &str = "  /set                    show the settings
  /set NAME VALUE         change one: temperature, top_p, seed, num_predict, ...
  /set system TEXT        the system message; without TEXT none
  /set think on|off       let the model think before it answers
  /set kwargs JSON        variables of the chat template
  /model                  the model in use
  /model NAME             continue with another model, with changed settings
  /image FILE             an image for the next question; or drop a file
  /regenerate             answer the last question again
  /clear                  forget the conversation; the system message stays
  /save FILE, /load FILE  save the conversation as JSON, continue a saved one
  /stats                  tokens, speed, cache and memory
  /experts                a heat map of the experts of the last answer
  /experts all            the same since the model was loaded
  /bye                    leave; Ctrl-D does too
Several lines: begin and end them with \"\"\", or press Alt-Enter for each new one. Ctrl-C stops an answer.
A line that begins with a space is not a command. Tab completes commands and file names.";

/// Their names, for completion.
pub const NAMES: &[&str] = &[
    "/bye",
    "/clear",
    "/experts",
    "/help",
    "/image",
    "/load",
    "/model",
    "/regenerate",
    "/save",
    "/set",
    "/stats",
];

/// Executes a command, given without its slash.
pub fn execute(command: &str, chat: &mut Chat) -> anyhow::Result<Next> {
    let (word, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    let session = &mut chat.session;
    match word {
        "help" | "?" => {
            note!("{}", crate::help::fitted(HELP, crate::help::columns()));
            if !chat.tools.is_empty() {
                note!(
                    "Tools that the model may call: {}. Octet asks before one runs for the first time.",
                    chat.tools.join(", ")
                );
            }
        }
        "bye" | "exit" | "quit" => return Ok(Next::Leave),
        "set" => set(rest, chat)?,
        "model" if rest.is_empty() => note!("{}; `octet list` shows the models on this machine", chat.model),
        "model" => return Ok(Next::Model(rest.to_string())),
        "stats" => stats(chat),
        "experts" => experts(rest, chat)?,
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
        "image" => {
            let path = path(rest, "image")?;
            session.sees()?;
            chat.images.push(crate::images::part(path)?);
            note!("{} for the next question", count(chat.images.len(), "image"));
        }
        "save" => {
            let path = path(rest, "save")?;
            save(path, &session.save(&chat.model)).with_context(|| path.display().to_string())?;
            note!("{}: {} messages", path.display(), session.chat.input(false).messages.len());
        }
        "load" => {
            let path = path(rest, "load")?;
            let loaded = Conversation::open(path)?;
            session.check(&loaded).with_context(|| path.display().to_string())?;
            session.chat = loaded;
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

/// Writes a conversation. Replaces only a file that is a conversation, and only when all is written.
fn save(path: &Path, conversation: &Value) -> anyhow::Result<()> {
    // A symbolic link is kept, and its target replaced.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if let Ok(there) = std::fs::symlink_metadata(&path) {
        // Opening a file that is not regular could block forever.
        ensure!(there.is_file(), "is not a file");
        let is_ours = read_json(&path).and_then(Conversation::load).is_ok();
        ensure!(is_ours, "the file exists and is not a conversation; give another name");
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Its errors name the temporary file, which means nothing to the user.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|e| std::io::Error::from(e.kind()))?;
    writeln!(file.as_file_mut(), "{conversation:#}")?;
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|e| e.error)?;
    Ok(())
}

fn set(rest: &str, chat: &mut Chat) -> anyhow::Result<()> {
    let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let value = value.trim();
    let session = &mut chat.session;
    match name {
        "" => {}
        "system" => {
            session.system = Some(value.to_string()).filter(|v| !v.is_empty());
            session.chat.system = session.system.clone();
        }
        "think" => {
            let on = match value {
                "on" | "true" => true,
                "off" | "false" => false,
                _ => anyhow::bail!("/set think on, or /set think off"),
            };
            session.chat.variables.insert("enable_thinking".into(), on.into());
        }
        "kwargs" => {
            let variables = serde_json::from_str(value).context("expected a JSON object")?;
            let changed = Conversation { variables, ..session.chat.clone() };
            session.check(&changed)?;
            session.chat = changed;
        }
        _ => {
            sampling::set(&mut session.request, name, value)?.with_context(|| {
                format!("there is no setting '{name}'; there are {}, system, think, kwargs", sampling::NAMES)
            })?;
            chat.changed.push((name.to_string(), value.to_string()));
        }
    }
    for line in settings(&chat.session, name) {
        note!("{line}");
    }
    Ok(())
}

/// The current settings; with a name, the lines that contain it.
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

/// Prints the model's statistics since it was loaded, and its memory.
fn stats(chat: &mut Chat) {
    let engine = &mut chat.session.engine;
    let stats = engine.stats();
    let per_second = |tokens: usize, seconds: f64| tokens as f64 / seconds.max(1e-9);
    match &chat.last {
        Some(last) => note!("last answer    {}", last.summary),
        None => note!("last answer    none yet"),
    }
    let (answers, tokens) = (count(chat.answers.number, "answer"), chat.answers.tokens);
    let speed = match chat.answers.after_first {
        0 => String::new(),
        n => format!(" ({:.1} tokens/s)", per_second(n, chat.answers.time.as_secs_f64())),
    };
    note!("all            {answers}, {tokens} tokens{speed}");
    let (prompt, cached) = (stats.prompt_tokens, stats.cached_tokens);
    let read = match chat.answers.prompt_time.as_secs_f64() {
        s if s > 0.0 => {
            format!(", the others at {:.0} tokens/s", per_second((prompt - cached.min(prompt)) as usize, s))
        }
        _ => String::new(),
    };
    note!("prompts        {prompt} tokens, {cached} of them cached{read}");
    let guesses = stats.speculation;
    if guesses.drafted > 0 {
        // Each step of an answer gives one token, and one more per accepted guess.
        let steps = stats.generated_tokens.saturating_sub(guesses.accepted).max(1);
        note!(
            "tokens a step  {:.2}; {:.0}% of {} guesses taken",
            stats.generated_tokens as f64 / steps as f64,
            100.0 * guesses.accepted as f64 / guesses.drafted as f64,
            guesses.drafted,
        );
    } else if stats.generated_tokens > 0 {
        note!("tokens a step  1.00; no guesses");
    }
    let cache = stats.cache;
    let disk = match cache.disk.bytes {
        0 => String::new(),
        bytes => format!("; {} on disk", size(bytes)),
    };
    note!(
        "KV cache       {} of {} pages in use; {}, {}{disk}",
        cache.pages_used + cache.pages_idle,
        cache.pages,
        count(cache.snapshots, "snapshot"),
        size(cache.snapshot_bytes),
    );
    let last = chat.last.as_ref().map_or(0, |l| l.context);
    note!("context        {last} of {} tokens", engine.context());
    let own = engine.backend().memory_bytes().map(|bytes| format!("{} on the device; ", size(bytes)));
    let process = octet_machine::resident().map_or_else(|| "unknown".into(), size);
    note!("memory         {}{process} in this process", own.unwrap_or_default());
}

fn experts(rest: &str, chat: &Chat) -> anyhow::Result<()> {
    let all = chat.session.engine.experts();
    ensure!(all.is_some(), "{} has no experts: it is a dense model", chat.model);
    let usage = match rest {
        "" => chat.last.as_ref().and_then(|l| l.experts.clone()).context("there is no answer yet")?,
        "all" => all.context("no experts")?,
        _ => anyhow::bail!("usage: /experts (last answer) or /experts all (since the start)"),
    };
    let terminal = console::Term::stderr();
    let columns = if terminal.is_term() { usize::from(terminal.size().1) } else { COLUMNS };
    let map = heat::draw(&usage, palette(chat.utf8), columns);
    note!("{}", map.trim_end());
    Ok(())
}

/// If the width of the terminal is unknown.
const COLUMNS: usize = 80;

/// What standard error can display.
fn palette(utf8: bool) -> Palette {
    match (std::io::stderr().is_terminal() && console::colors_enabled_stderr(), utf8) {
        (_, false) => Palette::Ascii,
        (true, true) => Palette::Colours,
        (false, true) => Palette::Blocks,
    }
}
