//! `octet devices`, and the flags that say where a model runs. Read by every command that loads a model.

mod together;

use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use clap::Args;
use octet_engine::device::Device;
use octet_engine::models::Limits;
use octet_engine::report::Report;

use crate::device_memory::{Placement, Room, Split, Wanted, expert_slots, shortage};
use crate::stderr::note;
use crate::units::{gibibytes, size};
pub use together::{Together, proportion};

const EXAMPLES: &str = "\
Examples:
  octet devices           what --device can name here
  octet devices --json";

/// Lists the devices that a model can run on.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DevicesArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Where a model runs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct DeviceFlags {
    /// Device to run on: cpu, vulkan:N as `octet devices` numbers them, or auto: a graphics card that has room for the model, else the
    /// processor. Several cards run one model together: vulkan:0,vulkan:1 divides its layers by their free memory.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceName,
    /// Proportions of the model's layers on each of several devices, in the order of --device: 3,1. Default: by free memory.
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', value_parser = proportion)]
    tensor_split: Vec<f64>,
    /// Maximum graphics device memory to use, in GiB, or with a unit: 24GiB, 24GB and 24G are the same. Of several devices, of each. Default:
    /// all that is free.
    #[arg(long, value_name = "GIB", value_parser = gibibytes)]
    gpu_memory: Option<u64>,
    /// The card as it was when the first model was placed. Memory that models of this program use later is shared among them.
    #[arg(skip)]
    card: Arc<OnceLock<Found>>,
    /// `--gpu-memory` of all models of this program together.
    #[arg(skip)]
    limit: Arc<OnceLock<Option<Limit>>>,
    /// The same of several devices that run models together: number and free memory of each, and `--gpu-memory`.
    #[arg(skip)]
    cards: Arc<OnceLock<Free>>,
    #[arg(skip)]
    limits: Arc<OnceLock<Vec<Option<Limit>>>>,
}

/// The number of each of several devices, and its free memory.
type Free = Vec<(usize, Option<u64>)>;

/// `--gpu-memory`, and how much of it models use.
#[cfg(feature = "vulkan")]
type Limit = octet_vulkan::MemoryLimit;
/// Without graphics devices there is nothing to count.
#[cfg(not(feature = "vulkan"))]
type Limit = u64;

#[cfg(feature = "vulkan")]
fn limit(bytes: u64) -> Limit {
    octet_vulkan::MemoryLimit::new(bytes)
}

#[cfg(not(feature = "vulkan"))]
fn limit(bytes: u64) -> Limit {
    bytes
}

/// A device as the user writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// A graphics card that has room, else the processor.
    Auto,
    /// The processor.
    Cpu,
    /// A graphics device by its number.
    Vulkan(usize),
    /// Several graphics devices, which run a model together.
    Together(Together),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if s.contains([',', '+']) {
            return Together::parse(s).map(Self::Together);
        }
        let number = |n: &str| n.parse().ok().map(Self::Vulkan);
        match s.split_once(':') {
            None if s == "auto" => Some(Self::Auto),
            // llama.cpp's word for "no device besides the processor".
            None if s == "cpu" || s == "none" => Some(Self::Cpu),
            None if s == "vulkan" => Some(Self::Vulkan(0)),
            Some(("vulkan", n)) => number(n),
            _ => None,
        }
        .ok_or_else(|| "expected auto, cpu, or vulkan:N with a number from `octet devices`".into())
    }
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Vulkan(index) => write!(f, "vulkan:{index}"),
            Self::Together(all) => all.fmt(f),
        }
    }
}

impl DeviceName {
    /// The graphics device with this name.
    fn card(self, exact: bool) -> Found {
        match self {
            // Several are no single card: `Together` has them.
            Self::Cpu | Self::Together(_) => Err(None),
            // If it does not exist, loading reports that.
            Self::Vulkan(index) => Ok(card(index).unwrap_or(Card { index, ..Card::default() })),
            // all weights in f32 need too much memory
            Self::Auto if exact => Err(None),
            Self::Auto => first_card(),
        }
    }

