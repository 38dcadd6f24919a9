//! Money, prices, and token usage.

use std::fmt;
use std::str::FromStr;

use crate::Error;

const NANO: u64 = 1_000_000_000;
/// 10^9 dollars: sums of several fit SQLite's integers.
const NANOS_MAX: u64 = 1_000_000_000 * NANO;

/// US dollars in units of 10^-9: a cached token of the cheapest models costs ten of them, and sums are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Usd(u64);

impl Usd {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// From units of 10^-9 dollars; at most 10^9 dollars.
    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos.min(NANOS_MAX))
    }

    /// In units of 10^-9 dollars.
    pub fn nanos(self) -> u64 {
        self.0
    }

    /// From a number of dollars; rounded to 10^-9.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid amount, or more than 10^9 dollars.
    pub fn from_dollars(dollars: f64) -> Result<Self, Error> {
        let nanos = (dollars * NANO as f64).round();
        if (0.0..=NANOS_MAX as f64).contains(&nanos) {
            return Ok(Self(nanos as u64));
        }
        Err(Error::Invalid(format!("{dollars} is not an amount of US dollars from 0 to a thousand million")))
    }

    /// As a number of dollars, for reports.
    pub fn dollars(self) -> f64 {
        self.0 as f64 / NANO as f64
    }

    /// The sum, at most 10^9 dollars.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self::from_nanos(self.0.saturating_add(other.0))
    }

    /// The difference, at least 0.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Usd {
    /// `$12.50`: two decimals, or as many as necessary.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:09}", self.0 % NANO);
        let decimals = decimals.trim_end_matches('0');
        write!(f, "${}.{decimals:0<2}", self.0 / NANO)
    }
}

impl FromStr for Usd {
    type Err = Error;

    /// `12.50`, with or without a dollar sign.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Invalid(format!("'{text}' is not an amount of US dollars: {why}"));
        let digits = text.trim().trim_start_matches('$');
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() && part.is_empty() || !all_digits(whole) || !all_digits(part) {
            return Err(wrong("write it like 12.50"));
        }
        if part.len() > 9 {
            return Err(wrong("it has more than nine decimals"));
        }
        let too_large = || wrong("it is more than a thousand million");
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_large())? };
        let part: u64 = format!("{part:0<9}").parse().map_err(|_| wrong("its decimals cannot be read"))?;
        let nanos = whole.checked_mul(NANO).and_then(|n| n.checked_add(part)).ok_or_else(too_large)?;
        if nanos > NANOS_MAX { Err(too_large()) } else { Ok(Self(nanos)) }
    }
}

/// The token usage of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt tokens, including cached ones.
    pub input: u64,
    /// Prompt tokens read from the provider's cache.
    pub cached: u64,
    /// Prompt tokens written to it, if the provider reports them.
    pub cache_written: u64,
    /// Answer tokens, including reasoning.
    pub output: u64,
}

impl Usage {
    /// Tokens that count against the limit per minute.
    pub fn tokens(&self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// The prices of a deployment, per token: LiteLLM's `input_cost_per_token` and similar. The default is free.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Prices {
    input: f64,
    output: f64,
    cache_read: Option<f64>,
    cache_write: Option<f64>,
}

/// Maximum price of a token; a higher one was probably meant per million.
const PRICE_MAX: f64 = 1000.0;

fn price(name: &str, usd: f64) -> Result<f64, Error> {
    if (0.0..=PRICE_MAX).contains(&usd) {
        return Ok(usd);
    }
    Err(Error::Invalid(format!("{name} is {usd}; a price is US dollars per token, from 0 to {PRICE_MAX}")))
}

impl Prices {
    /// `input_cost_per_token` and `output_cost_per_token`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid price.
    pub fn new(input: f64, output: f64) -> Result<Self, Error> {
        let (input, output) =
            (price("input_cost_per_token", input)?, price("output_cost_per_token", output)?);
        Ok(Self { input, output, cache_read: None, cache_write: None })
    }

    /// `cache_read_input_token_cost`; by default the price of other input tokens.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid price.
    pub fn cache_read(self, usd: f64) -> Result<Self, Error> {
        Ok(Self { cache_read: Some(price("cache_read_input_token_cost", usd)?), ..self })
    }

    /// `cache_creation_input_token_cost`; by default the price of other input tokens.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid price.
    pub fn cache_write(self, usd: f64) -> Result<Self, Error> {
        Ok(Self { cache_write: Some(price("cache_creation_input_token_cost", usd)?), ..self })
    }

    /// Whether nothing costs anything.
    pub fn are_zero(&self) -> bool {
        let others = [self.cache_read, self.cache_write];
        [self.input, self.output].into_iter().chain(others.into_iter().flatten()).all(|usd| usd == 0.0)
    }

    /// The cost of an answer, rounded to 10^-9 dollars; never 0 if it costs something.
    pub fn cost(&self, usage: &Usage) -> Usd {
        let cached = usage.cached.min(usage.input);
        let written = usage.cache_written.min(usage.input - cached);
        let dollars = (usage.input - cached - written) as f64 * self.input
            + cached as f64 * self.cache_read.unwrap_or(self.input)
            + written as f64 * self.cache_write.unwrap_or(self.input)
            + usage.output as f64 * self.output;
        let nanos = (dollars * NANO as f64).round().max(f64::from(dollars > 0.0));
        Usd::from_nanos(nanos as u64) // saturates
    }
}

/// The expected usage of a request; the default is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Ask {
    /// Prompt tokens.
    pub input: u64,
    /// Maximum answer tokens, of all answers together.
    pub output: u64,
    /// Prices of the deployment that will answer, or of the most expensive one that may.
    pub prices: Prices,
    /// Nothing that it may cost is charged to budgets, so that spent ones do not matter.
    pub is_free: bool,
}

impl Ask {
    /// The same for several answers to one prompt.
    #[must_use]
    pub fn times(self, answers: u64) -> Self {
        Self { output: self.output.saturating_mul(answers), ..self }
    }

    /// What must fit into a limit before a request for several answers begins: all but the last, as if each were a request of its own.
    pub(crate) fn before_the_last(self, answers: u64) -> Self {
        match answers {
            2.. => self.times(answers - 1),
            _ => Self { is_free: self.is_free, ..Self::default() },
        }
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    pub(crate) fn cost(&self) -> Usd {
        self.prices.cost(&Usage { input: self.input, output: self.output, ..Usage::default() })
    }
}
