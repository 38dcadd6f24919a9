//! Writes numbers in a call's arguments as integers where the tool's schema has integers: `5.0` and `1e3` become `5` and `1000`. All other
//! text stays as the model wrote it. Works incrementally, as arguments may be emitted before they are complete.

use serde_json::Value;

use crate::coerce;
use crate::message::Tool;
use crate::types::Types;

/// Maximum nesting in which numbers are changed.
const DEPTH_MAX: usize = 64;
/// Maximum length of a number that is changed, before and after.
const DIGITS_MAX: usize = 40;

/// An open container: its current key, if it is an object.
#[derive(Debug)]
struct Container {
    is_object: bool,
    key: String,
    /// A key comes next, and no value.
    before_key: bool,
}

/// What a character may belong to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum At {
    #[default]
    Between,
    Text {
        is_key: bool,
        escaped: bool,
    },
    /// A number that stays, or a word.
    Word,
    /// A number that may become an integer.
    Number,
}

/// Rewrites the arguments of one call.
#[derive(Debug, Default)]
pub struct Integers {
    /// The tool's index.
    tool: Option<usize>,
    at: At,
    around: Vec<Container>,
    /// The number so far, or the text of a key.
    held: String,
    changed: bool,
}

impl Integers {
    /// For a call of the tool with this index; of none, all text stays.
    pub fn of(tool: Option<usize>) -> Self {
        Self { tool, ..Self::default() }
    }

    /// Whether a number was changed.
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// Appends arguments to `out`; a number only once it is complete.
    pub fn push(&mut self, tools: &[Tool], text: &str, out: &mut String) {
        match self.tool.and_then(|i| tools.get(i)) {
            Some(tool) if tool.parameters.is_object() => {
                text.chars().for_each(|c| self.char(&tool.parameters, c, out));
            }
            _ => out.push_str(text),
        }
    }

    /// What is held of a number that is not complete.
    pub fn flush(&mut self) -> String {
        if self.at == At::Number { std::mem::take(&mut self.held) } else { String::new() }
    }

    fn char(&mut self, schema: &Value, c: char, out: &mut String) {
        match self.at {
            At::Text { is_key, escaped } => self.text(is_key, escaped, c),
            At::Number if is_of_number(c) && self.held.len() < DIGITS_MAX => return self.held.push(c),
            At::Number => {
                let text = std::mem::take(&mut self.held);
                let whole = integer(&text).filter(|_| !is_of_number(c));
                self.changed |= whole.as_ref().is_some_and(|w| *w != text);
                out.push_str(whole.as_deref().unwrap_or(&text));
                self.at = if is_of_number(c) { At::Word } else { At::Between };
            }
            At::Word if c.is_alphanumeric() || is_of_number(c) => {}
            At::Word => self.at = At::Between,
            At::Between => {}
        }
        if self.at == At::Between && self.begin(schema, c) {
            return self.held.push(c);
        }
        out.push(c);
    }

    fn text(&mut self, is_key: bool, escaped: bool, c: char) {
        if is_key {
            self.held.push(c);
        }
        self.at = match c {
            '"' if !escaped => {
                if is_key && let Some(container) = self.around.last_mut() {
                    container.key = serde_json::from_str(&self.held).unwrap_or_default();
                    self.held.clear();
                }
                // The closing quotation mark itself begins nothing.
                At::Word
            }
            c => At::Text { is_key, escaped: c == '\\' && !escaped },
        };
    }

    /// A character outside of texts and numbers; true if it begins a number that may become an integer.
    fn begin(&mut self, schema: &Value, c: char) -> bool {
        match c {
            '{' | '[' if self.around.len() == DEPTH_MAX => self.tool = None,
            '{' | '[' => {
                let is_object = c == '{';
                self.around.push(Container { is_object, key: String::new(), before_key: is_object });
            }
            '}' | ']' => {
                self.around.pop();
            }
            ',' | ':' => {
                if let Some(container) = self.around.last_mut() {
                    container.before_key = container.is_object && c == ',';
                }
            }
            '"' => {
                let is_key = self.around.last().is_some_and(|a| a.before_key);
                self.held.clear();
                if is_key {
                    self.held.push(c);
                }
                self.at = At::Text { is_key, escaped: false };
            }
            '-' | '0'..='9' => {
                let is_integer = self.is_integer(schema);
                self.at = if is_integer { At::Number } else { At::Word };
                self.held.clear();
                return is_integer;
            }
            c if c.is_alphanumeric() => self.at = At::Word,
            _ => {}
        }
        false
    }

