//! `octet plan`: published models that fit into this machine or another one, with their context and expected speed.
//!
//! Downloads nothing: the shapes of published models are known (`octet_synth::known`), so `Report` computes sizes as for a file. The files
//! of further quantisations are as large as published ones are in proportion. A token reads its weights once, so its time is bytes divided
//! by bandwidth.

use std::io::Write;
use std::sync::Arc;

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
use crate::progress::Bar;
use crate::units::{size, tokens};

const EXAMPLES: &str = "\
Examples:
  octet plan                                             for this machine
  octet plan --ram 64GiB --bandwidth 80                  for 64 GiB of memory at 80 GB/s
  octet plan --vram 16GiB --vram-bandwidth 450           also with a card of 16 GiB
  octet plan --ram 16GiB --disk 3                        also models that keep experts on a drive of 3 GB/s
  octet plan -c 131072 --all                             every quantisation that fits

Each line is a command: octet run NAME:QUANT downloads that file of the model. Every command that takes
a model takes such a name.";

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
    /// Speed of the drive with the models in GB/s: also lists models larger than memory, whose experts are read from it when they are needed.
    #[arg(long, value_name = "GB/S", value_parser = rate)]
    disk: Option<f64>,
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

/// How large a quantisation's file is.
#[derive(Clone, Copy)]
enum Size {
    /// As computed from the model's shape with this mix: the index in [`MIXES`].
    Mix(usize),
    /// This part of the file in Q4_K_M, as for published files of Qwen3-30B-A3B.
    Share(f64),
}

/// The mixes that are computed.
const MIXES: [&str; 3] = ["q4_k_m", "q6_k", "q8_0"];
/// The only quantisation of models that were trained in it, and its mix.
const OWN: &str = "MXFP4";
const OWN_MIX: [&str; 1] = ["mxfp4_moe"];
/// Quantisations that are published, smallest first. Those with UD- are Unsloth's.
static QUANTS: [(&str, Size); 21] = [
    ("UD-IQ2_XXS", Size::Share(0.556)),
    ("IQ2_XS", Size::Share(0.545)),
    ("UD-IQ2_M", Size::Share(0.584)),
    ("IQ2_M", Size::Share(0.590)),
    ("Q2_K", Size::Share(0.607)),
    ("UD-Q2_K_XL", Size::Share(0.636)),
    ("UD-IQ3_XXS", Size::Share(0.691)),
    ("IQ3_XXS", Size::Share(0.660)),
    ("Q3_K_S", Size::Share(0.717)),
    ("UD-Q3_K_XL", Size::Share(0.744)),
    ("Q3_K_M", Size::Share(0.793)),
    ("IQ4_XS", Size::Share(0.884)),
    ("Q4_K_S", Size::Share(0.941)),
    ("UD-Q4_K_XL", Size::Share(0.954)),
    ("Q4_K_M", Size::Mix(0)),
    ("Q5_K_S", Size::Share(1.136)),
    ("Q5_K_M", Size::Share(1.170)),
    ("Q6_K", Size::Mix(1)),
    ("UD-Q6_K_XL", Size::Share(1.417)),
    ("Q8_0", Size::Mix(2)),
    ("UD-Q8_K_XL", Size::Share(1.940)),
];
/// The quantisation that shares are of: its index in [`MIXES`].
const WHOLE: usize = 0;
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
    /// Bytes per second that are read from the drive.
    disk: Option<f64>,
}

/// A model that is larger than memory, with a part of its experts on the drive.
struct FromDisk {
    name: &'static str,
    quant: &'static str,
    context: usize,
    slots: usize,
    experts: usize,
    /// Bytes of experts that are not in memory.
    bytes: u64,
    /// Tokens per second if all experts are chosen equally often.
    speed: f64,
}

/// A model in a quantisation that fits.
struct Fit {
    name: &'static str,
    quant: &'static str,
    parameters: u64,
    active_parameters: u64,
    weights: u64,
    /// The size is in proportion to other published files.
    is_estimate: bool,
    /// Total memory with this context, with what reads images.
    bytes: u64,
    /// Of that, for images.
    image_bytes: Option<u64>,
    context: usize,
    bytes_per_token: u64,
    on_card: bool,
    /// Tokens per second at the start of a conversation, and at the end of the context.
    speed: Option<(f64, f64)>,
}

/// Which quantisations of a model are published.
#[derive(Clone, Copy, PartialEq)]
enum Quants {
    Usual,
    /// With Unsloth's own.
    Dynamic,
    /// What it was trained in: gpt-oss in MXFP4.
    Own,
}

/// A published model.
struct Published {
    name: &'static str,
    quants: Quants,
    /// In each mix of [`MIXES`], or in [`OWN_MIX`].
    reports: Vec<Report>,
    /// Bytes of the projector beside it, of what that computes for the largest image and of kept embeddings, if it reads images. They are in
    /// the machine's memory, also where a card computes the text.
    image_bytes: Option<u64>,
}

