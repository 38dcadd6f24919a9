//! Thresholds for `confidence`: from answers of a fast model, each with how sure it was and how good it and the strong model's were, to
//! what each threshold would have done.

mod auc;
mod drawing;
pub mod logistic;

pub use auc::{Auc, auc};
pub use drawing::draw;

use serde::Serialize;

/// One answer of the fast model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// How sure it was; the higher, the surer.
    pub measure: f64,
    /// How good it is, 0 to 1: 1 is right.
    pub fast: f64,
    /// How good the strong model's answer is.
    pub strong: f64,
}

/// What a threshold would have done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    /// Answers with less than this go to the strong model.
    pub threshold: f64,
    /// Share of them.
    pub escalated: f64,
    /// Mean quality of all answers that clients would get: the strong model's if a request is escalated, else the fast one's.
    pub quality: f64,
    /// Mean quality of the fast model's answers that were kept; `None` if none was.
    pub quality_kept: Option<f64>,
}

/// A row for every threshold that makes a difference, ascending: from none escalated to all. At most `rows` (2 or more) of
/// them, evenly spread over the samples. Samples that are no numbers are left out.
pub fn sweep(samples: &[Sample], rows: usize) -> Vec<Row> {
    let mut all: Vec<Sample> = samples
        .iter()
        .copied()
        .filter(|s| s.measure.is_finite() && (s.fast + s.strong).is_finite())
        .collect();
    all.sort_by(|a, b| a.measure.total_cmp(&b.measure));
    let n = all.len();
    if n == 0 {
        return Vec::new();
    }
    let total: f64 = all.iter().map(|s| s.fast).sum();
    // Of those below the threshold.
    let (mut fast, mut strong) = (0.0, 0.0);
    let mut out = Vec::new();
    for i in 0..=n {
        // Those before `i` are escalated; equal ones go together.
        if i == 0 || i == n || all[i].measure > all[i - 1].measure {
            let threshold = match all.get(i) {
                Some(next) => next.measure,
                None => all[n - 1].measure + all[n - 1].measure.abs().max(1.0) * f64::EPSILON * 4.0,
            };
            let kept = n - i;
            out.push(Row {
                threshold,
                escalated: i as f64 / n as f64,
                quality: (strong + total - fast) / n as f64,
                quality_kept: (kept > 0).then(|| (total - fast) / kept as f64),
            });
        }
        fast += all.get(i).map_or(0.0, |s| s.fast);
        strong += all.get(i).map_or(0.0, |s| s.strong);
    }
    let rows = rows.max(2);
    if out.len() <= rows {
        return out;
    }
    let last = out.len() - 1;
    (0..rows).map(|i| out[i * last / (rows - 1)]).collect()
}

/// The row that reaches `quality` with the least escalated; `None` if none does.
pub fn cheapest(rows: &[Row], quality: f64) -> Option<&Row> {
    let enough = rows.iter().filter(|r| r.quality >= quality - 1e-12);
    enough.min_by(|a, b| a.escalated.total_cmp(&b.escalated))
}
