//! 8-bit floats: E4M3 as in the OCP specification (no infinity; 0x7F is NaN; largest 448), E5M2 (half of an F16) and scales in E8M0.
//! Kernels use [`E4M3`] and the layout constants.
//!
//! | type    | value      | block                           | bytes |
//! |---------|------------|---------------------------------|-------|
//! | F8_E4M3 | `q`        | `q` 1                           | 1     |
//! | F8_128  | `scale q`  | `scale` f32, `q` 128            | 132   |
//! | F8_32   | `scale q`  | `scale` f32, `q` 32             | 36    |
//!
//! F8_128 is for the usual tiles of 128 x 128, whose scale each row has of its own here; F8_32 for groups of 32, and where a row is not
//! a multiple of 128.

/// Bytes of a block of F8_128.
pub const BYTES_128: usize = 132;
/// Bytes of a block of F8_32.
pub const BYTES_32: usize = 36;
/// Where the values of a block begin: behind its scale.
pub const QS: usize = 4;

/// The value of each E4M3 byte.
pub const E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = e4m3(i as u8);
        i += 1;
    }
    table
};

const fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = ((byte >> 3 & 15) as u32, (byte & 7) as u32);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => return f32::NAN,
        (0, m) => m as f32 / 512.0,
        (e, m) => f32::from_bits((e + 120) << 23 | m << 20),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// An E5M2 byte's value.
pub fn e5m2(byte: u8) -> f32 {
    half::f16::from_bits(u16::from(byte) << 8).to_f32()
}

/// An E8M0 byte's value, `2^(byte - 127)`; 255 is NaN.
pub fn e8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        e => f32::from_bits(u32::from(e) << 23),
    }
}

/// E4M3 to f32, exact.
///
/// # Panics
/// When `data` is not a byte for each value of `out`.
pub fn e4m3_to_f32(data: &[u8], out: &mut [f32]) {
    assert_eq!(data.len(), out.len(), "a byte a value");
    for (v, &q) in out.iter_mut().zip(data) {
        *v = E4M3[usize::from(q)];
    }
}

/// One block's values.
pub fn dequantize<const BYTES: usize, const LEN: usize>(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let (scale, q) = block.split_at(QS);
    let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
    for (v, &q) in out.iter_mut().zip(q) {
        *v = E4M3[usize::from(q)] * scale;
    }
}
