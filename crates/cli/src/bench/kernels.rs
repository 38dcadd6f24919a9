//! `octet bench --kernels`: the matrix kernels of all types and instruction sets, with weights in the cache and in memory.

use std::collections::BTreeMap;
use std::io::Write;

use octet_compute::cpu::Cpu;
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::speed::{KernelSpeed, MEMORY_BYTES, clock};
use octet_weights::GgmlType;
use serde_json::{Value, json};

use super::{Output, format};
use crate::args::KernelArgs;
use crate::progress::Bar;
use crate::units::count;

/// Types of published models.
const TYPES: [GgmlType; 15] = [
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
    GgmlType::NVFP4,
    GgmlType::I4_Z,
    GgmlType::I8_M,
    GgmlType::NF4,
    GgmlType::F8_128,
    GgmlType::F8_E4M3,
    GgmlType::BF16,
    GgmlType::F32,
];
/// Numbers of tokens per weight read, for cached weights.
const TOKENS: [usize; 3] = [1, 4, 8];
/// Minimum ratio of a kernel's speed on cached weights to a core's memory bandwidth. Below, its arithmetic does not hide behind memory
/// latency.
const ENOUGH: f64 = 2.0;

struct Row {
    ty: GgmlType,
    isa: Isa,
    threads: usize,
    /// Distance of the software prefetch, in bytes.
    prefetch: usize,
    speed: KernelSpeed,
    clock: Option<f64>,
}

impl Row {
    /// Bytes per cycle of one thread with cached weights.
    fn per_cycle(&self) -> Option<f64> {
        self.clock.map(|clock| self.speed.cached[0] / self.threads as f64 / clock)
    }

    fn fields(&self) -> Value {
        let cached =
            TOKENS.iter().zip(&self.speed.cached).map(|(n, &rate)| (n.to_string(), (rate as u64).into()));
        json!({
            "type": self.ty.name(),
            "isa": self.isa.name(),
            "n_threads": self.threads,
            "prefetch_bytes": self.prefetch,
            "cached_bytes_per_second": Value::Object(cached.collect()),
            "cached_bytes_per_cycle": self.per_cycle(),
            "memory_bytes_per_second": self.speed.memory as u64,
            "plain_read_bytes_per_second": self.speed.plain as u64,
        })
    }
}

pub fn run(kernels: &KernelArgs, threads: &[usize], output: Output) -> anyhow::Result<()> {
    let all = Cpu::new(&kernels.options(None))?.threads();
    let mut threads = if threads.is_empty() { vec![1, all] } else { threads.to_vec() };
    threads.dedup();
    let isas: Vec<Isa> = match kernels.isa {
        Some(isa) => vec![isa.into()],
        None => Isa::ALL.into_iter().rev().filter(|isa| isa.available()).collect(),
    };
    let mut out = std::io::stdout().lock();
    let mut rows: Vec<Row> = Vec::new();
    let mut bar = Bar::steps("kernels");
    let total = (threads.len() * TYPES.len() * isas.len()) as u64;
    for &n in &threads {
        for ty in TYPES {
            for &isa in &isas {
                bar.set_message(format!("{ty} {}", isa.name()));
                let mut cpu =
                    Cpu::new(&octet_compute::cpu::CpuOptions { isa: Some(isa), ..kernels.options(Some(n)) })?;
                let speed = cpu.measure_kernel(ty, &TOKENS, MEMORY_BYTES)?;
                rows.push(Row {
                    ty,
                    isa,
                    threads: n,
                    prefetch: cpu.prefetch_distance(),
                    speed,
                    clock: clock(),
                });
                bar.update(rows.len() as u64, total);
            }
        }
    }
    drop(bar);
    match output {
        Output::Md => table(&mut out, &rows)?,
        Output::Json => {
            let rows: Vec<Value> = rows.iter().map(Row::fields).collect();
            writeln!(out, "{:#}", Value::Array(rows))?;
        }
        Output::Jsonl => rows.iter().try_for_each(|r| writeln!(out, "{}", r.fields()))?,
        Output::Csv => csv(&mut out, &rows)?,
    }
    Ok(out.flush()?)
}

/// Bytes per second, or a clock rate, in billions.
fn giga(rate: f64) -> f64 {
    rate / 1e9
}

fn table(out: &mut dyn Write, rows: &[Row]) -> std::io::Result<()> {
    writeln!(out, "GB/s of packed weights: cached, for {TOKENS:?} tokens at once; from memory, for one.\n")?;
    writeln!(
        out,
        "| {:6} | {:11} | {:>7} | {:>20} | {:>7} | {:>6} | {:>10} | {:>6} |",
        "type", "isa", "threads", "cached", "B/cycle", "memory", "plain read", "share"
    )?;
    writeln!(out, "|{0:-<8}|{0:-<13}|{0:->8}:|{0:->21}:|{0:->8}:|{0:->7}:|{0:->11}:|{0:->7}:|", "")?;
    for r in rows {
        let cached: Vec<String> = r.speed.cached.iter().map(|&c| format!("{:.1}", giga(c))).collect();
        writeln!(
            out,
            "| {:6} | {:11} | {:>7} | {:>20} | {:>7} | {:>6.1} | {:>10.1} | {:>5.0}% |",
            r.ty.name(),
            r.isa.name(),
            r.threads,
            cached.join(" "),
            r.per_cycle().map_or(String::new(), |c| format!("{c:.1}")),
            giga(r.speed.memory),
            giga(r.speed.plain),
            100.0 * r.speed.memory / r.speed.plain,
        )?;
    }
    if let Some(clock) = rows.iter().filter_map(|r| r.clock).reduce(f64::max) {
        writeln!(out, "\nclock: {:.2} GHz", giga(clock))?;
    }
    for (isa, bytes) in rows.iter().map(|r| (r.isa, r.prefetch)).collect::<BTreeMap<_, _>>() {
        writeln!(out, "{}: prefetch distance {} KiB", isa.name(), bytes >> 10)?;
    }
    let weak: Vec<&Row> = rows.iter().filter(|r| r.speed.cached[0] < ENOUGH * r.speed.plain).collect();
    if !weak.is_empty() {
        writeln!(out, "\nSlower than {ENOUGH} times a plain read of memory, with cached weights:")?;
    }
    for r in weak {
        let times = r.speed.cached[0] / r.speed.plain;
        writeln!(out, "- {} {}, {}: {times:.1} times", r.ty, r.isa.name(), count(r.threads, "thread"))?;
    }
    Ok(())
}

fn csv(out: &mut dyn Write, rows: &[Row]) -> std::io::Result<()> {
    for (i, r) in rows.iter().enumerate() {
        let mut fields = r.fields();
        let all = fields.as_object_mut().expect("an object");
        if let Some(Value::Object(cached)) = all.remove("cached_bytes_per_second") {
            all.extend(cached.into_iter().map(|(n, rate)| (format!("cached_bytes_per_second_{n}"), rate)));
        }
        if i == 0 {
            writeln!(out, "{}", all.keys().map(String::as_str).collect::<Vec<_>>().join(","))?;
        }
        writeln!(out, "{}", all.values().map(format::cell).collect::<Vec<_>>().join(","))?;
    }
    Ok(())
}