    /// The device for a model within these limits. `is_checked`: a model that does not fit is refused.
    ///
    /// # Errors
    /// If `--device` names a device that has too little memory.
    pub fn device(
        self,
        gpu_memory: Option<u64>,
        report: &Report,
        limits: &Limits,
        exact: bool,
        is_checked: bool,
    ) -> Result<Option<Device>> {
        if let Self::Together(all) = self {
            return all.device(gpu_memory, report, limits, exact, is_checked).map(Some);
        }
        let Ok(card) = self.card(exact) else { return Ok(None) };
        let room = card.room(gpu_memory);
        let slots = match (exact, room) {
            (false, Some(room)) => expert_slots(report, limits, room).map_err(|bytes| {
                let least = Split { device: bytes, machine: 0 };
                shortage(&card.to_string(), least, Room { device: Some(room), machine: None }, gpu_memory)
            }),
            _ => Ok(None),
        };
        let Some(slots) = self.settle(&card, slots, &report.origin, is_checked)? else { return Ok(None) };
        let slots = slots.unwrap_or(None);
        if let Some(slots) = slots {
            note!(
                "note: the experts are in the machine's memory; {card} keeps the {slots} most recently used ones of each layer"
            );
        }
        Ok(Some(vulkan(card.index, Settings { limit: gpu_memory.map(limit), exact, slots })))
    }

    /// Where a model runs that fits, or does not: `None` is the processor, `Some(None)` is the device although it does not fit.
    fn settle<T>(
        self,
        card: &Card,
        fits: std::result::Result<T, String>,
        origin: &str,
        is_checked: bool,
    ) -> Result<Option<Option<T>>> {
        match (fits, self) {
            (Ok(placement), Self::Auto) => Ok(card.is_right().then_some(Some(placement))),
            (Ok(placement), _) => Ok(Some(Some(placement))),
            (Err(why), Self::Auto) => {
                note!("note: {origin} runs on the processor: {why}");
                Ok(None)
            }
            (Err(_), _) if !is_checked => Ok(Some(None)),
            (Err(why), _) => anyhow::bail!(
                "{origin} does not fit: {why}.\n\
                 Close other programs that use it, give a smaller --ctx-size or --parallel, take a smaller quantisation, or use --device cpu; \
                 --no-memory-check loads it anyway"
            ),
        }
    }
}

/// A graphics device; or for the processor, why Vulkan finds no device, if it finds none.
type Found = Result<Card, Option<String>>;

/// A graphics device that a model may run on.
#[derive(Debug, Default)]
struct Card {
    index: usize,
    /// The vendor's name for it.
    name: String,
    /// Free memory in bytes; `None` if that is not known.
    free: Option<u64>,
    /// Whether it passed the self-test, if that has run.
    is_right: OnceLock<bool>,
}

impl std::fmt::Display for Card {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.name {
            "" => write!(f, "vulkan:{}", self.index),
            name => write!(f, "vulkan:{} ({name})", self.index),
        }
    }
}

impl Card {
    /// Bytes of its memory that a model may use.
    fn room(&self, gpu_memory: Option<u64>) -> Option<u64> {
        least(self.free, gpu_memory)
    }

    /// Whether it passes the self-test. Logs a failure. Tested once: later there may be no memory left for a test.
    fn is_right(&self) -> bool {
        *self.is_right.get_or_init(|| self.passes())
    }
}

/// The smaller of two sizes; if only one is known, that one.
pub fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// How a graphics device is opened.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "vulkan"), allow(dead_code))]
struct Settings {
    /// Memory limit, shared with the other models that have it.
    limit: Option<Limit>,
    exact: bool,
    /// Experts of each layer in the device's memory; `None` is all.
    slots: Option<usize>,
}

/// The other models that use a device's memory.
#[derive(Debug, Clone, Copy)]
pub struct Among {
    /// Number of models of a server, this one included. One is evicted to make room for another.
    pub of: usize,
    /// Bytes used by models that stay loaded beside this one.
    pub taken: u64,
}

