//! `octet doctor`: checks every kernel of this machine against the scalar oracle, and measures its memory.

use std::io::Write;

use clap::Args;
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_compute::selftest::{self, Check};
use serde_json::{Value, json};

use crate::device::{self, DeviceName};
use crate::progress::Bar;

const EXAMPLES: &str = "\
Examples:
  octet doctor                      the processor and every graphics device
  octet doctor --device vulkan:0
  octet doctor --json

Exits with 1 if a device computes a wrong result.";

/// Checks that the processor and graphics devices compute correctly, and measures their memory.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Devices to check: cpu, vulkan:N as in `octet devices`. Default: all.
    #[arg(long, value_name = "DEVICE,..", value_delimiter = ',')]
    device: Vec<DeviceName>,
    /// Skip measuring the memory.
    #[arg(long)]
    no_bandwidth: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Run a graphics kernel with one workgroup missing, like a broken driver: for the test of this check.
    #[arg(long, value_name = "KERNEL", hide = true)]
    break_kernel: Option<String>,
}

/// The results for a device.
struct Found {
    device: DeviceName,
    name: String,
    checks: Vec<Check>,
    /// Memory bandwidth in bytes per second.
    bandwidth: Option<f64>,
    /// Seconds of an empty stage.
    stage: Option<f64>,
    seconds: f64,
}

/// Number of bandwidth measurements; the best counts.
const PASSES: usize = 5;

pub fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let (graphics, note) = graphics();
    let all = || std::iter::once(DeviceName::Cpu).chain(graphics.iter().copied());
    let devices: Vec<DeviceName> = if args.device.is_empty() { all().collect() } else { args.device.clone() };
    let mut out = std::io::stdout().lock();
    let mut wrong = Vec::new();
    let mut rows = Vec::new();
    for device in devices {
        let working = Bar::working(&format!("checking {device}"));
        let found = examine(device, args)?;
        drop(working);
        if !found.checks.iter().all(Check::passed) {
            wrong.push(device.to_string());
        }
        if args.json {
            rows.push(as_json(&found));
        } else {
            write(&mut out, &found)?;
        }
    }
    if args.json {
        writeln!(out, "{:#}", Value::from(rows))?;
    } else if let Some(note) = note.filter(|_| args.device.is_empty()) {
        writeln!(out, "no graphics device: {note}")?;
    }
    out.flush()?;
    anyhow::ensure!(
        wrong.is_empty(),
        "{} computes wrong results: do not use it. A newer driver may help",
        wrong.join(" and ")
    );
    Ok(())
}

fn write(out: &mut dyn Write, found: &Found) -> std::io::Result<()> {
    writeln!(out, "{}: {}", found.device, found.name)?;
    let wrong: Vec<&Check> = found.checks.iter().filter(|c| !c.passed()).collect();
    writeln!(
        out,
        "  {} of {} checks are right, in {:.1} s",
        found.checks.len() - wrong.len(),
        found.checks.len(),
        found.seconds
    )?;
    for check in wrong {
        writeln!(out, "  {check}")?;
    }
    if let Some(bandwidth) = found.bandwidth {
        writeln!(out, "  memory: {:.1} GB/s read", bandwidth / 1e9)?;
    }
    if let Some(stage) = found.stage {
        writeln!(out, "  a stage that does nothing: {:.1} µs", 1e6 * stage)?;
    }
    Ok(())
}

fn as_json(found: &Found) -> Value {
    json!({
        "device": found.device.to_string(),
        "name": found.name,
        "passed": found.checks.iter().all(Check::passed),
        "checks": found.checks.iter().map(|c| json!({
            "name": c.name,
            "passed": c.passed(),
            "difference": c.difference,
            "limit": c.limit,
            "same_in_every_batch": c.is_stable,
        })).collect::<Vec<_>>(),
        "memory_bytes_per_second": found.bandwidth,
        "stage_seconds": found.stage,
    })
}

fn best(passes: &[f64]) -> Option<f64> {
    passes.iter().copied().max_by(f64::total_cmp)
}

fn examine(device: DeviceName, args: &DoctorArgs) -> anyhow::Result<Found> {
    let start = std::time::Instant::now();
    let index = match device {
        DeviceName::Vulkan(index) => index,
        DeviceName::Together(all) => {
            anyhow::bail!("{all}: devices are examined one by one: separate them by commas")
        }
        DeviceName::Cpu | DeviceName::Auto => {
            let mut cpu = Cpu::new(&CpuOptions::default())?;
            let checks = selftest::verbs(&mut cpu)?;
            let seconds = start.elapsed().as_secs_f64();
            let passes = if args.no_bandwidth { Vec::new() } else { cpu.measure_bandwidth(PASSES)? };
            let (name, bandwidth) = (cpu.describe(), best(&passes));
            return Ok(Found { device: DeviceName::Cpu, name, checks, bandwidth, stage: None, seconds });
        }
    };
    examine_graphics(index, args, start)
}

#[cfg(feature = "vulkan")]
fn examine_graphics(index: usize, args: &DoctorArgs, start: std::time::Instant) -> anyhow::Result<Found> {
    use octet_engine::models::Inspect;
    let mut vulkan = octet_vulkan::Vulkan::new(&device::options(index))?;
    if let Some(kernel) = &args.break_kernel {
        vulkan.break_kernel(kernel);
    }
    let checks = vulkan.self_test()?;
    let seconds = start.elapsed().as_secs_f64();
    let (bandwidth, stage) = match args.no_bandwidth {
        true => (None, None),
        false => (best(&vulkan.measure_bandwidth(PASSES)?), Some(vulkan.stage_seconds()?)),
    };
    let info = vulkan.info();
    let name = format!("{}, {}\n  {}", info.name, info.kind, info.driver);
    Ok(Found { device: DeviceName::Vulkan(index), name, checks, bandwidth, stage, seconds })
}

#[cfg(not(feature = "vulkan"))]
fn examine_graphics(_: usize, _: &DoctorArgs, _: std::time::Instant) -> anyhow::Result<Found> {
    anyhow::bail!("this build has no support for graphics devices")
}

/// Usable graphics devices, or why there are none.
#[cfg(feature = "vulkan")]
fn graphics() -> (Vec<DeviceName>, Option<String>) {
    match device::devices() {
        Err(why) => (Vec::new(), Some(why)),
        Ok(all) => {
            let usable = all.iter().filter(|d| d.missing.is_empty());
            (usable.map(|d| DeviceName::Vulkan(d.index)).collect(), None)
        }
    }
}

#[cfg(not(feature = "vulkan"))]
fn graphics() -> (Vec<DeviceName>, Option<String>) {
    (Vec::new(), Some(device::NO_VULKAN.into()))
}
