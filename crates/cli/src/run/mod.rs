//! `octet run`: one answer, or a chat in the terminal.

mod chat;
mod input;
mod interrupt;
mod json;
mod print;
mod reasoning;
mod session;

use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use octet_engine::engine::Finish;

use crate::Usage;
use crate::chat::{ChatArgs, Conversation, read, read_json};
use crate::config::{EngineArgs, ModelArgs, Settings};
use crate::sampling::SamplingArgs;
use interrupt::Interrupt;
use print::{Printer, Reasoning};
use session::Session;

const EXAMPLES: &str = "\
Examples:
  octet run smollm2:135m 'Why is the sky blue?'
  octet run model.gguf                                   a chat; /help lists what it can do
  octet run model.gguf -f notes.txt 'Summarise this.'
  git diff | octet run model.gguf --system 'Write a commit message.'
  octet run ./Qwen3.6-35B-A3B/ --no-think --temp 0 -n 200 'Name three rivers.'
  octet run model.gguf --raw 'Once upon a time'          continues the text, without the chat template

Ctrl-C stops the answer. The answer goes to standard output; all else to standard error.";

/// Answers a prompt, or chats in the terminal.
#[derive(Debug, Args)]
#[command(visible_alias = "chat", after_help = EXAMPLES)]
pub struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// What to answer. Without it: what comes on standard input, or a chat if that is a terminal.
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,
    /// A file whose text follows the prompt.
    #[arg(short, long, value_name = "FILE", help_heading = "Prompt")]
    file: Option<PathBuf>,
    /// A conversation to go on with, as /save and OpenAI's API write it.
    #[arg(long, value_name = "FILE", help_heading = "Prompt", conflicts_with = "raw")]
    messages: Option<PathBuf>,
    #[command(flatten)]
    chat: ChatArgs,
    /// Continue the text as it is, without the chat template; control tokens in it count.
    #[arg(long, help_heading = "Prompt", conflicts_with_all = ["system", "chat_template", "chat_template_kwargs", "no_think"])]
    raw: bool,
    /// Chat even if there is a prompt, or if standard input is no terminal.
    #[arg(short, long, conflicts_with_all = ["json", "raw"])]
    interactive: bool,
    /// Leave out what the model thinks before it answers.
    #[arg(long, visible_alias = "hidethinking")]
    hide_thinking: bool,
    /// Print answer, usage and timings as JSON when all is there.
    #[arg(long)]
    json: bool,
    /// With --json: each token's log-probability, and those of its N likeliest rivals.
    #[arg(long, value_name = "N", requires = "json")]
    logprobs: Option<usize>,
    /// Do not keep what is typed in the chat for later sessions.
    #[arg(long)]
    no_history: bool,
    /// Print tokens per second after an answer, even where standard error is no terminal.
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(args: &RunArgs, settings: &Settings) -> anyhow::Result<ExitCode> {
    let (name, text) = args.model.name_and_text(&args.prompt, settings)?;
    let prompt = prompt(args, text)?;
    let model = crate::model::open(&name, settings)?;
    let interactive = args.interactive || prompt.is_none();
    let interrupt = Interrupt::install(interactive)?;
    let mut session = open(args, &model)?;
    drop(model); // its weights are packed; what stays mapped is held by the engine

    if interactive {
        let history = settings.data.as_ref().filter(|_| !args.no_history).map(|d| d.join("history"));
        chat::run(
            &mut session,
            &chat::Options { model: name, first: prompt, history, show: show(args), interrupt },
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    session.chat.say("user", &prompt.unwrap_or_default());
    once(args, &mut session, &interrupt)
}

/// The prompt, from wherever it comes. `None` for a chat.
fn prompt(args: &RunArgs, text: Option<String>) -> anyhow::Result<Option<String>> {
    let file = args.file.as_deref().map(read).transpose()?;
    let parts: Vec<String> = text.into_iter().chain(file).collect();
    let prompt = match parts.is_empty() {
        false => parts.join("\n\n"),
        true if args.interactive || std::io::stdin().is_terminal() => return Ok(None),
        true => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input")?;
            // The newline at a file's end is not part of a question.
            if args.raw { text } else { text.trim_end().to_string() }
        }
    };
    if prompt.trim().is_empty() {
        return Err(Usage("the prompt is empty".into()).into());
    }
    Ok(Some(prompt))
}

fn open(args: &RunArgs, model: &octet_weights::Model) -> anyhow::Result<Session> {
    let mut chat = Conversation { variables: args.chat.variables(), ..Default::default() };
    if let Some(path) = &args.messages {
        chat.load(read_json(path)?).with_context(|| path.display().to_string())?;
    }
    chat.system = args.chat.system.clone().or(chat.system);
    let engine = crate::model::load(model, &args.engine)?;
    let template = match args.raw {
        true => None,
        false => {
            let template = args.chat.template(model, engine.tokenizer());
            Some(template.map_err(|e| e.context("--raw continues a text without a chat template"))?)
        }
    };
    let mut request = args.sampling.request(engine.sampling());
    request.sampling.logprobs = args.logprobs;
    Ok(Session { engine, template, chat, request })
}

fn show(args: &RunArgs) -> Reasoning {
    match (args.hide_thinking, std::io::stdout().is_terminal()) {
        (true, _) => Reasoning::Hidden,
        (false, true) => Reasoning::Dim,
        (false, false) => Reasoning::Tags,
    }
}

/// Answers once.
fn once(args: &RunArgs, session: &mut Session, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    interrupt.begin();
    let reply = if args.json {
        let reply = session.answer(&mut |_, _| interrupt.flow())?;
        json::write(session, &reply)?;
        reply
    } else {
        let mut printer = Printer::new(show(args), interrupt);
        let reply = session.answer(&mut |kind, text| printer.piece(kind, text))?;
        printer.end()?;
        reply
    };
    interrupt.end();
    if args.verbose || std::io::stderr().is_terminal() {
        eprintln!("\n{}", reply.summary());
    }
    if args.hide_thinking && reply.content.is_empty() && !reply.reasoning.is_empty() {
        eprintln!("note: the answer ended while the model was thinking; raise --predict, or give --no-think");
    }
    Ok(if reply.answer.finish == Finish::Cancelled {
        ExitCode::from(interrupt::EXIT_CODE)
    } else {
        ExitCode::SUCCESS
    })
}
