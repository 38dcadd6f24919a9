//! `octet plan`: published models that fit into this machine or another one, with their context and expected speed.
//!
//! Downloads nothing: the shapes of published models are known (`octet_synth::known`), so `Report` computes sizes as for a file. A
//! token reads its weights once, so its time is bytes divided by bandwidth.

use std::io::Write;

use clap::Args;
use octet_compute::backend::KvTypes;
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_engine::models::Limits;
use octet_engine::report::Report;
use octet_hub::catalog::CATALOG;
use octet_synth::{Mix, known};
use serde_json::{Value, json};

use crate::args::KvArgs;
use crate::numbers::count;
use crate::units::{parameters, size};

const EXAMPLES: &str = "\
Examples:
  octet plan                                             for this machine
  octet plan --ram 64GiB --bandwidth 80                  for 64 GiB of memory at 80 GB/s
  octet plan --vram 16GiB --vram-bandwidth 450           also with a card of 16 GiB
  octet plan -c 131072 --all                             every quantisation that fits";

/// Lists the models that fit into a machine, with their context and expected speed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// Memory for the model. Default: the memory that is free on this machine now.
    #[arg(long, value_name = "SIZE", value_parser = crate::units::gibibytes)]
    ram: Option<u64>,
    /// Memory bandwidth in GB/s. Default: measured on this machine.
    #[arg(long, value_name = "GB/S", value_parser = rate)]
    bandwidth: Option<f64>,
    /// Memory of a graphics card. A model that fits into it completely runs there.
    #[arg(long, value_name = "SIZE", value_parser = crate::units::gibibytes)]
    vram: Option<u64>,
    /// Memory bandwidth of the card in GB/s. Default: unknown; models on the card then have no expected speed.
    #[arg(long, value_name = "GB/S", value_parser = rate, requires = "vram")]
    vram_bandwidth: Option<f64>,
    /// Context in tokens that must fit; 0 is the model's own. Default: the most that fits, at least 4096.
    #[arg(short, long, value_name = "N", value_parser = count)]
    ctx_size: Option<usize>,
    /// List every quantisation that fits. Default: for each model the largest one that fits with a context of 32768 tokens, or else
    /// the smallest.
    #[arg(long)]
    all: bool,
    /// Print JSON, with every quantisation that fits.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    kv: KvArgs,
}

/// Quantisations in which nearly all models are published, smallest first.
const MIXES: [&str; 4] = ["q4_k_m", "q5_k", "q6_k", "q8_0"];
/// Expected share of the memory bandwidth in decoding. Measured shares are in docs/performance.md: higher on the Zen 5, lower on the
/// Ice Lake.
const SHARE: f64 = 0.85;
/// Minimum useful context.
const CONTEXT_MIN: usize = 4096;
/// A larger quantisation is not worth a smaller context than this.
const CONTEXT_ENOUGH: usize = 32_768;
/// Number of bandwidth measurements; the best counts.
const BANDWIDTH_PASSES: usize = 5;

/// The machine.
struct Machine {
    ram: u64,
    /// What bounds it, in brackets, if it is not the machine's memory.
    bound: String,
    /// Bytes per second.
    bandwidth: f64,
    card: Option<(u64, Option<f64>)>,
}

/// A model in a quantisation that fits.
struct Fit {
    name: &'static str,
    quant: String,
    parameters: u64,
    active_parameters: u64,
    weights: u64,
    /// Total memory with this context.
    bytes: u64,
    context: usize,
    bytes_per_token: u64,
    on_card: bool,
    /// Tokens per second at the start of a conversation, and at the end of the context.
    speed: Option<(f64, f64)>,
}

/// A published model.
struct Published {
    name: &'static str,
    /// In each quantisation of [`MIXES`].
    reports: Vec<(String, Report)>,
}

