//! Matrix products with packed weights: one group of rows times a list of tokens, for each kind and instruction set.
//!
//! Backends choose [`Kernels`] once and hand groups to their threads; decode is a list of one token, prefill one of
//! hundreds, an expert's share of a batch anything between. A result is the same to the bit whatever list its token is
//! in. `lanes` is what an instruction set provides, `kinds` how weights are unpacked, `ints` and `floats` the two loops.

mod call;
mod floats;
mod ints;
mod kinds;
mod lanes;
mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(test)]
mod tests;

use self::call::{Call, Kernel};
use super::activations::{ActBlock, ActView, quantise};
use super::isa::Isa;
use super::kind::{Kind, ROWS};
use super::pack::Packed;

/// The kernels of one instruction set that this machine has.
#[derive(Clone, Copy)]
pub struct Kernels {
    isa: Isa,
    kernel: fn(Kind) -> Kernel,
    quantise: unsafe fn(&[f32], &mut [ActBlock]),
    prefetch: unsafe fn(*const u8),
    prefetch_distance: usize,
}

/// The kernels of one instruction set: entry points, into which everything else is inlined. `floats V x T` is the tile
/// of the float kernels, vectors of rows by tokens: as much as the registers hold.
macro_rules! entry_points {
    ($name:ident, $lanes:ty, floats $v:literal x $t:literal $(, $feature:literal)*) => {
        mod $name {
            use octet_weights::quant::levels;

            use super::lanes::Lanes;
            use super::{ActBlock, Call, Isa, Kernel, Kernels, Kind, floats, ints, kinds};

            pub const fn kernels(isa: Isa) -> Kernels {
                Kernels { isa, prefetch_distance: <$lanes as Lanes>::PREFETCH_DISTANCE, kernel, quantise, prefetch: <$lanes as Lanes>::prefetch }
            }

            macro_rules! kernel {
                ($body:expr) => {{
                    $(#[target_feature(enable = $feature)])*
                    unsafe fn kernel(call: &Call<'_>) {
                        // SAFETY: the caller's, and the instruction set is enabled here.
                        unsafe { $body(call) }
                    }
                    kernel
                }};
            }

            $(#[target_feature(enable = $feature)])*
            unsafe fn quantise(x: &[f32], out: &mut [ActBlock]) {
                super::quantise(x, out);
            }

            fn kernel(kind: Kind) -> Kernel {
                match kind {
                    Kind::F32 => kernel!(floats::group::<$lanes, floats::F32, $v, $t>),
                    Kind::F16 => kernel!(floats::group::<$lanes, floats::F16, $v, $t>),
                    Kind::BF16 => kernel!(floats::group::<$lanes, floats::Bf16, $v, $t>),
                    Kind::F8_E4M3 => kernel!(floats::group::<$lanes, floats::E4m3, $v, $t>),
                    Kind::F8_128 => kernel!(floats::scaled::<$lanes, floats::E4m3, 128, $v, $t>),
                    Kind::F8_32 => kernel!(floats::scaled::<$lanes, floats::E4m3, 32, $v, $t>),
                    Kind::NF4 => kernel!(floats::scaled::<$lanes, floats::Nf4, { levels::LEN }, $v, $t>),
                    Kind::FP4 => kernel!(floats::scaled::<$lanes, floats::Fp4, { levels::LEN }, $v, $t>),
                    Kind::Raw => kernel!(floats::raw::<$lanes, $v, $t>),
                    Kind::Q4_0 => kernel!(ints::group::<$lanes, kinds::Q4_0>),
                    Kind::Q4_1 => kernel!(ints::group::<$lanes, kinds::Q4_1>),
                    Kind::Q5_0 => kernel!(ints::group::<$lanes, kinds::Q5_0>),
                    Kind::Q5_1 => kernel!(ints::group::<$lanes, kinds::Q5_1>),
                    Kind::Q8_0 => kernel!(ints::group::<$lanes, kinds::Q8_0>),
                    Kind::Q2_K => kernel!(ints::group::<$lanes, kinds::Q2K>),
                    Kind::Q3_K => kernel!(ints::group::<$lanes, kinds::Q3K>),
                    Kind::Q4_K => kernel!(ints::group::<$lanes, kinds::Q4K>),
                    Kind::Q5_K => kernel!(ints::group::<$lanes, kinds::Q5K>),
                    Kind::Q6_K => kernel!(ints::group::<$lanes, kinds::Q6K>),
                    Kind::IQ4_NL => kernel!(ints::group::<$lanes, kinds::Iq4Nl>),
                    Kind::IQ4_XS => kernel!(ints::group::<$lanes, kinds::Iq4Xs>),
                    Kind::NVFP4 => kernel!(ints::group::<$lanes, kinds::Nvfp4>),
                    Kind::I4_Z => kernel!(ints::group::<$lanes, kinds::I4Z>),
                    Kind::I8_Z => kernel!(ints::group::<$lanes, kinds::I8Z>),
                    Kind::I8_M => kernel!(ints::group::<$lanes, kinds::I8M>),
                    Kind::MXFP4 => kernel!(ints::group::<$lanes, kinds::Mxfp4>),
                }
            }
        }
    };
}

entry_points!(portable_entry, crate::cpu::kernels::portable::Portable, floats 8 x 2);
#[cfg(target_arch = "x86_64")]
entry_points!(avx2_entry, crate::cpu::kernels::avx2::Avx2, floats 4 x 3, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
entry_points!(avx_vnni_entry, crate::cpu::kernels::avx_vnni::AvxVnni, floats 4 x 3, "avx2,fma,f16c,avxvnni");
#[cfg(target_arch = "x86_64")]
entry_points!(
    avx512_entry,
    crate::cpu::kernels::avx512::Avx512,
    floats 1 x 8,
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
);

#[cfg(target_arch = "aarch64")]
entry_points!(neon_entry, crate::cpu::kernels::neon::Neon<false>, floats 4 x 3, "neon,dotprod");
#[cfg(target_arch = "aarch64")]
entry_points!(neon_i8mm_entry, crate::cpu::kernels::neon::Neon<true>, floats 4 x 3, "neon,dotprod,i8mm");

impl Kernels {
    /// The kernels of the widest instruction set that this machine runs.
    pub fn detect() -> Self {
        Self::for_isa(Isa::detect()).unwrap_or(Self::PORTABLE)
    }

    const PORTABLE: Self = portable_entry::kernels(Isa::Portable);

    /// The kernels of `isa`, where this machine runs it.
    pub fn for_isa(isa: Isa) -> Option<Self> {
        if !isa.available() {
            return None;
        }
        match isa {
            Isa::Portable => Some(Self::PORTABLE),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Some(avx2_entry::kernels(isa)),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Some(avx_vnni_entry::kernels(isa)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Some(avx512_entry::kernels(isa)),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Some(neon_entry::kernels(isa)),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => Some(neon_i8mm_entry::kernels(isa)),
            // Another architecture's, and so not available.
            #[allow(unreachable_patterns)]
            _ => None,
        }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Quantises a row; `out` has a block for each 32 values, the last of which may be short of some.
    pub fn quantise(&self, x: &[f32], out: &mut [ActBlock]) {
        assert_eq!(out.len(), x.len().div_ceil(32), "a block for each 32 values");
        // SAFETY: `for_isa` has checked that this machine runs the instruction set.
        unsafe { (self.quantise)(x, out) }
    }

    /// Distance of the software prefetch, in bytes.
    pub fn prefetch_distance(&self) -> usize {
        self.prefetch_distance
    }

    /// Prefetches the first bytes of a group.
    pub fn prefetch(&self, group: Option<(&Packed, usize)>) {
        let Some((w, group)) = group else { return };
        for line in w.group(group).chunks(64).take(self.prefetch_distance / 64) {
            // SAFETY: a prefetch takes any address.
            unsafe { (self.prefetch)(line.as_ptr()) };
        }
    }

    /// `out[i][r] = w[ROWS g + r] . acts[tokens[i]]` for the rows of group `group` of `w` (an index over all matrices of
    /// `w`); rows past the matrix's last are 0. Reads the form of the activations that its kind names.
    ///
    /// `next` is the group that this thread reads after this one; `None`: the one that follows in memory. It is prefetched
    /// and does not change the result.
    ///
    /// # Panics
    /// When shapes, indices or lengths do not fit each other.
    pub fn group(
        &self,
        w: &Packed,
        group: usize,
        next: Option<(&Packed, usize)>,
        acts: &ActView<'_>,
        tokens: &[u32],
        out: &mut [f32],
    ) {
        let layout = w.layout();
        assert_eq!(layout.cols(), acts.cols(), "activations as long as the weights' rows");
        assert_eq!(out.len(), tokens.len() * ROWS, "room for a group of results a token");
        assert!(tokens.iter().all(|&t| (t as usize) < acts.tokens()), "tokens of these activations");
        let scales = w.scales(group);
        let rows = ROWS.min(layout.rows() - group % layout.groups() * ROWS);
        let group = w.group(group).as_ptr_range();
        let next = next.map_or(group.end, |(w, group)| w.group(group).as_ptr());
        let jump = (next as usize).wrapping_sub(group.end as usize);
        let distance = self.prefetch_distance.min(layout.group_bytes());
        let sums = out.as_mut_ptr();
        let (group, end) = (group.start, group.end);
        let call = Call { layout, group, rows, acts: *acts, tokens, out: sums, end, jump, distance };
        // SAFETY: the call's contract was checked above, and the instruction set by `for_isa`.
        unsafe { (self.kernel)(layout.kind())(&call) }
        if let Some(scales) = scales {
            for tile in out.chunks_exact_mut(ROWS) {
                tile.iter_mut().zip(scales).for_each(|(sum, scale)| *sum *= scale);
            }
        }
    }
}
