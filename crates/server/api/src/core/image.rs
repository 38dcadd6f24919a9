//! Images in messages and prompts, as base64 or by address. Parts of a [`Message`](super::Message).

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};

use crate::ApiError;
use crate::json::{Field, Result};

/// An image in a message. A model that reads text only refuses it by name: see [`Chat::template`](super::Chat::template).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Image {
    /// Where its bytes are.
    pub source: ImageSource,
    /// The level of detail: `low`, `high`, `auto`, `original`.
    pub detail: Option<String>,
    /// Its path in the client's request: `messages[3].content[0]`.
    pub at: String,
    /// Its place in a video, whose frames follow each other in a message. `None` for an image.
    #[serde(default)]
    pub frame: Option<Frame>,
}

/// A place in a video.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// How many frames are before it.
    pub number: usize,
    /// Seconds from the video's beginning.
    pub at_s: f64,
}

/// The source of an image's bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ImageSource {
    /// An address.
    Url(String),
    /// Inline, as base64.
    Base64 {
        /// `image/png`; `None` if not given.
        media_type: Option<String>,
        /// The bytes in base64: the standard alphabet, with padding. A copy of a request shares them.
        data: Arc<str>,
    },
}

/// Decodes what [`standard`] passes; some encoders leave bits of the last letter set.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Image {
    /// The URL in OpenAI's form: an address, or a data URL with the bytes.
    pub fn url(&self) -> String {
        match &self.source {
            ImageSource::Url(url) => url.clone(),
            ImageSource::Base64 { data, .. } => {
                format!("data:{};base64,{data}", self.media_type().unwrap_or(""))
            }
        }
    }

    /// Whether it is a document instead of an image.
    pub fn is_document(&self) -> bool {
        matches!(&self.source, ImageSource::Base64 { media_type: Some(kind), .. } if !kind.starts_with("image/"))
    }

    /// Whether it says that it is an encoded video.
    pub(super) fn is_video(&self) -> bool {
        matches!(&self.source, ImageSource::Base64 { media_type: Some(kind), .. } if kind.starts_with("video/"))
    }

    /// Its media type: detected from its first bytes, as providers refuse images whose type is not the declared one; else the declared
    /// type. `None` for an address.
    pub fn media_type(&self) -> Option<&str> {
        let ImageSource::Base64 { media_type, data } = &self.source else { return None };
        // Magic numbers in base64.
        let magic = [
            ("iVBORw0KGgo", "image/png"),
            ("/9j/", "image/jpeg"),
            ("R0lGOD", "image/gif"),
            ("UklGR", "image/webp"),
        ];
        let detected = magic.iter().find(|(beginning, _)| data.starts_with(beginning)).map(|m| m.1);
        let declared = media_type.as_deref();
        match declared {
            Some(kind) if !kind.starts_with("image/") => declared,
            _ => detected.or(declared),
        }
    }

    /// The size of its file in bytes, without decoding; `None` for an address.
    pub fn size(&self) -> Option<usize> {
        let ImageSource::Base64 { data, .. } = &self.source else { return None };
        let padding = data.bytes().rev().take_while(|b| *b == b'=').count();
        Some((data.len() / 4 * 3).saturating_sub(padding))
    }

    /// Its file.
    ///
    /// # Errors
    /// An address, which was not downloaded; what is not base64.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let refused = |why| ApiError::invalid(self.at.clone(), format!("'{}' {why}", self.at));
        match &self.source {
            ImageSource::Url(_) => Err(refused("is an address: send the image itself, as base64")),
            ImageSource::Base64 { data, .. } => {
                BASE64.decode(data.as_bytes()).map_err(|_| refused("is not base64"))
            }
        }
    }
}

impl ImageSource {
    /// The base64 text of a field: of either alphabet, with or without padding and line breaks.
    ///
    /// # Errors
    /// Other text, and an empty one.
    pub(crate) fn base64(f: &Field, media_type: Option<&str>) -> Result<Self> {
        let data = f.as_str().ok_or_else(|| f.expected("a string"))?;
        Self::of_base64(f, media_type, data)
    }

    /// A data URL, or the address of an image.
    ///
    /// # Errors
    /// A data URL that is not in base64.
    pub(crate) fn url(f: Field) -> Result<Self> {
        let url = f.as_str().filter(|url| !url.is_empty()).ok_or_else(|| f.expected("a non-empty string"))?;
        if url.get(..5).is_none_or(|scheme| !scheme.eq_ignore_ascii_case("data:")) {
            return Ok(Self::Url(f.string()?));
        }
        let (media_type, data) = data_url(url).ok_or_else(|| f.expected("a data URL with ';base64,'"))?;
        Self::of_base64(&f, media_type, data)
    }

