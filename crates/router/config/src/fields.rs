//! The keys of one mapping, by name and type. Every key is checked: unknown and unsupported ones are reported.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use crate::keys::{Key, Kind, Section, Verdict};
use crate::problem::{nearest, quoted};
use crate::reader::Reader;
use crate::sections;
use crate::units;
use crate::yaml::{Entry, Node, Value};
use crate::{Secret, Span};

/// A mapping that is being read.
pub(crate) struct Fields<'a> {
    pub reader: &'a Reader<'a>,
    pub section: &'static Section,
    pub span: &'a Span,
    entries: &'a [Entry],
}

impl<'a> Fields<'a> {
    /// Checks all keys. An empty section (`router_settings:`) has no keys. `None` if it is not a mapping.
    pub fn new(reader: &'a Reader<'a>, section: &'static Section, node: &'a Node) -> Option<Self> {
        let entries: &[Entry] = match &node.value {
            Value::Map(entries) => entries,
            Value::Null => &[],
            other => {
                let found = other.describe();
                reader.wrong(
                    &node.span,
                    format!("{} must be a mapping of keys to values, not {found}", section.name),
                );
                return None;
            }
        };
        let fields = Self { reader, section, span: &node.span, entries };
        for entry in entries {
            fields.look_at(entry);
        }
        Some(fields)
    }

    fn look_at(&self, entry: &Entry) {
        let (section, name) = (self.section, entry.key.as_str());
        let path = if section.name == sections::ROOT.name {
            name.into()
        } else {
            format!("{}.{name}", section.name)
        };
        if let Some(key) = section.key(name) {
            if self.is_blank(key, &entry.node) {
                self.reader.note(&entry.node.span, path, "is empty: ignored");
            } else if let Some(used) = self.entry(key).filter(|used| used.key != name) {
                self.named_twice(key, entry, used, path);
            }
            return;
        }
        match section.verdict(name) {
            Verdict::Honoured | Verdict::Open => {}
            Verdict::Ignored(why) => self.reader.note(&entry.span, path, why),
            Verdict::Unsupported(why) => self.reader.unsupported(entry, &path, why),
            Verdict::Mistyped(near) => {
                let what = format!("{} has no key {}", section.name, quoted(name));
                self.reader.wrong(&entry.span, format!("{what}: did you mean '{near}'?"));
            }
            Verdict::Unknown(near) => self.reader.note(&entry.span, path, unknown(section, name, near)),
        }
    }

    /// Reports a key that is given under two names. As in LiteLLM, the key's own name takes precedence.
    fn named_twice(&self, key: &Key, entry: &Entry, used: &Entry, path: String) {
        if key.guards {
            let text = format!("'{}' is another name of '{}': keep one of them", entry.key, used.key);
            self.reader.wrong(&entry.span, text);
        } else if entry.node.value != used.node.value {
            let text = format!("ignored: it is another name of '{}', which is set too", used.key);
            self.reader.note(&entry.span, path, text);
        }
    }

