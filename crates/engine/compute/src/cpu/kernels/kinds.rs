//! How each integer kind is unpacked: 32 columns to eight vectors of quads, and the scales of a block to f32. The
//! inverse of `pack::rows`; used by the generic kernel in `ints`.

#![allow(clippy::needless_range_loop)] // several arrays are walked by one index

use std::mem::MaybeUninit;

use octet_weights::quant::{iq4, mxfp4};

use super::lanes::{Fetch, Lanes};
use crate::cpu::kind::{Kind, Planes, ROWS, SUBS, VECTOR};

/// A number of each row. Uninitialised at first: zeros would cost short groups a tenth of their time.
type Row = [MaybeUninit<f32>; ROWS];

/// What the scales of one block multiply: `w = scale * q + min`.
#[repr(align(64))]
pub(super) struct Scales {
    /// `[sub-block][row]`, or `[half of a sub-block][row]`.
    scale: [Row; 2 * SUBS],
    /// The same for the minimum.
    min: [Row; 2 * SUBS],
}

impl Scales {
    pub fn uninit() -> Self {
        const ROW: Row = [MaybeUninit::uninit(); ROWS];
        Self { scale: [ROW; 2 * SUBS], min: [ROW; 2 * SUBS] }
    }
    /// Where the scales of (half a) sub-block `i` start.
    #[inline(always)]
    pub fn scale(&self, i: usize) -> *const f32 {
        self.scale[i].as_ptr().cast()
    }
    /// Where its minimums start; the kind has to have some.
    #[inline(always)]
    pub fn min(&self, i: usize) -> *const f32 {
        self.min[i].as_ptr().cast()
    }
}

/// An integer kind.
pub(super) trait Quant {
    const KIND: Kind;
    /// Bits of a quant in the form that `quads` returns; 8 means signed.
    const BITS: u32;
    /// Subtracted from each (unsigned) quant.
    const OFFSET: i32 = 0;
    /// True where each 16 columns have their own scale, not each 32.
    const HALVES: bool = false;
    /// True where there is a minimum.
    const MIN: bool = false;

    /// Its planes.
    const PLANES: Planes = match Self::KIND.planes() {
        Some(p) => p,
        None => panic!("an integer kind has planes"),
    };

    /// The eight quads of one sub-block, from where the first of the wanted rows has its bytes in each part; `fetch` loads.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn quads<S: Lanes>(quads: *const u8, high: *const u8, fetch: impl Fetch) -> [S::Bytes; 8];

    /// The scales of a block of `n` sub-blocks.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn scales<S: Lanes>(scale: *const u8, head: *const u8, n: usize, out: &mut Scales);
}

/// Declares a kind: its constants, its quads and its scales.
macro_rules! kind {
    ($name:ident, $kind:ident, bits $bits:literal, $(offset $offset:literal,)? $(halves $halves:literal,)?
     $(min $min:literal,)? quads $quads:expr, scales $scales:expr) => {
        pub(super) struct $name;
        impl Quant for $name {
            const KIND: Kind = Kind::$kind;
            const BITS: u32 = $bits;
            $(const OFFSET: i32 = $offset;)?
            $(const HALVES: bool = $halves;)?
            $(const MIN: bool = $min;)?
            #[inline(always)]
            unsafe fn quads<S: Lanes>(quads: *const u8, high: *const u8, fetch: impl Fetch) -> [S::Bytes; 8] {
                let _ = high;
                // SAFETY: the caller's.
                unsafe { $quads(quads, high, fetch) }
            }
            #[inline(always)]
            unsafe fn scales<S: Lanes>(scale: *const u8, head: *const u8, n: usize, out: &mut Scales) {
                let _ = (head, n);
                // SAFETY: the caller's.
                unsafe { $scales(scale, head, n, out) }
            }
        }
    };
}

