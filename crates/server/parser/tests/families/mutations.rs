//! Renderings of calls with one tag deleted, doubled or moved: no call is made up, and nothing of a call that is read is text.

use std::collections::BTreeMap;

use octet_parser::{Message, tags};
use serde_json::Value;

/// What was tried, and what failed.
#[derive(Default)]
pub struct Mutations {
    /// Renderings by family and kind of change: all, and those of which every call was read.
    tried: BTreeMap<(String, &'static str), (usize, usize)>,
    bad: Vec<String>,
}

/// Maximum number of renderings with a tag that moved: some have thousands.
const MOVED_MAX: usize = 60;

/// Renderings with one tag changed, and how.
fn mutants(text: &str) -> Vec<(&'static str, String)> {
    // The values of the calls have `<b>`.
    let all: Vec<(usize, &str)> = tags(text)
        .map(|tag| (tag.as_ptr() as usize - text.as_ptr() as usize, tag))
        .filter(|(_, tag)| *tag != "<b>")
        .collect();
    let (mut out, mut all_moved) = (Vec::new(), Vec::new());
    for &(at, tag) in &all {
        let (before, behind) = (&text[..at], &text[at + tag.len()..]);
        out.push(("deleted", format!("{before}{behind}")));
        out.push(("doubled", format!("{before}{tag}{tag}{behind}")));
        out.push(("doubled on a line", format!("{before}{tag}\n{tag}{behind}")));
        for &(to, other) in all.iter().filter(|(to, _)| *to != at) {
            let moved = match to < at {
                true => format!("{}{tag}{}{behind}", &text[..to], &text[to..at]),
                false => {
                    let end = to + other.len();
                    format!("{before}{}{tag}{}", &text[at + tag.len()..end], &text[end..])
                }
            };
            all_moved.push(("moved", moved));
        }
    }
    let step = all_moved.len() / MOVED_MAX + 1;
    out.extend(all_moved.into_iter().step_by(step));
    out
}

/// Whether values are the same, but for tags in texts, which may hold any. If the tag before an argument is missing, a text may hold that
/// argument, too, but never the next call.
fn is_same(want: &Value, got: &Value) -> bool {
    match (want, got) {
        (Value::String(want), Value::String(got)) => {
            let has_call = ["find", "get_weather"].iter().any(|name| got.contains(name));
            bare(got).starts_with(&bare(want)) && !has_call
        }
        (Value::Object(want), Value::Object(got)) => {
            let texts: String = got.values().filter_map(Value::as_str).collect();
            let has = |key: &str| got.contains_key(key) || texts.contains(&want[key].to_string());
            want.keys().all(|k| has(k)) && got.iter().all(|(k, g)| want.get(k).is_some_and(|w| is_same(w, g)))
        }
        (Value::Array(want), Value::Array(got)) => {
            want.len() == got.len() && want.iter().zip(got).all(|(w, g)| is_same(w, g))
        }
        (want, got) => want == got,
    }
}

fn bare(text: &str) -> String {
    let bare = tags(text).filter(|t| *t != "<b>").fold(text.to_string(), |text, tag| text.replace(tag, ""));
    bare.trim().to_string()
}

impl Mutations {
    /// Checks all mutants of a rendering of the calls `want`.
    pub fn check(
        &mut self,
        (family, has_header): (&str, bool),
        text: &str,
        want: &[(String, Value)],
        read: &dyn Fn(&str) -> Message,
    ) {
        // Without the token that ends the answer.
        let content = read(text).content;
        let text = text.trim_end().strip_suffix(content.trim()).unwrap_or(text);
        let text = text.trim_end().strip_suffix("[e~[").unwrap_or(text); // MiniMax' end
        let content = read(text).content;
        for (kind, mutant) in mutants(text) {
            let message = read(&mutant);
            let mut left = want.to_vec();
            let mut made_up = Vec::new();
            for call in &message.tool_calls {
                let arguments = serde_json::from_str(&call.arguments).unwrap_or(Value::Null);
                let call = (call.name.clone(), arguments);
                // A tag that moved may take arguments out of their call, or into another.
                let is_moved = kind == "moved";
                let is_same = |c: &(String, Value)| c.0 == call.0 && (is_moved || is_same(&c.1, &call.1));
                match left.iter().position(is_same) {
                    Some(at) => drop(left.remove(at)),
                    None => made_up.push(call),
                }
            }
            let (tried, whole) = self.tried.entry((family.into(), kind)).or_default();
            *tried += 1;
            *whole += usize::from(left.is_empty());
            if !made_up.is_empty() {
                self.bad.push(format!("{family} {kind}: {mutant:?}\n   made up {made_up:?}"));
            } else if left.is_empty()
                && !has_header
                && kind != "moved"
                && message.content.trim() != content.trim()
            {
                self.bad.push(format!("{family} {kind}: {mutant:?}\n   content {:?}", message.content));
            }
        }
    }

    pub fn report(&self) {
        for ((family, kind), (tried, whole)) in &self.tried {
            println!("{family}, {kind}: {whole} of {tried} are read");
        }
        println!("{} bad", self.bad.len());
        assert!(self.tried.len() > 8, "renderings have tags");
        assert!(self.bad.is_empty(), "{}", self.bad.join("\n"));
    }
}
