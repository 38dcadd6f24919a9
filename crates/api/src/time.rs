//! Points in time as text. Used by the dialects that write them so (Anthropic's and Ollama's lists, Ollama's answers).

/// Seconds since 1970 UTC as RFC 3339: `2026-11-21T18:00:00Z`. Years beyond 9999 are written as 9999's end.
pub(crate) fn rfc3339(seconds: u64) -> String {
    /// 9999-12-31T23:59:59Z
    const LAST: u64 = 253_402_300_799;
    let seconds = seconds.min(LAST);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let mut days = seconds / 86_400;
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let mut year = 1970;
    // 400 years repeat.
    year += days / 146_097 * 400;
    days %= 146_097;
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
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
        }
    }
}
