//! Texts of others, made fit for a terminal and for a line of a log. Used wherever names of a file or of a client are printed.

use std::borrow::Cow;

/// Characters that are not shown but do something: control characters, ends of lines, and those that turn the direction of writing.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with such characters escaped as Rust writes them: a name can neither move the cursor, nor pass for another line, nor be
/// read backwards.
pub fn printable(text: &str) -> Cow<'_, str> {
    // Most texts are ASCII, and need not be decoded.
    if text.bytes().all(|b| matches!(b, b' '..=b'~')) || !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_shown_is_spelled_out() {
        assert!(matches!(printable("qwen3.6:35b 你好 🙂"), Cow::Borrowed(_)));
        let hostile = "a\nb\u{1b}[2Jc\u{202e}d\u{85}e\u{2028}f\r\t";
        assert_eq!(printable(hostile), "a\\nb\\u{1b}[2Jc\\u{202e}d\\u{85}e\\u{2028}f\\r\\t");
    }
}
