//! Escapes untrusted texts for terminals and logs. Used wherever names from a file or a client are printed.

use std::borrow::Cow;

/// Invisible characters with an effect: control characters, line ends, and those that change the text direction.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with such characters escaped as in Rust: a name can neither move the cursor, nor look like another line, nor be
/// read backwards.
pub fn printable(text: &str) -> Cow<'_, str> {
    // Most texts are ASCII and need no decoding.
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
