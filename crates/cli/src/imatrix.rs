//! `octet imatrix`: how large the inputs of each matrix's columns are, from a text.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::Args;
use octet_compute::cpu::{Cpu, Sink, Watched};
use octet_engine::device::Device;
use octet_engine::engine::Options;
use octet_engine::score::Scorer;
use octet_engine::tokenizer::{Special, Tokenizer};
use octet_quantize::{Importance, Seen};

use crate::args::{EngineArgs, ModelArgs};
use crate::numbers::positive;
use crate::progress::Bar;
use crate::settings::Settings;
use crate::stderr::note;
use crate::units::count;

const EXAMPLES: &str = "\
Examples:
  octet imatrix model-bf16.gguf -f calibration.txt -o im.gguf
  octet quantize model-bf16.gguf -o small.gguf --type iq3_xxs --imatrix im.gguf

The file has llama.cpp's format (GGUF): its llama-quantize reads it, and `octet quantize` reads the
files of llama-imatrix. A text of some 100,000 tokens of the kind that the model will see is enough,
but rare experts need more: the command says which tensors have experts that saw little.";

/// Tokens read at once; each needs a row of logits.
const AT_ONCE: usize = 64;
/// An expert that saw fewer tokens is reported.
const FEW: f32 = 32.0;

/// Measures which columns of a model's matrices have large inputs, for `octet quantize --imatrix`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ImatrixArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text file.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// File to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
    /// Tokens of a part of the text; each begins without a past.
    #[arg(long, value_name = "N", default_value = "512", value_parser = positive)]
    chunk: usize,
    /// Parts to read. Default: the whole text.
    #[arg(long, value_name = "N", value_parser = positive)]
    chunks: Option<usize>,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(args: &ImatrixArgs, settings: &Settings) -> anyhow::Result<()> {
    crate::quantize::check_output(&args.output, args.force, "an importance matrix")?;
    let text = crate::chat::read(&args.file)?;
    let model = crate::model::open(&args.model.name(settings)?, settings)?;
    let tokenizer = Tokenizer::from_metadata(&model.metadata)?;
    let mut tokens: Vec<u32> = tokenizer.prefix().first().copied().into_iter().collect();
    tokens.extend(tokenizer.encode(&text, Special::Text)?);
    let chunks = (tokens.len() / args.chunk).min(args.chunks.unwrap_or(usize::MAX));
    ensure!(
        chunks > 0,
        "{}: has {}, less than a part of {}; give a longer text or a smaller --chunk",
        args.file.display(),
        count(tokens.len(), "token"),
        args.chunk
    );
    let sink = Sink::default();
    let seen = Arc::clone(&sink);
    let mut plain = args.engine.plain_options();
    plain.context = Some(args.chunk.max(2));
    let cpu = plain.cpu.clone();
    let device = Device::new("cpu", move || Ok(Cpu::new(&cpu)?.with_watch(Arc::clone(&sink))));
    let options = Options { score_tokens: AT_ONCE.min(args.chunk), device: Some(device), ..plain };
    let loading = Bar::bytes("loading");
    let mut scorer = Scorer::open(&model, &options, &mut |done, all| loading.update(done, all))?;
    drop(loading);
    let bar = Bar::steps("tokens");
    let all = (chunks * args.chunk) as u64;
    let mut done = 0;
    for chunk in tokens.chunks_exact(args.chunk).take(chunks) {
        let mut chunk = chunk.to_vec();
        if let Some(bos) = tokenizer.prefix().first() {
            chunk[0] = *bos;
        }
        scorer.begin();
        for part in chunk.chunks(scorer.at_once()) {
            scorer.read(part)?;
            done += part.len() as u64;
            bar.update(done, all);
        }
    }
    drop(bar);
    drop(scorer);
    let watched = std::mem::take(&mut *seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    let importance = Importance {
        file: args.output.display().to_string(),
        datasets: vec![args.file.file_name().unwrap_or_default().to_string_lossy().into_owned()],
        chunks: chunks as u64,
        chunk_tokens: args.chunk as u64,
        seen: watched.into_iter().filter(|w| !w.name.is_empty() && w.counts.iter().any(|n| *n > 0)).fold(
            Default::default(),
            |mut all: std::collections::HashMap<String, Seen>, w| {
                add(&mut all, w);
                all
            },
        ),
    };
    ensure!(!importance.seen.is_empty(), "{}: no matrix has inputs", model.origin);
    let file = importance.to_model()?;
    octet_synth::write(&file, &args.output, args.force, &mut |_, _| {})
        .with_context(|| "importance matrix")?;
    report(args, &importance)
}

/// Parts of one tensor have the same inputs.
fn add(all: &mut std::collections::HashMap<String, Seen>, w: Watched) {
    let counts: Vec<f32> = w.counts.iter().map(|n| *n as f32).collect();
    match all.get_mut(&w.name) {
        Some(seen) if seen.sums.len() == w.sums.len() => {
            seen.sums.iter_mut().zip(&w.sums).for_each(|(a, b)| *a += b);
            seen.counts.iter_mut().zip(&counts).for_each(|(a, b)| *a += b);
        }
        // A part of the columns of a tensor is no tensor of its own.
        Some(_) => {}
        None => {
            all.insert(w.name, Seen { columns: w.columns, sums: w.sums, counts });
        }
    }
}

/// How many experts saw how much.
fn report(args: &ImatrixArgs, importance: &Importance) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let tokens = importance.chunks * importance.chunk_tokens;
    writeln!(out, "{}: {} tensors, from {tokens} tokens", args.output.display(), importance.seen.len())?;
    let stacks: Vec<_> = importance.seen.iter().filter(|(_, s)| s.counts.len() > 1).collect();
    if stacks.is_empty() {
        return Ok(());
    }
    let counts: Vec<f32> = stacks.iter().flat_map(|(_, s)| s.counts.iter().copied()).collect();
    let share = |f: &dyn Fn(f32) -> bool| {
        100.0 * counts.iter().filter(|n| f(**n)).count() as f64 / counts.len() as f64
    };
    writeln!(
        out,
        "experts: {:.1}% saw at least {FEW} tokens, {:.1}% saw none",
        share(&|n| n >= FEW),
        share(&|n| n == 0.0)
    )?;
    let mut poor: Vec<(&String, usize)> = stacks
        .iter()
        .map(|(name, s)| (*name, s.counts.iter().filter(|n| **n < FEW).count()))
        .filter(|(_, few)| *few > 0)
        .collect();
    poor.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    for (name, few) in poor.iter().take(5) {
        note!("note: {name}: {} saw fewer than {FEW} tokens; a longer text helps", count(*few, "expert"));
    }
    Ok(())
}
