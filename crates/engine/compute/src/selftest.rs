//! A self-test for users: runs every verb of a backend on fixed inputs, and compares it with the scalar oracle and with itself when the
//! tokens are split into other steps.

mod special;

use octet_weights::{GgmlType, Matrix, quant};

use crate::backend::*;
use crate::reference::Reference;
use crate::{Batch, Error, ExpertCounts};
use special::Special;

/// The result for one verb.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// The verb, and the type of its weights if several are checked.
    pub name: String,
    /// Its difference from the oracle, relative to the result (Euclidean norms).
    pub difference: f32,
    /// Largest allowed difference.
    pub limit: f32,
    /// Whether each token has the same bits in every batch.
    pub is_stable: bool,
}

impl Check {
    /// Whether the verb is correct.
    pub fn passed(&self) -> bool {
        self.difference <= self.limit && self.is_stable
    }
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.difference <= self.limit, self.is_stable) {
            (true, true) => write!(f, "{}: right", self.name),
            (true, false) => write!(f, "{}: wrong: a token's result depends on its batch", self.name),
            (false, _) => write!(
                f,
                "{}: wrong: off by {:.2e} of the result's size; {:.0e} is allowed",
                self.name, self.difference, self.limit
            ),
        }
    }
}

/// Number of tokens. With 11 the kernels for 1, 2, 4 and 8 tokens run, and one with a partly filled tile.
const TOKENS: usize = 11;
/// Splits of the tokens into steps: the first is compared with the oracle, the others with the first.
const CUTS: [&[usize]; 3] = [&[TOKENS], &[2, 4, 5], &[1; TOKENS]];
const HIDDEN: usize = 256;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const EPS: f32 = 1e-6;

/// Types of weights checked in projections.
const TYPES: [GgmlType; 7] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q8_0,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
];

/// Largest relative difference of verbs whose arithmetic is f32, and of those whose activations are 8-bit.
const LIMIT_F32: f32 = 2e-4;
const LIMIT_I8: f32 = 0.03;
/// Keys and values are stored as f16: one may round to another neighbour.
const LIMIT_F16: f32 = 2e-3;

struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 2.0
    }
    fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
    fn near_one(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| 1.0 + 0.2 * self.next()).collect()
    }
    /// Rows of about unit length.
    fn matrix(&mut self, ty: GgmlType, rows: usize, cols: usize) -> Matrix {
        let mut data = vec![0; rows * cols / ty.block_len() * ty.block_bytes()];
        quant::random_blocks(ty, &mut self.0, 1.0 / (cols as f32).sqrt(), &mut data);
        Matrix::new(ty, rows, cols, data.into())
    }
}

/// Weights for each verb in a backend.
struct Parts<B: Backend> {
    norm: Norm<B>,
    projections: Vec<B::Weight>,
    attention: Attention<B>,
    gdn: Gdn<B>,
    /// The norm before each of the two feed-forward blocks.
    norms: [Norm<B>; 2],
    glu: Glu<B::Weight>,
    moe: Moe<B>,
    embedding: B::Embedding,
    special: Special<B>,
    cache: B::Cache,
    counts: ExpertCounts,
}

const GDN_HEADS: [usize; 2] = [2, 4];
const GDN_DIM: usize = 64;
const CHANNELS: usize = (2 * GDN_HEADS[0] + GDN_HEADS[1]) * GDN_DIM;
const VOCAB: usize = 75;
const EXPERTS: usize = 8;
const TOP_K: usize = 3;

fn parts<B: Backend>(be: &mut B) -> Result<Parts<B>, Error> {
    let r = &mut Random(7);
    let mut projections = Vec::new();
    for ty in TYPES {
        let bias = r.vec(HIDDEN);
        projections.push(be.weight(&r.matrix(ty, HIDDEN, HIDDEN), Some(&bias))?);
    }
    let special = Special::new(be, &mut Random(8))?;
    Ok(Parts {
        norm: norm(be, r, HIDDEN)?,
        projections,
        attention: attention(be, r)?,
        gdn: gdn(be, r)?,
        norms: [norm(be, r, HIDDEN)?, norm(be, r, HIDDEN)?],
        glu: glu(be, r)?,
        moe: moe(be, r)?,
        embedding: be.embedding(&r.matrix(GgmlType::F32, VOCAB, HIDDEN))?,
        counts: ExpertCounts::new(2, EXPERTS),
        // The last that is made: it needs to know the widths of all weights.
        cache: cache(be, &special)?,
        special,
    })
}

fn norm<B: Backend>(be: &mut B, r: &mut Random, len: usize) -> Result<Norm<B>, Error> {
    Ok(Norm::rms(be.vector(&r.near_one(len))?, len, EPS))
}

