//! The scalar oracle: every verb as plain loops that read like the formulas. Slow on purpose; tests compare with it.

use octet_weights::{Matrix, quant};

use crate::ExpertCounts;
use crate::backend::*;
use crate::batch::{Batch, PAGE_TOKENS};

/// Runs every verb on one thread in f32, with weights dequantised at load.
#[derive(Debug, Default)]
pub struct Reference;

/// A dense matrix `[rows, cols]` in f32, with an optional bias.
pub struct Dense {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Dense {
    fn new(m: &Matrix, bias: Option<&[f32]>) -> Self {
        let mut values = vec![0.0; m.rows * m.cols];
        m.ty.dequantize(&m.data, &mut values);
        Self { rows: m.rows, cols: m.cols, values, bias: bias.map(<[f32]>::to_vec) }
    }

    /// `W x + bias`
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let rows = self.values.chunks_exact(self.cols).map(|row| dot(row, &x[..self.cols]));
        match &self.bias {
            None => rows.collect(),
            Some(b) => rows.zip(b).map(|(y, b)| y + b).collect(),
        }
    }
}

/// The cache of one layer.
enum LayerStore {
    /// Keys and values `[pages, kv_heads, PAGE_TOKENS, head_dim]`, as read back from their types.
    Kv { kv_heads: usize, head_dim: usize, keys: Vec<f32>, values: Vec<f32>, ty: KvTypes },
    /// Convolution inputs `[slots, conv_rows * channels]` and states `[slots, v_heads * k_dim * v_dim]`, and of each slot its guesses'
    /// rows of `qkv`, `b` and `alpha`.
    Gdn { conv: Vec<f32>, conv_len: usize, state: Vec<f32>, state_len: usize, kept: Vec<[Vec<f32>; 3]> },
}

/// All layers' caches.
pub struct Cache {
    layers: Vec<LayerStore>,
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

fn rms_norm(x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    x.iter().zip(w).map(|(x, w)| x * scale * w).collect()
}

fn l2_norm(x: &[f32]) -> Vec<f32> {
    let scale = 1.0 / (dot(x, x) + 1e-6).sqrt();
    x.iter().map(|x| x * scale).collect()
}

fn swiglu(gate: &Dense, up: &Dense, down: &Dense, x: &[f32]) -> Vec<f32> {
    let hidden: Vec<f32> = gate.apply(x).iter().zip(up.apply(x)).map(|(&g, u)| silu(g) * u).collect();
    down.apply(&hidden)
}

fn add(h: &mut [f32], y: &[f32], scale: f32) {
    for (h, y) in h.iter_mut().zip(y) {
        *h += scale * y;
    }
}

/// Normalises one head in place (if there is a norm) and rotates its first `rope_dims` dimensions.
fn norm_and_rotate(x: &mut [f32], norm: Option<&Vec<f32>>, a: &Attention<Reference>, position: u32) {
    if let Some(w) = norm {
        let y = rms_norm(x, w, a.eps);
        x.copy_from_slice(&y);
    }
    let half = a.rope_dims / 2;
    for j in 0..half {
        let (lo, hi) = match a.rope_pairing {
            RopePairing::Half => (j, j + half),
            RopePairing::Adjacent => (2 * j, 2 * j + 1),
        };
        let (sin, cos) = (position as f32 * a.inv_freq[j]).sin_cos();
        let (sin, cos) = (sin * a.rope_scale, cos * a.rope_scale);
        (x[lo], x[hi]) = (x[lo] * cos - x[hi] * sin, x[hi] * cos + x[lo] * sin);
    }
}

/// A head's row as the cache keeps it, byte by byte.
fn encode(ty: KvType, x: &[f32]) -> Vec<u8> {
    let mut out = vec![0; ty.row_bytes(x.len())];
    quant::quantize(ty.tensor_type(), x, &mut out).expect("types of keys and values have a quantiser");
    out
}

/// The values of such a row.
fn decode(ty: KvType, row: &[u8], out: &mut [f32]) {
    ty.tensor_type().dequantize(row, out);
}

impl Reference {
    /// Convolution, delta rule and gated norm of some tokens of one sequence; see [`Backend::gdn`].
    fn gdn_tokens(
        tokens: std::ops::Range<usize>,
        g: &Gdn<Self>,
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
            let y: Vec<f32> = (0..c)
                .map(|ch| silu((0..taps).map(|j| g.conv[j * c + ch] * window[j * c + ch]).sum()))
                .collect();
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
                let decay = (g.a[h] * softplus(alpha[t * g.v_heads + h] + g.dt_bias[h])).exp();
                let s = &mut state[h * g.k_dim * g.v_dim..][..g.k_dim * g.v_dim];
                let mut o = vec![0.0; g.v_dim];
                for j in 0..g.v_dim {
                    let read: f32 = (0..g.k_dim).map(|i| decay * s[i * g.v_dim + j] * k[i]).sum();
                    let d = beta * (v[j] - read);
                    for i in 0..g.k_dim {
                        s[i * g.v_dim + j] = decay * s[i * g.v_dim + j] + k[i] * d;
                        o[j] += s[i * g.v_dim + j] * q[i];
                    }
                    o[j] *= (g.k_dim as f32).powf(-0.5);
                }
                let row = t * value_len + h * g.v_dim;
                for (j, y) in rms_norm(&o, &g.norm, g.eps).into_iter().enumerate() {
                    out[row + j] = y * silu(z[row + j]);
                }
            }
        }
    }
}

