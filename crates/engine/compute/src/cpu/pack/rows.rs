//! Rows of a file into their places in a group: the inverse of what `kernels::kinds` unpacks; and from one group to another.

use octet_weights::quant::zero_point;

use super::Layout;
use crate::cpu::kind::{Kind, Planes, ROWS, SUB, SUBS, VECTOR};

/// Writes up to `ROWS` rows into their group.
pub(super) fn pack(kind: Kind, rows: &[&[u8]], group: &mut [u8]) {
    match kind {
        Kind::F32 => floats::<4>(rows, group),
        Kind::F16 | Kind::BF16 => floats::<2>(rows, group),
        Kind::F8_E4M3 => floats::<1>(rows, group),
        Kind::F8_128 => scaled::<128>(rows, group),
        Kind::F8_32 | Kind::NF4 | Kind::FP4 => scaled::<32>(rows, group),
        Kind::Raw => rows
            .iter()
            .enumerate()
            .for_each(|(r, row)| group[r * row.len()..][..row.len()].copy_from_slice(row)),
        Kind::Q4_0 => small::<18>(Kind::Q4_0, rows, group, q4_0),
        Kind::IQ4_NL => small::<18>(Kind::IQ4_NL, rows, group, q4_0),
        Kind::Q4_1 => small::<20>(Kind::Q4_1, rows, group, q4_1),
        Kind::Q5_0 => small::<22>(Kind::Q5_0, rows, group, q5_0),
        Kind::Q5_1 => small::<24>(Kind::Q5_1, rows, group, q5_1),
        Kind::Q8_0 => small::<34>(Kind::Q8_0, rows, group, q8_0),
        Kind::MXFP4 => small::<17>(Kind::MXFP4, rows, group, mxfp4),
        Kind::I4_Z => small::<19>(Kind::I4_Z, rows, group, i4_z),
        Kind::I8_Z => small::<40>(Kind::I8_Z, rows, group, i8_z),
        Kind::I8_M => small::<40>(Kind::I8_M, rows, group, i8_m),
        Kind::NVFP4 => nvfp4(rows, group),
        Kind::Q4_K => large::<144>(Kind::Q4_K, rows, group, q4_k),
        Kind::Q5_K => large::<176>(Kind::Q5_K, rows, group, q5_k),
        Kind::Q6_K => large::<210>(Kind::Q6_K, rows, group, q6_k),
        Kind::Q2_K => large::<84>(Kind::Q2_K, rows, group, q2_k),
        Kind::Q3_K => large::<110>(Kind::Q3_K, rows, group, q3_k),
        Kind::IQ4_XS => large::<136>(Kind::IQ4_XS, rows, group, iq4_xs),
    }
}

/// Copies one row's places in a plane.
type Lane = fn(&[u8], usize, &mut [u8], usize);

/// Copies row `a` of the group `from` to row `b` of the group `to`, both of this layout.
pub(super) fn copy(layout: &Layout, from: &[u8], a: usize, to: &mut [u8], b: usize) {
    let Some(planes) = layout.kind.planes() else {
        let block = layout.ty.block_bytes();
        return match layout.kind {
            Kind::Raw => {
                let n = layout.cols / layout.ty.block_len() * block;
                to[b * n..][..n].copy_from_slice(&from[a * n..][..n]);
            }
            Kind::F32 => lane::<4>(from, a, to, b),
            Kind::F8_E4M3 => lane::<1>(from, a, to, b),
            Kind::F8_128 | Kind::F8_32 | Kind::NF4 | Kind::FP4 => {
                let block = block * ROWS;
                for (from, to) in from.chunks(block).zip(to.chunks_mut(block)) {
                    let (scales, values) = to.split_at_mut((4 * ROWS).min(from.len()));
                    lane::<4>(&from[..scales.len()], a, scales, b);
                    lane::<1>(&from[scales.len()..], a, values, b);
                }
            }
            _ => lane::<2>(from, a, to, b),
        };
    };
    let scales: Lane = match layout.kind {
        Kind::Q4_0 | Kind::IQ4_NL | Kind::Q4_1 | Kind::Q5_0 | Kind::Q5_1 | Kind::Q8_0 => lane::<2>,
        Kind::I8_Z | Kind::I8_M => lane::<4>,
        Kind::I4_Z => |from, a, to, b| {
            for (from, to) in from.chunks(3 * ROWS).zip(to.chunks_mut(3 * ROWS)) {
                let (d, z) = to.split_at_mut(2 * ROWS);
                lane::<2>(&from[..2 * ROWS], a, d, b);
                lane::<1>(&from[2 * ROWS..], a, z, b);
            }
        },
        _ => lane::<1>,
    };
    let mut at = 0;
    for first in (0..layout.cols / SUB).step_by(SUBS) {
        let n = SUBS.min(layout.cols / SUB - first);
        let parts: [(usize, Lane); 3] =
            [(planes.head, lane::<2>), (n * planes.scale, scales), (n * planes.sub_bytes(), lane::<4>)];
        for (bytes, copy) in parts {
            copy(&from[at..at + bytes], a, &mut to[at..at + bytes], b);
            at += bytes;
        }
    }
}

