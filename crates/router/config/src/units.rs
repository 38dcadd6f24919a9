//! Parses times and sizes, for configuration files and for flags.

use std::time::Duration;

/// Maximum time: a hundred years, so that sums cannot overflow.
const SECONDS_MAX: f64 = 100.0 * 366.0 * 86400.0;

/// A number of seconds, at least 0.
pub(crate) fn seconds(n: f64) -> Option<Duration> {
    (0.0..=SECONDS_MAX).contains(&n).then(|| Duration::from_secs_f64(n))
}

/// `30` and `2.5` (seconds), `30s`, `5m`, `2h`, `7d`, `1w`, `1mo` (30 days), or several after each other: `1h30m`.
pub fn time(text: &str) -> Option<Duration> {
    let text = text.trim();
    if let Ok(n) = text.parse::<f64>() {
        return seconds(n);
    }
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let unit_end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let unit = match after[..unit_end].trim() {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            "w" => 7.0 * 86400.0,
            "mo" => 30.0 * 86400.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * unit;
        rest = &after[unit_end..];
    }
    if text.is_empty() { None } else { seconds(total) }
}

/// `32MiB`, `500K`, `1.5G`, or bytes. Units are powers of 1024, also `MB` and `GB`.
pub fn size(text: &str) -> Option<u64> {
    const UNITS: [(&str, u32); 5] = [("", 0), ("K", 10), ("M", 20), ("G", 30), ("T", 40)];
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
    let (_, bits) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let bytes = number.parse::<f64>().ok()? * (1u64 << bits) as f64;
    // More than any machine has; below, f64 is exact enough.
    (bytes < (1u64 << 50) as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        let s = |n| Some(Duration::from_secs_f64(n));
        for (text, expected) in [
            ("30", s(30.0)),
            ("2.5", s(2.5)),
            ("1h30m", s(5400.0)),
            ("7d", s(604_800.0)),
            ("1mo", s(2_592_000.0)),
            ("250ms", s(0.25)),
            ("", None),
            ("m", None),
            ("-1", None),
            ("5x", None),
            ("1e300", None),
            ("nan", None),
            ("5m3", None),
        ] {
            assert_eq!(time(text), expected, "{text}");
        }
        assert_eq!(
            (size("32MiB"), size("1.5g"), size("7"), size("x")),
            (Some(32 << 20), Some(3 << 29), Some(7), None)
        );
    }
}
