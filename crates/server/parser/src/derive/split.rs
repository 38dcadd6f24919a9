//! Splits a text with made-up calls into the syntax around their names, ids and arguments.

use serde_json::Value;

use super::{IDS, KEYS, NAMES, VALUE, argument};
use crate::syntax::{Arguments, CallSyntax, Keys, Piece, tags};

/// A range of bytes.
type Span = std::ops::Range<usize>;

/// The syntax, from `one`, a text with the first call, and `two`, a text with both calls if an answer can have both.
pub(super) fn syntax(one: &str, two: Option<&str>, arguments: &Arguments) -> Option<CallSyntax> {
    let (alone, keys) = find(one, 0, 0, arguments)?;
    let pair = two.and_then(|text| {
        let (first, _) = find(text, 0, 0, arguments)?;
        let (second, _) = find(text, 1, first.whole.end, arguments)?;
        Some((text, first, second))
    });
    let Some((text, first, second)) = pair else {
        return Some(CallSyntax {
            open: pieces(&one[..alone.whole.start]),
            call: call(one, &alone, 0, arguments, &one[alone.whole.end..]),
            separator: None,
            close: Vec::new(),
            object: keys,
        });
    };
    // What follows both calls ends a call; the rest separates calls, or ends the section.
    let (between, behind) = (&text[first.whole.end..second.whole.start], &text[second.whole.end..]);
    let end = if keys.is_some() { 0 } else { common_tags(between, behind) };
    let mut calls = [
        call(text, &first, 0, arguments, &between[..end]),
        call(text, &second, 1, arguments, &between[..end]),
    ];
    number(&mut calls);
    let [call, _] = calls;
    Some(CallSyntax {
        open: pieces(&text[..first.whole.start]),
        call,
        separator: Some(pieces(&between[end..])),
        close: pieces(&behind[end..]),
        object: keys,
    })
}

/// The position of a call in a text.
struct Found {
    /// From its name to its arguments, or its object.
    whole: Span,
    arguments: Span,
}

/// Finds the call of function `n` after byte `from`.
fn find(text: &str, n: usize, from: usize, arguments: &Arguments) -> Option<(Found, Option<Keys>)> {
    let rest = &text[from..];
    let at = |span: Span| from + span.start..from + span.end;
    if *arguments == Arguments::Json
        && let Some(object) = json_at(rest, |v| keys(v, n).is_some())
    {
        let value: Value = serde_json::from_str(&rest[object.clone()]).ok()?;
        let inner = json_at(&rest[object.clone()], |v| *v == argument(VALUE))?;
        let inner = object.start + inner.start..object.start + inner.end;
        return Some((Found { whole: at(object), arguments: at(inner) }, keys(&value, n)));
    }
    let name = rest.find(NAMES[n])?;
    let behind = name + NAMES[n].len();
    let given = span_of(&rest[behind..], arguments)?;
    let given = behind + given.start..behind + given.end;
    Some((Found { whole: at(name..given.end), arguments: at(given) }, None))
}

/// The keys of a call that is an object.
fn keys(call: &Value, n: usize) -> Option<Keys> {
    let call = call.as_object()?;
    let name = call.iter().find(|(_, v)| **v == NAMES[n])?.0.clone();
    let arguments = call.iter().find(|(_, v)| **v == argument(VALUE))?.0.clone();
    Some(Keys { name, arguments })
}

/// The range of the first arguments in a text.
fn span_of(text: &str, arguments: &Arguments) -> Option<Span> {
    let key = text.find(KEYS[0]);
    let value = |from: usize| Some(from + text[from..].find(VALUE)? + VALUE.len());
    let span = match arguments {
        Arguments::Json => return json_at(text, |v| *v == argument(VALUE)),
        Arguments::Tagged(tagged) => {
            let open =
                if text[..key?].ends_with(&tagged.open) { &tagged.open } else { tagged.open.trim_start() };
            key?.checked_sub(open.len())?..value(key?)? + tagged.close.len()
        }
        Arguments::Nested(nested) => {
            let (open, close) = (format!("{}<", nested.mark), format!("</{}>", KEYS[0]));
            let value = value(key?)?;
            key?.checked_sub(open.len())?..value + text[value..].find(&close)? + close.len()
        }
        Arguments::Python => key?..value(key?)? + 1,
        Arguments::Gemma => key?..value(key?)? + "<|\"|>".len(),
    };
    // Templates are untrusted: the text may end early, or within a character.
    text.get(span.clone()).map(|_| span)
}

