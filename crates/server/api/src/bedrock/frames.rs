//! Amazon's event streams (`application/vnd.amazon.eventstream`): binary frames with headers, each with a CRC-32. Split here into their
//! JSON payloads.

use std::borrow::Cow;

use aws_smithy_eventstream::frame::{DecodedFrame, MessageFrameDecoder};
use aws_smithy_types::event_stream::Message;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BytesMut};
use serde_json::{Value, json};

use super::error;
use crate::ApiError;
use crate::reader::Decoder;
use crate::sse;

/// Splits a stream into its events. An event of `InvokeModel` contains a piece of the model's own stream, returned as it is; the JSON
/// of other events is returned under their name: `{"contentBlockDelta": {...}}`.
#[derive(Default)]
pub(super) struct FrameDecoder {
    decoder: MessageFrameDecoder,
    buffer: BytesMut,
}

/// Bytes before a frame's headers: two lengths and their checksum.
const PRELUDE_BYTES: usize = 12;

impl FrameDecoder {
    fn check_length(&self) -> Result<(), ApiError> {
        // The decoder buffers as many bytes as a frame claims to have.
        if self.buffer.len() > sse::EVENT_BYTES_MAX + PRELUDE_BYTES {
            let what = format!("an event of the stream is longer than {} bytes", sse::EVENT_BYTES_MAX);
            return Err(ApiError::upstream(what));
        }
        Ok(())
    }
}

impl Decoder for FrameDecoder {
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn next_piece(&mut self) -> Result<Option<Cow<'_, [u8]>>, ApiError> {
        if !self.buffer.has_remaining() {
            return Ok(None);
        }
        let broken = |e| ApiError::upstream(format!("the provider's event stream cannot be read: {e}"));
        match self.decoder.decode_frame(&mut self.buffer).map_err(broken)? {
            DecodedFrame::Complete(message) => piece(&message).map(|p| Some(p.into())),
            _ => self.check_length().map(|()| None),
        }
    }

    fn rest(&mut self) -> Option<Vec<u8>> {
        None
    }
}

/// The JSON payload of a frame, or its error.
fn piece(message: &Message) -> Result<Vec<u8>, ApiError> {
    let header = |name: &str| {
        let found = message.headers().iter().find(|h| h.name().as_str() == name);
        found.and_then(|h| h.value().as_string().ok()).map(|v| v.as_str().to_string())
    };
    let payload = message.payload();
    match header(":message-type").as_deref() {
        Some("exception") => {
            let name = header(":exception-type").unwrap_or_default();
            let value = serde_json::from_slice(payload).unwrap_or(Value::Null);
            return Err(error::from_value(&name, &value, None));
        }
        Some("error") => {
            let value = json!({"message": header(":error-message")});
            return Err(error::from_value(&header(":error-code").unwrap_or_default(), &value, None));
        }
        _ => {}
    }
    let name = header(":event-type").unwrap_or_default();
    let value: Value = serde_json::from_slice(payload).map_err(|e| crate::reader::unreadable(&e, payload))?;
    if name == "chunk" {
        let text = value["bytes"].as_str().unwrap_or("");
        return STANDARD.decode(text).map_err(|e| {
            ApiError::upstream(format!(
                "the provider's answer cannot be read: an event is not in base64: {e}"
            ))
        });
    }
    Ok(json!({ name: value }).to_string().into_bytes())
}
