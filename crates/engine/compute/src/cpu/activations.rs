//! Activations in the forms that the matrix kernels read: 8-bit quants for integer kinds, f32 for float kinds. Written by the backend
//! once after each norm, read by every projection that follows.
//!
//! Each 32 values share one scale `d = max|x| / 127` (symmetric, rounded to nearest, ties to even). A NaN or an infinity
//! makes `d`, and so every result, NaN or infinite: nothing is hidden.

#![allow(clippy::needless_range_loop)] // several arrays are walked by one index

use std::marker::PhantomData;

use super::huge::HugeVec;
use super::kind::{FLOAT_STEP, Form, SUB};
use crate::Error;

/// 32 quantised values of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct ActBlock {
    /// The quants, -127..=127.
    pub q: [i8; SUB],
    /// The scale: the value of one quant.
    pub d: f32,
    /// `d * sum(q)`, for types with a minimum.
    pub d_sum: f32,
    /// Sums of the two halves of `q`, times -128: a kernel whose quants are `o` too large (a power of two up to 128)
    /// starts its integer sum with `o / 128` of them.
    pub neg_sums: [i32; 2],
}

/// Memory for the activations of up to `tokens` tokens of up to `cols` values, allocated once.
pub struct Activations {
    blocks: HugeVec,
    floats: HugeVec,
    max_tokens: usize,
    max_cols: usize,
}

/// Distance of two tokens' blocks: an odd number of cache lines, so that tokens do not compete for the same cache sets.
fn block_stride(cols: usize) -> usize {
    let lines = (cols.div_ceil(SUB) * size_of::<ActBlock>()).div_ceil(64);
    64 * (lines | 1)
}

/// Distance of two tokens' f32 rows in values; the same reason, and room for the padded columns.
fn float_stride(cols: usize) -> usize {
    16 * (cols.next_multiple_of(FLOAT_STEP).div_ceil(16) | 1)
}

impl Activations {
    /// Room for `max_tokens` rows of `max_cols` values.
    pub fn new(max_tokens: usize, max_cols: usize) -> Result<Self, Error> {
        let too_large =
            |e| Error(format!("no memory for activations of {max_tokens} x {max_cols} values: {e}"));
        let zeroed = |stride: usize| {
            let bytes = stride.checked_mul(max_tokens).ok_or(std::io::ErrorKind::OutOfMemory.into());
            bytes.and_then(HugeVec::zeroed).map_err(too_large)
        };
        let (blocks, floats) = (zeroed(block_stride(max_cols))?, zeroed(4 * float_stride(max_cols))?);
        Ok(Self { blocks, floats, max_tokens, max_cols })
    }

    /// Starts a new set of `tokens` rows of `cols` values.
    ///
    /// # Panics
    /// If there is not enough room.
    pub fn rows(&mut self, tokens: usize, cols: usize) -> ActRows<'_> {
        assert!(
            tokens <= self.max_tokens && cols <= self.max_cols,
            "activations larger than what was allocated"
        );
        ActRows {
            blocks: self.blocks.as_mut_ptr(),
            block_stride: block_stride(cols),
            floats: self.floats.as_mut_ptr().cast(),
            float_stride: float_stride(cols),
            tokens,
            cols,
            life: PhantomData,
        }
    }
}

/// One set of rows, shared by the threads that write and then read them.
#[derive(Clone, Copy)]
pub struct ActRows<'a> {
    blocks: *mut u8,
    block_stride: usize,
    floats: *mut f32,
    float_stride: usize,
    tokens: usize,
    cols: usize,
    life: PhantomData<&'a mut Activations>,
}

// SAFETY: plain memory; every access through it is unsafe and asks for what threads must not do at the same time.
unsafe impl Send for ActRows<'_> {}
// SAFETY: as above.
unsafe impl Sync for ActRows<'_> {}

