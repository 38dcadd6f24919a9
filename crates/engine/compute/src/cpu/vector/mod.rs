//! The f32 kernels of the CPU backend: norms, rotation, attention, Gated DeltaNet, routing.
//!
//! Each kernel is written once over `simd::Simd` and compiled for every instruction set; [`VectorKernels`] picks. Kernels
//! use one thread, allocate nothing, and give each row the same bits whatever else they are called with. They take memory
//! of any alignment, and are much faster if rows start at multiples of 64 bytes.

// A kernel walks several arrays by one index, some of them by pointer.
#![allow(clippy::needless_range_loop)]

mod attention;
mod conv;
mod gdn;
mod kv_rows;
mod math;
mod rope;
mod route;
mod rows;
mod simd;
mod ssm;
#[cfg(test)]
mod tests;

pub use attention::{CHUNK, KvPages, QueryTile, attend_scratch_len, chunks as attend_chunks, partial_len};
pub use conv::Conv;
pub use gdn::{GDN_COLUMNS, GdnColumns, gdn_scratch_len};
pub use kv_rows::KvData;
pub use rope::{rope_angles, rope_angles_by_axis};
pub use ssm::SsmHead;

use super::isa::Isa;
use crate::backend::{Act, RopePairing};

/// The kernels for one instruction set, which this machine has.
#[derive(Debug, Clone, Copy)]
pub struct VectorKernels {
    isa: Isa,
}

