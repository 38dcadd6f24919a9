//! Layers with a recurrent state: Gated DeltaNet, Mamba-2, short convolutions.

use std::ops::Range;

use super::{LayerStore, Reference, dot, rms_norm, sigmoid, silu, softplus};
use crate::backend::*;
use crate::batch::Batch;

fn l2_norm(x: &[f32]) -> Vec<f32> {
    let scale = 1.0 / (dot(x, x) + 1e-6).sqrt();
    x.iter().map(|x| x * scale).collect()
}

/// Calls `tokens` for the tokens of each span in order, with the convolution's inputs and the state that they advance: first for accepted
/// guesses, which come with their kept rows of `inputs`, of these `widths`; then for certain tokens; and then for guesses, on a copy.
pub(super) fn run(
    batch: &Batch,
    store: &mut LayerStore,
    inputs: [&[f32]; 3],
    widths: [usize; 3],
    mut tokens: impl FnMut(Range<usize>, Option<&[Vec<f32>; 3]>, &mut [f32], &mut [f32]),
) {
    let LayerStore::State { conv, conv_len, state, state_len, kept } = store else {
        unreachable!("the layer has a recurrent state")
    };
    for span in batch.spans() {
        conv.copy_within(span.from * *conv_len..(span.from + 1) * *conv_len, span.slot * *conv_len);
        state.copy_within(span.from * *state_len..(span.from + 1) * *state_len, span.slot * *state_len);
        kept[span.slot] = kept[span.from].clone();
        let conv = &mut conv[span.slot * *conv_len..][..*conv_len];
        let state = &mut state[span.slot * *state_len..][..*state_len];
        let kept = &mut kept[span.slot];
        tokens(span.redo.first..span.redo.first + span.redo.len, Some(kept), conv, state);
        let end = span.start + span.len;
        let certain = end - span.guesses;
        tokens(span.start..certain, None, conv, state);
        let (mut conv, mut state) = (conv.to_vec(), state.to_vec());
        tokens(certain..end, None, &mut conv, &mut state);
        if span.len > 0 {
            *kept = std::array::from_fn(|i| inputs[i][certain * widths[i]..end * widths[i]].to_vec());
        }
    }
}

/// Rows of several buffers as one.
pub(super) fn side_by_side(buffers: &[&Vec<f32>], widths: [usize; 3], n: usize) -> Vec<f32> {
    let parts = |t| buffers.iter().zip(widths).map(move |(x, w)| &x[t * w..(t + 1) * w]);
    (0..n).flat_map(parts).flatten().copied().collect()
}

/// Convolution, delta rule and gated norm of some tokens of one sequence; see [`Backend::gdn`].
pub(super) fn gdn_tokens(
    tokens: Range<usize>,
    g: &Gdn<Reference>,
    conv: &mut [f32],
    state: &mut [f32],
    [qkv, z, b, alpha]: [&[f32]; 4],
    out: &mut [f32],
) {
    let (c, taps, value_len) = (g.channels(), g.conv_kernel, g.v_heads * g.v_dim);
    for t in tokens {
        // the window of the convolution: the carried inputs, then this token's
        let mut window = conv.to_vec();
        window.extend_from_slice(&qkv[t * c..(t + 1) * c]);
        let y: Vec<f32> =
            (0..c).map(|ch| silu((0..taps).map(|j| g.conv[j * c + ch] * window[j * c + ch]).sum())).collect();
        conv.copy_from_slice(&window[c..]);
        let key_len = g.k_heads * g.k_dim;
        for h in 0..g.v_heads {
            let kh = match g.order {
                HeadOrder::Grouped => h / (g.v_heads / g.k_heads),
                HeadOrder::Tiled => h % g.k_heads,
            };
            let q = l2_norm(&y[kh * g.k_dim..][..g.k_dim]);
            let k = l2_norm(&y[key_len + kh * g.k_dim..][..g.k_dim]);
            let v = &y[2 * key_len + h * g.v_dim..][..g.v_dim];
            let beta = sigmoid(b[t * g.v_heads + h]);
            // Of each row of the state, or of all.
            let each = g.decays() / g.v_heads;
            let decay = |i: usize| {
                let at = h * each + i % each;
                (g.a[at] * softplus(alpha[t * g.decays() + at] + g.dt_bias[at])).exp()
            };
            let s = &mut state[h * g.k_dim * g.v_dim..][..g.k_dim * g.v_dim];
            let mut o = vec![0.0; g.v_dim];
            for j in 0..g.v_dim {
                let read: f32 = (0..g.k_dim).map(|i| decay(i) * s[i * g.v_dim + j] * k[i]).sum();
                let d = beta * (v[j] - read);
                for i in 0..g.k_dim {
                    s[i * g.v_dim + j] = decay(i) * s[i * g.v_dim + j] + k[i] * d;
                    o[j] += s[i * g.v_dim + j] * q[i];
                }
                o[j] *= (g.k_dim as f32).powf(-0.5);
            }
            let row = t * value_len + h * g.v_dim;
            for (j, y) in rms_norm(&o, &g.norm, g.eps).into_iter().enumerate() {
                let z = z[row + j];
                out[row + j] = y * if g.sigmoid_gate { sigmoid(z) } else { silu(z) };
            }
        }
    }
}

