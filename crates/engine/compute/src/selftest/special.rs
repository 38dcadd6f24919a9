//! Parts that only some models have: attention with windows, caps and sinks, or in both directions, experts chosen by scores, Mamba-2, short convolutions, products by
//! heads, LayerNorm.

use octet_weights::{GgmlType, Matrix};

use super::{
    EPS, EXPERTS, HEADS, HIDDEN, KV_HEADS, LIMIT_F16, LIMIT_F32, LIMIT_I8, Random, Step, TOKENS, TOP_K, norm,
    square,
};
use crate::Error;
use crate::backend::*;
use crate::batch::Batch;

const K_DIM: usize = 96;
const V_DIM: usize = 64;
const SSM_HEADS: usize = 4;
const SSM_GROUPS: usize = 2;
const SSM_DIM: usize = 40;
const STATE: usize = 24;
/// Rows and columns of a product by heads, and the values of a head that are copied.
const PRODUCT: [usize; 3] = [48, 64, 8];

/// Weights for each of these parts.
pub(super) struct Special<B: Backend> {
    attention: Attention<B>,
    moe: Moe<B>,
    ssm: Ssm<B>,
    conv: ShortConv<B>,
    heads: B::Experts,
    centred: Norm<B>,
    both_ways: Attention<B>,
}

/// Values of the recurrent layers, as in [`StepShape::recurrent`].
pub(super) const RECURRENT: [usize; 6] =
    [HIDDEN, SSM_HEADS * SSM_DIM + 2 * SSM_GROUPS * STATE, SSM_HEADS, 0, SSM_DIM * (STATE + 1), 0];
/// Heads and columns of the product by heads, as in [`StepShape::per_head`].
pub(super) const PER_HEAD: [usize; 2] = [HEADS, PRODUCT[1]];

impl<B: Backend> Special<B> {
    pub(super) fn new(be: &mut B, r: &mut Random) -> Result<Self, Error> {
        let frequencies: Vec<f32> = (0..K_DIM / 4).map(|j| 0.3f32.powi(j as i32)).collect();
        let rope = Rope {
            at: K_DIM / 2,
            dims: K_DIM / 2,
            pairing: RopePairing::Adjacent,
            inv_freq: be.vector(&frequencies)?,
            scale: 1.1,
            axes: None,
        };
        let attention = Attention {
            v_dim: V_DIM,
            scale: 0.2,
            softcap: Some(4.0),
            sinks: Some(be.vector(&r.vec(HEADS))?),
            norms: [Some(norm(be, r, K_DIM)?), Some(norm(be, r, K_DIM)?), Some(norm(be, r, V_DIM)?)],
            norm_last: true,
            rope: Some(rope),
            window: Window::Last(5),
            position_scale: Some([0.1, 4.0, 0.0]),
            ..Attention::plain(HEADS, KV_HEADS, K_DIM)
        };
        let channels = RECURRENT[1];
        let inner = SSM_HEADS * SSM_DIM;
        let decays: Vec<f32> = r.vec(SSM_HEADS).iter().map(|x| -1.0 - 0.9 * x).collect();
        let ssm = Ssm {
            groups: SSM_GROUPS,
            heads: SSM_HEADS,
            dim: SSM_DIM,
            state: STATE,
            taps: 4,
            conv: be.vector(&r.vec(4 * channels))?,
            conv_bias: Some(be.vector(&r.vec(channels))?),
            dt_bias: be.vector(&r.vec(SSM_HEADS))?,
            a: be.vector(&decays)?,
            d: be.vector(&r.vec(SSM_HEADS))?,
            norm: Some(Norm::rms(be.vector(&r.near_one(inner))?, inner / SSM_GROUPS, EPS)),
        };
        let conv = ShortConv { width: HIDDEN, taps: 3, conv: be.vector(&r.vec(3 * HIDDEN))? };
        let [rows, cols, _] = PRODUCT;
        let heads: Vec<Matrix> = (0..HEADS).map(|_| r.matrix(GgmlType::Q8_0, rows, cols)).collect();
        Ok(Self {
            attention,
            moe: moe(be, r)?,
            ssm,
            conv,
            heads: be.experts(&heads, None)?,
            centred: Norm {
                bias: Some(be.vector(&r.vec(HIDDEN))?),
                centred: true,
                ..Norm::rms(be.vector(&r.near_one(HIDDEN))?, HIDDEN, EPS)
            },
            both_ways: both_ways(be)?,
        })
    }

    /// The caches of its layers.
    pub(super) fn caches(&self) -> [LayerCache; 4] {
        [self.attention.cache(), self.ssm.cache(), self.conv.cache(), self.both_ways.cache()]
    }
}

/// Attention as in towers for images: rotations by row and column, in two parts of a head.
fn both_ways<B: Backend>(be: &mut B) -> Result<Attention<B>, Error> {
    let frequencies: Vec<f32> = (0..V_DIM / 2).map(|j| 0.7f32.powi((j % (V_DIM / 4)) as i32)).collect();
    let of_pair = [[1; V_DIM / 4], [2; V_DIM / 4]].concat();
    let rope = Rope {
        at: 0,
        dims: V_DIM,
        pairing: RopePairing::Half,
        inv_freq: be.vector(&frequencies)?,
        scale: 1.0,
        axes: Some(Axes { of_pair, parts: 2 }),
    };
    Ok(Attention { two_way: true, rope: Some(rope), ..Attention::plain(HEADS, KV_HEADS, V_DIM) })
}