impl VectorKernels {
    /// The kernels for `isa`, or `None` if this machine does not have it.
    pub fn for_isa(isa: Isa) -> Option<Self> {
        isa.available().then_some(Self { isa })
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

/// Compiles each kernel, a generic function over `Simd`, for every instruction set, and makes it a method.
macro_rules! kernels {
    (safe { $( $(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $path:path; )* }
     unsafe { $( $(#[$udoc:meta])* fn $uname:ident($($uarg:ident: $uty:ty),* $(,)?) = $upath:path; )* }) => {
        #[cfg(target_arch = "x86_64")]
        mod avx2 {
            use super::*;
            $(
                #[target_feature(enable = "avx2,fma,f16c")]
                pub(super) fn $name($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: this function runs on no other CPU.
                    $path(unsafe { simd::Avx2::new() }, $($arg),*)
                }
            )*
            $(
                #[target_feature(enable = "avx2,fma,f16c")]
                pub(super) unsafe fn $uname($($uarg: $uty),*) {
                    // SAFETY: this function runs on no other CPU; the rest is the caller's.
                    unsafe { $upath(simd::Avx2::new(), $($uarg),*) }
                }
            )*
        }
        #[cfg(target_arch = "x86_64")]
        mod avx512 {
            use super::*;
            $(
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                pub(super) fn $name($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: this function runs on no other CPU.
                    $path(unsafe { simd::Avx512::new() }, $($arg),*)
                }
            )*
            $(
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                pub(super) unsafe fn $uname($($uarg: $uty),*) {
                    // SAFETY: this function runs on no other CPU; the rest is the caller's.
                    unsafe { $upath(simd::Avx512::new(), $($uarg),*) }
                }
            )*
        }
        impl VectorKernels {
            $(
                $(#[$doc])*
                pub fn $name(&self, $($arg: $ty),*) $(-> $ret)? {
                    match self.isa {
                        // SAFETY: `for_isa` made sure that the CPU has it.
                        #[cfg(target_arch = "x86_64")]
                        Isa::Avx512Vnni => unsafe { avx512::$name($($arg),*) },
                        // SAFETY: likewise.
                        #[cfg(target_arch = "x86_64")]
                        Isa::Avx2 | Isa::AvxVnni => unsafe { avx2::$name($($arg),*) },
                        #[cfg(target_arch = "aarch64")]
                        Isa::Neon | Isa::NeonI8mm => $path(simd::Neon, $($arg),*),
                        _ => $path(simd::Portable, $($arg),*),
                    }
                }
            )*
            $(
                $(#[$udoc])*
                pub unsafe fn $uname(&self, $($uarg: $uty),*) {
                    // SAFETY: `for_isa` made sure that the CPU has it; the rest is the caller's.
                    unsafe {
                        match self.isa {
                            #[cfg(target_arch = "x86_64")]
                            Isa::Avx512Vnni => avx512::$uname($($uarg),*),
                            #[cfg(target_arch = "x86_64")]
                            Isa::Avx2 | Isa::AvxVnni => avx2::$uname($($uarg),*),
                            #[cfg(target_arch = "aarch64")]
                            Isa::Neon | Isa::NeonI8mm => $upath(simd::Neon, $($uarg),*),
                            _ => $upath(simd::Portable, $($uarg),*),
                        }
                    }
                }
            )*
        }
    };
}

kernels! {
    safe {
        /// `gate[i] = silu(gate[i]) * up[i]`
        fn silu_mul(gate: &mut [f32], up: &[f32]) = rows::silu_mul;
        /// `gate[i] = act(gate[i]) * up[i]`; for the clamped SwiGLU see [`Act`].
        fn act_mul(act: Act, gate: &mut [f32], up: &[f32]) = rows::act_mul;
        /// `x[i] = act(x[i])`
        fn act(act: Act, x: &mut [f32]) = rows::act;
        /// `x[i] *= sigmoid(gate[i])`
        fn sigmoid_mul(x: &mut [f32], gate: &[f32]) = rows::sigmoid_mul;
        /// `x[i] *= ln(1 + e^gate[i])`
        fn softplus_mul(x: &mut [f32], gate: &[f32]) = rows::softplus_mul;
        /// `x[i] = cap * tanh(scale * x[i] / cap)`, or without a cap `x[i] *= scale`.
        fn scale_and_cap(x: &mut [f32], scale: f32, cap: Option<f32>) = rows::scale_and_cap;
        /// `out[i] = (x[i] - mean(x)) * w[i] / sqrt(variance(x) + eps) + bias[i]`
        fn layer_norm(x: &[f32], w: &[f32], bias: Option<&[f32]>, eps: f32, out: &mut [f32]) = rows::layer_norm;
        /// One step of a Mamba-2 head; see [`SsmHead`].
        fn ssm_head(head: &SsmHead<'_>, state: &mut [f32], out: &mut [f32]) = ssm::ssm_head;
        /// `h[i] += x[i]`
        fn add(h: &mut [f32], x: &[f32]) = rows::add;
        /// `h[i] += scale * x[i]`
        fn add_scaled(h: &mut [f32], x: &[f32], scale: f32) = rows::add_scaled;
        /// `a . b`
        fn dot(a: &[f32], b: &[f32]) -> f32 = rows::dot;
        /// `sigmoid(a . b)`: the weight of the shared expert.
        fn sigmoid_dot(a: &[f32], b: &[f32]) -> f32 = rows::sigmoid_dot;
        /// `out[i] = x[i] * w[i] / sqrt(mean(x^2) + eps)`
        fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) = rows::rms_norm;
        /// `out[i] = rms_norm(x, w, eps)[i] * silu(z[i])`: one head `[v_dim]` of the output of Gated DeltaNet.
        fn gated_rms_norm(x: &[f32], w: &[f32], eps: f32, z: &[f32], out: &mut [f32]) = rows::gated_rms_norm;
        /// `out[i] = x[i]` in half precision (nearest, ties to even); too large values become the largest finite one.
        fn to_f16(x: &[f32], out: &mut [u16]) = rows::to_f16;
        /// `out` = `x`, whole blocks, as ggml's Q8_0; a scale too large for f16 becomes the largest finite one.
        fn to_q8_0(x: &[f32], out: &mut [u8]) = rows::to_q8_0;
        /// Normalises a query or key head `[head_dim]` (if there is a weight `[head_dim]`) and rotates its leading
        /// `2 * cos.len()` dimensions, in place; `cos` and `sin` come from [`rope_angles`].
        fn norm_rope(
            head: &mut [f32],
            norm: Option<&[f32]>,
            eps: f32,
            cos: &[f32],
            sin: &[f32],
            pairing: RopePairing,
        ) = rope::norm_rope;
        /// Softmax over all experts and the `chosen.len()` largest of it, the largest first, the lower index first on a tie.
        /// `weights` receives their probabilities, divided by their sum. `logits` is scratch afterwards.
        fn route(logits: &mut [f32], chosen: &mut [u32], weights: &mut [f32], norm: bool) = route::route;
        /// `beta[i] = sigmoid(b[i])`: strength of a token's update in each Gated DeltaNet head, `[v_heads]` or `[tokens, v_heads]`.
        fn gdn_beta(beta: &mut [f32], b: &[f32]) = rows::gdn_beta;
        /// `decay[i] = exp(a[i] * softplus(alpha[i] + dt_bias[i]))`: decay of the state of each Gated DeltaNet head, `[v_heads]`.
        fn gdn_decay(decay: &mut [f32], alpha: &[f32], dt_bias: &[f32], a: &[f32]) = rows::gdn_decay;
        /// Normalises the queries and keys of a Gated DeltaNet key head, `[tokens, k_dim]` each, in place, scales the queries
        /// by `k_dim^-0.5`, and writes `k . q` of each token to `kq` `[tokens]`.
        fn gdn_keys(k_dim: usize, q: &mut [f32], k: &mut [f32], kq: &mut [f32]) = gdn::gdn_keys;
        /// Partial results of a tile over chunk `chunk` (positions `chunk * CHUNK ..`), for [`VectorKernels::attend_merge`].
        /// `partials` is `[tokens, group, partial_len(head_dim)]`; rows of tokens before the chunk must not be merged.
        /// `scratch` has [`attend_scratch_len`] values.
        fn attend_chunk(
            kv: &KvPages<'_>,
            tile: &QueryTile<'_>,
            chunk: usize,
            scratch: &mut [f32],
            partials: &mut [f32],
        ) = attention::attend_chunk;
        /// Merges the partial results of one query: that of chunk `c < chunks` starts at `partials[c * chunk_stride]`,
        /// and `chunks` is [`attend_chunks`] of the query's position. `out` is `[head_dim]`, multiplied by `sigmoid(gate)` if
        /// there is one. `scratch` has [`partial_len`] values.
        fn attend_merge(
            partials: &[f32],
            chunk_stride: usize,
            chunks: usize,
            gate: Option<&[f32]>,
            sink: Option<f32>,
            scratch: &mut [f32],
            out: &mut [f32],
        ) = attention::attend_merge;
    }
    unsafe {
        /// Attention of a tile over its whole context: the same bits as `attend_chunk` and `attend_merge`. Head `h` of the
        /// tile's token `i` is written to `out + (i * heads + h) * head_dim`. `scratch` has [`attend_scratch_len`] values.
        ///
        /// # Safety
        /// The tile's heads in `out` `[tokens, heads, head_dim]` can be written, and no other thread uses them.
        fn attend_tile(kv: &KvPages<'_>, tile: &QueryTile<'_>, scratch: &mut [f32], out: *mut f32)
            = attention::attend_tile;
        /// `out[t] = silu(bias + sum_j weights[j] * input[t - (taps - 1) + j])` for some channels, and advances the state past the span.
        ///
        /// # Safety
        /// The pointers are valid for the shapes in [`Conv`]; no other thread uses these channels of `state` and
        /// `out`.
        fn conv(item: &Conv) = conv::conv;
        /// Processes all tokens of a span for some columns of a Gated DeltaNet state: replaces values by outputs.
        /// `scratch` has [`gdn_scratch_len`] values.
        ///
        /// # Safety
        /// The pointers are valid for the shapes in [`GdnColumns`]; no other thread uses these columns.
        fn gdn_columns(item: &GdnColumns, scratch: &mut [f32]) = gdn::gdn_columns;
    }
}
