//! The notes below the table of `octet bench`: bytes per token, the share of the memory bandwidth, the time of each verb, and hashes
//! of the logits.

use std::io::{self, Write};

use super::{Row, Subject, format};
use crate::units::{count, size};
use crate::wrap;
use octet_compute::cpu::profile::{Profile, Verb};
use octet_engine::bench::Stages;

/// Columns of the longest bar.
const BAR_COLUMNS: usize = 20;

pub fn write(out: &mut dyn Write, subject: &Subject, rows: &[Row], profile: bool) -> io::Result<()> {
    let r = &subject.report;
    let terminal = console::Term::stdout();
    let fitted = |line: &str| wrap::on(&terminal, line);
    writeln!(out)?;
    let mut devices: Vec<&str> = Vec::new();
    for row in rows {
        if devices.contains(&row.device.as_str()) {
            continue;
        }
        devices.push(&row.device);
        match subject.prefetch {
            Some(bytes) if row.backend == "CPU" => {
                let line = format!("{}, prefetch distance {} KiB", row.device, bytes >> 10);
                writeln!(out, "{}", fitted(&line))?;
            }
            _ => writeln!(out, "{}", fitted(&row.device))?,
        }
    }
    writeln!(out, "weights read per token: {} of {}", size(r.bytes_per_token), size(r.bytes))?;
    for row in rows.iter().filter(|r| r.is_generation()) {
        if let Some(line) = bandwidth_line(row, rows) {
            writeln!(out, "{}", fitted(&line))?;
        }
    }
    for row in rows {
        if let Some(line) = disk_line(row, rows, subject) {
            writeln!(out, "{}", fitted(&line))?;
        }
    }
    for row in rows {
        writeln!(out, "logits of {}: {}", label(row, rows), format::hash(&row.outcome))?;
    }
    if profile {
        for row in rows {
            if let Some(p) = &row.outcome.profile {
                verbs(out, &label(row, rows), p, row)?;
            }
            if let Some((barriers, kernels)) = row.stages {
                writeln!(out, "\n{}: {barriers} barriers and {kernels} kernels per step", label(row, rows))?;
            }
            if let Some(all) = &row.stage_times {
                stages(out, &label(row, rows), all)?;
            }
        }
    }
    Ok(())
}

/// The test's name, with the setting that distinguishes it from others of the same name.
fn label(row: &Row, rows: &[Row]) -> String {
    let mut name = row.outcome.test.name();
    // `CPU`, `vulkan:0`
    let device = |r: &Row| r.device.split(' ').next().unwrap_or_default().to_string();
    if rows.iter().any(|r| device(r) != device(row)) {
        name += &format!(" on {}", device(row));
    }
    if rows.iter().any(|r| r.backend == row.backend && r.threads != row.threads) {
        name += &format!(", {}", count(row.threads, "thread"));
    }
    if let Some(limit) = row.memory_limit {
        name += &format!(" in {}", size(limit));
    }
    if rows.iter().any(|r| r.ubatch != row.ubatch) {
        name += &format!(", {} at once", row.ubatch);
    }
    name
}

/// `tg128: 24.1 GB/s of weights, states, keys and values; 87% (85-89) of the memory bandwidth measured alternately (27.6 GB/s)`.
fn bandwidth_line(row: &Row, rows: &[Row]) -> Option<String> {
    let achieved = row.achieved()?;
    let of = match (row.share, row.bandwidth) {
        (Some(s), _) => format!(
            "; {:.0}% ({:.0}-{:.0}) of the memory bandwidth measured alternately ({:.1} GB/s)",
            100.0 * s.median,
            100.0 * s.quartiles[0],
            100.0 * s.quartiles[1],
            s.memory / 1e9
        ),
        (None, Some(limit)) => {
            let percent = 100.0 * achieved / limit;
            format!(", {percent:.0}% of the {:.1} GB/s measured for this machine's memory", limit / 1e9)
        }
        (None, None) => String::new(),
    };
    let name = label(row, rows);
    Some(format!("{name}: {:.1} GB/s of weights, states, keys and values{of}", achieved / 1e9))
}

