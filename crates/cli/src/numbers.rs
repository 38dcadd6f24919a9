//! Parses numbers of flags; errors say what is expected.

use octet_compute::cpu::team::MAX_THREADS;

/// Maximum count: far above any machine's resources, and low enough that sums cannot overflow.
const COUNT_MAX: usize = 1 << 28;

/// A count of at least 1.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=COUNT_MAX) => Ok(n),
        Ok(0) | Err(_) => Err("expected a whole number above 0".into()),
        Ok(_) => Err(format!("expected at most {COUNT_MAX}")),
    }
}

/// A number of threads, as many as the engine can start.
pub fn threads(text: &str) -> Result<usize, String> {
    match positive(text)? {
        n if n > MAX_THREADS => Err(format!("expected at most {MAX_THREADS} threads")),
        n => Ok(n),
    }
}

/// A count, possibly 0.
pub fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 0..=COUNT_MAX) => Ok(n),
        Ok(_) => Err(format!("expected at most {COUNT_MAX}")),
        Err(_) => Err("expected a whole number from 0 up".into()),
    }
}

/// A whole number within its type's range.
pub fn whole<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let n: u64 = text.parse().map_err(|_| "expected a whole number from 0 up")?;
    T::try_from(n).map_err(|_| "the number is too large".into())
}

/// A whole number, or llama.cpp's -1.
pub fn from_minus_one(text: &str) -> Result<i64, String> {
    let n = text.parse().ok().filter(|n| *n >= -1);
    n.ok_or_else(|| "expected a whole number, -1 or more".into())
}

/// The same for values stored as `u32`.
pub fn from_minus_one_u32(text: &str) -> Result<i64, String> {
    let n = from_minus_one(text)?;
    if n <= u32::MAX.into() { Ok(n) } else { Err(format!("expected at most {}", u32::MAX)) }
}

/// A number; not NaN and not infinite.
pub fn number<T: std::str::FromStr + Copy + Into<f64>>(text: &str) -> Result<T, String> {
    let number = text.parse::<T>().ok().filter(|n| Into::<f64>::into(*n).is_finite());
    number.ok_or_else(|| "expected a number, like 0.8".into())
}

/// A TCP port.
pub fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "expected a port, 0 to 65535".into())
}

/// A share of something: above 0, up to 1.
pub fn share(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| *n > 0.0 && *n <= 1.0);
    number.ok_or_else(|| "expected a number above 0, up to 1".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_bounded() {
        assert_eq!((count("0"), positive("268435456")), (Ok(0), Ok(COUNT_MAX)));
        assert!(positive("0").is_err() && count("-1").is_err());
        assert!(positive("268435457").unwrap_err().contains("at most"));
        assert_eq!((share("1"), share("0.25")), (Ok(1.0), Ok(0.25)));
        for wrong in ["0", "-1", "1.01", "nan", "inf", "much"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
        assert!(positive("18446744073709551616").is_err());
    }

    #[test]
    fn wrong_numbers_are_refused_in_words() {
        assert_eq!((whole::<u32>("7"), from_minus_one("-1"), port("65535")), (Ok(7), Ok(-1), Ok(65535)));
        assert_eq!(number::<f32>("0.5"), Ok(0.5));
        for wrong in ["nan", "-NaN", "inf", "-infinity", "1e39"] {
            assert!(number::<f32>(wrong).is_err(), "{wrong}");
        }
        assert!(number::<f64>("1e309").is_err());
        assert_eq!((threads("1"), threads("1024")), (Ok(1), Ok(1024)));
        assert!(threads("1025").unwrap_err().contains("1024") && threads("0").is_err());
        let errors = [
            whole::<u32>("x").unwrap_err(),
            whole::<u32>("4294967296").unwrap_err(),
            from_minus_one("-2").unwrap_err(),
            from_minus_one_u32("4294967296").unwrap_err(),
            number::<f32>("abc").unwrap_err(),
            port("70000").unwrap_err(),
            count("many").unwrap_err(),
        ];
        for e in errors {
            assert!(e.starts_with("expected ") || e.ends_with("too large"), "{e}");
        }
    }
}