impl DeviceFlags {
    /// The device that the flags name for a model, and its sizes there; `None` is the processor. The models of a server share its memory if they
    /// fit together. `machine` is the machine's free memory in bytes. `is_checked`: a model that does not fit is refused.
    ///
    /// # Errors
    /// If `--device` names a device that has too little memory.
    pub fn place(
        &self,
        wanted: &Wanted<'_>,
        among: Among,
        machine: Option<u64>,
        is_checked: bool,
    ) -> Result<Option<Placement>> {
        self.check_split()?;
        if let DeviceName::Together(all) = self.device {
            if wanted.report.config.encoder().is_some() {
                note!(
                    "note: {}: encoders run on one device only, now on the processor",
                    wanted.report.origin
                );
                return Ok(None);
            }
            return self.place_together(all, wanted, among, machine, is_checked).map(Some);
        }
        let exact = wanted.options.cpu.exact;
        if exact && self.device == DeviceName::Auto {
            return Ok(None);
        }
        let is_first = self.card.get().is_none();
        let Ok(card) = self.card.get_or_init(|| self.device.card(exact)) else { return Ok(None) };
        // Other programs may have ended since.
        let now = if is_first { None } else { self::card(card.index).ok().and_then(|now| now.free) };
        let device = least(card.free.max(now), self.gpu_memory);
        let whole = Room { device: device.map(|bytes| bytes.saturating_sub(among.taken)), machine };
        let placed = wanted.place_among(whole, among.of)?;
        let placed = placed.map_err(|least| shortage(&card.to_string(), least, whole, self.gpu_memory));
        let Some(placed) = self.device.settle(card, placed, &wanted.report.origin, is_checked)? else {
            return Ok(None);
        };
        let mut placement = placed.map_or_else(|| wanted.unchecked(), Ok)?;
        let limit = self.limit.get_or_init(|| self.gpu_memory.map(limit)).clone();
        let settings = Settings { limit, exact, slots: placement.slots };
        placement.options.device = Some(vulkan(card.index, settings));
        Ok(Some(placement))
    }

    /// Why Vulkan found no device for `--device auto`, if it found none.
    pub fn missing(&self) -> Option<&str> {
        self.card.get()?.as_ref().err()?.as_deref()
    }

    /// Maximum number of bytes of the memory of all its devices to use.
    pub fn gpu_memory(&self) -> Option<u64> {
        let devices = if let DeviceName::Together(all) = self.device { all.count() } else { 1 };
        self.gpu_memory.map(|bytes| bytes.saturating_mul(devices as u64))
    }
}

/// The graphics card for `--device auto`: the first with memory of its own, else one that shares the machine's. Never a software device.
#[cfg(feature = "vulkan")]
fn first_card() -> Found {
    use octet_vulkan::DeviceKind;
    // No loader, no driver, no card: the processor. `DeviceFlags::missing` has the reason.
    let cards = devices().map_err(Some)?;
    let of = |kind| cards.iter().find(|c| c.kind == kind && c.missing.is_empty());
    of(DeviceKind::Discrete).or_else(|| of(DeviceKind::Integrated)).map(Card::of).ok_or(None)
}

#[cfg(not(feature = "vulkan"))]
fn first_card() -> Found {
    Err(Some(NO_VULKAN.into()))
}

/// Why a build without Vulkan finds no device.
#[cfg(not(feature = "vulkan"))]
pub const NO_VULKAN: &str = "this build has no support for them";

/// All graphics devices, or why there are none.
#[cfg(feature = "vulkan")]
pub fn devices() -> Result<Vec<octet_vulkan::DeviceInfo>, String> {
    let found = octet_vulkan::devices().map_err(|e| e.to_string())?;
    if found.is_empty() { Err("Vulkan finds none".into()) } else { Ok(found) }
}

#[cfg(feature = "vulkan")]
impl Card {
    fn of(info: &octet_vulkan::DeviceInfo) -> Self {
        Self {
            index: info.index,
            name: info.name.clone(),
            free: Some(info.free_bytes),
            is_right: OnceLock::new(),
        }
    }

