//! The figures of `octet compare`, as a table and JSON.

use std::io::Write;

use octet_engine::bench::mean_sd;
use octet_engine::report::Report;
use octet_quantize::base::Head;
use serde_json::{Value, json};

use super::measure::Row;
use crate::units::size;

/// Tokens before a token that are shown with it.
const CONTEXT: usize = 8;

/// A mean and its standard error.
#[derive(Debug, Clone, Copy)]
pub struct Mean {
    pub value: f64,
    pub error: f64,
}

impl Mean {
    fn of(values: &[f64]) -> Self {
        let (value, sd) = mean_sd(values);
        Self { value, error: sd / (values.len() as f64).sqrt() }
    }

    /// Of `exp`, to first order.
    fn exp(self) -> Self {
        let value = self.value.exp();
        Self { value, error: value * self.error }
    }
}

/// A token that differs much.
#[derive(Debug)]
pub struct Worst {
    pub at: usize,
    pub before: String,
    /// The text's own, the base's and the model's.
    pub tokens: [String; 3],
    pub kl: f64,
}

/// A model compared with the base.
#[derive(Debug)]
pub struct Compared {
    pub name: String,
    pub bytes: u64,
    pub bytes_per_token: u64,
    pub bits: f64,
    /// Tokens a second that this machine generates, if that was measured.
    pub tokens_per_second: Option<f64>,
    pub kl: Mean,
    /// Median, 99% and maximum.
    pub quantiles: [f64; 3],
    pub same_top: Mean,
    pub perplexity: Mean,
    pub base_perplexity: Mean,
    /// The model's perplexity divided by the base's.
    pub ratio: Mean,
    pub worst: Vec<Worst>,
}

impl Compared {
    pub fn new(
        name: &str,
        report: &Report,
        (rows, tokens_per_second): (&[Row], Option<f64>),
        head: &Head,
        worst: usize,
        text: &dyn Fn(&[u32]) -> String,
    ) -> Self {
        let all = |f: &dyn Fn(&Row) -> f64| rows.iter().map(f).collect::<Vec<f64>>();
        let mut sorted = rows.to_vec();
        sorted.sort_by(|a, b| b.kl.total_cmp(&a.kl));
        let quantile = |q: f64| sorted[((sorted.len() - 1) as f64 * (1.0 - q)).round() as usize].kl;
        let worst = sorted.iter().take(worst).map(|r| Worst {
            at: r.at + 1,
            before: text(&head.tokens[(r.at + 1).saturating_sub(CONTEXT)..=r.at]),
            tokens: [head.tokens[r.at + 1], r.top[0], r.top[1]].map(|t| text(&[t])),
            kl: r.kl,
        });
        Self {
            name: name.into(),
            bytes: report.bytes,
            bytes_per_token: report.bytes_per_token,
            bits: 8.0 * report.bytes as f64 / report.parameters.max(1) as f64,
            tokens_per_second,
            kl: Mean::of(&all(&|r| r.kl)),
            quantiles: [quantile(0.5), quantile(0.99), quantile(1.0)],
            same_top: Mean::of(&all(&|r| f64::from(u8::from(r.top[0] == r.top[1])))),
            perplexity: Mean::of(&all(&|r| r.nll[1])).exp(),
            base_perplexity: Mean::of(&all(&|r| r.nll[0])).exp(),
            ratio: Mean::of(&all(&|r| r.nll[1] - r.nll[0])).exp(),
            worst: worst.collect(),
        }
    }
}

/// The longest name that stands in a table's first column: with it, a line has 80 columns.
const NAME_MAX: usize = 14;

/// A name, filled up to a width. A longer one has a line of its own.
fn first_column(name: &str, width: usize) -> String {
    match name.chars().count() > width {
        true => format!("{name}\n{:width$}", ""),
        false => format!("{name:width$}"),
    }
}

/// One line a model for its size and its answers, one for the divergence, then the tokens that differ most.
pub fn table(out: &mut dyn Write, base: &str, head: &Head, all: &[Compared]) -> std::io::Result<()> {
    let predictions = head.tokens.len() / head.window * head.rows();
    writeln!(out, "base {base}: {predictions} predictions in windows of {}", head.window)?;
    let Some(first) = all.first() else { return Ok(()) };
    writeln!(
        out,
        "perplexity of the base {:.4} ± {:.4}\n",
        first.base_perplexity.value, first.base_perplexity.error
    )?;
    let width = all.iter().map(|c| c.name.chars().count()).max().unwrap_or(0).clamp(5, NAME_MAX);
    writeln!(
        out,
        "{:width$}  {:>11}  {:>5}  {:>8}  {:>15}  {:>17}",
        "model", "size", "bits", "tokens/s", "same top token", "perplexity ratio"
    )?;
    for c in all {
        write!(out, "{}", first_column(&c.name, width))?;
        writeln!(
            out,
            "  {:>11}  {:>5.2}  {:>8}  {:>6.2} ± {:>5.2}%  {:>8.5} ± {:.4}",
            size(c.bytes),
            c.bits,
            c.tokens_per_second.map_or("-".into(), |rate| format!("{rate:.1}")),
            100.0 * c.same_top.value,
            100.0 * c.same_top.error,
            c.ratio.value,
            c.ratio.error
        )?;
    }
    writeln!(
        out,
        "\n{:width$}  {:>21}  {:>8}  {:>8}  {:>8}",
        "model", "KL divergence", "median", "99%", "maximum"
    )?;
    for c in all {
        let [median, most, maximum] = c.quantiles;
        write!(out, "{}", first_column(&c.name, width))?;
        writeln!(
            out,
            "  {:>9.6} ± {:>9.6}  {median:>8.5}  {most:>8.4}  {maximum:>8.3}",
            c.kl.value, c.kl.error
        )?;
    }
    for c in all.iter().filter(|c| !c.worst.is_empty()) {
        writeln!(out, "\n{}: the tokens that differ most", c.name)?;
        for w in &c.worst {
            let [text, base, model] = &w.tokens;
            writeln!(out, "  {:>8.4}  token {}, after {:?}", w.kl, w.at, w.before)?;
            writeln!(out, "            text {text:?}, base {base:?}, model {model:?}")?;
        }
    }
    Ok(())
}

pub fn json(base: &str, head: &Head, all: &[Compared]) -> Value {
    let mean = |m: &Mean| json!({"value": m.value, "error": m.error});
    json!({
        "base": base,
        "window": head.window,
        "predictions": head.tokens.len() / head.window * head.rows(),
        "models": all.iter().map(|c| json!({
            "name": c.name,
            "bytes": c.bytes,
            "bytes_per_token": c.bytes_per_token,
            "bits_per_weight": c.bits,
            "tokens_per_second": c.tokens_per_second,
            "kl_divergence": {
                "mean": c.kl.value, "error": c.kl.error,
                "median": c.quantiles[0], "p99": c.quantiles[1], "maximum": c.quantiles[2],
            },
            "same_top": mean(&c.same_top),
            "perplexity": mean(&c.perplexity),
            "base_perplexity": mean(&c.base_perplexity),
            "perplexity_ratio": mean(&c.ratio),
            "worst": c.worst.iter().map(|w| json!({
                "token": w.at, "after": w.before, "kl": w.kl,
                "text": w.tokens[0], "base": w.tokens[1], "model": w.tokens[2],
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}
