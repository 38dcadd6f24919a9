//! Which layers have a sliding window: the forms in which files say it.

use octet_weights::Value;

use super::keys::Keys;
use crate::Error;

/// Which layers have a window, where a number `n` as the pattern means all but layers 0, `n`, `2 n`, ...; by default `period`.
pub fn all_but_first_of_each(k: &Keys, period: usize) -> Result<Vec<bool>, Error> {
    let key = "attention.sliding_window_pattern";
    let period = match k.get(key) {
        None => period,
        Some(Value::U64(n)) => usize::try_from(*n).unwrap_or(0),
        Some(_) => return Ok(k.pattern(key)?.unwrap_or_default()),
    };
    Ok((0..k.layers).map(|i| period == 0 || !i.is_multiple_of(period)).collect())
}

/// Which layers have a window, and its size.
pub struct Windows {
    /// Positions of a window.
    pub size: usize,
    /// Whether each layer has it.
    pub slides: Vec<bool>,
}

impl Windows {
    /// As the file says: all layers, unless it has a pattern. `None` without a window.
    pub fn read(k: &Keys) -> Result<Option<Self>, Error> {
        Self::with_default(k, 0)
    }

    /// The same where all but each `period`-th layer have one by default; 0: all.
    pub fn with_default(k: &Keys, period: usize) -> Result<Option<Self>, Error> {
        let pattern = k.pattern("attention.sliding_window_pattern")?;
        let Some(size) = k.window()? else { return Ok(None) };
        Ok(Some(Self { size, slides: pattern.unwrap_or_else(|| k.all_but_each(period)) }))
    }
}