    fn passes(&self) -> bool {
        let why =
            match octet_vulkan::Vulkan::new(&options(self.index)).and_then(|mut device| device.self_test()) {
                Ok(checks) if checks.iter().all(octet_compute::selftest::Check::passed) => return true,
                Ok(_) => "computes wrong results, see `octet doctor`".to_string(),
                Err(e) => format!("cannot be used: {e}"),
            };
        note!("warning: {self} {why}: the model runs on the processor");
        false
    }
}

#[cfg(not(feature = "vulkan"))]
impl Card {
    fn passes(&self) -> bool {
        false
    }
}

/// A device as `octet show` describes it: the vendor's name, and the bytes of its memory that a model may use.
pub fn described(index: usize, gpu_memory: Option<u64>) -> Result<(String, Option<u64>)> {
    let card = card(index)?;
    let room = card.room(gpu_memory);
    Ok((card.name, room))
}

/// Bytes that are free on a graphics device now.
pub fn free_bytes(name: &str) -> Option<u64> {
    match name.parse() {
        Ok(DeviceName::Vulkan(index)) => card(index).ok()?.free,
        Ok(DeviceName::Together(all)) => all.free_bytes(),
        _ => None,
    }
}

/// A graphics device by its number.
#[cfg(feature = "vulkan")]
fn card(index: usize) -> Result<Card> {
    let all = octet_vulkan::devices()?;
    let card = all.get(index);
    Ok(Card::of(
        card.ok_or_else(|| anyhow::anyhow!("there is no device vulkan:{index} (see `octet devices`)"))?,
    ))
}

#[cfg(not(feature = "vulkan"))]
fn card(_: usize) -> Result<Card> {
    anyhow::bail!("this build has no support for graphics devices")
}

#[cfg(feature = "vulkan")]
fn vulkan(index: usize, s: Settings) -> Device {
    let options = octet_vulkan::VulkanOptions {
        memory_limit: s.limit,
        exact: s.exact,
        expert_slots: s.slots,
        ..options(index)
    };
    Device::new(&format!("vulkan:{index}"), move || octet_vulkan::Vulkan::new(&options))
}

/// How a graphics device is opened, for a model and for the self-test: compiled kernels are saved.
#[cfg(feature = "vulkan")]
pub fn options(index: usize) -> octet_vulkan::VulkanOptions {
    octet_vulkan::VulkanOptions {
        index,
        kernel_cache: kernel_cache(),
        notice: Some(|message| note!("note: {message}")),
        free_memory: Some(crate::memory::available),
        ..Default::default()
    }
}

/// Folder for compiled kernels: `octet/kernels` in the user's cache folder; none without a home folder.
#[cfg(feature = "vulkan")]
fn kernel_cache() -> Option<std::path::PathBuf> {
    use etcetera::BaseStrategy;
    Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("octet").join("kernels"))
}

#[cfg(not(feature = "vulkan"))]
fn vulkan(index: usize, _: Settings) -> Device {
    Device::new(&format!("vulkan:{index}"), || {
        Err::<octet_compute::cpu::Cpu, _>(octet_compute::Error(
            "this build has no support for graphics devices; build it with the feature 'vulkan', or use --device cpu".into(),
        ))
    })
}

/// `octet devices`.
pub fn list(args: &DevicesArgs) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let cpu =
        octet_compute::cpu::Cpu::new(&octet_compute::cpu::CpuOptions { pin: false, ..Default::default() })?;
    let (cards, note) = cards();
    if args.json {
        let mut all = vec![serde_json::json!({"device": "cpu", "name": cpu.describe(), "usable": true})];
        all.extend(cards);
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(());
    }
    writeln!(out, "cpu       {}", cpu.describe())?;
    for card in &cards {
        let text = |key: &str| card[key].as_str().unwrap_or_default().to_string();
        let memory = size(card["memory_bytes"].as_u64().unwrap_or(0));
        writeln!(
            out,
            "{:<9} {} ({})\n          {memory}, Vulkan {}, {}",
            text("device"),
            text("name"),
            text("kind"),
            text("api"),
            text("driver")
        )?;
        if let Some(missing) = card["missing"].as_array().filter(|m| !m.is_empty()) {
            let missing: Vec<&str> = missing.iter().filter_map(|m| m.as_str()).collect();
            writeln!(out, "          cannot be used: it lacks {}", missing.join(", "))?;
            continue;
        }
        let free = size(card["free_bytes"].as_u64().unwrap_or(0));
        let dot = match card["integer_dot"].as_bool() {
            Some(true) => "integer dot products",
            _ => "no integer dot products (VK_KHR_shader_integer_dot_product), so matrix products are slower",
        };
        let note = if card["kind"] == "software" { "; used only with --device" } else { "" };
        writeln!(out, "          {free} free, {dot}{note}")?;
    }
    if let Some(note) = note {
        writeln!(out, "\nno graphics device: {note}")?;
    }
    Ok(())
}

