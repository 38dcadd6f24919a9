//! Answers that are compressed although that was not requested: some proxies in front of providers do so.

use std::fmt;
use std::io::Write;

use bytes::Bytes;
use flate2::write::{GzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use crate::failure::Failure;

/// How the bytes of an answer are encoded.
#[derive(Default)]
pub(crate) enum Encoding {
    /// Not encoded.
    #[default]
    Identity,
    /// `gzip`
    Gzip(Box<GzDecoder<Vec<u8>>>),
    /// `deflate`
    Deflate(Box<ZlibDecoder<Vec<u8>>>),
}

impl fmt::Debug for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Identity => "identity",
            Self::Gzip(_) => "gzip",
            Self::Deflate(_) => "deflate",
        })
    }
}

impl Encoding {
    /// The encoding in the headers.
    ///
    /// # Errors
    /// An unsupported encoding.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Failure> {
        let Some(value) = headers.get(CONTENT_ENCODING) else { return Ok(Self::Identity) };
        let value = String::from_utf8_lossy(value.as_bytes());
        match value.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Self::Identity),
            "gzip" | "x-gzip" => Ok(Self::Gzip(Box::new(GzDecoder::new(Vec::new())))),
            "deflate" => Ok(Self::Deflate(Box::new(ZlibDecoder::new(Vec::new())))),
            other => {
                let other: String = other.chars().take(50).collect();
                Err(Failure::protocol(format!("the answer is encoded as {other}, which was not asked for")))
            }
        }
    }

    /// The decoded bytes so far.
    ///
    /// # Errors
    /// If the bytes are invalid, or decode to more than `most`.
    pub(crate) fn decode(&mut self, bytes: Bytes, most: u64) -> Result<Bytes, Failure> {
        match self {
            Self::Identity => Ok(bytes),
            Self::Gzip(decoder) => decoded(decoder.as_mut(), &bytes, most, |d| d.get_mut()),
            Self::Deflate(decoder) => decoded(decoder.as_mut(), &bytes, most, |d| d.get_mut()),
        }
    }
}

/// Bytes are decoded a few at a time, so that a small answer cannot become a large one at once.
fn decoded<D: Write>(
    decoder: &mut D,
    bytes: &[u8],
    most: u64,
    out: impl Fn(&mut D) -> &mut Vec<u8>,
) -> Result<Bytes, Failure> {
    const STEP_BYTES: usize = 1 << 10;
    for step in bytes.chunks(STEP_BYTES) {
        let written = decoder.write_all(step).and_then(|()| decoder.flush());
        written.map_err(|e| Failure::protocol(format!("the answer cannot be decompressed: {e}")))?;
        if out(decoder).len() as u64 > most {
            return Err(Failure::protocol("the decompressed answer exceeds the maximum size"));
        }
    }
    Ok(std::mem::take(out(decoder)).into())
}
