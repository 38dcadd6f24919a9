//! Heat maps as SVG, one per domain: a row per layer, a column per expert.

use std::fmt::Write;

use super::domains::{Domain, Domains, shares};
use crate::svg::escape;

/// Width of a map.
const WIDTH: usize = 1024;
/// Height of a row.
const ROW: usize = 10;
const MARGIN: usize = 40;
/// Space above a map for its title.
const TITLE: usize = 28;
/// Colours from never to often: an expert's share relative to uniform usage.
const COLOURS: [&str; 8] =
    ["#f4f4f8", "#dcdff0", "#b8c4e6", "#8fa8da", "#6488c8", "#3f68b0", "#264a90", "#122c66"];
/// Ratio to uniform usage from which the darkest colour is used.
const MOST: f64 = 4.0;

/// The whole SVG.
pub fn draw(model: &str, d: &Domains) -> String {
    let layers = d.domains.first().map_or(0, |x| x.layers.len());
    let each = TITLE + layers * ROW;
    let height = MARGIN + d.domains.len() * (each + TITLE) + MARGIN;
    let width = WIDTH + 2 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{MARGIN}\" y=\"26\" font-size=\"16\">{}: experts by layer and domain</text>\n",
        escape(model)
    );
    for (i, domain) in d.domains.iter().enumerate() {
        map(&mut out, domain, MARGIN + i * (each + TITLE), d.experts);
    }
    legend(&mut out, height - MARGIN / 2);
    out + "</svg>\n"
}

fn map(out: &mut String, domain: &Domain, top: usize, experts: usize) {
    let title = format!("{}: {} tokens", domain.name, domain.tokens);
    let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{}\">{}</text>", top + 20, escape(&title));
    let width = WIDTH as f64 / experts.max(1) as f64;
    // One path per colour keeps a picture of ten thousand cells small.
    let mut paths = vec![String::new(); COLOURS.len()];
    for (layer, counts) in domain.layers.iter().enumerate() {
        let y = top + TITLE + layer * ROW;
        for (expert, share) in shares(counts).into_iter().flatten().enumerate() {
            let level = level(share * experts as f64);
            let x = MARGIN as f64 + expert as f64 * width;
            let _ = write!(paths[level], "M{x:.1} {y}h{width:.2}v{ROW}h-{width:.2}z");
        }
        if layer % 4 == 0 {
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{}\" font-size=\"9\" text-anchor=\"end\">{layer}</text>",
                MARGIN - 4,
                y + 9
            );
        }
    }
    for (colour, path) in COLOURS.iter().zip(paths).filter(|(_, p)| !p.is_empty()) {
        let _ = writeln!(out, "<path fill=\"{colour}\" d=\"{path}\"/>");
    }
}

/// Index of the colour for a share of `times` the uniform one.
fn level(times: f64) -> usize {
    let last = COLOURS.len() - 1;
    ((times / MOST * last as f64).round() as usize).min(last)
}

fn legend(out: &mut String, y: usize) {
    for (i, colour) in COLOURS.iter().enumerate() {
        let x = MARGIN + i * 60;
        let times = MOST * i as f64 / (COLOURS.len() - 1) as f64;
        let more = if i + 1 == COLOURS.len() { "+" } else { "" };
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{}\" width=\"14\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"{y}\" font-size=\"11\">{times:.1}{more}</text>",
            y - 10,
            x + 18
        );
    }
    let x = MARGIN + COLOURS.len() * 60;
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" font-size=\"11\">times the even share</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_write_markup() {
        let domain = Domain { name: "<script>&".into(), tokens: 3, layers: vec![vec![3, 0], vec![1, 2]] };
        let svg = draw("a\"b", &Domains { experts: 2, per_token: 1, domains: vec![domain] });
        assert!(svg.contains("&lt;script&gt;&amp;: 3 tokens") && !svg.contains("<script>"), "{svg}");
        assert!(svg.contains("a&quot;b") && svg.ends_with("</svg>\n"));
        // Four cells; the even share is half of the choices.
        assert_eq!(svg.matches('M').count() - svg.matches("MARGIN").count(), 4, "{svg}");
    }

    #[test]
    fn colours_follow_the_share() {
        assert_eq!([0.0, 1.0, 4.0, 9.0].map(level), [0, 2, 7, 7]);
    }
}