fn attention<B: Backend>(be: &mut B, r: &mut Random) -> Result<Attention<B>, Error> {
    let frequencies: Vec<f32> = (0..HEAD_DIM / 4).map(|j| 0.3f32.powi(j as i32)).collect();
    Ok(Attention {
        gated: true,
        norms: [Some(norm(be, r, HEAD_DIM)?), Some(norm(be, r, HEAD_DIM)?), None],
        rope: Some(Rope {
            at: 0,
            dims: HEAD_DIM / 2,
            pairing: RopePairing::Half,
            inv_freq: be.vector(&frequencies)?,
            scale: 1.0,
            axes: None,
        }),
        ..Attention::plain(HEADS, KV_HEADS, HEAD_DIM)
    })
}

fn gdn<B: Backend>(be: &mut B, r: &mut Random) -> Result<Gdn<B>, Error> {
    let decays: Vec<f32> = r.vec(GDN_HEADS[1]).iter().map(|x| -1.0 - 0.9 * x).collect();
    Ok(Gdn {
        k_heads: GDN_HEADS[0],
        v_heads: GDN_HEADS[1],
        k_dim: GDN_DIM,
        v_dim: GDN_DIM,
        conv_kernel: 4,
        order: HeadOrder::Tiled,
        conv: be.vector(&r.vec(4 * CHANNELS))?,
        row_decay: false,
        dt_bias: be.vector(&r.vec(GDN_HEADS[1]))?,
        a: be.vector(&decays)?,
        sigmoid_gate: false,
        norm: be.vector(&r.near_one(GDN_DIM))?,
        eps: EPS,
    })
}

fn square<B: Backend>(be: &mut B, r: &mut Random, ty: GgmlType) -> Result<B::Weight, Error> {
    be.weight(&r.matrix(ty, HIDDEN, HIDDEN), None)
}

/// SwiGLU.
fn glu<B: Backend>(be: &mut B, r: &mut Random) -> Result<Glu<B::Weight>, Error> {
    Ok(Glu {
        gate: Some(square(be, r, GgmlType::Q4_K)?),
        up: square(be, r, GgmlType::Q4_K)?,
        down: square(be, r, GgmlType::Q6_K)?,
        act: Act::Silu,
    })
}

fn moe<B: Backend>(be: &mut B, r: &mut Random) -> Result<Moe<B>, Error> {
    let experts = |be: &mut B, r: &mut Random, ty| {
        let all: Vec<Matrix> = (0..EXPERTS).map(|_| r.matrix(ty, HIDDEN, HIDDEN)).collect();
        be.experts(&all, None)
    };
    let router = be.weight(&r.matrix(GgmlType::F32, EXPERTS, HIDDEN), None)?;
    Ok(Moe {
        router: Router::softmax(router, EXPERTS, TOP_K, true),
        experts: Glu {
            gate: Some(experts(be, r, GgmlType::Q4_K)?),
            up: experts(be, r, GgmlType::Q4_K)?,
            down: experts(be, r, GgmlType::Q6_K)?,
            act: Act::Silu,
        },
        shared: Some(SharedExpert { gate: Some(be.vector(&r.vec(HIDDEN))?), glu: glu(be, r)? }),
    })
}

/// A cache of one layer of attention, one of Gated DeltaNet, and those of the special ones.
fn cache<B: Backend>(be: &mut B, special: &Special<B>) -> Result<B::Cache, Error> {
    let state = LayerCache::State {
        conv: 3 * CHANNELS,
        state: GDN_HEADS[1] * GDN_DIM * GDN_DIM,
        inputs: CHANNELS + 2 * GDN_HEADS[1],
    };
    let group = PageGroup::All;
    let attention = LayerCache::Kv { kv_heads: KV_HEADS, k_dim: HEAD_DIM, v_dim: HEAD_DIM, group };
    let cache = CacheShape {
        layers: [attention, state].into_iter().chain(special.caches()).collect(),
        pages: 2,
        windowed: None,
        slots: 3,
        guesses: 0,
        kv: KvType::F16.into(),
    };
    let delta = [GDN_HEADS[0] * GDN_DIM, GDN_HEADS[1] * GDN_DIM, GDN_HEADS[1], GDN_DIM, 0, GDN_HEADS[1]];
    let step = StepShape {
        tokens: TOKENS,
        outputs: TOKENS,
        heads: HEADS,
        intermediate: HIDDEN,
        experts: EXPERTS,
        top_k: TOP_K,
        expert_intermediate: HIDDEN,
        recurrent: std::array::from_fn(|i| delta[i].max(special::RECURRENT[i])),
        per_head: special::PER_HEAD,
    };
    be.cache(&cache, step)
}

