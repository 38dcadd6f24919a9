//! Rates with intervals.

/// The 97.5% quantile of the normal distribution: intervals hold 95%.
const Z: f64 = 1.959_963_984_540_054;

/// A share of successes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub passed: usize,
    pub of: usize,
}

impl Rate {
    /// `None` if nothing was judged.
    pub fn value(self) -> Option<f64> {
        (self.of > 0).then(|| self.passed as f64 / self.of as f64)
    }

    /// The interval of Wilson (1927), which holds the true rate in 95% of cases, also of few repetitions and rates near 0 and 1.
    pub fn interval(self) -> Option<[f64; 2]> {
        let (p, n) = (self.value()?, self.of as f64);
        let z2 = Z * Z / n;
        let centre = (p + z2 / 2.0) / (1.0 + z2);
        let half = Z * (p * (1.0 - p) / n + z2 / (4.0 * n)).sqrt() / (1.0 + z2);
        Some([(centre - half).max(0.0), (centre + half).min(1.0)])
    }

    /// `other - self`, and its interval: Newcombe's tenth method (1998), from the intervals of both.
    pub fn difference(self, other: Self) -> Option<(f64, [f64; 2])> {
        let (a, b) = (self.value()?, other.value()?);
        let ([a_low, a_high], [b_low, b_high]) = (self.interval()?, other.interval()?);
        let low = b - a - (b - b_low).hypot(a_high - a);
        let high = b - a + (b_high - b).hypot(a - a_low);
        Some((b - a, [low, high]))
    }
}

/// The median; of an even number the mean of the middle two.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| (values[(n - 1) / 2] + values[n / 2]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 5e-4
    }

    /// Figures of statsmodels: `proportion_confint(k, n, method="wilson")`, and of Newcombe's paper, table II.
    #[test]
    fn intervals_are_those_of_the_papers() {
        for (passed, of, low, high) in [
            (0, 5, 0.0, 0.4345),
            (5, 5, 0.5655, 1.0),
            (3, 5, 0.2307, 0.8824),
            (81, 263, 0.2553, 0.3662),
            (1, 29, 0.0061, 0.1718),
        ] {
            let [a, b] = Rate { passed, of }.interval().unwrap();
            assert!(near(a, low) && near(b, high), "{passed} of {of}: {a} {b}");
        }
        for (a, b, low, high) in [((56, 70), (48, 80), 0.0524, 0.3339), ((9, 10), (3, 10), 0.1705, 0.8090)] {
            let rate = |(passed, of)| Rate { passed, of };
            let (_, [l, h]) = rate(b).difference(rate(a)).unwrap();
            assert!(near(l, low) && near(h, high), "{l} {h}");
        }
        assert_eq!(Rate { passed: 0, of: 0 }.interval(), None);
        assert_eq!(
            (median(vec![3.0, 1.0]), median(vec![]), median(vec![2.0, 9.0, 1.0])),
            (Some(2.0), None, Some(2.0))
        );
    }
}
