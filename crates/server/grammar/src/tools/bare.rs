//! Unescaped text between tags: what it may contain, so that its end is unambiguous.

use octet_parser::tags;

use super::texts::text;
use crate::{Vocabulary, lark};

/// Whether a name can be part of a tag.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['<', '>', '\n'])
}

/// The form of bare text values in one syntax.
pub struct Bare {
    /// Tags that a value must not contain, as parsers would misread them; the one that ends it first.
    tags: Vec<String>,
    /// The text after the tag that ends a value.
    behind: String,
    /// The text after a value, in Lark.
    end: String,
    /// The end from its first tag, in Lark, if that is a token: no text contains it then.
    token: Option<String>,
}

impl Bare {
    /// Qwen3-Coder's syntax.
    pub fn qwen() -> Self {
        let tags = ["</parameter>", "</function>", "<function="].map(String::from).into();
        Self { tags, behind: "\n".into(), end: lark::literal("\n</parameter>\n"), token: None }
    }

    /// A syntax in which `close` follows a value, with the Lark `end`; `None` if it has no recognisable tag.
    pub fn closed_by(vocabulary: &Vocabulary, close: &str, end: String) -> Option<Self> {
        let tag = close.trim();
        let first = tags(tag).next().filter(|t| tag.starts_with(t) && vocabulary.special(t).is_some());
        let token = first.map(|_| text(vocabulary, close.trim_start()));
        let tag = first.unwrap_or(tag);
        let behind = close.trim_start().strip_prefix(tag)?.to_string();
        let is_clear = tag.starts_with('<') && tag.matches('<').count() == 1;
        is_clear.then(|| Self { tags: vec![tag.into()], behind, end, token })
    }

    /// Whether a value can be written and parsed back.
    pub fn is_value(&self, text: &str) -> bool {
        !self.tags.iter().any(|t| text.contains(t))
    }

    /// Rules for any text up to and including the end of its parameter: rule `text` (shared by all parameters of any text).
    ///
    /// It is split at each `<`, as `PLAIN ANGLE* TEXT_END`. A single regex with the tags subtracted would be equivalent; but
    /// llguidance computes masks quickly only for a plain repetition, and the splits keep it plain.
    pub fn rules(&self) -> String {
        if let Some(end) = &self.token {
            return format!("text: /(?s:.*)/ {end}\n");
        }
        let prefixes: Vec<&str> = {
            let mut all: Vec<&str> =
                self.tags.iter().flat_map(|t| (1..t.len()).filter_map(|n| t.get(..n))).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        // A prefix of a tag, then a character that does not continue it. Before another `<` any prefixes may stand.
        let angles: Vec<String> = prefixes
            .iter()
            .map(|p| {
                let next: String = self
                    .tags
                    .iter()
                    .filter_map(|t| t.strip_prefix(p)?.chars().next())
                    .map(|c| regex_syntax::escape(&c.to_string()))
                    .collect();
                format!("{}[^{next}<]", regex_syntax::escape(p))
            })
            .collect();
        let begun: Vec<String> = prefixes.iter().map(|p| regex_syntax::escape(p)).collect();
        let begun = format!("(?:{})*", begun.join("|"));
        let regex = |r: String| format!("/{}/", r.replace('/', "\\/"));
        let end = format!("{}{}", self.tags[0], self.behind);
        format!(
            "text: PLAIN? ANGLE* TEXT_END\nPLAIN: /[^<]+/\nANGLE: {}\nTEXT_END: {}\n",
            regex(format!("{begun}(?:{})[^<]*", angles.join("|"))),
            regex(format!("{begun}{}", regex_syntax::escape(&end).replace('\n', "\\n"))),
        )
    }

    /// A terminal for text that each of these regexes matches as a whole, and that contains no tag.
    pub fn limited(&self, regexes: &[String]) -> String {
        let tags: Vec<String> =
            self.tags.iter().map(|t| regex_syntax::escape(t).replace('/', "\\/")).collect();
        let all: Vec<String> = regexes.iter().map(|r| format!("/{r}/")).collect();
        format!("{} & ~/(?s:.*)({})(?s:.*)/", all.join(" & "), tags.join("|"))
    }

    /// One of these values, up to and including the end of its parameter.
    pub fn choice(&self, values: &[String]) -> String {
        let values: Vec<String> = values.iter().map(|v| lark::literal(v)).collect();
        format!("({}) {}", values.join("| "), self.end)
    }

    /// The end of a parameter.
    pub fn end(&self) -> &str {
        &self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule `text` as one regex.
    fn text() -> regex::Regex {
        let rules = Bare::qwen().rules();
        let terminal = |name: &str| {
            let line = rules.lines().find_map(|l| l.strip_prefix(&format!("{name}: "))).unwrap();
            line[1..line.len() - 1].to_string()
        };
        let (plain, angle, end) = (terminal("PLAIN"), terminal("ANGLE"), terminal("TEXT_END"));
        regex::Regex::new(&format!("^(?:{plain})?(?:{angle})*(?:{end})$")).unwrap()
    }

    #[test]
    fn text_is_all_but_the_tags() {
        let text = text();
        let pieces = [
            "</parameter>",
            "</function>",
            "<function=",
            "<",
            "</",
            "</p",
            "</parameter",
            "<f",
            "x",
            "\n",
            "é",
        ];
        let mut seen = [0; 2];
        for a in pieces {
            for b in pieces {
                for c in pieces {
                    let value = format!("{a}{b}{c}");
                    let fits = text.is_match(&format!("{value}</parameter>\n"));
                    // What the end completes is a tag, too.
                    assert_eq!(fits, Bare::qwen().is_value(&value), "{value:?}");
                    seen[usize::from(fits)] += 1;
                }
            }
        }
        assert!(seen[0] > 500 && seen[1] > 200, "{seen:?}");
    }

    #[test]
    fn names() {
        assert!(is_name("a-b.c") && !is_name("") && !is_name("a>") && !is_name("<") && !is_name("a\nb"));
    }
}
