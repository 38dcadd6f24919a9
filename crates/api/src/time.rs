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

/// Seconds since 1970 UTC of an RFC 3339 time; fractions are cut. `None` if it is none, or before 1970.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let mut date = date.split('-').map(|n| n.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let zone = time.rfind(['Z', 'z', '+', '-'])?;
    let offset_s = match time.get(zone + 1..)?.split_once(':') {
        Some((h, m)) => (h.parse::<i64>().ok()?.min(24) * 60 + m.parse::<i64>().ok()?.min(60)) * 60,
        None => 0,
    };
    let offset_s = if time[zone..].starts_with('-') { -offset_s } else { offset_s };
    let clock = time[..zone].split('.').next()?;
    let mut clock = clock.split(':').map(|n| n.parse::<u64>().ok().filter(|n| *n <= 60));
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    // Days from the first of March, where leap days come last (Howard Hinnant's days_from_civil).
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    (days * 86_400 + hour * 3600 + minute * 60 + second).checked_add_signed(-offset_s)
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
