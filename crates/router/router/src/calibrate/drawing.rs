//! What thresholds cost and what they bring, in a terminal's characters.

use super::Row;

/// Quality (up) against the share escalated (right), in `width` x `height` characters: `*` for the rows, `.` for requests sent to the
/// strong model at random.
pub fn draw(rows: &[Row], width: usize, height: usize) -> String {
    let (width, height) = (width.max(2), height.max(2));
    let qualities = || rows.iter().map(|r| r.quality);
    let (least, most) = (qualities().fold(1.0, f64::min), qualities().fold(0.0, f64::max));
    let range = (most - least).max(f64::EPSILON);
    let mut grid = vec![vec![' '; width]; height];
    let mut set = |escalated: f64, quality: f64, mark: char| {
        let x = (escalated * (width - 1) as f64).round() as usize;
        let y = ((quality - least) / range * (height - 1) as f64).round() as usize;
        grid[height - 1 - y.min(height - 1)][x.min(width - 1)] = mark;
    };
    if let [first, .., last] = rows {
        for x in (0..width).step_by(2) {
            let share = x as f64 / (width - 1) as f64;
            set(share, first.quality + (last.quality - first.quality) * share, '.');
        }
    }
    rows.iter().for_each(|row| set(row.escalated, row.quality, '*'));
    let mut out = String::new();
    for (i, line) in grid.iter().enumerate() {
        let at = most - range * i as f64 / (height - 1) as f64;
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
