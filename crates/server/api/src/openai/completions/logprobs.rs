//! Log-probabilities in the form of completions: parallel lists. lm-eval reads them.

use serde::Serialize;
use serde_json::{Map, Value};

use super::super::logprobs::finite;
use crate::core::TokenLogprob;

/// `logprobs` of a choice.
#[derive(Debug, Serialize)]
pub(super) struct Logprobs {
    /// Start of each token, in characters from the beginning of the choice's text.
    text_offset: Vec<u64>,
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
}

impl Logprobs {
    /// `offset` is the start of these tokens, and is advanced to their end.
    pub(super) fn new(tokens: &[TokenLogprob], offset: &mut u64) -> Self {
        let n = tokens.len();
        let mut out = Self {
            text_offset: Vec::with_capacity(n),
            token_logprobs: Vec::with_capacity(n),
            tokens: Vec::with_capacity(n),
            top_logprobs: Vec::with_capacity(n),
        };
        for t in tokens {
            out.text_offset.push(*offset);
            // A character is counted where it begins: tokens may end within one.
            *offset += t.bytes.iter().filter(|b| **b & 0xC0 != 0x80).count() as u64;
            out.token_logprobs.push(t.logprob.map(finite));
            out.tokens.push(name(&t.token, &t.bytes));
            out.top_logprobs.push(t.logprob.map(|own| top(t, own)));
        }
        out
    }
}

/// The most probable tokens, best first, always with the generated one.
fn top(t: &TokenLogprob, own: f32) -> Map<String, Value> {
    let mut out = Map::new();
    for other in &t.top {
        out.entry(name(&other.token, &other.bytes)).or_insert_with(|| finite(other.logprob).into());
    }
    out.entry(name(&t.token, &t.bytes)).or_insert_with(|| finite(own).into());
    out
}

/// Tokens are keys here, so tokens that are not valid text must not all be U+FFFD. OpenAI's form: `bytes:\xe2\x82`.
fn name(token: &str, bytes: &[u8]) -> String {
    if std::str::from_utf8(bytes).is_ok() {
        return token.to_string();
    }
    bytes.iter().fold("bytes:".to_string(), |all, b| format!("{all}\\x{b:02x}"))
}
