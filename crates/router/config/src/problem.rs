//! All errors of a file, each with its place and what to do. Printed by the CLI and by a refused reload.

use std::fmt;

use crate::{Span, printable};

/// One error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its place.
    pub span: Span,
    /// What is wrong, and what to do.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.span, printable(&self.text))
    }
}

/// All errors of a configuration, in the order of the file; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

/// Maximum number of printed problems: a wrong file should not fill the screen.
const SHOWN_MAX: usize = 20;

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().take(SHOWN_MAX).enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        match self.0.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "\n... and {more} more"),
        }
    }
}

impl std::error::Error for Problems {}

/// A quoted text, shortened for an error.
pub(crate) fn quoted(text: &str) -> String {
    const QUOTED_MAX: usize = 60;
    match text.char_indices().nth(QUOTED_MAX) {
        None => format!("'{text}'"),
        Some((end, _)) => format!("'{}...'", &text[..end]),
    }
}

/// The closest of `known`, if one is close.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    scored(name, known).filter(|(score, _)| *score > 0.85).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, k)| k)
}

/// The name of `known` that `name` misspells: the same letters in another case or with other dashes, or one edit away; two if
/// it is long.
pub(crate) fn mistyped<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const NAME_MAX: usize = 100; // the comparison is quadratic
    let plain = |s: &str| s.to_lowercase().replace(['-', '.', ' ', '_'], "");
    if name.len() > NAME_MAX {
        return None;
    }
    let name = plain(name);
    let edits_max = if name.len() < 8 { 1 } else { 2 };
    let known = known.into_iter().filter(|k| k.len() <= NAME_MAX && !k.ends_with('*'));
    let edits = known.map(|k| (strsim::damerau_levenshtein(&name, &plain(k)), k));
    edits.filter(|(edits, _)| *edits <= edits_max).min_by_key(|(edits, _)| *edits).map(|(_, k)| k)
}

/// Similar names of `known`, the closest first.
pub fn near<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    const NEAR_MAX: usize = 5;
    let mut near: Vec<(f64, &str)> = scored(name, known).filter(|(score, _)| *score > 0.75).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.into_iter().take(NEAR_MAX).map(|(_, k)| k).collect()
}

/// The similarity of each name to `name`, from 0 to 1.
fn scored<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = (f64, &'a str)> {
    const NAME_MAX: usize = 100; // the comparison is quadratic
    let plain = |s: &str| s.to_lowercase().replace(['-', '.', ' '], "_");
    let name = (name.len() <= NAME_MAX).then(|| plain(name));
    let known = known.into_iter().filter(|k| k.len() <= NAME_MAX);
    known.filter_map(move |k| Some((strsim::jaro_winkler(name.as_deref()?, &plain(k)), k)))
}
