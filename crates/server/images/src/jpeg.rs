//! Checks of JPEG files that the decoder does not make: it fills the rest of a truncated image with grey.

use memchr::memmem;

use crate::{Error, Format};

/// Decoding takes time for each scan of a progressive image, even for an empty one: at most so many pixels times scans. A photo of 12
/// million pixels has about 10 scans.
const SCANNED_PIXELS_MAX: u64 = 10_000_000_000;

const START_OF_SCAN: [u8; 2] = [0xff, 0xda];
const END_OF_IMAGE: [u8; 2] = [0xff, 0xd9];

/// Refuses a file that ends before its end marker.
pub(crate) fn check(bytes: &[u8]) -> Result<(), Error> {
    let scan = first_scan(bytes).ok_or(Error::Truncated(Format::Jpeg))?;
    match memmem::find(&bytes[scan..], &END_OF_IMAGE) {
        Some(_) => Ok(()),
        None => Err(Error::Truncated(Format::Jpeg)),
    }
}

/// Refuses a small file whose scans would keep the decoder busy for minutes.
pub(crate) fn check_scans(bytes: &[u8], pixels: u64) -> Result<(), Error> {
    // Metadata may contain the marker too, so some are counted that are none.
    let scans = memmem::find_iter(bytes, &START_OF_SCAN).count();
    if pixels.saturating_mul(scans as u64) > SCANNED_PIXELS_MAX {
        let why = format!("{scans} scans of {pixels} pixels are too many");
        return Err(Error::Damaged { format: Format::Jpeg, why });
    }
    Ok(())
}

/// Where the first scan begins. Segments are skipped by their lengths, as a thumbnail in the EXIF data has markers too; where a segment
/// does not begin with a marker, the next marker is searched for, as the decoder does it.
fn first_scan(bytes: &[u8]) -> Option<usize> {
    let mut at = 2;
    while at + 4 <= bytes.len() {
        match (bytes[at], bytes[at + 1]) {
            (0xff, 0xda) => return Some(at),
            // Markers without a segment, and fill bytes.
            (0xff, 0x01 | 0xd0..=0xd8) => at += 2,
            (0xff, 0xff) => at += 1,
            (0xff, 1..) => at += 2 + usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]])),
            _ => at += 1,
        }
    }
    None
}
