//! Texts in response headers.

use std::borrow::Cow;

/// Maximum number of characters of a header.
const HEADER_CHARS_MAX: usize = 1000;

/// Makes a text valid as a header value, and shortens it if it is long.
pub fn header_text(text: &str) -> Cow<'_, str> {
    if text.len() <= HEADER_CHARS_MAX && text.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
        return Cow::Borrowed(text);
    }
    let may_stand = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let mut out: String = text.chars().take(HEADER_CHARS_MAX).map(may_stand).collect();
    if text.chars().nth(HEADER_CHARS_MAX).is_some() {
        out += "...";
    }
    Cow::Owned(out)
}
