//! Weights in the device's layout: rows split into 8 stripes of blocks, so that the lanes of a row read adjacent words.
//! `shaders/weights.glsl` reads this layout, `pack` makes it.

use octet_weights::GgmlType;
use octet_weights::quant::{fp8, iq4, levels, mxfp4, nvfp4, q1, q3_k, q4_k, q5_k, q6_k, zero_point};

/// Lanes of a row: its stripes.
pub(crate) const LANES: usize = 8;

/// Types that kernels read. The numbers are those of `weights.glsl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub(crate) enum DeviceType {
    F32 = 0,
    F16 = 1,
    Bf16 = 2,
    /// Signed bytes, an f16 scale for 32.
    Q8_0 = 3,
    /// Signed bytes, with an f32 scale and minimum per 32: of `I8_Z` and `I8_M`.
    I8 = 4,
    Q4_K = 5,
    Q5_K = 6,
    Q6_K = 7,
    /// Like `Q6_K`, without high bits.
    Q3_K = 8,
    /// 4-bit indices of `iq4::LEVELS`, with an f32 scale per 32.
    Iq4 = 9,
    /// Indices of `mxfp4::LEVELS`, with an exponent of a byte per 32, and an f32 factor of each row.
    Mxfp4 = 10,
    /// Indices of -8 to 7, with an f16 scale per 32, and an f32 factor of each row.
    Q4_0 = 11,
    /// Indices of `mxfp4::LEVELS`, with two scales in E4M3 per 32, and an f32 factor of each row.
    Nvfp4 = 12,
    /// Indices of 0 to 15, with an f16 scale and a byte as zero point per 32, and an f32 factor of each row.
    I4_Z = 13,
    /// Like `Q8_0`, but rows start with a whole word of scales, and end with an f32 factor.
    Q8_Row = 14,
    /// Indices of 0 to 15, with an f16 scale and minimum per 32.
    Q4_1 = 15,
    /// -16 to 15 in five bits, with an f16 scale per 32, and an f32 factor of each row.
    Q5_0 = 16,
    /// 0 to 31 in five bits, with an f16 scale and minimum per 32.
    Q5_1 = 17,
    /// Narrow floats: 8-bit ones (E4M3), with an f32 scale of each row.
    F8 = 18,
    /// The same, with an f32 scale per 128 columns.
    F8_128 = 19,
    /// The same, with an f32 scale per 32 columns.
    F8_32 = 20,
    /// 4-bit indices of `levels::NF4`, with an f32 scale per 64 columns.
    NF4 = 21,
    /// 4-bit indices of `levels::FP4`, with an f32 scale per 64 columns.
    FP4 = 22,
    /// -1 and 1, a bit each, with an f32 scale per 128 columns.
    Q1_0 = 23,
    /// -1 to 2, two bits each, with an f32 scale per 64 columns.
    Q2_0 = 24,
}

/// A float type of less than 16 bits, whose values lie side by side in words, in the order of the columns, without stripes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Narrow {
    /// Bits of a value.
    bits: usize,
    /// Columns under one scale.
    group: usize,
}

impl Narrow {
    /// Words of values, and of scales, of a row.
    pub(crate) fn row_words(self, cols: usize) -> [usize; 2] {
        [(cols * self.bits).div_ceil(32), cols.div_ceil(self.group)]
    }
}

