//! A report as text: aligned columns, and bars for the bytes read per token.

use octet_compute::batch::{PAGE_TOKENS, PageGroup};

use super::{GroupReport, Report, TokenReport, TypeShare};
use crate::models::Limits;

/// Columns of a line, if its words allow it.
const COLUMNS: usize = 80;
/// Columns of the longest bar.
const BAR_COLUMNS: usize = 8;
/// Columns of the names at the left.
const LABEL_COLUMNS: usize = 16;

impl Report {
    /// The whole report, with the memory of the model when loaded with `limits`.
    pub fn text(&self, limits: &Limits) -> String {
        let mut out = Lines(String::new());
        self.write_model(&mut out);
        self.write_tokenizer(&mut out);
        self.write_groups(&mut out);
        self.write_memory(&mut out, limits);
        out.0
    }

    fn write_model(&self, out: &mut Lines) {
        let c = &self.config;
        out.title(self.name.as_deref().unwrap_or(&self.origin));
        out.line("file", &self.origin);
        out.line("architecture", c.architecture.name);
        out.line(
            "parameters",
            format!("{}, {} active per token", count(self.parameters), count(self.active_parameters)),
        );
        out.line(
            "weights",
            format!("{} in {} tensors: {}", bytes(self.bytes), self.tensors, mix(&self.types, self.bytes)),
        );
        let recurrent = c.recurrent.iter().filter(|&&r| r).count();
        let kind = c.delta().map_or("recurrent", |d| d.name());
        let mut layers = match recurrent {
            0 => format!("{} of attention", c.layers),
            n => format!("{}: {n} {kind}, {} attention", c.layers, c.layers - n),
        };
        layers +=
            if c.mtp_layers > 0 { ", and multi-token prediction" } else { ", no multi-token prediction" };
        out.line("layers", layers);
        let tied = if self.tied { ", tied to the output head" } else { "" };
        out.line(
            "dimensions",
            format!("{} wide, {} embedding rows{tied}, context {}", c.hidden, c.vocab, c.context_length),
        );
        if let Some(a) = c.attention() {
            let kv = c.kv_heads().into_iter().max().unwrap_or(0);
            let rotated = a.rope.map_or(0, |r| c.plan.ropes[r].dims);
            out.line(
                "attention",
                format!("{} query heads on {kv} key/value heads of {}, {rotated} rotated", a.heads, a.k_dim),
            );
        }
        if let Some(g) = c.delta() {
            let heads =
                format!("{} key heads of {}, {} value heads of {}", g.k_heads, g.k_dim, g.v_heads, g.v_dim);
            let label = if g.row_decay { "KDA" } else { g.name() };
            out.line(label, format!("{heads}, convolution over {}", g.taps));
        }
        match c.moe {
            None => out.line("mlp", format!("dense, {} wide", c.intermediate())),
            Some(m) => {
                let shared = match m.shared_intermediate {
                    0 => "none shared".to_string(),
                    n => format!("and a shared one {n} wide"),
                };
                out.line(
                    "experts",
                    format!("{} of {} per token, {} wide, {shared}", m.top_k, m.experts, m.intermediate),
                );
            }
        }
    }

    fn write_tokenizer(&self, out: &mut Lines) {
        let t = &self.tokenizer;
        let known = |x: &Option<String>| x.clone().unwrap_or_else(|| "not stated".into());
        let pre = t.pre.as_ref().map_or(String::new(), |p| format!(", splits like {p}"));
        let tokens = t.tokens.map_or(String::new(), |n| format!(", {n} tokens"));
        out.line("tokenizer", format!("{}{pre}{tokens}", known(&t.model)));
        let eos: Vec<String> = t.eos.iter().map(token).collect();
        let eos = if eos.is_empty() { "not stated".to_string() } else { eos.join(", ") };
        let bos = match (&t.bos, t.add_bos) {
            (Some(bos), Some(true)) => format!("; begins with {}", token(bos)),
            _ => String::new(),
        };
        out.line("end tokens", eos + &bos);
        out.line("chat template", t.template_bytes.map_or("none".to_string(), |n| format!("{n} bytes")));
        let s = &self.sampling;
        let parts: Vec<String> = [
            s.temperature.map(|x| format!("temperature {x}")),
            s.top_k.map(|x| format!("top_k {x}")),
            s.top_p.map(|x| format!("top_p {x}")),
            s.min_p.map(|x| format!("min_p {x}")),
            s.repetition_penalty.map(|x| format!("repetition penalty {x}")),
            s.penalty_last_n.map(|n| match n {
                usize::MAX => "over all tokens".to_string(),
                n => format!("over {n} tokens"),
            }),
        ]
        .into_iter()
        .flatten()
        .collect();
        out.line(
            "sampling",
            if parts.is_empty() { "no defaults in the file".to_string() } else { parts.join(", ") },
        );
    }

    fn write_groups(&self, out: &mut Lines) {
        out.title("bytes read per token");
        let most = self.groups.iter().map(|g| g.active_bytes).max().unwrap_or(0);
        for g in &self.groups {
            let share = 100.0 * ratio(g.active_bytes, self.bytes_per_token);
            let bar = bar(ratio(g.active_bytes, most));
            let types = mix(&g.types, g.types.iter().map(|t| t.bytes).sum());
            let read = bytes(g.active_bytes);
            out.line(
                label(g),
                format!("{read:>10} {share:5.1}% {bar:BAR_COLUMNS$} of {:>10}  {types}", bytes(g.bytes)),
            );
        }
        out.line(
            "weights",
            format!("{:>10} per token, of {}", bytes(self.bytes_per_token), bytes(self.bytes)),
        );
    }