kind!(Q4_0, Q4_0, bits 4, offset 8, quads nibbles::<S, _>, scales legacy_d::<S>);
kind!(Q4_1, Q4_1, bits 4, min true, quads nibbles::<S, _>, scales legacy_d_m::<S>);
kind!(Q5_0, Q5_0, bits 5, offset 16, quads five_bits::<S, _>, scales legacy_d::<S>);
kind!(Q5_1, Q5_1, bits 5, min true, quads five_bits::<S, _>, scales legacy_d_m::<S>);
kind!(Q8_0, Q8_0, bits 8, quads bytes::<S, _>, scales legacy_d::<S>);
kind!(Q2K, Q2_K, bits 4, halves true, min true, quads two_bits::<S, _>, scales q2_k_scales::<S>);
kind!(Q3K, Q3_K, bits 4, offset 4, halves true, quads three_bits::<S, _>, scales q3_k_scales::<S>);
kind!(Q4K, Q4_K, bits 4, min true, quads nibbles::<S, _>, scales k_scales::<S>);
kind!(Q5K, Q5_K, bits 5, min true, quads five_bits::<S, _>, scales k_scales::<S>);
kind!(Q6K, Q6_K, bits 6, offset 32, halves true, quads six_bits::<S, _>, scales q6_k_scales::<S>);
kind!(Iq4Nl, IQ4_NL, bits 8, quads iq4_levels::<S, _>, scales legacy_d::<S>);
kind!(Iq4Xs, IQ4_XS, bits 8, quads iq4_levels::<S, _>, scales iq4_xs_scales::<S>);
kind!(I4Z, I4_Z, bits 4, min true, quads nibbles::<S, _>, scales zero_points::<S>);
kind!(I8Z, I8_Z, bits 8, min true, quads bytes::<S, _>, scales f32_d_m::<S>);
kind!(I8M, I8_M, bits 8, min true, quads bytes::<S, _>, scales f32_d_m::<S>);
kind!(Nvfp4, NVFP4, bits 5, offset 16, halves true, quads mxfp4_levels::<S, _>, scales nvfp4_scales::<S>);
kind!(Mxfp4, MXFP4, bits 5, offset 16, quads mxfp4_levels::<S, _>, scales mxfp4_scales::<S>);

// ---- quads. SAFETY of all: `Lanes`, and the planes of `pack`.

#[inline(always)]
unsafe fn nibbles<S: Lanes, F: Fetch>(p: *const u8, _high: *const u8, f: F) -> [S::Bytes; 8] {
    // SAFETY: see above.
    unsafe {
        let v = [
            f.load::<S>(p),
            f.load::<S>(p.add(VECTOR)),
            f.load::<S>(p.add(2 * VECTOR)),
            f.load::<S>(p.add(3 * VECTOR)),
        ];
        let mut w = [v[0]; 8];
        for j in 0..4 {
            w[j] = S::bits(v[j], 0, 0, 15);
            w[j + 4] = S::bits(v[j], 0, 4, 15);
        }
        w
    }
}

/// Adds bit `j` of the high plane to quad `j`, as bit `AT`.
#[inline(always)]
unsafe fn add_bit<S: Lanes, const AT: usize>(w: &mut [S::Bytes; 8], high: *const u8, f: impl Fetch) {
    // SAFETY: see above.
    unsafe {
        let h = f.load::<S>(high);
        for j in 0..8 {
            let bit = S::bits(h, AT.saturating_sub(j) as u32, j.saturating_sub(AT) as u32, 1 << AT);
            w[j] = S::or(w[j], bit);
        }
    }
}

#[inline(always)]
unsafe fn five_bits<S: Lanes, F: Fetch>(p: *const u8, high: *const u8, f: F) -> [S::Bytes; 8] {
    // SAFETY: see above.
    unsafe {
        let mut w = nibbles::<S, F>(p, high, f);
        add_bit::<S, 4>(&mut w, high, f);
        w
    }
}

