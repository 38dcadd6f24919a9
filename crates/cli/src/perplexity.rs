//! `octet perplexity`: how well a model predicts a text, and how quantised arithmetic differs from exact.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use octet_compute::backend::{KvType, KvTypes};
use octet_compute::cpu::CpuOptions;
use octet_engine::bench::mean_sd;
use octet_engine::engine::Options;
use octet_engine::experts::ExpertUsage;
use octet_engine::score::{Divergence, Scorer, negative_log_likelihood};
use octet_engine::tokenizer::{Special, Tokenizer};
use serde_json::{Map, Value, json};

use crate::args::{EngineArgs, ModelArgs};
use crate::progress::Bar;
use crate::settings::Settings;
use crate::usage_error::Usage;

const EXAMPLES: &str = "\
Examples:
  octet perplexity model.gguf -f wiki.test.raw -c 512
  octet perplexity model.gguf -f text.txt --exact          with f32 weights, as a reference
  octet perplexity model.gguf -f text.txt --kl-divergence  the effect of 8-bit activations
  octet perplexity model.gguf -f text.txt --kl-divergence --exact -ctk q8_0 -ctv q8_0
                                                           the effect of these keys and values alone
  octet perplexity model.gguf -f text.txt --experts --json > usage.json

A text longer than the context is split into windows of that length, without overlap. All tokens
of a window except its first are scored.";

/// Measures how well a model predicts a text.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text file.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Also load the model with --exact (and keys and values in f16 if they are quantised), and report the divergence of the
    /// next-token probabilities from it.
    #[arg(long)]
    kl_divergence: bool,
    /// Also report expert usage by layer; with --json the count of each expert.
    #[arg(long)]
    experts: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Tokens scored at once; each needs a row of logits.
const AT_ONCE: usize = 32;

pub fn run(args: &PerplexityArgs, settings: &Settings) -> anyhow::Result<()> {
    let options = Options { score_tokens: AT_ONCE, ..args.engine.plain_options() };
    let exact = reference(&options);
    if args.kl_divergence && options.cpu.exact && options.kv == exact.kv {
        let what = "--kl-divergence compares with --exact: leave --exact out, or quantise keys and values (-ctk, -ctv)";
        return Err(Usage(what.into()).into());
    }
    let text = crate::chat::read(&args.file)?;
    let model = crate::model::open(&args.model.name(settings)?, settings)?;
    let tokenizer = Tokenizer::from_metadata(&model.metadata)?;
    let tokens = tokenizer.encode(&text, Special::Text)?;
    let mut variants = vec![options];
    if args.kl_divergence {
        variants.push(exact);
    }
    let mut models = crate::loading::load_to_score(&model, &args.engine, &mut variants)?;
    let windows = Windows::new(&tokens, tokenizer.prefix().first().copied(), models[0].context())?;
    anyhow::ensure!(windows.predicted() > 0, "{}: too short to predict anything", args.file.display());
    anyhow::ensure!(
        !args.experts || models[0].experts().is_some(),
        "{}: the model has no experts; leave --experts out",
        model.origin
    );
    let measured = measure(&windows, &mut models)?;
    let usage = models[0].experts().filter(|_| args.experts);
    let mut out = std::io::stdout();
    if args.json {
        let mut all = measured.json(&windows);
        if let Some(usage) = &usage {
            all.insert("experts".into(), octet_serve::experts_json(usage));
        }
        writeln!(out, "{:#}", Value::Object(all))?;
    } else {
        measured.write(&mut out, &windows)?;
        if let Some(usage) = &usage {
            write_experts(&mut out, usage)?;
        }
    }
    Ok(())
}

/// The reference for divergences: f32 weights and activations, and unquantised keys and values.
fn reference(options: &Options) -> Options {
    let plain = |ty| if ty == KvType::F32 { ty } else { KvType::F16 };
    let KvTypes { keys, values } = options.kv;
    let kv = KvTypes { keys: plain(keys), values: plain(values) };
    Options { kv, cpu: CpuOptions { exact: true, ..options.cpu.clone() }, ..options.clone() }
}

/// A text split into windows of the context's length.
struct Windows<'a> {
    tokens: &'a [u32],
    bos: Option<u32>,
    /// Text tokens in each window.
    length: usize,
}

impl<'a> Windows<'a> {
    fn new(tokens: &'a [u32], bos: Option<u32>, context: usize) -> anyhow::Result<Self> {
        // A token is predicted from at least one before it, such as BOS.
        anyhow::ensure!(
            context > 1,
            "a context of 1 token has no room to predict anything; raise --ctx-size"
        );
        Ok(Self { tokens, bos, length: context - usize::from(bos.is_some()) })
    }

    fn iter(&self) -> impl Iterator<Item = Vec<u32>> {
        self.tokens.chunks(self.length).map(|w| self.bos.into_iter().chain(w.iter().copied()).collect())
    }

    /// Number of predicted tokens.
    fn predicted(&self) -> usize {
        self.iter().map(|w| w.len() - 1).sum()
    }
}

/// Results for each predicted token.
#[derive(Default)]
struct Measured {
    nll: Vec<f64>,
    /// Divergences from the reference, if there is one.
    divergences: Vec<Divergence>,
}

