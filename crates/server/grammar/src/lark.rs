//! Grammars in llguidance's variant of Lark, generated here or sent by clients.

use serde_json::Value;

use crate::limits::{LARK_ANDS_MAX, LARK_BYTES_MAX};
use crate::schema::{Policy, Prepared};
use crate::{Error, regex};

/// A text as a literal. Ends with a space: an `i` after a literal would mean case-insensitive.
pub fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 3);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\0'..='\x1f' | '\x7f' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => out.push(c),
        }
    }
    out.push_str("\" ");
    out
}

/// A special token by id.
pub fn token(id: u32) -> String {
    format!("<[{id}]> ")
}

/// White space between two tokens of JSON: a blank, or a newline and indentation of at most 20 characters, as in llama.cpp. Without a
/// limit, small models write blanks until they run out of tokens.
const JSON_SPACE: &str = r" |\r?\n[ \t]{0,20}";

/// A JSON schema as part of a rule.
pub fn json(prepared: &Prepared) -> String {
    // "\u" escapes would give property names a second spelling, which exclusions of names would not cover.
    let escapes = if prepared.open { "nrbtf\\\"" } else { "nrbtf\\\"u" };
    let options = serde_json::json!({ "whitespace_pattern": JSON_SPACE, "json_allowed_escapes": escapes });
    let mut schema = match &prepared.schema {
        Value::Object(s) => s.clone(),
        // The options need an object.
        Value::Bool(false) => serde_json::Map::from_iter([("enum".into(), Value::Array(Vec::new()))]),
        _ => serde_json::Map::new(),
    };
    schema.insert("x-guidance".into(), options);
    format!("%json {} ", Value::Object(schema))
}

/// A client's grammar.
#[derive(Debug)]
pub struct Checked {
    /// Its JSON schemas are rewritten like those of other requests.
    pub text: String,
    /// It has complements and no special tokens. llguidance represents special tokens by bytes that no text contains, which every
    /// complement would include.
    pub plain: bool,
    /// What was omitted.
    pub warnings: Vec<String>,
}

/// Checks a client's grammar.
pub fn check(source: &str) -> Result<Checked, Error> {
    if source.len() > LARK_BYTES_MAX {
        return Err(Error::Lark(format!("it has {} bytes; the maximum is {LARK_BYTES_MAX}", source.len())));
    }
    let mut scan = Scan {
        source,
        at: 0,
        out: String::with_capacity(source.len()),
        ands: 0,
        complements: 0,
        tokens: 0,
        warnings: Vec::new(),
    };
    while scan.at < source.len() {
        scan.step()?;
    }
    if scan.ands > LARK_ANDS_MAX {
        return Err(Error::TooComplex(format!(
            "the grammar has {} '&'; the maximum is {LARK_ANDS_MAX}",
            scan.ands
        )));
    }
    if scan.complements > 0 && scan.tokens > 0 {
        return Err(Error::Lark(
            "it has complements (~) and special tokens (<...>); one of both is supported in a grammar, not both".into(),
        ));
    }
    Ok(Checked { text: scan.out, plain: scan.complements > 0, warnings: scan.warnings })
}

/// Scans a grammar to distinguish its schemas from text that looks like one.
struct Scan<'a> {
    source: &'a str,
    at: usize,
    out: String,
    ands: usize,
    complements: usize,
    tokens: usize,
    warnings: Vec<String>,
}

