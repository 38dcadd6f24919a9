//! `strftime` for templates that print today's date. Used by `jinja`. Time zone: UTC, so that a prompt does not depend on
//! where it was made.

/// Writes `seconds` since 1970 by `format`; an unknown directive is an error that names it.
pub(super) fn strftime(format: &str, seconds: i64) -> Result<String, String> {
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let days = seconds.div_euclid(86_400);
    let (year, month, day) = civil(days);
    let weekday = DAYS[days.rem_euclid(7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let hour12 = (hour + 11) % 12 + 1;

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        // glibc's "no padding", which templates use for days.
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let number = |n: i64, width: usize| if bare { n.to_string() } else { format!("{n:0width$}") };
        out.push_str(&match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month, 2),
            Some('B') => month_name.into(),
            Some('b' | 'h') => month_name[..3].into(),
            Some('d') => number(day, 2),
            Some('e') => format!("{day:2}"),
            Some('j') => number(days - days_before(year, 1, 1) + 1, 3),
            Some('A') => weekday.into(),
            Some('a') => weekday[..3].into(),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
            Some('F') => format!("{year:04}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('z') => "+0000".into(),
            Some('Z') => "UTC".into(),
            Some('%') => "%".into(),
            Some(other) => return Err(format!("strftime_now does not know %{other}")),
            None => return Err("the format of strftime_now ends in %".into()),
        });
    }
    Ok(out)
}

/// Year, month and day of a number of days since 1970: Howard Hinnant's `civil_from_days`, with years from March.
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * of_year + 2) / 153;
    let day = of_year - (153 * m + 2) / 5 + 1;
    let month = if m < 10 { m + 3 } else { m - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse of [`civil`].
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let y = year - i64::from(month <= 2);
    let era = y.div_euclid(400);
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let year_of_era = y.rem_euclid(400);
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expectations from Python's `datetime.fromtimestamp(s, UTC).strftime(...)`.
    #[test]
    fn dates_are_pythons() {
        let all = "%Y-%m-%d %H:%M:%S %a %A %b %B %j %y %I %p %% %-d %e";
        let check = |s: i64, want: &str| assert_eq!(strftime(all, s).unwrap(), want);
        check(0, "1970-01-01 00:00:00 Thu Thursday Jan January 001 70 12 AM % 1  1");
        check(951_826_154, "2000-02-29 12:09:14 Tue Tuesday Feb February 060 00 12 PM % 29 29");
        check(1_795_219_199, "2026-11-20 23:59:59 Fri Friday Nov November 324 26 11 PM % 20 20");
        check(-1, "1969-12-31 23:59:59 Wed Wednesday Dec December 365 69 11 PM % 31 31");
        assert!(strftime("%Q", 0).unwrap_err().contains("%Q"));
        assert!(strftime("%", 0).is_err());
    }

    #[test]
    fn civil_and_back() {
        for days in (-200_000..200_000).step_by(37) {
            let (y, m, d) = civil(days);
            assert_eq!(days_before(y, m, d), days);
        }
    }
}
