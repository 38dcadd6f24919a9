//! Masked passes over a row of logits, in blocks that the compiler vectorises. A quarter of a million logits are read once or twice per
//! token.

use super::SamplerError;

/// Rows per block, and bits per bitset entry.
pub(super) const BLOCK: usize = 128;
const WORDS: usize = BLOCK / 32;
const LANES: usize = 16;

/// Bits of one block.
pub(super) type Bits = [u32; WORDS];

/// A bitset in blocks: bit `i` of `words` for every row `i < rows`, zeros after them. Missing words count as zero.
pub(super) fn bit_blocks(words: &[u32], rows: usize) -> Vec<Bits> {
    let mut blocks: Vec<Bits> = (0..rows.div_ceil(BLOCK)).map(|b| word_block(words, b)).collect();
    let past = rows % BLOCK;
    if past != 0
        && let Some(last) = blocks.last_mut()
    {
        for i in past..BLOCK {
            last[i / 32] &= !(1 << (i % 32));
        }
    }
    blocks
}

fn word_block(words: &[u32], block: usize) -> Bits {
    std::array::from_fn(|w| words.get(block * WORDS + w).copied().unwrap_or(0))
}

/// A row of logits with masks.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// `[vocab_rows]`.
    pub logits: &'a [f32],
    /// `[vocab_rows / BLOCK]`, rounded up.
    pub sampleable: &'a [Bits],
    /// A further mask; missing words count as zero.
    pub allowed: Option<&'a [u32]>,
}

/// `exp((logit - max) / temperature)`, or 0 if below `floor`. The largest logit has weight 1.
#[derive(Clone, Copy)]
pub(super) struct SoftmaxWeight {
    pub max: f32,
    pub temperature_inv: f32,
    pub floor: f32,
}

impl SoftmaxWeight {
    #[inline(always)]
    pub fn of(&self, logit: f32) -> f32 {
        let w = exp((logit - self.max) * self.temperature_inv);
        if w < self.floor { 0.0 } else { w }
    }
}

impl<'a> Rows<'a> {
    /// Logits of one block, -inf where masked; `None` if all are.
    #[inline(always)]
    fn block<'s>(&'s self, block: usize, scratch: &'s mut [f32; BLOCK]) -> Option<&'s [f32; BLOCK]> {
        let mut bits = self.sampleable[block];
        if let Some(words) = self.allowed {
            let allowed = word_block(words, block);
            for (b, a) in bits.iter_mut().zip(allowed) {
                *b &= a;
            }
        }
        let start = block * BLOCK;
        if bits == [u32::MAX; WORDS] {
            return self.logits[start..].first_chunk();
        }
        if bits == [0; WORDS] {
            return None;
        }
        if let Some(logits) = self.logits[start..].first_chunk() {
            mask(logits, bits, scratch);
        } else {
            // The last block is shorter.
            let mut padded = [f32::NEG_INFINITY; BLOCK];
            padded[..self.logits.len() - start].copy_from_slice(&self.logits[start..]);
            mask(&padded, bits, scratch);
        }
        Some(scratch)
    }

