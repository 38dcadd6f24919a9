//! Analyses the measurements: which signal and which threshold to use.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use octet_config::{Cascade, Confidence, Prerouter};
use octet_router::calibrate::logistic::{FOLDS, Validated, validated};
use octet_router::calibrate::{Auc, Row, Sample, auc, cheapest, draw, sweep};
use serde_json::{Value, json};

use super::CalibrateArgs;
use super::measure::{By, Measured, Name, names};
use super::svg;
use crate::stderr::note;

/// Below this AUC a signal is not useful.
const AUC_MIN: f64 = 0.6;
/// Maximum number of prompts to train a prerouter with: the time grows with their cube.
const TRAINED_MAX: usize = 1000;

/// The measure of this name.
pub fn signal(name: &str, self_check: bool) -> anyhow::Result<Name> {
    match name {
        "mean_logprob" | "mean-logprob" => Ok(Name::MeanLogprob),
        "self_check" => {
            anyhow::ensure!(self_check, "--signal self_check is measured with --self-check");
            Ok(Name::SelfCheck)
        }
        _ => {
            let parsed = name.parse().map(Name::Signal).map_err(anyhow::Error::msg)?;
            let all = names(self_check);
            let known = || all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            anyhow::ensure!(all.contains(&parsed), "--signal is one of {}", known());
            Ok(parsed)
        }
    }
}

/// A signal's samples and its AUC.
struct Judged {
    index: usize,
    name: Name,
    auc: Option<Auc>,
}

pub fn report(
    args: &CalibrateArgs,
    cascade: &Cascade,
    wanted: Option<Name>,
    measured: &[Measured],
) -> anyhow::Result<()> {
    let all: Vec<Judged> = names(args.self_check)
        .into_iter()
        .enumerate()
        .map(|(index, name)| Judged { index, name, auc: auc(&labelled(measured, index)) })
        .collect();
    let best = match wanted {
        Some(wanted) => all.iter().find(|j| j.name == wanted),
        None => best(&all),
    };
    let best = best.or(all.first()).context("there is no signal")?;
    let some = &measured[..measured.len().min(TRAINED_MAX)];
    let trained = match &args.prerouter {
        Some(path) => prerouter(path, some, measured.len())?,
        None => None,
    };
    let rows = sweep(&samples(measured, best.index), args.rows);
    if let Some(path) = &args.svg {
        let title = format!("{}: {} of {}", cascade.name, best.name, cascade.fast);
        std::fs::write(path, svg::draw(&title, &every(measured, best.index)))
            .with_context(|| path.display().to_string())?;
    }
    if args.json {
        return crate::stdout::print(&format!(
            "{:#}\n",
            as_json(&all, best, measured, &rows, trained.as_ref())
        ));
    }
    let window = cascade.confidence.map_or(Confidence::WINDOW, |c| c.window);
    let mut out = summary(measured);
    aucs(&mut out, &all, best, measured, wanted.is_some());
    table(&mut out, best.name, &rows);
    let _ = write!(out, "\n{}\n", draw(&every(measured, best.index), 60, 12));
    let strong = mean(measured, |m| m.strong);
    let target = args.quality * strong;
    let setting = |value| best.name.setting(value, window);
    found(&mut out, &every(measured, best.index), target, args.quality, measured, &setting);
    if let (Some(path), Some(trained)) = (&args.prerouter, &trained) {
        // On the same prompts, so that thresholds and random routing can be compared.
        let target = args.quality * mean(some, |m| m.strong);
        preroute(&mut out, path, trained, some, target, args.quality);
    }
    warnings(best, measured);
    crate::stdout::print(&out)
}

/// Trains a prerouter with `some` of `all` prompts, and writes it. `None` if that is impossible, which is reported.
fn prerouter(path: &Path, some: &[Measured], all: usize) -> anyhow::Result<Option<Validated>> {
    let trained = match train(some) {
        Ok(trained) => trained,
        Err(e) => {
            note!("{} is not written: {e:#}", path.display());
            return Ok(None);
        }
    };
    if some.len() < all {
        note!(
            "the prerouter is trained with the first {} of {all} prompts, and its figures are theirs",
            some.len()
        );
    }
    let text = Prerouter::write(&trained.model.weights, trained.model.bias);
    std::fs::write(path, text).with_context(|| path.display().to_string())?;
    Ok(Some(trained))
}

fn mean(measured: &[Measured], of: impl Fn(&Measured) -> f64) -> f64 {
    measured.iter().map(of).sum::<f64>() / measured.len().max(1) as f64
}

/// Confidence, and whether the answer was right.
fn labelled(measured: &[Measured], index: usize) -> Vec<(f64, bool)> {
    measured.iter().filter_map(|m| Some((m.sureness[index]?, m.right()))).collect()
}

