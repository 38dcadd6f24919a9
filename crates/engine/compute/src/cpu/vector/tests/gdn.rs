//! Tests of `conv.rs` and `gdn.rs`.

use proptest::prelude::*;

use super::{Values, all, bits, close, silu, wide};
use crate::cpu::vector::{Conv, GdnColumns, VectorKernels, gdn_scratch_len};

/// One span's input of the convolution, and the inputs before it.
#[derive(Debug, Clone)]
struct ConvCase {
    taps: usize,
    channels: usize,
    tokens: usize,
    weights: Vec<f32>,
    input: Vec<f32>,
    state: Vec<f32>,
}

impl ConvCase {
    fn new(taps: usize, channels: usize, tokens: usize, seed: u64) -> Self {
        let mut r = Values(seed);
        let weights = r.take(taps * channels, 1.0);
        let (input, state) = (r.take(tokens * channels, 2.0), r.take((taps - 1) * channels, 2.0));
        Self { taps, channels, tokens, weights, input, state }
    }

    /// Outputs and the state after spans of these lengths, each cut into items of `width` channels. Each is run with guesses behind it
    /// first, as many as there are tokens, at most `guesses`.
    fn run(&self, k: VectorKernels, spans: &[usize], width: usize, guesses: usize) -> (Vec<f32>, Vec<f32>) {
        let n = self.channels;
        let (mut state, mut out) = (self.state.clone(), vec![f32::NAN; self.tokens * n]);
        let mut first = 0;
        for &kept in spans {
            let guesses = guesses.min(self.tokens - first - kept);
            let tokens = kept + guesses;
            for c in (0..n).step_by(width) {
                let item = Conv {
                    weights: self.weights[c..].as_ptr(),
                    weights_stride: n,
                    input: self.input[first * n + c..].as_ptr(),
                    input_stride: n,
                    state: state.as_mut_ptr().wrapping_add(c),
                    state_stride: n,
                    out: out[first * n + c..].as_mut_ptr(),
                    out_stride: n,
                    tokens,
                    guesses,
                    channels: width.min(n - c),
                    taps: self.taps,
                    bias: std::ptr::null(),
                    silu: true,
                };
                // SAFETY: rows are `n` apart in all of them, and the item's channels lie within a row.
                unsafe { k.conv(&item) };
            }
            first += kept;
        }
        (out, state)
    }

    fn oracle(&self) -> (Vec<f64>, Vec<f32>) {
        let rows: Vec<f32> = [&self.state[..], &self.input[..]].concat();
        let mut out = Vec::new();
        for t in 0..self.tokens {
            for c in 0..self.channels {
                let products = (0..self.taps).map(|j| {
                    f64::from(self.weights[j * self.channels + c])
                        * f64::from(rows[(t + j) * self.channels + c])
                });
                out.push(silu(products.sum()));
            }
        }
        (out, rows[self.tokens * self.channels..].to_vec())
    }
}

/// One value head's tokens and its state.
#[derive(Debug, Clone)]
pub(super) struct Recurrence {
    pub k_dim: usize,
    pub v_dim: usize,
    pub tokens: usize,
    /// Normalised and scaled.
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub beta: Vec<f32>,
    pub decay: Vec<f32>,
    pub state: Vec<f32>,
}

impl Recurrence {
    /// `each`: decays of a token, one or `k_dim`.
    fn new([k_dim, v_dim, each]: [usize; 3], tokens: usize, seed: u64) -> Self {
        let mut r = Values(seed);
        let unit = |x: Vec<f32>, scale: f32| -> Vec<f32> {
            let norms = x.chunks(k_dim).map(|x| x.iter().map(|x| x * x).sum::<f32>().sqrt() + 1e-3);
            let norms: Vec<f32> = norms.collect();
            x.iter().enumerate().map(|(i, x)| x * scale / norms[i / k_dim]).collect()
        };
        Self {
            k_dim,
            v_dim,
            tokens,
            q: unit(r.take(tokens * k_dim, 1.0), 1.0 / (k_dim as f32).sqrt()),
            k: unit(r.take(tokens * k_dim, 1.0), 1.0),
            v: r.take(tokens * v_dim, 2.0),
            beta: (0..tokens).map(|_| r.one(0.5) + 0.5).collect(),
            decay: (0..tokens * each).map(|_| r.one(0.5) + 0.5).collect(),
            state: r.take(k_dim * v_dim, 1.0),
        }
    }

