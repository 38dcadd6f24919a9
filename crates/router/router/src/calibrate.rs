//! Thresholds for `confidence`: from answers of a fast model, each with how sure it was and whether the strong model agreed, to
//! what each threshold would have done. Called by `octet route calibrate`.

use serde::Serialize;

/// One answer of the fast model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Its measure: mean log-probability, or mean margin, of its first tokens.
    pub measure: f64,
    /// How far the strong model agreed, 0 to 1.
    pub agreement: f64,
}

/// What a threshold would have done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    /// Answers with less than this go to the strong model.
    pub threshold: f64,
    /// Share of them.
    pub escalated: f64,
    /// Mean agreement with the strong model of all that clients would get: what was escalated agrees by definition.
    pub agreement: f64,
    /// Mean agreement of what was kept alone; `None` if nothing was.
    pub agreement_kept: Option<f64>,
}

/// A row for every threshold that makes a difference, ascending: from none escalated to all. At most `rows` (2 or more) of
/// them, evenly spread over the samples. Samples that are no numbers are left out.
pub fn sweep(samples: &[Sample], rows: usize) -> Vec<Row> {
    let mut all: Vec<Sample> =
        samples.iter().copied().filter(|s| s.measure.is_finite() && s.agreement.is_finite()).collect();
    all.sort_by(|a, b| a.measure.total_cmp(&b.measure));
    let n = all.len();
    if n == 0 {
        return Vec::new();
    }
    let total: f64 = all.iter().map(|s| s.agreement).sum();
    let mut below = 0.0;
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
                agreement: (i as f64 + total - below) / n as f64,
                agreement_kept: (kept > 0).then(|| (total - below) / kept as f64),
            });
        }
        below += all.get(i).map_or(0.0, |s| s.agreement);
    }
    let rows = rows.max(2);
    if out.len() <= rows {
        return out;
    }
    let last = out.len() - 1;
    (0..rows).map(|i| out[i * last / (rows - 1)]).collect()
}

/// The row that reaches `agreement` with the least escalated; `None` if none does.
pub fn cheapest(rows: &[Row], agreement: f64) -> Option<&Row> {
    rows.iter().filter(|r| r.agreement >= agreement).min_by(|a, b| a.escalated.total_cmp(&b.escalated))
}

/// The rows as a drawing: agreement (up) against the share escalated (right), in `width` x `height` characters.
pub fn draw(rows: &[Row], width: usize, height: usize) -> String {
    let (width, height) = (width.max(2), height.max(2));
    let least = rows.iter().map(|r| r.agreement).fold(1.0, f64::min);
    let range = (1.0 - least).max(f64::EPSILON);
    let mut grid = vec![vec![' '; width]; height];
    for row in rows {
        let x = (row.escalated * (width - 1) as f64).round() as usize;
        let y = ((row.agreement - least) / range * (height - 1) as f64).round() as usize;
        grid[height - 1 - y.min(height - 1)][x.min(width - 1)] = '*';
    }
    let mut out = String::new();
    for (i, line) in grid.iter().enumerate() {
        let at = 1.0 - range * i as f64 / (height - 1) as f64;
        let line: String = line.iter().collect();
        out.push_str(&format!("{:5.1}% |{}\n", at * 100.0, line.trim_end()));
    }
    let foot = format!(
        "{}+{}\n{}0%{:>w$}\n",
        " ".repeat(7),
        "-".repeat(width),
        " ".repeat(8),
        "100% escalated",
        w = width - 2
    );
    out.push_str(&foot);
    out
}