/// A model in one quantisation: the report of a mix, scaled.
struct Variant<'a> {
    name: &'static str,
    quant: &'static str,
    report: &'a Report,
    /// How large its weights are against the report's.
    share: f64,
    /// As in [`Published`].
    image_bytes: Option<u64>,
}

impl Published {
    /// In all quantisations that are published, smallest first.
    fn variants(&self) -> impl Iterator<Item = Variant<'_>> {
        let published = move |(quant, _): &&(&str, Size)| match quant.starts_with("UD-") {
            is_dynamic if self.quants == Quants::Dynamic => is_dynamic || !is_small(quant),
            is_dynamic => !is_dynamic,
        };
        let quants = if self.quants == Quants::Own { &[(OWN, Size::Mix(0))][..] } else { &QUANTS };
        let of_model = move |(quant, size): &(&'static str, Size)| {
            let (mix, share) = match *size {
                Size::Mix(mix) => (mix, 1.0),
                Size::Share(share) => (WHOLE, share),
            };
            Variant {
                name: self.name,
                quant,
                report: &self.reports[mix],
                share,
                image_bytes: self.image_bytes,
            }
        };
        quants.iter().filter(published).map(of_model)
    }
}

/// Whether a quantisation has fewer than 3 bits: Unsloth publishes those under names of its own.
fn is_small(quant: &str) -> bool {
    quant.contains("IQ2") || quant.contains("IQ3")
}

impl Variant<'_> {
    fn scaled(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.share) as u64
    }

    /// Bytes of memory with this context.
    fn memory(&self, context: usize, kv: KvTypes) -> u64 {
        let memory = self.report.memory(&limits(context, kv), false);
        memory.total() - memory.weights + self.scaled(memory.weights)
    }

    /// The same with what reads images.
    fn with_images(&self, context: usize, kv: KvTypes) -> u64 {
        self.memory(context, kv) + self.image_bytes.unwrap_or(0)
    }

    fn bytes_per_token(&self) -> u64 {
        self.scaled(self.report.bytes_per_token)
    }

    /// As a model that is larger than memory: with as many experts there as it holds.
    fn on_disk(&self, context: usize, kv: KvTypes, machine: &Machine) -> Option<FromDisk> {
        let (disk, moe, r) = (machine.disk?, self.report.config.moe?, self.report);
        let all = r.memory(&limits(context, kv), false);
        let experts = self.scaled(r.expert_bytes());
        let rest = r.with_slots(all, Some(0)).total() - (all.weights - r.expert_bytes())
            + self.scaled(all.weights - r.expert_bytes());
        let left = machine.ram.checked_sub(rest + self.image_bytes.unwrap_or(0))?;
        let slots = (u128::from(left) * moe.experts as u128 / u128::from(experts.max(1))) as usize;
        if slots < moe.top_k || slots >= moe.experts {
            return None;
        }
        let out = 1.0 - slots as f64 / moe.experts as f64;
        let read = experts as f64 * moe.top_k as f64 / moe.experts as f64 * out;
        // The drive and the memory are read at the same time, but a layer's first experts are waited for.
        let seconds = read / disk + self.traffic(0, kv) as f64 / (SHARE * machine.bandwidth);
        Some(FromDisk {
            name: self.name,
            quant: self.quant,
            context,
            slots,
            experts: moe.experts,
            bytes: (experts as f64 * out) as u64,
            speed: 1.0 / seconds,
        })
    }

    /// Bytes that a token reads behind `depth` others.
    fn traffic(&self, depth: usize, kv: KvTypes) -> u64 {
        self.report.traffic_per_token(depth, kv) - self.report.bytes_per_token + self.bytes_per_token()
    }
}

