//! The kernel of integer kinds: one group of rows times a list of tokens. Called through `Kernels::group`.
//!
//! Eight vectors of weights (32 columns of `Lanes::ROWS` rows) are unpacked into registers and multiplied with one token after the
//! other; each token's f32 sums are kept in `out`. So a result depends only on its row and its token: for every 32
//! columns, in order, an exact integer dot product, then the same f32 operations, whatever else is in the list.

#![allow(clippy::needless_range_loop)] // several arrays are walked by one index

use std::marker::PhantomData;

use super::call::Call;
use super::kinds::{Quant, Scales};
use super::lanes::{Lanes, NoPrefetch, Prefetch};
use crate::cpu::activations::ActBlock;
use crate::cpu::kind::{ROWS, SUB, SUBS};

/// Tokens that are multiplied with a block of weights before the next block: their 256 columns fit the L1 cache.
const TILE: usize = 32;
/// Parts of `Lanes::ROWS` rows of a group, of the narrowest instruction set.
const MOST_PARTS: usize = 8;

/// # Safety
/// `Call`'s contract, for kind `K`; `S` is available.
#[inline(always)]
pub(super) unsafe fn group<S: Lanes, K: Quant>(call: &Call<'_>) {
    let mut scales = Scales::uninit();
    // SAFETY: `out` holds `ROWS` sums of each token.
    unsafe {
        if let &[token] = call.tokens {
            one::<S, K>(call, call.acts.block_ptr(token as usize), &mut scales);
            return;
        }
        let mut out = call.out;
        for tile in call.tokens.chunks(TILE) {
            many::<S, K>(call, tile, out, &mut scales);
            out = out.add(tile.len() * ROWS);
        }
    }
}

/// One token: its sums stay in registers while a block's columns go by.
#[inline(always)]
unsafe fn one<S: Lanes, K: Quant>(call: &Call<'_>, token: *const ActBlock, scales: &mut Scales) {
    // SAFETY: blocks follow one another in the group, and the token has as many columns.
    unsafe {
        let mut sums = [S::splat(0.0); MOST_PARTS];
        let mut block = Block::<K>::first(call);
        while block.subs > 0 {
            block.scales::<S>(call, scales);
            for i in 0..block.subs {
                let prefetch = Prefetch(call.prefetch_distance(block.quads(i, 0)));
                let a = &*token.add(block.sub + i);
                for p in 0..ROWS / S::ROWS {
                    let r = p * S::ROWS;
                    let w = block.weights::<S>(i, r, prefetch);
                    sums[p] = add::<S, K>(sums[p], &w, &Rows::<S>::new::<K>(scales, i, r), a);
                }
            }
            block = block.next(call);
        }
        for p in 0..ROWS / S::ROWS {
            S::store(call.out.add(p * S::ROWS), sums[p]);
        }
    }
}

/// Several tokens: 32 columns of weights stay in registers while the tokens go by.
#[inline(always)]
unsafe fn many<S: Lanes, K: Quant>(call: &Call<'_>, tile: &[u32], out: *mut f32, scales: &mut Scales) {
    // With an odd number, the last token is multiplied twice, and its second result is not used.
    let last = tile.last().map_or(std::ptr::null(), |&t| call.acts.block_ptr(t as usize));
    let mut tokens = [last; TILE];
    for (p, &t) in tokens.iter_mut().zip(tile) {
        *p = call.acts.block_ptr(t as usize);
    }
    // Not in `out`, which need not be aligned: vectors across two cache lines take twice the time.
    let mut sums = Sums([0.0; TILE * ROWS]);
    // SAFETY: blocks follow one another in the group, and tokens have as many columns.
    unsafe {
        let mut block = Block::<K>::first(call);
        while block.subs > 0 {
            block.scales::<S>(call, scales);
            for i in 0..block.subs {
                let prefetch = Prefetch(call.prefetch_distance(block.quads(i, 0)));
                let offset = (block.sub + i) * size_of::<ActBlock>();
                let mut r = 0;
                while r < ROWS {
                    let w = block.weights::<S>(i, r, prefetch);
                    let rows = Rows::<S>::new::<K>(scales, i, r);
                    let mut sums = sums.0.as_mut_ptr().add(r);
                    if S::PAIRS {
                        for pair in tokens[..tile.len().next_multiple_of(2)].as_chunks::<2>().0 {
                            let a = pair.map(|token| &*token.byte_add(offset));
                            let dots = Dot::<S>::of_two::<K>(&w, a);
                            for i in 0..2 {
                                S::store(sums, scaled::<S, K>(S::floats(sums), &dots[i], &rows, a[i]));
                                sums = sums.add(ROWS);
                            }
                        }
                    } else {
                        for token in &tokens[..tile.len()] {
                            let sum = add::<S, K>(S::floats(sums), &w, &rows, &*token.byte_add(offset));
                            S::store(sums, sum);
                            sums = sums.add(ROWS);
                        }
                    }
                    r += S::ROWS;
                }
            }
            block = block.next(call);
        }
        out.copy_from_nonoverlapping(sums.0.as_ptr(), tile.len() * ROWS);
    }
}

/// Sums of a tile of tokens.
#[repr(align(64))]
struct Sums([f32; TILE * ROWS]);

/// A block of a group: `subs` sub-blocks from sub-block `sub` on, none past the last.
struct Block<K> {
    data: *const u8,
    sub: usize,
    subs: usize,
    kind: PhantomData<K>,
}

