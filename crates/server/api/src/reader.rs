//! Parses a provider's stream: bytes are split into pieces of JSON, which are translated to events. The parts common to all dialects
//! are here; each dialect's `reader` translates.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

use crate::ApiError;
use crate::core::Event;
use crate::dialect::StreamReader;
use crate::ndjson::LineDecoder;
use crate::sse::SseDecoder;

/// Maximum length of invalid data quoted in an error.
const QUOTED_CHARS_MAX: usize = 200;

/// Splits a stream into pieces of JSON.
pub trait Decoder {
    /// Adds the next bytes.
    fn push(&mut self, bytes: &[u8]);
    /// The next complete piece; `None` until more bytes arrive.
    fn next_piece(&mut self) -> Result<Option<Cow<'_, [u8]>>, ApiError>;
    /// The rest at the end, as the last piece may lack its terminator.
    fn rest(&mut self) -> Option<Vec<u8>>;
}

impl Decoder for SseDecoder {
    fn push(&mut self, bytes: &[u8]) {
        self.push(bytes);
    }

    fn next_piece(&mut self) -> Result<Option<Cow<'_, [u8]>>, ApiError> {
        let event = self.next_event().map_err(|e| ApiError::upstream(e.to_string()))?;
        Ok(event.map(|e| e.data.into_bytes().into()))
    }

    fn rest(&mut self) -> Option<Vec<u8>> {
        None
    }
}

impl Decoder for LineDecoder {
    fn push(&mut self, bytes: &[u8]) {
        self.push(bytes);
    }

    fn next_piece(&mut self) -> Result<Option<Cow<'_, [u8]>>, ApiError> {
        let line = self.next_line().map_err(|e| ApiError::upstream(e.to_string()))?;
        Ok(line.map(Cow::Borrowed))
    }

    fn rest(&mut self) -> Option<Vec<u8>> {
        self.finish()
    }
}

/// Translates the pieces of one answer.
pub trait Translate {
    /// Translates the next piece, which is not empty; true if it is the last.
    fn piece(&mut self, json: &[u8], out: &mut Vec<Event>) -> Result<bool, ApiError>;
    /// Emits what is known only at the end; an error if the answer is incomplete.
    fn end(&mut self, out: &mut Vec<Event>) -> Result<(), ApiError>;
}

/// Parses a stream.
#[derive(Debug, Default)]
pub struct Reader<D, T> {
    decoder: D,
    translator: T,
    /// The last piece, or an error, has come.
    over: bool,
}

impl<D: Decoder + Default, T: Translate + Default> Reader<D, T> {
    /// A reader for a new stream.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<D: Decoder, T: Translate> Reader<D, T> {
    fn advance(&mut self, out: &mut Vec<Event>) -> Result<(), ApiError> {
        while let Some(piece) = self.decoder.next_piece()? {
            let json = piece.trim_ascii();
            if !json.is_empty() && self.translator.piece(json, out)? {
                self.over = true;
                return self.translator.end(out);
            }
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<Event>) -> Result<(), ApiError> {
        if let Some(json) = self.decoder.rest() {
            self.translator.piece(&json, out)?;
        }
        self.translator.end(out)
    }
}

impl<D: Decoder + Send, T: Translate + Send> StreamReader for Reader<D, T> {
    fn push(&mut self, bytes: &[u8], out: &mut Vec<Event>) {
        if self.over {
            return;
        }
        self.decoder.push(bytes);
        if let Err(e) = self.advance(out) {
            self.over = true;
            out.push(Event::Error(e));
        }
    }

    fn end(&mut self, out: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.over, true)
            && let Err(e) = self.finish(out)
        {
            out.push(Event::Error(e));
        }
    }

    fn is_over(&self) -> bool {
        self.over
    }
}

/// Parses a provider's JSON.
pub(crate) fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(json).map_err(|e| unreadable(&e, json))
}

/// The error for a provider's invalid JSON.
pub(crate) fn unreadable(e: &serde_json::Error, json: &[u8]) -> ApiError {
    let text: String = String::from_utf8_lossy(json).chars().take(QUOTED_CHARS_MAX).collect();
    ApiError::upstream(format!("the provider's answer cannot be read: {e}: {text}"))
}
