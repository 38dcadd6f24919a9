//! Valid headers of a request to a provider. The only place that decides: used by `octet config check`, the start of a server and its
//! clients of providers.

/// Maximum length of a header's name.
const NAME_BYTES_MAX: usize = 256;

/// Headers about the connection, the address or the body: they are created when a request is sent.
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

/// Why a name cannot be used for a header, to follow the name; `None` if it can.
pub fn wrong_name(name: &str) -> Option<&'static str> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(token) {
        return Some("is not a valid header name");
    }
    let is_senders = SENDERS.iter().any(|s| s.eq_ignore_ascii_case(name));
    is_senders.then_some("is created for each request, and cannot be set: remove it")
}

/// Why a text cannot be a header's value, to follow the value's name; `None` if it can.
pub fn wrong_value(value: &str) -> Option<&'static str> {
    value
        .contains(char::is_control)
        .then_some("contains a line break or another control character, which is not allowed in a header")
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
