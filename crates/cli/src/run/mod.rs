//! `octet run`: one answer, or a chat in the terminal.

mod chat;
mod commands;
mod heat;
mod input;
mod interrupt;
mod json;
mod markdown;
mod print;
mod session;
mod state;
mod tools;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use octet_engine::engine::Finish;

use crate::args::{EngineArgs, ModelArgs};
use crate::chat::{ChatArgs, Conversation, read, standard_input};
use crate::images::{self, ImageFlags};
use crate::maker::{Maker, Opening};
use crate::numbers::{count, port};
use crate::sampling::{SamplingArgs, recommended};
use crate::settings::Settings;
use crate::stderr::note;
use crate::units::size;
use crate::usage_error::Usage;
use interrupt::Interrupt;
use print::{Printer, Reasoning};
use session::Session;
use tools::{TURNS_MAX, Toolbox};

const EXAMPLES: &str = "\
Examples:
  octet run 'Tell me a story about a fox.'               the built-in model
  octet run smollm2:135m 'Why is the sky blue?'
  octet run model.gguf                                   a chat; /help lists what it can do
  octet run model.gguf -f notes.txt 'Summarise this.'
  git diff | octet run model.gguf 'Write a commit message.'
  octet run --web                                        a chat in the browser
  octet run ./Qwen3.6-35B-A3B/ --no-think --temp 0 -n 200 'Name three rivers.'
  octet run model.gguf --raw 'Once upon a time'          continue the text, no template

Ctrl-C stops the answer. The answer goes to standard output; all else to standard error.";

