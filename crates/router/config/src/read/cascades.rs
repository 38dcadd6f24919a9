//! `cascades`.

use crate::fields::Fields;
use crate::problem::quoted;
use crate::sections::{CASCADE, CONFIDENCE, PREROUTER, RULE};
use crate::yaml::Value;
use crate::{Cascade, Condition, Confidence, HeaderMatch, Pattern, Prerouter, Rule, Side, Signal, Threshold};

/// `cascades`.
pub(crate) fn cascades(fields: &Fields) -> Vec<Cascade> {
    let mut out = Vec::new();
    for node in fields.list("cascades").unwrap_or_default() {
        let Some(entry) = Fields::new(fields.reader, &CASCADE, node) else { continue };
        let needed = |name: &'static str, what: &str| {
            let text = entry.name(name);
            if text.is_none() && !entry.has(name) {
                entry.reader.wrong(&node.span, format!("a cascade needs {name}: {what}"));
            }
            text
        };
        let names = (
            needed("model_name", "the name for clients"),
            needed("fast", "the group for easy requests"),
            needed("strong", "the group for hard requests"),
        );
        let rules: Vec<Rule> = entry
            .list("rules")
            .unwrap_or_default()
            .iter()
            .enumerate()
            .filter_map(|(i, node)| rule(&Fields::new(fields.reader, &RULE, node)?, i + 1))
            .collect();
        let confidence = entry.section("confidence", &CONFIDENCE).and_then(|c| confidence(&c));
        let prerouter = entry.section("prerouter", &PREROUTER).and_then(|p| prerouter(&p));
        if rules.is_empty() && !["rules", "confidence", "prerouter"].into_iter().any(|key| entry.has(key)) {
            entry.reader.wrong(
                &node.span,
                "a cascade needs rules, confidence or a prerouter: without them only the fast model answers",
            );
        }
        if let (Some(name), Some(fast), Some(strong)) = names {
            let span = node.span.clone();
            out.push(Cascade { name, fast, strong, rules, prerouter, confidence, span });
        }
    }
    out
}

fn rule(fields: &Fields, number: usize) -> Option<Rule> {
    let mut when = Vec::new();
    when.extend(fields.count("min_tokens", 0).map(Condition::MinTokens));
    when.extend(fields.count("max_tokens", 0).map(Condition::MaxTokens));
    when.extend(fields.count("min_messages", 0).map(Condition::MinMessages));
    when.extend(fields.count("max_messages", 0).map(Condition::MaxMessages));
    when.extend(fields.bool("tools").map(Condition::Tools));
    when.extend(fields.bool("code").map(Condition::Code));
    when.extend(fields.bool("images").map(Condition::Images));
    when.extend(headers(fields).into_iter().map(Condition::Header));
    when.extend(pattern(fields, "system").map(Condition::System));
    when.extend(pattern(fields, "user").map(Condition::User));
    let to = fields.one_of("to", &[("fast", Side::Fast), ("strong", Side::Strong)]).unwrap_or_default();
    let check = fields.bool("check").unwrap_or(false);
    if check && to == Side::Strong {
        fields.reader.wrong(
            fields.span,
            "check is for rules with to: fast; answers of the strong model are not checked",
        );
    }
    let name = fields.name("name").unwrap_or_else(|| format!("rule {number}"));
    if when.is_empty() {
        // An invalid pattern was already reported.
        if ["header", "system", "user"].into_iter().any(|name| fields.has(name)) {
            return None;
        }
        fields.reader.wrong(fields.span, "a rule needs a condition, like min_tokens: 4000 or tools: true");
        return None;
    }
    Some(Rule { name, when, to, check })
}

fn pattern(fields: &Fields, name: &'static str) -> Option<Pattern> {
    let text = fields.name(name)?;
    compiled(fields, name, &text, fields.get(name).map_or(fields.span, |n| &n.span))
}

fn compiled(fields: &Fields, name: &str, text: &str, span: &crate::Span) -> Option<Pattern> {
    match Pattern::new(text) {
        Ok(pattern) => Some(pattern),
        Err(why) => {
            let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_string();
            fields
                .reader
                .wrong(span, format!("{}.{name} is not a regular expression: {why}", fields.section.name));
            None
        }
    }
}