/// Mamba-2 for some tokens of one sequence; see [`Backend::ssm`].
pub(super) fn ssm_tokens(
    tokens: Range<usize>,
    s: &Ssm<Reference>,
    conv: &mut [f32],
    state: &mut [f32],
    [xbc, z, dt]: [&[f32]; 3],
    out: &mut [f32],
) {
    let (c, inner, per_group) = (s.channels(), s.heads * s.dim, s.heads / s.groups);
    for t in tokens {
        let mut window = conv.to_vec();
        window.extend_from_slice(&xbc[t * c..(t + 1) * c]);
        let bias = |ch: usize| s.conv_bias.as_ref().map_or(0.0, |b| b[ch]);
        let y: Vec<f32> = (0..c)
            .map(|ch| {
                silu((0..s.taps).map(|j| s.conv[j * c + ch] * window[j * c + ch]).sum::<f32>() + bias(ch))
            })
            .collect();
        conv.copy_from_slice(&window[c..]);
        let row = &mut out[t * inner..(t + 1) * inner];
        for h in 0..s.heads {
            let step = softplus(dt[t * s.heads + h] + s.dt_bias[h]);
            let decay = (s.a[h] * step).exp();
            let b = &y[inner + h / per_group * s.state..][..s.state];
            let c = &y[inner + (s.groups + h / per_group) * s.state..][..s.state];
            for i in h * s.dim..(h + 1) * s.dim {
                let state = &mut state[i * s.state..][..s.state];
                for (x, b) in state.iter_mut().zip(b) {
                    *x = decay * *x + step * y[i] * b;
                }
                row[i] = (dot(state, c) + s.d[h] * y[i]) * silu(z[t * inner + i]);
            }
        }
        if let Some(norm) = &s.norm {
            for (x, w) in row.chunks_exact_mut(norm.len).zip(norm.weight.chunks_exact(norm.len)) {
                let y = rms_norm(x, w, norm.eps);
                x.copy_from_slice(&y);
            }
        }
    }
}

/// A gated short convolution for some tokens of one sequence; see [`Backend::short_conv`].
pub(super) fn short_conv_tokens(
    tokens: Range<usize>,
    s: &ShortConv<Reference>,
    conv: &mut [f32],
    bcx: &[f32],
    out: &mut [f32],
) {
    for t in tokens {
        let [b, c, x] = [0, 1, 2].map(|i| &bcx[(3 * t + i) * s.width..][..s.width]);
        let mut window = conv.to_vec();
        window.extend(b.iter().zip(x).map(|(b, x)| b * x));
        for i in 0..s.width {
            let sum: f32 = (0..s.taps).map(|j| s.conv[j * s.width + i] * window[j * s.width + i]).sum();
            out[t * s.width + i] = c[i] * sum;
        }
        conv.copy_from_slice(&window[s.width..]);
    }
}
