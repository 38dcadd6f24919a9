//! Images of requests: untrusted bytes in, RGB pixels out.
//!
//! PNG, JPEG, WebP and the first frame of a GIF. The orientation that EXIF data gives is applied; what is transparent shows white, as in
//! transformers' processors. All sizes are checked before memory is allocated for pixels.

mod format;
mod jpeg;
mod webp;

use std::io::Cursor;

use image::codecs::{gif::GifDecoder, jpeg::JpegDecoder, png::PngDecoder, webp::WebPDecoder};
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageError, RgbImage};

pub use format::Format;

/// What a decoder may allocate beside its pixels: chunks of metadata.
const METADATA_BYTES_MAX: u64 = 32 << 20;

/// The longest side that a decoder is asked for. JPEG and GIF have 16 bits for it.
const SIDE_MAX: u32 = u16::MAX as u32;

/// Limits on the images of a request. They are checked before an image is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of an image file.
    pub bytes: usize,
    /// Pixels of an image: width times height. Decoding takes up to 12 bytes of memory for each.
    pub pixels: u64,
    /// Images of a request. [`decode`] does not count them: its caller does.
    pub images: usize,
}

impl Default for Limits {
    /// 20 MiB, 50 million pixels, 256 images.
    fn default() -> Self {
        Self { bytes: 20 << 20, pixels: 50_000_000, images: 256 }
    }
}

/// A decoded image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels in a row; at least 1.
    pub width: u32,
    /// Rows; at least 1.
    pub height: u32,
    /// Red, green and blue of each pixel, rows from the top: `[height, width, 3]`.
    pub rgb: Vec<u8>,
}

/// Why an image is refused. The text follows the name of the image: "messages\[0\].content\[1\] is empty".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are no bytes.
    #[error("is empty")]
    Empty,
    /// The file is too large.
    #[error("has {bytes} bytes; the limit is {max} bytes")]
    TooManyBytes {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The format is not one of [`Format`].
    #[error("is {0}; send PNG, JPEG, WebP or GIF")]
    UnknownFormat(&'static str),
    /// One of its sides is 0.
    #[error("has no pixels: {width} x {height}")]
    NoPixels {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
    },
    /// There are too many pixels.
    #[error("is {width} x {height} pixels, which exceeds the limit of {max} pixels; scale it down")]
    TooManyPixels {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
        /// The limit: width times height.
        max: u64,
    },
    /// It is an animation of a format of which no frame is chosen.
    #[error("is an animated {0}; send a still image")]
    Animated(Format),
    /// The file ends early.
    #[error("is a truncated {0} file")]
    Truncated(Format),
    /// The file breaks its format's rules, or uses a part of it that is not supported.
    #[error("is a damaged or unsupported {format} file: {why}")]
    Damaged {
        /// The format.
        format: Format,
        /// The decoder's words.
        why: String,
    },
}

/// The format of an image file and its size in pixels after rotation, without decoding its pixels.
///
/// # Errors
///
/// As [`decode`]. An image that passes may still be damaged.
pub fn size(bytes: &[u8], limits: &Limits) -> Result<(Format, u32, u32), Error> {
    let format = Format::of(bytes, limits)?;
    let mut decoder = open(format, bytes, limits)?;
    let (width, height) = decoder.dimensions();
    Ok(match turned(orientation(&mut *decoder)) {
        true => (format, height, width),
        false => (format, width, height),
    })
}

/// Decodes an image file.
///
/// # Errors
///
/// The file exceeds a limit, is of another format, animated (PNG, WebP), truncated or damaged.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Picture, Error> {
    let format = Format::of(bytes, limits)?;
    let mut decoder = open(format, bytes, limits)?;
    let orientation = orientation(&mut *decoder);
    let ((width, height), color) = (decoder.dimensions(), decoder.color_type());
    let length = usize::try_from(decoder.total_bytes()).map_err(|_| Error::TooManyPixels {
        width,
        height,
        max: limits.pixels,
    })?;
    let mut pixels = vec![0; length];
    decoder.read_image_boxed(&mut pixels).map_err(|e| damaged(format, &e))?;
    let unknown = || Error::Damaged { format, why: format!("pixels of the type {color:?}") };
    let rgb = rgb(pixels, color).ok_or_else(unknown)?;
    let image = RgbImage::from_raw(width, height, rgb).ok_or_else(unknown)?;
    Ok(turn(image, orientation))
}

