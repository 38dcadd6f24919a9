//! Times as text, for the dialects that write them so (Anthropic's and Ollama's lists, Ollama's answers).

use ::time::format_description::well_known::Rfc3339;
use ::time::{OffsetDateTime, UtcDateTime};

/// Seconds since 1970 UTC as RFC 3339: `2026-11-21T18:00:00Z`. Times after year 9999 are written as its end.
pub fn rfc3339(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|s| UtcDateTime::from_unix_timestamp(s).ok());
    let time = time.unwrap_or(UtcDateTime::MAX);
    let (hour, minute, second) = time.as_hms();
    format!("{}T{hour:02}:{minute:02}:{second:02}Z", time.date())
}

/// Seconds since 1970 UTC of an RFC 3339 time, truncated. `None` if it is invalid or before 1970.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    OffsetDateTime::parse(text, &Rfc3339).ok()?.unix_timestamp().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_points() {
        // From `date -u -d @N`.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (u64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
            assert_eq!(super::seconds(text), Some(seconds.min(253_402_300_799)));
        }
        for (text, expected) in [
            ("2024-02-29T23:59:59.123456789Z", Some(1_709_251_199)),
            ("2024-03-01T01:59:59.5+02:00", Some(1_709_251_199)),
            ("2024-02-29T16:59:59-07:00", Some(1_709_251_199)),
            ("2024-02-29", None),
            ("2024-02-29T23:59:59", None),
            ("1969-12-31T23:59:59Z", None),
            ("now", None),
            ("2024-99-29T23:59:59Z", None),
            ("2024-02-29T23:99:59Z", None),
            ("1970-01-01T00:00:00+99:99", None),
        ] {
            assert_eq!(super::seconds(text), expected, "{text}");
        }
    }
}
