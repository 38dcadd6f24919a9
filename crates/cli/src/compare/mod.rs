//! `octet compare`: what a quantisation costs, as the divergence of its predictions from those of a base.

mod measure;
mod report;
mod svg;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use octet_engine::engine::Options;
use octet_engine::report::Report;
use octet_engine::score::Scorer;
use octet_engine::tokenizer::{Special, Tokenizer};
use octet_quantize::base::{Head, Reader, Writer};
use octet_weights::Model;

use crate::args::EngineArgs;
use crate::numbers::{count, positive};
use crate::settings::Settings;
use report::Compared;

const EXAMPLES: &str = "\
Examples:
  octet compare model-bf16.gguf q4_k_m.gguf iq3_xxs.gguf -f text.txt --svg quality.svg
  octet compare model-bf16.gguf -f text.txt --save-base base.kld     run a large base once
  octet compare base.kld q4_k_m.gguf -f text.txt                     and compare with it later

The text is read in windows (--window); predictions in the second half of each count, as in
llama-perplexity, whose files of --kl-divergence-base are read and written. One model is in memory
at a time.";

/// Tokens scored at once; each needs a row of logits.
const AT_ONCE: usize = 32;

/// Compares the predictions of models with those of a base: what a quantisation costs.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompareArgs {
    /// The base, such as the unquantised model, or a file that --save-base or llama-perplexity wrote.
    #[arg(value_name = "BASE")]
    base: String,
    /// The models to compare with it.
    #[arg(value_name = "OTHER")]
    others: Vec<String>,
    /// The text file.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Write the base's predictions to this file.
    #[arg(long, value_name = "FILE")]
    save_base: Option<PathBuf>,
    /// Tokens of a window.
    #[arg(long, value_name = "N", default_value = "512", value_parser = positive)]
    window: usize,
    /// Windows to read. Default: all of the text.
    #[arg(long, value_name = "N", value_parser = positive)]
    windows: Option<usize>,
    /// The tokens that differ most to show of each model.
    #[arg(long, value_name = "N", default_value = "5")]
    worst: usize,
    /// Tokens generated of each model to measure its speed; 0: it is not measured.
    #[arg(long, value_name = "N", default_value = "32", value_parser = count)]
    speed: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Draw divergence against bytes read a token, and against tokens a second (SVG).
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(args: &CompareArgs, settings: &Settings) -> anyhow::Result<()> {
    ensure!(
        !args.others.is_empty() || args.save_base.is_some(),
        "nothing to compare with {}; name other models, or --save-base FILE",
        args.base
    );
    ensure!(args.window >= 4, "a window has at least 4 tokens, got {}", args.window);
    let mut base = base_of(args, settings)?;
    let mut all = Vec::new();
    for name in &args.others {
        let model = crate::model::open(name, settings)?;
        let report = Report::new(&model)?;
        let tokenizer = Tokenizer::from_metadata(&model.metadata)?;
        let mut scorer = load(&model, args, base.head.window)?;
        let rows = measure::compare(&mut scorer, &mut base, bos(&tokenizer), name)?;
        ensure!(!rows.is_empty(), "the text is too short");
        let speed = measure::speed(&mut scorer, &base.head, args.speed)?;
        let text = |ids: &[u32]| ids.iter().map(|id| piece(&tokenizer, *id)).collect::<String>();
        all.push(Compared::new(name, &report, (&rows, speed), &base.head, args.worst, &text));
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::draw(&args.base, &all)).with_context(|| path.display().to_string())?;
    }
    let mut out = std::io::stdout().lock();
    match args.json {
        true => writeln!(out, "{:#}", report::json(&args.base, &base.head, &all))?,
        false => report::table(&mut out, &args.base, &base.head, &all)?,
    }
    Ok(())
}

/// The base's predictions: from a file, or written to one now.
fn base_of(args: &CompareArgs, settings: &Settings) -> anyhow::Result<Reader> {
    if Reader::is(Path::new(&args.base)) {
        ensure!(args.save_base.is_none(), "{} is a saved base already; leave --save-base out", args.base);
        let open = || Reader::new(std::fs::File::open(&args.base)?);
        return open().with_context(|| args.base.clone());
    }
    let text = crate::chat::read(&args.file)?;
    let model = crate::model::open(&args.base, settings)?;
    let tokenizer = Tokenizer::from_metadata(&model.metadata)?;
    let mut tokens: Vec<u32> = bos(&tokenizer).into_iter().collect();
    tokens.extend(tokenizer.encode(&text, Special::Text)?);
    let windows = (tokens.len() / args.window).min(args.windows.unwrap_or(usize::MAX));
    ensure!(
        windows > 0,
        "{}: has {} tokens, less than one window of {}; give a longer text or a smaller --window",
        args.file.display(),
        tokens.len(),
        args.window
    );
    tokens.truncate(windows * args.window);
    let mut scorer = load(&model, args, args.window)?;
    let head = Head { window: args.window, vocab: scorer.vocab(), tokens };
    // Named when it is complete.
    let folder = args.save_base.as_deref().and_then(Path::parent).filter(|p| !p.as_os_str().is_empty());
    let file = match (&args.save_base, folder) {
        (Some(_), folder) => tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new("."))),
        (None, _) => tempfile::NamedTempFile::new(),
    }
    .context("the base's predictions need a file")?;
    let mut writer = Writer::new(file.reopen()?, &head)?;
    measure::write(&mut scorer, &head, bos(&tokenizer), &args.base, &mut writer)?;
    writer.finish()?;
    let reader = Reader::new(file.reopen()?)?;
    if let Some(path) = &args.save_base {
        file.persist(path).with_context(|| path.display().to_string())?;
    }
    Ok(reader)
}

fn bos(tokenizer: &Tokenizer) -> Option<u32> {
    tokenizer.prefix().first().copied()
}

/// A token's text; of damaged UTF-8 the replacement character.
fn piece(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()
}

fn load(model: &Model, args: &CompareArgs, window: usize) -> anyhow::Result<Scorer> {
    let mut plain = args.engine.plain_options();
    plain.context = Some(window.max(plain.context.unwrap_or(0)));
    let options = Options { score_tokens: AT_ONCE, ..plain };
    Ok(crate::loading::load_to_score(model, &args.engine, &mut [options])?.remove(0))
}
