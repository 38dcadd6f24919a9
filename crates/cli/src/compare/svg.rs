//! Divergence against bytes read a token, as SVG. Used by `octet compare --svg`.

use std::fmt::Write;

use super::report::Compared;
use crate::svg::escape;
use crate::units::size;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 50.0;
/// Divergences below this are drawn here: the axis is logarithmic.
const LEAST: f64 = 1e-7;

/// The picture: a point a model, with the standard error.
pub fn draw(base: &str, all: &[Compared]) -> String {
    let most_bytes = all.iter().map(|c| c.bytes_per_token).max().unwrap_or(1).max(1) as f64 * 1.15;
    let log = |v: f64| v.max(LEAST).log10();
    let low = all.iter().map(|c| log(c.kl.value)).fold(f64::INFINITY, f64::min).min(0.0).floor();
    let high = all.iter().map(|c| log(c.kl.value + c.kl.error)).fold(low + 1.0, f64::max).ceil();
    let x = |bytes: f64| LEFT + bytes / most_bytes * (WIDTH - LEFT - 30.0);
    let y = |kl: f64| TOP + (high - log(kl)) / (high - low) * (HEIGHT - TOP - 60.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"15\">KL divergence from {}, by bytes read a token</text>\n",
        escape(base)
    );
    for decade in low as i32..=high as i32 {
        let at = y(10f64.powi(decade));
        let _ = writeln!(out, "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#dddddd\"/>", WIDTH - 30.0);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">1e{decade}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    for part in 0..=4 {
        let bytes = most_bytes * f64::from(part) / 4.0;
        let (at, text) = (x(bytes), size(bytes as u64));
        let _ =
            writeln!(out, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>", HEIGHT - 36.0);
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">bytes of weights read a token</text>",
        WIDTH / 2.0,
        HEIGHT - 12.0
    );
    for c in all {
        let (cx, cy) = (x(c.bytes_per_token as f64), y(c.kl.value));
        let (top, bottom) = (y(c.kl.value + c.kl.error), y((c.kl.value - c.kl.error).max(LEAST)));
        let _ = writeln!(out, "<path d=\"M{cx:.1} {top:.1}V{bottom:.1}\" stroke=\"#3f68b0\"/>");
        let _ = writeln!(out, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\" fill=\"#264a90\"/>");
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", cx + 7.0, cy - 5.0, escape(&c.name));
    }
    out + "</svg>\n"
}