impl<'a> ActRows<'a> {
    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
    /// Values of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Only the rows `from..from + tokens`.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn part(&self, from: usize, tokens: usize) -> Self {
        assert!(from <= self.tokens && tokens <= self.tokens - from, "rows of these activations");
        let blocks = self.blocks.wrapping_add(from * self.block_stride);
        Self { blocks, floats: self.floats.wrapping_add(from * self.float_stride), tokens, ..*self }
    }

    /// Writes row `token` in the forms of `form`, with the `quantise` of some kernels.
    ///
    /// # Safety
    /// No other thread reads or writes this row at the same time.
    ///
    /// # Panics
    /// If there is no such row, or `x` has another length.
    pub unsafe fn write(
        &self,
        quantise: impl FnOnce(&[f32], &mut [ActBlock]),
        token: usize,
        x: &[f32],
        form: Form,
    ) {
        assert!(token < self.tokens && x.len() == self.cols, "a row of these activations");
        // SAFETY: the row lies in the allocation (checked above and in `Activations::rows`) and is ours alone.
        unsafe {
            if form.ints {
                let blocks = self.blocks.add(token * self.block_stride).cast::<ActBlock>();
                quantise(x, std::slice::from_raw_parts_mut(blocks, self.cols.div_ceil(SUB)));
            }
            if form.floats {
                let padded = self.cols.next_multiple_of(FLOAT_STEP);
                let row = std::slice::from_raw_parts_mut(self.floats.add(token * self.float_stride), padded);
                row[..x.len()].copy_from_slice(x);
                row[x.len()..].fill(0.0);
            }
        }
    }

    /// The rows for reading.
    ///
    /// # Safety
    /// While the view is used, no thread writes a row that is read through it. Rows that were not written in the form that
    /// is read hold older values.
    pub unsafe fn view(&self) -> ActView<'a> {
        ActView(*self)
    }
}

/// Activations for the kernels.
#[derive(Clone, Copy)]
pub struct ActView<'a>(ActRows<'a>);

impl<'a> ActView<'a> {
    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.0.tokens
    }
    /// Values of a row.
    pub fn cols(&self) -> usize {
        self.0.cols
    }
    /// The quants of one token.
    pub fn blocks(&self, token: usize) -> &'a [ActBlock] {
        assert!(token < self.0.tokens);
        // SAFETY: in the allocation, and not written while the view is used. Every bit pattern is a valid block.
        unsafe { std::slice::from_raw_parts(self.block_ptr(token), self.0.cols.div_ceil(SUB)) }
    }
    /// The f32 values of one token, padded with zeros to a multiple of eight.
    pub fn floats(&self, token: usize) -> &'a [f32] {
        assert!(token < self.0.tokens);
        let padded = self.0.cols.next_multiple_of(FLOAT_STEP);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.float_ptr(token), padded) }
    }
    /// The first block of a token that has been checked.
    #[inline(always)]
    pub(super) fn block_ptr(&self, token: usize) -> *const ActBlock {
        self.0.blocks.wrapping_add(token * self.0.block_stride).cast()
    }
    /// The first value of a token that has been checked.
    #[inline(always)]
    pub(super) fn float_ptr(&self, token: usize) -> *const f32 {
        self.0.floats.wrapping_add(token * self.0.float_stride)
    }
}

/// The quantiser, compiled for each instruction set by `kernels`.
#[inline(always)]
pub(super) fn quantise(x: &[f32], out: &mut [ActBlock]) {
    let (whole, rest) = x.as_chunks::<SUB>();
    for (x, b) in whole.iter().zip(&mut *out) {
        quantise_block(x, b);
    }
    if let (false, Some(last)) = (rest.is_empty(), out.last_mut()) {
        let mut x = [0.0; SUB];
        x[..rest.len()].copy_from_slice(rest);
        quantise_block(&x, last);
    }
}

#[inline(always)]
fn quantise_block(x: &[f32; SUB], b: &mut ActBlock) {
    // As integers the magnitudes have the same order, NaN comes out largest, and the maximum vectorises.
    let mut max = 0;
    for v in x {
        max = max.max(v.to_bits() & 0x7fff_ffff);
    }
    let max = f32::from_bits(max);
    let d = max / 127.0;
    // A denormal maximum would make the inverse infinite: such values are zero.
    let inverse = if d >= f32::MIN_POSITIVE { 1.0 / d } else { 0.0 };
    // Adding 1.5 * 2^23 leaves the integer nearest to a small number in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let mut sums = [0i32; 2];
    for h in 0..2 {
        for k in 16 * h..16 * h + 16 {
            let q = (x[k] * inverse + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
            let q = q as i8;
            b.q[k] = q;
            sums[h] += i32::from(q);
        }
    }
    let d = if d >= f32::MIN_POSITIVE || d.is_nan() { d } else { 0.0 };
    b.d = d;
    b.d_sum = d * (sums[0] + sums[1]) as f32;
    b.neg_sums = [-128 * sums[0], -128 * sums[1]];
}