impl Scan<'_> {
    fn step(&mut self) -> Result<(), Error> {
        let rest = &self.source[self.at..];
        let len = if rest.starts_with("//") || rest.starts_with('#') {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with('"') {
            quoted(rest, '"')
        } else if rest.starts_with('/') {
            let len = quoted(rest, '/');
            if let Some(pattern) = rest[..len].strip_prefix('/').and_then(|p| p.strip_suffix('/')) {
                regex::check_len(pattern).map_err(Error::Lark)?;
                if regex::is_empty(pattern) {
                    return Err(Error::Lark(format!("{}: a regex matches nothing", self.place())));
                }
            }
            len
        } else if rest.starts_with("%json") {
            return self.json();
        } else if rest.starts_with("%regex") || rest.starts_with("%llguidance") {
            let keyword = if rest.starts_with("%regex") { "%regex" } else { "%llguidance" };
            keyword.len() + self.value(keyword)?.1
        } else {
            let c = rest.chars().next().unwrap_or_default();
            if c == '@' {
                return Err(Error::Lark(format!(
                    "{}: references to other grammars (@...) are not supported",
                    self.place()
                )));
            }
            self.ands += usize::from(c == '&');
            self.complements += usize::from(c == '~');
            self.tokens += usize::from(c == '<');
            c.len_utf8()
        };
        self.out.push_str(&rest[..len]);
        self.at += len;
        Ok(())
    }

    /// The JSON value after `keyword`, and its length with the space before it.
    fn value(&self, keyword: &str) -> Result<(Value, usize), Error> {
        let rest = &self.source[self.at + keyword.len()..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => Ok((value, values.byte_offset())),
            Some(Err(e)) => {
                Err(Error::Lark(format!("{}: {keyword} is not followed by JSON: {e}", self.place())))
            }
            None => Err(Error::Lark(format!("{}: {keyword} is not followed by JSON", self.place()))),
        }
    }

    fn json(&mut self) -> Result<(), Error> {
        let (schema, len) = self.value("%json")?;
        if schema.get("x-guidance").is_some() {
            return Err(Error::Lark(format!("{}: 'x-guidance' is not supported", self.place())));
        }
        let subject = format!("the schema in line {} of the grammar", self.line());
        let prepared = crate::schema::prepare(&schema, &subject, Policy::Refuse, false)?;
        self.out.push_str(&json(&prepared));
        self.warnings.extend(prepared.warnings);
        self.at += "%json".len() + len;
        Ok(())
    }

    fn line(&self) -> usize {
        self.source[..self.at].matches('\n').count() + 1
    }

    fn place(&self) -> String {
        format!("in line {}", self.line())
    }
}

/// Length of the prefix of `rest` up to the next unescaped `end`; all of it if there is none.
fn quoted(rest: &str, end: char) -> usize {
    let mut escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\n' if end == '"' => return i,
            c if c == end => return i + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_escape_what_would_end_them() {
        assert_eq!(literal("a\"b\\c\n\x7fé"), "\"a\\\"b\\\\c\\u000a\\u007fé\" ");
        assert_eq!(literal(""), "\"\" ");
    }

    #[test]
    fn schemas_are_distinguished_from_text() {
        let plain = "start: \"%json {\" /%json \\/ {/ A // %json {\n# %json\nA: %regex {\"substring_words\": \"& &\"}\n";
        let checked = check(plain).unwrap();
        assert!(checked.text == plain && !checked.plain);
        assert!(check("start: /~/ A \"~\"\nA: ~/a/").unwrap().plain);
        let Checked { text: out, .. } =
            check("start: \"x\" %json  {\"type\": \"string\", \"title\": \"t\"}\"y\"").unwrap();
        assert!(out.starts_with("start: \"x\" %json {\"type\":\"string\",\"x-guidance\""), "{out}");
        assert!(out.ends_with("} \"y\""), "{out}");
    }

    #[test]
    fn errors_have_a_position() {
        let said = |s: &str| check(s).unwrap_err().to_string();
        assert!(
            said("start: a\na: %json {\"not\": {}}").contains("line 2"),
            "{}",
            said("start: a\na: %json {\"not\": {}}")
        );
        assert!(said("start: %json [1").contains("in line 1: %json"));
        assert!(said("start: %json").contains("not followed by JSON"));
        assert!(said("start: %json {\"x-guidance\": {}}").contains("x-guidance"));
        assert!(said("\nstart: @other").contains("line 2"));
        assert!(
            said("start: \"a\" a\na: /b/ | /c[^\\x00-\\u{10ffff}]d/")
                .contains("line 2: a regex matches nothing")
        );
        assert!(said(&"&".repeat(9)).contains("'&'"));
        assert!(said(&" ".repeat(LARK_BYTES_MAX + 1)).contains("bytes"));
        assert!(said(&format!("start: /{}/", "a".repeat(20_000))).contains("regex"));
    }
}
