//! `octet perplexity`: how well a model predicts a text.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use octet_engine::tokenizer::Special;
use serde_json::json;

use crate::config::{EngineArgs, ModelArgs, Settings};
use crate::progress::Bar;

const EXAMPLES: &str = "\
Examples:
  octet perplexity model.gguf -f wiki.test.raw -c 512
  octet perplexity model.gguf -f text.txt --exact          with f32 weights, as a reference

A text longer than the context is cut into windows of it; each begins without what went before. All
tokens of a window but the first one count.";

/// Measures how well a model predicts a text.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// As JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Tokens that are scored at once; each takes a row of logits.
const AT_ONCE: usize = 32;

pub fn run(args: &PerplexityArgs, settings: &Settings) -> anyhow::Result<()> {
    let text = crate::chat::read(&args.file)?;
    let model = crate::model::open(&args.model.name(settings)?, settings)?;
    let mut engine = crate::model::load_to_score(&model, &args.engine, AT_ONCE)?;
    let tokenizer = std::sync::Arc::clone(engine.tokenizer());
    let tokens = tokenizer.encode(&text, Special::Text)?;
    let bos = tokenizer.bos();
    // A token is predicted from one before it, be it BOS.
    anyhow::ensure!(
        engine.context() > 1,
        "a context of 1 token has no room to predict anything; raise --ctx-size"
    );
    let window = engine.context() - usize::from(bos.is_some());
    let scored = |w: &[u32]| w.len() - usize::from(bos.is_none());
    let all: usize = tokens.chunks(window).map(scored).sum();
    anyhow::ensure!(all > 0, "{}: too short to predict anything", args.file.display());

    let bar = Bar::steps("tokens");
    let mut nll = Vec::with_capacity(all);
    for w in tokens.chunks(window) {
        let w: Vec<u32> = bos.into_iter().chain(w.iter().copied()).collect();
        let before = nll.len();
        nll.extend(
            engine
                .score(&w, &mut |n| bar.update((before + n) as u64, all as u64))?
                .into_iter()
                .map(f64::from),
        );
    }
    drop(bar);
    let (mean, sd) = octet_engine::bench::mean_sd(&nll);
    let perplexity = mean.exp();
    // Of the mean, carried through exp to first order.
    let error = perplexity * sd / (nll.len() as f64).sqrt();
    let mut out = std::io::stdout();
    if args.json {
        let all = json!({"perplexity": perplexity, "error": error, "nll": mean, "tokens": nll.len(), "window": window});
        writeln!(out, "{all:#}")?;
    } else {
        writeln!(out, "perplexity {perplexity:.4} ± {error:.4}")?;
        writeln!(out, "NLL        {mean:.5} nats a token")?;
        writeln!(out, "tokens     {} predicted, in windows of {window}", nll.len())?;
    }
    Ok(())
}
