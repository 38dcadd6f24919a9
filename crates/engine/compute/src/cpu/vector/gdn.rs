//! The recurrence of Gated DeltaNet.
//!
//! With the state `S [k_dim, v_dim]` of a value head, and for each token its `q`, `k`, `v`, `beta`, `decay`:
//!
//! ```text
//! d = beta * (v - decay * S^T k);   o = decay * S^T q + (k . q) d;   S = decay * S + k d^T
//! ```
//!
//! (with a decay of each row of the state, `decay` is a diagonal matrix), which is `S *= decay; d = beta * (v - S^T k); S += k d^T; o = S^T q`, rearranged so that both reads of the state come
//! before its update. Columns of `S` are independent: a work item processes some of them for all tokens of a span. The update
//! for a token is made in the same pass as the reads for the next one, so a token costs one load and one store of each
//! value. The operations for a token do not depend on where a span starts or ends, so a prompt may be split anywhere.

use super::rows::{dot, l2_norm};
use super::simd::{MAX_LANES, Simd, aligned};

/// Normalises the queries and keys of a key head, `[tokens, k_dim]` each, scales the queries by `k_dim^-0.5`,
/// and writes `k . q` of each token.
#[inline(always)]
pub(super) fn gdn_keys<S: Simd>(s: S, k_dim: usize, q: &mut [f32], k: &mut [f32], kq: &mut [f32]) {
    assert!(q.len() == k.len() && q.len() == k_dim * kq.len());
    let scale = 1.0 / (k_dim as f32).sqrt();
    for ((q, k), kq) in q.chunks_exact_mut(k_dim).zip(k.chunks_exact_mut(k_dim)).zip(kq) {
        l2_norm(s, q, scale);
        l2_norm(s, k, 1.0);
        *kq = dot(s, q, k);
    }
}

/// Some columns of a value head's state, and the tokens of one span. Strides are in values.
#[derive(Clone, Copy)]
pub struct GdnColumns {
    /// `[k_dim, columns]`: at the item's first column of the head's first row.
    pub state: *mut f32,
    /// From a row of the state to the next: `v_dim`.
    pub state_stride: usize,
    /// `[tokens, k_dim]`: queries of the head, from [`super::VectorKernels::gdn_keys`].
    pub q: *const f32,
    /// `[tokens, k_dim]`: keys of the head, likewise.
    pub k: *const f32,
    /// From a token of `q` and of `k` to the next.
    pub qk_stride: usize,
    /// `[tokens]`: `k . q`.
    pub kq: *const f32,
    /// Strength of the update by each token; at the item's head.
    pub beta: *const f32,
    /// From a token of `beta` to the next.
    pub beta_stride: usize,
    /// Decay of the state at each token; at the item's head.
    pub decay: *const f32,
    /// From a token of `decay` to the next.
    pub decay_stride: usize,
    /// A token has a decay of each row of the state, `[k_dim]`.
    pub row_decay: bool,
    /// `[tokens, columns]`: values going in, outputs coming out; at the item's first column.
    pub v: *mut f32,
    /// From a token of `v` to the next.
    pub v_stride: usize,
    /// Tokens of the span, at least 1.
    pub tokens: usize,
    /// Number of guesses at the end of the tokens, which the state never includes; fewer than `tokens`.
    pub guesses: usize,
    /// Rows of the state.
    pub k_dim: usize,
    /// Columns of this item.
    pub columns: usize,
}

impl GdnColumns {
    /// Without the guesses.
    fn certain(&self) -> Self {
        Self { tokens: self.tokens - self.guesses, guesses: 0, ..*self }
    }

    /// Only the guesses.
    ///
    /// # Safety
    /// The pointers are valid for the shapes in [`GdnColumns`].
    unsafe fn guessed(&self) -> Self {
        let first = self.tokens - self.guesses;
        // SAFETY: `first < tokens`, so there is such a token in each of them.
        unsafe {
            Self {
                q: self.q.add(first * self.qk_stride),
                k: self.k.add(first * self.qk_stride),
                kq: self.kq.add(first),
                beta: self.beta.add(first * self.beta_stride),
                decay: self.decay.add(first * self.decay_stride),
                v: self.v.add(first * self.v_stride),
                tokens: self.guesses,
                guesses: 0,
                ..*self
            }
        }
    }
}

