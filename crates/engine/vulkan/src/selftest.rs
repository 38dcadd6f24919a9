//! Kernels that are checked to the bit against plain code. Products of quantised rows, to which most of the time goes, are integers and a
//! few f32 operations in one order, which every device that keeps Vulkan's rules computes alike. Steps ahead take tokens and their
//! embeddings from the device, and nobody compares the embeddings later.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::Backend;
use octet_compute::picks::{Pick, picks};
use octet_compute::selftest::Check;
use octet_weights::quant::{iq4, mxfp4, nvfp4};
use octet_weights::{GgmlType, Matrix, quant};

use crate::ahead::{Shared, TABLE_TYPES};
use crate::backend::{Embedding, Vulkan, Weight};
use crate::memory::{Buffer, Place};
use crate::picks::ROW_WORDS;
use crate::transfer::Part;
use crate::verbs::Rows;
use crate::weights::DeviceType;

/// Rows, columns and tokens: 2304 columns are 72 blocks, 9 of each lane; tokens fill tiles of each size and part of another.
const ROWS: usize = 40;
const COLS: usize = 2304;
const TOKENS: [usize; 7] = [1, 2, 4, 8, 11, 33, 260];
/// Of more tokens than this, each 13th is checked: the plain code takes its time.
const ALL_TOKENS_MAX: usize = 11;

/// Types that have a kernel of their own.
const TYPES: [GgmlType; 11] = [
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_1,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::Q3_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
];
/// Further ones, which few models have. They differ in how a block is unpacked only, so that two sizes of tiles are enough.
const RARE_TYPES: [GgmlType; 2] = [GgmlType::NVFP4, GgmlType::I4_Z];
const RARE_TOKENS: [usize; 2] = [8, 33];

/// Quantised activations: bytes, and the scale and the sum of each block of 32.
struct Activations {
    quants: Vec<i8>,
    scales: Vec<[f32; 2]>,
}

impl Activations {
    fn new(tokens: usize) -> Self {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            state >> 8
        };
        let quants: Vec<i8> = (0..tokens * COLS).map(|_| (next() % 255) as i16 as i8).collect();
        let sums = quants.chunks(32).map(|b| b.iter().map(|q| f32::from(*q)).sum());
        let scales = sums.map(|sum| [1e-3 + next() as f32 * 1e-9, sum]).collect();
        Self { quants, scales }
    }
}

/// Scales of the two halves of a block of 32, its minimum, and its integers: what `load_block` of `weights.glsl` reads.
fn block(m: &Matrix, row: usize, block: usize) -> ([f32; 2], f32, [i32; 32]) {
    let (values, scale) = crate::weights::unpack(m.ty, m.row(row), block);
    let half = |bits: u32| half::f16::from_bits(bits as u16).to_f32();
    let byte = |word: u32, i: usize| (word >> (8 * (i % 4))) as u8;
    use crate::weights::Scale;
    let level = |i: u8| match m.ty {
        GgmlType::MXFP4 | GgmlType::NVFP4 => i32::from(mxfp4::LEVELS[usize::from(i)]),
        GgmlType::Q4_0 => i32::from(i) - 8,
        GgmlType::Q5_0 => i32::from(i) - 16,
        _ => i32::from(iq4::LEVELS[usize::from(i)]),
    };
    match scale {
        Scale::Word(d) => ([f32::from_bits(d); 2], 0.0, values.map(level)),
        Scale::Pair(word) => ([half(word & 0xffff); 2], -half(word >> 16), values.map(i32::from)),
        Scale::Exponent(e) => ([mxfp4::half_scale(e); 2], 0.0, values.map(level)),
        Scale::Half(bits) if m.ty != GgmlType::Q8_0 => ([half(bits); 2], 0.0, values.map(level)),
        Scale::Half(bits) => ([half(bits); 2], 0.0, values.map(|v| i32::from(v as i8))),
        Scale::Words([d, m]) => {
            ([f32::from_bits(d); 2], f32::from_bits(m), values.map(|v| i32::from(v as i8)))
        }
        Scale::Halves(scales) => (scales.map(nvfp4::half_scale), 0.0, values.map(level)),
        Scale::ZeroPoint(bits, zero) => {
            let d = half(bits);
            ([d; 2], d * f32::from(zero), values.map(i32::from))
        }
        Scale::Superblock(words) if matches!(m.ty, GgmlType::Q6_K | GgmlType::Q3_K) => {
            let d = half(words[4]);
            let scales = [0, 1].map(|h| {
                let i = 2 * (block % 8) + h;
                d * f32::from(byte(words[i / 4], i) as i8)
            });
            let middle = if m.ty == GgmlType::Q6_K { 32 } else { 4 };
            (scales, 0.0, values.map(|v| i32::from(v) - middle))
        }
        Scale::Superblock(words) => {
            // 6-bit scales and minimums as ggml packs them into 12 bytes
            let (j, at) = (block % 8, |i: usize| byte(words[1 + i / 4], i));
            let (scale, min) = if j < 4 {
                (at(j) & 63, at(4 + j) & 63)
            } else {
                ((at(4 + j) & 15) | (at(j - 4) >> 6) << 4, (at(4 + j) >> 4) | (at(j) >> 6) << 4)
            };
            let (d, m) = (half(words[0] & 0xffff), half(words[0] >> 16));
            ([d * f32::from(scale); 2], m * f32::from(min), values.map(i32::from))
        }
    }
}