pub fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let machine = machine(args)?;
    let kv = args.kv.kv();
    let mut fits = Vec::new();
    let mut too_large = Vec::new();
    for Published { name, reports } in published()? {
        let found: Vec<Fit> = reports
            .iter()
            .filter_map(|(quant, report)| fit(name, quant, report, args.ctx_size, kv, &machine))
            .collect();
        match (found.is_empty(), reports.first()) {
            (true, Some((_, smallest))) if smallest.check_kv(kv).is_ok() => {
                let context = match args.ctx_size {
                    None => CONTEXT_MIN,
                    Some(0) => smallest.config.context_length,
                    Some(tokens) => tokens,
                };
                too_large.push((name, smallest.memory(&limits(context, kv), false).total()));
            }
            _ if args.all || args.json => fits.extend(found),
            _ => fits.extend(best(found)),
        }
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", as_json(&machine, &fits, &too_large))?;
        return Ok(());
    }
    table(&mut out, &machine, &fits)?;
    if !too_large.is_empty() {
        let names: Vec<String> =
            too_large.iter().map(|(name, bytes)| format!("{name} ({})", size(*bytes))).collect();
        writeln!(out, "\nToo large in {}: {}", MIXES[0].to_uppercase(), names.join(", "))?;
    }
    Ok(())
}

fn machine(args: &PlanArgs) -> anyhow::Result<Machine> {
    let bound = if args.ram.is_some() { String::new() } else { crate::memory::bound() };
    let ram = args.ram.or_else(crate::memory::available);
    let ram =
        ram.ok_or_else(|| anyhow::anyhow!("this system does not say how much memory is free; give --ram"))?;
    let bandwidth = match args.bandwidth {
        Some(rate) => rate,
        None => {
            let mut cpu = Cpu::new(&CpuOptions::default())?;
            cpu.measure_bandwidth(BANDWIDTH_PASSES)?.into_iter().fold(0.0, f64::max)
        }
    };
    Ok(Machine { ram, bound, bandwidth, card: args.vram.map(|bytes| (bytes, args.vram_bandwidth)) })
}

/// Models with short names and known shapes, in each quantisation of [`MIXES`]. Of several with the same shape the first.
fn published() -> anyhow::Result<Vec<Published>> {
    let mut all: Vec<Published> = Vec::new();
    for entry in CATALOG {
        let Ok(shape) = known::shape(entry.name) else { continue };
        let mut reports = Vec::with_capacity(MIXES.len());
        for name in MIXES {
            let mix: Mix = name.parse()?;
            reports.push((name.to_uppercase(), Report::new(&octet_synth::synthetic(&shape, mix, None, 0)?)?));
        }
        let same = |other: &Published| other.reports[0].1.bytes == reports[0].1.bytes;
        if !all.iter().any(same) {
            all.push(Published { name: entry.name, reports });
        }
    }
    all.sort_by_key(|model| model.reports[0].1.parameters);
    Ok(all)
}

fn limits(context: usize, kv: KvTypes) -> Limits {
    Limits { kv, ..Limits::single(context) }
}

fn fit(
    name: &'static str,
    quant: &str,
    r: &Report,
    context: Option<usize>,
    kv: KvTypes,
    machine: &Machine,
) -> Option<Fit> {
    r.check_kv(kv).ok()?;
    let made_for = r.config.context_length;
    let context = context.map(|n| if n == 0 { made_for } else { n });
    let bytes = |context: usize| r.memory(&limits(context, kv), false).total();
    let largest = |memory: u64| match context {
        Some(n) => (n <= made_for && bytes(n) <= memory).then_some(n),
        None => contexts(made_for).find(|&n| bytes(n) <= memory),
    };
    let on_card = machine.card.and_then(|(memory, rate)| Some((largest(memory)?, rate)));
    let (context, rate) = match on_card {
        Some(found) => found,
        None => (largest(machine.ram)?, Some(machine.bandwidth)),
    };
    let at = |depth: usize, rate: f64| SHARE * rate / r.traffic_per_token(depth, kv) as f64;
    Some(Fit {
        name,
        quant: quant.into(),
        parameters: r.parameters,
        active_parameters: r.active_parameters,
        weights: r.bytes,
        bytes: bytes(context),
        context,
        bytes_per_token: r.bytes_per_token,
        on_card: on_card.is_some(),
        speed: rate.map(|rate| (at(0, rate), at(context, rate))),
    })
}

