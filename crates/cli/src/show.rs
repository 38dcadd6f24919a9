//! `octet show`: a model's layers and parameters, the bytes read per token, the memory it needs.

use std::io::Write;
use std::sync::Arc;

use clap::Args;
use octet_compute::batch::PAGE_TOKENS;
use octet_compute::cpu::CpuOptions;
use octet_config::printable;
use octet_engine::engine::Options;
use octet_engine::models::Limits;
use octet_engine::report::{Memory, Report, TypeShare};
use octet_engine::vision;
use octet_hub::{Hub, Preview, Reference, Silent};
use serde_json::{Value, json};

use crate::args::{KvArgs, ModelArgs};
use crate::device::{DeviceName, Together, described, proportion};
use crate::device_bytes::images;
use crate::device_layers;
use crate::device_memory::{Placement, Room, Split, Wanted, bill, shortage, table_copy, with_spare};
use crate::memory::{OnDisk, with_images};
use crate::numbers::count;
use crate::progress::Bar;
use crate::settings::Settings;
use crate::stderr::note;
use crate::units::size;
use crate::wrap::Wrap;

const EXAMPLES: &str = "\
Examples:
  octet show model.gguf
  octet show qwen3.6:35b-a3b -c 32768           memory for this context; reads only its header
  octet show model.gguf --device cpu,vulkan:0   memory on each device
  octet show model.gguf --device vulkan:0,vulkan:1   the layers of each
  octet show model.gguf --device vulkan:0 --gpu-memory 8
  octet show model.gguf --json | jq .active_parameters";

/// Describes a model: layers, parameters, quantisation, bytes read per token, memory.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ShowArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Context size in tokens for the memory estimate; 0 is the model's own. Default: the model's own, but at most 8192.
    #[arg(short, long, visible_alias = "max-model-len", value_name = "N", value_parser = count)]
    ctx_size: Option<usize>,
    /// Also show the memory that the model needs on these devices: cpu, vulkan:N as `octet devices` numbers them. Several graphics devices run
    /// it together; beside cpu, vulkan:0+vulkan:1 does.
    #[arg(long, value_name = "DEVICE,..", value_delimiter = ',')]
    device: Vec<DeviceName>,
    /// Proportions of the layers on each of several graphics devices, as for `octet run`. Default: by free memory.
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', value_parser = proportion, requires = "device")]
    tensor_split: Vec<f64>,
    /// Maximum memory of each graphics device to use in the estimate, in GiB. Default: all that is free.
    #[arg(long, value_name = "GIB", value_parser = crate::units::gibibytes, requires = "device")]
    gpu_memory: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    images: crate::images::ImageFlags,
}

/// Default context size of the memory estimate.
const CONTEXT: usize = 8192;

