//! One row of a file into its place in a group: the inverse of what `kernels::kinds` unpacks. Called by `Layout::pack_group`.

use super::{FLOAT_STEP, Kind, Layout, Planes, ROWS, SUB, SUBS};

/// Writes row `r` of 16 into its group.
pub(super) fn pack_row(layout: &Layout, row: &[u8], r: usize, group: &mut [u8]) {
    match (layout.kind, layout.kind.planes()) {
        (Kind::Raw, _) => group[r * row.len()..(r + 1) * row.len()].copy_from_slice(row),
        (_, None) => floats(layout.ty.block_bytes(), row, r, group),
        (kind, Some(planes)) => {
            let block_cols = SUB * SUBS / layout.ty.block_len() * layout.ty.block_bytes();
            let mut rest = group;
            for src in row.chunks(block_cols) {
                let n = src.len() / layout.ty.block_bytes() * layout.ty.block_len() / SUB;
                let (block, after) = rest.split_at_mut(planes.block_bytes(n));
                integers(kind, src, &mut Block { r, n, planes, out: block });
                rest = after;
            }
        }
    }
}

/// Float kinds: `[column][row]`.
fn floats(size: usize, row: &[u8], r: usize, group: &mut [u8]) {
    debug_assert!(row.len() / size <= group.len() / size / ROWS && FLOAT_STEP > 0);
    for (src, dst) in row.chunks_exact(size).zip(group.chunks_exact_mut(size * ROWS)) {
        dst[r * size..(r + 1) * size].copy_from_slice(src);
    }
}

/// One row's part of a block.
struct Block<'a> {
    r: usize,
    n: usize,
    planes: Planes,
    out: &'a mut [u8],
}

impl Block<'_> {
    fn word(&mut self, at: usize, w: u32) {
        self.out[at + 4 * self.r..at + 4 * self.r + 4].copy_from_slice(&w.to_le_bytes());
    }
    /// Vector `v` of sub-block `i` in the quads plane.
    fn quad(&mut self, i: usize, v: usize, w: u32) {
        self.word(i * self.planes.quads + 64 * v, w);
    }
    /// The 16 packed bytes of 32 four-bit quants.
    fn nibbles(&mut self, i: usize, packed: u128) {
        for v in 0..4 {
            self.quad(i, v, (packed >> (32 * v)) as u32);
        }
    }
    /// Vector `v` of sub-block `i` in the high plane.
    fn high(&mut self, i: usize, v: usize, w: u32) {
        self.word(self.planes.high_at(self.n) + i * self.planes.high + 64 * v, w);
    }
    /// The fifth bits of 32 quants, given as eight words with one bit in each byte.
    fn fifth_bits(&mut self, i: usize, word: impl Fn(usize) -> u32) {
        self.high(i, 0, (0..8).map(|j| (word(j) & 0x0101_0101) << j).sum());
    }
    /// Two bits in each byte of eight words.
    fn two_bits(word: impl Fn(usize) -> u32) -> [u32; 2] {
        [0, 4].map(|first| (0..4).map(|j| (word(first + j) & 0x0303_0303) << (2 * j)).sum())
    }
    /// An f16 as it stands in the file, in the scale plane.
    fn f16_scale(&mut self, i: usize, which: usize, bytes: &[u8]) {
        let at = self.planes.scale_at(self.n) + i * self.planes.scale + 32 * which + 2 * self.r;
        self.out[at..at + 2].copy_from_slice(bytes);
    }
    /// An f16 in the head.
    fn head(&mut self, which: usize, bytes: &[u8]) {
        let at = self.planes.head_at(self.n) + 32 * which + 2 * self.r;
        self.out[at..at + 2].copy_from_slice(bytes);
    }
    /// Byte `[index][row]` of the scale plane.
    fn scale_byte(&mut self, index: usize) -> &mut u8 {
        &mut self.out[self.planes.scale_at(self.n) + ROWS * index + self.r]
    }
}

fn word(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    let mut b = [0; 16];
    b.copy_from_slice(&bytes[at..at + 16]);
    u128::from_le_bytes(b)
}

