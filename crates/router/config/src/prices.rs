//! Default prices of models: the list in `prices.csv`, and a file of the user.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The list, with its date and sources.
const LIST: &str = include_str!("../prices.csv");

/// Maximum plausible price per million tokens.
const PRICE_MAX: f64 = 1e6;

/// The price of a model's tokens, in US dollars.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// Per prompt token.
    pub input: f64,
    /// Per answer token.
    pub output: f64,
    /// Per prompt token read from the provider's cache.
    pub cache_read: Option<f64>,
    /// Per prompt token written to the provider's cache.
    pub cache_write: Option<f64>,
}

/// Prices by `provider/model`, in LiteLLM's names of providers.
#[derive(Debug, Clone, PartialEq)]
pub struct PriceList {
    own: Arc<HashMap<String, Price>>,
    /// Whether the built-in list is used too.
    built_in: bool,
}

impl Default for PriceList {
    /// The built-in list.
    fn default() -> Self {
        Self { own: Arc::default(), built_in: true }
    }
}

impl PriceList {
    /// Only the prices of the configuration's entries.
    pub fn none() -> Self {
        Self { own: Arc::default(), built_in: false }
    }

    /// A file in the format of the built-in list, over which it takes precedence.
    ///
    /// # Errors
    /// A message with the line.
    pub fn read(text: &str) -> Result<Self, String> {
        Ok(Self { own: Arc::new(parse(text)?), built_in: true })
    }

    /// The price of `provider/model`.
    pub fn get(&self, name: &str) -> Option<Price> {
        self.own.get(name).or_else(|| built_in().get(name).filter(|_| self.built_in)).copied()
    }
}

fn built_in() -> &'static HashMap<String, Price> {
    static PARSED: OnceLock<HashMap<String, Price>> = OnceLock::new();
    // A test reads it.
    PARSED.get_or_init(|| parse(LIST).unwrap_or_default())
}

fn parse(text: &str) -> Result<HashMap<String, Price>, String> {
    let mut out = HashMap::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line.starts_with("model,") {
            continue;
        }
        let wrong = |why: &str| format!("line {}: {why}", i + 1);
        let mut cells = line.split(',').map(str::trim);
        let name = cells.next().filter(|name| name.contains('/'));
        let name = name.ok_or_else(|| wrong("it must start with provider/model, like openai/gpt-4o"))?;
        let mut price = |what: &str| match cells.next() {
            None | Some("") => Ok(None),
            Some(text) => {
                let usd = text.parse::<f64>().ok().filter(|usd| (0.0..=PRICE_MAX).contains(usd));
                let why =
                    || wrong(&format!("{what} must be US dollars per million tokens, from 0 to {PRICE_MAX}"));
                usd.map(|usd| Some(usd / 1e6)).ok_or_else(why)
            }
        };
        let (input, output) = (price("input")?, price("output")?);
        let (cache_read, cache_write) = (price("cache_read")?, price("cache_write")?);
        let (input, output) = (input.ok_or_else(|| wrong("input is missing"))?, output.unwrap_or(0.0));
        if cells.next().is_some() {
            return Err(wrong("there are more than five cells"));
        }
        if out.insert(name.to_string(), Price { input, output, cache_read, cache_write }).is_some() {
            return Err(wrong(&format!("'{name}' is listed twice")));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_can_be_read_and_says_where_it_is_from() {
        let list = parse(LIST).expect("the list is well-formed");
        assert!(list.len() > 200, "{}", list.len());
        assert!(LIST.contains("# Date: 20") && LIST.contains("https://"));
        let known = super::super::read::is_provider;
        for (name, price) in &list {
            assert!(
                name.split_once('/').is_some_and(|(provider, _)| known(provider)),
                "{name}: no such provider"
            );
            // A price that is off by a factor of a thousand is a mistake.
            assert!(price.input < 1e-3 && price.output < 2e-3, "{name}: {price:?}");
        }
        let mini = PriceList::default().get("openai/gpt-4o-mini").expect("a price");
        assert_eq!((mini.input, mini.output, mini.cache_read), (0.15e-6, 0.6e-6, Some(0.075e-6)));
    }

    #[test]
    fn a_file_of_ones_own_beats_it() {
        let own = PriceList::read("# mine\nopenai/gpt-4o-mini, 1, 2,,\nlocal/x,3,4\n").expect("a list");
        assert_eq!(own.get("openai/gpt-4o-mini").map(|p| (p.input, p.cache_read)), Some((1e-6, None)));
        assert_eq!(own.get("local/x").map(|p| p.output), Some(4e-6));
        assert!(own.get("openai/gpt-4o").is_some(), "the rest of the built-in list counts on");
        assert_eq!(PriceList::none().get("openai/gpt-4o"), None);
        for (text, expected) in [
            ("gpt-4o,1,2", "line 1: it must start with provider/model"),
            ("\na/b,x,2", "line 2: input must be US dollars"),
            ("a/b,1,-2", "output must be US dollars"),
            ("a/b,,2", "input is missing"),
            ("a/b,1,2,3,4,5", "more than five cells"),
            ("a/b,1,2\na/b,1,2", "line 2: 'a/b' is listed twice"),
        ] {
            let why = PriceList::read(text).expect_err(text);
            assert!(why.contains(expected), "{text}: {why}");
        }
    }
}
