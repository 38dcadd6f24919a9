//! `octet devices`, and the flags that say where a model runs. Read by every command that loads a model.

use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use octet_engine::engine::Options;
use octet_engine::models::{Device, Limits};
use octet_engine::report::{Group, Memory, Report};

use crate::stderr::note;
use crate::units::size;

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
    /// processor.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceName,
    /// Use at most this much of the graphics device's memory, in GiB. Default: all that is free.
    #[arg(long, value_name = "GIB", value_parser = gib)]
    gpu_memory: Option<u64>,
}

/// A device as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// A graphics card that has room, else the processor.
    Auto,
    /// The processor.
    Cpu,
    /// A graphics device by its number.
    Vulkan(usize),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let number = |n: &str| n.parse().ok().map(Self::Vulkan);
        match s.split_once(':') {
            None if s == "auto" => Some(Self::Auto),
            None if s == "cpu" => Some(Self::Cpu),
            None if s == "vulkan" => Some(Self::Vulkan(0)),
            Some(("vulkan", n)) => number(n),
            _ => None,
        }
        .ok_or_else(|| "expected auto, cpu, or vulkan:N with a number from `octet devices`".into())
    }
}

/// Bytes, from a number of GiB: `16`, `7.5GiB`.
pub fn gib(s: &str) -> Result<u64, String> {
    let number = s.trim_end_matches("GiB").trim_end_matches("G").trim();
    let gib: f64 = number.parse().map_err(|_| "expected a number of GiB, such as 16 or 7.5".to_string())?;
    if gib.is_finite() && gib > 0.0 {
        Ok((gib * f64::from(1 << 30)) as u64)
    } else {
        Err("expected more than 0".into())
    }
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Vulkan(index) => write!(f, "vulkan:{index}"),
        }
    }
}

impl DeviceName {
    /// The device itself, for a model within these limits, and how many experts of each layer lie in its memory; `None` is the processor.
    pub fn device(
        self,
        gpu_memory: Option<u64>,
        report: &Report,
        limits: &Limits,
        exact: bool,
    ) -> Option<(Device, Option<usize>)> {
        match self {
            Self::Cpu => None,
            Self::Vulkan(index) => {
                let free = card(index).map_or(u64::MAX, |(_, free)| free);
                let room = gpu_memory.unwrap_or(u64::MAX).min(free);
                // if not even the rest fits, loading says so with the sizes
                let slots = if exact { None } else { expert_slots(report, limits, room).unwrap_or(None) };
                Some((vulkan(index, Settings { gpu_memory, exact, slots }), slots))
            }
            // f32 throughout takes too much room
            Self::Auto if exact => None,
            Self::Auto => auto(gpu_memory, report, limits),
        }
    }
}

/// How a graphics device is opened.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "vulkan"), allow(dead_code))]
struct Settings {
    /// Most bytes of its memory to use.
    gpu_memory: Option<u64>,
    exact: bool,
    /// Experts of each layer in its memory; `None` is all.
    slots: Option<usize>,
}

impl DeviceFlags {
    /// Fills in the device that the flags name for a model that is opened with `options`. What it takes there, unless it is the processor.
    pub fn choose(&self, options: &mut Options, report: &Report) -> Result<Option<Split>> {
        let limits = options.limits(report.config.context_length, report.state_bytes())?;
        let chosen = self.device.device(self.gpu_memory, report, &limits, options.cpu.exact);
        let split = chosen.as_ref().map(|(_, slots)| Split::new(report, &limits, *slots));
        options.device = chosen.map(|(device, _)| device);
        Ok(split)
    }

    /// Most bytes of the device's memory to use.
    pub fn gpu_memory(&self) -> Option<u64> {
        self.gpu_memory
    }
}

/// What a model takes of a device's memory, about: the embedding table and snapshots stay in the machine's.
pub fn bill(report: &Report, limits: &Limits) -> Memory {
    let cpu = report.memory(&Limits { snapshots: 0, ..limits.clone() }, false);
    let groups = report.groups.iter().filter(|g| match g.group {
        // the block counts for the guesses
        Group::Other | Group::Mtp => false,
        Group::Embedding => report.tied,
        _ => true,
    });
    let weights = groups.flat_map(|g| &g.types).map(|t| device_bytes(t.ty, t.bytes)).sum();
    // steps keep their rows twice, as f32 and as bytes, and attention has a buffer of its own
    Memory { weights, activations: 2 * cpu.activations + (64 << 20), ..cpu }
}

/// Memory that the host keeps for a device: what moves to it and from it, and the batch of a step.
const STAGING_BYTES: u64 = 32 << 20;

/// What a model on a graphics device takes, about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Of the device's own memory.
    pub device: u64,
    /// Of the machine's: the embedding table, snapshots, logits, and all experts where the device has slots for some.
    pub machine: u64,
}

