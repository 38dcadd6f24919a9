//! Tests of `attention.rs`.

use half::f16;
use octet_weights::GgmlType;
use octet_weights::quant::quantize;
use proptest::prelude::*;

use super::{Values, all, bits, close, sigmoid};
use crate::backend::Window;
use crate::backend::{KvType, KvTypes};
use crate::batch::PAGE_TOKENS;
use crate::cpu::vector::{
    CHUNK, KvData, KvPages, QueryTile, VectorKernels, attend_chunks, attend_scratch_len, partial_len,
};

/// A sequence's queries and its cache. The rest of its pages, past its length, is NaN.
#[derive(Debug)]
struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    gated: bool,
    /// Positions before the queries, and number of queries.
    past: usize,
    tokens: usize,
    q: Vec<f32>,
    table: Vec<u32>,
    /// The values that the oracle uses, as decoded from the data.
    keys: Vec<f32>,
    values: Vec<f32>,
    key_data: Data,
    value_data: Data,
    window: Window,
    softcap: Option<f32>,
    sinks: Option<Vec<f32>>,
}

/// Keys or values in the cache's format.
#[derive(Debug)]
enum Data {
    F32(Vec<f32>),
    F16(Vec<u16>),
    Q8_0(Vec<u8>),
}

impl Data {
    /// Encodes `x` (whole blocks), and replaces it by the decoded values.
    fn new(ty: KvType, x: &mut [f32]) -> Self {
        match ty {
            KvType::F32 => Self::F32(x.to_vec()),
            KvType::F16 => {
                let bits: Vec<u16> = x.iter().map(|x| f16::from_f32(*x).to_bits()).collect();
                x.iter_mut().zip(&bits).for_each(|(x, b)| *x = f16::from_bits(*b).to_f32());
                Self::F16(bits)
            }
            KvType::Q8_0 => {
                let mut bytes = vec![0; x.len() / 32 * 34];
                quantize(GgmlType::Q8_0, x, &mut bytes).expect("Q8_0 has a quantiser");
                for (block, x) in bytes.chunks_exact_mut(34).zip(x.chunks_exact(32)) {
                    if x[0].is_nan() {
                        block.fill(0xff); // a scale that is NaN
                    }
                }
                GgmlType::Q8_0.dequantize(&bytes, x);
                Self::Q8_0(bytes)
            }
        }
    }

    fn view(&self) -> KvData<'_> {
        match self {
            Self::F32(x) => KvData::F32(x),
            Self::F16(x) => KvData::F16(x),
            Self::Q8_0(x) => KvData::Q8_0(x),
        }
    }
}

/// Types of keys and values for heads of `head_dim`.
fn types(head_dim: usize, choice: u32) -> KvTypes {
    let of = |choice: u32| match choice % 3 {
        0 => KvType::F32,
        2 if head_dim.is_multiple_of(32) => KvType::Q8_0,
        _ => KvType::F16,
    };
    KvTypes { keys: of(choice), values: of(choice / 3) }
}

impl Case {
    fn new(
        (kv_heads, group, head_dim): (usize, usize, usize),
        (past, tokens): (usize, usize),
        gated: bool,
        types: KvTypes,
        seed: u64,
    ) -> Self {
        let mut r = Values(seed);
        let heads = kv_heads * group;
        let pages = (past + tokens).div_ceil(PAGE_TOKENS);
        let mut table: Vec<u32> = (0..pages as u32 + 2).collect();
        for i in (1..table.len()).rev() {
            table.swap(i, r.next() as usize % (i + 1));
        }
        let size = table.len() * kv_heads * PAGE_TOKENS * head_dim;
        let (mut keys, mut values) = (vec![f32::NAN; size], vec![f32::NAN; size]);
        for position in 0..past + tokens {
            for h in 0..kv_heads {
                let at = row(&table, kv_heads, h, position) * head_dim;
                // Later keys are larger, so that the maximum keeps moving.
                let scale = 1.0 + position as f32 / 300.0;
                keys[at..at + head_dim].copy_from_slice(&r.take(head_dim, scale));
                values[at..at + head_dim].copy_from_slice(&r.take(head_dim, 1.0));
            }
        }
        let (key_data, value_data) = (Data::new(types.keys, &mut keys), Data::new(types.values, &mut values));
        let q = r.take(tokens * heads * head_dim * if gated { 2 } else { 1 }, 2.0);
        table.truncate(pages);
        Self {
            heads,
            kv_heads,
            head_dim,
            gated,
            past,
            tokens,
            q,
            table,
            keys,
            values,
            key_data,
            value_data,
            window: Window::All,
            softcap: None,
            sinks: None,
        }
    }