pub fn run(args: &ShowArgs, settings: &Settings) -> anyhow::Result<()> {
    let name = args.model.name(settings)?;
    let Opened { model, shape_only, preview } = opened(&name, settings)?;
    let mut report = Report::new(&model)?;
    if preview.is_some() {
        report.origin = base(&report.origin);
    }
    if shape_only {
        // What the made-up model has instead of the real one's.
        report.name = Some(name.clone());
        (report.tokenizer, report.sampling) = Default::default();
    }
    let made_for = report.config.context_length;
    let context = match args.ctx_size {
        None => CONTEXT.min(made_for),
        Some(0) => made_for,
        Some(tokens) => tokens,
    };
    // with the parts that `octet run` loads by default
    let guesses = octet_engine::engine::speculation::Options::default();
    let limits = Limits {
        kv: args.kv.kv(),
        guesses: guesses.guesses(),
        mtp: guesses.uses_mtp(),
        draft_vocab: guesses.vocab,
        page_groups: true,
        ..Limits::single(context)
    };
    if report.config.encoder().is_none() {
        report.check_kv(limits.kv)?;
    }
    let mut vision = args.images.tower(&model)?.split().0;
    if vision.is_none() && shape_only {
        vision = args.images.known(&name);
    }
    // The header of a projector that was found lies in the same temporary folder.
    let of_preview = vision.as_mut().filter(|_| preview.is_some() && args.images.is_found());
    if let Some(file) = of_preview.and_then(|vision| Arc::get_mut(&mut vision.file)) {
        file.origin = base(&file.origin);
    }
    let options =
        Options { context: args.ctx_size, kv: limits.kv, vision: vision.clone(), ..Options::default() };
    let limits = match report.config.encoder() {
        None => limits,
        // Its steps are as long as its texts.
        Some(_) => options.for_config(&report.config).limits(made_for, 0)?,
    };
    let bills = bills(args, &report, &limits, &options)?;
    let mut out = std::io::stdout().lock();
    let with_it = with_images(report.memory(&limits, false), vision.as_ref()).total();
    let maker = crate::maker::of(&name);
    if args.json {
        let mut json = as_json(&report, &limits, context);
        if shape_only {
            for made_up in ["origin", "tokenizer", "sampling", "mtp_layers"] {
                json[made_up] = Value::Null;
            }
        }
        if maker.text().is_some() {
            json["modelfile"] = maker.json();
        }
        json["images"] = vision.as_ref().map_or(Value::Null, image_json);
        if vision.is_some() {
            json["images"]["total_with_model"] = with_it.into();
        }
        if !bills.is_empty() {
            json["devices"] = bills.iter().map(Bill::json).collect();
        }
        writeln!(out, "{json:#}")?;
    } else {
        let text = report.text(&limits);
        write!(out, "{}", if shape_only { of_shape(&text) } else { text })?;
        if let Some(line) = on_disk(&report, &limits, vision.as_ref()) {
            writeln!(out, "{line}")?;
        }
        if let Some(set) = maker.text() {
            // As the report's own lines.
            let mut wrap = Wrap::indented(19);
            let mut text = String::new();
            format!("  {:<16} {}\n", "sets", printable(&set))
                .chars()
                .for_each(|c| wrap.push(c, 80, &mut text));
            write!(out, "\nModelfile of Ollama\n{text}")?;
        }
        if let Some(vision) = &vision {
            writeln!(out, "\n{}", image_text(vision))?;
            writeln!(out, "  memory of the model with it: {}", size(with_it))?;
        }
        if !bills.is_empty() {
            writeln!(out)?;
        }
        for bill in &bills {
            write!(out, "{}", bill.text())?;
        }
    }
    Ok(())
}

/// The memory on each device that `--device` names.
fn bills(args: &ShowArgs, report: &Report, limits: &Limits, options: &Options) -> anyhow::Result<Vec<Bill>> {
    let together = Together::of(&args.device).map(|all| vec![DeviceName::Together(all)]);
    let named = together.as_ref().unwrap_or(&args.device);
    anyhow::ensure!(
        args.tensor_split.is_empty() || named.iter().any(|d| matches!(d, DeviceName::Together(_))),
        "--tensor-split divides a model among several devices: name them, as vulkan:0,vulkan:1"
    );
    let named = named.iter().filter(|device| **device != DeviceName::Auto);
    let bill = |device: &DeviceName| match device {
        DeviceName::Together(all) => {
            Bill::together(*all, &args.tensor_split, args.gpu_memory, report, limits, options)
        }
        device => Bill::new(*device, args.gpu_memory, report, limits, options),
    };
    named.map(bill).collect()
}

/// What stays on disk if the model is larger than this machine's memory.
fn on_disk(report: &Report, limits: &Limits, vision: Option<&vision::Options>) -> Option<String> {
    let room = crate::memory::available()?;
    let needs = |step_tokens: usize| {
        let batch_tokens = step_tokens.min(limits.pages * PAGE_TOKENS);
        Ok(with_images(report.memory(&Limits { batch_tokens, ..limits.clone() }, false), vision))
    };
    // As `octet run` does.
    let slots = OnDisk::within(report, room, limits.batch_tokens, true, needs).ok()??.slots;
    let cpu = CpuOptions { expert_slots: Some(slots), ..CpuOptions::default() };
    let (bytes, experts) = (size(report.stored_bytes(&cpu)), report.config.moe?.experts);
    let free = size(room);
    Some(format!(
        "  on disk         {bytes:>10}  of experts, as {free} are free: memory holds {slots} of {experts} of each layer"
    ))
}