/// The recommended one of a model's quantisations (smallest first): the largest that runs on the same device as the smallest, with as
/// much context as the smallest or [`CONTEXT_ENOUGH`].
fn best(mut fits: Vec<Fit>) -> Option<Fit> {
    let smallest = fits.first()?;
    let (on_card, context) = (smallest.on_card, smallest.context.min(CONTEXT_ENOUGH));
    fits.retain(|f| f.on_card == on_card && f.context >= context);
    fits.pop()
}

/// Context sizes to try: the model's own, then powers of two, largest first.
fn contexts(longest: usize) -> impl Iterator<Item = usize> {
    let powers =
        std::iter::successors(Some(1_usize << 20), |n| Some(n / 2)).take_while(|&n| n >= CONTEXT_MIN);
    std::iter::once(longest).chain(powers.filter(move |&n| n < longest))
}

fn table(out: &mut dyn Write, machine: &Machine, fits: &[Fit]) -> std::io::Result<()> {
    writeln!(out, "Memory: {}{}, {:.0} GB/s", size(machine.ram), machine.bound, machine.bandwidth / 1e9)?;
    if let Some((bytes, rate)) = machine.card {
        let rate = rate.map_or(String::new(), |r| format!(", {:.0} GB/s", r / 1e9));
        writeln!(out, "Card:   {}{rate}", size(bytes))?;
    }
    writeln!(
        out,
        "Speed:  expected, {:.0}% of the bandwidth over the bytes that a token reads; at the start, and with a full context\n",
        100.0 * SHARE
    )?;
    writeln!(
        out,
        "{:<18} {:>9} {:>9}  {:<7} {:>11} {:>11} {:>9} {:>15}  runs on",
        "model", "params", "active", "quant", "weights", "memory", "context", "tokens/s"
    )?;
    for f in fits {
        let speed =
            f.speed.map_or("-".into(), |(start, full)| format!("{} .. {}", tokens(start), tokens(full)));
        writeln!(
            out,
            "{:<18} {:>9} {:>9}  {:<7} {:>11} {:>11} {:>9} {:>15}  {}",
            f.name,
            parameters(f.parameters),
            parameters(f.active_parameters),
            f.quant,
            size(f.weights),
            size(f.bytes),
            f.context,
            speed,
            if f.on_card { "card" } else { "processor" },
        )?;
    }
    if fits.is_empty() {
        writeln!(out, "no model with a short name fits")?;
    }
    Ok(())
}

/// Two significant digits, as it is an estimate.
fn tokens(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

fn as_json(machine: &Machine, fits: &[Fit], too_large: &[(&str, u64)]) -> Value {
    json!({
        "memory_bytes": machine.ram,
        "memory_bytes_per_second": machine.bandwidth,
        "card": machine.card.map(|(bytes, rate)| json!({"memory_bytes": bytes, "memory_bytes_per_second": rate})),
        "bandwidth_share": SHARE,
        "models": fits.iter().map(|f| json!({
            "model": f.name,
            "quantization": f.quant,
            "parameters": f.parameters,
            "active_parameters": f.active_parameters,
            "weight_bytes": f.weights,
            "bytes": f.bytes,
            "context": f.context,
            "bytes_per_token": f.bytes_per_token,
            "device": if f.on_card { "card" } else { "cpu" },
            "tokens_per_second": f.speed.map(|s| s.0),
            "tokens_per_second_full_context": f.speed.map(|s| s.1),
        })).collect::<Vec<_>>(),
        "too_large": too_large.iter().map(|(name, bytes)| json!({"model": name, "bytes": bytes})).collect::<Vec<_>>(),
    })
}

/// GB/s as bytes per second.
fn rate(s: &str) -> Result<f64, String> {
    match s.trim_end_matches("GB/s").trim().parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate * 1e9),
        _ => Err("expected GB/s, such as 60".into()),
    }
}
