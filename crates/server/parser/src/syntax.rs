//! A family's call syntax as data: derived from its chat template by `derive`, scanned by `native`, enforced by the crate `grammar`,
//! and written out for templates that cannot write calls.

use serde_json::{Map, Value};

use crate::dumps::{json_dumps, python_text};

/// A section of calls: `open`, one call, any number of `separator` and call, then `close`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSyntax {
    /// Before the first call.
    pub open: Vec<Piece>,
    /// One call.
    pub call: Vec<Piece>,
    /// Between two calls; `None` if an answer has only one.
    pub separator: Option<Vec<Piece>>,
    /// After the last call.
    pub close: Vec<Piece>,
    /// If a call is one JSON object: the keys of its name and arguments.
    pub object: Option<Keys>,
}

/// The keys of a call that is a JSON object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// The key of the function's name.
    pub name: String,
    /// The key of its arguments.
    pub arguments: String,
}

/// A piece of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// This text.
    Text(String),
    /// The function's name.
    Name,
    /// An id: letters and digits.
    Id,
    /// The call's number in the answer, starting with this one.
    Number(u32),
    /// The arguments.
    Arguments(Arguments),
}

/// The form of arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arguments {
    /// As a JSON object.
    Json,
    /// Each between its own tags.
    Tagged(Tagged),
    /// In nested tags that are named after their keys, as MiniMax M3 does.
    Nested(Nested),
    /// `key='text', other=1`, as in a Python call.
    Python,
    /// `key:<|"|>text<|"|>,other:1`, as Gemma 4 does.
    Gemma,
}

/// Arguments between tags: `open` KEY `middle` VALUE `close`. A string is written unquoted, any other value as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tagged {
    /// Before a key.
    pub open: String,
    /// Between a key and a string.
    pub text: String,
    /// Between a key and any other value, by its type.
    pub others: Vec<(JsonType, String)>,
    /// After a value.
    pub close: String,
}

/// Arguments in nested tags: `mark<KEY>VALUE mark</KEY>`. A list is written as one tag `item` for each of its values, an object as one tag
/// for each of its members, and anything else as unquoted text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nested {
    /// Before each tag: one tag itself, in most models a token.
    pub mark: String,
    /// The name of the tags around the values of a list.
    pub item: String,
}

/// JSON types other than strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum JsonType {
    Number,
    Boolean,
    Null,
    Array,
    Object,
}

impl JsonType {
    /// The type of a value; `None` for a string.
    pub fn of(value: &Value) -> Option<Self> {
        Some(match value {
            Value::String(_) => return None,
            Value::Number(_) => Self::Number,
            Value::Bool(_) => Self::Boolean,
            Value::Null => Self::Null,
            Value::Array(_) => Self::Array,
            Value::Object(_) => Self::Object,
        })
    }

    /// The type of a JSON schema's name; `None` for a string and for unknown names.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "integer" | "number" => Self::Number,
            "boolean" => Self::Boolean,
            "null" => Self::Null,
            "array" => Self::Array,
            "object" => Self::Object,
            _ => return None,
        })
    }
}

impl Arguments {
    /// A value as written in this form.
    pub fn value(&self, value: &Value) -> String {
        match self {
            Self::Json | Self::Tagged(_) => value.to_string(),
            Self::Python => python_text(value),
            Self::Gemma => gemma(value),
            Self::Nested(nested) => nested.value(value),
        }
    }
}

impl Nested {
    /// A value with its tags. Members that are null are left out, as the template does.
    fn value(&self, value: &Value) -> String {
        match value {
            Value::String(text) => text.clone(),
            Value::Array(items) => items.iter().map(|v| self.element(&self.item, v)).collect(),
            Value::Object(members) => self.members(members),
            other => other.to_string(),
        }
    }

    fn members(&self, members: &Map<String, Value>) -> String {
        members.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| self.element(k, v)).collect()
    }

    fn element(&self, key: &str, value: &Value) -> String {
        let (mark, value) = (&self.mark, self.value(value));
        format!("{mark}<{key}>{value}{mark}</{key}>")
    }
}

impl Tagged {
    /// The text between a key and a value of this type; `None` is a string.
    pub fn middle(&self, of: Option<JsonType>) -> &str {
        let other = of.and_then(|t| self.others.iter().find(|(o, _)| *o == t));
        other.map_or(&self.text, |(_, text)| text)
    }

    /// Whether the text before a value distinguishes strings from other values.
    pub fn distinguishes_strings(&self) -> bool {
        self.others.iter().all(|(_, text)| *text != self.text)
    }
}

/// The leading text of these pieces.
fn leading(pieces: &[Piece]) -> &str {
    match pieces.first() {
        Some(Piece::Text(text)) => text,
        _ => "",
    }
}

impl CallSyntax {
    /// The text that begins calls: their first tag, or their first word if there is no tag.
    pub fn trigger(&self) -> &str {
        let opening = if self.open.is_empty() { leading(&self.call) } else { leading(&self.open) };
        let opening = opening.trim_start();
        if let Some(tag) = tags(opening).next().filter(|t| opening.starts_with(t)) {
            return tag;
        }
        let end = match opening.chars().next() {
            Some('{' | '[') => 1,
            _ => opening.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(opening.len()),
        };
        &opening[..end]
    }