impl Split {
    /// With `slots` experts of each layer in the device's memory and all of them in the machine's; `None` is all in the device's.
    pub fn new(report: &Report, limits: &Limits, slots: Option<usize>) -> Self {
        let all = bill(report, limits).total();
        let table = report.group(Group::Embedding).map_or(0, |g| g.bytes);
        let snapshots = report.state_bytes().saturating_mul(limits.snapshots as u64);
        let logits = 4 * (report.config.vocab * limits.batch_outputs) as u64;
        let machine = table.saturating_add(snapshots).saturating_add(logits + STAGING_BYTES);
        match (slots, report.config.moe) {
            (Some(slots), Some(moe)) => {
                let experts = expert_bytes(report);
                let own = (u128::from(experts) * slots as u128 / moe.experts.max(1) as u128) as u64;
                Self { device: all.saturating_sub(experts) + own, machine: machine.saturating_add(experts) }
            }
            _ => Self { device: all, machine },
        }
    }
}

/// Bytes of all routed experts on a device.
fn expert_bytes(report: &Report) -> u64 {
    report
        .group(Group::RoutedExperts)
        .map_or(0, |g| g.types.iter().map(|t| device_bytes(t.ty, t.bytes)).sum())
}

/// How many experts of each layer a device with `room` bytes keeps in its memory, all of them lying in the machine's: `None` where all fit
/// as they are. Fails with the bytes that are needed where no more than the rest of the model, or not even that, fits.
fn expert_slots(report: &Report, limits: &Limits, room: u64) -> Result<Option<usize>, u64> {
    let all = bill(report, limits).total();
    if all <= room {
        return Ok(None);
    }
    let experts = expert_bytes(report);
    let rest = all.saturating_sub(experts);
    let moe = report.config.moe.filter(|_| experts > 0 && room > rest).ok_or(all)?;
    let slots = (u128::from(room - rest) * moe.experts as u128 / u128::from(experts)) as usize;
    // those of one token at least
    if slots < moe.top_k { Err(all) } else { Ok(Some(slots)) }
}

/// A graphics card that nobody named: the first with memory of its own, or else one that shares the machine's, if `bytes` fit and it
/// passes the self-test. Never one in software.
#[cfg(feature = "vulkan")]
fn auto(gpu_memory: Option<u64>, report: &Report, limits: &Limits) -> Option<(Device, Option<usize>)> {
    use octet_vulkan::DeviceKind;
    // no loader, no driver, no card: the processor, as `octet devices` explains
    let cards = octet_vulkan::devices().ok()?;
    let of = |kind| cards.iter().find(|c| c.kind == kind && c.missing.is_empty());
    let card = of(DeviceKind::Discrete).or_else(|| of(DeviceKind::Integrated))?;
    let (index, room) = (card.index, gpu_memory.map_or(card.free_bytes, |m| m.min(card.free_bytes)));
    let slots = match expert_slots(report, limits, room) {
        Ok(slots) => slots,
        Err(bytes) => {
            note!(
                "note: the model takes about {} on vulkan:{index} ({}), which has {} free: it runs on the processor",
                size(bytes),
                card.name,
                size(room)
            );
            return None;
        }
    };
    match octet_vulkan::Vulkan::new(&octet_vulkan::VulkanOptions { index, ..Default::default() })
        .and_then(|mut device| device.self_test())
    {
        Ok(checks) if checks.iter().all(octet_compute::selftest::Check::passed) => {
            Some((vulkan(index, Settings { gpu_memory, exact: false, slots }), slots))
        }
        Ok(_) => {
            note!(
                "warning: vulkan:{index} ({}) computes wrong results, see `octet doctor`: the model runs on the processor",
                card.name
            );
            None
        }
        Err(e) => {
            note!(
                "warning: vulkan:{index} ({}) cannot be used: {e}: the model runs on the processor",
                card.name
            );
            None
        }
    }
}

#[cfg(not(feature = "vulkan"))]
fn auto(_: Option<u64>, _: &Report, _: &Limits) -> Option<(Device, Option<usize>)> {
    None
}

/// Bytes on a device of weights that take `bytes` in a file.
#[cfg(feature = "vulkan")]
fn device_bytes(ty: octet_weights::GgmlType, bytes: u64) -> u64 {
    octet_vulkan::device_bytes(ty, bytes / ty.block_bytes() as u64 * ty.block_len() as u64)
}

#[cfg(not(feature = "vulkan"))]
fn device_bytes(_: octet_weights::GgmlType, bytes: u64) -> u64 {
    bytes
}

/// The bill of a model on each of these devices, for people: what it takes, and whether there is room.
pub fn bills(devices: &[DeviceName], report: &Report, limits: &Limits) -> Result<String> {
    let mut out = String::new();
    for name in devices {
        let (memory, room, what, split) = match name {
            DeviceName::Auto => continue,
            DeviceName::Cpu => {
                (report.memory(limits, false), crate::memory::available(), "the processor".to_string(), None)
            }
            DeviceName::Vulkan(index) => {
                let (name, free) = card(*index)?;
                let slots = expert_slots(report, limits, free);
                let split = Split::new(report, limits, slots.unwrap_or(None));
                (bill(report, limits), Some(free), name, Some((slots.ok().flatten(), split)))
            }
        };
        let fits = room.map_or(String::new(), |room| {
            let verdict = if memory.total() <= room { "fits" } else { "does not fit" };
            format!("; {} free: it {verdict}", size(room))
        });
        let beside = match split {
            None => String::new(),
            Some((None, split)) => {
                format!("  {} of the machine's memory beside it\n", size(split.machine))
            }
            Some((Some(slots), split)) => format!(
                "  with its experts in the machine's memory and {slots} of each layer on the device: {} there, {} of the machine's\n",
                size(split.device),
                size(split.machine)
            ),
        };
        out += &format!(
            "{name} ({what})\n  {} of weights, {} of KV cache, {} of states, {} of activations, {} for guesses\n  \
             {} together{fits}\n{beside}",
            size(memory.weights),
            size(memory.kv),
            size(memory.states),
            size(memory.activations),
            size(memory.speculation),
            size(memory.total()),
        );
    }
    Ok(out)
}

