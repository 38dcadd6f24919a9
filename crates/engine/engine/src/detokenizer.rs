//! Incremental detokenizing: converts generated tokens to text without splitting or losing characters.
//!
//! The concatenated pieces equal [`decode`] of all tokens. Bytes that cannot become a character are replaced by U+FFFD, as by
//! `String::from_utf8_lossy`; incomplete characters are held back until they are complete.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// Whether control tokens (`<|im_end|>`) are part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlTokens {
    /// They are omitted, as in an answer.
    Hide,
    /// They are written by name.
    Show,
}

/// The uncertain end of a sequence's text. Allocates nothing once its buffers have grown to the longest token.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    control: ControlTokens,
    /// Control tokens that are always written.
    shown: Vec<u32>,
    /// Bytes of an incomplete character.
    held: Vec<u8>,
    /// The last piece.
    out: String,
    /// The vocabulary prefixes the first word with a space, which has not come yet.
    strip_space: bool,
}

impl Detokenizer {
    /// For tokens that begin a text, such as an answer.
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

    /// For tokens that continue a text (a completion): the first word's space is part of it.
    pub fn continuing(tokenizer: Arc<Tokenizer>, control: ControlTokens) -> Self {
        Self { strip_space: false, ..Self::new(tokenizer, control) }
    }

    /// Always writes these control tokens.
    pub fn showing(self, shown: Vec<u32>) -> Self {
        Self { shown, ..self }
    }

    /// Adds a token; returns the text that is now complete, often empty.
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

    /// Ends the text: an incomplete character becomes U+FFFD.
    pub fn flush(&mut self) -> &str {
        self.out.clear();
        // `take_complete` leaves at most the beginning of one character.
        if !self.held.is_empty() {
            self.held.clear();
            self.out.push(char::REPLACEMENT_CHARACTER);
        }
        &self.out
    }

    /// Moves the complete characters of `held` to `out`.
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

/// The text of all `ids`.
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