/// `tg128 in 8 GiB: 118 of 256 experts of each layer in memory; 62% were there when needed, 21% were guessed (80% of the guesses were right);
/// 240 MiB from the disk a token, 0.9 GB/s; 71% of the time waiting`.
fn disk_line(row: &Row, rows: &[Row], subject: &Subject) -> Option<String> {
    let (store, experts) = (row.outcome.store?, subject.report.config.moe?.experts);
    let needed = (store.hits + store.guessed + store.misses).max(1) as f64;
    let guessed = match store.guesses {
        0 => String::new(),
        guesses => format!(
            ", {:.0}% were guessed ({:.0}% of the guesses were right)",
            100.0 * store.guessed as f64 / needed,
            100.0 * store.guessed as f64 / guesses as f64
        ),
    };
    Some(format!(
        "{}: {} of {experts} experts of each layer in memory; {:.0}% were there when needed{guessed}; {} from the disk a token, {:.2} GB/s; {:.0}% of the time waiting",
        label(row, rows),
        store.slots,
        100.0 * store.hit_share(),
        size(store.bytes / row.tokens()),
        store.bytes as f64 / row.seconds() / 1e9,
        100.0 * store.stall_ns as f64 / 1e9 / row.seconds(),
    ))
}

fn verbs(out: &mut dyn Write, name: &str, profile: &Profile, row: &Row) -> io::Result<()> {
    let steps = row.outcome.steps.max(1) as f64;
    let all = profile.total();
    writeln!(out, "\n{name}, per step")?;
    writeln!(out, "  {:12} {:>7} {:>12} {:>7} {:>9}", "verb", "calls", "µs", "share", "GB/s")?;
    let line = |out: &mut dyn Write, name: &str, e: octet_compute::cpu::profile::Entry, bar: bool| {
        let seconds = e.time.as_secs_f64();
        let share = seconds / all.time.as_secs_f64().max(f64::MIN_POSITIVE);
        let rate = if seconds > 0.0 { e.bytes as f64 / seconds / 1e9 } else { 0.0 };
        let bar = "█".repeat(if bar { (share * BAR_COLUMNS as f64).round() as usize } else { 0 });
        let row = format!(
            "  {name:12} {:>7.0} {:>12.1} {:>6.1}% {rate:>9.1}  {bar}",
            e.calls as f64 / steps,
            1e6 * seconds / steps,
            100.0 * share
        );
        writeln!(out, "{}", row.trim_end())
    };
    for verb in Verb::ALL {
        let entry = profile.entry(verb);
        if entry.calls > 0 {
            line(out, verb.name(), entry, true)?;
        }
    }
    line(out, "total", all, false)
}

/// Columns of the kernels' names; longer ones have a line of their own.
const KERNELS_COLUMNS: usize = 26;

fn stages(out: &mut dyn Write, name: &str, all: &[Stages]) -> io::Result<()> {
    let width = KERNELS_COLUMNS;
    let sum = all.iter().map(|s| s.time.as_secs_f64()).sum::<f64>();
    writeln!(out, "\n{name}, time on the device per step")?;
    writeln!(
        out,
        "  {:width$} {:>6} {:>8} {:>9} {:>9} {:>6} {:>7}",
        "kernels of a stage", "stages", "groups", "MiB", "µs", "share", "GB/s"
    )?;
    let line = |out: &mut dyn Write, names: &str, (count, groups, bytes): (usize, u64, u64), seconds: f64| {
        let names = match names.chars().count() > width {
            true => format!("{names}\n  {:width$}", ""),
            false => format!("{names:width$}"),
        };
        let rate = if seconds > 0.0 { bytes as f64 / seconds / 1e9 } else { 0.0 };
        writeln!(
            out,
            "  {names} {count:>6} {groups:>8} {:>9.2} {:>9.1} {:>5.1}% {rate:>7.1}",
            bytes as f64 / f64::from(1 << 20),
            1e6 * seconds,
            100.0 * seconds / sum.max(f64::MIN_POSITIVE)
        )
    };
    for s in all {
        // A stage without kernels only copies.
        let names = if s.kernels.is_empty() { "copies".into() } else { s.kernels.join(" + ") };
        line(out, &names, (s.count, s.groups, s.bytes), s.time.as_secs_f64())?;
    }
    let total = |of: &dyn Fn(&Stages) -> u64| all.iter().map(of).sum::<u64>();
    let count = all.iter().map(|s| s.count).sum();
    line(out, "total", (count, total(&|s| s.groups), total(&|s| s.bytes)), sum)
}