    /// A JPEG in base64 that is a part of a field's text.
    ///
    /// # Errors
    /// Other text.
    pub(crate) fn jpeg(f: &Field, data: &str) -> Result<Self> {
        Self::of_base64(f, Some("image/jpeg"), data)
    }

    fn of_base64(f: &Field, media_type: Option<&str>, data: &str) -> Result<Self> {
        let data = standard(data).ok_or_else(|| f.expected("base64"))?;
        let media_type =
            media_type.map(|kind| kind.split(';').next().unwrap_or(kind).trim().to_ascii_lowercase());
        Ok(Self::Base64 { media_type: media_type.filter(|kind| !kind.is_empty()), data: data.into() })
    }
}

/// The type, if there is one, and the bytes of a data URL in base64.
pub(crate) fn data_url(url: &str) -> Option<(Option<&str>, &str)> {
    let (scheme, rest) = url.split_at_checked(5)?;
    let (media_type, data) = rest.split_once(";base64,")?;
    scheme.eq_ignore_ascii_case("data:").then_some(((!media_type.is_empty()).then_some(media_type), data))
}

/// The same bytes in the standard alphabet, with padding and without white space. `None` for an empty text and for one that is not
/// base64.
pub(crate) fn standard(data: &str) -> Option<Cow<'_, str>> {
    let is_letter = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'/';
    let letters = data.trim_end_matches('=');
    if data.len().is_multiple_of(4) && data.len() - letters.len() <= 2 && letters.bytes().all(is_letter) {
        return (!letters.is_empty()).then_some(Cow::Borrowed(data));
    }
    let mut out = String::with_capacity(data.len() + 3);
    for c in data.trim_end_matches(|c: char| c == '=' || c.is_ascii_whitespace()).chars() {
        match c {
            '-' => out.push('+'),
            '_' => out.push('/'),
            c if c.is_ascii_whitespace() => {}
            c if c.is_ascii() && is_letter(c as u8) => out.push(c),
            _ => return None,
        }
    }
    // One letter has 6 bits.
    if out.is_empty() || out.len() % 4 == 1 {
        return None;
    }
    while !out.len().is_multiple_of(4) {
        out.push('=');
    }
    Some(Cow::Owned(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(data: &str, media_type: Option<&str>) -> Image {
        let source = ImageSource::Base64 { media_type: media_type.map(Into::into), data: data.into() };
        Image { source, detail: None, at: "messages[0].content[1]".into(), frame: None }
    }

    #[test]
    fn base64_of_all_kinds_becomes_standard() {
        for (given, wanted) in [
            ("AAEC", Some("AAEC")),
            ("AA==", Some("AA==")),
            ("AAE", Some("AAE=")),
            ("_-8", Some("/+8=")),
            ("AA\nEC\r\n", Some("AAEC")),
            ("AA EC", Some("AAEC")),
            ("AA=\n=", Some("AA==")),
            ("", None),
            ("====", None),
            ("A", None),
            ("AAA=A", None),
            ("AA%3D", None),
            ("größe", None),
        ] {
            assert_eq!(standard(given).as_deref(), wanted, "{given}");
        }
    }

    #[test]
    fn bytes_and_their_number_are_those_of_the_file() {
        for (data, bytes) in [("AAEC", &[0, 1, 2][..]), ("AAE=", &[0, 1]), ("AA==", &[0]), ("AB==", &[0])] {
            let image = image(data, None);
            assert_eq!(image.bytes().unwrap(), bytes, "{data}");
            assert_eq!(image.size(), Some(bytes.len()));
        }
        let mut far = image("AAEC", None);
        far.source = ImageSource::Url("https://example.com/a.png".into());
        let error = far.bytes().unwrap_err();
        assert!(error.message.starts_with("'messages[0].content[1]' is an address"), "{error}");
        assert_eq!(far.size(), None);
    }

    #[test]
    fn the_bytes_decide_about_the_type_of_an_image() {
        let png = "iVBORw0KGgoAAAAN";
        assert_eq!(image(png, Some("image/jpeg")).media_type(), Some("image/png"));
        assert_eq!(image(png, None).media_type(), Some("image/png"));
        assert_eq!(image("AAEC", Some("image/tiff")).media_type(), Some("image/tiff"));
        assert_eq!(image("AAEC", None).media_type(), None);
        assert_eq!(image("JVBERi0x", Some("application/pdf")).media_type(), Some("application/pdf"));
    }
}