/// A header's name, or a mapping of names to patterns.
fn headers(fields: &Fields) -> Vec<HeaderMatch> {
    let Some(node) = fields.get("header") else { return Vec::new() };
    match &node.value {
        Value::Text(name) => vec![HeaderMatch { name: name.to_ascii_lowercase(), value: None }],
        Value::Map(entries) => entries
            .iter()
            .filter_map(|e| {
                let value = match &e.node.value {
                    Value::Null => None,
                    _ => Some(compiled(fields, "header", &fields.text_of("header", &e.node)?, &e.node.span)?),
                };
                Some(HeaderMatch { name: e.key.to_ascii_lowercase(), value })
            })
            .collect(),
        _ => {
            fields.wrong("header", node, "the name of a header, or a mapping of names to patterns");
            Vec::new()
        }
    }
}

fn confidence(fields: &Fields) -> Option<Confidence> {
    const WINDOW_MAX: u32 = 1024; // that much is held back from the client
    let signal = fields.name("signal").and_then(|text| match text.parse::<Signal>() {
        Ok(signal) => Some(signal),
        Err(why) => {
            fields.reader.wrong(fields.get("signal").map_or(fields.span, |n| &n.span), why);
            None
        }
    });
    let threshold = fields.number("threshold", 0.0, 1000.0);
    if fields.has("signal") != fields.has("threshold") {
        let what =
            "confidence.signal and confidence.threshold belong together: octet route calibrate finds both";
        fields.reader.wrong(fields.span, what);
        return None;
    }
    let confidence = Confidence {
        window: fields.count("window", 1).unwrap_or(Confidence::WINDOW),
        signal: signal.zip(threshold).map(|(signal, threshold)| Threshold { signal, threshold }),
        mean_logprob: fields.number("mean_logprob", -1000.0, 0.0),
        margin: fields.number("margin", 0.0, 1000.0),
        skip_thoughts: fields.bool("skip_thoughts").unwrap_or(true),
        probe: fields.bool("probe"),
        tool_calls: fields.bool("tool_calls").unwrap_or(true),
        self_check: fields.number("self_check", 0.0, 1.0),
    };
    if confidence.window > WINDOW_MAX {
        fields.reader.wrong(
            fields.span,
            format!("confidence.window is {}; at most {WINDOW_MAX} tokens are held back", confidence.window),
        );
    }
    let decides = ["signal", "mean_logprob", "margin", "self_check"];
    // By default they are checked in addition to the other conditions.
    let by_calls = fields.has("tool_calls") && confidence.tool_calls;
    if !by_calls && !decides.into_iter().any(|key| fields.has(key)) {
        let what = "confidence needs a threshold: signal and threshold (octet route calibrate finds them), mean_logprob, margin or self_check; or tool_calls: true";
        fields.reader.wrong(fields.span, what);
        return None;
    }
    Some(confidence)
}

/// `prerouter`, with its weights file.
fn prerouter(fields: &Fields) -> Option<Prerouter> {
    /// Enough for ten thousand dimensions.
    const FILE_BYTES_MAX: u64 = 1 << 20;
    let path = fields.name("file");
    if path.is_none() && !fields.has("file") {
        let what = "prerouter needs a file: octet route calibrate --prerouter FILE writes one";
        fields.reader.wrong(fields.span, what);
    }
    let (threshold, embed) = (fields.number("threshold", 0.0, 1.0).unwrap_or(0.5), fields.name("embed"));
    let (reader, path) = (fields.reader, path?);
    let span = fields.get("file").map_or(fields.span, |n| &n.span);
    let text = reader.read(&reader.path(span, &path), FILE_BYTES_MAX).map_err(|e| e.to_string());
    match text.and_then(|text| Prerouter::read(&text, threshold, embed)) {
        Ok(prerouter) => Some(prerouter),
        Err(why) => {
            reader.wrong(span, format!("prerouter.file: {}: {why}", quoted(&path)));
            None
        }
    }
}