/// The pieces of a call, followed by `end`.
fn call(text: &str, found: &Found, n: usize, arguments: &Arguments, end: &str) -> Vec<Piece> {
    let before = &text[found.whole.start..found.arguments.start];
    let behind = format!("{}{end}", &text[found.arguments.end..found.whole.end]);
    let mut out = Vec::new();
    for (i, part) in before.split(NAMES[n]).enumerate() {
        if i > 0 {
            out.push(Piece::Name);
        }
        out.extend(pieces(part));
    }
    out.push(Piece::Arguments(arguments.clone()));
    out.extend(pieces(&behind));
    out
}

/// A text with ids.
fn pieces(text: &str) -> Vec<Piece> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = IDS.iter().filter_map(|id| rest.find(id)).min() {
        out.extend([Piece::Text(rest[..at].into()), Piece::Id]);
        rest = &rest[at + IDS[0].len()..];
    }
    out.push(Piece::Text(rest.into()));
    out.retain(|p| *p != Piece::Text(String::new()));
    out
}

/// Finds the number of a call: the only difference from the next call's text.
fn number([first, second]: &mut [Vec<Piece>; 2]) {
    let differs = first.iter().zip(second.iter()).position(|(a, b)| a != b);
    let Some(at) = differs else { return };
    let (Piece::Text(a), Piece::Text(b)) = (&first[at], &second[at]) else { return };
    let Some(n) = a.bytes().zip(b.bytes()).position(|(a, b)| a != b) else { return };
    // The first different byte may be within a character.
    let n = a.floor_char_boundary(n);
    let (Some(digit), Some(next)) = (a[n..].chars().next(), b[n..].chars().next()) else { return };
    let (Some(i), Some(j)) = (digit.to_digit(10), next.to_digit(10)) else { return };
    if i + 1 == j && a[n + 1..] == b[n + 1..] {
        let text = |t: &str| Piece::Text(t.into());
        let parts = [text(&a[..n]), Piece::Number(i), text(&a[n + 1..])];
        first.splice(at..=at, parts);
        first.retain(|p| *p != text(""));
    }
}

/// Length of the common prefix of two texts, up to the end of a tag.
fn common_tags(a: &str, b: &str) -> usize {
    let same = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let same = a.floor_char_boundary(same);
    if same == a.len() || same == b.len() {
        return same;
    }
    let end = a[..same].rfind(['>', ']', '}', ')']).map_or(0, |at| at + 1);
    // Not in the middle of a tag that has brackets in it.
    let start = |tag: &str| tag.as_ptr() as usize - a.as_ptr() as usize;
    tags(a)
        .map(|t| start(t)..start(t) + t.len())
        .find(|t| t.start < end && end < t.end)
        .map_or(end, |t| t.start)
}

/// The text before and after each parameter, from a text with two.
pub(super) fn around_parameters(two: &str) -> Option<(String, String)> {
    let first = two.find(KEYS[0])?;
    let value = first + two[first..].find(VALUE)? + VALUE.len();
    let second = value + two[value..].find(KEYS[1])?;
    let last = two.rfind(VALUE)? + VALUE.len();
    let (gap, behind) = (&two[value..second], &two[last..]);
    let (close, open) = gap.split_at(common_tags(gap, behind));
    let is_open = two[..first].ends_with(open.trim_start());
    (is_open && !open.trim().is_empty() && !close.trim().is_empty())
        .then(|| (open.to_string(), close.to_string()))
}

/// The text between two words.
pub(super) fn between<'a>(text: &'a str, first: &str, second: &str) -> Option<&'a str> {
    let from = text.find(first)? + first.len();
    Some(&text[from..from + text[from..].find(second)?])
}

/// The range of the first JSON object in a text that satisfies `is`.
pub(super) fn json_at(text: &str, is: impl Fn(&Value) -> bool) -> Option<Span> {
    text.match_indices('{').find_map(|(at, _)| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
        let value = values.next()?.ok()?;
        is(&value).then(|| at..at + values.byte_offset())
    })
}

/// The leading tags of a text.
pub(super) fn first_tags(text: &str) -> impl Iterator<Item = &str> {
    tags(text)
}
