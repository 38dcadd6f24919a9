//! Logistic regression with an L2 penalty, for a few hundred samples of many features.

/// Weights: `1 / (1 + exp(-(weights . x + bias)))` is the probability of a right answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Logistic {
    /// One for each feature.
    pub weights: Vec<f64>,
    /// What is added.
    pub bias: f64,
}

const STEPS_MAX: usize = 100;
/// Smaller changes end the iteration.
const CLOSE: f64 = 1e-11;

impl Logistic {
    /// The weights that minimise the sum of the samples' log-losses and half of `penalty` times the squared weights; the bias is not
    /// penalised. (scikit-learn's `LogisticRegression(C=1/penalty)`.) `None` unless there are right ones and wrong ones, all of one
    /// length and finite.
    ///
    /// Newton's method, each step a weighted ridge regression. There are fewer samples than features, so it is solved in the samples:
    /// the weights are a sum of them, `weights = X^T a`.
    pub fn fit(x: &[Vec<f64>], right: &[bool], penalty: f64) -> Option<Self> {
        let n = x.len();
        let features = x.first()?.len();
        let sane = x.iter().all(|row| row.len() == features && row.iter().all(|v| v.is_finite()));
        if !sane || n != right.len() || !right.contains(&true) || !right.contains(&false) || penalty <= 0.0 {
            return None;
        }
        let kernel: Vec<Vec<f64>> = x.iter().map(|a| x.iter().map(|b| dot(a, b)).collect()).collect();
        let (mut a, mut bias) = (vec![0.0; n], 0.0);
        let mut f = vec![0.0; n];
        let mut loss = objective(&f, right, &a, &kernel, penalty);
        for _ in 0..STEPS_MAX {
            let p: Vec<f64> = f.iter().map(|f| 1.0 / (1.0 + (-f).exp())).collect();
            let s: Vec<f64> = p.iter().map(|p| (p * (1.0 - p)).max(1e-12)).collect();
            let z: Vec<f64> = (0..n).map(|i| f[i] + (f64::from(u8::from(right[i])) - p[i]) / s[i]).collect();
            let mut m = kernel.clone();
            (0..n).for_each(|i| m[i][i] += penalty / s[i]);
            let lower = cholesky(m)?;
            let (u, v) = (solve(&lower, &z), solve(&lower, &vec![1.0; n]));
            let to_bias = u.iter().sum::<f64>() / v.iter().sum::<f64>();
            let to_a: Vec<f64> = u.iter().zip(&v).map(|(u, v)| u - to_bias * v).collect();
            // All of the step, or as much of it as improves.
            let mut share = 1.0;
            let (next_a, next_bias, next_f, next_loss) = loop {
                let mix = |from: f64, to: f64| from + share * (to - from);
                let next_a: Vec<f64> = a.iter().zip(&to_a).map(|(a, to)| mix(*a, *to)).collect();
                let next_bias = mix(bias, to_bias);
                let next_f: Vec<f64> = kernel.iter().map(|row| dot(row, &next_a) + next_bias).collect();
                let next_loss = objective(&next_f, right, &next_a, &kernel, penalty);
                if next_loss <= loss || share < 1e-6 {
                    break (next_a, next_bias, next_f, next_loss);
                }
                share /= 2.0;
            };
            let moved = f.iter().zip(&next_f).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            if next_loss > loss {
                break;
            }
            (a, bias, f, loss) = (next_a, next_bias, next_f, next_loss);
            if moved < CLOSE {
                break;
            }
        }
        let mut weights = vec![0.0; features];
        for (row, a) in x.iter().zip(&a) {
            weights.iter_mut().zip(row).for_each(|(w, x)| *w += a * x);
        }
        Some(Self { weights, bias })
    }

    /// The probability of a right answer.
    pub fn probability(&self, x: &[f64]) -> f64 {
        1.0 / (1.0 + (-(dot(&self.weights, x) + self.bias)).exp())
    }

    /// The same for features that are not scaled yet: `(x - mean) * scale` was what it was fitted to.
    pub fn unscaled(&self, scaling: &Scaling) -> Self {
        let weights: Vec<f64> = self.weights.iter().zip(&scaling.scale).map(|(w, s)| w * s).collect();
        Self { bias: self.bias - dot(&weights, &scaling.mean), weights }
    }
}

/// Features made comparable: of mean 0 and variance 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaling {
    mean: Vec<f64>,
    scale: Vec<f64>,
}