/// Reads the text with all models: the first is measured, a second is its reference.
fn measure(windows: &Windows, models: &mut [Scorer]) -> anyhow::Result<Measured> {
    let bar = Bar::steps("tokens");
    let all = windows.predicted();
    let mut m = Measured::default();
    let (model, reference) = models.split_first_mut().expect("there is a model to measure");
    let mut reference = reference.first_mut();
    let (at_once, vocab) = (model.at_once(), model.vocab());
    for w in windows.iter() {
        model.begin();
        reference.iter_mut().for_each(|r| r.begin());
        let mut next = w.iter().skip(1);
        for part in w[..w.len() - 1].chunks(at_once) {
            let rows = model.read(part)?.chunks_exact(vocab);
            let exact = reference.as_mut().map(|r| r.read(part)).transpose()?;
            let mut exact = exact.map(|e| e.chunks_exact(vocab));
            for (row, &next) in rows.zip(next.by_ref()) {
                m.nll.push(negative_log_likelihood(row, next));
                if let Some(exact) = exact.as_mut().and_then(Iterator::next) {
                    m.divergences.push(Divergence::between(exact, row, next));
                }
            }
            bar.update(m.nll.len() as u64, all as u64);
        }
    }
    Ok(m)
}

/// Mean and its standard error.
fn mean_error(x: &[f64]) -> (f64, f64) {
    let (mean, sd) = mean_sd(x);
    (mean, sd / (x.len() as f64).sqrt())
}

/// The `q`-quantile of sorted values, the nearest one.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * q).round() as usize]
}

impl Measured {
    /// Perplexity and its standard error: that of the mean, propagated through exp to first order.
    fn perplexity(&self) -> (f64, f64) {
        let (mean, error) = mean_error(&self.nll);
        (mean.exp(), mean.exp() * error)
    }

    /// The comparison with llama-perplexity's names.
    fn comparison(&self) -> Option<Comparison> {
        if self.divergences.is_empty() {
            return None;
        }
        let mut kl: Vec<f64> = self.divergences.iter().map(|d| d.kl).collect();
        let (mean, error) = mean_error(&kl);
        kl.sort_by(f64::total_cmp);
        let n = kl.len() as f64;
        let squares: f64 = self.divergences.iter().map(|d| d.probability * d.probability).sum();
        Some(Comparison {
            mean,
            error,
            median: quantile(&kl, 0.5),
            p99: quantile(&kl, 0.99),
            maximum: kl[kl.len() - 1],
            same_top: self.divergences.iter().filter(|d| d.same_top).count() as f64 / n,
            rms_probability: (squares / n).sqrt(),
        })
    }

    fn json(&self, windows: &Windows) -> Map<String, Value> {
        let (perplexity, error) = self.perplexity();
        let mut all = Map::new();
        all.insert("perplexity".into(), perplexity.into());
        all.insert("error".into(), error.into());
        all.insert("nll".into(), mean_error(&self.nll).0.into());
        all.insert("tokens".into(), self.nll.len().into());
        all.insert("window".into(), windows.length.into());
        if let Some(c) = self.comparison() {
            let c = json!({
                "mean": c.mean, "error": c.error, "median": c.median, "p99": c.p99, "maximum": c.maximum,
                "same_top": c.same_top, "rms_probability": c.rms_probability,
            });
            all.insert("kl_divergence".into(), c);
        }
        all
    }

    fn write(&self, out: &mut dyn Write, windows: &Windows) -> std::io::Result<()> {
        let (perplexity, error) = self.perplexity();
        writeln!(out, "perplexity     {perplexity:.4} ± {error:.4}")?;
        writeln!(out, "NLL            {:.5} nats a token", mean_error(&self.nll).0)?;
        writeln!(out, "tokens         {} predicted, in windows of {}", self.nll.len(), windows.length)?;
        if let Some(c) = self.comparison() {
            writeln!(out, "against --exact:")?;
            writeln!(out, "KL divergence  {:.6} ± {:.6} nats, mean", c.mean, c.error)?;
            writeln!(
                out,
                "               {:.6} median, {:.6} 99%, {:.6} maximum",
                c.median, c.p99, c.maximum
            )?;
            writeln!(out, "same top token {:.2}%", 100.0 * c.same_top)?;
            writeln!(out, "RMS Δp         {:.3}%", 100.0 * c.rms_probability)?;
        }
        Ok(())
    }
}

/// One line per layer: share of the most used experts, and the effective number.
fn write_experts(out: &mut dyn Write, usage: &ExpertUsage) -> std::io::Result<()> {
    let n = usage.experts();
    let parts = [n.div_ceil(32), n.div_ceil(8), n.div_ceil(2)];
    let [few, some, half] = parts.map(|n| format!("top {n}"));
    let what = format!("{n} experts, {} for a token", usage.per_token);
    writeln!(out, "\n{what}: shares of the most used of each layer")?;
    writeln!(out, "layer {few:>8} {some:>8} {half:>8} {:>11} {:>8}", "effective", "unused")?;
    for l in &usage.layers {
        let [few, some, half] = parts.map(|n| format!("{:.1}%", 100.0 * l.top_share(n)));
        writeln!(
            out,
            "{:5} {few:>8} {some:>8} {half:>8} {:>11.1} {:>8}",
            l.layer,
            l.effective(),
            l.unused()
        )?;
    }
    let all = n * usage.layers.len();
    let covered = [10, 25, 50].map(|p| {
        let experts = (all * p).div_ceil(100);
        format!("{p}% of them take {:.1}%", 100.0 * usage.coverage(experts))
    });
    writeln!(out, "of all {all}: {}", covered.join(", "))
}

/// Statistics over all tokens.
struct Comparison {
    mean: f64,
    error: f64,
    median: f64,
    p99: f64,
    maximum: f64,
    same_top: f64,
    rms_probability: f64,
}