    /// Outputs and the state after spans of these lengths, each cut into items of `width` columns. Each is run with guesses behind it,
    /// as many as there are tokens, at most `guesses`: the spans that follow compute these again.
    pub fn run(
        &self,
        k: VectorKernels,
        spans: &[usize],
        width: usize,
        guesses: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        let (mut state, mut v) = (self.state.clone(), self.v.clone());
        let mut scratch = vec![f32::NAN; gdn_scratch_len(self.k_dim)];
        let kq: Vec<f32> =
            self.q.chunks(self.k_dim).zip(self.k.chunks(self.k_dim)).map(|(q, x)| k.dot(q, x)).collect();
        let (mut first, each) = (0, self.decay.len() / self.tokens);
        for &kept in spans {
            let guesses = guesses.min(self.tokens - first - kept);
            let tokens = kept + guesses;
            // overwritten by the guesses' outputs
            let values = self.v[first * self.v_dim..(first + tokens) * self.v_dim].to_vec();
            v[first * self.v_dim..][..values.len()].copy_from_slice(&values);
            for c in (0..self.v_dim).step_by(width) {
                let item = GdnColumns {
                    state: state[c..].as_mut_ptr(),
                    state_stride: self.v_dim,
                    q: self.q[first * self.k_dim..].as_ptr(),
                    k: self.k[first * self.k_dim..].as_ptr(),
                    qk_stride: self.k_dim,
                    kq: kq[first..].as_ptr(),
                    beta: self.beta[first..].as_ptr(),
                    beta_stride: 1,
                    decay: self.decay[first * each..].as_ptr(),
                    decay_stride: each,
                    row_decay: each > 1,
                    v: v[first * self.v_dim + c..].as_mut_ptr(),
                    v_stride: self.v_dim,
                    tokens,
                    guesses,
                    k_dim: self.k_dim,
                    columns: width.min(self.v_dim - c),
                };
                // SAFETY: the strides are those of the vectors, and the item's columns lie within a row.
                unsafe { k.gdn_columns(&item, &mut scratch) };
            }
            first += kept;
        }
        (v, state)
    }

    /// The textbook form: decay, read, write, read.
    fn oracle(&self) -> (Vec<f64>, Vec<f64>) {
        let (mut s, mut out) = (wide(&self.state), Vec::new());
        let (rows, columns, each) = (self.k_dim, self.v_dim, self.decay.len() / self.tokens);
        for t in 0..self.tokens {
            let (q, k) = (wide(&self.q[t * rows..][..rows]), wide(&self.k[t * rows..][..rows]));
            let decay = &self.decay[t * each..][..each];
            s.iter_mut().enumerate().for_each(|(i, s)| *s *= f64::from(decay[i / columns % each]));
            for j in 0..columns {
                let read: f64 = (0..rows).map(|i| s[i * columns + j] * k[i]).sum();
                let d = f64::from(self.beta[t]) * (f64::from(self.v[t * columns + j]) - read);
                for i in 0..rows {
                    s[i * columns + j] += k[i] * d;
                }
                out.push((0..rows).map(|i| s[i * columns + j] * q[i]).sum());
            }
        }
        (out, s)
    }
}

