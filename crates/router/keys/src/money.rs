//! Money, prices, and what an answer took. Used by everything here.

use std::fmt;
use std::str::FromStr;

use crate::Error;

const NANO: u64 = 1_000_000_000;
/// A thousand million dollars: sums of a few stay below what SQLite's integers hold.
const NANOS_MAX: u64 = 1_000_000_000 * NANO;

/// US dollars, in thousandths of a millionth: a cached token of the cheapest models costs ten of them, and sums are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Usd(u64);

impl Usd {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// From thousandths of a millionth; a thousand million dollars at most.
    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos.min(NANOS_MAX))
    }

    /// In thousandths of a millionth.
    pub fn nanos(self) -> u64 {
        self.0
    }

    /// From a number, as configurations have it; to the nearest thousandth of a millionth.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no amount, or more than a thousand million dollars.
    pub fn from_dollars(dollars: f64) -> Result<Self, Error> {
        let nanos = (dollars * NANO as f64).round();
        if (0.0..=NANOS_MAX as f64).contains(&nanos) {
            return Ok(Self(nanos as u64));
        }
        Err(Error::Invalid(format!("{dollars} is no amount of US dollars from 0 to a thousand million")))
    }

    /// As a number, for reports.
    pub fn dollars(self) -> f64 {
        self.0 as f64 / NANO as f64
    }

    /// The sum, at most a thousand million dollars.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self::from_nanos(self.0.saturating_add(other.0))
    }

    /// The difference, or nothing.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Usd {
    /// `$12.50`: two decimals, or as many as there are.
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
        let wrong = |why: &str| Error::Invalid(format!("'{text}' is no amount of US dollars: {why}"));
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

/// What an answer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub input: u64,
    /// Those of them that were read from the provider's cache.
    pub cached: u64,
    /// Those of them that were written to it, where the provider says so.
    pub cache_written: u64,
    /// Tokens of the answer, reasoning included.
    pub output: u64,
}

impl Usage {
    /// Tokens that count against tokens a minute.
    pub fn tokens(&self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// What a deployment costs, per token: LiteLLM's `input_cost_per_token` and its like. The default is free.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Prices {
    input: f64,
    output: f64,
    cache_read: Option<f64>,
    cache_write: Option<f64>,
}

/// Nothing costs a thousand dollars a token; a price that does was meant for a million of them.
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
    /// [`Error::Invalid`] for what is no price.
    pub fn new(input: f64, output: f64) -> Result<Self, Error> {
        let (input, output) =
            (price("input_cost_per_token", input)?, price("output_cost_per_token", output)?);
        Ok(Self { input, output, cache_read: None, cache_write: None })
    }

    /// `cache_read_input_token_cost`; without it a cached token costs what any other does.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no price.
    pub fn cache_read(self, usd: f64) -> Result<Self, Error> {
        Ok(Self { cache_read: Some(price("cache_read_input_token_cost", usd)?), ..self })
    }

    /// `cache_creation_input_token_cost`; without it a token that is cached costs what any other does.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no price.
    pub fn cache_write(self, usd: f64) -> Result<Self, Error> {
        Ok(Self { cache_write: Some(price("cache_creation_input_token_cost", usd)?), ..self })
    }

    /// What an answer costs, to the nearest thousandth of a millionth, and never nothing where it costs something.
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

/// What a request may take, as far as it is known before the answer; the default is that nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Ask {
    /// Tokens of the prompt.
    pub input: u64,
    /// Most tokens of the answer.
    pub output: u64,
    /// Prices of the deployment that will answer, or of the most expensive one that may.
    pub prices: Prices,
}

impl Ask {
    pub(crate) fn tokens(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    pub(crate) fn cost(&self) -> Usd {
        self.prices.cost(&Usage { input: self.input, output: self.output, ..Usage::default() })
    }
}
