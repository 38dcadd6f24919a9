//! `octet quantize` and `octet convert`: GGUF files from any model that can be read.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use octet_quantize::{FileType, Importance, Options, TensorType};
use octet_weights::Model;

use crate::args::ModelArgs;
use crate::numbers::threads;
use crate::progress::Bar;
use crate::settings::Settings;
use crate::stderr::note;
use crate::units::{nonzero_bytes, size};
use crate::usage_error::Usage;

const QUANTIZE_EXAMPLES: &str = "\
Examples:
  octet quantize ./Qwen3.6-35B-A3B -o qwen-q4_k_m.gguf --type q4_k_m
  octet quantize model-bf16.gguf -o small.gguf --type iq3_xxs --imatrix im.gguf
  octet quantize model.gguf -o mixed.gguf --type q4_k_m --tensor-type ffn_down_exps=q5_k
  octet quantize model.gguf -o fits.gguf --fit 16GiB --imatrix im.gguf

Which tensor gets which type is llama-quantize's choice (llama.cpp v0.5.0). A pattern of
--tensor-type is a part of a tensor's name, * stands for anything: 'blk.0.*ffn'.
Types: f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q4_k_m, q4_k_s, q3_k_l, q3_k_m, q3_k_s, q2_k,
q2_k_s, iq4_nl, iq4_xs, iq3_m, iq3_s, iq3_xs, iq3_xxs, iq2_m, iq2_s, iq2_xs, iq2_xxs, iq1_m, iq1_s,
q4_0, q4_1, q5_0, q5_1, mxfp4_moe, tq1_0, tq2_0, q1_0, q2_0.";

const CONVERT_EXAMPLES: &str = "\
Examples:
  octet convert ./Qwen3.6-35B-A3B -o qwen.gguf
  octet convert ./gpt-oss-20b -o gpt-oss.gguf
  octet convert ./Qwen3.6-35B-A3B -o qwen.gguf --no-mmproj

The tower of a checkpoint that reads images becomes a file beside it, mmproj-qwen.gguf, which
Octet and llama.cpp load with the model.

Tensors keep their type where GGUF has it (BF16, F16, F32, MXFP4, NVFP4, INT4 as Q4_0, INT8 as
Q8_0), so nothing is lost; others, such as FP8, become BF16.";

/// Writes a model as a GGUF file in smaller types.
#[derive(Debug, Args)]
#[command(after_help = QUANTIZE_EXAMPLES)]
pub struct QuantizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The mix of types: q4_k_m, q8_0, iq4_xs, ... An unknown name lists them all.
    #[arg(long = "type", value_name = "TYPE", value_parser = file_type, required_unless_present = "fit")]
    file_type: Option<FileType>,
    /// Instead of --type: the best mix of types for a file of at most this size, by measured error.
    #[arg(long, value_name = "SIZE", value_parser = nonzero_bytes, conflicts_with = "file_type")]
    fit: Option<u64>,
    /// Importance matrix of `octet imatrix` or llama-imatrix: errors in columns with large inputs count more.
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    #[command(flatten)]
    made: MadeArgs,
}

/// Writes a checkpoint as a GGUF file, without loss where GGUF has a type for it.
#[derive(Debug, Args)]
#[command(after_help = CONVERT_EXAMPLES)]
pub struct ConvertArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    made: MadeArgs,
}

/// What both commands have.
#[derive(Debug, Args)]
struct MadeArgs {
    /// The type of some tensors: ffn_down_exps=q5_k. Can be repeated; the last one that matches counts.
    #[arg(long, value_name = "NAME=TYPE", action = clap::ArgAction::Append)]
    tensor_type: Vec<String>,
    /// Keep the blocks for multi-token prediction.
    #[arg(long)]
    keep_mtp: bool,
    /// Write no projector for images beside the file (mmproj-...gguf).
    #[arg(long)]
    no_mmproj: bool,
    /// File to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
    /// Number of threads. Default: all processors.
    #[arg(short, long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
}

fn file_type(name: &str) -> Result<FileType, octet_quantize::UnknownFileType> {
    name.parse()
}

pub fn quantize(args: &QuantizeArgs, settings: &Settings) -> anyhow::Result<()> {
    if let Some(ty) = args.file_type.filter(|ty| ty.needs_importance() && args.imatrix.is_none()) {
        note!("note: {ty} is much worse without an importance matrix; `octet imatrix` makes one");
    }
    let importance = args.imatrix.as_deref().map(Importance::open).transpose()?;
    let options = Options { file_type: args.file_type, fit: args.fit, importance, ..args.made.options()? };
    let model = crate::model::open(&args.model.name(settings)?, settings)?;
    args.made.write(model, options)
}

pub fn convert(args: &ConvertArgs, settings: &Settings) -> anyhow::Result<()> {
    let model = crate::model::open(&args.model.name(settings)?, settings)?;
    args.made.write(model, args.made.options()?)
}

impl MadeArgs {
    fn options(&self) -> anyhow::Result<Options> {
        check_output(&self.output, self.force, "a model")?;
        let wish = |s: &String| s.parse::<TensorType>().map_err(|e| Usage(e.to_string()));
        let tensor_types = self.tensor_type.iter().map(wish).collect::<Result<_, _>>()?;
        let threads = self.threads.and_then(NonZeroUsize::new);
        Ok(Options { tensor_types, keep_mtp: self.keep_mtp, threads, ..Options::default() })
    }

