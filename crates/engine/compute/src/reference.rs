//! The scalar oracle: every verb as plain loops that read like the formulas. Slow on purpose; tests compare with it.

mod attention;
mod erf;
mod experts;
mod recurrent;
mod rows;

pub use erf::gelu;
use octet_weights::{Matrix, quant};

use crate::ExpertCounts;
use crate::backend::*;
use crate::batch::{Batch, PAGE_TOKENS};

/// Runs every verb on one thread in f32, with weights dequantised at load.
#[derive(Debug, Default)]
pub struct Reference;

/// Dense matrices `[count * rows, cols]` in f32, with an optional bias.
pub struct Dense {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Dense {
    fn new(all: &[Matrix], bias: Option<&[f32]>) -> Self {
        let (rows, cols) = all.first().map_or((0, 0), |m| (m.rows, m.cols));
        let mut values = vec![0.0; all.len() * rows * cols];
        for (m, out) in all.iter().zip(values.chunks_exact_mut((rows * cols).max(1))) {
            out.copy_from_slice(&m.to_f32());
        }
        Self { rows, cols, values, bias: bias.map(<[f32]>::to_vec) }
    }

    /// `W x + bias`
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        self.apply_one(0, x)
    }

    /// `W x + bias` of matrix `e`.
    fn apply_one(&self, e: usize, x: &[f32]) -> Vec<f32> {
        let values = &self.values[e * self.rows * self.cols..][..self.rows * self.cols];
        let rows = values.chunks_exact(self.cols).map(|row| dot(row, &x[..self.cols]));
        match &self.bias {
            None => rows.collect(),
            Some(b) => rows.zip(&b[e * self.rows..]).map(|(y, b)| y + b).collect(),
        }
    }
}

/// The cache of one layer.
enum LayerStore {
    None,
    /// Keys `[pages, kv_heads, PAGE_TOKENS, k_dim]` and values `[.., v_dim]`, as read back from their types.
    Kv {
        kv_heads: usize,
        dims: [usize; 2],
        keys: Vec<f32>,
        values: Vec<f32>,
        ty: KvTypes,
        group: PageGroup,
    },
    /// Of each slot the inputs of the convolution, the state, and its guesses' rows of each input.
    State {
        conv: Vec<f32>,
        conv_len: usize,
        state: Vec<f32>,
        state_len: usize,
        kept: Vec<[Vec<f32>; 3]>,
    },
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

/// `cap * tanh(x / cap)`
fn cap(x: f32, cap: Option<f32>) -> f32 {
    cap.map_or(x, |c| c * (x / c).tanh())
}

impl Norm<Reference> {
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let x = &x[..self.len];
        let mean = if self.centred { x.iter().sum::<f32>() / x.len() as f32 } else { 0.0 };
        let x: Vec<f32> = x.iter().map(|x| x - mean).collect();
        let y = rms_norm(&x, &self.weight, self.eps);
        match &self.bias {
            None => y,
            Some(b) => y.iter().zip(b).map(|(y, b)| y + b).collect(),
        }
    }
}

/// `norm(x)`, or `x`.
fn normed(norm: Option<&Norm<Reference>>, x: &[f32]) -> Vec<f32> {
    norm.map_or_else(|| x.to_vec(), |n| n.apply(x))
}

fn put(out: Out<Reference>, row: usize, y: &[f32]) {
    match out {
        Out::Write(o) => o[row * y.len()..][..y.len()].copy_from_slice(y),
        Out::Add(o, scale) => add(&mut o[row * y.len()..][..y.len()], y, scale),
    }
}

/// The same destination once more.
fn again<'a>(out: &'a mut Out<'_, Reference>) -> Out<'a, Reference> {
    match out {
        Out::Write(o) => Out::Write(&mut **o),
        Out::Add(o, scale) => Out::Add(&mut **o, *scale),
    }
}

/// Rows of `x`, or of the residual stream that a verb adds to.
fn source(x: Option<&Vec<f32>>, out: &Out<Reference>, n: usize, cols: usize) -> Vec<f32> {
    let x = match (x, out) {
        (Some(x), _) => x,
        (None, Out::Write(o)) => o,
        (None, Out::Add(o, _)) => o,
    };
    x[..n * cols].to_vec()
}