#[inline(always)]
unsafe fn six_bits<S: Lanes, F: Fetch>(p: *const u8, high: *const u8, f: F) -> [S::Bytes; 8] {
    // SAFETY: see above.
    unsafe {
        let mut w = nibbles::<S, F>(p, high, f);
        let h = [f.load::<S>(high), f.load::<S>(high.add(VECTOR))];
        for j in 0..4 {
            // Bits 2 j.. to bits 4 and 5.
            let (left, right) = (4usize.saturating_sub(2 * j) as u32, (2 * j).saturating_sub(4) as u32);
            w[j] = S::or(w[j], S::bits(h[0], left, right, 0x30));
            w[j + 4] = S::or(w[j + 4], S::bits(h[1], left, right, 0x30));
        }
        w
    }
}

#[inline(always)]
unsafe fn two_bits<S: Lanes, F: Fetch>(p: *const u8, _high: *const u8, f: F) -> [S::Bytes; 8] {
    // SAFETY: see above.
    unsafe {
        let v = [f.load::<S>(p), f.load::<S>(p.add(VECTOR))];
        let mut w = [v[0]; 8];
        for j in 0..4 {
            w[j] = S::bits(v[0], 0, 2 * j as u32, 3);
            w[j + 4] = S::bits(v[1], 0, 2 * j as u32, 3);
        }
        w
    }
}

#[inline(always)]
unsafe fn three_bits<S: Lanes, F: Fetch>(p: *const u8, high: *const u8, f: F) -> [S::Bytes; 8] {
    // SAFETY: see above.
    unsafe {
        let mut w = two_bits::<S, F>(p, high, f);
        add_bit::<S, 2>(&mut w, high, f);
        w
    }
}

#[inline(always)]
unsafe fn bytes<S: Lanes, F: Fetch>(p: *const u8, _high: *const u8, f: F) -> [S::Bytes; 8] {
    // SAFETY: see above.
    unsafe {
        let mut w = [S::load(p); 8];
        for j in 0..8 {
            w[j] = S::signed(f.load::<S>(p.add(VECTOR * j)));
        }
        w
    }
}

/// The table with an offset: what `Lanes::signed` would make of it, or none below zero, so that looking up costs nothing more.
const fn with_offset(mut table: [i8; 16], offset: i32) -> [i8; 16] {
    let mut i = 0;
    while i < 16 {
        table[i] = table[i].wrapping_add(offset as i8);
        i += 1;
    }
    table
}

#[inline(always)]
unsafe fn through_table<S: Lanes, F: Fetch>(
    table: &[i8; 16],
    p: *const u8,
    high: *const u8,
    f: F,
) -> [S::Bytes; 8] {
    // SAFETY: see above.
    unsafe {
        let mut w = nibbles::<S, F>(p, high, f);
        for w in &mut w {
            *w = S::lookup(table, *w);
        }
        w
    }
}

#[inline(always)]
unsafe fn iq4_levels<S: Lanes, F: Fetch>(p: *const u8, high: *const u8, f: F) -> [S::Bytes; 8] {
    // SAFETY: see above.
    unsafe { through_table::<S, F>(const { &with_offset(iq4::LEVELS, S::SIGNED_OFFSET) }, p, high, f) }
}

#[inline(always)]
unsafe fn mxfp4_levels<S: Lanes, F: Fetch>(p: *const u8, high: *const u8, f: F) -> [S::Bytes; 8] {
    // SAFETY: see above.
    unsafe { through_table::<S, F>(const { &with_offset(mxfp4::LEVELS, Mxfp4::OFFSET) }, p, high, f) }
}

// ---- scales

/// The f16 of all rows to f32.
#[inline(always)]
unsafe fn f16s<S: Lanes>(p: *const u8, out: *mut f32) {
    let mut r = 0;
    while r < ROWS {
        // SAFETY: see above.
        unsafe { S::store(out.add(r), S::f16s(p.add(2 * r))) };
        r += S::ROWS;
    }
}

/// `d` of each sub-block.
#[inline(always)]
unsafe fn legacy_d<S: Lanes>(scale: *const u8, _head: *const u8, n: usize, out: &mut Scales) {
    for i in 0..n {
        // SAFETY: see above.
        unsafe { f16s::<S>(scale.add(2 * ROWS * i), out.scale[i].as_mut_ptr().cast()) };
    }
}

