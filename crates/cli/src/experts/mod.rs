//! `octet experts`: expert usage by text domain, as a table, JSON and a heat map.

mod domains;
mod svg;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::Args;
use octet_engine::engine::Options;
use octet_engine::score::Scorer;
use octet_engine::template::ChatTemplate;
use octet_engine::tokenizer::{Special, Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::{EngineArgs, ModelArgs};
use crate::chat::{ChatArgs, Conversation};
use crate::progress::Bar;
use crate::settings::Settings;
use crate::units::count;
use domains::Domains;

const EXAMPLES: &str = "\
Examples:
  octet experts model.gguf --prompts prompts.jsonl
  octet experts model.gguf --prompts prompts.jsonl --svg experts.svg --json > experts.json

Each line of the file is a prompt, or one of
  {\"domain\": \"code\", \"prompt\": \"Reverse a list in Python.\", \"answer\": \"items[::-1]\"}
  {\"domain\": \"law\", \"text\": \"The parties agree that ...\"}
The chat template applies to a prompt and its answer, if there is one, not to a text. Prompts that
are plain lines belong to a domain with the file's name.";

/// Shows which experts texts of different domains use.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExpertsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompts, one per line, or prompts and texts with their domains, one JSON object per line.
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,
    /// Write a heat map of layers and experts for each domain to this file (SVG).
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON, including the count of each expert.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    chat: ChatArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Tokens per batch.
const AT_ONCE: usize = 32;

/// A line of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    domain: String,
    prompt: Option<String>,
    answer: Option<String>,
    text: Option<String>,
}

pub fn run(args: &ExpertsArgs, settings: &Settings) -> anyhow::Result<()> {
    let lines = lines(args)?;
    let model = crate::model::open(&args.model.name(settings)?, settings)?;
    let tokenizer = Tokenizer::from_metadata(&model.metadata)?;
    let has_prompts = lines.iter().any(|line| line.prompt.is_some());
    let template = has_prompts.then(|| args.chat.template(&model, &tokenizer)).transpose()?;
    let texts: Vec<(String, Vec<u32>)> = lines
        .into_iter()
        .enumerate()
        .map(|(i, line)| {
            let domain = line.domain.clone();
            let tokens = tokens(args, template.as_ref(), &tokenizer, line);
            Ok((domain, tokens.with_context(|| format!("{}: line {}", args.prompts.display(), i + 1))?))
        })
        .collect::<anyhow::Result<_>>()?;
    let options = Options { score_tokens: AT_ONCE, ..args.engine.plain_options() };
    let mut scorer = crate::loading::load_to_score(&model, &args.engine, &mut [options])?.remove(0);
    ensure!(scorer.experts().is_some(), "{}: the model has no experts", model.origin);
    let domains = read(&mut scorer, &texts)?;
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::draw(&model.origin, &domains))
            .with_context(|| path.display().to_string())?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        return Ok(writeln!(out, "{:#}", as_json(&domains))?);
    }
    Ok(table(&mut out, &domains)?)
}

fn lines(args: &ExpertsArgs) -> anyhow::Result<Vec<Line>> {
    let name = args.prompts.display();
    let text = crate::chat::read(&args.prompts)?;
    let mut lines: Vec<Line> = Vec::new();
    let mut filled = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()).peekable();
    let is_json = filled.peek().is_some_and(|(_, line)| line.trim_start().starts_with('{'));
    let file = args.prompts.file_stem().unwrap_or_default().to_string_lossy();
    for (i, line) in filled {
        lines.push(if is_json {
            serde_json::from_str(line).with_context(|| format!("{name}: line {}", i + 1))?
        } else {
            Line { domain: file.to_string(), prompt: Some(line.trim().into()), answer: None, text: None }
        });
    }
    ensure!(!lines.is_empty(), "{name}: no prompts");
    Ok(lines)
}

fn tokens(
    args: &ExpertsArgs,
    template: Option<&ChatTemplate>,
    tokenizer: &Tokenizer,
    line: Line,
) -> anyhow::Result<Vec<u32>> {
    match (line.prompt.zip(template), line.text) {
        (Some((prompt, template)), None) => {
            let mut chat: Conversation = args.chat.conversation(None)?;
            chat.push("user", &prompt);
            if let Some(answer) = &line.answer {
                chat.push("assistant", answer);
            }
            Ok(tokenizer.encode_prompt(&template.render(&chat.input(line.answer.is_none()))?)?)
        }
        (None, Some(text)) if line.answer.is_none() => Ok(tokenizer.encode(&text, Special::Text)?),
        _ => bail!("expected either 'prompt', which may have an 'answer', or 'text'"),
    }
}

/// Counts the choices for all tokens. Texts longer than the context are split.
fn read(scorer: &mut Scorer, texts: &[(String, Vec<u32>)]) -> anyhow::Result<Domains> {
    let all = texts.iter().map(|(_, tokens)| tokens.len()).sum::<usize>() as u64;
    let bar = Bar::steps("reading");
    let mut domains = Domains::default();
    let mut before = scorer.experts().context("the model has no experts")?;
    let mut done = 0;
    for (domain, tokens) in texts {
        for part in tokens.chunks(scorer.context()) {
            scorer.begin();
            for step in part.chunks(scorer.at_once()) {
                scorer.read(step)?;
                done += step.len() as u64;
                bar.update(done, all);
            }
        }
        let after = scorer.experts().context("the model has no experts")?;
        domains.add(domain, tokens.len() as u64, &before, &after);
        before = after;
    }
    Ok(domains)
}

fn as_json(d: &Domains) -> Value {
    json!({
        "experts": d.experts,
        "experts_per_token": d.per_token,
        "domains": d.domains.iter().map(|domain| json!({
            "name": domain.name,
            "tokens": domain.tokens,
            "layers": domain.layers,
        })).collect::<Vec<_>>(),
        "layers": d.layers().map(|l| json!({
            "layer": l.layer,
            "entropy_bits": l.entropy,
            "top_10_percent_share": l.top,
            "mutual_information_bits": l.information,
        })).collect::<Vec<_>>(),
    })
}

fn table(out: &mut dyn Write, d: &Domains) -> std::io::Result<()> {
    writeln!(out, "{} experts, {} for a token", d.experts, d.per_token)?;
    for domain in &d.domains {
        writeln!(out, "  {}: {}", domain.name, count(domain.tokens as usize, "token"))?;
    }
    let most = (d.experts as f64).log2();
    writeln!(out, "\nall domains alike in weight; a layer's entropy is at most {most:.2} bits")?;
    writeln!(out, "layer  entropy  busiest 10%  information of expert and domain")?;
    for l in d.layers() {
        let bar = "█".repeat((l.information * 20.0).round() as usize);
        let line = format!(
            "{:5} {:8.2} {:11.1}%  {:.3} bits {bar}",
            l.layer,
            l.entropy,
            100.0 * l.top,
            l.information
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
