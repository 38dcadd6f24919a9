//! Files that lie about themselves, end early or are changed at random: an error or a picture, never a panic, and no memory for
//! pixels that a limit forbids.

use octet_images::{Error, Format, Limits, decode, size};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::{file, names};

fn refusal(bytes: &[u8]) -> Error {
    let error = decode(bytes, &Limits::default()).unwrap_err();
    assert_eq!(size(bytes, &Limits::default()).err().unwrap_or_else(|| error.clone()), error);
    error
}

/// A PNG that is all header: the size, then no data that could fill it.
fn png_of(width: u32, height: u32) -> Vec<u8> {
    let mut out = file("rgb.png");
    out[16..20].copy_from_slice(&width.to_be_bytes());
    out[20..24].copy_from_slice(&height.to_be_bytes());
    let crc = crc32(&out[12..29]);
    out[29..33].copy_from_slice(&crc.to_be_bytes());
    out
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg()))
    })
}

#[test]
fn bytes_and_formats_are_checked_first() {
    assert_eq!(refusal(b""), Error::Empty);
    let limits = Limits { bytes: 100, ..Limits::default() };
    let photo = file("photo.jpg");
    assert_eq!(decode(&photo, &limits), Err(Error::TooManyBytes { bytes: photo.len(), max: 100 }));
    for (bytes, what) in [
        (&b"%PDF-1.7"[..], "a PDF file"),
        (b"\0\0\0\x1cftypheic\0\0\0\0", "a HEIC image"),
        (b"\0\0\0\x1cftypavif\0\0\0\0", "an AVIF image"),
        (b"\0\0\0\x1cftypisom\0\0\0\0", "a video"),
        (b"BM\x36\0", "a BMP image"),
        (b" <svg xmlns='x'>", "an SVG image"),
        (b"<!DOCTYPE html>", "a web page"),
        (b"hello", "not an image that is supported"),
        (b"GIF8", "not an image that is supported"),
    ] {
        assert_eq!(refusal(bytes), Error::UnknownFormat(what));
    }
    assert_eq!(refusal(b"%PDF").to_string(), "is a PDF file; send PNG, JPEG, WebP or GIF");
}

#[test]
fn sizes_are_checked_before_pixels_are_decoded() {
    let max = Limits::default().pixels;
    let (width, height) = (20_000, 20_000);
    assert_eq!(refusal(&png_of(width, height)), Error::TooManyPixels { width, height, max });
    assert!(matches!(refusal(&png_of(1, 100_000)), Error::TooManyPixels { .. }));
    for (width, height) in [(0, 7), (7, 0)] {
        let error = refusal(&png_of(width, height));
        assert!(matches!(error, Error::NoPixels { .. } | Error::Damaged { .. }), "{error}");
    }
    // A JPEG's size is in the segment of its frame.
    let mut jpeg = file("rgb.jpg");
    let frame = jpeg.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
    assert_eq!(refusal(&jpeg), Error::TooManyPixels { width: 65535, height: 65535, max });
    // A GIF's whole size is in its first bytes.
    let mut gif = file("still.gif");
    gif[6..10].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
    assert_eq!(refusal(&gif), Error::TooManyPixels { width: 65535, height: 65535, max });
    gif[6..10].copy_from_slice(&[0, 0, 9, 0]);
    assert!(matches!(refusal(&gif), Error::NoPixels { width: 0, .. } | Error::Damaged { .. }));
}

#[test]
fn a_frame_cannot_be_larger_than_the_file_says() {
    // A canvas of 19 x 13, and in it a lossy frame of 16383 x 16383.
    let mut webp = file("lossy.webp");
    let at = webp.windows(4).position(|w| w == b"VP8 ").unwrap();
    webp[at + 14..at + 18].copy_from_slice(&[0xff, 0x3f, 0xff, 0x3f]);
    let tall = Error::TooManyPixels { width: 16383, height: 16383, max: Limits::default().pixels };
    assert_eq!(refusal(&webp), tall);
    // A frame of 65535 x 65535 in a GIF of 19 x 13.
    let mut gif = file("still.gif");
    let at = gif.windows(10).position(|w| w[0] == 0x2c && w[5..9] == [19, 0, 13, 0]).unwrap();
    gif[at + 5..at + 9].copy_from_slice(&[0xff; 4]);
    assert!(decode(&gif, &Limits::default()).is_err());
}

#[test]
fn a_small_file_of_many_scans_is_refused() {
    let mut jpeg = file("progressive.jpg");
    let frame = jpeg.windows(2).position(|w| w == [0xff, 0xc2]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0x1b, 0x58, 0x1b, 0x58]);
    let scan = jpeg.windows(2).position(|w| w == [0xff, 0xda]).unwrap();
    let end = scan + jpeg[scan + 2..].windows(2).position(|w| w == [0xff, 0xc4]).unwrap() + 2;
    let one = jpeg[scan..end].to_vec();
    for _ in 0..1000 {
        jpeg.splice(scan..scan, one.iter().copied());
    }
    let error = refusal(&jpeg);
    assert!(error.to_string().contains("scans of 49000000 pixels are too many"), "{error}");
}

#[test]
fn truncated_files_are_errors() {
    // Of an animated GIF only the beginning is read.
    for name in names().iter().filter(|name| *name != "animated.gif") {
        let bytes = file(name);
        for length in 0..bytes.len() {
            let result = decode(&bytes[..length], &Limits::default());
            // What follows the pixels of some formats is not needed: end markers, metadata.
            assert!(result.is_err() || bytes.len() - length <= 160, "{name}, {length} of {}", bytes.len());
        }
        let half = decode(&bytes[..bytes.len() / 2], &Limits::default()).unwrap_err();
        let named = matches!(
            half,
            Error::Truncated(_) | Error::Animated(_) | Error::Damaged { format: Format::WebP, .. }
        );
        assert!(named, "{name}: {half}");
    }
}

#[test]
fn ten_thousand_changed_files_are_pictures_or_errors() {
    let files: Vec<Vec<u8>> = names().iter().map(|name| file(name)).collect();
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..4_u8);
    let cases = (0..files.len(), prop::collection::vec(change, 1..8));
    let limits = Limits { pixels: 1 << 18, ..Limits::default() };
    let mut runner =
        TestRunner::new(Config { cases: 10_000, failure_persistence: None, ..Config::default() });
    let mut pictures = std::cell::Cell::new(0);
    let run = runner.run(&cases, |(at, changes)| {
        let mut bytes = files[at].clone();
        for (index, value, kind) in changes {
            if bytes.is_empty() {
                break;
            }
            // Half of the changes hit the headers.
            let at = index.index(if value & 1 == 0 { bytes.len() } else { bytes.len().min(64) });
            match kind {
                0 => bytes[at] = value,
                1 => bytes[at] ^= 1 << (value & 7),
                2 => {
                    bytes.remove(at);
                }
                _ => bytes.insert(at, value),
            }
        }
        if let Ok(picture) = decode(&bytes, &limits) {
            pictures.set(pictures.get() + 1);
            prop_assert!(u64::from(picture.width) * u64::from(picture.height) <= limits.pixels);
            prop_assert_eq!(picture.rgb.len(), (picture.width * picture.height * 3) as usize);
        }
        Ok(())
    });
    run.unwrap();
    // Not all files are refused by their first bytes.
    assert!(*pictures.get_mut() > 500, "{pictures:?}");
}
