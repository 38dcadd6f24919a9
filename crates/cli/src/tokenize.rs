//! `octet tokenize`: the tokens of a text.

use std::io::Write;

use clap::Args;
use octet_engine::tokenizer::{Special, Tokenizer};
use serde_json::{Value, json};

use crate::args::ModelArgs;
use crate::chat::read_from;
use crate::settings::Settings;
use crate::units::count;
use crate::usage_error::Usage;

const EXAMPLES: &str = "\
Examples:
  octet tokenize model.gguf 'Hello, world'
  octet tokenize model.gguf --special '<|im_start|>user'    control tokens count
  cat README.md | octet tokenize model.gguf - --ids-only";

/// Shows the tokens of a text.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TokenizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text; '-' reads standard input.
    #[arg(value_name = "TEXT")]
    text: Vec<String>,
    /// Parse control tokens in the text (<|im_end|>) instead of treating them as text.
    #[arg(long)]
    special: bool,
    /// Add the BOS token, if the model has one.
    #[arg(long)]
    bos: bool,
    /// Print the ids only, as a list.
    #[arg(long)]
    ids_only: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "ids_only")]
    json: bool,
}

pub fn run(args: &TokenizeArgs, settings: &Settings) -> anyhow::Result<()> {
    let (name, text) = args.model.name_and_text(&args.text, settings)?;
    let text = match text {
        None => return Err(Usage("no text is given; '-' reads it from standard input".into()).into()),
        Some(text) if text == "-" => read_from(std::io::stdin(), "standard input")?,
        Some(text) => text,
    };
    let model = crate::model::open(&name, settings)?;
    let tokenizer = Tokenizer::from_metadata(&model.metadata)?;
    let special = if args.special { Special::Parse } else { Special::Text };
    let mut ids = if args.bos { tokenizer.prefix().to_vec() } else { Vec::new() };
    ids.extend(tokenizer.encode(&text, special)?);
    print(&tokenizer, &ids, args.ids_only, args.json)
}

/// Prints tokens, one per line, or as JSON.
pub fn print(tokenizer: &Tokenizer, ids: &[u32], ids_only: bool, as_json: bool) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let text = |id: u32| text_of(tokenizer, id);
    if ids_only {
        writeln!(out, "{}", Value::from(ids))?;
    } else if as_json {
        writeln!(out, "{:#}", ids.iter().map(|&id| json!({"id": id, "text": text(id)})).collect::<Value>())?;
    } else {
        for &id in ids {
            writeln!(out, "{id:>7}  {:?}", text(id))?;
        }
        writeln!(out, "{}", count(ids.len(), "token"))?;
    }
    Ok(out.flush()?)
}

/// A token's printable text: its text, or its name if it is a control token. Partial characters show as U+FFFD.
pub fn text_of(tokenizer: &Tokenizer, id: u32) -> String {
    match tokenizer.token_text(id).filter(|_| tokenizer.is_control(id)) {
        Some(name) => name.to_string(),
        None => String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned(),
    }
}