impl Scaling {
    /// That of these samples. A feature that never changes becomes 0.
    pub fn of(x: &[Vec<f64>]) -> Self {
        let (n, features) = (x.len().max(1) as f64, x.first().map_or(0, Vec::len));
        let mean: Vec<f64> = (0..features).map(|j| x.iter().map(|r| r[j]).sum::<f64>() / n).collect();
        let scale = (0..features).map(|j| {
            let variance = x.iter().map(|r| (r[j] - mean[j]).powi(2)).sum::<f64>() / n;
            if variance > 1e-24 { variance.sqrt().recip() } else { 0.0 }
        });
        Self { scale: scale.collect(), mean }
    }

    /// A sample, scaled.
    pub fn apply(&self, x: &[f64]) -> Vec<f64> {
        x.iter().zip(&self.mean).zip(&self.scale).map(|((x, m), s)| (x - m) * s).collect()
    }
}

/// What cross-validation found.
#[derive(Debug, Clone)]
pub struct Validated {
    /// Fitted to all samples, for features as they are.
    pub model: Logistic,
    /// The penalty with the best probabilities.
    pub penalty: f64,
    /// For each sample, the probability by a fit that did not see it.
    pub probabilities: Vec<f64>,
}

/// Folds of the cross-validation.
pub const FOLDS: usize = 5;
/// Penalties that are tried.
const PENALTIES: [f64; 5] = [1.0, 10.0, 100.0, 1000.0, 10_000.0];

/// Chooses the penalty by cross-validation (sample `i` is in fold `i mod 5`), and fits. `None` where some fold has nothing to learn.
pub fn validated(x: &[Vec<f64>], right: &[bool]) -> Option<Validated> {
    let outside = |penalty: f64| -> Option<Vec<f64>> {
        let mut out = vec![0.0; x.len()];
        for fold in 0..FOLDS {
            let seen = |i: &usize| i % FOLDS != fold;
            let rows: Vec<Vec<f64>> = (0..x.len()).filter(seen).map(|i| x[i].clone()).collect();
            let labels: Vec<bool> = (0..x.len()).filter(seen).map(|i| right[i]).collect();
            let model = scaled(&rows, &labels, penalty)?;
            (0..x.len()).filter(|i| !seen(i)).for_each(|i| out[i] = model.probability(&x[i]));
        }
        Some(out)
    };
    let mut best: Option<(f64, f64, Vec<f64>)> = None;
    for penalty in PENALTIES {
        let probabilities = outside(penalty)?;
        let loss: f64 = probabilities
            .iter()
            .zip(right)
            .map(|(p, right)| -(if *right { *p } else { 1.0 - p }).max(1e-15).ln())
            .sum();
        if best.as_ref().is_none_or(|(least, ..)| loss < *least) {
            best = Some((loss, penalty, probabilities));
        }
    }
    let (_, penalty, probabilities) = best?;
    Some(Validated { model: scaled(x, right, penalty)?, penalty, probabilities })
}

/// A fit to scaled features, for features as they are.
fn scaled(x: &[Vec<f64>], right: &[bool], penalty: f64) -> Option<Logistic> {
    let scaling = Scaling::of(x);
    let rows: Vec<Vec<f64>> = x.iter().map(|row| scaling.apply(row)).collect();
    Some(Logistic::fit(&rows, right, penalty)?.unscaled(&scaling))
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn objective(f: &[f64], right: &[bool], a: &[f64], kernel: &[Vec<f64>], penalty: f64) -> f64 {
    let loss = f.iter().zip(right).map(|(f, right)| {
        // log(1 + exp(-margin)), without overflow.
        let margin = if *right { *f } else { -f };
        (-margin).max(0.0) + (-margin.abs()).exp().ln_1p()
    });
    let squares: f64 = kernel.iter().zip(a).map(|(row, ai)| ai * dot(row, a)).sum();
    loss.sum::<f64>() + penalty / 2.0 * squares
}

/// The lower triangle L of `m = L L^T`; `None` unless `m` is positive definite.
fn cholesky(mut m: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    for i in 0..m.len() {
        let (above, rest) = m.split_at_mut(i);
        let row = &mut rest[0];
        for (j, other) in above.iter().enumerate() {
            row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
        }
        let left = row[i] - dot(&row[..i], &row[..i]);
        if left <= 0.0 || !left.is_finite() {
            return None;
        }
        row[i] = left.sqrt();
    }
    Some(m)
}

/// Solves `L L^T x = y`.
fn solve(lower: &[Vec<f64>], y: &[f64]) -> Vec<f64> {
    let n = y.len();
    let mut x = y.to_vec();
    for i in 0..n {
        x[i] = (x[i] - dot(&lower[i][..i], &x[..i])) / lower[i][i];
    }
    for i in (0..n).rev() {
        let sum: f64 = (i + 1..n).map(|j| lower[j][i] * x[j]).sum();
        x[i] = (x[i] - sum) / lower[i][i];
    }
    x
}