fn moe<B: Backend>(be: &mut B, r: &mut Random) -> Result<Moe<B>, Error> {
    let experts = |be: &mut B, r: &mut Random| {
        let all: Vec<Matrix> = (0..EXPERTS).map(|_| r.matrix(GgmlType::MXFP4, HIDDEN, HIDDEN)).collect();
        be.experts(&all, Some(&r.vec(EXPERTS * HIDDEN)))
    };
    let router = Router {
        score: Score::Sigmoid,
        choice_bias: Some(be.vector(&r.vec(EXPERTS))?),
        groups: Some([4, 3]),
        scale: 1.5,
        per_expert: Some(be.vector(&r.near_one(EXPERTS))?),
        ..Router::softmax(be.weight(&r.matrix(GgmlType::F32, EXPERTS, HIDDEN), None)?, EXPERTS, TOP_K, true)
    };
    let shared = Glu {
        gate: None,
        up: square(be, r, GgmlType::Q4_K)?,
        down: square(be, r, GgmlType::Q4_K)?,
        act: Act::Relu2,
    };
    Ok(Moe {
        router,
        experts: Glu {
            gate: Some(experts(be, r)?),
            up: experts(be, r)?,
            down: experts(be, r)?,
            act: Act::ClampedSwiglu { alpha: 1.702, limit: 1.0 },
        },
        shared: Some(SharedExpert { gate: None, glu: shared }),
    })
}

impl<B: Backend> Step<'_, B> {
    /// Runs each part. Its caches are those from `layer` on.
    pub(super) fn special(
        &mut self,
        p: &Special<B>,
        counts: &crate::ExpertCounts,
        cache: &mut B::Cache,
        layer: usize,
    ) -> Result<(), Error> {
        let (n, a) = (self.n, &p.attention);
        let (mut q, mut k) = (self.input(HEADS * K_DIM, 20)?, self.input(KV_HEADS * K_DIM, 21)?);
        let v = self.input(KV_HEADS * V_DIM, 22)?;
        self.be.rope_store(&self.batch, a, layer, cache, &mut q, Some((&mut k, &v)));
        let mut out = self.be.buf(n * HEADS * V_DIM)?;
        self.be.attend(&self.batch, a, layer, cache, &q, &mut out);
        self.keep("attend within a window", LIMIT_F16, &out, HEADS * V_DIM);
        self.attend_both_ways(&p.both_ways, cache, layer + 3)?;

        let inner = SSM_HEADS * SSM_DIM;
        let [z, xbc, dt] =
            [(inner, 23), (RECURRENT[1], 24), (SSM_HEADS, 25)].map(|(width, seed)| self.input(width, seed));
        let mut out = self.be.buf(n * inner)?;
        self.be.ssm(&self.batch, &p.ssm, layer + 1, cache, &z?, &xbc?, &dt?, &mut out);
        self.keep("ssm", LIMIT_F32, &out, inner);

        let (bcx, mut out) = (self.input(3 * HIDDEN, 26)?, self.be.buf(n * HIDDEN)?);
        self.be.short_conv(&self.batch, &p.conv, layer + 2, cache, &bcx, &mut out);
        self.keep("short_conv", LIMIT_F32, &out, HIDDEN);

        let [rows, cols, rest] = PRODUCT;
        let (x, width) = (self.input(HEADS * (cols + rest), 27)?, HEADS * (rows + rest));
        let mut out = self.be.buf(n * width)?;
        self.be.per_head(n, &x, &p.heads, rest, &mut out);
        self.keep("per_head", LIMIT_I8, &out, width);

        let (x, mut h) = (self.input(HIDDEN, 28)?, self.input(HIDDEN, 29)?);
        self.be.norm(n, Some(&x), &p.centred, Out::Add(&mut h, 0.5));
        self.keep("layer norm", LIMIT_F32, &h, HIDDEN);
        self.be.multiply(n, HIDDEN, Times::Activated(Act::Gelu), &mut h, &x, [0, HIDDEN]);
        self.keep("multiply", LIMIT_F32, &h, HIDDEN);
        self.be.moe(n, Some(&x), Some(&p.centred), &p.moe, 1, counts, Out::Write(&mut h));
        self.keep("moe by scores", LIMIT_I8, &h, HIDDEN);
        Ok(())
    }

    /// The keys of all tokens are stored first: in each step, tokens of a block see those of later steps.
    fn attend_both_ways(
        &mut self,
        a: &Attention<B>,
        cache: &mut B::Cache,
        layer: usize,
    ) -> Result<(), Error> {
        let (width, place) = (HEADS * V_DIM, |t: usize| [0, (t / 4) as u32, (t % 4) as u32]);
        let mut whole = Batch::default();
        whole.push(&[0; TOKENS], 0, 0, &[1], 0);
        whole.turn((0..TOKENS).map(place));
        let mut rows = |width: usize, seed: u64| {
            let rows = (0..TOKENS as u64).flat_map(|t| Random(seed * 1000 + t).vec(width));
            self.be.vector(&rows.collect::<Vec<f32>>())
        };
        let (mut q, mut k, v) = (rows(width, 30)?, rows(KV_HEADS * V_DIM, 31)?, rows(KV_HEADS * V_DIM, 32)?);
        self.be.rope_store(&whole, a, layer, cache, &mut q, Some((&mut k, &v)));
        let mut batch = self.batch.clone();
        batch.turn((self.past..self.past + self.n).map(place));
        batch.see(2..TOKENS - 1);
        let (mut q, mut out) = (self.input(width, 33)?, self.be.buf(self.n * width)?);
        self.be.rope_store(&batch, a, layer, cache, &mut q, None);
        self.be.attend(&batch, a, layer, cache, &q, &mut out);
        self.keep("attend in both directions", LIMIT_F16, &out, width);
        Ok(())
    }
}