    /// The largest logit and its id, the lowest among equals. Fails for NaN, +inf, and if all are masked.
    pub fn best(&self) -> Result<(u32, f32), SamplerError> {
        let mut scratch = [0.0; BLOCK];
        let (mut best, mut at) = (f32::NEG_INFINITY, 0);
        for b in 0..self.sampleable.len() {
            let Some(logits) = self.block(b, &mut scratch) else { continue };
            let max = block_max(logits);
            if max.is_nan() || max == f32::INFINITY {
                let i = logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY).unwrap_or(0);
                return Err(SamplerError::NotFinite { id: (b * BLOCK + i) as u32, value: logits[i] });
            }
            if max > best {
                (best, at) = (max, b);
            }
        }
        if best == f32::NEG_INFINITY {
            return Err(SamplerError::NothingAllowed);
        }
        let i = self.block(at, &mut scratch).and_then(|l| l.iter().position(|x| *x == best)).unwrap_or(0);
        Ok(((at * BLOCK + i) as u32, best))
    }

    /// Sum of all weights; the sum of each block is stored in `sums`, which must be as long as `sampleable`.
    pub fn sum(&self, weigh: SoftmaxWeight, sums: &mut [f64]) -> f64 {
        let mut scratch = [0.0; BLOCK];
        let mut total = 0.0;
        for (b, sum) in sums.iter_mut().enumerate() {
            *sum = self.block(b, &mut scratch).map_or(0.0, |logits| block_sum(logits, weigh));
            total += *sum;
        }
        total
    }

    /// The row at which the cumulative weight exceeds `target`, given the `sums` of [`Rows::sum`].
    pub fn at_sum(&self, weigh: SoftmaxWeight, sums: &[f64], mut target: f64) -> Option<u32> {
        // The last block absorbs rounding errors.
        let last = sums.iter().rposition(|s| *s > 0.0)?;
        let mut b = 0;
        while b < last && target >= sums[b] {
            target -= sums[b];
            b += 1;
        }
        let mut scratch = [0.0; BLOCK];
        let weights = self.block(b, &mut scratch)?.map(|x| weigh.of(x));
        let i = pass(weights.into_iter(), target)?;
        Some((b * BLOCK + i) as u32)
    }

    /// Calls `with` for every logit that is not -inf, in order of ids.
    pub fn each(&self, mut with: impl FnMut(u32, f32)) {
        let mut scratch = [0.0; BLOCK];
        for b in 0..self.sampleable.len() {
            let Some(logits) = self.block(b, &mut scratch) else { continue };
            let ids = (b * BLOCK) as u32..;
            let possible = ids.zip(logits).filter(|(_, x)| **x > f32::NEG_INFINITY);
            possible.for_each(|(id, x)| with(id, *x));
        }
    }

    /// Fills `all` with all logits that are not -inf.
    pub fn all(&self, all: &mut Vec<Candidate>) {
        all.clear();
        self.each(|id, x| all.push(Candidate::new(id, x)));
    }

    /// Fills `top` with the `k` largest logits that are not -inf, best first. Allocates nothing if `top` has [`top_capacity`].
    pub fn top(&self, k: usize, top: &mut Vec<Candidate>) {
        top.clear();
        if k == 0 {
            return;
        }
        let full = top_capacity(k, self.logits.len());
        let mut scratch = [0.0; BLOCK];
        // With k candidates, a logit not above the least is none: among equals the lower id wins.
        let mut least = f32::NEG_INFINITY;
        for b in 0..self.sampleable.len() {
            let Some(logits) = self.block(b, &mut scratch) else { continue };
            if block_max(logits) <= least {
                continue;
            }
            for (i, &x) in logits.iter().enumerate() {
                if x > least {
                    if top.len() == full {
                        top.select_nth_unstable(k - 1);
                        top.truncate(k);
                        least = top[k - 1].logit();
                        if x <= least {
                            continue;
                        }
                    }
                    top.push(Candidate::new((b * BLOCK + i) as u32, x));
                }
            }
        }
        if top.len() > k {
            top.select_nth_unstable(k - 1);
            top.truncate(k);
        }
        top.sort_unstable();
    }
}

/// Capacity, in candidates, needed to find the best `k` of `rows`.
pub(super) fn top_capacity(k: usize, rows: usize) -> usize {
    // Twice k, so that thinning out, which takes linear time, is rare; and never as small as k.
    k.saturating_mul(2).max(BLOCK).min(rows)
}

/// Index at which the cumulative weight exceeds `target`, or else of the last nonzero weight.
pub(super) fn pass(weights: impl Iterator<Item = f32>, mut target: f64) -> Option<usize> {
    let mut last = None;
    for (i, w) in weights.enumerate() {
        if w > 0.0 {
            last = Some(i);
            target -= f64::from(w);
            if target < 0.0 {
                break;
            }
        }
    }
    last
}

/// A token and its logit as one integer; smaller is better: larger logits first, then lower ids. Sorting integers is several times
/// faster than comparing floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate(u64);

const SIGN: u32 = 1 << 31;

impl Candidate {
    #[inline]
    pub fn new(id: u32, logit: f32) -> Self {
        // Adding 0 turns -0 into 0, so that both are equal.
        let bits = (logit + 0.0).to_bits();
        let ascending = if bits & SIGN == 0 { bits | SIGN } else { !bits };
        Self((u64::from(!ascending) << 32) | u64::from(id))
    }
    #[inline]
    pub fn id(self) -> u32 {
        self.0 as u32
    }
    #[inline]
    pub fn logit(self) -> f32 {
        let ascending = !((self.0 >> 32) as u32);
        f32::from_bits(if ascending & SIGN != 0 { ascending & !SIGN } else { !ascending })
    }
}

/// For each 4-bit mask, all ones in the lanes whose bit is set.
const KEEP: [[u32; 4]; 16] = {
    let mut keep = [[0; 4]; 16];
    let mut i = 0;
    while i < 16 * 4 {
        keep[i / 4][i % 4] = if (i / 4) >> (i % 4) & 1 == 1 { u32::MAX } else { 0 };
        i += 1;
    }
    keep
};

/// Copies logits whose bit is set, and -inf for the others. By table: the compiler would make a branch per bit, and a grammar's bits
/// are unpredictable.
#[inline(always)]
fn mask(logits: &[f32; BLOCK], bits: Bits, masked: &mut [f32; BLOCK]) {
    let never = f32::NEG_INFINITY.to_bits();
    for (i, (out, x)) in masked.as_chunks_mut::<4>().0.iter_mut().zip(logits.as_chunks::<4>().0).enumerate() {
        let keep = &KEEP[(bits[i / 8] >> (i % 8 * 4) & 15) as usize];
        for lane in 0..4 {
            out[lane] = f32::from_bits((x[lane].to_bits() & keep[lane]) | (never & !keep[lane]));
        }
    }
}