/// Row `a` of each `[ROWS][N]` of `from`, to row `b` of those of `to`.
fn lane<const N: usize>(from: &[u8], a: usize, to: &mut [u8], b: usize) {
    let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
    for (from, to) in from.chunks_exact(ROWS).zip(to.chunks_exact_mut(ROWS)) {
        to[b] = from[a];
    }
}

/// Types of 32 values a block, of `BYTES`: each becomes a sub-block. Inlined with a known kind, so that each one's places are
/// constants.
#[inline(always)]
fn small<const BYTES: usize>(
    kind: Kind,
    rows: &[&[u8]],
    group: &mut [u8],
    one: impl Fn(&[u8; BYTES], usize, &mut Block),
) {
    let Some(planes) = kind.planes() else { return };
    let Some(count) = rows.first().map(|row| row.len() / BYTES) else { return };
    // Block by block, so that the part that all rows write to stays in the L1 cache.
    let mut rest = group;
    for from in (0..count).step_by(SUBS) {
        let n = SUBS.min(count - from);
        let (out, after) = rest.split_at_mut(planes.block_bytes(n));
        for (r, row) in rows.iter().enumerate() {
            let mut b = Block { r, n, planes, out };
            for (i, s) in row.as_chunks::<BYTES>().0[from..from + n].iter().enumerate() {
                one(s, i, &mut b);
            }
        }
        rest = after;
    }
}

/// Types of 256 values a block, of `BYTES`.
#[inline(always)]
fn large<const BYTES: usize>(
    kind: Kind,
    rows: &[&[u8]],
    group: &mut [u8],
    one: impl Fn(&[u8; BYTES], &mut Block),
) {
    let Some(planes) = kind.planes() else { return };
    for (at, out) in group.chunks_exact_mut(planes.block_bytes(SUBS)).enumerate() {
        for (r, row) in rows.iter().enumerate() {
            one(&row.as_chunks().0[at], &mut Block { r, n: SUBS, planes, out });
        }
    }
}

/// Float kinds: `[column][row]`.
fn floats<const BYTES: usize>(rows: &[&[u8]], group: &mut [u8]) {
    /// A cache line of each row.
    const COLS: usize = 16;
    for (i, out) in group.chunks_mut(COLS * BYTES * ROWS).enumerate() {
        let out = out.as_chunks_mut::<BYTES>().0;
        for (r, row) in rows.iter().enumerate() {
            let row = row.as_chunks::<BYTES>().0;
            let row = &row[(i * COLS).min(row.len())..row.len().min((i + 1) * COLS)];
            for (column, value) in out.chunks_exact_mut(ROWS).zip(row) {
                column[r] = *value;
            }
        }
    }
}

/// Bytes of columns under a scale of each `COLS` of them: of all rows the scales, then `[byte][row]`.
fn scaled<const COLS: usize>(rows: &[&[u8]], group: &mut [u8]) {
    let block = COLS + 4;
    for (i, out) in group.chunks_exact_mut(block * ROWS).enumerate() {
        let (scales, values) = out.split_at_mut(4 * ROWS);
        for (r, row) in rows.iter().enumerate() {
            let (scale, row) = row[i * block..(i + 1) * block].split_at(4);
            scales[4 * r..4 * r + 4].copy_from_slice(scale);
            for (column, value) in values.chunks_exact_mut(ROWS).zip(row) {
                column[r] = *value;
            }
        }
    }
}

