//! Days and months in UTC. Used for monthly budgets, daily usage, and their display.

use time::{Date, Duration, Month, UtcDateTime};

/// Seconds of a day.
pub const DAY_S: i64 = 86_400;

/// Day 0.
const EPOCH: Date = UtcDateTime::UNIX_EPOCH.date();

/// Days since 1970 of a time in seconds since 1970 UTC.
pub fn day(unix: i64) -> i64 {
    unix.div_euclid(DAY_S)
}

/// The date of a day since 1970, at most the end of the year 9999.
fn date(day: i64) -> Date {
    EPOCH.saturating_add(Duration::seconds(day.saturating_mul(DAY_S)))
}

/// The first second of the month of `unix`, and of the next month.
pub fn month(unix: i64) -> (i64, i64) {
    let today = date(day(unix));
    let first = day(unix) - i64::from(today.day()) + 1;
    let next = first + i64::from(today.month().length(today.year()));
    (first * DAY_S, next * DAY_S)
}

/// `2026-11-21`.
pub fn iso(day: i64) -> String {
    date(day).to_string()
}

/// `2026-11-21 18:00 UTC`.
pub fn iso_minute(unix: i64) -> String {
    let of_day = unix.rem_euclid(DAY_S);
    format!("{} {:02}:{:02} UTC", iso(day(unix)), of_day / 3600, of_day / 60 % 60)
}

/// Parses `2026-11-21`; `None` if it is not a date of the years 1970 to 9999.
pub fn parse(text: &str) -> Option<i64> {
    let mut parts = text.split('-').map(|p| {
        let digits = p.len() <= 4 && p.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| p.parse::<u16>().ok())?
    });
    let (year, month, of_month) = (parts.next()??, parts.next()??, parts.next()??);
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(year.into(), month, of_month.try_into().ok()?).ok()?;
    (parts.next().is_none() && year >= 1970).then(|| (date - EPOCH).whole_days())
}