    /// The same with a window of about `size` positions, and perhaps a soft-cap and sinks.
    fn special(self, size: usize, seed: u64) -> Self {
        let mut r = Values(seed);
        let sinks = r.take(self.heads, 3.0);
        Self {
            window: if seed.is_multiple_of(2) { Window::Last(size) } else { Window::Chunk(size) },
            softcap: (seed / 2).is_multiple_of(2).then_some(3.0),
            sinks: (seed / 4).is_multiple_of(2).then_some(sinks),
            ..self
        }
    }

    fn kv(&self) -> KvPages<'_> {
        let (keys, values) = (self.key_data.view(), self.value_data.view());
        let d = self.head_dim;
        KvPages { keys, values, kv_heads: self.kv_heads, k_dim: d, v_dim: d, v_row: d, table: &self.table }
    }

    fn query_len(&self) -> usize {
        self.head_dim * if self.gated { 2 } else { 1 }
    }

    fn tile(&self, first: usize, tokens: usize, kv_head: usize) -> QueryTile<'_> {
        let q = &self.q[first * self.heads * self.query_len()..];
        let position = self.past + first;
        QueryTile {
            q,
            heads: self.heads,
            gated: self.gated,
            tokens,
            position,
            kv_head,
            window: self.window,
            blocks: None,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            softcap: self.softcap,
            sinks: self.sinks.as_deref(),
        }
    }

    /// All tokens in tiles of `step` tokens.
    fn in_tiles(&self, k: VectorKernels, step: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.tokens * self.heads * self.head_dim];
        for first in (0..self.tokens).step_by(step) {
            let tokens = step.min(self.tokens - first);
            for kv_head in 0..self.kv_heads {
                let queries = tokens * (self.heads / self.kv_heads);
                let mut scratch = vec![f32::NAN; attend_scratch_len(queries, self.head_dim, self.head_dim)];
                let tile = self.tile(first, tokens, kv_head);
                let at = &mut out[first * self.heads * self.head_dim..];
                // SAFETY: the tile's tokens lie in `out` from there on.
                unsafe { k.attend_tile(&self.kv(), &tile, &mut scratch, at.as_mut_ptr()) };
            }
        }
        out
    }

    /// All tokens by chunks, `step` tokens at a time, merged at the end.
    fn in_chunks(&self, k: VectorKernels, step: usize) -> Vec<f32> {
        let group = self.heads / self.kv_heads;
        let len = partial_len(self.head_dim);
        let mut out = Vec::new();
        for first in (0..self.tokens).step_by(step) {
            let tokens = step.min(self.tokens - first);
            let most = attend_chunks(self.past + first + tokens - 1);
            let begin = |i: usize| self.window.first(self.past + i) / CHUNK;
            let stride = self.kv_heads * tokens * group * len;
            let mut partials = vec![f32::NAN; most * stride];
            let mut scratch =
                vec![f32::NAN; attend_scratch_len(tokens * group, self.head_dim, self.head_dim)];
            // Chunks in descending order: as threads may finish them.
            for chunk in (begin(first)..most).rev() {
                for kv_head in 0..self.kv_heads {
                    let at = chunk * stride + kv_head * tokens * group * len;
                    let tile = self.tile(first, tokens, kv_head);
                    k.attend_chunk(&self.kv(), &tile, chunk, &mut scratch, &mut partials[at..]);
                }
            }
            for i in first..first + tokens {
                for h in 0..self.heads {
                    let row = (h / group * tokens + i - first) * group + h % group;
                    let gate = (i * self.heads + h) * self.query_len() + self.head_dim;
                    let gate = self.gated.then(|| &self.q[gate..][..self.head_dim]);
                    let mut y = vec![f32::NAN; self.head_dim];
                    let chunks = attend_chunks(self.past + i) - begin(i);
                    let from = begin(i) * stride + row * len;
                    let sink = self.sinks.as_ref().map(|s| s[h]);
                    k.attend_merge(&partials[from..], stride, chunks, gate, sink, &mut scratch, &mut y);
                    out.extend(y);
                }
            }
        }
        out
    }

    fn oracle(&self) -> Vec<f64> {
        let d = self.head_dim;
        let mut out = Vec::new();
        for i in 0..self.tokens {
            for h in 0..self.heads {
                let at = (i * self.heads + h) * self.query_len();
                let rows: Vec<_> = (self.window.first(self.past + i)..=self.past + i)
                    .map(|p| row(&self.table, self.kv_heads, h * self.kv_heads / self.heads, p) * d)
                    .collect();
                let scores: Vec<f64> = rows
                    .iter()
                    .map(|r| {
                        let products =
                            (0..d).map(|j| f64::from(self.q[at + j]) * f64::from(self.keys[r + j]));
                        let score = products.sum::<f64>() / (d as f64).sqrt();
                        self.softcap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
                    })
                    .collect();
                let sink = self.sinks.as_ref().map_or(f64::NEG_INFINITY, |s| f64::from(s[h]));
                let max = scores.iter().fold(sink, |a, b| a.max(*b));
                let total: f64 = scores.iter().map(|s| (s - max).exp()).sum::<f64>() + (sink - max).exp();
                for j in 0..d {
                    let weighted = rows.iter().zip(&scores);
                    let sum: f64 =
                        weighted.map(|(r, s)| (s - max).exp() * f64::from(self.values[r + j])).sum();
                    let gate = if self.gated { sigmoid(f64::from(self.q[at + d + j])) } else { 1.0 };
                    out.push(sum / total * gate);
                }
            }
        }
        out
    }
}