/// Graphics devices as JSON, and why there are none.
#[cfg(feature = "vulkan")]
fn cards() -> (Vec<serde_json::Value>, Option<String>) {
    let found = match devices() {
        Ok(found) => found,
        Err(why) => return (Vec::new(), Some(why)),
    };
    let json = found.iter().map(|d| {
        serde_json::json!({
            "device": format!("vulkan:{}", d.index),
            "name": d.name,
            "kind": d.kind.to_string(),
            "driver": d.driver,
            "api": d.api,
            "memory_bytes": d.memory_bytes,
            "free_bytes": d.free_bytes,
            "integer_dot": d.integer_dot,
            "subgroup": d.subgroup,
            "missing": d.missing,
            "usable": d.missing.is_empty(),
        })
    });
    (json.collect(), None)
}

#[cfg(not(feature = "vulkan"))]
fn cards() -> (Vec<serde_json::Value>, Option<String>) {
    (Vec::new(), Some(NO_VULKAN.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_they_are_listed() {
        assert_eq!("auto".parse(), Ok(DeviceName::Auto));
        assert_eq!("cpu".parse(), Ok(DeviceName::Cpu));
        assert_eq!("vulkan".parse(), Ok(DeviceName::Vulkan(0)));
        assert_eq!("vulkan:2".parse(), Ok(DeviceName::Vulkan(2)));
        for wrong in ["", "gpu", "cpu:1", "vulkan:", "vulkan:x", "cuda:0"] {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }

    /// A model that a configuration adds later is checked against the card as it was before: loaded models are evicted to make room.
    #[test]
    fn a_later_model_is_placed_on_the_card_as_it_was_at_first() {
        let report = Report::new(&octet_synth::tiny("qwen35moe", octet_synth::Mix::Q4KM).unwrap()).unwrap();
        let options = octet_engine::engine::Options::default();
        let wanted = Wanted { report: &report, options: &options, contexts: &[4, 2, 1], snapshots: None };
        // There is no such card, so it has no free memory.
        let flags = |free| DeviceFlags {
            device: DeviceName::Vulkan(99),
            gpu_memory: None,
            card: Arc::new(OnceLock::from(Ok(Card { index: 99, free: Some(free), ..Card::default() }))),
            limit: Arc::default(),
            tensor_split: Vec::new(),
            cards: Arc::default(),
            limits: Arc::default(),
        };
        let one = Among { of: 1, taken: 0 };
        let all = wanted.unchecked().unwrap().split.device;
        let placed = flags(all).place(&wanted, one, None, true).unwrap().unwrap();
        assert!(placed.smaller.is_empty() && placed.options.device.is_some(), "{:?}", placed.smaller);
        let smaller = flags(all - 1).place(&wanted, one, None, true).unwrap().unwrap().smaller;
        assert_eq!(smaller.len(), 1, "{smaller:?}");
        // models that stay loaded beside it count
        let beside = flags(all + 7).place(&wanted, Among { of: 1, taken: 8 }, None, true).unwrap().unwrap();
        assert_eq!(beside.smaller, smaller);
        let error = flags(1000).place(&wanted, one, None, true).unwrap_err().to_string();
        assert!(error.contains("does not fit") && error.contains("vulkan:99"), "{error}");
    }
}