/// Columns of an item that make best use of the vectors while a span has more than a few tokens.
pub const GDN_COLUMNS: usize = 64;

/// Values of scratch memory for an item of any width.
pub fn gdn_scratch_len(k_dim: usize) -> usize {
    k_dim * GDN_COLUMNS + MAX_LANES
}

/// From this many tokens on the state is first copied to scratch memory: its rows are `v_dim` apart, and so would share few
/// sets of the L1 cache.
const GATHER_TOKENS: usize = 3;

/// Processes all tokens of a span for some columns of the state.
///
/// # Safety
/// The pointers are valid for the shapes in [`GdnColumns`]; no other thread uses these columns.
#[inline(always)]
pub(super) unsafe fn gdn_columns<S: Simd>(s: S, g: &GdnColumns, scratch: &mut [f32]) {
    assert!(scratch.len() >= gdn_scratch_len(g.k_dim) && g.tokens > g.guesses);
    let scratch = aligned(scratch);
    let gather = g.tokens >= GATHER_TOKENS || g.guesses > 0;
    let mut at = 0;
    // SAFETY: each block lies within the item's columns.
    unsafe {
        if !gather && S::LANES == MAX_LANES {
            // One token of a long state: whole rows, to read memory in order.
            while g.columns - at >= 8 * S::LANES {
                block::<S, 8>(s, g, at, None);
                at += 8 * S::LANES;
            }
        }
        while g.columns - at >= 4 * S::LANES {
            block::<S, 4>(s, g, at, gather.then_some(&mut *scratch));
            at += 4 * S::LANES;
        }
        while g.columns - at >= S::LANES {
            block::<S, 1>(s, g, at, gather.then_some(&mut *scratch));
            at += S::LANES;
        }
        if at < g.columns {
            tail_block(s, g, at, scratch);
        }
    }
}

/// `W` vectors of columns from column `at` on, in place or through `scratch`.
///
/// # Safety
/// As for [`gdn_columns`]; the columns lie within the item.
#[inline(always)]
unsafe fn block<S: Simd, const W: usize>(s: S, g: &GdnColumns, at: usize, scratch: Option<&mut [f32]>) {
    // SAFETY: the caller's; scratch has room for k_dim rows of W vectors.
    unsafe {
        let home = g.state.add(at);
        let Some(scratch) = scratch else {
            return recur::<S, W>(s, g, at, W * S::LANES, home, g.state_stride);
        };
        let (here, width) = (scratch.as_mut_ptr(), W * S::LANES);
        for i in 0..g.k_dim {
            std::ptr::copy_nonoverlapping(home.add(i * g.state_stride), here.add(i * width), width);
        }
        recur::<S, W>(s, &g.certain(), at, width, here, width);
        for i in 0..g.k_dim {
            std::ptr::copy_nonoverlapping(here.add(i * width), home.add(i * g.state_stride), width);
        }
        if g.guesses > 0 {
            recur::<S, W>(s, &g.guessed(), at, width, here, width);
        }
    }
}

/// The last columns, fewer than a vector.
///
/// # Safety
/// As for [`gdn_columns`]; `at` is the first of the last `columns % LANES` columns.
#[inline(always)]
unsafe fn tail_block<S: Simd>(s: S, g: &GdnColumns, at: usize, scratch: &mut [f32]) {
    let n = g.columns - at;
    // SAFETY: the caller's; scratch has room for k_dim vectors.
    unsafe {
        let (home, here) = (g.state.add(at), scratch.as_mut_ptr());
        for i in 0..g.k_dim {
            s.store(here.add(i * S::LANES), s.load_part(home.add(i * g.state_stride), n));
        }
        recur::<S, 1>(s, &g.certain(), at, n, here, S::LANES);
        for i in 0..g.k_dim {
            s.store_part(home.add(i * g.state_stride), n, s.load(here.add(i * S::LANES)));
        }
        if g.guesses > 0 {
            recur::<S, 1>(s, &g.guessed(), at, n, here, S::LANES);
        }
    }
}