/// Opens a file and checks its size. Nothing is allocated for pixels.
fn open<'a>(format: Format, bytes: &'a [u8], limits: &Limits) -> Result<Box<dyn ImageDecoder + 'a>, Error> {
    let reader = Cursor::new(bytes);
    let failed = |e: ImageError| damaged(format, &e);
    let mut allowed = image::Limits::default();
    (allowed.max_image_width, allowed.max_image_height) = (None, None);
    let mut decoder: Box<dyn ImageDecoder + 'a> = match format {
        Format::Png => {
            allowed.max_alloc = Some(METADATA_BYTES_MAX);
            let decoder = PngDecoder::with_limits(reader, allowed.clone()).map_err(failed)?;
            if decoder.is_apng().map_err(failed)? {
                return Err(Error::Animated(format));
            }
            Box::new(decoder)
        }
        Format::Jpeg => {
            jpeg::check(bytes)?;
            Box::new(JpegDecoder::new(reader).map_err(failed)?)
        }
        Format::WebP => {
            let (width, height) = webp::frame_size(bytes);
            if u64::from(width) * u64::from(height) > limits.pixels {
                return Err(Error::TooManyPixels { width, height, max: limits.pixels });
            }
            let decoder = WebPDecoder::new(reader).map_err(failed)?;
            if decoder.has_animation() {
                return Err(Error::Animated(format));
            }
            Box::new(decoder)
        }
        Format::Gif => Box::new(GifDecoder::new(reader).map_err(failed)?),
    };
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 {
        return Err(Error::NoPixels { width, height });
    }
    if pixels > limits.pixels || width > SIDE_MAX || height > SIDE_MAX {
        return Err(Error::TooManyPixels { width, height, max: limits.pixels });
    }
    if format == Format::Jpeg {
        jpeg::check_scans(bytes, pixels)?;
    }
    // A frame of a GIF may be larger than the image.
    allowed.max_alloc = Some(limits.pixels.saturating_mul(4).max(METADATA_BYTES_MAX));
    decoder.set_limits(allowed).map_err(failed)?;
    Ok(decoder)
}

/// EXIF data that cannot be read have no orientation, as in Pillow.
fn orientation(decoder: &mut dyn ImageDecoder) -> Orientation {
    decoder.orientation().unwrap_or(Orientation::NoTransforms)
}

fn damaged(format: Format, error: &ImageError) -> Error {
    let truncated = || {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(e) = cause {
            if e.downcast_ref::<std::io::Error>()
                .is_some_and(|e| e.kind() == std::io::ErrorKind::UnexpectedEof)
            {
                return true;
            }
            cause = e.source();
        }
        false
    };
    // Not all decoders have a kind of error for it.
    let text = error.to_string().to_ascii_lowercase();
    let words = ["unexpected end", "eof", "no more data", "not enough bytes", "exhausted"];
    if truncated() || words.iter().any(|words| text.contains(words)) {
        return Error::Truncated(format);
    }
    let why = error.to_string().chars().filter(|c| !c.is_control()).take(200).collect();
    Error::Damaged { format, why }
}

/// A colour over white, rounded as Pillow's `alpha_composite` does.
fn over_white(colour: u8, alpha: u8) -> u8 {
    const SHIFT: u32 = 7;
    let (colour, weight) = (u32::from(colour), u32::from(alpha) << SHIFT);
    let sum = colour * weight + 255 * ((255 << SHIFT) - weight) + (128 << SHIFT);
    ((((sum >> 8) + sum) >> 8) >> SHIFT) as u8
}

/// The colours of pixels over white; of 16 bits the upper 8, as Pillow reads them. `None` for types that no decoder here gives.
fn rgb(pixels: Vec<u8>, color: ColorType) -> Option<Vec<u8>> {
    let high = |c: &[u8]| u16::from_ne_bytes([c[0], c[1]]).to_be_bytes()[0];
    let grey = |size: usize, value: &dyn Fn(&[u8]) -> u8| {
        pixels.chunks_exact(size).flat_map(|p| [value(p); 3]).collect()
    };
    Some(match color {
        ColorType::Rgb8 => pixels,
        ColorType::L8 => grey(1, &|p| p[0]),
        ColorType::La8 => grey(2, &|p| over_white(p[0], p[1])),
        ColorType::L16 => grey(2, &high),
        ColorType::La16 => grey(4, &|p| over_white(high(p), high(&p[2..]))),
        ColorType::Rgba8 => {
            pixels.chunks_exact(4).flat_map(|p| [0, 1, 2].map(|c| over_white(p[c], p[3]))).collect()
        }
        ColorType::Rgb16 => pixels.chunks_exact(2).map(high).collect(),
        ColorType::Rgba16 => {
            let over = |p: &[u8]| [0, 2, 4].map(|c| over_white(high(&p[c..]), high(&p[6..])));
            pixels.chunks_exact(8).flat_map(over).collect()
        }
        _ => return None,
    })
}

/// Whether width and height change places.
fn turned(orientation: Orientation) -> bool {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    matches!(orientation, Rotate90 | Rotate90FlipH | Rotate270 | Rotate270FlipH)
}

fn turn(image: RgbImage, orientation: Orientation) -> Picture {
    let image = if orientation == Orientation::NoTransforms {
        image
    } else {
        let mut turned = DynamicImage::ImageRgb8(image);
        turned.apply_orientation(orientation);
        turned.into_rgb8()
    };
    Picture { width: image.width(), height: image.height(), rgb: image.into_raw() }
}