pub fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let machine = machine(args)?;
    let kv = args.kv.kv();
    let mut fits = Vec::new();
    let (mut too_large, mut from_disk) = (Vec::new(), Vec::new());
    for model in published()? {
        let variants: Vec<Variant<'_>> = model.variants().collect();
        let found: Vec<Fit> = variants.iter().filter_map(|v| fit(v, args.ctx_size, kv, &machine)).collect();
        let depth = args.ctx_size.filter(|n| *n > 0).unwrap_or(CONTEXT_MIN);
        let on_disk = variants.iter().filter(|v| v.report.check_kv(kv).is_ok());
        let on_disk = on_disk.filter_map(|v| v.on_disk(depth, kv, &machine));
        let before = from_disk.len();
        match args.all || args.json {
            true => from_disk.extend(on_disk),
            false => from_disk.extend(usual(on_disk)),
        }
        match (found.is_empty(), variants.first()) {
            (true, _) if from_disk.len() > before => {}
            (true, Some(smallest)) if smallest.report.check_kv(kv).is_ok() => {
                let context = match args.ctx_size {
                    None => CONTEXT_MIN,
                    Some(0) => smallest.report.config.context_length,
                    Some(tokens) => tokens,
                };
                too_large.push((model.name, smallest.quant, smallest.with_images(context, kv)));
            }
            _ if args.all || args.json => fits.extend(found),
            _ => fits.extend(best(found)),
        }
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", as_json(&machine, &fits, &from_disk, &too_large))?;
        return Ok(());
    }
    table(&mut out, &machine, &fits)?;
    disk_table(&mut out, &from_disk)?;
    if !too_large.is_empty() {
        writeln!(out, "\nToo large, even in their smallest quantisation:")?;
        for (name, quant, bytes) in &too_large {
            writeln!(out, "  {name}:{quant} needs {}", size(*bytes))?;
        }
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
            let _bar = Bar::working("measuring the memory bandwidth");
            let mut cpu = Cpu::new(&CpuOptions::default())?;
            cpu.measure_bandwidth(BANDWIDTH_PASSES)?.into_iter().fold(0.0, f64::max)
        }
    };
    let card = args.vram.map(|bytes| (bytes, args.vram_bandwidth));
    Ok(Machine { ram, bound, bandwidth, card, disk: args.disk })
}

/// Models with short names and known shapes, in each mix of [`MIXES`]. Of several with the same shape the first.
fn published() -> anyhow::Result<Vec<Published>> {
    let _bar = Bar::working("computing sizes");
    let mut all: Vec<Published> = Vec::new();
    for entry in CATALOG {
        let Ok(shape) = known::shape(entry.name) else { continue };
        let report = |mix: &str| -> anyhow::Result<Report> {
            let mix: Mix = mix.parse()?;
            Ok(Report::new(&octet_synth::outline(&shape, mix)?)?)
        };
        let quants = match entry.quant {
            OWN => Quants::Own,
            _ if entry.repo.starts_with("unsloth/") => Quants::Dynamic,
            _ => Quants::Usual,
        };
        let mixes = if quants == Quants::Own { &OWN_MIX[..] } else { &MIXES };
        let (first, image_bytes) = (report(mixes[0])?, image_bytes(entry.name)?);
        let is_same = |other: &Published| {
            other.reports[0].bytes == first.bytes && other.image_bytes.is_some() == image_bytes.is_some()
        };
        if all.iter().any(is_same) {
            continue;
        }
        let mut reports = vec![first];
        for mix in &mixes[1..] {
            reports.push(report(mix)?);
        }
        all.push(Published { name: entry.name, quants, reports, image_bytes });
    }
    all.sort_by_key(|model| model.reports[0].parameters);
    Ok(all)
}

/// As in [`Published`].
fn image_bytes(name: &str) -> anyhow::Result<Option<u64>> {
    let Some(file) = octet_synth::projector(name)? else { return Ok(None) };
    let options = octet_engine::vision::Options::new(Arc::new(file));
    options.tower()?;
    Ok(Some(options.file.size_bytes() + options.work_bytes()))
}

fn limits(context: usize, kv: KvTypes) -> Limits {
    Limits { kv, page_groups: true, ..Limits::single(context) }
}