/// The recurrence over `W` vectors of columns from column `at` on, of which the first `n` columns exist in `v`.
///
/// # Safety
/// `state` has `k_dim` rows of `W` vectors, `stride` apart; `v` has `n` columns, and only `W == 1` allows fewer than `W`
/// vectors of them; the rest as for [`gdn_columns`].
#[inline(always)]
unsafe fn recur<S: Simd, const W: usize>(
    s: S,
    g: &GdnColumns,
    at: usize,
    n: usize,
    state: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        match g.row_decay {
            false => recur_with::<S, W, false>(s, g, at, n, state, stride),
            true => recur_with::<S, W, true>(s, g, at, n, state, stride),
        }
    }
}

/// The same, with a decay of each row of the state or of all.
///
/// # Safety
/// As for [`recur`].
#[inline(always)]
unsafe fn recur_with<S: Simd, const W: usize, const ROWS: bool>(
    s: S,
    g: &GdnColumns,
    at: usize,
    n: usize,
    state: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's; t < tokens, i < k_dim.
    unsafe {
        // What reads a row of the state before it decays: a decay of all rows is applied to the sums.
        let reads = |x: *const f32, i: usize, decay: *const f32| {
            s.splat(if ROWS { *x.add(i) * *decay.add(i) } else { *x.add(i) })
        };
        let v = g.v.add(at);
        let mut sk = [s.splat(0.0); W];
        let mut sq = [s.splat(0.0); W];
        for i in 0..g.k_dim {
            let (k, q) = (reads(g.k, i, g.decay), reads(g.q, i, g.decay));
            for w in 0..W {
                let x = s.load(state.add(i * stride + w * S::LANES));
                sk[w] = s.fma(k, x, sk[w]);
                sq[w] = s.fma(q, x, sq[w]);
            }
        }
        for t in 0..g.tokens {
            let beta = s.splat(*g.beta.add(t * g.beta_stride));
            let decays = g.decay.add(t * g.decay_stride);
            let all = s.splat(*decays);
            let decay = |i: usize| if ROWS { s.splat(*decays.add(i)) } else { all };
            let decayed = |x| if ROWS { x } else { s.mul(all, x) };
            let kq = s.splat(*g.kq.add(t));
            let v = v.add(t * g.v_stride);
            let mut d = [s.splat(0.0); W];
            for w in 0..W {
                let at = v.add(w * S::LANES);
                let whole = n >= S::LANES;
                let x = if whole { s.load(at) } else { s.load_part(at, n) };
                d[w] = s.mul(beta, s.sub(x, decayed(sk[w])));
                let o = s.fma(kq, d[w], decayed(sq[w]));
                if whole { s.store(at, o) } else { s.store_part(at, n, o) }
            }
            let k = g.k.add(t * g.qk_stride);
            if t + 1 == g.tokens {
                for i in 0..g.k_dim {
                    let (k, decay) = (s.splat(*k.add(i)), decay(i));
                    for w in 0..W {
                        let at = state.add(i * stride + w * S::LANES);
                        s.store(at, s.fma(k, d[w], s.mul(decay, s.load(at))));
                    }
                }
                return;
            }
            let (next_k, next_q) = (k.add(g.qk_stride), g.q.add((t + 1) * g.qk_stride));
            let next = decays.add(g.decay_stride * usize::from(ROWS));
            sk = [s.splat(0.0); W];
            sq = [s.splat(0.0); W];
            for i in 0..g.k_dim {
                let (k, decay) = (s.splat(*k.add(i)), decay(i));
                let (next_k, next_q) = (reads(next_k, i, next), reads(next_q, i, next));
                for w in 0..W {
                    let at = state.add(i * stride + w * S::LANES);
                    let x = s.fma(k, d[w], s.mul(decay, s.load(at)));
                    s.store(at, x);
                    sk[w] = s.fma(next_k, x, sk[w]);
                    sq[w] = s.fma(next_q, x, sq[w]);
                }
            }
        }
    }
}