    /// The entry that counts for a key: not `null`, nor an empty text where that is none.
    fn entry(&self, key: &Key) -> Option<&'a Entry> {
        let given =
            |e: &&Entry| key.is(&e.key) && e.node.value != Value::Null && !self.is_blank(key, &e.node);
        let own = self.entries.iter().filter(given).find(|e| e.key == key.name);
        own.or_else(|| self.entries.iter().find(given))
    }

    /// Whether a value of an entry of `model_list` is an empty text: as in LiteLLM, such a key or address is none.
    fn is_blank(&self, key: &Key, node: &Node) -> bool {
        self.section.name == sections::PARAMS.name
            && key.name != "model"
            && matches!(key.kind, Kind::Text | Kind::Secret)
            && matches!(&node.value, Value::Text(text) if text.trim().is_empty())
    }

    /// Whether a key without effect here is present and not off.
    pub fn names_unused(&self, name: &str) -> bool {
        self.entries.iter().any(|e| e.key == name && !e.node.value.is_off())
    }

    /// Its value; `None` for `null`.
    pub fn get(&self, name: &'static str) -> Option<&'a Node> {
        debug_assert!(
            self.section.keys.iter().any(|k| k.name == name),
            "{}.{name} is declared",
            self.section.name
        );
        self.reader.ask(self.section.name, name);
        self.entry(self.section.key(name)?).map(|e| &e.node)
    }

    /// Keys that the section does not declare, and their values.
    pub fn others(&self) -> impl Iterator<Item = &'a Entry> {
        let section = self.section;
        self.entries.iter().filter(move |e| section.key(&e.key).is_none())
    }

    /// Whether there is such a key.
    pub fn has(&self, name: &'static str) -> bool {
        self.get(name).is_some()
    }

    /// Reports an invalid value.
    pub fn wrong(&self, name: &str, node: &Node, expected: &str) {
        let found = node.value.describe();
        self.reader
            .wrong(&node.span, format!("{}.{name}: expected {expected}, found {found}", self.section.name));
    }

    /// A text. A number is not accepted: `1.10` would lose its last digit.
    pub fn text(&self, name: &'static str) -> Option<String> {
        let node = self.get(name)?;
        self.text_of(name, node)
    }

    /// The text of an item.
    pub fn text_of(&self, name: &str, node: &Node) -> Option<String> {
        match &node.value {
            Value::Text(t) => self.reader.resolve(&node.span, t),
            Value::Int(_) | Value::Float(_) | Value::Bool(_) => {
                self.wrong(name, node, "a text (put it in quotes)");
                None
            }
            _ => {
                self.wrong(name, node, "a text");
                None
            }
        }
    }

    /// A text that must not be empty.
    pub fn name(&self, name: &'static str) -> Option<String> {
        let node = self.get(name)?;
        let text = self.text_of(name, node)?;
        if text.trim().is_empty() {
            self.reader.wrong(&node.span, format!("{}.{name} is empty", self.section.name));
            return None;
        }
        Some(text)
    }

    /// A text that is sent in a header.
    pub fn header(&self, name: &'static str) -> Option<String> {
        let text = self.text(name)?;
        let span = self.get(name).map_or(self.span, |n| &n.span);
        self.reader.sendable(span, &format!("{}.{name}", self.section.name), &text).then_some(text)
    }

    /// A text that is not printed.
    pub fn secret(&self, name: &'static str) -> Option<Secret> {
        let node = self.get(name)?;
        match &node.value {
            Value::Text(t) => self.reader.secret(&node.span, "the key", t),
            _ => {
                self.wrong(name, node, "a text (put it in quotes)");
                None
            }
        }
    }

    /// true or false, also as YAML 1.1 writes it, and from a variable.
    pub fn bool(&self, name: &'static str) -> Option<bool> {
        let node = self.get(name)?;
        let value = match &node.value {
            Value::Bool(b) => Some(*b),
            Value::Text(t) => match self.reader.resolve(&node.span, t)?.to_lowercase().as_str() {
                "true" | "yes" | "on" | "1" => Some(true),
                "false" | "no" | "off" | "0" => Some(false),
                _ => None,
            },
            _ => None,
        };
        if value.is_none() {
            self.wrong(name, node, "true or false");
        }
        value
    }

    /// A number, also as a text, as variables have it.
    fn number_of(&self, name: &str, node: &Node, expected: &str) -> Option<f64> {
        let number = match &node.value {
            Value::Int(i) => Some(*i as f64),
            Value::Float(f) => Some(*f),
            // `20_000` is a number to PyYAML.
            Value::Text(t) => self.reader.resolve(&node.span, t)?.trim().replace('_', "").parse().ok(),
            _ => None,
        };
        let number = number.filter(|n: &f64| n.is_finite());
        if number.is_none() {
            self.wrong(name, node, expected);
        }
        number
    }

    /// A number within bounds.
    pub fn number(&self, name: &'static str, least: f64, most: f64) -> Option<f64> {
        let node = self.get(name)?;
        let number = self.number_of(name, node, "a number")?;
        if !(least..=most).contains(&number) {
            let range =
                if most == f64::MAX { format!("{least} or more") } else { format!("from {least} to {most}") };
            self.reader
                .wrong(&node.span, format!("{}.{name} is {number}; it must be {range}", self.section.name));
            return None;
        }
        Some(number)
    }

    /// A whole number, at least `least`.
    pub fn count<T: TryFrom<u64>>(&self, name: &'static str, least: u64) -> Option<T> {
        let node = self.get(name)?;
        self.count_of(name, node, least)
    }

    /// The same for an item.
    pub fn count_of<T: TryFrom<u64>>(&self, name: &str, node: &Node, least: u64) -> Option<T> {
        // Exactly representable, and more than any count here.
        const MOST: f64 = (1u64 << 53) as f64;
        let number = self.number_of(name, node, "a whole number")?;
        let whole =
            (number.fract() == 0.0 && number >= least as f64 && number <= MOST).then_some(number as u64);
        let count = whole.and_then(|n| T::try_from(n).ok());
        if count.is_none() {
            let text =
                format!("{}.{name}: {number} is not a whole number of at least {least}", self.section.name);
            self.reader.wrong(&node.span, text);
        }
        count
    }

    /// A time.
    pub fn time(&self, name: &'static str) -> Option<Duration> {
        let node = self.get(name)?;
        let time = match &node.value {
            Value::Text(t) => units::time(&self.reader.resolve(&node.span, t)?),
            Value::Int(i) => units::seconds(*i as f64),
            Value::Float(f) => units::seconds(*f),
            _ => None,
        };
        if time.is_none() {
            self.wrong(name, node, "a time in seconds, or like 30s, 5m, 2h or 7d, not below 0");
        }
        time
    }

    /// A time above zero.
    pub fn limit(&self, name: &'static str) -> Option<Duration> {
        let time = self.time(name)?;
        if time.is_zero() {
            let span = self.get(name).map_or(self.span, |n| &n.span);
            self.reader.wrong(
                span,
                format!(
                    "{}.{name} is 0, which leaves no time for an answer; remove it for the default",
                    self.section.name
                ),
            );
            return None;
        }
        Some(time)
    }

    /// A size in bytes; a plain number is in units of `unit` bytes.
    pub fn size(&self, name: &'static str, unit: u64) -> Option<u64> {
        let node = self.get(name)?;
        let size = match &node.value {
            Value::Text(t) => units::size(&self.reader.resolve(&node.span, t)?),
            Value::Int(i) => u64::try_from(*i).ok().and_then(|n| n.checked_mul(unit)),
            _ => None,
        };
        if size.is_none() {
            self.wrong(name, node, "a size like 24GiB or 500M");
        }
        size
    }

    /// One of the given words.
    pub fn one_of<T: Copy>(&self, name: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.text(name)?;
        let found = words.iter().find(|(w, _)| *w == text).map(|(_, v)| *v);
        if found.is_none() {
            let span = self.get(name).map_or(self.span, |n| &n.span);
            let all: Vec<&str> = words.iter().map(|(w, _)| *w).collect();
            let near = nearest(&text, all.iter().copied())
                .map_or(String::new(), |n| format!(" (did you mean '{n}'?)"));
            let text = format!(
                "{}.{name} is {}; it must be one of {}{near}",
                self.section.name,
                quoted(&text),
                all.join(", ")
            );
            self.reader.wrong(span, text);
        }
        found
    }

    /// A list of texts; one text is a list of one.
    pub fn texts(&self, name: &'static str) -> Option<Vec<String>> {
        let node = self.get(name)?;
        self.texts_of(name, node)
    }

    /// The same for an item.
    pub fn texts_of(&self, name: &str, node: &Node) -> Option<Vec<String>> {
        match &node.value {
            Value::List(items) => items.iter().map(|i| self.text_of(name, i)).collect(),
            Value::Text(_) => self.text_of(name, node).map(|t| vec![t]),
            _ => {
                self.wrong(name, node, "a list of texts");
                None
            }
        }
    }

    /// A mapping of texts to values.
    pub fn map(&self, name: &'static str) -> Option<&'a [Entry]> {
        let node = self.get(name)?;
        match &node.value {
            Value::Map(entries) => Some(entries),
            _ => {
                self.wrong(name, node, "a mapping");
                None
            }
        }
    }

    /// A list.
    pub fn list(&self, name: &'static str) -> Option<&'a [Node]> {
        let node = self.get(name)?;
        match &node.value {
            Value::List(items) => Some(items),
            _ => {
                self.wrong(name, node, "a list");
                None
            }
        }
    }

    /// A mapping that is passed on unchanged.
    pub fn json_map(&self, name: &'static str) -> Option<Map<String, Json>> {
        self.map(name).map(|entries| self.reader.json_map(entries))
    }

    /// A mapping with its own keys.
    pub fn section(&self, name: &'static str, section: &'static Section) -> Option<Fields<'a>> {
        self.get(name).and_then(|node| Fields::new(self.reader, section, node))
    }
}

/// The note for an unknown key.
fn unknown(section: &Section, name: &str, near: Option<&str>) -> String {
    let what = match (near, sections::place(section, name)) {
        (Some(near), _) => format!("did you mean '{near}'?"),
        (None, Some(place)) => format!("it belongs under {place}"),
        (None, None) if section.name == "litellm_params" => {
            "it is not sent; a parameter for the provider belongs under 'extra_body'".into()
        }
        (None, None) => "docs/router-keys.md lists the keys".into(),
    };
    if section.open {
        format!("passed on to clients; {what}")
    } else {
        format!("unknown key, ignored: {what}")
    }
}