impl DeviceType {
    /// The device's type for a file's type. Types without a kernel of their own become f32: correct, but large.
    pub(crate) fn of(ty: GgmlType) -> Self {
        match ty {
            GgmlType::F16 => Self::F16,
            GgmlType::BF16 => Self::Bf16,
            GgmlType::Q8_0 => Self::Q8_0,
            GgmlType::Q4_0 => Self::Q4_0,
            GgmlType::Q4_1 => Self::Q4_1,
            GgmlType::Q5_0 => Self::Q5_0,
            GgmlType::Q5_1 => Self::Q5_1,
            GgmlType::I8_Z | GgmlType::I8_M => Self::I8,
            GgmlType::Q3_K => Self::Q3_K,
            GgmlType::IQ4_NL | GgmlType::IQ4_XS => Self::Iq4,
            GgmlType::MXFP4 => Self::Mxfp4,
            GgmlType::NVFP4 => Self::Nvfp4,
            GgmlType::I4_Z => Self::I4_Z,
            GgmlType::F8_E4M3 => Self::F8,
            GgmlType::F8_128 => Self::F8_128,
            GgmlType::F8_32 => Self::F8_32,
            GgmlType::NF4 => Self::NF4,
            GgmlType::FP4 => Self::FP4,
            GgmlType::Q1_0 => Self::Q1_0,
            GgmlType::Q2_0 => Self::Q2_0,
            GgmlType::Q4_K => Self::Q4_K,
            GgmlType::Q5_K => Self::Q5_K,
            GgmlType::Q6_K => Self::Q6_K,
            _ => Self::F32,
        }
    }

    /// Activations are f32, not quantised.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16) || self.narrow(1).is_some()
    }

    /// The layout of a narrow float type's rows of `cols` columns.
    pub(crate) fn narrow(self, cols: usize) -> Option<Narrow> {
        let (bits, group) = match self {
            Self::F8 => (8, cols.max(1)),
            Self::F8_128 => (8, 128),
            Self::F8_32 => (8, 32),
            Self::NF4 | Self::FP4 => (4, 64),
            Self::Q1_0 => (1, 128),
            Self::Q2_0 => (2, 64),
            _ => return None,
        };
        Some(Narrow { bits, group })
    }

    /// Whether its scales, or a factor of each row, take what a matrix has beside its blocks ([`octet_weights::Matrix::scales`]).
    pub(crate) fn takes_factors(self) -> bool {
        use DeviceType as T;
        matches!(self, T::I8 | T::Iq4 | T::Mxfp4 | T::Q4_0 | T::Nvfp4 | T::I4_Z | T::Q8_Row | T::Q5_0)
            || self.narrow(1).is_some()
    }
}

/// Size of `values` weights of a file's type on a device, in bytes.
pub fn device_bytes(ty: GgmlType, values: u64) -> u64 {
    let per_256 = match DeviceType::of(ty) {
        DeviceType::F32 => 1024,
        DeviceType::F16 | DeviceType::Bf16 => 512,
        DeviceType::Q8_0 | DeviceType::Q8_Row => 272,
        DeviceType::I8 => 320,
        DeviceType::Q4_K => 144,
        DeviceType::Q5_K => 176,
        DeviceType::Q6_K => 212,
        DeviceType::Q3_K => 148,
        DeviceType::Iq4 | DeviceType::Q4_1 => 160,
        DeviceType::Q5_1 => 192,
        // with a factor of each 1024 columns, which are rarely fewer
        DeviceType::Mxfp4 => 137,
        DeviceType::Q4_0 | DeviceType::Nvfp4 => 145,
        DeviceType::I4_Z => 153,
        DeviceType::Q5_0 => 177,
        DeviceType::F8 => 257,
        DeviceType::F8_128 => 264,
        DeviceType::F8_32 => 288,
        DeviceType::NF4 | DeviceType::FP4 => 144,
        DeviceType::Q1_0 => 40,
        DeviceType::Q2_0 => 80,
    };
    values.div_ceil(256).saturating_mul(per_256)
}