impl Backend for Reference {
    type Buf = Vec<f32>;
    type Weight = Dense;
    type Experts = Vec<Dense>;
    type Embedding = Matrix;
    type Cache = Cache;

    fn buf(&mut self, len: usize) -> Result<Vec<f32>, Error> {
        Ok(vec![0.0; len])
    }
    fn vector(&mut self, values: &[f32]) -> Result<Vec<f32>, Error> {
        Ok(values.to_vec())
    }
    fn weight(&mut self, m: &Matrix, bias: Option<&[f32]>) -> Result<Dense, Error> {
        Ok(Dense::new(m, bias))
    }
    fn experts(&mut self, m: &[Matrix]) -> Result<Vec<Dense>, Error> {
        Ok(m.iter().map(|m| Dense::new(m, None)).collect())
    }
    fn embedding(&mut self, m: &Matrix) -> Result<Matrix, Error> {
        Ok(m.clone())
    }
    fn cache(&mut self, shape: &CacheShape, _: StepShape) -> Result<Cache, Error> {
        shape.check()?;
        let layer = |l: &LayerCache| match *l {
            LayerCache::Kv { kv_heads, head_dim } => {
                let len = shape.pages * kv_heads * PAGE_TOKENS * head_dim;
                LayerStore::Kv {
                    kv_heads,
                    head_dim,
                    keys: vec![0.0; len],
                    values: vec![0.0; len],
                    ty: shape.kv,
                }
            }
            LayerCache::Gdn { conv_rows, channels, v_heads, k_dim, v_dim } => {
                let (conv_len, state_len) = (conv_rows * channels, v_heads * k_dim * v_dim);
                LayerStore::Gdn {
                    conv: vec![0.0; shape.slots * conv_len],
                    conv_len,
                    state: vec![0.0; shape.slots * state_len],
                    state_len,
                    kept: vec![Default::default(); shape.slots],
                }
            }
        };
        Ok(Cache { layers: shape.layers.iter().map(layer).collect() })
    }