fn add(h: &mut [f32], y: &[f32], scale: f32) {
    for (h, y) in h.iter_mut().zip(y) {
        *h += scale * y;
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

impl Backend for Reference {
    type Buf = Vec<f32>;
    type Weight = Dense;
    type Experts = Dense;
    type Embedding = Matrix;
    type Cache = Cache;

    fn buf(&mut self, len: usize) -> Result<Vec<f32>, Error> {
        Ok(vec![0.0; len])
    }
    fn vector(&mut self, values: &[f32]) -> Result<Vec<f32>, Error> {
        Ok(values.to_vec())
    }
    fn weight(&mut self, m: &Matrix, bias: Option<&[f32]>) -> Result<Dense, Error> {
        Ok(Dense::new(std::slice::from_ref(m), bias))
    }
    fn experts(&mut self, m: &[Matrix], bias: Option<&[f32]>) -> Result<Dense, Error> {
        Ok(Dense::new(m, bias))
    }
    fn embedding(&mut self, m: &Matrix) -> Result<Matrix, Error> {
        Ok(m.clone())
    }
    fn cache(&mut self, shape: &CacheShape, _: StepShape) -> Result<Cache, Error> {
        shape.check()?;
        let layer = |l: &LayerCache| match *l {
            LayerCache::None => LayerStore::None,
            LayerCache::Kv { kv_heads, k_dim, v_dim, group } => {
                let rows = shape.pages_of(group) * kv_heads * PAGE_TOKENS;
                LayerStore::Kv {
                    kv_heads,
                    dims: [k_dim, v_dim],
                    keys: vec![0.0; rows * k_dim],
                    values: vec![0.0; rows * v_dim],
                    ty: shape.kv,
                    group,
                }
            }
            LayerCache::State { conv, state, .. } => LayerStore::State {
                conv: vec![0.0; shape.slots * conv],
                conv_len: conv,
                state: vec![0.0; shape.slots * state],
                state_len: state,
                kept: vec![Default::default(); shape.slots],
            },
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
            if let LayerStore::State { conv, conv_len, state, state_len, .. } = l {
                conv[slot * *conv_len..][..*conv_len].fill(0.0);
                state[slot * *state_len..][..*state_len].fill(0.0);
            }
        }
    }
    fn copy_slot(&mut self, cache: &mut Cache, from: usize, to: usize) {
        for l in &mut cache.layers {
            if let LayerStore::State { conv, conv_len, state, state_len, .. } = l {
                conv.copy_within(from * *conv_len..(from + 1) * *conv_len, to * *conv_len);
                state.copy_within(from * *state_len..(from + 1) * *state_len, to * *state_len);
            }
        }
    }
    fn copy_page(&mut self, cache: &mut Cache, group: PageGroup, from: usize, to: usize) {
        for l in cache.layers.iter_mut().filter(|l| l.is_in(group)) {
            if let LayerStore::Kv { kv_heads, dims, keys, values, .. } = l {
                for (all, dim) in [(keys, dims[0]), (values, dims[1])] {
                    let n = *kv_heads * PAGE_TOKENS * dim;
                    all.copy_within(from * n..(from + 1) * n, to * n);
                }
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
            if let LayerStore::State { conv, conv_len, state, state_len, .. } = l {
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
            if let LayerStore::State { conv, conv_len, state, state_len, .. } = l {
                let conv = &mut conv[slot * *conv_len..][..*conv_len];
                for (x, d) in
                    conv.iter_mut().chain(&mut state[slot * *state_len..][..*state_len]).zip(&mut data)
                {
                    *x = d;
                }
            }
        }
    }
    fn save_page(&mut self, cache: &Cache, group: PageGroup, page: usize, out: &mut [u8]) {
        let mut rest = out;
        for l in cache.layers.iter().filter(|l| l.is_in(group)) {
            let LayerStore::Kv { kv_heads, dims, keys, values, ty, .. } = l else { continue };
            for (all, ty, dim) in [(keys, ty.keys, dims[0]), (values, ty.values, dims[1])] {
                let n = kv_heads * PAGE_TOKENS * dim;
                for row in all[page * n..][..n].chunks_exact(dim.max(1)) {
                    // what was read from the type is written to it without a loss
                    let row = encode(ty, row);
                    rest[..row.len()].copy_from_slice(&row);
                    rest = &mut rest[row.len()..];
                }
            }
        }
    }
    fn load_page(&mut self, cache: &mut Cache, group: PageGroup, page: usize, data: &[u8]) {
        let mut rest = data;
        for l in cache.layers.iter_mut().filter(|l| l.is_in(group)) {
            let LayerStore::Kv { kv_heads, dims, keys, values, ty, .. } = l else { continue };
            for (all, ty, dim) in [(keys, ty.keys, dims[0]), (values, ty.values, dims[1])] {
                let n = *kv_heads * PAGE_TOKENS * dim;
                for row in all[page * n..][..n].chunks_exact_mut(dim.max(1)) {
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

    fn records_routes(&self) -> bool {
        true
    }

    fn embed(&mut self, batch: &Batch, table: &Matrix, row: TableRow, scale: f32, out: &mut Vec<f32>) {
        for (t, out) in out.chunks_exact_mut(table.cols).take(batch.len()).enumerate() {
            table.dequantize_row(row.of(batch, t, table.rows), out);
            out.iter_mut().for_each(|x| *x *= scale);
        }
    }

    fn place(
        &mut self,
        to: &[u32],
        width: usize,
        x: &Vec<f32>,
        [at, stride]: [usize; 2],
        mut out: Out<Self>,
    ) {
        for (i, &row) in to.iter().enumerate() {
            put(again(&mut out), row as usize, &x[i * stride + at..][..width]);
        }
    }

    fn project<const N: usize>(
        &mut self,
        n: usize,
        x: &Vec<f32>,
        norm: Option<&Norm<Self>>,
        w: [&Dense; N],
        out: [&mut Vec<f32>; N],
    ) {
        for (w, out) in w.into_iter().zip(out) {
            for t in 0..n {
                let y = normed(norm, &x[t * w.cols..(t + 1) * w.cols]);
                out[t * w.rows..(t + 1) * w.rows].copy_from_slice(&w.apply(&y));
            }
        }
    }

    fn linear(&mut self, n: usize, x: &Vec<f32>, w: &Dense, mut out: Out<Self>) {
        for t in 0..n {
            put(again(&mut out), t, &w.apply(&x[t * w.cols..(t + 1) * w.cols]));
        }
    }

    fn per_head(&mut self, n: usize, x: &Vec<f32>, w: &Dense, rest: usize, out: &mut Vec<f32>) {
        let heads = w.values.len() / (w.rows * w.cols);
        for i in 0..n * heads {
            let x = &x[i * (w.cols + rest)..][..w.cols + rest];
            let out = &mut out[i * (w.rows + rest)..][..w.rows + rest];
            out[..w.rows].copy_from_slice(&w.apply_one(i % heads, x));
            out[w.rows..].copy_from_slice(&x[w.cols..]);
        }
    }

    fn rope_store(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &mut Cache,
        q: &mut Vec<f32>,
        kv: Option<(&mut Vec<f32>, &Vec<f32>)>,
    ) {
        attention::rope_store(batch, a, &mut cache.layers[layer], q, kv);
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
        attention::attend(batch, a, &cache.layers[layer], q, out);
    }

    fn gdn(
        &mut self,
        batch: &Batch,
        g: &Gdn<Self>,
        layer: usize,
        cache: &mut Cache,
        qkv: &[&Vec<f32>],
        z: &Vec<f32>,
        b: &Vec<f32>,
        alpha: &Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let qkv = &recurrent::side_by_side(qkv, g.widths(qkv.len()), batch.len());
        // The rows of `z` of guesses to redo are not kept: their outputs were computed before.
        let widths = [g.channels(), g.v_heads, g.decays()];
        let value_len = g.v_heads * g.v_dim;
        recurrent::run(
            batch,
            &mut cache.layers[layer],
            [qkv, b, alpha],
            widths,
            |tokens, kept, conv, state| {
                let n = tokens.end;
                let zeros = vec![0.0; n * value_len];
                let mut unused = vec![0.0; n * value_len];
                match kept {
                    Some([qkv, b, alpha]) => {
                        recurrent::gdn_tokens(tokens, g, conv, state, [qkv, &zeros, b, alpha], &mut unused);
                    }
                    None => recurrent::gdn_tokens(tokens, g, conv, state, [qkv, z, b, alpha], out),
                }
            },
        );
    }

    fn ssm(
        &mut self,
        batch: &Batch,
        s: &Ssm<Self>,
        layer: usize,
        cache: &mut Cache,
        z: &Vec<f32>,
        xbc: &Vec<f32>,
        dt: &Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let (widths, inner) = ([s.channels(), s.heads, 0], s.heads * s.dim);
        recurrent::run(
            batch,
            &mut cache.layers[layer],
            [xbc, dt, &[]],
            widths,
            |tokens, kept, conv, state| {
                let zeros = vec![0.0; tokens.end * inner];
                let mut unused = zeros.clone();
                match kept {
                    Some([xbc, dt, _]) => {
                        recurrent::ssm_tokens(tokens, s, conv, state, [xbc, &zeros, dt], &mut unused);
                    }
                    None => recurrent::ssm_tokens(tokens, s, conv, state, [xbc, z, dt], out),
                }
            },
        );
    }

    fn short_conv(
        &mut self,
        batch: &Batch,
        s: &ShortConv<Self>,
        layer: usize,
        cache: &mut Cache,
        bcx: &Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let widths = [3 * s.width, 0, 0];
        recurrent::run(batch, &mut cache.layers[layer], [bcx, &[], &[]], widths, |tokens, kept, conv, _| {
            let mut unused = vec![0.0; tokens.end * s.width];
            match kept {
                Some([bcx, ..]) => recurrent::short_conv_tokens(tokens, s, conv, bcx, &mut unused),
                None => recurrent::short_conv_tokens(tokens, s, conv, bcx, out),
            }
        });
    }

    fn multiply(
        &mut self,
        n: usize,
        width: usize,
        times: Times,
        x: &mut Vec<f32>,
        y: &Vec<f32>,
        [at, stride]: [usize; 2],
    ) {
        for (t, x) in x.chunks_exact_mut(width).take(n).enumerate() {
            rows::multiply(times, x, &y[t * stride + at..]);
        }
    }

    fn glu(
        &mut self,
        n: usize,
        x: Option<&Vec<f32>>,
        norm: Option<&Norm<Self>>,
        g: &Glu<Dense>,
        mut out: Out<Self>,
    ) {
        let cols = g.up.cols;
        for (t, x) in source(x, &out, n, cols).chunks_exact(cols).enumerate() {
            put(again(&mut out), t, &experts::glu(g, 0, &normed(norm, x), 1.0));
        }
    }

    fn moe(
        &mut self,
        n: usize,
        x: Option<&Vec<f32>>,
        norm: Option<&Norm<Self>>,
        m: &Moe<Self>,
        layer: usize,
        counts: &ExpertCounts,
        mut out: Out<Self>,
    ) {
        let cols = m.router.weight.cols;
        for (t, x) in source(x, &out, n, cols).chunks_exact(cols).enumerate() {
            put(
                again(&mut out),
                t,
                &experts::moe(m, norm, x, |chosen, gate| {
                    chosen.iter().for_each(|&e| counts.add(layer, e, 1));
                    if counts.is_traced() {
                        counts.record(layer, t, chosen.iter().copied(), gate);
                    }
                }),
            );
        }
    }

    fn logits(&mut self, batch: &Batch, h: &Vec<f32>, head: &Head<Self>, out: &mut Vec<f32>) {
        let w = head.weight;
        for (i, &t) in batch.outputs().iter().enumerate() {
            let x = head.norm.apply(&h[t as usize * w.cols..]);
            for (o, y) in out[i * w.rows..].iter_mut().zip(w.apply(&x)) {
                *o = cap(y * head.scale, head.softcap);
            }
        }
    }

    fn norm_outputs(&mut self, batch: &Batch, h: &Vec<f32>, norm: &Norm<Self>, out: &mut Vec<f32>) {
        for (i, &t) in batch.outputs().iter().enumerate() {
            let y = norm.apply(&h[t as usize * norm.len..]);
            out[i * norm.len..(i + 1) * norm.len].copy_from_slice(&y);
        }
    }

    fn norm(&mut self, n: usize, x: Option<&Vec<f32>>, norm: &Norm<Self>, mut out: Out<Self>) {
        for (t, x) in source(x, &out, n, norm.len).chunks_exact(norm.len).enumerate() {
            put(again(&mut out), t, &norm.apply(x));
        }
    }

    fn add(&mut self, len: usize, x: Option<&Vec<f32>>, scale: f32, out: &mut Vec<f32>) {
        match x {
            Some(x) => add(&mut out[..len], &x[..len], scale),
            None => out[..len].iter_mut().for_each(|x| *x *= scale),
        }
    }

    fn clamp(&mut self, len: usize, [min, max]: [f32; 2], x: &mut Vec<f32>) {
        x[..len].iter_mut().for_each(|x| *x = x.max(min).min(max));
    }

    fn predict_streams(
        &mut self,
        n: usize,
        a: &AltUp<Self>,
        routed: &Vec<f32>,
        h: &mut Vec<f32>,
        rest: &mut Vec<f32>,
        kept: &mut Vec<f32>,
    ) {
        (0..n).for_each(|t| rows::predict(a, t, routed, h, rest, kept));
    }

    fn correct_streams(
        &mut self,
        n: usize,
        a: &AltUp<Self>,
        routed: &Vec<f32>,
        h: &mut Vec<f32>,
        rest: &mut Vec<f32>,
        kept: &mut Vec<f32>,
    ) {
        (0..n).for_each(|t| rows::correct(a, t, routed, h, rest, kept));
    }
}