    fn write_memory(&self, out: &mut Lines, limits: &Limits) {
        let m = self.memory(limits, false);
        let context = limits.pages.saturating_mul(PAGE_TOKENS);
        out.title(&format!("memory for a context of {context}"));
        out.line("weights", format!("{:>10}", bytes(m.weights)));
        let windowed = self.windowed_pages(limits);
        let position = match windowed {
            None => self.kv_bytes_per_position(limits.kv),
            Some(_) => self.kv_bytes_of(PageGroup::All, limits.kv),
        };
        let window = windowed.map_or(String::new(), |(of, kept)| {
            let each = bytes(self.kv_bytes_of(PageGroup::Windowed, limits.kv));
            format!(", and {each} of the last {}", (of.pages - kept) * PAGE_TOKENS)
        });
        out.line(
            "KV cache",
            format!("{:>10}  {} per position in {}{window}", bytes(m.kv), bytes(position), limits.kv),
        );
        if m.states > 0 && self.state_bytes() == 0 {
            let kept = limits.snapshots;
            let what = format!("at most {kept} windows of earlier positions, for the prefix cache");
            out.line("snapshots", format!("{:>10}  {what}", bytes(m.states)));
        } else if m.states > 0 {
            let counted = |n: usize, what: &str| match n {
                0 => String::new(),
                1 => format!("1 {what}"),
                n => format!("{n} {what}s"),
            };
            let and = if limits.snapshots > 0 { " and " } else { "" };
            let (slots, snapshots) = (counted(limits.slots, "slot"), counted(limits.snapshots, "snapshot"));
            let slots = format!("{slots}{and}{snapshots} of {}", bytes(self.state_bytes()));
            out.line("states", format!("{:>10}  {slots}, for any length", bytes(m.states)));
        }
        let step = format!("steps of up to {} tokens", limits.batch_tokens);
        out.line("activations", format!("{:>10}  {step}, about", bytes(m.activations)));
        if m.speculation > 0 {
            let what = "(0 with --speculative off)";
            out.line("speculation", format!("{:>10}  {what}", bytes(m.speculation)));
        }
        out.line("total", format!("{:>10}", bytes(m.total())));
        let traffic = |depth| bytes(self.traffic_per_token(depth, limits.kv));
        let deep = format!("{} after {context} tokens", traffic(context));
        out.line("memory traffic", format!("{:>10}  per token at first, {deep}", traffic(0)));
    }
}

/// Text in lines with labels. Names come from untrusted files, so control characters, which a terminal might interpret, are escaped.
struct Lines(String);

impl Lines {
    fn title(&mut self, text: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.push(text);
    }
    fn line(&mut self, label: &str, text: impl AsRef<str>) {
        let mut text = text.as_ref();
        let mut label = label;
        let room = COLUMNS - LABEL_COLUMNS - 3;
        while let Some((cut, _)) = text.char_indices().nth(room) {
            let Some(end) = text[..cut + 1].rfind(' ').filter(|&end| !text[..end].trim().is_empty()) else {
                break;
            };
            self.push(&format!("  {label:LABEL_COLUMNS$} {}", text[..end].trim_end()));
            (label, text) = ("", text[end..].trim_start());
        }
        self.push(&format!("  {label:LABEL_COLUMNS$} {text}"));
    }
    fn push(&mut self, line: &str) {
        for c in line.chars() {
            if c.is_control() || turns(c) {
                self.0.extend(c.escape_default());
            } else {
                self.0.push(c);
            }
        }
        self.0.push('\n');
    }
}

/// Characters that change the direction of a text, or end a line.
fn turns(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn label(g: &GroupReport) -> &'static str {
    match g.group {
        super::Group::Mtp => "mtp block",
        group => group.name(),
    }
}

fn token(t: &TokenReport) -> String {
    match &t.text {
        Some(text) => format!("{text} ({})", t.id),
        None => t.id.to_string(),
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A bar whose full length is [`BAR_COLUMNS`] columns, to an eighth of a column.
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share * (BAR_COLUMNS * 8) as f64).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// `Q4_K 75%, Q6_K 25%`: shares of the bytes; shares that round to 0 are omitted.
fn mix(types: &[TypeShare], whole: u64) -> String {
    if let [only] = types {
        return only.ty.to_string();
    }
    let percent = |t: &TypeShare| (100.0 * ratio(t.bytes, whole)).round();
    let parts: Vec<String> =
        types.iter().filter(|t| percent(t) > 0.0).map(|t| format!("{} {}%", t.ty, percent(t))).collect();
    parts.join(", ")
}

/// `581.25 MiB`.
fn bytes(n: u64) -> String {
    humansize::format_size(n, humansize::BINARY)
}

/// `34.66 B`: thousands, millions or billions.
fn count(n: u64) -> String {
    scaled(n, &["", "K", "M", "B", "T"])
}

fn scaled(n: u64, units: &[&str]) -> String {
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 999.995 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 { 0 } else { 2 };
    format!("{value:.digits$} {}", units[unit]).trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_fitting_units() {
        assert_eq!([7, 34_660_000_000].map(count), ["7", "34.66 B"]);
    }

    #[test]
    fn control_characters_are_escaped() {
        let mut lines = Lines(String::new());
        lines.title("a\x1b[2Jb\nc\u{202e}d");
        assert_eq!(lines.0, "a\\u{1b}[2Jb\\nc\\u{202e}d\n");
    }

    #[test]
    fn bars_show_shares() {
        assert_eq!([0.0, 0.5, 1.0].map(|s| bar(s).chars().count()), [0, BAR_COLUMNS / 2, BAR_COLUMNS]);
        assert_eq!(bar(1.0 / (8 * BAR_COLUMNS) as f64), "▏");
    }
}