    fn read(&mut self, src: &Vec<f32>, out: &mut [f32]) {
        out.copy_from_slice(&src[..out.len()]);
    }
    fn borrow<'a>(&'a self, buf: &'a Vec<f32>) -> Option<&'a [f32]> {
        Some(buf)
    }
    fn reset_slot(&mut self, cache: &mut Cache, slot: usize) {
        for l in &mut cache.layers {
            if let LayerStore::Gdn { conv, conv_len, state, state_len, .. } = l {
                conv[slot * *conv_len..][..*conv_len].fill(0.0);
                state[slot * *state_len..][..*state_len].fill(0.0);
            }
        }
    }
    fn copy_slot(&mut self, cache: &mut Cache, from: usize, to: usize) {
        for l in &mut cache.layers {
            if let LayerStore::Gdn { conv, conv_len, state, state_len, .. } = l {
                conv.copy_within(from * *conv_len..(from + 1) * *conv_len, to * *conv_len);
                state.copy_within(from * *state_len..(from + 1) * *state_len, to * *state_len);
            }
        }
    }
    fn copy_page(&mut self, cache: &mut Cache, from: usize, to: usize) {
        for l in &mut cache.layers {
            if let LayerStore::Kv { kv_heads, head_dim, keys, values, .. } = l {
                let n = *kv_heads * PAGE_TOKENS * *head_dim;
                keys.copy_within(from * n..(from + 1) * n, to * n);
                values.copy_within(from * n..(from + 1) * n, to * n);
            }
        }
    }
    fn copy_rows(&mut self, from: &Dense, to: &mut Dense, rows: &[(u32, u32)]) {
        for &(a, b) in rows {
            let row = &from.values[a as usize * from.cols..][..from.cols];
            to.values[b as usize * to.cols..][..to.cols].copy_from_slice(row);
        }
    }
    fn save_slot(&mut self, cache: &Cache, slot: usize, out: &mut [u8]) {
        let mut out = out.chunks_exact_mut(4);
        for l in &cache.layers {
            if let LayerStore::Gdn { conv, conv_len, state, state_len, .. } = l {
                let conv = &conv[slot * conv_len..][..*conv_len];
                for (x, o) in conv.iter().chain(&state[slot * state_len..][..*state_len]).zip(&mut out) {
                    o.copy_from_slice(&x.to_le_bytes());
                }
            }
        }
    }
    fn load_slot(&mut self, cache: &mut Cache, slot: usize, data: &[u8]) {
        let mut data = data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        for l in &mut cache.layers {
            if let LayerStore::Gdn { conv, conv_len, state, state_len, .. } = l {
                let conv = &mut conv[slot * *conv_len..][..*conv_len];
                for (x, d) in
                    conv.iter_mut().chain(&mut state[slot * *state_len..][..*state_len]).zip(&mut data)
                {
                    *x = d;
                }
            }
        }
    }
    fn save_page(&mut self, cache: &Cache, page: usize, out: &mut [u8]) {
        let mut rest = out;
        for l in &cache.layers {
            let LayerStore::Kv { kv_heads, head_dim, keys, values, ty } = l else { continue };
            let n = kv_heads * PAGE_TOKENS * head_dim;
            for (all, ty) in [(keys, ty.keys), (values, ty.values)] {
                for row in all[page * n..][..n].chunks_exact(*head_dim) {
                    // what was read from the type is written to it without a loss
                    let row = encode(ty, row);
                    rest[..row.len()].copy_from_slice(&row);
                    rest = &mut rest[row.len()..];
                }
            }
        }
    }
    fn load_page(&mut self, cache: &mut Cache, page: usize, data: &[u8]) {
        let mut rest = data;
        for l in &mut cache.layers {
            let LayerStore::Kv { kv_heads, head_dim, keys, values, ty } = l else { continue };
            let n = *kv_heads * PAGE_TOKENS * *head_dim;
            for (all, ty) in [(keys, ty.keys), (values, ty.values)] {
                for row in all[page * n..][..n].chunks_exact_mut(*head_dim) {
                    let (now, later) = rest.split_at(ty.row_bytes(row.len()));
                    decode(ty, now, row);
                    rest = later;
                }
            }
        }
    }

    fn step(&mut self, _: Pass, _: &Batch, body: impl FnOnce(&mut Self)) -> Result<(), Error> {
        body(self);
        Ok(())
    }

    fn embed(&mut self, table: &Matrix, tokens: &[u32], out: &mut Vec<f32>) {
        for (row, &token) in out.chunks_exact_mut(table.cols).zip(tokens) {
            table.dequantize_row(token as usize, row);
        }
    }

    fn norm_linear<const N: usize>(
        &mut self,
        n: usize,
        x: &Vec<f32>,
        norm: &Vec<f32>,
        eps: f32,
        w: [&Dense; N],
        out: [&mut Vec<f32>; N],
    ) {
        for (w, out) in w.into_iter().zip(out) {
            for t in 0..n {
                let y = rms_norm(&x[t * w.cols..(t + 1) * w.cols], norm, eps);
                out[t * w.rows..(t + 1) * w.rows].copy_from_slice(&w.apply(&y));
            }
        }
    }