/// `d` and `m` of each sub-block.
#[inline(always)]
unsafe fn legacy_d_m<S: Lanes>(scale: *const u8, _head: *const u8, n: usize, out: &mut Scales) {
    for i in 0..n {
        // SAFETY: see above.
        unsafe {
            f16s::<S>(scale.add(4 * ROWS * i), out.scale[i].as_mut_ptr().cast());
            f16s::<S>(scale.add(4 * ROWS * i + 2 * ROWS), out.min[i].as_mut_ptr().cast());
        }
    }
}

/// The same in f32.
#[inline(always)]
unsafe fn f32_d_m<S: Lanes>(scale: *const u8, _head: *const u8, n: usize, out: &mut Scales) {
    for i in 0..n {
        // SAFETY: see above.
        unsafe {
            out.scale[i] = scale.add(8 * ROWS * i).cast::<Row>().read_unaligned();
            out.min[i] = scale.add(8 * ROWS * i + 4 * ROWS).cast::<Row>().read_unaligned();
        }
    }
}

#[inline(always)]
unsafe fn array<'a, const N: usize>(p: *const u8) -> &'a [u8; N] {
    // SAFETY: see above; the block outlives the call.
    unsafe { &*p.cast() }
}

/// Q4_K and Q5_K: six-bit scales and minimums.
#[inline(always)]
unsafe fn k_scales<S: Lanes>(scale: *const u8, head: *const u8, _n: usize, out: &mut Scales) {
    const HALF: usize = 4 * ROWS;
    let (mut d, mut dmin) = ([0.0; ROWS], [0.0; ROWS]);
    // SAFETY: see above.
    let (low, high) = unsafe {
        f16s::<S>(head, d.as_mut_ptr());
        f16s::<S>(head.add(2 * ROWS), dmin.as_mut_ptr());
        (array::<{ 8 * ROWS }>(scale), array::<{ 4 * ROWS }>(scale.add(8 * ROWS)))
    };
    let (mut scales, mut mins) = ([0; 8 * ROWS], [0; 8 * ROWS]);
    for k in 0..HALF {
        scales[k] = low[k] & 15 | (high[k] & 3) << 4;
        scales[k + HALF] = low[k + HALF] & 15 | high[k] & 0x30;
        mins[k] = low[k] >> 4 | (high[k] & 12) << 2;
        mins[k + HALF] = low[k + HALF] >> 4 | (high[k] & 0xc0) >> 2;
    }
    for i in 0..SUBS {
        for r in 0..ROWS {
            out.scale[i][r].write(d[r] * f32::from(scales[ROWS * i + r]));
            out.min[i][r].write(-(dmin[r] * f32::from(mins[ROWS * i + r])));
        }
    }
}

/// Signed bytes.
#[inline(always)]
unsafe fn q6_k_scales<S: Lanes>(scale: *const u8, head: *const u8, _n: usize, out: &mut Scales) {
    let mut d = [0.0; ROWS];
    // SAFETY: see above.
    let scales = unsafe {
        f16s::<S>(head, d.as_mut_ptr());
        array::<{ 2 * SUBS * ROWS }>(scale)
    };
    for i in 0..2 * SUBS {
        for r in 0..ROWS {
            out.scale[i][r].write(d[r] * f32::from(scales[ROWS * i + r] as i8));
        }
    }
}

/// A nibble of scale and one of minimum.
#[inline(always)]
unsafe fn q2_k_scales<S: Lanes>(scale: *const u8, head: *const u8, _n: usize, out: &mut Scales) {
    let (mut d, mut dmin) = ([0.0; ROWS], [0.0; ROWS]);
    // SAFETY: see above.
    let scales = unsafe {
        f16s::<S>(head, d.as_mut_ptr());
        f16s::<S>(head.add(2 * ROWS), dmin.as_mut_ptr());
        array::<{ 2 * SUBS * ROWS }>(scale)
    };
    for i in 0..2 * SUBS {
        for r in 0..ROWS {
            out.scale[i][r].write(d[r] * f32::from(scales[ROWS * i + r] & 15));
            out.min[i][r].write(-(dmin[r] * f32::from(scales[ROWS * i + r] >> 4)));
        }
    }
}

