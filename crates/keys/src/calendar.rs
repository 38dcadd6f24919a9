//! Days and months in UTC. Used for budgets by the month, for usage by the day, and by whoever prints either.

/// Seconds of a day.
pub const DAY_S: i64 = 86_400;

/// Days since 1970 of a point in time, in seconds since 1970 UTC.
pub fn day(unix: i64) -> i64 {
    unix.div_euclid(DAY_S)
}

/// Year, month (1 to 12) and day of the month (1 to 31) of a day since 1970.
///
/// Counted from 1 March of the year 0, so that the leap day is a year's last (as in Hinnant's `civil_from_days`).
pub fn date(day: i64) -> (i64, i64, i64) {
    let z = day.saturating_add(719_468);
    let (era, of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day_of_month)
}

/// The day since 1970 of a date. Months beyond 12 are those of the next years.
pub fn day_of(year: i64, month: i64, day_of_month: i64) -> i64 {
    let (year, month) = (year + (month - 1).div_euclid(12), (month - 1).rem_euclid(12) + 1);
    let y = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (y.div_euclid(400), y.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day_of_month - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

/// The first second of the month that `unix` is in, and of the next.
pub fn month(unix: i64) -> (i64, i64) {
    let (year, month, _) = date(day(unix));
    (day_of(year, month, 1) * DAY_S, day_of(year, month + 1, 1) * DAY_S)
}

/// `2026-11-21`.
pub fn iso(day: i64) -> String {
    let (year, month, day) = date(day);
    format!("{year:04}-{month:02}-{day:02}")
}

/// `2026-11-21 18:00 UTC`.
pub fn iso_minute(unix: i64) -> String {
    let of_day = unix.rem_euclid(DAY_S);
    format!("{} {:02}:{:02} UTC", iso(day(unix)), of_day / 3600, of_day / 60 % 60)
}

/// The day of `2026-11-21`, or `None` where that is no date of the years 1970 to 9999.
pub fn parse(text: &str) -> Option<i64> {
    let mut parts = text.split('-').map(|p| {
        let digits = !p.is_empty() && p.len() <= 4 && p.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| p.parse::<i64>().ok())?
    });
    let (year, month, of_month) = (parts.next()??, parts.next()??, parts.next()??);
    let day = day_of(year, month, of_month);
    (parts.next().is_none() && year >= 1970 && date(day) == (year, month, of_month)).then_some(day)
}