/// The router keeps answers that cannot be measured, whatever the threshold.
fn samples(measured: &[Measured], index: usize) -> Vec<Sample> {
    let sure = |m: &Measured| m.sureness[index].unwrap_or(f64::MAX);
    measured.iter().map(|m| Sample { measure: sure(m), fast: m.fast, strong: m.strong }).collect()
}

/// A row for each distinct threshold.
fn every(measured: &[Measured], index: usize) -> Vec<Row> {
    sweep(&samples(measured, index), usize::MAX)
}

fn best(all: &[Judged]) -> Option<&Judged> {
    let known = all.iter().filter_map(|j| Some((j, j.auc?.auc)));
    known.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(j, _)| j)
}

/// Cross-validated AUC: the best signal on four fifths of the prompts, measured on the other fifth; mean of five. `None` if a fifth
/// has no right or no wrong answers.
fn outside(measured: &[Measured], signals: usize) -> Option<f64> {
    let mut sum = 0.0;
    for fold in 0..FOLDS {
        let part = |inside: bool| -> Vec<Measured> {
            let of = measured.iter().enumerate().filter(|(i, _)| (i % FOLDS == fold) == inside);
            of.map(|(_, m)| m.clone()).collect()
        };
        let (seen, rest) = (part(false), part(true));
        let of = |all: &[Measured], index| auc(&labelled(all, index)).map(|a| a.auc);
        let best = (0..signals).max_by(|a, b| {
            let [a, b] = [a, b].map(|i| of(&seen, *i).unwrap_or(0.0));
            a.total_cmp(&b)
        })?;
        sum += of(&rest, best)?;
    }
    Some(sum / FOLDS as f64)
}

fn summary(measured: &[Measured]) -> String {
    let by = |by: By| measured.iter().filter(|m| m.by == by).count();
    let labels = [(By::Label, "by the line"), (By::Judge, "by the judge"), (By::Agreement, "by agreement")];
    let labels: Vec<String> = labels
        .into_iter()
        .filter(|(kind, _)| by(*kind) > 0)
        .map(|(kind, name)| format!("{} {name}", by(kind)))
        .collect();
    format!(
        "{} prompts: the fast model is right on {:.1}%, the strong one on {:.1}% (labels: {})\n\n",
        measured.len(),
        mean(measured, |m| m.fast) * 100.0,
        mean(measured, |m| m.strong) * 100.0,
        labels.join(", ")
    )
}

fn aucs(out: &mut String, all: &[Judged], best: &Judged, measured: &[Measured], chosen: bool) {
    out.push_str("signal           AUC    95% interval\n");
    for judged in all {
        let mark = if judged.index == best.index { "  <" } else { "" };
        let _ = match judged.auc {
            Some(a) => writeln!(
                out,
                "{:<14}  {:.3}  {:.3} to {:.3}{mark}",
                judged.name.to_string(),
                a.auc,
                a.low,
                a.high
            ),
            None => writeln!(out, "{:<14}      -{mark}", judged.name.to_string()),
        };
    }
    if let Some(auc) = outside(measured, all.len()).filter(|_| !chosen) {
        let _ = writeln!(out, "\nchosen on four fifths of the prompts, measured on the rest: AUC {auc:.3}");
    }
}

fn table(out: &mut String, name: Name, rows: &[Row]) {
    let _ = write!(out, "\n{name}\nthreshold  escalated  quality  of those kept\n");
    for row in rows {
        let kept = row.quality_kept.map_or("-".into(), |a| format!("{:.1}%", a * 100.0));
        let (escalated, quality) = (row.escalated * 100.0, row.quality * 100.0);
        let threshold = threshold(name, row);
        let _ = writeln!(out, "{threshold:>9}  {escalated:8.1}%  {quality:6.1}%  {kept:>13}");
    }
}

fn threshold(name: Name, row: &Row) -> String {
    if row.threshold.abs() >= f64::MAX { "-".into() } else { format!("{:.4}", name.shown(row.threshold)) }
}

/// The threshold that reaches `target`, and the quality of random routing with as many escalations.
fn found(
    out: &mut String,
    rows: &[Row],
    target: f64,
    share: f64,
    measured: &[Measured],
    setting: &dyn Fn(f64) -> String,
) {
    let (fast, strong) = (mean(measured, |m| m.fast), mean(measured, |m| m.strong));
    let reached = cheapest(rows, target).filter(|r| r.threshold.abs() < f64::MAX);
    let _ = match reached {
        Some(row) => writeln!(
            out,
            "{}\n  sends {:.1}% to the strong model and is right on {:.1}%; as many sent at random: {:.1}%",
            setting(row.threshold),
            row.escalated * 100.0,
            row.quality * 100.0,
            (fast + (strong - fast) * row.escalated) * 100.0
        ),
        None => writeln!(
            out,
            "no threshold reaches {:.1}% of the strong model's quality ({:.1}%)",
            share * 100.0,
            target * 100.0
        ),
    };
}

