//! Draws quality (y) over the share of requests to the strong model (x).

use std::fmt::Write;

use octet_router::calibrate::Row;

use crate::svg::escape;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 44.0;
const RIGHT: f64 = 24.0;
const BOTTOM: f64 = 56.0;

/// The rows from no escalation to all, and the line of random routing.
pub fn draw(title: &str, rows: &[Row]) -> String {
    let qualities = || rows.iter().map(|r| r.quality);
    let (least, most) = (qualities().fold(1.0, f64::min), qualities().fold(0.0, f64::max));
    // The range, rounded to tenths.
    let (low, high) = ((least * 10.0).floor() / 10.0, ((most * 10.0).ceil() / 10.0).max(least + 0.1));
    let x = |share: f64| LEFT + share * (WIDTH - LEFT - RIGHT);
    let y = |quality: f64| HEIGHT - BOTTOM - (quality - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escape(title)
    );
    axes(&mut out, (low, high), &x, &y);
    if let [first, .., last] = rows {
        let (from, to) = (y(first.quality), y(last.quality));
        let _ = writeln!(
            out,
            "<path stroke=\"#a0a0a8\" stroke-dasharray=\"4 4\" d=\"M{:.1} {from:.1}L{:.1} {to:.1}\"/>",
            x(0.0),
            x(1.0)
        );
    }
    let points: Vec<String> =
        rows.iter().map(|r| format!("{:.1},{:.1}", x(r.escalated), y(r.quality))).collect();
    let _ = writeln!(
        out,
        "<polyline fill=\"none\" stroke=\"#264a90\" stroke-width=\"2\" points=\"{}\"/>",
        points.join(" ")
    );
    out + "</svg>\n"
}

/// Grid lines, labels and titles of the axes.
fn axes(out: &mut String, (low, high): (f64, f64), x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) {
    let tenths = |from: f64, to: f64| (from * 10.0).round() as i32..=(to * 10.0).round() as i32;
    for tenth in tenths(low, high) {
        let at = y(f64::from(tenth) / 10.0);
        let _ = writeln!(
            out,
            "<path stroke=\"#e0e0e8\" d=\"M{LEFT} {at:.1}H{}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}%</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            tenth * 10
        );
    }
    for tenth in (0..=10).step_by(2) {
        let at = x(f64::from(tenth) / 10.0);
        let _ = writeln!(
            out,
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}%</text>",
            HEIGHT - BOTTOM + 20.0,
            tenth * 10
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">requests to the strong model</text>",
        x(0.5),
        HEIGHT - 14.0
    );
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"38\" fill=\"#606070\">right answers; grey: as many sent at random</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_points_and_names_no_markup() {
        let row = |escalated, quality| Row { threshold: 0.0, escalated, quality, quality_kept: None };
        let svg = draw("<b>&", &[row(0.0, 0.5), row(0.4, 0.8), row(1.0, 0.7)]);
        assert!(svg.contains("&lt;b&gt;&amp;") && !svg.contains("<b>") && svg.ends_with("</svg>\n"));
        // From 50% to 80%, the lowest and the highest line.
        assert!(svg.contains("points=\"64.0,344.0 284.8,44.0 616.0,144.0\""), "{svg}");
        assert!(!draw("", &[]).contains("NaN"));
    }
}
