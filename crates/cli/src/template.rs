//! `octet template`: shows the prompt of a chat.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use octet_engine::tokenizer::Tokenizer;

use crate::args::ModelArgs;
use crate::chat::{ChatArgs, read_json};
use crate::settings::Settings;
use crate::usage_error::Usage;

const EXAMPLES: &str = "\
Examples:
  octet template model.gguf --user 'Why is the sky blue?'
  octet template model.gguf --messages chat.json --tools tools.json --tokens
  octet template model.gguf --user Hi --chat-template-kwargs '{\"enable_thinking\": false}'
  octet template model.gguf --source                       the template itself";

/// Shows the prompt that a chat template renders.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TemplateArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// File with messages: a list, or an object with 'messages' and 'tools', as in OpenAI's API.
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
    /// A user message, after the messages of the file.
    #[arg(short, long, value_name = "TEXT")]
    user: Option<String>,
    /// File with a list of tools, as in OpenAI's API.
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Omit the beginning of the answer.
    #[arg(long)]
    no_generation_prompt: bool,
    /// Show the tokens of the prompt instead.
    #[arg(long)]
    tokens: bool,
    /// Show the template itself instead.
    #[arg(long)]
    source: bool,
    #[command(flatten)]
    chat: ChatArgs,
}

pub fn run(args: &TemplateArgs, settings: &Settings) -> anyhow::Result<()> {
    let model = crate::model::open(&args.model.name(settings)?, settings)?;
    let tokenizer = Tokenizer::from_metadata(&model.metadata)?;
    let template = args.chat.template(&model, &tokenizer)?;
    let mut out = std::io::stdout().lock();
    if args.source {
        return Ok(writeln!(out, "{}", template.source())?);
    }
    let mut chat = args.chat.conversation(args.messages.as_deref())?;
    if let Some(path) = &args.tools {
        let tools = read_json(path)?;
        let list =
            tools.as_array().with_context(|| format!("{}: expected a list of tools", path.display()))?;
        chat.tools = Some(list.clone());
    }
    if let Some(text) = &args.user {
        chat.push("user", text);
    }
    if chat.input(true).messages.is_empty() {
        return Err(Usage("no messages: give --user TEXT or --messages FILE".into()).into());
    }
    let prompt = template.render(&chat.input(!args.no_generation_prompt))?;
    if args.tokens {
        drop(out);
        return crate::tokenize::print(&tokenizer, &tokenizer.encode_prompt(&prompt)?, false, false);
    }
    // Exactly the model's input; a newline only on a terminal.
    write!(out, "{}", prompt.text)?;
    if std::io::stdout().is_terminal() && !prompt.text.ends_with('\n') {
        writeln!(out)?;
    }
    Ok(out.flush()?)
}