    fn write(&self, model: Model, options: Options) -> anyhow::Result<()> {
        anyhow::ensure!(
            model.info("token_embd.weight").is_some(),
            "{}: there is no text model in it (no embeddings of tokens)",
            model.origin
        );
        // A checkpoint that could not be loaded. GGUF files may be for other engines.
        if Path::new(&model.origin).join("config.json").exists() {
            octet_engine::models::loader::check(&model)?;
        }
        let projector = self.projector(&model)?;
        let before = model.size_bytes();
        let parameters: usize = model.tensors().iter().map(|t| t.len()).sum();
        if !model.ignored().is_empty() {
            note!("note: {} tensors without a name in GGUF are left out", model.ignored().len());
        }
        let tokens = model.info("token_embd.weight").map_or(0, |t| t.shape[0]);
        let measuring = Bar::steps("measuring types: tensors");
        let mut made = octet_quantize::make(model, options, &mut |done, all| measuring.update(done, all))?;
        drop(measuring);
        if let Err(why) = octet_engine::tokenizer::to_gguf(&mut made.metadata, tokens) {
            note!("note: other engines cannot read the file's tokenizer, Octet can: {why}");
        }
        let kept: usize = made.tensors().iter().map(|t| t.len()).sum();
        let started = Instant::now();
        let bar = Bar::bytes("writing");
        let bytes =
            octet_synth::write(&made, &self.output, self.force, &mut |done, all| bar.update(done, all))?;
        drop(bar);
        let mut out = std::io::stdout();
        let bits = 8.0 * bytes as f64 / kept.max(1) as f64;
        writeln!(out, "{}: {}, {bits:.2} bits a weight", self.output.display(), size(bytes))?;
        if kept < parameters {
            note!("note: blocks for multi-token prediction are left out; --keep-mtp keeps them");
        }
        let seconds = started.elapsed().as_secs_f64();
        writeln!(
            out,
            "{} read in {seconds:.1} s, {:.2} GB/s",
            size(before),
            before as f64 / 1e9 / seconds.max(1e-3)
        )?;
        let beside = self.output.with_file_name(projector_name(&self.output));
        if projector.is_none() && beside.exists() {
            let (beside, output) = (beside.display(), self.output.display());
            note!(
                "note: {beside} is from before: {output} reads images with it; delete it if it is of another model"
            );
        }
        if let Some((projector, path)) = projector {
            let bar = Bar::bytes("writing the projector");
            let bytes =
                octet_synth::write(&projector, &path, self.force, &mut |done, all| bar.update(done, all))?;
            drop(bar);
            writeln!(out, "{}: {}, reads images for it", path.display(), size(bytes))?;
        }
        Ok(())
    }

    /// The projector of a checkpoint that reads images, and its file: beside the model's, where it is found.
    fn projector(&self, model: &Model) -> anyhow::Result<Option<(Arc<Model>, PathBuf)>> {
        let folder = Path::new(&model.origin);
        if self.no_mmproj || !folder.join("config.json").exists() {
            return Ok(None);
        }
        let refused = "the tower for images cannot be written; --no-mmproj leaves it out";
        let Some(tower) = octet_weights::hf::open_tower(folder).context(refused)? else { return Ok(None) };
        let path = self.output.with_file_name(projector_name(&self.output));
        match std::fs::symlink_metadata(&path) {
            Ok(there) if !(self.force && there.is_file()) => anyhow::bail!(
                "{}: exists already; {}--no-mmproj writes no projector",
                path.display(),
                if there.is_file() { "--force replaces it, " } else { "" }
            ),
            _ => {}
        }
        let projector = Arc::new(octet_quantize::projector(tower, model).context(refused)?);
        // Whether it can be used, before anything is written.
        octet_engine::vision::Options::new(Arc::clone(&projector)).checked().context(refused)?;
        Ok(Some((projector, path)))
    }
}

/// The file name of the projector of the model file `output`, which finds it by this name.
fn projector_name(output: &Path) -> String {
    format!("mmproj-{}", output.file_name().unwrap_or_default().to_string_lossy())
}

/// Fails if `what` ("a model") cannot be written to `path`, before anything is computed for it.
///
/// # Errors
/// Also if the file would be taken for a projector, or not found by its name.
pub fn check_output(path: &Path, replace: bool, what: &str) -> anyhow::Result<()> {
    let usage = |what: String| Err(Usage(what).into());
    if path.as_os_str() == "-" {
        return usage(format!("{what} cannot go to standard output; name a file (./- if it is called so)"));
    }
    let Some(name) = path.file_name() else {
        return usage(format!("{} is a folder; name a file in it", path.display()));
    };
    match name.to_str() {
        None => {
            return usage(format!("{}: the name is not valid UTF-8; choose another", path.display()));
        }
        Some(name) if octet_hub::is_projector(name) => {
            return usage(format!(
                "{}: a file with 'mmproj' in its name is taken for a projector, which reads images; choose another name",
                path.display()
            ));
        }
        Some(_) => {}
    }
    Ok(octet_synth::check_output(path, replace)?)
}