/// Blocks of 64 become two sub-blocks each.
fn nvfp4(rows: &[&[u8]], group: &mut [u8]) {
    use octet_weights::quant::nvfp4::{BYTES, QS, SCALES};
    let Some(planes) = Kind::NVFP4.planes() else { return };
    let Some(count) = rows.first().map(|row| row.len() / BYTES) else { return };
    let mut rest = group;
    for from in (0..count).step_by(SUBS / 2) {
        let blocks = (SUBS / 2).min(count - from);
        let (out, after) = rest.split_at_mut(planes.block_bytes(2 * blocks));
        for (r, row) in rows.iter().enumerate() {
            let mut b = Block { r, n: 2 * blocks, planes, out };
            for (i, s) in row.as_chunks::<BYTES>().0[from..from + blocks].iter().enumerate() {
                for half in 0..2 {
                    let q = &s[QS.start + 16 * half..][..16];
                    b.nibbles(2 * i + half, halves_of_16(q));
                    // The kernel knows no sign and no NaN: 0x7F is 0, and 0xFF the largest number.
                    let scale = |g: usize| match s[SCALES.start + 2 * half + g] {
                        0x7f => 0,
                        byte => byte & 0x7f,
                    };
                    b.scale_bytes(2 * (2 * i + half), [scale(0), scale(1)]);
                }
            }
        }
        rest = after;
    }
}

/// Two groups of 16 nibbles, each in halves of 8, as one of 32 in halves of 16.
fn halves_of_16(q: &[u8]) -> [u32; 4] {
    const LOW: u64 = u64::MAX / 17; // 0x0f in every byte
    let groups = q.as_chunks().0;
    let (a, b) = (u64::from_le_bytes(groups[0]), u64::from_le_bytes(groups[1]));
    let (first, second) = (a & LOW | (b & LOW) << 4, a >> 4 & LOW | b & !LOW);
    [first as u32, (first >> 32) as u32, second as u32, (second >> 32) as u32]
}

/// One row's part of a block.
struct Block<'a> {
    r: usize,
    n: usize,
    planes: Planes,
    out: &'a mut [u8],
}

impl Block<'_> {
    /// `N` words, one into each of the vectors from `at` on. One slice with a known length: one check of bounds.
    #[inline(always)]
    fn words<const N: usize>(&mut self, at: usize, words: [u32; N]) {
        let out = &mut self.out[at + 4 * self.r..][..VECTOR * (N - 1) + 4];
        for (v, w) in words.into_iter().enumerate() {
            out[VECTOR * v..][..4].copy_from_slice(&w.to_le_bytes());
        }
    }
    /// Where the high bits of sub-block `i` start.
    #[inline(always)]
    fn high_at(&self, i: usize) -> usize {
        self.planes.sub_at(self.n, i) + self.planes.quads
    }
    /// The 16 packed bytes of 32 four-bit quants.
    #[inline(always)]
    fn nibbles(&mut self, i: usize, packed: [u32; 4]) {
        self.words(self.planes.sub_at(self.n, i), packed);
    }
    /// Bit `shift` of each of 32 bytes.
    #[inline(always)]
    fn high_bits(&mut self, i: usize, words: [u32; 8], shift: usize) {
        let mut packed = 0;
        for (j, w) in words.into_iter().enumerate() {
            packed |= (w >> shift & 0x0101_0101) << j;
        }
        self.words(self.high_at(i), [packed]);
    }
    /// Bits `shift..` of each of 32 bytes, two of each, into two vectors of the plane at `at`.
    #[inline(always)]
    fn two_bits(&mut self, at: usize, words: [u32; 8], shift: usize) {
        let mut packed = [0; 2];
        for (j, w) in words.into_iter().enumerate() {
            packed[j / 4] |= (w >> shift & 0x0303_0303) << (2 * (j % 4));
        }
        self.words(at, packed);
    }
    /// Copies an f16 of the file to the scale plane.
    #[inline(always)]
    fn f16_scale(&mut self, i: usize, which: usize, bytes: &[u8]) {
        let at = self.planes.scale_at() + i * self.planes.scale + 2 * ROWS * which + 2 * self.r;
        self.out[at..at + 2].copy_from_slice(bytes);
    }
    /// An f16 in the head.
    #[inline(always)]
    fn head(&mut self, which: usize, bytes: &[u8]) {
        let at = 2 * ROWS * which + 2 * self.r;
        self.out[at..at + 2].copy_from_slice(bytes);
    }
    /// Bytes `[first..][row]` of the scale plane.
    #[inline(always)]
    fn scale_bytes<const N: usize>(&mut self, first: usize, bytes: [u8; N]) {
        let at = self.planes.scale_at() + ROWS * first + self.r;
        let out = &mut self.out[at..][..ROWS * (N - 1) + 1];
        for (i, b) in bytes.into_iter().enumerate() {
            out[ROWS * i] = b;
        }
    }
}