    /// Whether the schema accepts integers at this place, and no other numbers.
    fn is_integer(&self, root: &Value) -> bool {
        let mut schema = Some(root);
        for container in &self.around {
            schema = schema.and_then(|s| match container.is_object {
                true => coerce::property(root, s, &container.key),
                false => coerce::items(root, s),
            });
        }
        let types = coerce::types(root, schema);
        !self.around.is_empty()
            && schema.is_some()
            && types.has(Types::INTEGER)
            && !types.has(Types::FRACTION)
    }
}

fn is_of_number(c: char) -> bool {
    matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')
}

/// A JSON number without fraction and exponent, if it is one; exactly, whatever its size.
pub fn integer(text: &str) -> Option<String> {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (digits, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    if whole.is_empty() || !all.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // The digits before the decimal point.
    let point = i64::try_from(whole.len()).ok()? + i64::from(exponent);
    let point = usize::try_from(point.max(0)).ok().filter(|p| *p <= DIGITS_MAX)?;
    let (before, behind) = all.split_at(point.min(all.len()));
    if behind.bytes().any(|b| b != b'0') {
        return None;
    }
    let zeros = "0".repeat(point.saturating_sub(all.len()));
    let value = format!("{before}{zeros}");
    Some(match value.trim_start_matches('0') {
        "" => "0".into(),
        value => format!("{sign}{value}"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_without_a_fraction_are_integers() {
        for (text, want) in [
            ("5", Some("5")),
            ("5.0", Some("5")),
            ("-5.00", Some("-5")),
            ("1e3", Some("1000")),
            ("1.5E+1", Some("15")),
            ("120e-1", Some("12")),
            ("0.0", Some("0")),
            ("-0.0", Some("0")),
            ("0e9", Some("0")),
            ("12345678901234567890.0", Some("12345678901234567890")),
            ("5.5", None),
            ("5e-1", None),
            ("1e999", None),
            ("1e-999", None),
            ("1e99999999999", None),
            ("-", None),
            ("1.", Some("1")),
            (".5", None),
            ("1-2", None),
        ] {
            assert_eq!(integer(text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn only_integers_of_the_schema_change() {
        let parameters = json!({"properties": {
            "i": {"type": "integer"}, "n": {"type": "number"}, "o": {"$ref": "#/$defs/o"},
            "l": {"type": "array", "items": {"type": ["integer", "null"]}}, "s": {"type": "string"}, "free": {},
        }, "$defs": {"o": {"type": "object", "properties": {"\"i\"": {"type": "integer"}, "n": {"type": "number"}}}}});
        let tools = [Tool { name: "f".into(), parameters }];
        let text = r#"{"i": 5.0, "n":5.0,"o" : {"\"i\"": 1e3, "n": 1e3}, "l": [2.0, null, 2.5, [3.0]], "s": "5.0, \"i\": 5.0", "free": 1.0, "i":-0.0}"#;
        let want = r#"{"i": 5, "n":5.0,"o" : {"\"i\"": 1000, "n": 1e3}, "l": [2, null, 2.5, [3.0]], "s": "5.0, \"i\": 5.0", "free": 1.0, "i":0}"#;
        for (cut, _) in text.char_indices() {
            let (mut integers, mut out) = (Integers::of(Some(0)), String::new());
            integers.push(&tools, &text[..cut], &mut out);
            integers.push(&tools, &text[cut..], &mut out);
            assert_eq!(out + &integers.flush(), want);
            assert!(integers.has_changed());
        }
        // What breaks off stays, and so does all without a tool.
        let (mut integers, mut out) = (Integers::of(Some(0)), String::new());
        integers.push(&tools, "{\"i\": 5.", &mut out);
        assert_eq!((out.as_str(), integers.flush().as_str()), ("{\"i\": ", "5."));
        let (mut integers, mut out) = (Integers::of(None), String::new());
        integers.push(&tools, text, &mut out);
        assert_eq!(out, text);
    }
}