/// 4 bytes as a word.
pub(crate) fn word(b: &[u8]) -> u32 {
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

/// The first 16 bytes as words.
fn words(b: &[u8]) -> [u32; 4] {
    std::array::from_fn(|i| word(&b[4 * i..]))
}

pub(crate) fn f16_bits(b: &[u8]) -> u32 {
    u32::from(u16::from_le_bytes([b[0], b[1]]))
}

/// Bytes of a row in each plane: quants, high bits, scales. Of `Q8_0` where the row has an even number of blocks.
pub(crate) fn row_bytes(ty: DeviceType, cols: usize) -> [u64; 3] {
    // narrow types
    if let Some(narrow) = ty.narrow(cols) {
        let [values, scales] = narrow.row_words(cols);
        return [0, 4 * values as u64, 4 * scales as u64];
    }
    let blocks = cols / 32;
    let pieces = blocks.div_ceil(LANES) * LANES;
    let words = match ty {
        DeviceType::F32 => [0, 0, cols],
        DeviceType::F16 | DeviceType::Bf16 => [0, 0, cols.div_ceil(2)],
        DeviceType::Q8_0 => [8 * pieces, 0, blocks / 2],
        DeviceType::I8 => [8 * pieces, 0, 2 * blocks],
        DeviceType::Q4_K => [4 * pieces, 0, blocks / 8 * 4],
        DeviceType::Q5_K => [4 * pieces, pieces, blocks / 8 * 4],
        DeviceType::Q6_K => [4 * pieces, 2 * pieces, blocks / 8 * 5],
        DeviceType::Q3_K => [4 * pieces, 0, blocks / 8 * 5],
        DeviceType::Iq4 | DeviceType::Q4_1 => [4 * pieces, 0, blocks],
        DeviceType::Q5_1 => [4 * pieces, pieces, blocks],
        DeviceType::Q5_0 => [4 * pieces, pieces, blocks.div_ceil(2) + 1],
        DeviceType::Mxfp4 => [4 * pieces, 0, blocks.div_ceil(4) + 1],
        DeviceType::Q4_0 => [4 * pieces, 0, blocks.div_ceil(2) + 1],
        DeviceType::Nvfp4 => [4 * pieces, 0, blocks / 2 + 1],
        DeviceType::Q8_Row => [8 * pieces, 0, blocks.div_ceil(2) + 1],
        DeviceType::I4_Z => [4 * pieces, 0, blocks.div_ceil(2) + blocks.div_ceil(4) + 1],
        DeviceType::F8 | DeviceType::F8_128 | DeviceType::F8_32 => [0; 3],
        DeviceType::NF4 | DeviceType::FP4 | DeviceType::Q1_0 | DeviceType::Q2_0 => [0; 3],
    };
    words.map(|n| 4 * n as u64)
}

/// Scales of a block of 32.
pub(crate) enum Scale {
    /// One f16.
    Half(u32),
    /// One f32.
    Word(u32),
    /// A scale and a minimum in f32.
    Words([u32; 2]),
    /// Words that 8 blocks share; of `Q4_K` and `Q5_K` the first four.
    Superblock([u32; 5]),
    /// Two f16: a scale, and a minimum that is added.
    Pair(u32),
    /// An exponent, as MXFP4 reads it.
    Exponent(u8),
    /// Those of the two halves in E4M3, as NVFP4 reads it.
    Halves([u8; 2]),
    /// An f16 and a zero point.
    ZeroPoint(u32, u8),
}

/// The 32 values of a block as bytes, and its scales. Bytes of types that become [`DeviceType::I8`] are signed; of types with levels they are
/// indices.
pub(crate) fn unpack(ty: GgmlType, row: &[u8], block: usize) -> ([u8; 32], Scale) {
    let of = |bytes: usize| &row[block * bytes..][..bytes];
    let superblock = |bytes: usize| &row[block / 8 * bytes..][..bytes];
    match ty {
        GgmlType::Q8_0 => {
            let mut values = [0; 32];
            values.copy_from_slice(&of(34)[2..]);
            (values, Scale::Half(f16_bits(of(34))))
        }
        GgmlType::Q4_0 => (indices(&of(18)[2..]), Scale::Half(f16_bits(of(18)))),
        GgmlType::IQ4_NL => {
            let b = of(iq4::BYTES_NL);
            (indices(&b[iq4::QS_NL]), Scale::Word(half(b).to_bits()))
        }
        GgmlType::IQ4_XS => {
            let b: &[u8; iq4::BYTES_XS] = superblock(iq4::BYTES_XS).try_into().expect("a whole superblock");
            let scale = half(b) * f32::from(iq4::unpack_scales_xs(b)[block % 8]);
            (indices(&b[iq4::QS_XS][16 * (block % 8)..][..16]), Scale::Word(scale.to_bits()))
        }
        GgmlType::MXFP4 => {
            let b = of(mxfp4::BYTES);
            (indices(&b[mxfp4::QS]), Scale::Exponent(b[mxfp4::E]))
        }
        GgmlType::NVFP4 => {
            let b = &row[block / 2 * nvfp4::BYTES..][..nvfp4::BYTES];
            let (scales, quants) = (&b[nvfp4::SCALES][block % 2 * 2..], &b[nvfp4::QS][block % 2 * 16..]);
            // of each half, the low nibbles of 8 bytes and then the high ones
            let value = |i: usize| quants[i / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 15;
            (std::array::from_fn(value), Scale::Halves([scales[0], scales[1]]))
        }
        GgmlType::I4_Z => {
            let b = of(zero_point::BYTES);
            (indices(&b[zero_point::QS..]), Scale::ZeroPoint(f16_bits(&b[zero_point::D..]), b[zero_point::Z]))
        }
        GgmlType::I8_Z | GgmlType::I8_M => unpack_bytes(ty, of(zero_point::BYTES_8)),
        GgmlType::Q4_1 => unpack_legacy(of(20), false, true),
        GgmlType::Q5_0 => unpack_legacy(of(22), true, false),
        GgmlType::Q5_1 => unpack_legacy(of(24), true, true),
        GgmlType::Q4_K => {
            let b = superblock(q4_k::BYTES);
            (sub_nibbles(&b[q4_k::QS], block % 8), scales_and_mins(b))
        }
        GgmlType::Q5_K => {
            let (b, sub) = (superblock(q5_k::BYTES), block % 8);
            let mut values = sub_nibbles(&b[q5_k::QS], sub);
            values.iter_mut().zip(&b[q5_k::QH]).for_each(|(v, high)| *v |= (high >> sub & 1) << 4);
            (values, scales_and_mins(b))
        }
        GgmlType::Q3_K => unpack_q3_k(superblock(q3_k::BYTES), block % 8),
        GgmlType::Q6_K => unpack_q6_k(superblock(q6_k::BYTES), block % 8),
        _ => unreachable!("{ty} is packed as f32"),
    }
}

/// The f16 at the start of a block.
fn half(b: &[u8]) -> f32 {
    half::f16::from_le_bytes([b[0], b[1]]).to_f32()
}

/// A block of 4-bit indices. Of the 16 bytes, the low nibbles are 16 values and the high nibbles the next 16.
fn indices(quants: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| quants[i % 16] >> (4 * (i / 16)) & 15)
}

/// A block of `Q4_1`, `Q5_0` or `Q5_1`: scale, minimum, high bits, nibbles, as `octet_weights::quant::legacy` documents them.
fn unpack_legacy(b: &[u8], has_high: bool, has_min: bool) -> ([u8; 32], Scale) {
    let scale = if has_min { Scale::Pair(word(b)) } else { Scale::Half(f16_bits(b)) };
    let rest = &b[if has_min { 4 } else { 2 }..];
    let (high, nibbles) = rest.split_at(if has_high { 4 } else { 0 });
    let high = if has_high { word(high) } else { 0 };
    let mut v = indices(nibbles);
    v.iter_mut().enumerate().for_each(|(i, q)| *q |= ((high >> i & 1) as u8) << 4);
    (v, scale)
}

/// A block of `I8_Z` or `I8_M`. Its bytes become signed, so 128 times the scale belongs to what is subtracted.
fn unpack_bytes(ty: GgmlType, b: &[u8]) -> ([u8; 32], Scale) {
    let [d, m] = zero_point::scales_8(b.try_into().expect("a whole block"));
    let min = if ty == GgmlType::I8_Z { d * (m - 128.0) } else { -(128.0 * d + m) };
    let value = |i: usize| b[zero_point::QS_8 + i] ^ 128;
    (std::array::from_fn(value), Scale::Words([d.to_bits(), min.to_bits()]))
}

/// The size of a block of a narrow type in a row of `row` bytes, as [`narrow_block`] takes it.
pub(crate) fn narrow_bytes(ty: GgmlType, row: usize) -> usize {
    if ty == GgmlType::F8_E4M3 { row } else { ty.block_bytes() }
}

/// The scale of a narrow type's block, and its values as they are packed.
pub(crate) fn narrow_block(ty: GgmlType, b: &[u8]) -> (f32, &[u8]) {
    let single = || f32::from_bits(word(b));
    match ty {
        GgmlType::F8_E4M3 => (1.0, b),
        GgmlType::F8_128 | GgmlType::F8_32 => (single(), &b[fp8::QS..]),
        GgmlType::NF4 | GgmlType::FP4 => (single(), &b[levels::QS..]),
        GgmlType::Q1_0 | GgmlType::Q2_0 => (half(b), &b[q1::QS..]),
        _ => unreachable!("{ty} is not narrow"),
    }
}

/// The low bits of block `sub` of a superblock of `Q4_K` or `Q5_K`.
fn sub_nibbles(quants: &[u8], sub: usize) -> [u8; 32] {
    let pair = &quants[32 * (sub / 2)..][..32];
    std::array::from_fn(|i| pair[i] >> (4 * (sub % 2)) & 15)
}

/// The first 16 bytes of a superblock of `Q4_K` or `Q5_K`: two f16, and twelve bytes with 6-bit scales and minimums.
fn scales_and_mins(superblock: &[u8]) -> Scale {
    let [a, b, c, d] = words(superblock);
    Scale::Superblock([a, b, c, d, 0])
}

/// Block `sub` of a superblock. The scales are unpacked as those of `Q6_K` are: 16 signed bytes, and an f16.
fn unpack_q3_k(b: &[u8], sub: usize) -> ([u8; 32], Scale) {
    let quants = &b[q3_k::QS][32 * (sub / 4)..];
    let values =
        std::array::from_fn(|i| (quants[i] >> (2 * (sub % 4)) & 3) | (b[q3_k::HMASK][i] >> sub & 1) << 2);
    let packed = b[q3_k::SCALES].try_into().expect("12 bytes of scales");
    let [s0, s1, s2, s3] = words(&q3_k::unpack_scales(packed).map(|s| s as u8));
    (values, Scale::Superblock([s0, s1, s2, s3, f16_bits(&b[q3_k::D..])]))
}

/// Block `sub` of a superblock.
fn unpack_q6_k(b: &[u8], sub: usize) -> ([u8; 32], Scale) {
    let (part, j) = (sub / 4, sub % 4);
    let values = std::array::from_fn(|i| {
        let low = b[q6_k::QL][64 * part + 32 * (j % 2) + i] >> (4 * (j / 2)) & 15;
        let high = b[q6_k::QH][32 * part + i] >> (2 * j) & 3;
        low | high << 4
    });
    let [s0, s1, s2, s3] = words(&b[q6_k::SCALES]);
    (values, Scale::Superblock([s0, s1, s2, s3, f16_bits(&b[q6_k::D..])]))
}

/// A row of a page as the CPU keeps it (ggml's q8_0 blocks) from the device's layout: all bytes, then a word for each scale.
pub(crate) fn q8_row_to_blocks(device: &[u8], blocks: &mut [u8]) {
    let n = blocks.len() / 34;
    for (i, block) in blocks.chunks_exact_mut(34).enumerate() {
        block[..2].copy_from_slice(&device[32 * n + 4 * i..][..2]);
        block[2..].copy_from_slice(&device[32 * i..][..32]);
    }
}

/// The inverse of [`q8_row_to_blocks`].
pub(crate) fn q8_row_from_blocks(blocks: &[u8], device: &mut [u8]) {
    let n = blocks.len() / 34;
    for (i, block) in blocks.chunks_exact(34).enumerate() {
        device[32 * n + 4 * i..][..4].copy_from_slice(&[block[0], block[1], 0, 0]);
        device[32 * i..][..32].copy_from_slice(&block[2..]);
    }
}
