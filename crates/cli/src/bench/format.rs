//! The table of `octet bench` in four formats, with llama-bench's columns and JSON fields and some more.

use std::io::{self, Write};

use octet_compute::cpu::profile::Verb;
use octet_config::printable;
use octet_engine::bench::{Kind, Outcome, mean_sd};
use serde_json::{Map, Value, json};

use super::{Output, Row, Subject};
use crate::units::{parameters, size};

/// Columns of a terminal into which the whole table fits, if the model's name is not long.
const WIDE: u16 = 124;

/// Prints rows as they are measured.
pub struct Printer {
    form: Output,
    printed: usize,
    /// What all rows of the table share, in a terminal that is too narrow for columns of it.
    shared: Option<String>,
}

impl Printer {
    pub fn new(form: Output) -> Self {
        let terminal = console::Term::stdout();
        let columns =
            terminal.is_term().then(|| terminal.size_checked()).flatten().map(|(_, columns)| columns);
        Self { form, printed: 0, shared: columns.is_some_and(|n| n < WIDE).then(String::new) }
    }

    pub fn rows(&mut self, out: &mut dyn Write, subject: &Subject, rows: &[Row]) -> io::Result<()> {
        for row in rows {
            match self.form {
                Output::Md => self.markdown(out, subject, row)?,
                Output::Json => {
                    let start = if self.printed == 0 { "[\n" } else { ",\n" };
                    write!(out, "{start}{:#}", Value::Object(fields(subject, row, true)))?;
                }
                Output::Jsonl => writeln!(out, "{}", Value::Object(fields(subject, row, true)))?,
                Output::Csv => {
                    let fields = fields(subject, row, false);
                    if self.printed == 0 {
                        writeln!(out, "{}", fields.keys().map(String::as_str).collect::<Vec<_>>().join(","))?;
                    }
                    writeln!(out, "{}", fields.values().map(cell).collect::<Vec<_>>().join(","))?;
                }
            }
            self.printed += 1;
            out.flush()?;
        }
        Ok(())
    }

    pub fn end(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.form == Output::Json { writeln!(out, "\n]") } else { Ok(()) }
    }

    fn markdown(&mut self, out: &mut dyn Write, subject: &Subject, row: &Row) -> io::Result<()> {
        let (mean, sd) = mean_sd(&row.outcome.rates());
        let (r, rate) = (&subject.report, format!("{mean:.2} ± {sd:.2}"));
        let test = match row.memory_limit {
            Some(limit) => format!("{} in {}", row.outcome.test.name(), size(limit)),
            None => row.outcome.test.name(),
        };
        if let Some(shared) = &mut self.shared {
            let (size, parameters) = (size(r.bytes), parameters(r.parameters));
            let line =
                format!("{size}, {parameters} parameters, on {} with {} threads", row.backend, row.threads);
            if *shared != line {
                writeln!(out, "{}\n{line}\n", model(subject))?;
                writeln!(out, "| {:>20} | {:>20} |", "test", "t/s")?;
                writeln!(out, "| {}: | {0}: |", "-".repeat(19))?;
                *shared = line;
            }
            return writeln!(out, "| {test:>20} | {rate:>20} |");
        }
        let name = model(subject).replace('|', "\\|");
        let width = name.chars().count().max(30);
        if self.printed == 0 {
            let line = |n: usize| "-".repeat(n);
            writeln!(
                out,
                "| {:width$} | {:>10} | {:>10} | {:10} | {:>7} | {:>15} | {:>20} |",
                "model", "size", "params", "backend", "threads", "test", "t/s"
            )?;
            writeln!(
                out,
                "| {} | {}: | {}: | {} | {}: | {}: | {}: |",
                line(width),
                line(9),
                line(9),
                line(10),
                line(6),
                line(14),
                line(19)
            )?;
        }
        writeln!(
            out,
            "| {name:width$} | {:>10} | {:>10} | {:10} | {:>7} | {:>15} | {rate:>20} |",
            size(r.bytes),
            parameters(r.parameters),
            row.backend,
            row.threads,
            test,
        )
    }
}

/// The name, and the type of most of its bytes.
pub fn model(subject: &Subject) -> String {
    let name = printable(&subject.name);
    match subject.report.types.first() {
        Some(most) => format!("{name} {}", most.ty),
        None => name.into_owned(),
    }
}

