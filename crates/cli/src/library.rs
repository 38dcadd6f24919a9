//! `octet pull`, `octet list`, `octet rm`: the models on this machine.

use std::io::Write;
use std::time::{Duration, SystemTime};

use clap::Args;
use octet_api::time::rfc3339;
use octet_compute::cpu::packed_file::KeptFile;
use octet_config::printable;
use octet_hub::others::{self, Broken, Other};
use octet_hub::{Hub, Installed, Reference};
use serde_json::{Value, json};

use crate::embedded;
use crate::packed;
use crate::progress::Pull;
use crate::settings::Settings;
use crate::stderr::note;
use crate::units::{count, size};

const PULL_EXAMPLES: &str = "\
Examples:
  octet pull smollm2:135m
  octet pull hf:unsloth/Qwen3.6-35B-A3B-GGUF:Q4_K_M
  octet pull https://example.com/model.gguf

Interrupted downloads are resumed. HF_TOKEN opens gated repositories; HF_HUB_CACHE says
where models are kept, in the layout that other tools of Hugging Face share.";

/// Downloads a model, or its newest version.
#[derive(Debug, Args)]
#[command(after_help = PULL_EXAMPLES)]
pub struct PullArgs {
    /// Short name, hf:user/repo:QUANT, or URL of a GGUF file.
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<String>,
}

const LIST_EXAMPLES: &str = "\
Examples:
  octet list
  octet list | cut -f1                  the names alone
  octet list --json | jq -r '.[].path'

If standard output is no terminal, each model is a line of five fields with tabs between
them: name, bytes, time, note, full name.";

/// Lists the models on this machine.
#[derive(Debug, Args)]
#[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
pub struct ListArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const RM_EXAMPLES: &str = "\
Examples:
  octet rm smollm2:135m
  octet rm hf:unsloth/Qwen3-8B-GGUF:Q4_K_M hf:unsloth/Qwen3-8B-GGUF:Q8_0";

/// Removes models from this machine.
#[derive(Debug, Args)]
#[command(visible_alias = "remove", after_help = RM_EXAMPLES)]
pub struct RmArgs {
    /// Models, named as in `octet list`.
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<String>,
}

/// Parses all names first: a mistake in the last one is found before the first is processed.
fn references(names: &[String]) -> anyhow::Result<Vec<Reference>> {
    names.iter().map(|n| crate::model::reference(n)).collect()
}

pub fn pull(args: &PullArgs, settings: &Settings) -> anyhow::Result<()> {
    let fetched: Vec<String> = args.models.iter().filter(|m| !embedded::is(m)).cloned().collect();
    if fetched.len() < args.models.len() {
        note!("{}: is built in; there is nothing to download", embedded::NAME);
    }
    let references = references(&fetched)?;
    let hub = Hub::new(settings.hub()?);
    for reference in &references {
        let path = hub.pull(reference, &Pull::new())?;
        writeln!(std::io::stdout(), "{}", path.display())?;
    }
    Ok(())
}

pub fn rm(args: &RmArgs, settings: &Settings) -> anyhow::Result<()> {
    if args.models.iter().any(|m| embedded::is(m)) {
        anyhow::bail!("{}: is built in and cannot be removed", embedded::NAME);
    }
    let references = references(&args.models)?;
    let hub = Hub::new(settings.hub()?);
    // The user's own files stay; what was packed of them goes.
    let own = |reference: &Reference| match reference {
        Reference::Path(path) if packed::all().iter().any(|kept| packed::is_of(kept, path)) => {
            Some(path.clone())
        }
        _ => None,
    };
    for (name, reference) in args.models.iter().zip(&references).filter(|(_, r)| own(r).is_none()) {
        if let Some(how) = others::removal(name) {
            anyhow::bail!("{name}: is read in place and not removed here; {how} removes it");
        }
        hub.check_removable(reference)?;
    }
    for (name, reference) in args.models.iter().zip(&references) {
        if let Some(path) = own(reference) {
            let freed = size(packed::remove(|kept| packed::is_of(kept, &path))?);
            writeln!(
                std::io::stdout(),
                "{name}: removed its packed weights, {freed} freed; the model stays"
            )?;
            continue;
        }
        let removed = hub.remove(reference)?;
        let packed = packed::remove(|kept| !kept.model.exists())?;
        let (files, freed) = (count(removed.files, "file"), size(removed.bytes + packed));
        writeln!(std::io::stdout(), "{name}: removed {files}, {freed} freed")?;
    }
    Ok(())
}

pub fn list(args: &ListArgs, settings: &Settings) -> anyhow::Result<()> {
    let hub = Hub::new(settings.hub()?);
    let models = hub.list()?;
    let mut out = std::io::stdout().lock();
    let (others, broken) = crate::model::others();
    let kept = packed::all();
    if args.json {
        let all = models.iter().map(|m| as_json(m, &kept)).chain(others.iter().map(other_as_json));
        writeln!(out, "{:#}", all.collect::<Value>())?;
        return Ok(());
    }
    let rows = rows(&models, &others, &kept);
    if console::Term::stdout().is_term() {
        table(&mut out, &rows)?;
    } else {
        lines(&mut out, &rows)?;
    }
    for Broken { name, why } in &broken {
        note!("note: {}: {}", printable(name), printable(why));
    }
    if models.is_empty() && others.is_empty() {
        note!(
            "no models in {}; `octet pull smollm2:135m` downloads a small one",
            hub.config().cache.display()
        );
    }
    Ok(())
}