/// `w . x` of one row and token: in 8 stripes of blocks, each summed in order, then one after the other.
fn product(m: &Matrix, row: usize, x: &Activations, token: usize) -> f32 {
    let ty = DeviceType::of(m.ty);
    let blocks = COLS / 32;
    let steps = blocks.div_ceil(8);
    let stripe = |lane: usize| {
        let mut acc = 0.0f32;
        for b in (lane * steps..(lane + 1) * steps).take_while(|b| *b < blocks) {
            let (d, min, w) = block(m, row, b);
            let at = token * blocks + b;
            let [dx, sum] = x.scales[at];
            let q = &x.quants[32 * at..][..32];
            let dot = |r: std::ops::Range<usize>| r.map(|i| w[i] * i32::from(q[i])).sum::<i32>();
            let (low, high) = (dot(0..16), dot(16..32));
            let mut term = match ty {
                DeviceType::Q6_K | DeviceType::Q3_K | DeviceType::Nvfp4 => {
                    (d[0] * dx) * low as f32 + (d[1] * dx) * high as f32
                }
                _ => (d[0] * dx) * (low + high) as f32,
            };
            use DeviceType as T;
            let has_minimum = matches!(ty, T::Q4_K | T::Q5_K | T::Q4_1 | T::Q5_1 | T::I8 | T::I4_Z);
            if has_minimum {
                term -= (min * dx) * sum;
            }
            acc += term;
        }
        acc
    };
    (1..8).fold(stripe(0), |sum, lane| sum + stripe(lane))
}

impl Vulkan {
    /// Checks every verb against the scalar oracle, and the projections of quantised weights to the bit.
    ///
    /// # Errors
    /// When the device fails.
    pub fn self_test(&mut self) -> Result<Vec<Check>, Error> {
        let mut checks = Vec::new();
        let x = Activations::new(TOKENS[TOKENS.len() - 1]);
        for ty in TYPES {
            checks.push(self.check_product(ty, &x, &TOKENS)?);
        }
        for ty in RARE_TYPES {
            checks.push(self.check_product(ty, &x, &RARE_TOKENS)?);
        }
        checks.push(self.check_saving(&x)?);
        checks.push(self.check_picks()?);
        for ty in TABLE_TYPES {
            checks.push(self.check_embedding(ty)?);
        }
        self.picker = None;
        checks.extend(octet_compute::selftest::verbs(self)?);
        // `--device auto` runs it at every start.
        self.save_kernels();
        Ok(checks)
    }

    /// Matrix, weights and activations of a product on the device, and room for its results.
    fn product_of(
        &mut self,
        ty: GgmlType,
        x: &Activations,
    ) -> Result<(Matrix, Weight, Rows, Arc<Buffer>), Error> {
        let mut data = vec![0; ROWS * COLS / ty.block_len() * ty.block_bytes()];
        quant::random_blocks(ty, &mut 5, 0.02, &mut data);
        let m = Matrix::new(ty, ROWS, COLS, data.into());
        let w: Weight = self.weight(&m, None)?;
        let words: Vec<u32> =
            x.quants.chunks(4).map(|q| u32::from_le_bytes([0, 1, 2, 3].map(|i| q[i] as u8))).collect();
        let scales: Vec<f32> = x.scales.iter().flatten().copied().collect();
        let rows =
            Rows { quants: self.words(&words)?, scales: self.floats(&scales)?, floats: self.dummy.clone() };
        let out = self.memory.buffer(4 * (TOKENS[TOKENS.len() - 1] * ROWS) as u64, Place::Device)?;
        Ok((m, w, rows, out))
    }

    /// Whether what kernels have written is saved as it is, on the queue for copies if the card has one.
    fn check_saving(&mut self, x: &Activations) -> Result<Check, Error> {
        let (_, w, rows, out) = self.product_of(GgmlType::Q8_0, x)?;
        let n = TOKENS[TOKENS.len() - 1];
        self.recorder.barrier()?;
        self.project(n, &rows, &w, &out, None)?;
        let [mut saved, mut read] = [(); 2].map(|()| vec![0; 4 * n * ROWS]);
        self.save_parts(&[Part { buffer: out.clone(), at: 0, bytes: saved.len() }], &mut saved)?;
        self.download(&out, 0, &mut read)?;
        let wrong = saved.iter().zip(&read).filter(|(a, b)| a != b).count();
        let difference = wrong as f32 / read.len() as f32;
        Ok(Check { name: "snapshots, to the bit".into(), difference, limit: 0.0, is_stable: true })
    }

