//! What a key may do. Made by `octet keys`, kept by `table`, held to by `account`.

use std::fmt;
use std::str::FromStr;

use crate::calendar::{DAY_S, month};
use crate::{Error, Usd};

/// What a key may do. What is `None` is not limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Models that it may ask, as clients name them; `*` stands for any text. `["*"]` allows all.
    pub models: Vec<String>,
    /// Requests in any minute.
    pub rpm: Option<u64>,
    /// Tokens in any minute, those of prompts and of answers.
    pub tpm: Option<u64>,
    /// Requests at a time.
    pub max_parallel: Option<u64>,
    /// Money that it may spend.
    pub budget: Option<Budget>,
    /// When it ends, in seconds since 1970 UTC.
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
/// Above all limits that mean something, below what SQLite's integers and sums of tokens hold.
pub(crate) const COUNT_MAX: u64 = 1_000_000_000_000;

impl Limits {
    /// Whether `model` is one of the models.
    pub fn allows(&self, model: &str) -> bool {
        self.models.iter().any(|pattern| matches(pattern, model))
    }

    /// The same of a model that goes by other names too: those of groups that it is in.
    pub(crate) fn allows_any(&self, model: &str, groups: &[&str]) -> bool {
        self.allows(model) || groups.iter().any(|group| self.allows(group))
    }

    /// Refuses limits that cannot be meant.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |why: String| Err(Error::Invalid(why));
        if self.models.is_empty() {
            return wrong("a key without models could ask nothing; '*' allows all".into());
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

/// Whether `text` is `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = pieces.next_back() else { return rest.is_empty() };
    // The leftmost place of each piece leaves the most room for those after it.
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// Money for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// What may be spent.
    pub limit: Usd,
    /// In what time; then it begins anew.
    pub period: Period,
}

/// How long a budget lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// For ever: it does not begin anew.
    Ever,
    /// Seconds, counted from when the key was made.
    Seconds(u32),
    /// A month of the calendar, in UTC.
    Month,
}

impl Period {
    /// The first second of the period that `now` is in, for a key that was made at `created`.
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

const UNITS: [(&str, u32); 5] =
    [("w", 7 * DAY_S as u32), ("d", DAY_S as u32), ("h", 3600), ("m", 60), ("s", 1)];

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ever => f.write_str("ever"),
            Self::Month => f.write_str("1mo"),
            Self::Seconds(n) => {
                // Not weeks: 30d is said as it is written.
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
                "'{text}' is no length of time; write 30d, 1w, 12h, 45m, 90s, 1mo (by the calendar) or ever"
            ))),
        }
    }
}