/// A line of the list.
#[derive(Default)]
struct Row {
    name: String,
    /// A longer name that means the same.
    reference: String,
    bytes: u64,
    /// When it was fetched; unknown of what was not.
    at: Option<SystemTime>,
    /// What is special about it.
    note: String,
}

fn rows(models: &[Installed], others: &[Other], kept: &[KeptFile]) -> Vec<Row> {
    let inside = Row {
        name: embedded::NAME.into(),
        bytes: embedded::size(),
        note: "built in".into(),
        ..Row::default()
    };
    let installed = |m: &Installed| {
        let short = m.aliases.first().unwrap_or(&m.reference);
        let note = if m.complete { "" } else { "unfinished: pull it again" };
        let (name, reference) = (short.clone(), m.reference.clone());
        Row { name, reference, bytes: m.size, at: Some(m.modified), note: note.into() }
    };
    let other = |m: &Other| {
        let owner = if m.name.starts_with(others::OLLAMA) { "Ollama's" } else { "LM Studio's" };
        let name = m.name.clone();
        Row { name, bytes: m.size, at: Some(m.modified), note: owner.into(), ..Row::default() }
    };
    let packed = |kept: &KeptFile| {
        let known = models.iter().find(|m| packed::is_of(kept, &m.path)).map(installed);
        let note = if kept.is_complete { "its packed weights" } else { "its packed weights, unfinished" };
        let of = known.unwrap_or_else(|| Row { name: kept.model.display().to_string(), ..Row::default() });
        Row { bytes: kept.bytes, at: None, note: note.into(), ..of }
    };
    let (models, others) = (models.iter().map(installed), others.iter().map(other));
    std::iter::once(inside).chain(models).chain(others).chain(kept.iter().map(packed)).collect()
}

/// For other programs: a line for each model, without a head, with tabs between name, bytes, time (RFC 3339; empty if unknown), what is
/// special about it, and the name in full.
fn lines(out: &mut impl Write, rows: &[Row]) -> std::io::Result<()> {
    for row in rows {
        let seconds =
            |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let at = row.at.map_or(String::new(), |at| rfc3339(seconds(at)));
        let reference = if row.reference.is_empty() { &row.name } else { &row.reference };
        let (name, reference) = (printable(&row.name), printable(reference));
        writeln!(out, "{name}\t{}\t{at}\t{}\t{reference}", row.bytes, row.note)?;
    }
    Ok(())
}

/// The models as columns. A name that would make a line too long has a line of its own.
fn table(out: &mut impl Write, rows: &[Row]) -> std::io::Result<()> {
    let cells = |row: &Row| {
        let has_other = !row.reference.is_empty() && row.reference != row.name;
        let name = if has_other { format!("{} = {}", row.name, row.reference) } else { row.name.clone() };
        let what: Vec<String> = row
            .at
            .map(ago)
            .into_iter()
            .chain([row.note.clone()].into_iter().filter(|n| !n.is_empty()))
            .collect();
        [name, size(row.bytes), what.join(", ")]
    };
    let rows: Vec<[String; 3]> = rows.iter().map(cells).collect();
    let widest = |column: usize, head: &str| {
        rows.iter().map(|row| row[column].chars().count()).fold(head.len(), usize::max)
    };
    let last = widest(2, "FETCHED");
    let width = widest(0, "NAME").min(crate::help::columns().saturating_sub(14 + last).max(14));
    writeln!(out, "{:width$}  {:>10}  FETCHED", "NAME", "SIZE")?;
    for [name, size, what] in &rows {
        if name.chars().count() > width {
            writeln!(out, "{name}")?;
        }
        let name = if name.chars().count() > width { "" } else { name };
        writeln!(out, "{name:width$}  {size:>10}  {what}")?;
    }
    Ok(())
}

fn as_json(m: &Installed, kept: &[KeptFile]) -> Value {
    let packed = kept.iter().filter(|kept| packed::is_of(kept, &m.path)).map(|kept| kept.bytes);
    let modified = m.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    json!({
        "reference": m.reference,
        "aliases": m.aliases,
        "path": m.path,
        "size": m.size,
        "modified": modified,
        "complete": m.complete,
        "packed": packed.sum::<u64>(),
    })
}

/// Another program's model.
fn other_as_json(m: &Other) -> Value {
    let modified = m.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    json!({"reference": m.name, "aliases": [], "path": m.path, "size": m.size, "modified": modified, "complete": true})
}

/// `3 days ago`.
fn ago(time: SystemTime) -> String {
    // If the clock was set back, times in the future count as now.
    let seconds = time.elapsed().unwrap_or(Duration::ZERO).as_secs();
    let (n, unit) = match seconds {
        0..60 => return "just now".into(),
        60..3600 => (seconds / 60, "minute"),
        3600..86400 => (seconds / 3600, "hour"),
        _ => (seconds / 86400, "day"),
    };
    format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" })
}