    fn rope_store(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &mut Cache,
        q: &mut Vec<f32>,
        k: &mut Vec<f32>,
        v: &Vec<f32>,
    ) {
        let LayerStore::Kv { keys, values, ty, .. } = &mut cache.layers[layer] else {
            unreachable!("layer {layer} has no keys and values")
        };
        let d = a.head_dim;
        let stride = if a.gated { 2 * d } else { d };
        for span in batch.spans() {
            for t in span.start..span.start + span.len {
                let position = batch.positions()[t];
                let whole = a.qk_norm.as_ref().filter(|n| n.0.len() != d);
                if let Some((wq, wk)) = whole {
                    for (x, w) in [(&mut *q, wq), (&mut *k, wk)] {
                        let row = &mut x[t * w.len()..(t + 1) * w.len()];
                        row.copy_from_slice(&rms_norm(row, w, a.eps));
                    }
                }
                let of_heads = a.qk_norm.as_ref().filter(|_| whole.is_none());
                for h in 0..a.heads {
                    let q = &mut q[(t * a.heads + h) * stride..][..d];
                    norm_and_rotate(q, of_heads.map(|n| &n.0), a, position);
                }
                let (page, row) = batch.page_of(span, position as usize);
                for h in 0..a.kv_heads {
                    let k = &mut k[(t * a.kv_heads + h) * d..][..d];
                    norm_and_rotate(k, of_heads.map(|n| &n.1), a, position);
                    let at = ((page * a.kv_heads + h) * PAGE_TOKENS + row) * d;
                    let v = &v[(t * a.kv_heads + h) * d..][..d];
                    decode(ty.keys, &encode(ty.keys, k), &mut keys[at..at + d]);
                    decode(ty.values, &encode(ty.values, v), &mut values[at..at + d]);
                }
            }
        }
    }

    fn attend(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &Cache,
        q: &Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let LayerStore::Kv { keys, values, .. } = &cache.layers[layer] else {
            unreachable!("layer {layer} has no keys and values")
        };
        let d = a.head_dim;
        let stride = if a.gated { 2 * d } else { d };
        for span in batch.spans() {
            for t in span.start..span.start + span.len {
                for h in 0..a.heads {
                    let kv_head = h / (a.heads / a.kv_heads);
                    let at = |position: usize| {
                        let (page, row) = batch.page_of(span, position);
                        ((page * a.kv_heads + kv_head) * PAGE_TOKENS + row) * d
                    };
                    let query = &q[(t * a.heads + h) * stride..][..stride];
                    let n = batch.positions()[t] as usize + 1;
                    let scale = (d as f32).powf(-0.5);
                    let scores: Vec<f32> =
                        (0..n).map(|p| scale * dot(&query[..d], &keys[at(p)..][..d])).collect();
                    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let p: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
                    let sum: f32 = p.iter().sum();
                    for i in 0..d {
                        let y = (0..n).map(|j| p[j] * values[at(j) + i]).sum::<f32>() / sum;
                        let gate = if a.gated { sigmoid(query[d + i]) } else { 1.0 };
                        out[(t * a.heads + h) * d + i] = y * gate;
                    }
                }
            }
        }
    }

    fn gdn(
        &mut self,
        batch: &Batch,
        g: &Gdn<Self>,
        layer: usize,
        cache: &mut Cache,
        qkv: &Vec<f32>,
        z: &Vec<f32>,
        b: &Vec<f32>,
        alpha: &Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let LayerStore::Gdn { conv, conv_len, state, state_len, kept } = &mut cache.layers[layer] else {
            unreachable!("layer {layer} has no recurrent state")
        };
        let (c, heads) = (g.channels(), g.v_heads);
        for span in batch.spans() {
            conv.copy_within(span.from * *conv_len..(span.from + 1) * *conv_len, span.slot * *conv_len);
            state.copy_within(span.from * *state_len..(span.from + 1) * *state_len, span.slot * *state_len);
            kept[span.slot] = kept[span.from].clone();
            let conv = &mut conv[span.slot * *conv_len..][..*conv_len];
            let state = &mut state[span.slot * *state_len..][..*state_len];
            let kept = &mut kept[span.slot];
            // Accepted guesses, whose outputs were computed before.
            let redo = span.redo.first..span.redo.first + span.redo.len;
            let mut unused = vec![0.0; redo.end * heads * g.v_dim];
            let rows = [&kept[0][..], &unused.clone(), &kept[1], &kept[2]];
            Self::gdn_tokens(redo, g, conv, state, rows, &mut unused);
            // tokens that are certain, then guesses on a copy of the state
            let (end, inputs) = (span.start + span.len, [&qkv[..], z, b, alpha]);
            let certain = end - span.guesses;
            Self::gdn_tokens(span.start..certain, g, conv, state, inputs, out);
            let (mut conv, mut state) = (conv.to_vec(), state.to_vec());
            Self::gdn_tokens(certain..end, g, &mut conv, &mut state, inputs, out);
            if span.len > 0 {
                let rows = |x: &[f32], width: usize| x[certain * width..end * width].to_vec();
                *kept = [rows(qkv, c), rows(b, heads), rows(alpha, heads)];
            }
        }
    }

