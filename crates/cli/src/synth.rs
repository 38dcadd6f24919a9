//! `octet synth`: a model file of a known shape with random weights.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use octet_synth::{Mix, Shape, known};

use crate::numbers::{positive, whole};
use crate::progress::Bar;
use crate::units::size;

const EXAMPLES: &str = "\
Examples:
  octet synth qwen3.6-35b-a3b --quant q4_k_m -o synth.gguf
  octet synth qwen3-8b --quant q8_0 --layers 4 -o small.gguf    a few layers of it
  octet synth qwen3.6-35b-a3b --expert-skew 0.3 -o skewed.gguf  some experts are chosen more often
  octet synth qwen3.6-35b-a3b --layers 8 --mtp -o mtp.gguf      with the block for MTP
  octet synth tiny-qwen35moe --quant f32 -o tiny.gguf           the smallest of its kind";

/// Writes a model of a known shape with random weights, for measurements before a download.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SynthArgs {
    /// Shape of a published model: qwen3.6-35b-a3b, qwen3-8b, ... An unknown name lists them all.
    #[arg(value_name = "SHAPE", value_parser = shape)]
    shape: Box<Shape>,
    #[command(flatten)]
    made: MadeArgs,
    /// File to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
}

/// The default.
const QUANT: &str = "q4_k_m";

/// Settings of a synthetic model.
#[derive(Debug, Clone, Args)]
pub struct MadeArgs {
    /// Quantisation: f32, bf16, q8_0, q4_k_m, ... An unknown name lists them all. Default: q4_k_m.
    #[arg(long, value_name = "TYPE", value_parser = mix)]
    quant: Option<Mix>,
    /// Number of layers. Default: the shape's own.
    #[arg(long, value_name = "N", value_parser = positive)]
    layers: Option<usize>,
    /// Seed of the random weights. Default: 0.
    #[arg(long, value_name = "N", value_parser = whole::<u64>)]
    weights_seed: Option<u64>,
    /// How unequally experts are chosen: routers' rows are multiplied with exp(SKEW z), z normally distributed; 0.5 is much. Default: 0.
    #[arg(long, value_name = "SKEW", value_parser = skew)]
    expert_skew: Option<f32>,
    /// Include a block for multi-token prediction (shapes of Qwen3.5 and Qwen3.6).
    #[arg(long)]
    mtp: bool,
}

impl MadeArgs {
    /// The model, whose tensors are generated when they are read.
    pub fn make(&self, shape: &Shape) -> Result<octet_weights::Model, octet_synth::Error> {
        let quant = self.quant.map_or_else(|| QUANT.parse(), Ok)?;
        let shape = if self.mtp { &shape.with_mtp()? } else { shape };
        let (seed, skew) = (self.weights_seed.unwrap_or(0), self.expert_skew.unwrap_or(0.0));
        octet_synth::skewed(shape, quant, self.layers, seed, skew)
    }

    /// True if any flag was given.
    pub fn is_given(&self) -> bool {
        self.quant.is_some()
            || self.layers.is_some()
            || self.weights_seed.is_some()
            || self.mtp
            || self.expert_skew.is_some()
    }
}

/// A shape by name; `tiny-ARCHITECTURE` shapes are for tests.
pub fn shape(name: &str) -> Result<Box<Shape>, String> {
    match name.strip_prefix("tiny-") {
        Some(architecture) => octet_synth::tiny_shape(architecture),
        None => known::shape(name),
    }
    .map(Box::new)
    .map_err(|e| match e {
        octet_synth::Error::UnknownShape { .. } => {
            let tiny = octet_synth::TINY_ARCHITECTURES.iter().map(|name| format!("tiny-{name}"));
            format!("{e}; for tests: {}", tiny.collect::<Vec<_>>().join(", "))
        }
        e => e.to_string(),
    })
}

fn skew(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(skew) if (0.0..=4.0).contains(&skew) => Ok(skew),
        _ => Err("expected a number from 0 to 4".into()),
    }
}

fn mix(name: &str) -> Result<Mix, octet_synth::Error> {
    name.parse()
}

pub fn run(args: &SynthArgs) -> anyhow::Result<()> {
    crate::quantize::check_output(&args.output, args.force, "a synthetic model")?;
    let model = args.made.make(&args.shape)?;
    let bar = Bar::bytes("writing");
    let bytes = octet_synth::write(&model, &args.output, args.force, &mut |done, all| bar.update(done, all))?;
    drop(bar);
    writeln!(std::io::stdout(), "{}: {}", args.output.display(), size(bytes))?;
    Ok(())
}