/// Row of the cache that holds `position`.
fn row(table: &[u32], kv_heads: usize, kv_head: usize, position: usize) -> usize {
    let page = table[position / PAGE_TOKENS] as usize;
    (page * kv_heads + kv_head) * PAGE_TOKENS + position % PAGE_TOKENS
}

fn check(c: &Case) {
    let want = c.oracle();
    for k in all() {
        let alone = c.in_chunks(k, 1);
        close("attention", k.isa(), &alone, &want, 5e-6);
        for step in [1, 3, 8, c.tokens] {
            assert!(bits(&c.in_tiles(k, step)) == bits(&alone), "tiles of {step}: {c:?}");
        }
        assert!(bits(&c.in_chunks(k, 5)) == bits(&alone), "chunks of 5: {c:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_query_gives_the_same_bits_alone_and_in_a_batch(
        kv_heads in 1usize..3,
        group in 1usize..6,
        head_dim in prop_oneof![Just(32usize), Just(64), 1usize..100],
        past in 0usize..150,
        tokens in 1usize..40,
        gated: bool,
        choice in 0u32..9,
        seed: u64,
    ) {
        let types = types(head_dim, choice);
        check(&Case::new((kv_heads, group, head_dim), (past, tokens), gated, types, seed));
    }

    #[test]
    fn and_with_windows_soft_caps_and_sinks(
        group in 1usize..4,
        past in prop_oneof![0usize..150, CHUNK - 20..CHUNK + 1, 2 * CHUNK - 20..2 * CHUNK + 100],
        tokens in 1usize..40,
        size in prop_oneof![1usize..20, 60usize..70, 120usize..140, CHUNK - 5..CHUNK + 80],
        gated: bool,
        choice in 0u32..9,
        seed: u64,
    ) {
        let case = Case::new((2, group, 32), (past, tokens), gated, types(32, choice), seed);
        check(&case.special(size, seed));
    }

    #[test]
    fn and_across_the_borders_of_chunks(
        past in prop_oneof![CHUNK - 20..CHUNK + 1, 2 * CHUNK - 20..2 * CHUNK + 100],
        tokens in 1usize..30,
        group in 1usize..4,
        head_dim in prop_oneof![Just(24usize), Just(32)],
        choice in 0u32..9,
        seed: u64,
    ) {
        let types = types(head_dim, choice);
        check(&Case::new((1, group, head_dim), (past, tokens), false, types, seed));
    }
}

#[test]
fn the_shape_of_the_real_model() {
    for ty in [KvType::F16, KvType::Q8_0] {
        check(&Case::new((2, 8, 256), (1000, 40), true, ty.into(), 7));
    }
}