/// Cuts `n` tokens into spans of 1 to `most` tokens.
fn cuts(n: usize, most: usize, seed: u64) -> Vec<usize> {
    let (mut r, mut left, mut spans) = (Values(seed), n, Vec::new());
    while left > 0 {
        spans.push((1 + r.next() as usize % most).min(left));
        left -= spans[spans.len() - 1];
    }
    spans
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn convolution(taps in 1usize..=8, channels in 1usize..120, tokens in 1usize..20, width in 1usize..70, guesses in 0usize..5, seed: u64) {
        let c = ConvCase::new(taps, channels, tokens, seed);
        let (want, state) = c.oracle();
        for k in all() {
            let whole = c.run(k, &[tokens], channels, 0);
            close("conv", k.isa(), &whole.0, &want, 3e-6);
            prop_assert_eq!(&whole.1, &state);
            prop_assert_eq!(&c.run(k, &cuts(tokens, 4, seed), channels, guesses), &whole);
            // Other widths put channels into other lanes, never into another order of operations.
            prop_assert_eq!(&c.run(k, &[tokens], width, 0), &whole);
        }
    }

    #[test]
    fn recurrence(
        k_dim in 1usize..50,
        v_dim in prop_oneof![Just(32usize), Just(128), 1usize..150],
        tokens in 1usize..24,
        width in 1usize..140,
        guesses in 0usize..5,
        row_decay: bool,
        seed: u64,
    ) {
        let c = Recurrence::new([k_dim, v_dim, if row_decay { k_dim } else { 1 }], tokens, seed);
        let (want, state) = c.oracle();
        for k in all() {
            let whole = c.run(k, &[tokens], v_dim, 0);
            close("gdn_columns", k.isa(), &whole.0, &want, 1e-5);
            close("state", k.isa(), &whole.1, &state, 1e-5);
            for most in [1, 2, 8] {
                let cut = c.run(k, &cuts(tokens, most, seed), width, guesses);
                prop_assert!(bits(&cut.0) == bits(&whole.0) && bits(&cut.1) == bits(&whole.1));
            }
        }
    }

    #[test]
    fn keys(k_dim in 1usize..150, tokens in 0usize..4, seed: u64) {
        let mut r = Values(seed);
        let (q, k) = (r.take(tokens * k_dim, 2.0), r.take(tokens * k_dim, 2.0));
        let unit = |x: &[f32], scale: f64| -> Vec<f64> {
            let norm = |x: &[f32]| scale / (wide(x).iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.chunks(k_dim).flat_map(|x| wide(x).into_iter().map(move |v| v * norm(x))).collect()
        };
        let (want_q, want_k) = (unit(&q, 1.0 / (k_dim as f64).sqrt()), unit(&k, 1.0));
        let want: Vec<f64> = want_q
            .chunks(k_dim)
            .zip(want_k.chunks(k_dim))
            .map(|(q, k)| q.iter().zip(k).map(|(q, k)| q * k).sum())
            .collect();
        for kernels in all() {
            let (mut q, mut k, mut kq) = (q.clone(), k.clone(), vec![f32::NAN; tokens]);
            kernels.gdn_keys(k_dim, &mut q, &mut k, &mut kq);
            close("queries", kernels.isa(), &q, &want_q, 1e-6);
            close("keys", kernels.isa(), &k, &want_k, 1e-6);
            close("k . q", kernels.isa(), &kq, &want, 1e-6);
        }
    }
}

#[test]
fn recurrence_at_the_real_size() {
    let c = Recurrence::new([128, 128, 1], 70, 3);
    let (want, state) = c.oracle();
    for k in all() {
        let whole = c.run(k, &[70], 128, 0);
        close("gdn_columns", k.isa(), &whole.0, &want, 1e-5);
        close("state", k.isa(), &whole.1, &state, 1e-5);
        for (spans, width, guesses) in
            [(vec![1; 70], 128, 0), (vec![35, 1, 2, 32], 64, 0), (vec![1; 70], 64, 1), (vec![2; 35], 64, 3)]
        {
            let cut = c.run(k, &spans, width, guesses);
            assert!(bits(&cut.0) == bits(&whole.0) && bits(&cut.1) == bits(&whole.1), "{spans:?}");
        }
    }
}
