//! Packs matrices into the planes that `weights` describes, on all cores. Called at load.

use octet_weights::Matrix;

use crate::weights::{
    DeviceType, LANES, Scale, f16_bits, narrow_block, narrow_bytes, row_bytes, unpack, word,
};

/// Rows of a piece of work: an even number, since two scales of `Q8_0` may share a word.
const ROWS: usize = 64;
/// Words for which further threads are worth their start.
const WORDS_MIN: usize = 1 << 16;

/// The planes of matrices as words, one matrix after the other.
#[derive(Default)]
pub(crate) struct Planes {
    /// Quants: 4 words a block of 32, 8 for types of a byte.
    pub(crate) quants: Vec<u32>,
    /// High bits: a word a block (`Q5_K`), or two (`Q6_K`). Of narrow float types the values.
    pub(crate) high: Vec<u32>,
    /// Scales; for wide float types the values.
    pub(crate) scales: Vec<u32>,
}

/// Rows of a matrix, and where they are packed.
struct Work<'a> {
    matrix: &'a Matrix,
    first: usize,
    rows: usize,
    quants: &'a mut [u32],
    high: &'a mut [u32],
    scales: &'a mut [u32],
}

/// Words of some rows in each plane.
fn words_of(ty: DeviceType, cols: usize, rows: usize) -> [usize; 3] {
    let [quants, high, scales] = row_bytes(ty, cols).map(|bytes| bytes as usize / 4 * rows);
    match ty {
        DeviceType::Q8_0 => [quants, high, (rows * (cols / 32)).div_ceil(2)],
        _ => [quants, high, scales],
    }
}

/// Packs matrices of one shape as their own type or as f32. Rows of quantised types are whole blocks of 32.
pub(crate) fn pack(all: &[Matrix], ty: DeviceType) -> Planes {
    let Some(Matrix { rows, cols, .. }) = all.first() else { return Planes::default() };
    let each = words_of(ty, *cols, *rows);
    let [quants, high, scales] = each.map(|n| vec![0; n * all.len()]);
    let mut planes = Planes { quants, high, scales };
    let mut rest = [&mut planes.quants[..], &mut planes.high[..], &mut planes.scales[..]];
    let mut work = Vec::new();
    for matrix in all {
        for first in (0..*rows).step_by(ROWS) {
            let rows = ROWS.min(rows - first);
            let lens = words_of(ty, *cols, rows);
            let mut take = |plane: usize| {
                let (now, later) = std::mem::take(&mut rest[plane]).split_at_mut(lens[plane]);
                rest[plane] = later;
                now
            };
            let [quants, high, scales] = [0, 1, 2].map(&mut take);
            work.push(Work { matrix, first, rows, quants, high, scales });
        }
    }
    let words: usize = each.iter().sum::<usize>() * all.len();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(words / WORDS_MIN).max(1);
    let share = work.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let mut parts = work.chunks_mut(share);
        let own = parts.next();
        for part in parts {
            scope.spawn(move || part.iter_mut().for_each(|work| work.pack(ty)));
        }
        own.into_iter().flatten().for_each(|work| work.pack(ty));
    });
    planes
}