/// Reduces all lanes by halves: a sequential reduction would take longer than the block itself.
#[inline(always)]
fn reduce<T: Copy>(mut lanes: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The maximum of a block; NaN if any is NaN.
#[inline(always)]
fn block_max(logits: &[f32; BLOCK]) -> f32 {
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut nan = [0u32; LANES];
    for chunk in logits.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            max[i] = if chunk[i] > max[i] { chunk[i] } else { max[i] };
            nan[i] |= if chunk[i].is_nan() { u32::MAX } else { 0 };
        }
    }
    if reduce(nan, |a, b| a | b) != 0 {
        return f32::NAN;
    }
    reduce(max, |a, b| if a > b { a } else { b })
}

#[inline(always)]
fn block_sum(logits: &[f32; BLOCK], weigh: SoftmaxWeight) -> f64 {
    let mut sums = [0f32; LANES];
    for chunk in logits.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            sums[i] += weigh.of(chunk[i]);
        }
    }
    f64::from(reduce(sums, |a, b| a + b))
}

/// `e^x` for `x <= 0`, with a relative error of 3e-7; 0 below -87. Vectorisable and the same bits on every machine, unlike the
/// system's function.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    /// Adding and subtracting it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first short enough for exact products.
    const LN_2_HI: f32 = 355.0 / 512.0;
    const LN_2_LO: f32 = -2.121_944_4e-4;
    let inside = if x < -87.0 { -87.0 } else { x };
    let rounded = inside * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    // |r| <= ln(2) / 2: six terms of the series leave 1.2e-7
    let r = inside - n * LN_2_HI - n * LN_2_LO;
    let p = 1.0 / 120.0 + r * (1.0 / 720.0);
    let p = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * p))));
    let power = f32::from_bits(rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { p * power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn exp_is_close_to_the_systems() {
        for i in 0..=870_000 {
            let x = -i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) / exact - 1.0).abs();
            assert!(error < 3e-7, "exp({x}): {error:e}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(-87.1), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }

    /// Logits with many ties, -inf and both zeros, and two masks.
    fn masked_rows() -> impl Strategy<Value = (Vec<f32>, Vec<u32>, Option<Vec<u32>>)> {
        let logit = prop_oneof![
            8 => (-20i8..20).prop_map(|x| f32::from(x) / 4.0),
            4 => -30f32..30.0,
            1 => Just(f32::NEG_INFINITY),
            1 => Just(-0.0f32),
        ];
        let bits = || prop::collection::vec(prop_oneof![Just(u32::MAX), Just(0), any::<u32>()], 0..40);
        (prop::collection::vec(logit, 1..900), bits(), prop::option::of(bits()))
    }

    proptest! {
        #[test]
        fn passes_agree_with_plain_loops((logits, sampleable, allowed) in masked_rows(), k in 0usize..950, t in 0.1f32..3.0) {
            let bit = |words: &[u32], i: usize| words.get(i / 32).is_some_and(|w| w >> (i % 32) & 1 == 1);
            let mut left: Vec<(u32, f32)> = logits.iter().enumerate()
                .filter(|(i, x)| bit(&sampleable, *i) && allowed.as_ref().is_none_or(|a| bit(a, *i)) && x.is_finite())
                .map(|(i, x)| (i as u32, *x)).collect();
            let blocks = bit_blocks(&sampleable, logits.len());
            let rows = Rows { logits: &logits, sampleable: &blocks, allowed: allowed.as_deref() };
            let mut sums = vec![0.0; blocks.len()];
            left.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
            let mut top = Vec::with_capacity(top_capacity(k, logits.len()));
            let memory = top.capacity();
            rows.top(k, &mut top);
            prop_assert_eq!(top.capacity(), memory);
            let top: Vec<(u32, f32)> = top.iter().map(|c| (c.id(), c.logit())).collect();
            prop_assert_eq!(&top[..], &left[..k.min(left.len())]);
            let mut all = Vec::new();
            rows.all(&mut all);
            all.sort_unstable();
            prop_assert!(all.iter().map(|c| (c.id(), c.logit())).eq(left.iter().copied()));
            let Some(&(id, max)) = left.first() else {
                prop_assert_eq!(rows.best(), Err(SamplerError::NothingAllowed));
                return Ok(());
            };
            prop_assert_eq!(rows.best(), Ok((id, max)));
            let weigh = SoftmaxWeight { max, temperature_inv: 1.0 / t, floor: 0.0 };
            let total = rows.sum(weigh, &mut sums);
            let exact: f64 = left.iter().map(|(_, x)| (f64::from(x - max) / f64::from(t)).exp()).sum();
            prop_assert!((total / exact - 1.0).abs() < 1e-5, "{total} {exact}");
            for target in [0.0, total * 0.3, total * 0.999, total, total * 1.1] {
                let id = rows.at_sum(weigh, &sums, target).unwrap();
                prop_assert!(left.iter().any(|l| l.0 == id), "{id} is masked");
            }
        }
    }
}
