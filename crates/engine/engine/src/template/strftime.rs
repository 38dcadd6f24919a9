//! `strftime` for templates that print the date. Time zone: UTC, so that prompts do not depend on the machine's location.

use time::UtcDateTime;

/// Formats `seconds` since 1970; an unknown directive is an error that names it.
pub(super) fn strftime(format: &str, seconds: i64) -> Result<String, String> {
    let now = UtcDateTime::from_unix_timestamp(seconds).map_err(|e| e.to_string())?;
    let (year, month, day) = (now.year(), i32::from(u8::from(now.month())), i32::from(now.day()));
    let (hour, minute, second) = now.as_hms();
    let (weekday, month_name) = (now.weekday().to_string(), now.month().to_string());

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        // glibc's "no padding" flag, which templates use for days.
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let number = |n: i32, width: usize| if bare { n.to_string() } else { format!("{n:0width$}") };
        out.push_str(&match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month, 2),
            Some('B') => month_name.clone(),
            Some('b' | 'h') => month_name[..3].into(),
            Some('d') => number(day, 2),
            Some('e') => format!("{day:2}"),
            Some('j') => number(now.ordinal().into(), 3),
            Some('A') => weekday.clone(),
            Some('a') => weekday[..3].into(),
            Some('H') => number(hour.into(), 2),
            Some('I') => number(((hour + 11) % 12 + 1).into(), 2),
            Some('M') => number(minute.into(), 2),
            Some('S') => number(second.into(), 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
            Some('F') => now.date().to_string(),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('z') => "+0000".into(),
            Some('Z') => "UTC".into(),
            Some('%') => "%".into(),
            Some(other) => return Err(format!("strftime_now does not support %{other}")),
            None => return Err("the format of strftime_now ends in %".into()),
        });
    }
    Ok(out)
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
}