    fn linear_add(&mut self, n: usize, x: &Vec<f32>, w: &Dense, h: &mut Vec<f32>) {
        for t in 0..n {
            add(&mut h[t * w.rows..(t + 1) * w.rows], &w.apply(&x[t * w.cols..(t + 1) * w.cols]), 1.0);
        }
    }

    fn mlp(&mut self, n: usize, m: &Mlp<Self>, h: &mut Vec<f32>) {
        for h in h.chunks_exact_mut(m.gate.cols).take(n) {
            let x = rms_norm(h, &m.norm, m.eps);
            add(h, &swiglu(&m.gate, &m.up, &m.down, &x), 1.0);
        }
    }

    fn records_routes(&self) -> bool {
        true
    }

    fn moe(&mut self, n: usize, m: &Moe<Self>, layer: usize, counts: &ExpertCounts, h: &mut Vec<f32>) {
        for (token, h) in h.chunks_exact_mut(m.router.cols).take(n).enumerate() {
            let x = rms_norm(h, &m.norm, m.eps);
            let logits = m.router.apply(&x);
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let p: Vec<f32> = logits.iter().map(|l| (l - max).exp()).collect();
            let mut order: Vec<usize> = (0..m.experts).collect();
            order.sort_by(|&i, &j| p[j].total_cmp(&p[i])); // stable: the lower index first on a tie
            order.truncate(m.top_k);
            let sum: f32 = if m.norm_top_k { order.iter().map(|&e| p[e]).sum() } else { p.iter().sum() };
            for &e in &order {
                counts.add(layer, e, 1);
                add(h, &swiglu(&m.gate[e], &m.up[e], &m.down[e], &x), p[e] / sum);
            }
            let gate = m.shared.as_ref().map_or(0.0, |s| sigmoid(dot(&s.router, &x)));
            if let Some(s) = &m.shared {
                add(h, &swiglu(&s.gate, &s.up, &s.down, &x), gate);
            }
            if counts.is_traced() {
                counts.record(layer, token, order.into_iter(), gate);
            }
        }
    }

    fn logits(
        &mut self,
        batch: &Batch,
        h: &Vec<f32>,
        norm: &Vec<f32>,
        eps: f32,
        head: &Dense,
        out: &mut Vec<f32>,
    ) {
        for (i, &t) in batch.outputs().iter().enumerate() {
            let x = rms_norm(&h[t as usize * head.cols..][..head.cols], norm, eps);
            out[i * head.rows..(i + 1) * head.rows].copy_from_slice(&head.apply(&x));
        }
    }

    fn norm_outputs(&mut self, batch: &Batch, h: &Vec<f32>, norm: &Vec<f32>, eps: f32, out: &mut Vec<f32>) {
        let hidden = norm.len();
        for (i, &t) in batch.outputs().iter().enumerate() {
            let y = rms_norm(&h[t as usize * hidden..][..hidden], norm, eps);
            out[i * hidden..(i + 1) * hidden].copy_from_slice(&y);
        }
    }

    fn norm(&mut self, n: usize, h: &Vec<f32>, norm: &Vec<f32>, eps: f32, out: &mut Vec<f32>) {
        let hidden = norm.len();
        for t in 0..n {
            let y = rms_norm(&h[t * hidden..(t + 1) * hidden], norm, eps);
            out[t * hidden..(t + 1) * hidden].copy_from_slice(&y);
        }
    }
}
