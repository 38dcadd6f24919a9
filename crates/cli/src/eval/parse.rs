//! What texts are read as: answers, blocks of code, numbers, patterns and schemas.

use anyhow::Context;
use regex::{Regex, RegexBuilder};
use serde_json::Value;

/// Largest compiled pattern of a suite.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// A pattern of a suite.
pub fn regex(pattern: &str) -> anyhow::Result<Regex> {
    RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build().context("regex")
}

/// A schema may not refer to other documents: nothing is fetched.
pub fn schema(schema: &Value) -> anyhow::Result<jsonschema::Validator> {
    jsonschema::validator_for(schema).map_err(|e| anyhow::anyhow!("schema: {e}"))
}

/// An answer without the reasoning that some servers leave in it.
pub fn answer(content: &str) -> &str {
    let text = content.trim();
    match text.strip_prefix("<think>") {
        Some(thought) => thought.split_once("</think>").map_or("", |(_, answer)| answer.trim()),
        None => text,
    }
}

/// What follows the last "Answer:"; all, without one.
pub fn last(text: &str) -> &str {
    const MARK: &str = "answer:";
    // ASCII letters only: all positions stay those of the text.
    let lower = text.to_ascii_lowercase();
    // Emphasis may lie around the word or around both: `**Answer:** 7`.
    lower.rfind(MARK).map_or(text, |at| &text[at + MARK.len()..])
}

/// A text without white space, quotes and emphasis around it.
pub fn bare(text: &str) -> &str {
    let text = text.trim_matches(|c: char| c.is_whitespace() || "*_`".contains(c));
    let text = text.strip_prefix("python\n").unwrap_or(text).trim();
    text.strip_suffix('.').unwrap_or(text).trim_matches('"')
}

/// The numbers in a text. A comma between groups of three digits is no end.
pub fn numbers(text: &str) -> impl DoubleEndedIterator<Item = f64> {
    let mut all = Vec::new();
    let chars: Vec<char> = text.chars().collect();
    let digit = |i: usize| chars.get(i).is_some_and(char::is_ascii_digit);
    let group = |i: usize| chars[i] == ',' && (1..=3).all(|k| digit(i + k)) && !digit(i + 4);
    let mut i = 0;
    while i < chars.len() {
        if !digit(i) {
            i += 1;
            continue;
        }
        let begins = i;
        let mut number = String::new();
        let is_negative = begins > 0 && matches!(chars[begins - 1], '-' | '−');
        let after_word = begins > 1 && (chars[begins - 2].is_alphanumeric() || chars[begins - 2] == ')');
        if is_negative && !after_word {
            number.push('-');
        }
        while i < chars.len() && (digit(i) || group(i) || (chars[i] == '.' && digit(i + 1))) {
            if chars[i] != ',' {
                number.push(chars[i]);
            }
            i += 1;
        }
        // `1.2.3` is none.
        all.extend(number.parse::<f64>().ok());
    }
    all.into_iter()
}

/// The fenced blocks of a text. One that is not closed goes to the end.
pub fn blocks(text: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let (mut open, mut at) = (None, 0);
    for piece in text.split_inclusive('\n') {
        let fence = piece.trim();
        if fence.starts_with("```") {
            match open.take() {
                None => open = Some(at + piece.len()),
                Some(from) => all.push(&text[from..at]),
            }
        }
        at += piece.len();
    }
    all.extend(open.map(|from| &text[from..]));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_counts() {
        let number = |text: &str| numbers(text).last();
        for (text, n) in [
            ("150", 150.0),
            ("Answer: 1,250 km", 1250.0),
            ("2 hours, 75 km/h: 150.", 150.0),
            ("-3.5", -3.5),
            ("from 10-20", 20.0),
            ("x = 1.5e", 1.5),
            ("about 12,5", 5.0),
            ("$\\boxed{42}$", 42.0),
        ] {
            assert_eq!(number(text), Some(n), "{text}");
        }
        assert_eq!(number("none"), None);
    }

    #[test]
    fn blocks_of_code_are_found() {
        let two = "Here:\n```python\nclass A:\n    pass\n```\nUse it:\n```python\na = A()\n```\n";
        assert_eq!(blocks(two).len(), 2);
        assert_eq!(blocks("```json\n{}\n```"), ["{}\n"]);
        assert!(blocks("no code").is_empty());
    }
}
