//! Formats of image files, recognised by their first bytes: names and media types of clients are not trusted.

use crate::{Error, Limits};

/// A format that can be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// PNG.
    Png,
    /// JPEG.
    Jpeg,
    /// WebP.
    WebP,
    /// GIF: its first frame.
    Gif,
}

impl Format {
    /// The format of a file.
    ///
    /// # Errors
    ///
    /// The file is empty, too large or of another format.
    pub fn of(bytes: &[u8], limits: &Limits) -> Result<Self, Error> {
        if bytes.is_empty() {
            return Err(Error::Empty);
        }
        if bytes.len() > limits.bytes {
            return Err(Error::TooManyBytes { bytes: bytes.len(), max: limits.bytes });
        }
        match bytes {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Ok(Self::Jpeg),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(Self::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok(Self::Gif),
            _ => Err(Error::UnknownFormat(other(bytes))),
        }
    }

    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::WebP => "image/webp",
            Self::Gif => "image/gif",
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Png => "PNG",
            Self::Jpeg => "JPEG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
        })
    }
}

/// What a file is that is no image of a known format, with its article.
fn other(bytes: &[u8]) -> &'static str {
    let brand = |brands: &[&[u8]]| {
        bytes.get(4..8) == Some(b"ftyp") && brands.iter().any(|b| bytes[8..].starts_with(b))
    };
    let text = bytes.trim_ascii_start();
    if brand(&[b"heic", b"heix", b"hevc", b"mif1", b"msf1"]) {
        "a HEIC image"
    } else if brand(&[b"avif", b"avis"]) {
        "an AVIF image"
    } else if brand(&[b""]) {
        "a video"
    } else if bytes.starts_with(b"%PDF") {
        "a PDF file"
    } else if bytes.starts_with(b"BM") {
        "a BMP image"
    } else if bytes.starts_with(b"II*\0") || bytes.starts_with(b"MM\0*") {
        "a TIFF image"
    } else if text.starts_with(b"<svg") || text.starts_with(b"<?xml") {
        "an SVG image"
    } else if text.starts_with(b"<") {
        "a web page"
    } else {
        "not an image that is supported"
    }
}
