//! Any bytes as an image file. The files of the crate's tests are its seeds:
//! `cargo +nightly fuzz run images fuzz/corpus/images crates/server/images/tests/files`
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let limits = octet_images::Limits { pixels: 1 << 18, ..octet_images::Limits::default() };
    if let Ok(picture) = octet_images::decode(data, &limits) {
        assert_eq!(picture.rgb.len(), picture.width as usize * picture.height as usize * 3);
    }
});
