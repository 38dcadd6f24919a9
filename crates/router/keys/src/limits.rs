//! The limits of a key. Set by `octet keys`, stored by `table`, enforced by `account`.

use std::fmt;
use std::str::FromStr;

use crate::calendar::{DAY_S, month};
use crate::{Error, Usd};

/// The limits of a key. `None` is unlimited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Allowed models, by clients' names; `*` stands for any text. `["*"]` allows all.
    pub models: Vec<String>,
    /// Requests per minute.
    pub rpm: Option<u64>,
    /// Tokens per minute, of prompts and answers.
    pub tpm: Option<u64>,
    /// Concurrent requests.
    pub max_parallel: Option<u64>,
    /// The budget.
    pub budget: Option<Budget>,
    /// Expiry, in seconds since 1970 UTC.
    pub expires: Option<i64>,
}

impl Default for Limits {
    /// All models, without limits.
    fn default() -> Self {
        let models = vec!["*".to_string()];
        Self { models, rpm: None, tpm: None, max_parallel: None, budget: None, expires: None }
    }
}

const NAMES_MAX: usize = 1000;
const NAME_BYTES_MAX: usize = 512;
/// Above all meaningful limits, below the range of SQLite's integers and of sums of tokens.
pub(crate) const COUNT_MAX: u64 = 1_000_000_000_000;

impl Limits {
    /// Whether `model` is allowed.
    pub fn allows(&self, model: &str) -> bool {
        self.models.iter().any(|pattern| matches_pattern(pattern, model))
    }

    /// The same for a model that is also in these groups.
    pub(crate) fn allows_any(&self, model: &str, groups: &[&str]) -> bool {
        self.allows(model) || groups.iter().any(|group| self.allows(group))
    }

    /// Refuses invalid limits.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |why: String| Err(Error::Invalid(why));
        if self.models.is_empty() {
            return wrong("a key needs at least one model; '*' allows all".into());
        }
        if self.models.len() > NAMES_MAX {
            return wrong(format!("a key has at most {NAMES_MAX} models"));
        }
        if let Some(bad) = self.models.iter().find(|m| m.is_empty() || m.len() > NAME_BYTES_MAX) {
            let length = bad.len();
            return wrong(format!("a model's name has 1 to {NAME_BYTES_MAX} bytes; one has {length}"));
        }
        let counts = [("rpm", self.rpm), ("tpm", self.tpm), ("max_parallel", self.max_parallel)];
        for (name, value) in counts {
            if value.is_some_and(|v| v == 0 || v > COUNT_MAX) {
                return wrong(format!(
                    "{name} is a number from 1 to {COUNT_MAX}; revoke a key to refuse all"
                ));
            }
        }
        Ok(())
    }
}

/// Whether `text` matches `pattern`, in which `*` stands for any text.
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = pieces.next_back() else { return rest.is_empty() };
    // The leftmost match of each piece leaves the most text for the next ones.
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// An amount per period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// The amount.
    pub limit: Usd,
    /// The period, after which it is reset.
    pub period: Period,
}

/// The period of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// Never reset.
    Ever,
    /// Seconds, counted from the key's creation.
    Seconds(u32),
    /// A calendar month, in UTC.
    Month,
}

impl Period {
    /// The first second of the period that contains `now`, for a key created at `created`.
    pub(crate) fn start(self, created: i64, now: i64) -> i64 {
        match self {
            Self::Ever => created,
            Self::Seconds(length) => {
                let age = now.saturating_sub(created);
                now.saturating_sub(age.rem_euclid(i64::from(length.max(1))))
            }
            Self::Month => month(now).0,
        }
    }

    /// The first second of the next period.
    pub(crate) fn end(self, start: i64) -> Option<i64> {
        match self {
            Self::Ever => None,
            Self::Seconds(length) => Some(start.saturating_add(i64::from(length.max(1)))),
            Self::Month => Some(month(start).1),
        }
    }
}

/// Whether a period that begins at `window` lies ahead of the clock, which is in the one that begins at `start`.
pub(crate) fn is_too_early(window: i64, start: i64, now: i64) -> bool {
    start < window && now < window
}

const UNITS: [(&str, u32); 5] =
    [("w", 7 * DAY_S as u32), ("d", DAY_S as u32), ("h", 3600), ("m", 60), ("s", 1)];

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ever => f.write_str("ever"),
            Self::Month => f.write_str("1mo"),
            Self::Seconds(n) => {
                // Not in weeks: 30d is printed as it is written.
                let (unit, length) =
                    UNITS[1..].iter().find(|(_, l)| n.is_multiple_of(*l)).unwrap_or(&("s", 1));
                write!(f, "{}{unit}", n / length)
            }
        }
    }
}

impl FromStr for Period {
    type Err = Error;

    /// `30d`, `1w`, `12h`, `45m`, `90s`, `1mo`, or `ever`: LiteLLM's `budget_duration`.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "ever" => return Ok(Self::Ever),
            "1mo" | "month" => return Ok(Self::Month),
            _ => {}
        }
        let seconds = UNITS.iter().find_map(|(unit, length)| {
            let number = text.strip_suffix(unit)?;
            let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| number.parse::<u32>().ok()?.checked_mul(*length))?
        });
        match seconds {
            Some(n) if n > 0 => Ok(Self::Seconds(n)),
            _ => Err(Error::Invalid(format!(
                "'{text}' is not a duration; write 30d, 1w, 12h, 45m, 90s, 1mo (by the calendar) or ever"
            ))),
        }
    }
}