// SAFETY comments: `data` has the planes of `subs` sub-blocks; prefetching takes any address.
impl<K: Quant> Block<K> {
    #[inline(always)]
    fn first(call: &Call<'_>) -> Self {
        Self { data: call.group, sub: 0, subs: SUBS.min(call.layout.cols() / SUB), kind: PhantomData }
    }
    #[inline(always)]
    unsafe fn next(&self, call: &Call<'_>) -> Self {
        let sub = self.sub + self.subs;
        let subs = SUBS.min(call.layout.cols() / SUB - sub);
        // SAFETY: see above.
        let data = unsafe { self.data.add(K::PLANES.block_bytes(self.subs)) };
        Self { data, sub, subs, kind: PhantomData }
    }
    /// Quads of sub-block `i` from row `r` on.
    #[inline(always)]
    unsafe fn quads(&self, i: usize, r: usize) -> *const u8 {
        // SAFETY: see above.
        unsafe { self.data.add(K::PLANES.sub_at(self.subs, i) + 4 * r) }
    }
    #[inline(always)]
    unsafe fn high(&self, i: usize, r: usize) -> *const u8 {
        // SAFETY: see above.
        unsafe { self.data.add(K::PLANES.sub_at(self.subs, i) + K::PLANES.quads + 4 * r) }
    }
    /// The weights of sub-block `i` from row `r` on. The first load of each cache line prefetches.
    #[inline(always)]
    unsafe fn weights<S: Lanes>(&self, i: usize, r: usize, prefetch: Prefetch) -> [S::Bytes; 8] {
        // SAFETY: see above.
        unsafe {
            let (quads, high) = (self.quads(i, r), self.high(i, r));
            if (4 * r).is_multiple_of(64) {
                K::quads::<S>(quads, high, prefetch)
            } else {
                K::quads::<S>(quads, high, NoPrefetch)
            }
        }
    }
    /// Unpacks the block's scales, and prefetches.
    #[inline(always)]
    unsafe fn scales<S: Lanes>(&self, call: &Call<'_>, out: &mut Scales) {
        let distance = call.prefetch_distance(self.data);
        // SAFETY: see above.
        unsafe {
            for line in 0..K::PLANES.sub_at(SUBS, 0).div_ceil(64) {
                S::prefetch(self.data.wrapping_add(distance).wrapping_add(64 * line));
            }
            K::scales::<S>(self.data.add(K::PLANES.scale_at()), self.data, self.subs, out);
        }
    }
}

/// Scales and minimums of `S::ROWS` rows and one sub-block, the second of each for its second half.
struct Rows<S: Lanes> {
    scale: [S::Floats; 2],
    min: [S::Floats; 2],
}

impl<S: Lanes> Rows<S> {
    #[inline(always)]
    unsafe fn new<K: Quant>(scales: &Scales, i: usize, r: usize) -> Self {
        let (a, b) = if K::HALVES { (2 * i, 2 * i + 1) } else { (i, i) };
        // SAFETY: the tables have `ROWS` rows, and `S` is available; minimums are written where the kind has some.
        unsafe {
            let rows = |p: *const f32| S::floats(p.add(r));
            let scale = [rows(scales.scale(a)), rows(scales.scale(b))];
            let min = if K::MIN { [rows(scales.min(a)), rows(scales.min(b))] } else { [S::splat(0.0); 2] };
            Self { scale, min }
        }
    }
}

/// The integer products of one sub-block and one token: those of each half of the columns, or twice those of all.
struct Dot<S: Lanes>([S::Ints; 2]);

// SAFETY comments: `S` is available.
impl<S: Lanes> Dot<S> {
    #[inline(always)]
    unsafe fn of<K: Quant>(w: &[S::Bytes; 8], a: &ActBlock) -> Self {
        // SAFETY: see above.
        unsafe {
            if K::HALVES {
                Self(S::dot_halves(K::BITS, K::OFFSET, w, a))
            } else {
                Self([S::dot(K::BITS, K::OFFSET, w, a); 2])
            }
        }
    }
    #[inline(always)]
    unsafe fn of_two<K: Quant>(w: &[S::Bytes; 8], a: [&ActBlock; 2]) -> [Self; 2] {
        // SAFETY: see above.
        unsafe {
            if K::HALVES {
                S::dot_halves_pair(K::BITS, K::OFFSET, w, a).map(Self)
            } else {
                S::dot_pair(K::BITS, K::OFFSET, w, a).map(|dot| Self([dot; 2]))
            }
        }
    }
}

/// Adds the products of one sub-block to the sums of some rows.
#[inline(always)]
unsafe fn add<S: Lanes, K: Quant>(
    sum: S::Floats,
    w: &[S::Bytes; 8],
    rows: &Rows<S>,
    a: &ActBlock,
) -> S::Floats {
    // SAFETY: `S` is available.
    unsafe { scaled::<S, K>(sum, &Dot::of::<K>(w, a), rows, a) }
}

/// The same for given integer products: the only place that defines the order of operations.
#[inline(always)]
unsafe fn scaled<S: Lanes, K: Quant>(
    sum: S::Floats,
    dot: &Dot<S>,
    rows: &Rows<S>,
    a: &ActBlock,
) -> S::Floats {
    // SAFETY: `S` is available.
    unsafe {
        let [low, high] = dot.0;
        let low = S::mul(S::to_floats(low), rows.scale[0]);
        let dot = if K::HALVES { S::mul_add(S::to_floats(high), rows.scale[1], low) } else { low };
        let mut sum = S::mul_add(dot, S::splat(a.d), sum);
        if K::MIN && K::HALVES {
            let [low, high] = a.neg_sums.map(|n| (n / -128) as f32 * a.d);
            sum = S::mul_add(rows.min[0], S::splat(low), sum);
            sum = S::mul_add(rows.min[1], S::splat(high), sum);
        } else if K::MIN {
            sum = S::mul_add(rows.min[0], S::splat(a.d_sum), sum);
        }
        sum
    }
}
