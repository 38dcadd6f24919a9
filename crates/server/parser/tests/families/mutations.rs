//! Renderings of calls with one tag deleted, doubled or moved: no call is made up, and nothing of a call that is read is text.

use std::collections::{BTreeMap, HashSet};

use octet_parser::{Changes, Message, tags};
use serde_json::Value;

/// What was tried, and what failed.
#[derive(Default)]
pub struct Mutations {
    /// Renderings by family and kind of change: all, and those of which every call was read.
    tried: BTreeMap<(String, &'static str), (usize, usize)>,
    bad: Vec<String>,
    /// Renderings by family with a tag missing or twice, but no name or key: all, and those that were not read.
    unread: BTreeMap<String, (usize, usize)>,
}

/// Values of the calls, of which none may be lost.
const VALUES: [&str; 2] = ["Zürich", "b c"];
/// Names and keys of the calls.
const NAMES: [&str; 6] = ["get_weather", "find", "city", "days", "paths", "deep"];

/// Maximum number of texts with a tag that moved, of one rendering: those of calls with many tags have more, of which these are spread evenly.
const MOVED_MAX: usize = 200;

/// The tags of a rendering: those of the syntax, and others in angle brackets. The values of the calls have `<b>`.
fn all_tags(text: &str) -> Vec<(usize, &str)> {
    let mut all: Vec<(usize, &str)> =
        tags(text).map(|tag| (tag.as_ptr() as usize - text.as_ptr() as usize, tag)).collect();
    for (at, _) in text.match_indices('<') {
        let end = text[at + 1..].find(['<', '>', '[', ']', '\n']).map(|end| at + 1 + end);
        if let Some(end) = end.filter(|end| text[*end..].starts_with('>')) {
            all.push((at, &text[at..=end]));
        }
    }
    all.retain(|(_, tag)| *tag != "<b>");
    all.sort_unstable();
    all.dedup();
    all
}

/// Renderings with one tag changed, and how: it is deleted, doubled, or moved to any other tag's beginning or the end.
fn mutants(text: &str) -> Vec<(&'static str, String)> {
    let all = all_tags(text);
    let (mut out, mut all_moved) = (Vec::new(), Vec::new());
    for &(at, tag) in &all {
        let (before, behind) = (&text[..at], &text[at + tag.len()..]);
        out.push(("deleted", format!("{before}{behind}")));
        out.push(("doubled", format!("{before}{tag}{tag}{behind}")));
        out.push(("doubled on a line", format!("{before}{tag}\n{tag}{behind}")));
        let places = all.iter().flat_map(|(to, other)| [*to, to + other.len()]);
        for to in places.filter(|to| *to < at || *to > at + tag.len()) {
            let moved = match to < at {
                true => format!("{}{tag}{}{behind}", &text[..to], &text[to..at]),
                false => format!("{before}{}{tag}{}", &text[at + tag.len()..to], &text[to..]),
            };
            all_moved.push(("moved", moved));
        }
    }
    let mut seen = HashSet::from([text.to_string()]);
    all_moved.retain(|(_, moved)| seen.insert(moved.clone()));
    let step = all_moved.len().div_ceil(MOVED_MAX).max(1);
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

/// Whether the same is read of a rendering in pieces of these sizes.
fn cuts_do_not_matter(
    text: &str,
    whole: &Message,
    sizes: &[usize],
    read: &dyn Fn(&[&str]) -> (Message, Changes),
) -> Result<(), String> {
    for &size in sizes {
        let mut pieces = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.ceil_char_boundary(size.min(rest.len())));
            pieces.push(piece);
            rest = behind;
        }
        let (message, _) = read(&pieces);
        if message != *whole {
            return Err(format!("in pieces of {size}: {message:?}"));
        }
    }
    Ok(())
}

