//! `octet devices`, and the flags that say where a model runs. Read by every command that loads a model.

use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use octet_engine::models::Device;

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
    /// Device to run on: cpu, or vulkan:N as `octet devices` numbers them.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceName,
    /// Use at most this much of the graphics device's memory, in GiB. Default: all that is free.
    #[arg(long, value_name = "GIB", value_parser = gib)]
    gpu_memory: Option<u64>,
}

/// A device as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
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
            None if s == "cpu" => Some(Self::Cpu),
            None if s == "vulkan" => Some(Self::Vulkan(0)),
            Some(("vulkan", n)) => number(n),
            _ => None,
        }
        .ok_or_else(|| "expected cpu, or vulkan:N with a number from `octet devices`".into())
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

impl DeviceFlags {
    /// The device that the flags name; `None` is the processor.
    pub fn device(&self) -> Option<Device> {
        match self.device {
            DeviceName::Cpu => None,
            DeviceName::Vulkan(index) => Some(vulkan(index, self.gpu_memory)),
        }
    }
}

#[cfg(feature = "vulkan")]
fn vulkan(index: usize, memory_bytes_max: Option<u64>) -> Device {
    Device::new(&format!("vulkan:{index}"), move || {
        octet_vulkan::Vulkan::new(&octet_vulkan::VulkanOptions { index, memory_bytes_max })
    })
}

#[cfg(not(feature = "vulkan"))]
fn vulkan(index: usize, _: Option<u64>) -> Device {
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
        let memory = crate::units::size(card["memory_bytes"].as_u64().unwrap_or(0));
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
    fn devices_are_named_as_they_are_listed() {
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
