//! Divergence against bytes read a token, and against tokens a second, as SVG.

use std::fmt::Write;

use super::report::Compared;
use crate::svg::escape;
use crate::units::size;

const WIDTH: f64 = 720.0;
/// Height of a panel.
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 50.0;
/// Divergences below this are drawn here: the axis is logarithmic.
const LEAST: f64 = 1e-7;

/// What a panel has along its lower edge.
struct Axis<'a> {
    title: &'a str,
    label: &'a str,
    of: &'a dyn Fn(&Compared) -> Option<f64>,
    tick: &'a dyn Fn(f64) -> String,
}

/// The picture: in each panel a point a model, with the standard error. Speeds have a panel if they were measured.
pub fn draw(base: &str, all: &[Compared]) -> String {
    let bytes = Axis {
        title: "bytes read a token",
        label: "bytes of weights read a token",
        of: &|c| Some(c.bytes_per_token as f64),
        tick: &|bytes| size(bytes as u64),
    };
    let speed = Axis {
        title: "tokens a second",
        label: "tokens a second that this machine generates",
        of: &|c| c.tokens_per_second,
        tick: &|rate| format!("{rate:.1}"),
    };
    let is_measured = all.iter().any(|c| c.tokens_per_second.is_some());
    let panels: Vec<Axis> = std::iter::once(bytes).chain(Some(speed).filter(|_| is_measured)).collect();
    let height = HEIGHT * panels.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (i, axis) in panels.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate(0 {})\">", HEIGHT * i as f64);
        panel(&mut out, base, all, axis);
        out += "</g>\n";
    }
    out + "</svg>\n"
}

fn panel(out: &mut String, base: &str, all: &[Compared], axis: &Axis) {
    let most = 1.15 * all.iter().filter_map(|c| (axis.of)(c)).fold(1e-9, f64::max);
    let log = |v: f64| v.max(LEAST).log10();
    let low = all.iter().map(|c| log(c.kl.value)).fold(f64::INFINITY, f64::min).min(0.0).floor();
    let high = all.iter().map(|c| log(c.kl.value + c.kl.error)).fold(low + 1.0, f64::max).ceil();
    let x = |value: f64| LEFT + value / most * (WIDTH - LEFT - 30.0);
    let y = |kl: f64| TOP + (high - log(kl)) / (high - low) * (HEIGHT - TOP - 60.0);
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"26\" font-size=\"15\">KL divergence from {}, by {}</text>",
        escape(base),
        axis.title
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
        let value = most * f64::from(part) / 4.0;
        let (at, text) = (x(value), (axis.tick)(value));
        let _ =
            writeln!(out, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>", HEIGHT - 36.0);
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        WIDTH / 2.0,
        HEIGHT - 12.0,
        axis.label
    );
    for (c, value) in all.iter().filter_map(|c| Some((c, (axis.of)(c)?))) {
        let (cx, cy) = (x(value), y(c.kl.value));
        let (top, bottom) = (y(c.kl.value + c.kl.error), y((c.kl.value - c.kl.error).max(LEAST)));
        let _ = writeln!(out, "<path d=\"M{cx:.1} {top:.1}V{bottom:.1}\" stroke=\"#3f68b0\"/>");
        let _ = writeln!(out, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\" fill=\"#264a90\"/>");
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", cx + 7.0, cy - 5.0, escape(&c.name));
    }
}
