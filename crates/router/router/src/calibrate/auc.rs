//! How well a number separates right from wrong answers: the area under the ROC curve, with an interval.

use serde::Serialize;

/// The area under the ROC curve: how often a right answer has the higher number of a right and a wrong one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Auc {
    /// 0.5 is chance, 1 perfect; below 0.5 the number misleads.
    pub auc: f64,
    /// The ends of its 95% interval.
    pub low: f64,
    /// See `low`.
    pub high: f64,
}

/// Two-sided 95% of the normal distribution.
const Z95: f64 = 1.959_963_984_540_054;

/// Of samples (number, whether the answer was right): the Mann-Whitney statistic with the variance of DeLong, DeLong and
/// Clarke-Pearson (Biometrics 44, 1988). `None` unless there are right ones and wrong ones. Of one only, the interval is all there is.
pub fn auc(samples: &[(f64, bool)]) -> Option<Auc> {
    let of = |wanted: bool| -> Vec<f64> {
        samples.iter().filter(|(x, right)| x.is_finite() && *right == wanted).map(|(x, _)| *x).collect()
    };
    let (right, wrong) = (of(true), of(false));
    if right.is_empty() || wrong.is_empty() {
        return None;
    }
    let wins = |a: f64, b: f64| {
        if a > b {
            1.0
        } else if a == b {
            0.5
        } else {
            0.0
        }
    };
    // Structural components: how often each one wins.
    let of_right: Vec<f64> =
        right.iter().map(|r| wrong.iter().map(|w| wins(*r, *w)).sum::<f64>() / wrong.len() as f64).collect();
    let of_wrong: Vec<f64> =
        wrong.iter().map(|w| right.iter().map(|r| wins(*r, *w)).sum::<f64>() / right.len() as f64).collect();
    let auc = of_right.iter().sum::<f64>() / of_right.len() as f64;
    let variance = |all: &[f64]| {
        let squares: f64 = all.iter().map(|v| (v - auc).powi(2)).sum();
        squares / (all.len() - 1) as f64 / all.len() as f64
    };
    if right.len() < 2 || wrong.len() < 2 {
        return Some(Auc { auc, low: 0.0, high: 1.0 });
    }
    let half = Z95 * (variance(&of_right) + variance(&of_wrong)).sqrt();
    Some(Auc { auc, low: (auc - half).max(0.0), high: (auc + half).min(1.0) })
}
