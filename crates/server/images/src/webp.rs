//! The size in the first header of a lossy WebP image. The decoder compares it with the file's own size only after decoding.

/// Width and height of the largest lossy frame of the file; 0 x 0 if there is none.
pub(crate) fn frame_size(bytes: &[u8]) -> (u32, u32) {
    let mut largest = (0, 0);
    let mut at: usize = 12;
    while let Some(header) = bytes.get(at..at.saturating_add(8)) {
        let size = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        // A frame tag of 3 bytes, a start code of 3, then two sizes of 14 bits with 2 bits of scale.
        if &header[..4] == b"VP8 "
            && let Some(sizes) = bytes.get(at + 14..at + 18)
        {
            let side = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
            let size = (side(sizes[0], sizes[1]), side(sizes[2], sizes[3]));
            if size.0 * size.1 > largest.0 * largest.1 {
                largest = size;
            }
        }
        at = at.saturating_add(8).saturating_add(size).saturating_add(size & 1);
    }
    largest
}