/// Results of one verb: its name, its limit, and the rows of all tokens.
struct Output {
    name: String,
    limit: f32,
    values: Vec<f32>,
}

/// Runs every verb on its own inputs, the tokens in steps of these sizes.
fn outputs<B: Backend>(be: &mut B, parts: &mut Parts<B>, cut: &[usize]) -> Result<Vec<Output>, Error> {
    let mut all: Vec<Output> = Vec::new();
    (0..3).for_each(|slot| be.reset_slot(&mut parts.cache, slot));
    let mut past = 0;
    for (i, &n) in cut.iter().enumerate() {
        let tokens: Vec<u32> = (past..past + n).map(|i| (i * 31 % VOCAB) as u32).collect();
        let mut batch = Batch::default();
        batch.push(&tokens, past, 0, &[1], n);
        let mut chain = Batch::default();
        chain.push(&tokens, past, 1 + (i + 1) % 2, &[1], n);
        chain.start_from(1 + i % 2);
        let mut step = Step { be, batch, chain, past, n, all: &mut all, index: 0 };
        step.projections(parts, &tokens)?;
        step.attention(parts)?;
        step.gdn(parts)?;
        step.layers(parts)?;
        step.special(&parts.special, &parts.counts, &mut parts.cache, 2)?;
        past += n;
    }
    // A step reports what failed on the device.
    be.step(Pass::Other, &Batch::default(), |_| {})?;
    Ok(all)
}

/// One step of `n` tokens after `past` others, and the results so far.
struct Step<'a, B: Backend> {
    be: &'a mut B,
    batch: Batch,
    /// The same tokens of a sequence whose states alternate between two slots.
    chain: Batch,
    past: usize,
    n: usize,
    all: &'a mut Vec<Output>,
    /// The next verb's place in `all`.
    index: usize,
}

impl<B: Backend> Step<'_, B> {
    /// Rows of random numbers: a token has the same ones in every split.
    fn input(&mut self, width: usize, seed: u64) -> Result<B::Buf, Error> {
        let rows =
            (self.past..self.past + self.n).flat_map(|t| Random(seed * 1000 + t as u64 + 1).vec(width));
        self.be.vector(&rows.collect::<Vec<f32>>())
    }

    /// Adds rows of `width` values to the results of the next verb.
    fn keep(&mut self, name: &str, limit: f32, out: &B::Buf, width: usize) {
        let mut values = vec![0.0; self.n * width];
        self.be.read(out, &mut values);
        match self.all.get_mut(self.index) {
            Some(output) => output.values.extend(values),
            None => self.all.push(Output { name: name.into(), limit, values }),
        }
        self.index += 1;
    }

    fn projections(&mut self, p: &Parts<B>, tokens: &[u32]) -> Result<(), Error> {
        let mut h = self.be.buf(self.n * HIDDEN)?;
        self.be.embed(&Batch::of_tokens(tokens), &p.embedding, TableRow::Id, 1.0, &mut h);
        self.keep("embed", 0.0, &h, HIDDEN);
        let x = self.input(HIDDEN, 1)?;
        self.be.norm(self.n, Some(&x), &p.norm, Out::Write(&mut h));
        self.keep("norm", LIMIT_F32, &h, HIDDEN);
        for (ty, w) in TYPES.iter().zip(&p.projections) {
            let limit = if ty.block_len() == 1 { LIMIT_F32 } else { LIMIT_I8 };
            self.be.project(self.n, &x, Some(&p.norm), [w], [&mut h]);
            self.keep(&format!("project {ty}"), limit, &h, HIDDEN);
        }
        let mut h = self.input(HIDDEN, 2)?;
        self.be.linear(self.n, &x, &p.projections[4], Out::Add(&mut h, 1.0));
        self.keep("linear", LIMIT_I8, &h, HIDDEN);
        Ok(())
    }

    fn attention(&mut self, p: &mut Parts<B>) -> Result<(), Error> {
        let (q_width, kv_width) = (2 * HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let (mut q, mut k) = (self.input(q_width, 3)?, self.input(kv_width, 4)?);
        let v = self.input(kv_width, 5)?;
        self.be.rope_store(&self.batch, &p.attention, 0, &mut p.cache, &mut q, Some((&mut k, &v)));
        self.keep("rope_store", LIMIT_F32, &q, q_width);
        let mut out = self.be.buf(self.n * HEADS * HEAD_DIM)?;
        self.be.attend(&self.batch, &p.attention, 0, &p.cache, &q, &mut out);
        self.keep("attend", LIMIT_F16, &out, HEADS * HEAD_DIM);
        Ok(())
    }

    fn gdn(&mut self, p: &mut Parts<B>) -> Result<(), Error> {
        let values = GDN_HEADS[1] * GDN_DIM;
        let widths = [(CHANNELS, 6), (values, 7), (GDN_HEADS[1], 8), (GDN_HEADS[1], 9)];
        let [qkv, z, b, alpha] = widths.map(|(width, seed)| self.input(width, seed));
        let mut out = self.be.buf(self.n * values)?;
        let [qkv, z, b, alpha] = [qkv?, z?, b?, alpha?];
        self.be.gdn(&self.batch, &p.gdn, 1, &mut p.cache, &[&qkv], &z, &b, &alpha, &mut out);
        self.keep("gdn", LIMIT_F32, &out, values);
        // Twice: the state that it starts from stays as it is.
        for _ in 0..2 {
            self.be.gdn(&self.chain, &p.gdn, 1, &mut p.cache, &[&qkv], &z, &b, &alpha, &mut out);
        }
        self.keep("gdn from another slot", LIMIT_F32, &out, values);
        Ok(())
    }

    /// Feed-forward layers and the vocabulary.
    fn layers(&mut self, p: &Parts<B>) -> Result<(), Error> {
        let mut h = self.input(HIDDEN, 10)?;
        self.be.glu(self.n, None, Some(&p.norms[0]), &p.glu, Out::Add(&mut h, 1.0));
        self.keep("glu", LIMIT_I8, &h, HIDDEN);
        let mut h = self.input(HIDDEN, 11)?;
        let out = Out::Add(&mut h, 1.0);
        self.be.moe(self.n, None, Some(&p.norms[1]), &p.moe, 1, &p.counts, out);
        self.keep("moe", LIMIT_I8, &h, HIDDEN);
        let x = self.input(HIDDEN, 1)?;
        let head = Head { norm: &p.norm, weight: &p.projections[3], scale: 1.0, softcap: None };
        self.be.logits(&self.batch, &x, &head, &mut h);
        self.keep("logits", LIMIT_I8, &h, HIDDEN);
        Ok(())
    }
}

