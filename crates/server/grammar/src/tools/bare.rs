//! Text between tags, which has no escapes: what it may hold, so that its end is found again. Used by `xml`.

use crate::lark;

/// Tags of a call that a value may not hold: whoever reads the call would take them for its own.
const TAGS: &[&str] = &["</parameter>", "</function>", "<function="];

/// Whether a name can stand in a tag.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['<', '>', '\n'])
}

/// Whether a value can be written and read back.
pub fn is_value(text: &str) -> bool {
    !TAGS.iter().any(|t| text.contains(t))
}

/// Rules for any text up to and with the end of its parameter: rule `text` (shared by all parameters that take any text).
///
/// It is cut at each `<`, as `PLAIN ANGLE* TEXT_END`. One regex for all of it, with the tags subtracted, would say the same;
/// but only of a plain repetition can llguidance tell at once that it takes most of the vocabulary, and cuts keep it plain.
pub fn rules() -> String {
    let prefixes: Vec<&str> = {
        let mut all: Vec<&str> = TAGS.iter().flat_map(|t| (1..t.len()).map(|n| &t[..n])).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    // A beginning of a tag, then a character with which it is none. Before another `<` any beginnings may stand.
    let angles: Vec<String> = prefixes
        .iter()
        .map(|p| {
            let next: String = TAGS
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
    format!(
        "text: PLAIN? ANGLE* TEXT_END\nPLAIN: /[^<]+/\nANGLE: {}\nTEXT_END: {}\n",
        regex(format!("{begun}(?:{})[^<]*", angles.join("|"))),
        regex(format!("{begun}{}\\n", regex_syntax::escape(TAGS[0]))),
    )
}

/// A terminal for text that each of these regexes matches as a whole, up to and with the end of its parameter.
pub fn limited(regexes: &[String]) -> String {
    let tags: Vec<String> = TAGS.iter().map(|t| regex_syntax::escape(t).replace('/', "\\/")).collect();
    let all: Vec<String> = regexes.iter().map(|r| format!("/{r}/")).collect();
    format!("({} & ~/(?s:.*)({})(?s:.*)/) {}", all.join(" & "), tags.join("|"), end())
}

/// One of these values, up to and with the end of its parameter.
pub fn choice(values: &[String]) -> String {
    let values: Vec<String> = values.iter().map(|v| lark::literal(v)).collect();
    format!("({}) {}", values.join("| "), end())
}

/// The end of a parameter.
pub fn end() -> String {
    lark::literal("\n</parameter>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule `text` as one regex.
    fn text() -> regex::Regex {
        let rules = rules();
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
                    assert_eq!(fits, is_value(&value), "{value:?}");
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
