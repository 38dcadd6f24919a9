//! `/experts`: a heat map of layers and experts as terminal text.

use std::fmt::Write as _;

use octet_engine::experts::{ExpertUsage, LayerUsage};

use crate::wrap::Wrap;

/// How cells are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Palette {
    /// Two layers per line, in the 256 colours of nearly all terminals.
    Colours,
    /// Unicode shade characters.
    Blocks,
    /// ASCII.
    Ascii,
}

/// From none to most: dark grey, red, yellow, white.
const COLOURS: [u8; 12] = [236, 52, 88, 124, 160, 166, 172, 178, 184, 220, 229, 231];
const BLOCKS: [char; 5] = [' ', '░', '▒', '▓', '█'];
const ASCII: [char; 9] = [' ', '.', ':', '-', '=', '+', '*', '#', '@'];

/// Maximum columns per expert.
const CELL_MAX: usize = 3;
/// Number of experts listed by name.
const NAMED: usize = 5;

/// The map, one layer per row, in lines of at most `columns` columns. Each layer's most used expert is brightest.
pub fn draw(usage: &ExpertUsage, palette: Palette, columns: usize) -> String {
    let label = usage.layers.iter().map(|l| l.layer.to_string().len()).max().unwrap_or(1);
    let room = columns.saturating_sub(label + 2).max(1);
    let experts = usage.experts().max(1);
    let group = experts.div_ceil(room);
    let cell = (room / experts.div_ceil(group)).clamp(1, CELL_MAX);
    let rows: Vec<Vec<f64>> = usage.layers.iter().map(|l| shares(l, group)).collect();
    let mut out = String::new();
    let at_once = if palette == Palette::Colours { 2 } else { 1 };
    for (layers, rows) in usage.layers.chunks(at_once).zip(rows.chunks(at_once)) {
        let _ = write!(out, "{:>label$} ", layers[0].layer);
        for i in 0..rows[0].len() {
            match palette {
                Palette::Colours => {
                    let _ = write!(out, "\x1b[38;5;{}", level(rows[0][i], &COLOURS));
                    if let Some(below) = rows.get(1) {
                        let _ = write!(out, ";48;5;{}", level(below[i], &COLOURS));
                    }
                    out.push('m');
                    out.extend(std::iter::repeat_n('▀', cell));
                }
                Palette::Blocks => out.extend(std::iter::repeat_n(level(rows[0][i], &BLOCKS), cell)),
                Palette::Ascii => out.extend(std::iter::repeat_n(level(rows[0][i], &ASCII), cell)),
            }
        }
        out.push_str(if palette == Palette::Colours { "\x1b[0m\n" } else { "\n" });
    }
    let several = if group > 1 { format!(", {group} to a column") } else { String::new() };
    let legend =
        format!("{} layers (down), {experts} experts (across{several}); {}", rows.len(), summary(usage));
    let mut wrap = Wrap::default();
    legend.chars().for_each(|c| wrap.push(c, columns, &mut out));
    wrap.flush(columns, &mut out);
    out
}

/// Choices of each group of experts, relative to the most used group.
fn shares(layer: &LayerUsage, group: usize) -> Vec<f64> {
    let sums: Vec<u64> = layer.tokens.chunks(group).map(|g| g.iter().sum()).collect();
    let most = sums.iter().copied().max().unwrap_or(0).max(1);
    sums.iter().map(|&n| n as f64 / most as f64).collect()
}

/// The first level means none.
fn level<T: Copy>(share: f64, levels: &[T]) -> T {
    let last = levels.len() - 1;
    levels[if share > 0.0 { ((share * last as f64).ceil() as usize).clamp(1, last) } else { 0 }]
}

/// Number of tokens, effective number of experts, and the most used experts.
fn summary(usage: &ExpertUsage) -> String {
    let all = usage.experts() * usage.layers.len();
    let tokens = usage.layers.iter().map(|l| usage.tokens(l)).max().unwrap_or(0);
    let effective =
        usage.layers.iter().map(LayerUsage::effective).sum::<f64>() / usage.layers.len().max(1) as f64;
    let mut busiest: Vec<(u64, usize, usize)> = Vec::new();
    for l in &usage.layers {
        busiest.extend(l.tokens.iter().enumerate().map(|(e, &n)| (n, l.layer, e)));
    }
    busiest.sort_by_key(|&(n, layer, expert)| (std::cmp::Reverse(n), layer, expert));
    let named: Vec<String> =
        busiest.iter().take(NAMED).filter(|b| b.0 > 0).map(|(n, l, e)| format!("{l}/{e} ({n})")).collect();
    format!(
        "{tokens} tokens, {} experts each\n\
         the busiest 10% of experts took {:.0}% of the choices; a layer used {effective:.1} experts' worth; busiest (layer/expert): {}",
        usage.per_token,
        100.0 * usage.coverage(all.div_ceil(10)),
        named.join(", "),
    )
}

/// The counts since `before`.
pub fn since(now: ExpertUsage, before: &ExpertUsage) -> ExpertUsage {
    let layers = now.layers.into_iter().zip(&before.layers).map(|(l, old)| LayerUsage {
        layer: l.layer,
        tokens: l.tokens.iter().zip(&old.tokens).map(|(n, old)| n.saturating_sub(*old)).collect(),
    });
    ExpertUsage { per_token: now.per_token, layers: layers.collect() }
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr;

    use super::*;

    fn usage(layers: usize, experts: usize) -> ExpertUsage {
        let tokens = |l: usize| (0..experts).map(|e| ((e * 7 + l) % 5) as u64).collect();
        let layers = (0..layers).map(|layer| LayerUsage { layer, tokens: tokens(layer) }).collect();
        ExpertUsage { per_token: 2, layers }
    }

    #[test]
    fn it_fits_the_terminal() {
        for (layers, experts) in [(8, 32), (40, 256), (3, 5), (1, 1), (92, 512)] {
            for columns in [10, 40, 80, 200] {
                for palette in [Palette::Colours, Palette::Blocks, Palette::Ascii] {
                    let text = draw(&usage(layers, experts), palette, columns);
                    let text = console::strip_ansi_codes(&text).to_string();
                    let at_once = if palette == Palette::Colours { 2 } else { 1 };
                    let map: Vec<&str> = text.lines().take(layers.div_ceil(at_once)).collect();
                    assert!(map.iter().all(|l| l.width() <= columns), "{columns}: {map:?}");
                    assert!(palette != Palette::Ascii || text.is_ascii());
                }
            }
        }
    }

    #[test]
    fn the_busiest_expert_of_a_layer_is_brightest() {
        let layer = |layer, tokens: [u64; 4]| LayerUsage { layer, tokens: tokens.into() };
        let usage =
            ExpertUsage { per_token: 2, layers: vec![layer(0, [8, 0, 1, 4]), layer(1, [0, 2, 1, 0])] };
        let text = draw(&usage, Palette::Ascii, 7);
        assert_eq!(text.lines().take(2).collect::<Vec<_>>(), ["0 @ .=", "1  @= "]);
        let text = draw(&usage, Palette::Ascii, 200);
        assert!(text.contains("2 layers (down), 4 experts (across); 6 tokens, 2 experts each"), "{text}");
        assert!(text.contains("0/0 (8), 0/3 (4), 1/1 (2)"), "{text}");
        let halved = draw(&usage, Palette::Blocks, 5);
        assert_eq!(halved.lines().take(2).collect::<Vec<_>>(), ["0 █▓", "1 █▒"], "{halved}");
    }
}