    /// Whether calls are distinguished from text only by their position at the beginning of the answer.
    pub fn at_start(&self) -> bool {
        let trigger = self.trigger();
        // A word with a bracket is a mark, too: FireFunction's `functools[`.
        trigger.len() < 2 || !(trigger.starts_with(['<', '[', ']']) || trigger.ends_with('['))
    }

    /// All pieces in order.
    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.open.iter().chain(&self.call).chain(self.separator.iter().flatten()).chain(&self.close)
    }

    /// Tags in the syntax's own text, which may be tokens.
    pub fn tags(&self) -> Vec<&str> {
        let mut out: Vec<&str> = Vec::new();
        for piece in self.pieces() {
            match piece {
                Piece::Text(text) => out.extend(tags(text)),
                Piece::Arguments(Arguments::Tagged(t)) => {
                    // A tag may contain the key.
                    out.extend([&t.open, &t.text, &t.close].into_iter().flat_map(|t| tags(t)));
                    out.extend(t.others.iter().flat_map(|(_, text)| tags(text)));
                }
                Piece::Arguments(Arguments::Gemma) => out.push("<|\"|>"),
                Piece::Arguments(Arguments::Nested(nested)) => out.push(&nested.mark),
                Piece::Arguments(Arguments::Json | Arguments::Python) => {}
                Piece::Name | Piece::Id | Piece::Number(_) => {}
            }
        }
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Writes calls in the model's syntax, given functions and arguments. Ids are made up.
    pub fn write(&self, calls: &[(String, Map<String, Value>)]) -> String {
        let mut out = String::new();
        let nothing = Map::new();
        let separator = self.separator.as_deref().unwrap_or_default();
        for (i, (name, arguments)) in calls.iter().enumerate() {
            let before = if i == 0 { &self.open } else { separator };
            for piece in before.iter().chain(&self.call) {
                piece.write(&mut out, i as u32, name, arguments);
            }
        }
        self.close.iter().for_each(|p| p.write(&mut out, calls.len() as u32, "", &nothing));
        out
    }
}

impl Piece {
    fn write(&self, out: &mut String, i: u32, name: &str, arguments: &Map<String, Value>) {
        let list = |each: &dyn Fn(&String, &Value) -> String, between: &str| {
            arguments.iter().map(|(k, v)| each(k, v)).collect::<Vec<_>>().join(between)
        };
        out.push_str(&match self {
            Self::Text(text) => text.clone(),
            Self::Name => name.into(),
            Self::Id => format!("{i:09}"),
            Self::Number(first) => (first + i).to_string(),
            Self::Arguments(Arguments::Json) => json_dumps(&arguments.clone().into()),
            Self::Arguments(Arguments::Python) => list(&|k, v| format!("{k}={}", python_text(v)), ", "),
            Self::Arguments(Arguments::Gemma) => list(&|k, v| format!("{k}:{}", gemma(v)), ","),
            Self::Arguments(Arguments::Nested(nested)) => nested.members(arguments),
            Self::Arguments(Arguments::Tagged(t)) => list(
                &|k, v| {
                    let value = v.as_str().map_or_else(|| json_dumps(v), str::to_string);
                    format!("{}{k}{}{value}{}", t.open, t.middle(JsonType::of(v)), t.close)
                },
                "",
            ),
        });
    }
}

fn gemma(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(items) => format!("[{}]", items.iter().map(gemma).collect::<Vec<_>>().join(",")),
        Value::Object(members) => {
            let all = members.iter().map(|(k, v)| format!("{k}:{}", gemma(v)));
            format!("{{{}}}", all.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// Maximum length of the name in MiniMax's mark.
const NAME_CHARS_MAX: usize = 64;

/// The tags in a text: `<...>` and `[...]`, with a letter and without white space, quotation marks or brackets in them; and MiniMax's
/// `]<]...[>[`.
pub fn tags(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(['<', '[', ']']).filter_map(|(at, open)| {
        if open == "]" {
            // A name ends before the next one could begin, so a text of nothing but `]<]` takes no more time than another.
            let rest = text[at..].strip_prefix("]<]")?;
            let end = rest.char_indices().take(NAME_CHARS_MAX + 1).find(|(_, c)| !c.is_alphanumeric())?.0;
            let is_tag = end > 0 && rest[end..].starts_with("[>[");
            return is_tag.then(|| &text[at..at + "]<][>[".len() + end]);
        }
        let (inner, close) = (at + 1, if open == "<" { '>' } else { ']' });
        let ends = |c: char| c == close || c.is_whitespace() || "\"'<[{}".contains(c);
        let end = inner + text[inner..].find(ends)?;
        let is_tag = text[end..].starts_with(close) && text[inner..end].contains(char::is_alphabetic);
        is_tag.then(|| &text[at..=end])
    })
}