const LOW: u128 = u128::MAX / 17; // 0x0f in every byte

/// Packs 32 quants, given as the low or the high nibbles of 32 bytes, as the kernels want them.
fn pack_nibbles(bytes: &[u8], high: bool) -> u128 {
    let shift = if high { 4 } else { 0 };
    let (a, b) = (u128_at(bytes, 0) >> shift, u128_at(bytes, 16) >> shift);
    (a & LOW) | (b & LOW) << 4
}

/// Six-bit scale and min of sub-block `i` in the 12 bytes of Q4_K and Q5_K.
fn scale_min(s: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        (s[i] & 63, s[i + 4] & 63)
    } else {
        (s[i + 4] & 15 | (s[i - 4] >> 6) << 4, s[i + 4] >> 4 | (s[i] >> 6) << 4)
    }
}

fn integers(kind: Kind, src: &[u8], b: &mut Block) {
    match kind {
        Kind::Q4_0 | Kind::IQ4_NL => each::<18>(src, |i, s| {
            b.nibbles(i, u128_at(s, 2));
            b.f16_scale(i, 0, &s[..2]);
        }),
        Kind::Q4_1 => each::<20>(src, |i, s| {
            b.nibbles(i, u128_at(s, 4));
            b.f16_scale(i, 0, &s[..2]);
            b.f16_scale(i, 1, &s[2..4]);
        }),
        Kind::Q5_0 => each::<22>(src, |i, s| {
            b.nibbles(i, u128_at(s, 6));
            legacy_fifth_bits(b, i, &s[2..6]);
            b.f16_scale(i, 0, &s[..2]);
        }),
        Kind::Q5_1 => each::<24>(src, |i, s| {
            b.nibbles(i, u128_at(s, 8));
            legacy_fifth_bits(b, i, &s[4..8]);
            b.f16_scale(i, 0, &s[..2]);
            b.f16_scale(i, 1, &s[2..4]);
        }),
        Kind::Q8_0 => each::<34>(src, |i, s| {
            for j in 0..8 {
                b.quad(i, j, word(&s[2..], j));
            }
            b.f16_scale(i, 0, &s[..2]);
        }),
        Kind::MXFP4 => each::<17>(src, |i, s| {
            b.nibbles(i, u128_at(s, 1));
            *b.scale_byte(i) = s[0];
        }),
        Kind::Q4_K => q4_k(src, b),
        Kind::Q5_K => q5_k(src, b),
        Kind::Q6_K => q6_k(src, b),
        Kind::Q2_K => q2_k(src, b),
        Kind::Q3_K => q3_k(src, b),
        Kind::IQ4_XS => iq4_xs(src, b),
        Kind::F32 | Kind::F16 | Kind::BF16 | Kind::Raw => unreachable!("not an integer kind"),
    }
}

fn each<const BYTES: usize>(src: &[u8], mut f: impl FnMut(usize, &[u8; BYTES])) {
    for (i, s) in src.as_chunks::<BYTES>().0.iter().enumerate() {
        f(i, s);
    }
}

/// Bit `k` of 32 belongs to quant `k`.
fn legacy_fifth_bits(b: &mut Block, i: usize, qh: &[u8]) {
    let qh = word(qh, 0);
    // Four bits spread to the lowest bits of four bytes.
    b.fifth_bits(i, |j| ((qh >> (4 * j)) & 15).wrapping_mul(0x0020_4081) & 0x0101_0101);
}

/// `d`, `dmin`, 12 bytes of scales, 32 of fifth bits (Q5_K), 128 of nibbles: low ones of 32 bytes, then high ones.
fn q4_k(s: &[u8], b: &mut Block) {
    b.head(0, &s[..2]);
    b.head(1, &s[2..4]);
    k_scales(&s[4..16], b);
    for i in 0..SUBS {
        b.nibbles(i, pack_nibbles(&s[16 + 32 * (i / 2)..], i % 2 == 1));
    }
}