impl Work<'_> {
    fn pack(&mut self, ty: DeviceType) {
        match ty {
            DeviceType::F32 => self.pack_f32(),
            DeviceType::F16 | DeviceType::Bf16 => self.pack_halves(),
            _ if ty.narrow(self.matrix.cols).is_some() => self.pack_narrow(),
            _ => self.pack_blocks(ty),
        }
    }

    /// An f32 times the factor of row `r` of these.
    fn times_factor(&self, r: usize, x: f32) -> u32 {
        let factor = self.matrix.scales.as_ref().map(|scales| scales[self.first + r]);
        factor.map_or(x, |factor| (f64::from(x) * factor) as f32).to_bits()
    }

    fn pack_narrow(&mut self) {
        let (values, scales) = (self.high.len() / self.rows, self.scales.len() / self.rows);
        for r in 0..self.rows {
            let row = self.matrix.row(self.first + r);
            let bytes = narrow_bytes(self.matrix.ty, row.len()).max(1);
            for (i, block) in row.chunks_exact(bytes).enumerate() {
                let (scale, quants) = narrow_block(self.matrix.ty, block);
                self.scales[r * scales + i] = self.times_factor(r, scale);
                let words = quants.chunks(4).map(|b| {
                    let mut word = [0; 4];
                    word[..b.len()].copy_from_slice(b);
                    u32::from_le_bytes(word)
                });
                let out = &mut self.high[r * values + i * quants.len() / 4..];
                out.iter_mut().zip(words).for_each(|(out, word)| *out = word);
            }
        }
    }

    fn pack_f32(&mut self) {
        let mut row = vec![0.0; self.matrix.cols];
        for (r, out) in self.scales.chunks_exact_mut(self.matrix.cols.max(1)).enumerate() {
            self.matrix.dequantize_row(self.first + r, &mut row);
            out.iter_mut().zip(&row).for_each(|(out, x)| *out = x.to_bits());
        }
    }

    fn pack_halves(&mut self) {
        for (r, out) in self.scales.chunks_exact_mut(self.matrix.cols.div_ceil(2).max(1)).enumerate() {
            let (pairs, rest) = self.matrix.row(self.first + r).as_chunks::<4>();
            let last = (!rest.is_empty()).then(|| f16_bits(rest));
            let words = pairs.iter().map(|b| u32::from_le_bytes(*b)).chain(last);
            out.iter_mut().zip(words).for_each(|(out, word)| *out = word);
        }
    }

    fn pack_blocks(&mut self, ty: DeviceType) {
        let blocks = self.matrix.cols / 32;
        let steps = blocks.div_ceil(LANES);
        let pieces = (self.rows * steps * LANES).max(1);
        let (quant_words, high_words) = (self.quants.len() / pieces, self.high.len() / pieces);
        // of a row, where its scales are not words of blocks alone
        let row_words = self.scales.len() / self.rows.max(1);
        let scale_words = match ty {
            DeviceType::Q4_K | DeviceType::Q5_K => 4,
            DeviceType::Q6_K | DeviceType::Q3_K => 5,
            DeviceType::I8 => 2,
            _ => 1,
        };
        for r in 0..self.rows {
            let row = self.matrix.row(self.first + r);
            for block in 0..blocks {
                let piece = (r * steps + block % steps) * LANES + block / steps;
                let quants = &mut self.quants[piece * quant_words..][..quant_words];
                let high = &mut self.high[piece * high_words..][..high_words];
                let (values, scale) = unpack(self.matrix.ty, row, block);
                match ty {
                    DeviceType::Q8_0 | DeviceType::Q8_Row | DeviceType::I8 => {
                        quants.iter_mut().zip(values.as_chunks::<4>().0).for_each(|(w, v)| *w = word(v));
                    }
                    _ => nibbles(&values, quants, high),
                }
                let index = r * blocks + block;
                let times = |bits: u32| self.times_factor(r, f32::from_bits(bits));
                let (at, words) = match scale {
                    Scale::Word(word) => (index, [times(word), 0, 0, 0, 0]),
                    Scale::Pair(word) => (index, [word, 0, 0, 0, 0]),
                    Scale::Words([scale, min]) => (index, [times(scale), times(min), 0, 0, 0]),
                    Scale::Superblock(words) if block % 8 == 0 => (index / 8, words),
                    Scale::Superblock(_) => continue,
                    Scale::Half(bits) if ty == DeviceType::Q8_0 => {
                        self.scales[index / 2] |= bits << (16 * (index % 2));
                        continue;
                    }
                    Scale::Half(_) | Scale::Exponent(_) | Scale::Halves(_) | Scale::ZeroPoint(..) => {
                        let factor = times(1.0f32.to_bits());
                        let row = &mut self.scales[r * row_words..][..row_words];
                        put_with_factor(row, [block, blocks], scale, factor);
                        continue;
                    }
                };
                self.scales[at * scale_words..][..scale_words].copy_from_slice(&words[..scale_words]);
            }
        }
    }
}

/// Puts the scale of a block among those of its row, which end with the row's factor.
fn put_with_factor(row: &mut [u32], [block, blocks]: [usize; 2], scale: Scale, factor: u32) {
    let Some((last, row)) = row.split_last_mut() else { return };
    *last = factor;
    match scale {
        Scale::Half(scale) => row[block / 2] |= scale << (16 * (block % 2)),
        Scale::Exponent(e) => row[block / 4] |= u32::from(e) << (8 * (block % 4)),
        // The kernel knows no sign and no NaN, and 0x7F is 480: to NVFP4 0x7F is 0 and 0xFF is 480.
        Scale::Halves(scales) => {
            let [low, high] = scales.map(|s| u32::from(if s == 0x7f { 0 } else { s & 0x7f }));
            row[block / 2] |= (low | high << 8) << (16 * (block % 2));
        }
        // f16, two a word, and behind them zero points, four a word
        Scale::ZeroPoint(scale, zero) => {
            row[block / 2] |= scale << (16 * (block % 2));
            row[blocks.div_ceil(2) + block / 4] |= u32::from(zero) << (8 * (block % 4));
        }
        _ => {}
    }
}

/// 32 values of 4 to 6 bits: low nibbles of columns 0..16 in the low half of each byte, of 16..32 in the high half; high bits apart.
fn nibbles(v: &[u8; 32], quants: &mut [u32], high: &mut [u32]) {
    let bytes: [u8; 16] = std::array::from_fn(|i| (v[i] & 15) | (v[16 + i] & 15) << 4);
    quants.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(out, b)| *out = word(b));
    match high {
        [bits] => {
            // Bit `c` is column `c`: the product moves the lowest bits of 8 bytes together.
            for (i, b) in v.as_chunks::<8>().0.iter().enumerate() {
                let lowest = u64::from_le_bytes(*b) >> 4 & 0x0101_0101_0101_0101;
                *bits |= ((lowest.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32) << (8 * i);
            }
        }
        [lo, hi] => {
            // byte `k` of a half, bits `2w..`: column `4w + k`
            for (half, out) in v.as_chunks::<16>().0.iter().zip([lo, hi]) {
                for (w, b) in half.as_chunks::<4>().0.iter().enumerate() {
                    *out |= (word(b) >> 4 & 0x0303_0303) << (2 * w);
                }
            }
        }
        _ => {}
    }
}