/// A model that is described.
struct Opened {
    model: octet_weights::Model,
    /// Only its shape is known: tokenizer, template and sampling are made up.
    shape_only: bool,
    /// The header of a model that is not on this machine.
    preview: Option<Preview>,
}

/// A report's text without what a model of which only the shape is known does not tell.
fn of_shape(text: &str) -> String {
    let mut out = String::new();
    let mut left_out = false;
    let text = without_mtp(text);
    for line in text.lines() {
        // A line that begins deeper goes on with the one before.
        if !line.starts_with("    ") {
            let made_up = ["  file ", "  tokenizer ", "  end tokens ", "  chat template ", "  sampling "];
            left_out = made_up.iter().any(|label| line.starts_with(label));
        }
        if !left_out {
            out += line;
            out.push('\n');
        }
    }
    out
}

/// The text without `, no multi-token prediction`, wherever its lines end.
fn without_mtp(text: &str) -> String {
    let rest = |(at, found): (usize, &str)| {
        let rest = text[at + found.len()..].trim_start().strip_prefix("multi-token")?;
        Some(format!("{}{}", &text[..at], rest.trim_start().strip_prefix("prediction")?))
    };
    text.match_indices(", no").find_map(rest).unwrap_or_else(|| text.to_string())
}

/// The model; one that is not on this machine by its header alone.
fn opened(name: &str, settings: &Settings) -> anyhow::Result<Opened> {
    let here = || {
        let model = crate::model::open(name, settings)?;
        Ok(Opened { model, shape_only: false, preview: None })
    };
    if crate::embedded::is(name) {
        return here();
    }
    let reference = crate::model::reference(name)?;
    let hub = Hub::new(settings.hub()?);
    if matches!(reference, Reference::Path(_)) || hub.resolve(&reference)?.is_some() {
        return here();
    }
    let looking = Bar::working("reading the model's header");
    let preview = hub.preview(&reference, &Silent);
    drop(looking);
    match preview {
        Ok(Some(preview)) => {
            let model = octet_weights::Model::open(preview.path())?;
            note!(
                "{name} is not on this machine: {} of its {} were read; `octet pull {name}` downloads it",
                size(preview.fetched),
                size(preview.size)
            );
            Ok(Opened { model, shape_only: false, preview: Some(preview) })
        }
        // Safetensors: their configuration is in several files.
        Ok(None) => here(),
        Err(e) => match known(&reference)? {
            Some(model) => {
                note!("{name} cannot be reached ({e}); this is computed from its shape");
                Ok(Opened { model, shape_only: true, preview: None })
            }
            None => Err(e.into()),
        },
    }
}

/// A model of a published shape, from what `octet plan` knows of it.
fn known(reference: &Reference) -> anyhow::Result<Option<octet_weights::Model>> {
    let Reference::Short(short) = reference else { return Ok(None) };
    let Ok(shape) = octet_synth::known::shape(short.known.name) else { return Ok(None) };
    let quant = short.quant.as_deref().unwrap_or(short.known.quant);
    let Ok(mix) = quant.to_ascii_lowercase().parse::<octet_synth::Mix>() else { return Ok(None) };
    Ok(Some(octet_synth::synthetic(&shape, mix, None, 0)?))
}

fn as_json(r: &Report, limits: &Limits, context: usize) -> Value {
    let c = &r.config;
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
        "heads": c.attention().map_or(0, |a| a.heads),
        "kv_heads": c.kv_heads(),
        "head_dim": c.attention().map_or(0, |a| a.k_dim),
        "intermediate_size": c.intermediate(),
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
        "memory": memory_json(&r.memory(limits, false), context),
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

/// Sizes of images whose tokens are shown.
const IMAGE_SIZES: [[usize; 2]; 3] = [[640, 480], [1280, 720], [1920, 1080]];

/// The tower, and tokens of images of some sizes.
fn image_text(vision: &vision::Options) -> String {
    let Ok(tower) = vision.tower() else { return String::new() };
    let tokens = IMAGE_SIZES.iter().filter_map(|size| Some((size, tower.tokens(*size).ok()?)));
    let tokens = tokens.map(|([w, h], t)| format!("{} for {w} x {h}", t[0] * t[1])).collect::<Vec<_>>();
    format!("{}\n  tokens of an image: {}", crate::images::describe(vision, None), tokens.join(", "))
}

/// The name of a file that is shown.
fn base(path: &str) -> String {
    let name = std::path::Path::new(path).file_name();
    name.map_or_else(|| path.to_string(), |name| name.to_string_lossy().into_owned())
}

fn image_json(vision: &vision::Options) -> Value {
    let Ok(tower) = vision.tower() else { return Value::Null };
    json!({
        "projector": tower.kind,
        "origin": vision.file.origin,
        "bytes": vision.file.size_bytes(),
        "work_bytes": vision.work_bytes(),
        "tokens_max": tower.tokens_max(),
    })
}

fn memory_json(memory: &Memory, context: usize) -> Value {
    let Memory { weights, kv, states, activations, speculation } = memory;
    json!({
        "context": context,
        "weights": weights,
        "kv_cache": kv,
        "states": states,
        "activations": activations,
        "speculation": speculation,
        "total": memory.total(),
    })
}

/// The command that loads a model.
fn command(report: &Report) -> &'static str {
    if report.config.encoder().is_some() { "octet serve" } else { "octet run" }
}

