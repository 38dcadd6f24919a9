//! What can stand in the head of a request to a provider. Decided here alone: `octet config check`, the start of a server and its
//! clients of providers ask.

/// Longest name of a header.
const NAME_BYTES_MAX: usize = 256;

/// Headers that are about the connection, the address or the body: whoever sends a request makes them.
const SENDERS: &[&str] = &[
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "accept-encoding",
];

/// Why a configuration cannot name a header so, put behind the name; `None` where it can.
pub fn wrong_name(name: &str) -> Option<&'static str> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(token) {
        return Some("is no name of a header");
    }
    let is_senders = SENDERS.iter().any(|s| s.eq_ignore_ascii_case(name));
    is_senders.then_some("is made here for each request, and cannot be set: remove it")
}

/// Why a text cannot be a header's value, to follow the value's name; `None` if it can.
pub fn wrong_value(value: &str) -> Option<&'static str> {
    value
        .contains(char::is_control)
        .then_some("has a line break or another control character in it, which cannot stand in a header")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_told_apart_from_what_could_be_another_request() {
        for name in ["x-team", "X_Team", "anthropic-beta", "authorization"] {
            assert_eq!(wrong_name(name), None, "{name}");
        }
        for name in ["", "a b", "a:", "a\r\nb", "é", "Host", "CONTENT-LENGTH", "connection", &"x".repeat(300)]
        {
            assert!(wrong_name(name).is_some(), "{name}");
        }
        for value in ["", "sk-1", "a b", "Grüße"] {
            assert_eq!(wrong_value(value), None, "{value}");
        }
        for value in ["a\r\nb: c", "a\n", "\u{0}", "a\tb", "\u{7f}", "\u{85}"] {
            assert!(wrong_value(value).is_some(), "{value:?}");
        }
    }
}
