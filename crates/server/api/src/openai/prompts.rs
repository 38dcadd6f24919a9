//! Parses prompts of completions and embeddings: a text, token ids, or a list of either. Called by their parsers.

use serde_json::Value;

use crate::core::Prompt;
use crate::json::{Field, Result};

/// Maximum number of prompts per request; OpenAI's limit for embeddings.
const PROMPTS_MAX: usize = 2048;

/// One prompt or several.
pub(super) fn prompts(f: Field) -> Result<Vec<Prompt>> {
    if f.is_string() {
        return Ok(vec![Prompt::Text(f.string()?)]);
    }
    let what = "a string, an array of token ids, or an array of at least one of either";
    let Some(first) = f.value().as_array().and_then(|items| items.first()) else {
        return Err(f.expected(what));
    };
    match first {
        Value::Number(_) => Ok(vec![Prompt::Tokens(tokens(f)?)]),
        Value::String(_) => super::fields::at_most(f, PROMPTS_MAX)?.list(|f| Ok(Prompt::Text(f.string()?))),
        Value::Array(_) => super::fields::at_most(f, PROMPTS_MAX)?.list(|f| {
            let empty = f.expected("at least one token id");
            let ids = tokens(f)?;
            if ids.is_empty() { Err(empty) } else { Ok(Prompt::Tokens(ids)) }
        }),
        _ => Err(f.expected(what)),
    }
}

fn tokens(f: Field) -> Result<Vec<u32>> {
    f.list(|f| f.count(0..=u32::MAX))
}
