//! Mean, median and 99th percentile.

/// A summary of values, in their unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    pub mean: f64,
    pub median: f64,
    pub p99: f64,
}

impl Summary {
    /// `None` if there are no values.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.sort_by(f64::total_cmp);
        Some(Self { mean, median: percentile(&values, 50.0), p99: percentile(&values, 99.0) })
    }

    /// The three with their field names.
    pub fn named(self) -> [(&'static str, f64); 3] {
        [("mean", self.mean), ("median", self.median), ("p99", self.p99)]
    }
}

/// Interpolates linearly between the two nearest values, like numpy's and so vLLM's default. `sorted` must not be empty.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let at = percent / 100.0 * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// numpy.percentile's answers.
    #[test]
    fn percentiles_are_numpys() {
        let of = |values: &[f64]| Summary::of(values.to_vec()).unwrap();
        let p99 = |values: &[f64], expected: f64| {
            let got = of(values).p99;
            assert!((got - expected).abs() < 1e-12, "{values:?}: {got}");
        };
        assert_eq!(of(&[7.0]), Summary { mean: 7.0, median: 7.0, p99: 7.0 });
        p99(&[4.0, 1.0], 3.97);
        p99(&[30.0, 10.0, 20.0], 29.8);
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let s = of(&hundred);
        assert_eq!((s.mean, s.median), (50.5, 50.5));
        p99(&hundred, 99.01);
        assert_eq!(Summary::of(vec![]), None);
    }
}