/// What a graphics device has free now.
pub fn free_bytes(name: &str) -> Option<u64> {
    match name.parse() {
        Ok(DeviceName::Vulkan(index)) => card(index).ok().map(|(_, free)| free),
        _ => None,
    }
}

/// Name and free bytes of a graphics device.
#[cfg(feature = "vulkan")]
fn card(index: usize) -> Result<(String, u64)> {
    let all = octet_vulkan::devices()?;
    let card = all
        .get(index)
        .ok_or_else(|| anyhow::anyhow!("there is no device vulkan:{index} (see `octet devices`)"))?;
    Ok((card.name.clone(), card.free_bytes))
}

#[cfg(not(feature = "vulkan"))]
fn card(_: usize) -> Result<(String, u64)> {
    anyhow::bail!("this build has no support for graphics devices")
}

#[cfg(feature = "vulkan")]
fn vulkan(index: usize, s: Settings) -> Device {
    if let Some(slots) = s.slots {
        note!(
            "note: the experts lie in the machine's memory; vulkan:{index} keeps the {slots} of each layer that were used last"
        );
    }
    let options = octet_vulkan::VulkanOptions {
        index,
        memory_bytes_max: s.gpu_memory,
        exact: s.exact,
        expert_slots: s.slots,
    };
    Device::new(&format!("vulkan:{index}"), move || octet_vulkan::Vulkan::new(&options))
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
            "{:<9} {} ({}), {memory}, Vulkan {}, {}",
            text("device"),
            text("name"),
            text("kind"),
            text("api"),
            text("driver")
        )?;
        if let Some(missing) = card["missing"].as_array().filter(|m| !m.is_empty()) {
            let missing: Vec<&str> = missing.iter().filter_map(|m| m.as_str()).collect();
            writeln!(out, "          cannot be used: it lacks {}", missing.join(", "))?;
        }
    }
    if let Some(note) = note {
        writeln!(out, "\nno graphics device: {note}")?;
    }
    Ok(())
}

/// Graphics devices as JSON, and why there are none.
#[cfg(feature = "vulkan")]
fn cards() -> (Vec<serde_json::Value>, Option<String>) {
    let found = match octet_vulkan::devices() {
        Ok(found) if found.is_empty() => return (Vec::new(), Some("Vulkan knows of none".into())),
        Ok(found) => found,
        Err(e) => return (Vec::new(), Some(e.to_string())),
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
    (Vec::new(), Some("this build has no support for them".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_that_do_not_fit_get_slots() {
        let report = Report::new(&octet_synth::tiny("qwen35moe", octet_synth::Mix::Q4KM).unwrap()).unwrap();
        let limits = Limits::single(1000);
        let all = bill(&report, &limits).total();
        let experts = report.group(Group::RoutedExperts).unwrap().types.iter();
        let experts: u64 = experts.map(|t| device_bytes(t.ty, t.bytes)).sum();
        assert_eq!(expert_slots(&report, &limits, all), Ok(None));
        // 8 experts, of which a token takes 3
        assert_eq!(expert_slots(&report, &limits, all - 1), Ok(Some(7)));
        assert_eq!(expert_slots(&report, &limits, all - experts / 2), Ok(Some(4)));
        assert_eq!(expert_slots(&report, &limits, all - experts * 6 / 8), Err(all));
        assert_eq!(expert_slots(&report, &limits, 1000), Err(all));
        let dense = Report::new(&octet_synth::tiny("llama", octet_synth::Mix::Q4KM).unwrap()).unwrap();
        assert!(expert_slots(&dense, &limits, 1000).is_err());
    }

    #[test]
    fn devices_are_named_as_they_are_listed() {
        assert_eq!("auto".parse(), Ok(DeviceName::Auto));
        assert_eq!("cpu".parse(), Ok(DeviceName::Cpu));
        assert_eq!("vulkan".parse(), Ok(DeviceName::Vulkan(0)));
        assert_eq!("vulkan:2".parse(), Ok(DeviceName::Vulkan(2)));
        for wrong in ["", "gpu", "cpu:1", "vulkan:", "vulkan:x", "cuda:0"] {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
        assert_eq!(gib("16"), Ok(16 << 30));
        assert_eq!(gib("7.5GiB"), Ok(15 << 29));
        assert!(gib("0").is_err() && gib("much").is_err());
    }
}