/// The memory that the model uses on one device.
struct Bill {
    device: DeviceName,
    /// The device's name.
    what: String,
    /// With the context that the memory is counted for, without images.
    memory: Memory,
    /// Memory for images, if the model has a tower: on the device if the tower runs there.
    images: Option<Split>,
    free: Option<u64>,
    /// Bytes of the machine's memory for steps that are submitted ahead, if that is free then.
    ahead: u64,
    /// How `octet run` places it there, or why it cannot; `None` is the processor.
    placed: Option<Result<Placement, String>>,
    /// Layers and bytes of each of several devices, if they run the model together.
    parts: Vec<(usize, u64)>,
    /// The command that loads it.
    command: &'static str,
}

impl Bill {
    fn new(
        device: DeviceName,
        gpu_memory: Option<u64>,
        report: &Report,
        limits: &Limits,
        options: &Options,
    ) -> anyhow::Result<Self> {
        let machine = crate::memory::available();
        let vision = options.vision.as_ref();
        let command = command(report);
        let DeviceName::Vulkan(index) = device else {
            let (what, memory) = ("the processor".to_string(), report.memory(limits, false));
            let images = vision.map(|vision| images(vision, false));
            let (free, ahead, placed, parts) = (machine, 0, None, Vec::new());
            return Ok(Self { device, what, memory, images, free, ahead, placed, parts, command });
        };
        let (what, free) = described(index, gpu_memory)?;
        let room = Room { device: free, machine };
        let placed = Wanted { report, options, contexts: &[1], snapshots: None }.place(room)?;
        let placed = placed.map_err(|least| shortage(&device.to_string(), least, room, gpu_memory));
        let memory = bill(report, &with_spare(limits.clone()), false);
        let ahead = if report.config.encoder().is_some() { 0 } else { table_copy(report) };
        let placed_vision = placed.as_ref().ok().and_then(|p| p.options.vision.as_ref());
        let images = placed_vision.or(vision).map(|vision| images(vision, false));
        let (placed, parts) = (Some(placed), Vec::new());
        Ok(Self { device, what, memory, images, free, ahead, placed, parts, command })
    }

    /// That of several devices which run the model together.
    fn together(
        all: Together,
        proportions: &[f64],
        gpu_memory: Option<u64>,
        report: &Report,
        limits: &Limits,
        options: &Options,
    ) -> anyhow::Result<Self> {
        let machine = crate::memory::available();
        let (names, rooms) = all.described(gpu_memory, proportions)?;
        let wanted = Wanted { report, options, contexts: &[1], snapshots: None };
        let placed = device_layers::place(&wanted, &rooms, machine, proportions)?;
        let of = |placed: &device_layers::Placed| -> Vec<(usize, u64)> {
            placed.counts.iter().copied().zip(placed.bytes.iter().copied()).collect()
        };
        let (parts, placed) = match placed {
            Ok(placed) => {
                let layers = device_layers::lines(&names, &placed, &rooms);
                (of(&placed), Ok(Placement { layers, ..placed.placement }))
            }
            Err(least) => (of(&least), Err(device_layers::shortage(&names, &least, &rooms, machine))),
        };
        let own = bill(report, limits, false);
        // Each device has its own.
        let memory = Memory { activations: own.activations * names.len() as u64, ..own };
        let images = options
            .vision
            .as_ref()
            .map(|v| images(&vision::Options { on_device: false, ..v.clone() }, false));
        let (device, what, free) = (DeviceName::Together(all), names.join(" + "), rooms.into_iter().sum());
        let (ahead, placed, command) = (0, Some(placed), command(report));
        Ok(Self { device, what, memory, images, free, ahead, placed, parts, command })
    }