/// The norm of the difference divided by the norm of `b`; infinite if a value is NaN.
fn relative(a: &[f32], b: &[f32]) -> f32 {
    let square = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x) * f64::from(x)).sum::<f64>();
    let d = (square(&mut a.iter().zip(b).map(|(x, y)| x - y)) / square(&mut b.iter().copied())).sqrt();
    if d.is_nan() { f32::INFINITY } else { d as f32 }
}

/// Checks every verb of `be`.
///
/// # Errors
/// When the backend has no room, or its device fails.
pub fn verbs<B: Backend>(be: &mut B) -> Result<Vec<Check>, Error> {
    let mut oracle = Reference;
    let mut p = parts(&mut oracle)?;
    let want = outputs(&mut oracle, &mut p, CUTS[0])?;
    let mut p = parts(be)?;
    let whole = outputs(be, &mut p, CUTS[0])?;
    let mut stable = vec![true; whole.len()];
    for cut in &CUTS[1..] {
        for (is_stable, (a, b)) in stable.iter_mut().zip(outputs(be, &mut p, cut)?.iter().zip(&whole)) {
            *is_stable &= a.values.iter().map(|x| x.to_bits()).eq(b.values.iter().map(|x| x.to_bits()));
        }
    }
    let checks = whole.into_iter().zip(want).zip(stable).map(|((got, want), is_stable)| Check {
        difference: relative(&got.values, &want.values),
        name: got.name,
        limit: got.limit,
        is_stable,
    });
    Ok(checks.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Cpu, CpuOptions};

    #[test]
    fn the_processor_passes() {
        let options = CpuOptions { threads: Some(2), pin: false, ..CpuOptions::default() };
        let checks = verbs(&mut Cpu::new(&options).expect("a processor")).expect("memory");
        assert!(checks.len() >= 16 && checks.iter().all(Check::passed), "{checks:?}");
    }

    #[test]
    fn wrong_kernels_are_named() {
        let check = |difference, is_stable| Check { name: "moe".into(), difference, limit: 0.1, is_stable };
        assert!(check(0.1, true).passed());
        for (wrong, word) in [
            (check(0.2, true), "off by"),
            (check(0.0, false), "batch"),
            (check(f32::INFINITY, true), "off by"),
        ] {
            assert!(!wrong.passed() && wrong.to_string().contains(word) && wrong.to_string().contains("moe"));
        }
        assert_eq!(relative(&[f32::NAN], &[1.0]), f32::INFINITY);
    }
}
