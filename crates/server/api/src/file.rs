//! Files in base64: text becomes text; PDFs and images stay what they are.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::core::{CacheBreakpoint, Image, ImageSource, Part, standard};
use crate::json::{Field, Result};

const PDF: &str = "application/pdf";
/// A PDF's header is within this many bytes: other bytes may precede it.
const PDF_HEADER_MAX: usize = 1024;

/// A file in a request.
pub(crate) struct File<'a> {
    /// The type that the client declares.
    pub media_type: Option<&'a str>,
    /// Its bytes in base64: of either alphabet, with or without padding and line breaks.
    pub data: &'a str,
    /// Its name, or what else is written before its text.
    pub head: String,
    /// The path of its part in the request.
    pub at: String,
    /// A cache breakpoint after it.
    pub cache: Option<CacheBreakpoint>,
}

impl File<'_> {
    /// The file as a part of a message; `f` is the field with its data. The kind is the declared type if that is a PDF's or an image's,
    /// else the bytes decide.
    ///
    /// # Errors
    /// Text that is not base64. Files that are neither text nor a PDF nor an image are [`Unread`](crate::unread::Unread).
    pub(crate) fn part(self, f: &Field) -> Result<Part> {
        let kind = self.media_type.map(|kind| kind.split(';').next().unwrap_or(kind).trim());
        let declared = kind.filter(|kind| *kind == PDF || kind.starts_with("image/"));
        // Only a text may be empty.
        let data = match standard(self.data) {
            None if self.data.is_empty() && declared.is_none() => "".into(),
            data => data.ok_or_else(|| f.expected("base64"))?,
        };
        let media_type = match declared {
            Some(kind) => kind,
            None => match contents(STANDARD.decode(&*data).map_err(|_| f.expected("base64"))?) {
                Contents::Text(text) => return Ok(Part::Text { text: self.head + &text, cache: self.cache }),
                Contents::Pdf => PDF,
                Contents::Unknown if kind.is_some_and(|kind| kind.starts_with("video/")) => {
                    let refusal = f.error("is a video, which is not decoded here: send its frames as images");
                    return Ok(Part::text(f.unread().found(self.at, "a video", refusal)));
                }
                Contents::Unknown => {
                    let refusal = f.error("is neither text nor a PDF: send the file's text");
                    return Ok(Part::text(f.unread().found(self.at, "a file", refusal)));
                }
            },
        };
        let source = ImageSource::Base64 { media_type: Some(media_type.into()), data: data.into() };
        Ok(Part::Image { image: Image { source, detail: None, at: self.at, frame: None }, cache: self.cache })
    }
}

enum Contents {
    Text(String),
    Pdf,
    Unknown,
}

/// What a file contains. A text that mentions the header of PDFs is a text, unless it begins with it.
fn contents(bytes: Vec<u8>) -> Contents {
    const HEADER: &[u8] = b"%PDF";
    if bytes.starts_with(HEADER) {
        return Contents::Pdf;
    }
    let beginning = &bytes[..bytes.len().min(PDF_HEADER_MAX)];
    let is_pdf = beginning.windows(HEADER.len()).any(|w| w == HEADER);
    let text = if bytes.contains(&0) { None } else { String::from_utf8(bytes).ok() };
    match text {
        Some(text) => Contents::Text(text),
        None if is_pdf => Contents::Pdf,
        None => Contents::Unknown,
    }
}