/// Six bits less 32.
#[inline(always)]
unsafe fn q3_k_scales<S: Lanes>(scale: *const u8, head: *const u8, _n: usize, out: &mut Scales) {
    let mut d = [0.0; ROWS];
    // SAFETY: see above.
    let (low, high) = unsafe {
        f16s::<S>(head, d.as_mut_ptr());
        (array::<{ 8 * ROWS }>(scale), array::<{ 4 * ROWS }>(scale.add(8 * ROWS)))
    };
    for i in 0..2 * SUBS {
        for r in 0..ROWS {
            let low = low[ROWS * (i % 8) + r] >> (4 * (i / 8)) & 15;
            let high = high[ROWS * (i % 4) + r] >> (2 * (i / 4)) & 3;
            out.scale[i][r].write(d[r] * f32::from((low | high << 4) as i8 - 32));
        }
    }
}

/// Six bits less 32.
#[inline(always)]
unsafe fn iq4_xs_scales<S: Lanes>(scale: *const u8, head: *const u8, _n: usize, out: &mut Scales) {
    let mut d = [0.0; ROWS];
    // SAFETY: see above.
    let (low, high) = unsafe {
        f16s::<S>(head, d.as_mut_ptr());
        (array::<{ 4 * ROWS }>(scale), array::<{ 2 * ROWS }>(scale.add(4 * ROWS)))
    };
    for i in 0..SUBS {
        for r in 0..ROWS {
            let low = low[ROWS * (i % 4) + r] >> (4 * (i / 4)) & 15;
            let high = high[ROWS * (i % 2) + r] >> (2 * (i / 2)) & 3;
            out.scale[i][r].write(d[r] * f32::from((low | high << 4) as i8 - 32));
        }
    }
}

/// A power of two; halved, since the levels are doubled.
#[inline(always)]
unsafe fn mxfp4_scales<S: Lanes>(scale: *const u8, _head: *const u8, n: usize, out: &mut Scales) {
    for i in 0..n {
        // SAFETY: see above.
        let exponents = unsafe { array::<ROWS>(scale.add(ROWS * i)) };
        for r in 0..ROWS {
            out.scale[i][r].write(mxfp4::half_scale(exponents[r]));
        }
    }
}

/// `d` and the zero point of each sub-block.
#[inline(always)]
unsafe fn zero_points<S: Lanes>(scale: *const u8, _head: *const u8, n: usize, out: &mut Scales) {
    for i in 0..n {
        let mut d = [0.0; ROWS];
        // SAFETY: see above.
        let zeros = unsafe {
            f16s::<S>(scale.add(3 * ROWS * i), d.as_mut_ptr());
            array::<ROWS>(scale.add(3 * ROWS * i + 2 * ROWS))
        };
        for r in 0..ROWS {
            out.scale[i][r].write(d[r]);
            out.min[i][r].write(-(d[r] * f32::from(zeros[r])));
        }
    }
}

/// E4M3 without a sign: shifted it is an F16 of a 256th; halved, since the levels are doubled.
#[inline(always)]
unsafe fn nvfp4_scales<S: Lanes>(scale: *const u8, _head: *const u8, n: usize, out: &mut Scales) {
    for i in 0..2 * n {
        let mut d = [0.0; ROWS];
        // SAFETY: see above.
        unsafe {
            let halves = array::<ROWS>(scale.add(ROWS * i)).map(|b| (u16::from(b) << 7).to_le_bytes());
            f16s::<S>(halves.as_ptr().cast(), d.as_mut_ptr());
        }
        for r in 0..ROWS {
            out.scale[i][r].write(128.0 * d[r]);
        }
    }
}
