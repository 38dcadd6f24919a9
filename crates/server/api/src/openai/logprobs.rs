//! Log-probabilities in the form of chat and Responses.

use serde::{Deserialize, Serialize};

use crate::core::{TokenLogprob, TopLogprob};

/// Stands for the logarithm of 0, which JSON cannot express. OpenAI's number.
const LOG_ZERO: f32 = -9999.0;

/// `logprobs` of a choice.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Logprobs {
    #[serde(default)]
    pub content: Option<Vec<Token>>,
    #[serde(default)]
    refusal: Option<Vec<Token>>,
}

/// One token.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Token {
    token: String,
    logprob: f32,
    #[serde(default)]
    bytes: Option<Vec<u8>>,
    #[serde(default)]
    top_logprobs: Vec<Top>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Top {
    token: String,
    logprob: f32,
    #[serde(default)]
    bytes: Option<Vec<u8>>,
}

/// A finite logarithm, for JSON.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LOG_ZERO }
}

impl Logprobs {
    pub(super) fn new(tokens: &[TokenLogprob]) -> Self {
        Self { content: Some(tokens.iter().map(Token::new).collect()), refusal: None }
    }
}

impl Token {
    pub(crate) fn new(t: &TokenLogprob) -> Self {
        let top = |t: &TopLogprob| Top {
            token: t.token.clone(),
            logprob: finite(t.logprob),
            bytes: Some(t.bytes.clone()),
        };
        Self {
            token: t.token.clone(),
            logprob: finite(t.logprob.unwrap_or(0.0)),
            bytes: Some(t.bytes.clone()),
            top_logprobs: t.top.iter().map(top).collect(),
        }
    }
}

impl From<Token> for TokenLogprob {
    fn from(w: Token) -> Self {
        let bytes = |bytes: Option<Vec<u8>>, token: &str| bytes.unwrap_or_else(|| token.as_bytes().to_vec());
        let top = |t: Top| TopLogprob {
            id: None,
            bytes: bytes(t.bytes, &t.token),
            logprob: t.logprob,
            token: t.token,
        };
        Self {
            id: None,
            bytes: bytes(w.bytes, &w.token),
            logprob: Some(w.logprob),
            top: w.top_logprobs.into_iter().map(top).collect(),
            token: w.token,
        }
    }
}