/// Answers a prompt, or chats in the terminal.
#[derive(Debug, Args)]
#[command(visible_alias = "chat", after_help = EXAMPLES)]
pub struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The prompt. Piped text is appended to it, or is the prompt. With neither: a chat.
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,
    /// File whose text is appended to the prompt; may be given several times.
    #[arg(short, long, value_name = "FILE", help_heading = "Prompt")]
    file: Vec<PathBuf>,
    /// Image that the prompt is about, PNG, JPEG, WebP or GIF; may be given several times. In a chat: /image FILE.
    #[arg(long, value_name = "FILE", help_heading = "Prompt", conflicts_with = "raw")]
    image: Vec<PathBuf>,
    /// Conversation to continue, as written by /save or in OpenAI's format. If its last message is the user's,
    /// no prompt is needed.
    #[arg(long, value_name = "FILE", help_heading = "Prompt", conflicts_with = "raw")]
    messages: Option<PathBuf>,
    /// Continue the text as it is, without the chat template; control tokens in it are parsed.
    #[arg(long, help_heading = "Prompt", conflicts_with_all = ["system", "chat_template", "chat_template_kwargs", "no_think"])]
    raw: bool,
    /// File that names MCP servers whose tools the model may call: the usual JSON with `mcpServers`. Octet asks before a tool runs for
    /// the first time.
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    mcp: Option<PathBuf>,
    /// Chat in the browser: serve the model to this machine and open the page. `octet serve` has more options.
    #[arg(long, conflicts_with_all = ["interactive", "json", "raw", "file", "image", "messages", "hide_thinking", "verbose", "no_history", "ChatArgs", "SamplingArgs", "SamplerArgs"])]
    web: bool,
    /// With --web: port of the page; 0 picks a free port.
    #[arg(long, value_name = "N", default_value_t = 8080, value_parser = port, requires = "web")]
    port: u16,
    /// Chat even if there is a prompt, or if standard input is not a terminal.
    #[arg(short, long, conflicts_with_all = ["json", "raw"])]
    interactive: bool,
    /// Hide the reasoning. Default: on a terminal it is dimmed; if standard output is a file or a pipe, it goes to standard error, if
    /// that is a terminal or --verbose is given.
    #[arg(long, visible_alias = "hidethinking")]
    hide_thinking: bool,
    /// Print answer, usage and timings as JSON at the end.
    #[arg(long)]
    json: bool,
    /// With --json: the log-probability of each token and of the N most probable alternatives.
    #[arg(long, value_name = "N", value_parser = count, requires = "json")]
    logprobs: Option<usize>,
    /// Do not save the chat's input history.
    #[arg(long)]
    no_history: bool,
    /// Print tokens per second after an answer, even if standard error is not a terminal.
    #[arg(short, long)]
    verbose: bool,
    // After the ungrouped flags: the heading of a flattened group also applies to what follows it.
    #[command(flatten)]
    chat: ChatArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    images: ImageFlags,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(args: &RunArgs, settings: &Settings) -> anyhow::Result<ExitCode> {
    args.sampling.check()?;
    let (name, text) = args.model.name_and_text(&args.prompt, settings)?;
    if args.web {
        let first = args.model.positional.as_deref();
        if text.is_some() || first.is_some_and(crate::model::is_other_word) {
            return Err(Usage("--web takes no prompt; type it in the page".into()).into());
        }
        crate::serve::page(name, args.port, args.mcp.clone(), &args.images, &args.engine, settings)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut chat = args.chat.conversation(args.messages.as_deref())?;
    let source = Source {
        given: text.is_some() || !args.file.is_empty(),
        waiting: chat.is_waiting(),
        interactive: args.interactive,
        one_answer: args.json || args.raw,
        terminal: std::io::stdin().is_terminal(),
    };
    let task = source.task()?;
    let prompt = prompt(args, source, task, text)?;
    let is_empty = match &prompt {
        None => !source.waiting && task != Task::Chat,
        Some(p) => p.trim().is_empty(),
    };
    if is_empty {
        // A model that does not exist is reported first. Nothing is downloaded for an empty prompt.
        crate::model::check(&name)?;
        return Err(Usage("the prompt is empty".into()).into());
    }
    let images = args.image.iter().map(|file| images::part(file)).collect::<anyhow::Result<Vec<_>>>()?;
    if !images.is_empty() && prompt.is_none() {
        return Err(
            Usage("--image needs a prompt: what is asked about it? In a chat: /image FILE".into()).into()
        );
    }
    let model = crate::model::open(&name, settings)?;
    let interrupt = Interrupt::install(task == Task::Chat)?;
    if let (Task::Answer { .. }, Some(text)) = (task, &prompt) {
        chat.ask(images.clone(), text);
    }
    let mut tools = args.mcp.as_deref().map(|file| Toolbox::open(file, settings)).transpose()?.flatten();
    chat.tools = tools.as_ref().map(Toolbox::definitions).or(chat.tools);
    let recognised = tools.as_ref().map(Toolbox::recognised).unwrap_or_default();
    let maker = made(args, &name);
    // A conversation in a file is whole: it keeps its own beginning.
    let is_new = args.messages.is_none();
    if is_new {
        chat.opening.clone_from(&maker.opening.messages);
    }
    chat.system = chat.system.or_else(|| maker.opening.system.clone());
    let mut session = open(args, (&name, &model), &maker, chat, recognised.clone(), settings)?;
    drop(model); // the engine has its weights
    match task {
        Task::Answer { .. } => once(args, &mut session, tools.as_mut(), &interrupt),
        Task::Chat => {
            let history = settings.data.as_ref().filter(|_| !args.no_history).map(|d| d.join("history"));
            let (show, utf8) = (show(args), settings.utf8);
            let mut options = chat::Options {
                first: prompt.map(|text| (images, text)),
                history,
                show,
                interrupt,
                utf8,
                tools,
            };
            let other = |name: &str| -> anyhow::Result<chat::Load<'_>> {
                let model = crate::model::open(name, settings)?;
                let (recognised, maker, name) = (recognised.clone(), made(args, name), name.to_string());
                Ok(Box::new(move |mut chat, before| {
                    chat.reopen(before, &maker.opening);
                    open(args, (&name, &model), &maker, chat, recognised, settings)
                }))
            };
            chat::run(session, name, &mut options, &other)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The prompt from the command line, files and standard input. `None` without one, and for an empty one if the loaded conversation ends
/// with a question, which needs no further prompt.
fn prompt(
    args: &RunArgs,
    source: Source,
    task: Task,
    text: Option<String>,
) -> anyhow::Result<Option<String>> {
    let files = || args.file.iter().map(|f| read(f)).collect::<Result<Vec<_>, _>>();
    let prompt = match task {
        Task::Answer { read_stdin } => {
            let files = files()?;
            let piped = if read_stdin { Some(standard_input()?) } else { None };
            joined(text.into_iter().chain(files), piped, args.raw)
        }
        Task::Chat if source.given => joined(text.into_iter().chain(files()?), None, false),
        Task::Chat => None,
    };
    Ok(prompt.filter(|p| !source.waiting || !p.trim().is_empty()))
}

/// Joins the given and the piped text, separated by a blank line; `None` if both are empty.
fn joined(given: impl Iterator<Item = String>, piped: Option<String>, raw: bool) -> Option<String> {
    // The newline at a file's end is not part of a question.
    let piped = piped.map(|text| if raw { text } else { text.trim_end().to_string() });
    let all: Vec<String> = given.chain(piped.filter(|text| !text.is_empty())).collect();
    (!all.is_empty()).then(|| all.join("\n\n"))
}

/// The inputs that decide between an answer and a chat.
#[derive(Debug, Clone, Copy, Default)]
struct Source {
    /// There is a prompt on the command line or in a file.
    given: bool,
    /// The loaded conversation ends with a question.
    waiting: bool,
    /// A chat was requested.
    interactive: bool,
    /// A flag that only makes sense for one answer: `--json`, `--raw`.
    one_answer: bool,
    /// Standard input is a terminal.
    terminal: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Answer { read_stdin: bool },
    Chat,
}

impl Source {
    fn task(self) -> Result<Task, Usage> {
        let ready = self.given || self.waiting;
        match self {
            Self { interactive: true, .. } => Ok(Task::Chat),
            Self { given: false, terminal: true, one_answer: false, .. } => Ok(Task::Chat),
            Self { terminal, .. } if ready || !terminal => Ok(Task::Answer { read_stdin: !terminal }),
            _ => Err(Usage(
                "--json and --raw give one answer: give a PROMPT, or -f FILE, or text on standard input"
                    .into(),
            )),
        }
    }
}

/// What the model's maker set, as far as it counts for this command.
fn made(args: &RunArgs, name: &str) -> Maker {
    let mut maker = crate::maker::of(name);
    if args.raw {
        maker.opening = Opening::default();
    }
    maker
}

fn open(
    args: &RunArgs,
    (name, model): (&str, &octet_weights::Model),
    maker: &Maker,
    chat: Conversation,
    tools: Vec<octet_parser::Tool>,
    settings: &Settings,
) -> anyhow::Result<Session> {
    let mut engine = args.engine.clone();
    engine.ctx_size = engine.ctx_size.or(maker.context);
    let has_images = !args.image.is_empty() || images::are_in(&chat.messages);
    let (mut engine, blind) = crate::loading::load(model, &engine, (&args.images, has_images), settings)?;
    if !args.raw && !args.chat.has_template() {
        maker.note_template(name, &model.metadata, settings);
    }
    // If a program reads standard error, only unexpected devices are reported.
    if args.verbose || std::io::stderr().is_terminal() || engine.backend().memory_bytes().is_some() {
        let missing = args
            .engine
            .device
            .missing()
            .filter(|_| args.verbose || settings.is_first_today("no-graphics-device"));
        let missing = missing.map_or_else(String::new, |why| format!("; no graphics device: {why}"));
        note!("{}{missing}", place(model, &mut engine));
    }
    let template = (!args.raw).then(|| args.chat.template(model, engine.tokenizer())).transpose()?;
    let mut request = args.sampling.request(&recommended(&model.metadata, maker.sampling.clone())?, maker);
    if !args.sampling.has_stop() {
        (request.stop, request.stop_token_ids) = engine.tokenizer().part_stops(&maker.stop);
    }
    request.sampling.logprobs = args.logprobs;
    request.continues = args.raw;
    let begins = (args.chat.system.clone().or_else(|| maker.opening.system.clone()), maker.opening.clone());
    let mut session = Session::new(engine, template, chat, begins, request, tools);
    session.blind = blind;
    Ok(session)
}

/// The device and the memory used on it: `model.gguf on vulkan:0 (NVIDIA GeForce RTX 3090): 19.84 GiB of its memory`.
fn place(model: &octet_weights::Model, engine: &mut octet_engine::engine::Engine) -> String {
    let context = engine.context();
    let (device, own) = (engine.backend().describe(), engine.backend().memory_bytes());
    let takes = match own {
        Some(bytes) => format!("{} of its memory", size(bytes)),
        None => format!("{} of weights", size(model.size_bytes())),
    };
    format!("{} on {device}: {takes}, context of {context} tokens", model.origin)
}

fn show(args: &RunArgs) -> Reasoning {
    let errors_are_read = args.verbose || std::io::stderr().is_terminal();
    match std::io::stdout().is_terminal() {
        _ if args.hide_thinking => Reasoning::Hidden,
        true => Reasoning::Dim,
        false if errors_are_read => Reasoning::Stderr,
        false => Reasoning::Hidden,
    }
}

/// Answers once; calls of tools are answered, and the model asked again.
fn once(
    args: &RunArgs,
    session: &mut Session,
    mut tools: Option<&mut Toolbox>,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitCode> {
    interrupt.begin();
    let mut turns = 0;
    let reply = loop {
        let reply = if args.json {
            session.answer(&mut |_, _| interrupt.flow())?
        } else {
            let mut printer = Printer::new(show(args), interrupt);
            let reply = session.answer(&mut |kind, text| printer.piece(kind, text))?;
            printer.end()?;
            reply
        };
        turns += 1;
        let stopped = reply.answer.finish == Finish::Cancelled;
        let Some(tools) =
            tools.as_mut().filter(|_| !reply.calls.is_empty() && !stopped && turns <= TURNS_MAX)
        else {
            break reply;
        };
        session.chat.messages.push(reply.message());
        session.chat.messages.extend(tools.answer(&reply.calls));
    };
    if args.json {
        json::write(session, &reply, !args.hide_thinking)?;
    }
    interrupt.end();
    if args.verbose || std::io::stderr().is_terminal() {
        note!("\n{}", reply.summary());
    }
    if show(args) != Reasoning::Dim && reply.content.is_empty() && !reply.reasoning.is_empty() {
        note!("note: the answer ended while the model was thinking; raise --predict, or give --no-think");
    }
    if session.is_full(&reply) {
        let context = session.engine.context();
        note!(
            "note: the answer ends here because the context of {context} tokens is full; --ctx-size makes room"
        );
    }
    Ok(if reply.answer.finish == Finish::Cancelled {
        ExitCode::from(interrupt::EXIT_CODE)
    } else {
        ExitCode::SUCCESS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_piped_in_follows_the_prompt() {
        let join = |given: &[&str], piped: Option<&str>, raw| {
            joined(given.iter().map(ToString::to_string), piped.map(String::from), raw)
        };
        assert_eq!(
            join(&["summarise", "a file"], Some("text\n"), false).unwrap(),
            "summarise\n\na file\n\ntext"
        );
        assert_eq!(join(&["summarise"], Some("\n"), false).unwrap(), "summarise");
        assert_eq!(join(&[], Some("text\n"), false).unwrap(), "text");
        assert_eq!(join(&[], Some("text\n"), true).unwrap(), "text\n");
        assert_eq!(join(&[], Some(""), false), None);
        assert_eq!(join(&[], None, false), None);
    }

    #[test]
    fn a_terminal_without_a_prompt_is_a_chat_unless_one_answer_is_asked_for() {
        let terminal = Source { terminal: true, ..Default::default() };
        let answer = |read_stdin| Some(Task::Answer { read_stdin });
        let task = |source: Source| source.task().ok();
        assert_eq!(task(terminal), Some(Task::Chat));
        assert_eq!(task(Source { one_answer: true, ..terminal }), None);
        assert_eq!(task(Source { given: true, ..terminal }), answer(false));
        assert_eq!(task(Source { given: true, interactive: true, ..terminal }), Some(Task::Chat));
        assert_eq!(task(Source { waiting: true, ..terminal }), Some(Task::Chat));
        assert_eq!(task(Source { waiting: true, one_answer: true, ..terminal }), answer(false));
        assert_eq!(task(Source::default()), answer(true));
        assert_eq!(task(Source { waiting: true, ..Default::default() }), answer(true));
        assert_eq!(
            task(Source { given: true, ..Default::default() }),
            answer(true),
            "`git diff | octet run M 'review'`"
        );
        assert_eq!(task(Source { interactive: true, ..Default::default() }), Some(Task::Chat));
    }
}
