//! Images as Pillow reads them, and hostile files. `../files/make.py` wrote the files and the pixels.

mod hostile;

use std::path::{Path, PathBuf};

use octet_images::{Error, Format, Limits, Picture, decode, size};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The names of all image files.
fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !name.ends_with(".rgb") && !name.ends_with(".py"));
    names.sort();
    assert!(names.len() > 20, "{names:?}");
    names
}

/// The pixels that Pillow reads.
fn expected(name: &str) -> Picture {
    let bytes = file(&format!("{name}.rgb"));
    let side = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    Picture { width: side(0), height: side(4), rgb: bytes[8..].to_vec() }
}

#[test]
fn pixels_are_those_of_pillow() {
    for name in names() {
        if ["animated.png", "animated.webp"].contains(&name.as_str()) {
            continue;
        }
        let (got, want) = (decode(&file(&name), &Limits::default()).expect(&name), expected(&name));
        assert_eq!((got.width, got.height), (want.width, want.height), "{name}");
        assert_eq!(got.rgb.len(), want.rgb.len(), "{name}");
        let furthest = got.rgb.iter().zip(&want.rgb).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        // Decoders of JPEG and lossy WebP differ in rounding: of the cosine transform, of the colours, of enlarged colour planes.
        let limit = match name.as_str() {
            "photo.jpg" | "lossy.webp" => 4,
            name if name.ends_with(".jpg") => 2,
            _ => 0,
        };
        assert!(furthest <= limit, "{name}: {furthest}");
        let (format, width, height) = size(&file(&name), &Limits::default()).unwrap();
        assert_eq!((width, height), (want.width, want.height), "{name}");
        let ending = format.media_type().rsplit('/').next().unwrap().replace("jpeg", "jpg");
        assert!(name.ends_with(&ending), "{name}: {format}");
    }
}

#[test]
fn animations_are_refused_but_for_the_first_frame_of_a_gif() {
    for (name, format) in [("animated.png", Format::Png), ("animated.webp", Format::WebP)] {
        assert_eq!(decode(&file(name), &Limits::default()), Err(Error::Animated(format)));
    }
    assert_eq!(decode(&file("animated.gif"), &Limits::default()).unwrap(), expected("animated.gif"));
}