/// What a text says besides the headers and ends of messages.
fn plain(text: &str, headers: &[String]) -> String {
    let bare = headers.iter().fold(text.to_string(), |text, header| text.replace(header.as_str(), ""));
    bare.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What of a call is text, though not all of it: what is wrong, where that is so. `left` calls were not read.
fn half_call(
    (mutant, left): (&str, usize),
    message: &Message,
    (content, headers): (&str, &[String]),
    read: &dyn Fn(&[&str]) -> (Message, Changes),
) -> Result<(), String> {
    let plain = |text: &str| plain(text, headers);
    let said = message.content.trim();
    match (left, message.tool_calls.len()) {
        (0, _) if plain(said) != plain(content) => Err(format!("content {said:?}")),
        (0, _) => Ok(()),
        // A call that cannot be read is text as a whole.
        (_, 0) if plain(said) != plain(mutant) => Err(format!("half a call: {said:?}")),
        (_, 0) => Ok(()),
        _ => {
            let rest = mutant.replacen(said, "", 1);
            let (again, changes) = read(&[&rest]);
            let left_out = changes.messages().any(|m| m.contains("next to a tool call"));
            match !mutant.contains(said) || left_out || plain(&again.content) != plain(content) {
                true => Err(format!("half a call: {said:?}, and of the rest {:?}", again.content)),
                false => Ok(()),
            }
        }
    }
}

/// What is wrong with the answer if a tag moved, which may take arguments out of their call, and leave tags beside it: it says something
/// twice, a call that is none is text in part, or a name or a value of a whole call `is_read` is text.
fn divided(
    (mutant, is_read): (&str, bool),
    message: &Message,
    (all, headers): (&str, &[String]),
) -> Result<(), String> {
    let twice = |value: &&&str| all.matches(**value).count() > mutant.matches(**value).count();
    if let Some(value) = VALUES.iter().find(twice) {
        return Err(format!("{value} comes twice: {message:?}"));
    }
    let said = plain(&message.content, headers);
    let without_tags = |text: &str| {
        let bare = all_tags(text).iter().fold(text.to_string(), |text, (_, tag)| text.replace(*tag, ""));
        plain(&bare, headers)
    };
    let words = without_tags(&said);
    let known: Vec<&&str> = VALUES.iter().chain(&NAMES).filter(|word| mutant.contains(**word)).collect();
    if is_read && known.iter().any(|word| words.contains(**word)) {
        return Err(format!("half a call: {said:?}"));
    }
    if message.tool_calls.is_empty() {
        // Tags of reasoning and of messages are none of the text.
        let is_whole = match headers.is_empty() {
            true => words == without_tags(mutant),
            false => known.iter().all(|word| said.contains(**word)),
        };
        return if is_whole { Ok(()) } else { Err(format!("half a call: {said:?}")) };
    }
    Ok(())
}

impl Mutations {
    /// Checks all mutants of a rendering of the calls `want`, in a family whose text has these headers.
    pub fn check(
        &mut self,
        (family, headers): (&str, &[String]),
        text: &str,
        want: &[(String, Value)],
        read: &dyn Fn(&[&str]) -> (Message, Changes),
    ) {
        // Without the token that ends the answer, which is no text.
        let content = read(&[text]).0.content;
        let end = if headers.is_empty() { content.trim() } else { "" };
        let text = text.trim_end().strip_suffix(end).unwrap_or(text);
        let text = text.trim_end().strip_suffix("[e~[").unwrap_or(text); // MiniMax' end
        let content = read(&[text]).0.content;
        for (i, (kind, mutant)) in mutants(text).into_iter().enumerate() {
            let (message, _) = read(&[&mutant]);
            let is_moved = kind == "moved";
            let sizes: &[usize] = if is_moved { &[[1, 7][i % 2]] } else { &[1, 7] };
            if let Err(why) = cuts_do_not_matter(&mutant, &message, sizes, read) {
                self.bad.push(format!("{family} {kind}: {mutant:?}\n   {why}"));
            }
            let mut left = want.to_vec();
            let (mut made_up, mut is_whole) = (Vec::new(), true);
            for call in &message.tool_calls {
                let arguments = serde_json::from_str(&call.arguments).unwrap_or(Value::Null);
                let call = (call.name.clone(), arguments);
                // A tag that moved may take arguments out of their call, or into another.
                is_whole &= want.iter().any(|c| c.0 == call.0 && is_same(&c.1, &call.1));
                let is_same = |c: &(String, Value)| c.0 == call.0 && (is_moved || is_same(&c.1, &call.1));
                match left.iter().position(is_same) {
                    Some(at) => drop(left.remove(at)),
                    None => made_up.push(call),
                }
            }
            let (tried, whole) = self.tried.entry((family.into(), kind)).or_default();
            *tried += 1;
            *whole += usize::from(left.is_empty());
            let mut bad = |why: String| self.bad.push(format!("{family} {kind}: {mutant:?}\n   {why}"));
            if !made_up.is_empty() {
                bad(format!("made up {made_up:?}"));
                continue;
            }
            let arguments = message.tool_calls.iter().map(|c| c.arguments.as_str());
            let all: String = arguments.chain([message.content.as_str(), &message.reasoning]).collect();
            for value in VALUES.iter().filter(|value| mutant.contains(*value) && !all.contains(*value)) {
                bad(format!("lost {value}: {message:?}"));
            }
            let checked = match is_moved {
                _ if want.is_empty() => Ok(()),
                true => divided((&mutant, is_whole && left.is_empty()), &message, (&all, headers)),
                false => half_call((&mutant, left.len()), &message, (&content, headers), read),
            };
            if let Err(why) = checked {
                bad(why);
            }
            if is_moved {
                continue;
            }
            let is_clear = all_tags(text).iter().all(|(_, tag)| {
                let named = NAMES.iter().any(|name| tag.contains(name));
                !named || mutant.matches(tag).count() >= text.matches(tag).count()
            });
            // Where a quotation mark is missing, no text is clear.
            let is_quoted = mutant.matches("<|\"|>").count() == text.matches("<|\"|>").count();
            // Without any tag an object may be the answer.
            if is_clear && is_quoted && !all_tags(&mutant).is_empty() {
                let (clear, unread) = self.unread.entry(family.into()).or_default();
                *clear += 1;
                *unread += usize::from(!left.is_empty());
            }
        }
    }

    pub fn report(&self) {
        for ((family, kind), (tried, whole)) in &self.tried {
            println!("{family}, {kind}: {whole} of {tried} are read");
        }
        println!("clear, and not read: {:?}", self.unread);
        println!("{} bad", self.bad.len());
        assert!(self.tried.len() > 8, "renderings have tags");
        assert!(self.bad.is_empty(), "{}", self.bad.join("\n"));
        let lost: Vec<_> = self.unread.iter().filter(|(_, (clear, unread))| unread * 4 > *clear).collect();
        assert!(lost.is_empty(), "calls that are clear are not read: {lost:?}");
    }
}