fn q5_k(s: &[u8], b: &mut Block) {
    b.head(0, &s[..2]);
    b.head(1, &s[2..4]);
    k_scales(&s[4..16], b);
    let qh = &s[16..48];
    for i in 0..SUBS {
        b.nibbles(i, pack_nibbles(&s[48 + 32 * (i / 2)..], i % 2 == 1));
        b.fifth_bits(i, |j| word(qh, j) >> i);
    }
}

fn k_scales(s: &[u8], b: &mut Block) {
    let mut upper = [0; 4];
    for i in 0..SUBS {
        let (scale, min) = scale_min(s, i);
        *b.scale_byte(i) = scale & 15 | min << 4;
        upper[i % 4] |= (scale >> 4 | (min >> 4) << 2) << (4 * (i / 4));
    }
    for (i, u) in upper.into_iter().enumerate() {
        *b.scale_byte(SUBS + i) = u;
    }
}

/// 128 bytes of low nibbles, 64 of upper bits, 16 scales, `d`; values in halves of 128.
fn q6_k(s: &[u8], b: &mut Block) {
    for i in 0..SUBS {
        let (half, k) = (i / 4, i % 4);
        b.nibbles(i, pack_nibbles(&s[64 * half + 32 * (k % 2)..], k >= 2));
        let qh = &s[128 + 32 * half..];
        let [lo, hi] = Block::two_bits(|j| word(qh, j) >> (2 * k));
        b.high(i, 0, lo);
        b.high(i, 1, hi);
        *b.scale_byte(2 * i) = s[192 + 2 * i];
        *b.scale_byte(2 * i + 1) = s[192 + 2 * i + 1];
    }
    b.head(0, &s[208..210]);
}

/// 16 scales, 64 bytes of two-bit quants, `d`, `dmin`; values in halves of 128, each 32 bytes by two bits.
fn q2_k(s: &[u8], b: &mut Block) {
    for i in 0..SUBS {
        let qs = &s[16 + 32 * (i / 4)..];
        let [lo, hi] = Block::two_bits(|j| word(qs, j) >> (2 * (i % 4)));
        b.quad(i, 0, lo);
        b.quad(i, 1, hi);
        *b.scale_byte(2 * i) = s[2 * i];
        *b.scale_byte(2 * i + 1) = s[2 * i + 1];
    }
    b.head(0, &s[80..82]);
    b.head(1, &s[82..84]);
}

/// 32 bytes of third bits, 64 of two-bit quants (as Q2_K), 12 of scales, `d`.
fn q3_k(s: &[u8], b: &mut Block) {
    let scales = &s[96..108];
    for i in 0..SUBS {
        let qs = &s[32 + 32 * (i / 4)..];
        let [lo, hi] = Block::two_bits(|j| word(qs, j) >> (2 * (i % 4)));
        b.quad(i, 0, lo);
        b.quad(i, 1, hi);
        b.fifth_bits(i, |j| word(s, j) >> i);
        // Scales `i` and `i + 8` of 16: the nibbles of one byte, in the file as here.
        *b.scale_byte(i) = scales[i];
    }
    // Upper bits of scale `h`: byte `h % 4`, bits `2 * (h / 4)..`, in the file as here.
    for h in 0..4 {
        *b.scale_byte(SUBS + h) = scales[8 + h];
    }
    b.head(0, &s[108..110]);
}

/// `d`, upper scale bits u16, 4 bytes of their nibbles, 128 of quants.
fn iq4_xs(s: &[u8], b: &mut Block) {
    b.head(0, &s[..2]);
    let (mut low, mut upper) = ([0; 4], [0; 2]);
    for i in 0..SUBS {
        b.nibbles(i, u128_at(s, 8 + 16 * i));
        low[i % 4] |= (s[4 + i / 2] >> (4 * (i % 2)) & 15) << (4 * (i / 4));
        let bits = (u16::from_le_bytes([s[2], s[3]]) >> (2 * i)) as u8 & 3;
        upper[i % 2] |= bits << (2 * (i / 2));
    }
    for (i, l) in low.into_iter().enumerate() {
        *b.scale_byte(i) = l;
    }
    for (i, u) in upper.into_iter().enumerate() {
        *b.scale_byte(4 + i) = u;
    }
}