/// All fields of a row. `nested` adds structured values.
fn fields(subject: &Subject, row: &Row, nested: bool) -> Map<String, Value> {
    let r = &subject.report;
    let o = &row.outcome;
    let nanos: Vec<f64> = o.times.iter().map(|t| t.as_nanos() as f64).collect();
    let (avg_ns, stddev_ns) = mean_sd(&nanos);
    let (avg_ts, stddev_ts) = mean_sd(&o.rates());
    let (n_prompt, n_gen) = match o.test.kind {
        Kind::Prompt(n) => (n, 0),
        Kind::Generate(n) => (0, n),
    };
    let fields = json!({
        "octet_version": env!("CARGO_PKG_VERSION"),
        "model_filename": r.origin,
        "model_type": model(subject),
        "model_size": r.bytes,
        "model_n_params": r.parameters,
        "model_n_params_active": r.active_parameters,
        "backends": row.backend,
        "device": row.device,
        "n_threads": row.threads,
        "n_ubatch": row.ubatch,
        "type_k": row.kv.keys.to_string(),
        "type_v": row.kv.values.to_string(),
        "n_prompt": n_prompt,
        "n_gen": n_gen,
        "n_depth": o.test.depth,
        "n_parallel": o.test.sequences,
        "test": o.test.name(),
        "avg_ns": avg_ns.round() as u64,
        "stddev_ns": stddev_ns.round() as u64,
        "avg_ts": avg_ts,
        "stddev_ts": stddev_ts,
        "weight_bytes_per_token": r.bytes_per_token,
        "bytes_per_second": row.achieved().map(|b| b as u64),
        "memory_bytes_per_second": row.bandwidth.map(|b| b as u64),
        "memory_share": row.share.map(|s| s.median),
        "memory_bytes_per_second_in_turn": row.share.map(|s| s.memory as u64),
        "memory_limit": row.memory_limit,
        "expert_slots": o.store.map(|s| s.slots),
        "expert_hits": o.store.map(|s| s.hits),
        "expert_misses": o.store.map(|s| s.misses),
        "expert_guesses": o.store.map(|s| s.guesses),
        "expert_guesses_right": o.store.map(|s| s.guessed),
        "disk_bytes_per_token": o.store.map(|s| s.bytes / row.tokens()),
        "disk_bytes_per_second": o.store.map(|s| (s.bytes as f64 / row.seconds()) as u64),
        "stall_share": o.store.map(|s| s.stall_ns as f64 / 1e9 / row.seconds()),
        "barriers_per_step": row.stages.map(|s| s.0),
        "kernels_per_step": row.stages.map(|s| s.1),
        "logits_hash": hash(o),
    });
    let Value::Object(mut fields) = fields else { unreachable!("json! of braces is an object") };
    if nested {
        fields.insert("samples_ns".into(), nanos.iter().map(|&n| n as u64).collect());
        fields.insert("samples_ts".into(), o.rates().into());
        fields.insert("profile".into(), profile(o));
        fields.insert("stages".into(), stages(row));
    }
    fields
}

/// Hash of the logits.
pub fn hash(o: &Outcome) -> String {
    format!("{:016x}", o.logits_hash)
}

/// Sums of each verb over all steps.
fn profile(o: &Outcome) -> Value {
    let Some(profile) = &o.profile else { return Value::Null };
    let verbs = Verb::ALL.iter().map(|&v| (v.name(), profile.entry(v))).filter(|(_, e)| e.calls > 0);
    let verbs: Map<String, Value> = verbs
        .map(|(name, e)| {
            let nanos = e.time.as_nanos() as u64;
            (name.to_string(), json!({"calls": e.calls, "ns": nanos, "bytes": e.bytes}))
        })
        .collect();
    json!({"steps": o.steps, "verbs": verbs})
}

/// Stages of a step on a device.
fn stages(row: &Row) -> Value {
    let Some(all) = &row.stage_times else { return Value::Null };
    let stage = |s: &octet_engine::bench::Stages| {
        let nanos = s.time.as_nanos() as u64;
        json!({"kernels": s.kernels, "count": s.count, "groups": s.groups, "bytes": s.bytes, "ns": nanos})
    };
    all.iter().map(stage).collect()
}

/// A value as a cell of a CSV file (RFC 4180).
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(s) => format!("\"{}\"", s.replace('"', "\"\"")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_not_command_the_terminal() {
        assert_eq!(printable("Tiny \u{1b}[31mé\n"), "Tiny \\u{1b}[31mé\\n");
    }

    #[test]
    fn cells_are_quoted() {
        assert_eq!(cell(&json!("a \"b\", c")), "\"a \"\"b\"\", c\"");
        assert_eq!(cell(&json!(1.5)), "1.5");
        assert_eq!(cell(&Value::Null), "");
    }
}