    /// Bytes of the device itself.
    fn total(&self) -> u64 {
        let images = self.images.filter(|_| self.placed.is_none()).map_or(0, |images| images.machine);
        self.memory.total() + images
    }

    fn text(&self) -> String {
        let m = &self.memory;
        let fits = self.free.map_or(String::new(), |free| {
            let fits = match &self.placed {
                Some(placed) if !self.parts.is_empty() => placed.is_ok(),
                _ => self.total() <= free,
            };
            let verdict = if fits { "fits" } else { "does not fit" };
            format!("; {} free: it {verdict}", size(free))
        });
        let mut out = format!(
            "{} ({})\n  {} of weights, {} of KV cache, {} of states, {} of activations, {} for speculation{}\n  {} in total{fits}\n",
            self.device,
            self.what,
            size(m.weights),
            size(m.kv),
            size(m.states),
            size(m.activations),
            size(m.speculation),
            self.images
                .filter(|_| self.placed.is_none())
                .map_or_else(String::new, |images| format!(", {} for images", size(images.machine))),
            size(self.total()),
        );
        match &self.placed {
            None => {}
            Some(Err(why)) => out += &format!("  `{}` cannot load it there: {why}\n", self.command),
            Some(Ok(p)) => {
                out += &format!(
                    "  `{}` there: context of {} tokens, {} of its memory, {} of host memory\n",
                    self.command,
                    p.options.context.unwrap_or(0),
                    size(p.split.device),
                    size(p.split.machine)
                );
                match self.images {
                    None => {}
                    Some(Split { device: 0, machine }) => {
                        let machine = size(machine);
                        out += &format!(
                            "  of that {machine} of host memory are for images, which the processor reads\n"
                        );
                    }
                    Some(Split { device, machine }) => {
                        let [device, machine] = [device, machine].map(size);
                        out += &format!(
                            "  of that {device} of its memory and {machine} of host memory are for images, which it reads\n"
                        );
                    }
                }
                if self.ahead > 0 {
                    let ahead = size(self.ahead);
                    out += &format!("  {ahead} of additional host memory for steps ahead, if available\n");
                }
                p.layers.iter().for_each(|line| out += &format!("  {line}\n"));
                p.smaller.iter().for_each(|what| out += &format!("  to fit, {what}\n"));
            }
        }
        out
    }

    fn json(&self) -> Value {
        let m = &self.memory;
        let placed = self.placed.as_ref().and_then(|p| p.as_ref().ok());
        let split = placed.map_or(Split { device: 0, machine: self.total() }, |p| p.split);
        json!({
            "name": self.device.to_string(),
            "free_bytes": self.free,
            "weights": m.weights,
            "kv_cache": m.kv,
            "states": m.states,
            "activations": m.activations,
            "speculation": m.speculation,
            "images": self.images.map(|images| images.device + images.machine),
            "images_device_bytes": self.images.map(|images| images.device),
            "total": self.total(),
            // as `octet run` loads it
            "fits": self.placed.as_ref().map_or_else(|| self.free.is_none_or(|free| self.total() <= free), Result::is_ok),
            "context": placed.map(|p| p.options.context),
            "device_bytes": split.device,
            "machine_bytes": split.machine,
            "steps_ahead_bytes": self.ahead,
            "expert_slots": placed.and_then(|p| p.slots),
            "parts": self.parts.iter().map(|(layers, bytes)| json!({"layers": layers, "bytes": bytes})).collect::<Vec<_>>(),
        })
    }
}

fn types(types: &[TypeShare]) -> Value {
    types.iter().map(|t| json!({"type": t.ty.name(), "tensors": t.tensors, "bytes": t.bytes})).collect()
}