/// 32 bytes as words.
#[inline(always)]
fn words(bytes: &[u8]) -> [u32; 8] {
    let words = bytes[..32].as_chunks().0;
    std::array::from_fn(|i| u32::from_le_bytes(words[i]))
}

/// 16 bytes as words.
#[inline(always)]
fn half_words(bytes: &[u8]) -> [u32; 4] {
    let words = bytes[..16].as_chunks().0;
    std::array::from_fn(|i| u32::from_le_bytes(words[i]))
}

/// Packs 32 quants, given as the low or the high nibbles of 32 bytes, in the kernels' order.
#[inline(always)]
fn pack_nibbles(bytes: &[u8], high: bool) -> [u32; 4] {
    const LOW: u32 = u32::MAX / 17; // 0x0f in every byte
    let w = words(bytes);
    std::array::from_fn(|v| match high {
        false => w[v] & LOW | (w[v + 4] & LOW) << 4,
        true => w[v] >> 4 & LOW | w[v + 4] & !LOW,
    })
}

#[inline(always)]
fn q4_0(s: &[u8; 18], i: usize, b: &mut Block) {
    b.nibbles(i, half_words(&s[2..]));
    b.f16_scale(i, 0, &s[..2]);
}

#[inline(always)]
fn q4_1(s: &[u8; 20], i: usize, b: &mut Block) {
    b.nibbles(i, half_words(&s[4..]));
    b.f16_scale(i, 0, &s[..2]);
    b.f16_scale(i, 1, &s[2..4]);
}

#[inline(always)]
fn q5_0(s: &[u8; 22], i: usize, b: &mut Block) {
    b.nibbles(i, half_words(&s[6..]));
    b.high_bits(i, spread_bits(&s[2..6]), 0);
    b.f16_scale(i, 0, &s[..2]);
}

#[inline(always)]
fn q5_1(s: &[u8; 24], i: usize, b: &mut Block) {
    b.nibbles(i, half_words(&s[8..]));
    b.high_bits(i, spread_bits(&s[4..8]), 0);
    b.f16_scale(i, 0, &s[..2]);
    b.f16_scale(i, 1, &s[2..4]);
}

#[inline(always)]
fn q8_0(s: &[u8; 34], i: usize, b: &mut Block) {
    b.words(b.planes.sub_at(b.n, i), words(&s[2..]));
    b.f16_scale(i, 0, &s[..2]);
}

#[inline(always)]
fn mxfp4(s: &[u8; 17], i: usize, b: &mut Block) {
    b.nibbles(i, half_words(&s[1..]));
    b.scale_bytes(i, [s[0]]);
}

#[inline(always)]
fn i4_z(s: &[u8; 19], i: usize, b: &mut Block) {
    b.nibbles(i, half_words(&s[3..]));
    b.f16_scale(i, 0, &s[..2]);
    let at = b.planes.scale_at() + i * b.planes.scale + 2 * ROWS + b.r;
    b.out[at] = s[2];
}

#[inline(always)]
fn i8_z(s: &[u8; 40], i: usize, b: &mut Block) {
    let [d, z] = zero_point::scales_8(s);
    i8_under(s, i, d, (128.0 - z) * d, b);
}

#[inline(always)]
fn i8_m(s: &[u8; 40], i: usize, b: &mut Block) {
    let [d, m] = zero_point::scales_8(s);
    i8_under(s, i, d, 128.0 * d + m, b);
}

/// Bytes as signed ones, which are smaller by 128.
#[inline(always)]
fn i8_under(s: &[u8; 40], i: usize, d: f32, min: f32, b: &mut Block) {
    b.words(b.planes.sub_at(b.n, i), words(&s[zero_point::QS_8..]).map(|w| w ^ 0x8080_8080));
    let at = b.planes.scale_at() + i * b.planes.scale + 4 * b.r;
    b.out[at..at + 4].copy_from_slice(&d.to_le_bytes());
    b.out[at + 4 * ROWS..][..4].copy_from_slice(&min.to_le_bytes());
}

/// 32 bits, one for each quant, to the lowest bits of 32 bytes.
#[inline(always)]
fn spread_bits(qh: &[u8]) -> [u32; 8] {
    let qh = u32::from_le_bytes(qh.as_chunks().0[0]);
    std::array::from_fn(|j| (qh >> (4 * j) & 15).wrapping_mul(0x0020_4081) & 0x0101_0101)
}

