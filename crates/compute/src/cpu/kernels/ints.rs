//! The kernel of integer kinds: one group of 16 rows times a list of tokens. Called through `Kernels::group`.
//!
//! Eight vectors of weights (32 columns of `Lanes::ROWS` rows) are unpacked into registers and meet one token after the
//! other; each token's f32 sums wait in `out`. So a result depends on its row and its token alone: for every 32
//! columns, in order, an exact integer dot product, then the same f32 operations, whatever else is in the list.

use super::Call;
use super::kinds::{Quant, Scales};
use super::lanes::Lanes;
use crate::cpu::acts::ActBlock;
use crate::cpu::pack::{ROWS, SUB, SUBS};

/// Tokens that meet a block of weights before the next block: their 256 columns fit the L1 cache.
const TILE: usize = 32;
/// How far ahead of the weights in use memory is asked for them, in bytes.
const AHEAD: usize = 2048;

/// # Safety
/// `Call`'s contract, for kind `K`; `S` is available.
#[inline(always)]
pub(super) unsafe fn group<S: Lanes, K: Quant>(call: &Call<'_>) {
    let subs = call.layout.cols() / SUB;
    let mut scales = Scales::zeroed();
    let mut out = call.out;
    let mut tokens = [std::ptr::null::<ActBlock>(); TILE];
    for (tile_index, tile) in call.tokens.chunks(TILE).enumerate() {
        for (p, &t) in tokens.iter_mut().zip(tile) {
            *p = call.acts.block_ptr(t as usize);
        }
        // SAFETY: `out` holds 16 sums of each token; blocks follow one another in the group, and tokens have `subs` blocks.
        unsafe {
            out.write_bytes(0, tile.len() * ROWS);
            let mut block = call.group;
            let mut first = 0;
            while first < subs {
                let n = SUBS.min(subs - first);
                let bytes = K::PLANES.block_bytes(n);
                K::scales::<S>(
                    block.add(K::PLANES.scale_at(n)),
                    block.add(K::PLANES.head_at(n)),
                    n,
                    &mut scales,
                );
                for i in 0..n {
                    if tile_index == 0 {
                        prefetch::<S>(block, bytes, i, n);
                    }
                    let quads = block.add(i * K::PLANES.quads);
                    let high = block.add(K::PLANES.high_at(n) + i * K::PLANES.high);
                    let mut r = 0;
                    while r < ROWS {
                        let w = K::quads::<S>(quads.add(4 * r), high.add(4 * r));
                        rows::<S, K>(&w, &scales, i, r, &tokens[..tile.len()], first + i, out.add(r));
                        r += S::ROWS;
                    }
                }
                block = block.add(bytes);
                first += n;
            }
            out = out.add(tile.len() * ROWS);
        }
    }
}

/// Asks for the part of the memory ahead that is as far into its block as sub-block `i` is into this one.
#[inline(always)]
unsafe fn prefetch<S: Lanes>(block: *const u8, bytes: usize, i: usize, n: usize) {
    let (mut at, end) = (bytes * i / n / 64, bytes * (i + 1) / n / 64);
    while at < end {
        // SAFETY: a prefetch takes any address.
        unsafe { S::prefetch(block.wrapping_add(AHEAD + 64 * at)) };
        at += 1;
    }
}

/// Adds 32 columns of `S::ROWS` rows, from row `r`, to the sums of every token.
#[inline(always)]
unsafe fn rows<S: Lanes, K: Quant>(
    w: &[S::Bytes; 8],
    scales: &Scales,
    i: usize,
    r: usize,
    tokens: &[*const ActBlock],
    sub: usize,
    out: *mut f32,
) {
    // `dot` multiplies quants that are too large by this, so it starts with that much less.
    let offset = if K::BITS == 8 { S::SIGNED_OFFSET } else { K::OFFSET };
    // SAFETY: `group` passes valid pointers, and `S` is available.
    unsafe {
        let i = if K::HALVES { 2 * i } else { i };
        let scale = S::floats(scales.scale[i].as_ptr().add(r));
        let scale_2 = S::floats(scales.scale[if K::HALVES { i + 1 } else { i }].as_ptr().add(r));
        let min = S::floats(scales.min[i].as_ptr().add(r));
        let min_2 = S::floats(scales.min[if K::HALVES { i + 1 } else { i }].as_ptr().add(r));
        for (k, &token) in tokens.iter().enumerate() {
            let a = &*token.add(sub);
            let q = a.q.as_ptr();
            let out = out.add(ROWS * k);
            let mut sum = S::floats(out);
            if K::HALVES {
                let low = S::dot(K::BITS, 0, 4, w, q, a.neg_sums[0] * offset);
                let high = S::dot(K::BITS, 4, 8, w, q, a.neg_sums[1] * offset);
                let dot = S::mul_add(S::to_floats(high), scale_2, S::mul(S::to_floats(low), scale));
                sum = S::mul_add(dot, S::splat(a.d), sum);
                if K::MIN {
                    let min = S::mul_add(
                        min_2,
                        S::splat(-a.neg_sums[1] as f32),
                        S::mul(min, S::splat(-a.neg_sums[0] as f32)),
                    );
                    sum = S::mul_add(min, S::splat(a.d), sum);
                }
            } else {
                let dot = S::dot(K::BITS, 0, 8, w, q, (a.neg_sums[0] + a.neg_sums[1]) * offset);
                sum = S::mul_add(S::mul(S::to_floats(dot), scale), S::splat(a.d), sum);
                if K::MIN {
                    sum = S::mul_add(min, S::splat(a.d_sum), sum);
                }
            }
            S::store(out, sum);
        }
    }
}