    /// Whether the largest logits are found: of three workgroups, with equal ones and some that may not be sampled.
    fn check_picks(&mut self) -> Result<Check, Error> {
        const VOCAB: usize = 9000;
        const ROWS: usize = 2;
        let logit = |i: usize| ((i * 7919 % 1009) as f32 - 700.0) / 16.0;
        let logits: Vec<f32> = (0..ROWS * VOCAB).map(logit).collect();
        let sampleable: Vec<u32> =
            (0..VOCAB.div_ceil(32) as u32).map(|i| !(i.wrapping_mul(0x9e37))).collect();
        self.make_picker(ROWS, VOCAB, &sampleable)?;
        let on_device = self.vector(&logits)?;
        self.pick_rows(ROWS, &on_device)?;
        let (mut wrong, mut found) = (0, Vec::new());
        for row in 0..ROWS {
            let is_whole = self.read_picks(row, &mut found)?;
            let want = picks(&logits[row * VOCAB..][..VOCAB], &sampleable);
            wrong += usize::from(!is_whole || want.as_ref() != Some(&found));
        }
        let difference = wrong as f32 / ROWS as f32;
        Ok(Check { name: "largest logits, to the bit".into(), difference, limit: 0.0, is_stable: true })
    }

    /// Whether a step ahead finds the tokens with the largest logits, and their rows of an embedding table.
    fn check_embedding(&mut self, ty: GgmlType) -> Result<Check, Error> {
        const VOCAB: usize = 40;
        // of two workgroups each
        const COLS: usize = 512;
        let pick = |id, logit| Pick { id, logit };
        let rows = [
            (vec![pick(7, -3.5)], 7),
            (vec![pick(1, 2.0), pick(3, 2.5), pick(39, 2.5)], 3),
            (vec![pick(0, -2.0), pick(5, -0.25), pick(6, -0.0), pick(38, 0.0)], 6),
            (vec![pick(20, -9.0), pick(21, -8.0)], 21),
        ];
        let mut data = vec![0; VOCAB * COLS / ty.block_len() * ty.block_bytes()];
        quant::random_blocks(ty, &mut 9, 0.1, &mut data);
        let m = Matrix::new(ty, VOCAB, COLS, data.into());
        let shared = Shared::At(self.copy_table(&m)?);
        let table = Embedding { table: Arc::new(m), shared };
        self.make_picker(rows.len(), VOCAB, &[u32::MAX; 2])?;
        let mut words = vec![0; rows.len() * ROW_WORDS];
        for ((picks, _), words) in rows.iter().zip(words.chunks_mut(ROW_WORDS)) {
            words[0] = picks.len() as u32;
            for (i, p) in picks.iter().enumerate() {
                (words[2 + 2 * i], words[3 + 2 * i]) = (p.id, p.logit.to_bits());
            }
        }
        if let Some(picker) = &self.picker {
            picker.picks[1 - self.side].write_words(0, &words);
        }
        let out = self.buf(rows.len() * COLS)?;
        self.embed_picked(&table, rows.len(), 1.0, &out)?;
        let mut bytes = vec![0; 4 * rows.len() * COLS];
        self.download(&out.buffer, 0, &mut bytes)?;
        let (mut wrong, mut want) = (0, vec![0.0; COLS]);
        for ((_, token), got) in rows.iter().zip(bytes.chunks(4 * COLS)) {
            table.table.dequantize_row(*token, &mut want);
            let same = |(x, got): (&f32, &[u8; 4])| x.to_bits() == u32::from_le_bytes(*got);
            wrong += want.iter().zip(got.as_chunks::<4>().0).filter(|pair| !same(*pair)).count();
        }
        let difference = wrong as f32 / (rows.len() * COLS) as f32;
        let name = format!("embed {ty} ahead, to the bit");
        Ok(Check { name, difference, limit: 0.0, is_stable: true })
    }

    fn check_product(&mut self, ty: GgmlType, x: &Activations, tokens: &[usize]) -> Result<Check, Error> {
        let (m, w, rows, out) = self.product_of(ty, x)?;
        let (mut wrong, mut all) = (0, 0);
        for &n in tokens {
            self.recorder.barrier()?;
            self.project(n, &rows, &w, &out, None)?;
            let mut bytes = vec![0; 4 * n * ROWS];
            self.download(&out, 0, &mut bytes)?;
            let each = if n <= ALL_TOKENS_MAX { 1 } else { 13 };
            let products = bytes.as_chunks::<4>().0.iter().enumerate();
            for (i, got) in products.filter(|(i, _)| (i / ROWS).is_multiple_of(each)) {
                all += 1;
                wrong +=
                    usize::from(u32::from_le_bytes(*got) != product(&m, i % ROWS, x, i / ROWS).to_bits());
            }
        }
        let difference = wrong as f32 / all as f32;
        Ok(Check { name: format!("linear {ty}, to the bit"), difference, limit: 0.0, is_stable: true })
    }
}
