//! Tokens to text, one at a time, as they are generated: never half a character, never a lost one.
//!
//! The increments put together are exactly [`decode`] of all the tokens. Bytes that cannot become a character any
//! more are U+FFFD, as `String::from_utf8_lossy` has it; bytes that still can are held back until they are complete.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// Whether control tokens (`<|im_end|>`) are part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlTokens {
    /// They are left out, as in an answer.
    Hide,
    /// They are written as they are called.
    Show,
}

/// One sequence's text so far, as far as its end is not certain. Allocates nothing once its buffers have grown to the
/// longest token.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    control: ControlTokens,
    /// Control tokens that are written whatever `control` says.
    shown: Vec<u32>,
    /// Bytes that may yet become a character.
    held: Vec<u8>,
    /// The last increment.
    out: String,
    /// The vocabulary puts a space in front of the first word, and it has not come yet.
    strip_space: bool,
}

impl Detokenizer {
    /// For tokens that begin a text of their own, such as an answer.
    pub fn new(tokenizer: Arc<Tokenizer>, control: ControlTokens) -> Self {
        let strip_space = tokenizer.strips_first_space();
        Self {
            tokenizer,
            control,
            shown: Vec::new(),
            held: Vec::with_capacity(64),
            out: String::with_capacity(256),
            strip_space,
        }
    }

    /// For tokens that continue a text (a completion): the first word's space is text, not an artefact.
    pub fn continuing(tokenizer: Arc<Tokenizer>, control: ControlTokens) -> Self {
        Self { strip_space: false, ..Self::new(tokenizer, control) }
    }

    /// Writes these control tokens in any case.
    pub fn showing(self, shown: Vec<u32>) -> Self {
        Self { shown, ..self }
    }

    /// Takes the next token; returns the text that is complete with it, often empty.
    pub fn push(&mut self, id: u32) -> &str {
        self.out.clear();
        if self.tokenizer.is_control(id) && self.control == ControlTokens::Hide && !self.shown.contains(&id) {
            return "";
        }
        let mut bytes = self.tokenizer.token_bytes(id);
        if self.strip_space && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.strip_space = false;
        }
        self.held.extend_from_slice(bytes);
        self.take_complete();
        &self.out
    }

    /// Ends the text: what was held back and is no character comes out as U+FFFD.
    pub fn flush(&mut self) -> &str {
        self.out.clear();
        // After `take_complete` there is at most one character's beginning.
        if !self.held.is_empty() {
            self.held.clear();
            self.out.push(char::REPLACEMENT_CHARACTER);
        }
        &self.out
    }

    /// Moves everything of `held` whose meaning is certain to `out`.
    fn take_complete(&mut self) {
        let mut at = 0;
        loop {
            match std::str::from_utf8(&self.held[at..]) {
                Ok(rest) => {
                    self.out.push_str(rest);
                    self.held.clear();
                    return;
                }
                Err(e) => {
                    let valid = &self.held[at..at + e.valid_up_to()];
                    self.out.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    at += e.valid_up_to();
                    match e.error_len() {
                        Some(n) => {
                            self.out.push(char::REPLACEMENT_CHARACTER);
                            at += n;
                        }
                        None => {
                            self.held.drain(..at);
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// The text of `ids` as a whole.
pub fn decode(tokenizer: &Tokenizer, ids: &[u32], control: ControlTokens) -> String {
    let mut bytes = Vec::new();
    for &id in ids {
        if !(tokenizer.is_control(id) && control == ControlTokens::Hide) {
            bytes.extend_from_slice(tokenizer.token_bytes(id));
        }
    }
    let start = usize::from(tokenizer.strips_first_space() && bytes.first() == Some(&b' '));
    String::from_utf8_lossy(&bytes[start..]).into_owned()
}
