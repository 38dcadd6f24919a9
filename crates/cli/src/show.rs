//! `octet show`: what a model is made of, what a token reads, what memory it takes.

use std::io::Write;

use clap::Args;
use octet_engine::models::Limits;
use octet_engine::report::{Memory, Report, TypeShare};
use serde_json::{Value, json};

use crate::args::{KvArgs, ModelArgs};
use crate::device::{DeviceName, Split, bill, bills};
use crate::numbers::count;
use crate::settings::Settings;

const EXAMPLES: &str = "\
Examples:
  octet show model.gguf
  octet show qwen3.6:35b-a3b -c 32768      with the memory for a context of 32768 tokens
  octet show model.gguf --device cpu,vulkan:0   the memory that it takes on each
  octet show model.gguf --json | jq .active_parameters";

/// Shows what a model is made of: layers, parameters, quantisation, bytes read per token, memory.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ShowArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of context to count the memory for; 0 is all that the model was made for. Default: the same, but at most 8192.
    #[arg(short, long, visible_alias = "max-model-len", value_name = "N", value_parser = count)]
    ctx_size: Option<usize>,
    #[command(flatten)]
    kv: KvArgs,
    /// Show what the model takes on these devices too: cpu, vulkan:N as `octet devices` numbers them.
    #[arg(long, value_name = "DEVICE,..", value_delimiter = ',')]
    device: Vec<DeviceName>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Context that the memory is counted for where none is given.
const CONTEXT: usize = 8192;

pub fn run(args: &ShowArgs, settings: &Settings) -> anyhow::Result<()> {
    let model = crate::model::open(&args.model.name(settings)?, settings)?;
    let report = Report::new(&model)?;
    let made_for = report.config.context_length;
    let context = match args.ctx_size {
        None => CONTEXT.min(made_for),
        Some(0) => made_for,
        Some(tokens) => tokens,
    };
    // with what `octet run` loads unasked
    let guesses = octet_engine::engine::speculation::Options::default();
    let limits = Limits {
        kv: args.kv.kv(),
        guesses: guesses.guesses(),
        mtp: guesses.wants_mtp(),
        draft_vocab: guesses.vocab,
        ..Limits::single(context)
    };
    report.check_kv(limits.kv)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let mut json = as_json(&report, &limits, context);
        if !args.device.is_empty() {
            json["devices"] = args.device.iter().map(|d| device_json(*d, &report, &limits)).collect();
        }
        writeln!(out, "{json:#}")?;
    } else {
        write!(out, "{}", report.text(&limits))?;
        if !args.device.is_empty() {
            write!(out, "\n{}", bills(&args.device, &report, &limits)?)?;
        }
    }
    Ok(())
}

fn as_json(r: &Report, limits: &Limits, context: usize) -> Value {
    let c = &r.config;
    let memory = r.memory(limits, false);
    let Memory { weights, kv, states, activations, speculation } = memory;
    json!({
        "name": r.name,
        "origin": r.origin,
        "architecture": c.architecture.name,
        "parameters": r.parameters,
        "active_parameters": r.active_parameters,
        "bytes": r.bytes,
        "bytes_per_token": r.bytes_per_token,
        "tensors": r.tensors,
        "layers": c.layers,
        "recurrent_layers": c.recurrent.iter().filter(|&&r| r).count(),
        "mtp_layers": c.mtp_layers,
        "hidden_size": c.hidden,
        "vocab_size": c.vocab,
        "context_length": c.context_length,
        "heads": c.heads,
        "kv_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.intermediate,
        "experts": c.moe.map(|m| json!({
            "count": m.experts,
            "per_token": m.top_k,
            "intermediate_size": m.intermediate,
            "shared_intermediate_size": m.shared_intermediate,
        })),
        "tied_embeddings": r.tied,
        "types": types(&r.types),
        "groups": r.groups.iter().map(|g| json!({
            "name": g.group.name(),
            "tensors": g.tensors,
            "parameters": g.parameters,
            "bytes": g.bytes,
            "active_parameters": g.active_parameters,
            "active_bytes": g.active_bytes,
            "types": types(&g.types),
        })).collect::<Vec<_>>(),
        "kv_bytes_per_position": r.kv_bytes_per_position(limits.kv),
        "state_bytes": r.state_bytes(),
        "memory": {
            "context": context,
            "weights": weights,
            "kv_cache": kv,
            "states": states,
            "activations": activations,
            "speculation": speculation,
            "total": memory.total(),
        },
        "tokenizer": {
            "model": r.tokenizer.model,
            "pre": r.tokenizer.pre,
            "tokens": r.tokenizer.tokens,
            "eos": r.tokenizer.eos.iter().map(|t| t.id).collect::<Vec<_>>(),
            "chat_template_bytes": r.tokenizer.template_bytes,
        },
        "sampling": {
            "temperature": r.sampling.temperature,
            "top_k": r.sampling.top_k,
            "top_p": r.sampling.top_p,
            "min_p": r.sampling.min_p,
            "repetition_penalty": r.sampling.repetition_penalty,
        },
    })
}

/// What the model takes on one device.
fn device_json(device: DeviceName, report: &Report, limits: &Limits) -> Value {
    let m = match device {
        DeviceName::Vulkan(_) => bill(report, limits),
        _ => report.memory(limits, false),
    };
    let split = match device {
        DeviceName::Vulkan(_) => Split::new(report, limits, None),
        _ => Split { device: 0, machine: m.total() },
    };
    json!({
        "name": device.to_string(),
        "machine_bytes": split.machine,
        "weights": m.weights,
        "kv_cache": m.kv,
        "states": m.states,
        "activations": m.activations,
        "speculation": m.speculation,
        "total": m.total(),
    })
}

fn types(types: &[TypeShare]) -> Value {
    types.iter().map(|t| json!({"type": t.ty.name(), "tensors": t.tensors, "bytes": t.bytes})).collect()
}