/// Fits prompt embeddings to whether the fast model was right.
fn train(measured: &[Measured]) -> anyhow::Result<Validated> {
    let x: Option<Vec<Vec<f64>>> = measured.iter().map(|m| m.embedding.clone()).collect();
    let right: Vec<bool> = measured.iter().map(Measured::right).collect();
    validated(&x.context("a prompt has no embedding")?, &right).context(
        "a prerouter cannot be trained: four fifths of the prompts have no right answers of the fast model, or no wrong ones",
    )
}

/// Cross-validated probabilities, with the outcomes.
fn unseen(trained: &Validated, measured: &[Measured]) -> (Option<Auc>, Vec<Row>) {
    let all = || trained.probabilities.iter().zip(measured);
    let right: Vec<(f64, bool)> = all().map(|(p, m)| (*p, m.right())).collect();
    let samples: Vec<Sample> =
        all().map(|(p, m)| Sample { measure: *p, fast: m.fast, strong: m.strong }).collect();
    (auc(&right), sweep(&samples, usize::MAX))
}

fn preroute(
    out: &mut String,
    path: &std::path::Path,
    trained: &Validated,
    measured: &[Measured],
    target: f64,
    share: f64,
) {
    let (auc, rows) = unseen(trained, measured);
    let file = path.display();
    let _ = writeln!(
        out,
        "\nprerouter: {} weights in {file}, penalty {}",
        trained.model.weights.len(),
        trained.penalty
    );
    if let Some(a) = auc {
        let _ = writeln!(
            out,
            "on prompts that it was not trained with: AUC {:.3} ({:.3} to {:.3})",
            a.auc, a.low, a.high
        );
        if a.auc < AUC_MIN {
            note!(
                "warning: the prerouter's AUC is {:.3}: it hardly shows which prompts the fast model can answer",
                a.auc
            );
        }
    }
    let setting = |p: f64| format!("prerouter: {{file: {file}, threshold: {p:.4}}}");
    found(out, &rows, target, share, measured, &setting);
}

fn warnings(best: &Judged, measured: &[Measured]) {
    let agreed = measured.iter().filter(|m| m.by == By::Agreement).count();
    if agreed > 0 {
        note!(
            "warning: {agreed} lines have no label, so words in common with the strong model's answer are used instead: give answer, regex or tests, or a --judge"
        );
    }
    let (fast, strong) = (mean(measured, |m| m.fast), mean(measured, |m| m.strong));
    if strong <= fast {
        note!(
            "warning: the strong model is not better than the fast one on these prompts: a cascade cannot help"
        );
    }
    match best.auc {
        None => note!("warning: the fast model is right on all prompts or on none: no signal can be judged"),
        Some(a) if a.auc < AUC_MIN => note!(
            "warning: the AUC of {} is {:.3}: it hardly distinguishes right answers from wrong ones, and a threshold would do little better than chance",
            best.name,
            a.auc
        ),
        Some(a) if a.low <= 0.5 => note!(
            "warning: with {} prompts chance alone could explain the AUC of {}: take more",
            measured.len(),
            best.name
        ),
        Some(_) => {}
    }
}

fn as_json(
    all: &[Judged],
    best: &Judged,
    measured: &[Measured],
    rows: &[Row],
    trained: Option<&Validated>,
) -> Value {
    let samples: Vec<Value> = measured
        .iter()
        .map(|m| {
            let values =
                all.iter().map(|j| (j.name.to_string(), json!(m.sureness[j.index].map(|s| j.name.shown(s)))));
            let values: serde_json::Map<String, Value> = values.collect();
            json!({"signals": values, "fast": m.fast, "strong": m.strong, "embedding": m.embedding})
        })
        .collect();
    let signals: Vec<Value> =
        all.iter().map(|j| json!({"signal": j.name.to_string(), "auc": j.auc})).collect();
    let rows: Vec<Value> = rows
        .iter()
        .map(|r| {
            let threshold = (r.threshold.abs() < f64::MAX).then(|| best.name.shown(r.threshold));
            json!({"threshold": threshold, "escalated": r.escalated, "quality": r.quality, "quality_kept": r.quality_kept})
        })
        .collect();
    let prerouter = trained.map(|t| {
        json!({
            "auc": unseen(t, measured).0,
            "penalty": t.penalty,
            "probabilities": t.probabilities,
            "weights": t.model.weights,
            "bias": t.model.bias
        })
    });
    json!({
        "best": best.name.to_string(),
        "chosen_outside": outside(measured, all.len()),
        "signals": signals,
        "samples": samples,
        "rows": rows,
        "prerouter": prerouter
    })
}