/// `d`, `dmin`, 12 bytes of scales, 128 of nibbles: low ones of 32 bytes, then high ones.
#[inline(always)]
fn q4_k(s: &[u8; 144], b: &mut Block) {
    b.head(0, &s[..2]);
    b.head(1, &s[2..4]);
    k_scales(&s[4..16], b);
    for i in 0..SUBS {
        b.nibbles(i, pack_nibbles(&s[16 + 32 * (i / 2)..], i % 2 == 1));
    }
}

/// The same, with 32 bytes of fifth bits before the nibbles.
#[inline(always)]
fn q5_k(s: &[u8; 176], b: &mut Block) {
    b.head(0, &s[..2]);
    b.head(1, &s[2..4]);
    k_scales(&s[4..16], b);
    let qh = words(&s[16..]);
    for i in 0..SUBS {
        b.nibbles(i, pack_nibbles(&s[48 + 32 * (i / 2)..], i % 2 == 1));
        b.high_bits(i, qh, i);
    }
}

/// Scales and minimums of six bits each in 12 bytes. Sub-blocks 0 to 3: the low six bits of bytes 0 to 3, and of 4 to 7.
/// Sub-blocks 4 to 7: nibbles of bytes 8 to 11, and above them the upper two bits of bytes 0 to 3, and of 4 to 7.
#[inline(always)]
fn k_scales(s: &[u8], b: &mut Block) {
    let word = |i: usize| u32::from_le_bytes(s.as_chunks().0[i]);
    let (scales, mins, both) = (word(0), word(1), word(2));
    let (low, bits) = (0x0f0f_0f0f, 0x0303_0303);
    b.scale_bytes(0, (scales & low | (mins & low) << 4).to_le_bytes());
    b.scale_bytes(4, both.to_le_bytes());
    let first = scales >> 4 & bits | (mins >> 4 & bits) << 2;
    let second = scales >> 6 & bits | (mins >> 6 & bits) << 2;
    b.scale_bytes(8, (first | second << 4).to_le_bytes());
}

/// 128 bytes of low nibbles, 64 of upper bits, 16 scales, `d`; values in halves of 128.
#[inline(always)]
fn q6_k(s: &[u8; 210], b: &mut Block) {
    for half in 0..2 {
        let qh = words(&s[128 + 32 * half..]);
        for k in 0..4 {
            let i = 4 * half + k;
            b.nibbles(i, pack_nibbles(&s[64 * half + 32 * (k % 2)..], k >= 2));
            b.two_bits(b.high_at(i), qh, 2 * k);
        }
    }
    b.scale_bytes::<16>(0, s[192..].as_chunks().0[0]);
    b.head(0, &s[208..210]);
}

/// 16 scales, 64 bytes of two-bit quants, `d`, `dmin`; values in halves of 128, each 32 bytes by two bits.
#[inline(always)]
fn q2_k(s: &[u8; 84], b: &mut Block) {
    for i in 0..SUBS {
        b.two_bits(b.planes.sub_at(SUBS, i), words(&s[16 + 32 * (i / 4)..]), 2 * (i % 4));
    }
    b.scale_bytes::<16>(0, s.as_chunks().0[0]);
    b.head(0, &s[80..82]);
    b.head(1, &s[82..84]);
}

/// 32 bytes of third bits, 64 of two-bit quants (as Q2_K), 12 of scales, `d`.
#[inline(always)]
fn q3_k(s: &[u8; 110], b: &mut Block) {
    let high = words(s);
    for i in 0..SUBS {
        b.two_bits(b.planes.sub_at(SUBS, i), words(&s[32 + 32 * (i / 4)..]), 2 * (i % 4));
        b.high_bits(i, high, i);
    }
    // The file's nibbles and upper bits lie as the plane's do.
    b.scale_bytes::<12>(0, s[96..].as_chunks().0[0]);
    b.head(0, &s[108..110]);
}

/// `d`, upper scale bits u16, 4 bytes of their nibbles, 128 of quants.
#[inline(always)]
fn iq4_xs(s: &[u8; 136], b: &mut Block) {
    b.head(0, &s[..2]);
    let (mut low, mut upper) = ([0; 4], [0; 2]);
    for i in 0..SUBS {
        b.nibbles(i, half_words(&s[8 + 16 * i..]));
        low[i % 4] |= (s[4 + i / 2] >> (4 * (i % 2)) & 15) << (4 * (i / 4));
        let bits = (u16::from_le_bytes([s[2], s[3]]) >> (2 * i)) as u8 & 3;
        upper[i % 2] |= bits << (2 * (i / 2));
    }
    b.scale_bytes(0, low);
    b.scale_bytes(4, upper);
}
