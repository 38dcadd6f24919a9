//! The causal depthwise convolution of recurrent layers.

use super::math::silu;
use super::simd::Simd;
use crate::backend::MAX_CONV;

/// Some channels of the convolution over one span. Each pointer is at the item's first channel; strides are in values.
pub struct Conv {
    /// `[taps, channels]`: transposed from the file, so that channels lie side by side; the last row is the current token's.
    pub weights: *const f32,
    /// From a row of `weights` to the next.
    pub weights_stride: usize,
    /// `[tokens, channels]`
    pub input: *const f32,
    /// From a token's row of `input` to the next.
    pub input_stride: usize,
    /// `[taps - 1, channels]`, the inputs before the span, oldest first. Becomes those before the next span.
    pub state: *mut f32,
    /// From a row of `state` to the next.
    pub state_stride: usize,
    /// `[tokens, channels]`
    pub out: *mut f32,
    /// From a token's row of `out` to the next.
    pub out_stride: usize,
    /// Tokens of the span.
    pub tokens: usize,
    /// Number of guesses at the end of the tokens, which the state never includes.
    pub guesses: usize,
    /// Channels of this item.
    pub channels: usize,
    /// Taps, 1 to [`MAX_CONV`].
    pub taps: usize,
    /// `[channels]`, or null.
    pub bias: *const f32,
    /// The sum goes through SiLU.
    pub silu: bool,
}

impl Conv {
    /// Row `i` of the state followed by the input.
    ///
    /// # Safety
    /// `i < taps - 1 + tokens`, and the pointers are valid as for [`Conv`].
    #[inline(always)]
    unsafe fn row(&self, i: usize) -> *const f32 {
        let before = self.taps - 1;
        // SAFETY: the caller's.
        unsafe {
            if i < before {
                self.state.add(i * self.state_stride)
            } else {
                self.input.add((i - before) * self.input_stride)
            }
        }
    }
}

/// `out[t] = silu(bias + sum_j weights[j] * input[t - (taps - 1) + j])`, and advances the state past the span, up to its guesses.
///
/// # Safety
/// The pointers are valid for the shapes in [`Conv`]; no other thread uses these channels of `state` and `out`.
#[inline(always)]
pub(super) unsafe fn conv<S: Simd>(s: S, c: &Conv) {
    assert!((1..=MAX_CONV).contains(&c.taps) && c.guesses <= c.tokens);
    // SAFETY: the caller's.
    unsafe {
        // The usual number of taps as a constant, so that the compiler unrolls it.
        if c.taps == 4 {
            convolve(s, c, 4)
        } else {
            convolve(s, c, c.taps)
        }
        for i in 0..c.taps - 1 {
            std::ptr::copy(c.row(c.tokens - c.guesses + i), c.state.add(i * c.state_stride), c.channels);
        }
    }
}

/// # Safety
/// As for [`conv`].
#[inline(always)]
unsafe fn convolve<S: Simd>(s: S, c: &Conv, taps: usize) {
    let tail = c.channels % S::LANES;
    let whole = c.channels - tail;
    // SAFETY: rows t .. t + taps exist for each token t; channels stay below c.channels.
    unsafe {
        for t in 0..c.tokens {
            let mut rows = [std::ptr::null(); MAX_CONV];
            for (j, row) in rows[..taps].iter_mut().enumerate() {
                *row = c.row(t + j);
            }
            let out = c.out.add(t * c.out_stride);
            for i in (0..whole).step_by(S::LANES) {
                let mut sum = if c.bias.is_null() { s.splat(0.0) } else { s.load(c.bias.add(i)) };
                for (j, row) in rows[..taps].iter().enumerate() {
                    sum = s.fma(s.load(c.weights.add(j * c.weights_stride + i)), s.load(row.add(i)), sum);
                }
                s.store(out.add(i), if c.silu { silu(s, sum) } else { sum });
            }
            if tail > 0 {
                let mut sum =
                    if c.bias.is_null() { s.splat(0.0) } else { s.load_part(c.bias.add(whole), tail) };
                for (j, row) in rows[..taps].iter().enumerate() {
                    let w = s.load_part(c.weights.add(j * c.weights_stride + whole), tail);
                    sum = s.fma(w, s.load_part(row.add(whole), tail), sum);
                }
                s.store_part(out.add(whole), tail, if c.silu { silu(s, sum) } else { sum });
            }
        }
    }
}