fn fit(v: &Variant<'_>, context: Option<usize>, kv: KvTypes, machine: &Machine) -> Option<Fit> {
    let r = v.report;
    r.check_kv(kv).ok()?;
    let made_for = r.config.context_length;
    let context = context.map(|n| if n == 0 { made_for } else { n });
    let largest = |memory: u64| match context {
        Some(n) => (n <= made_for && v.memory(n, kv) <= memory).then_some(n),
        None => contexts(made_for).find(|&n| v.memory(n, kv) <= memory),
    };
    let for_images = v.image_bytes.unwrap_or(0);
    let on_card = machine.card.and_then(|(memory, rate)| Some((largest(memory)?, rate)));
    let (context, rate) = match on_card {
        Some(found) => found,
        None => (largest(machine.ram.saturating_sub(for_images))?, Some(machine.bandwidth)),
    };
    let at = |depth: usize, rate: f64| SHARE * rate / v.traffic(depth, kv) as f64;
    Some(Fit {
        name: v.name,
        quant: v.quant,
        parameters: r.parameters,
        active_parameters: r.active_parameters,
        weights: v.scaled(r.bytes),
        is_estimate: v.share != 1.0,
        bytes: v.with_images(context, kv),
        image_bytes: v.image_bytes,
        context,
        bytes_per_token: v.bytes_per_token(),
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

/// Of a model's quantisations (smallest first), the first of four bits or more, else the largest: smaller ones answer worse, and larger ones
/// take longer to read.
fn usual(mut found: impl Iterator<Item = FromDisk>) -> Option<FromDisk> {
    let mut last = None;
    found
        .find_map(|one| {
            let is_usual = one.quant.contains("Q4_K_M") || one.quant.contains("Q4_K_XL");
            last = Some(one);
            if is_usual { last.take() } else { None }
        })
        .or(last)
}

/// Columns of commands.
fn widest(commands: &[String]) -> usize {
    commands.iter().map(String::len).max().unwrap_or(0).max("command".len())
}

/// Models with experts on the drive.
fn disk_table(out: &mut dyn Write, models: &[FromDisk]) -> std::io::Result<()> {
    if models.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nLarger than memory: experts that do not fit are read from the drive.")?;
    writeln!(out, "The speed is for experts that are all chosen equally often: at least this.\n")?;
    let commands: Vec<String> = models.iter().map(|m| format!("octet run {}:{}", m.name, m.quant)).collect();
    let width = widest(&commands);
    writeln!(out, "{:<width$} {:>10} {:>8} {:>8}  in memory", "command", "on disk", "context", "tokens/s")?;
    for (m, command) in models.iter().zip(&commands) {
        let (bytes, speed) = (size(m.bytes), tokens(m.speed));
        writeln!(
            out,
            "{command:<width$} {bytes:>10} {:>8} {speed:>8}  {}/{}",
            m.context, m.slots, m.experts
        )?;
    }
    Ok(())
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
    writeln!(out, "Speed:  {:.0}% of the bandwidth over the bytes that a token reads,", 100.0 * SHARE)?;
    writeln!(out, "        at the start and with a full context\n")?;
    let on = if machine.card.is_some() { "  on" } else { "" };
    let commands: Vec<String> = fits.iter().map(|f| format!("octet run {}:{}", f.name, f.quant)).collect();
    let width = widest(&commands);
    writeln!(out, "{:<width$} {:>10} {:>8} {:>11}{on}", "command", "memory", "context", "tokens/s")?;
    for (f, command) in fits.iter().zip(&commands) {
        let speed =
            f.speed.map_or("-".into(), |(start, full)| format!("{}..{}", tokens(start), tokens(full)));
        let on = match (machine.card.is_some(), f.on_card) {
            (false, _) => "",
            (true, true) => "  card",
            (true, false) => "  cpu",
        };
        let mark = if f.image_bytes.is_some() { '*' } else { ' ' };
        writeln!(out, "{command:<width$} {:>10}{mark}{:>8} {speed:>11}{on}", size(f.bytes), f.context)?;
    }
    if fits.iter().any(|f| f.image_bytes.is_some()) {
        writeln!(out, "\n* Reads images. The memory includes its projector in F16, what that computes for")?;
        writeln!(out, "  the largest image, and kept embeddings. `--no-mmproj` leaves them out.")?;
    }
    if fits.is_empty() {
        writeln!(out, "no model with a short name fits")?;
    }
    Ok(())
}

fn as_json(
    machine: &Machine,
    fits: &[Fit],
    from_disk: &[FromDisk],
    too_large: &[(&str, &str, u64)],
) -> Value {
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
            "command": format!("octet run {}:{}", f.name, f.quant),
            "weight_bytes": f.weights,
            "weight_bytes_estimated": f.is_estimate,
            "bytes": f.bytes,
            "image_bytes": f.image_bytes,
            "context": f.context,
            "bytes_per_token": f.bytes_per_token,
            "device": if f.on_card { "card" } else { "cpu" },
            "tokens_per_second": f.speed.map(|s| s.0),
            "tokens_per_second_full_context": f.speed.map(|s| s.1),
        })).collect::<Vec<_>>(),
        "disk_bytes_per_second": machine.disk,
        "from_disk": from_disk.iter().map(|m| json!({
            "model": m.name,
            "quantization": m.quant,
            "command": format!("octet run {}:{}", m.name, m.quant),
            "context": m.context,
            "expert_slots": m.slots,
            "experts": m.experts,
            "disk_bytes": m.bytes,
            "tokens_per_second": m.speed,
        })).collect::<Vec<_>>(),
        "too_large": too_large.iter().map(|(name, quant, bytes)| json!({"model": name, "quantization": quant, "bytes": bytes})).collect::<Vec<_>>(),
    })
}

/// GB/s, far above any machine's.
const RATE_MAX: f64 = 1e6;

/// GB/s as bytes per second.
fn rate(s: &str) -> Result<f64, String> {
    match s.trim_end_matches("GB/s").trim().parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= RATE_MAX => Ok(rate * 1e9),
        Ok(rate) if rate > RATE_MAX => Err(format!("expected at most {RATE_MAX} GB/s")),
        _ => Err("expected GB/s, such as 60".into()),
    }
}
