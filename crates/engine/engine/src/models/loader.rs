//! Loads a plan's tensors into a backend, with every shape checked.

mod unused;
pub(crate) mod whole;

use std::collections::HashSet;

use octet_compute::backend::{self as verbs, Backend, LayerCache, SharedExpert, Stage, Times};
use octet_weights::{GgmlType, Matrix, Model};

use super::decoder::{Block, Branch, Decoder, DraftHead, Mtp, Op, Project};
use super::delta::{Delta, Input};
use super::derive::Caches;
use super::mtp::DraftVocab;
use super::plan::{self, Change, Keeps, Plan, RopeTable, Tensor};
use crate::Error;
pub use whole::check;

/// Token types that end or mark parts of an answer: control tokens and added ones.
const MARKS: [i64; 2] = [3, 4];

/// Called while a model loads, with the bytes loaded so far and in total.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Asked while a model loads, about once for each of its layers: false ends that.
pub type GoesOn<'a> = &'a (dyn Fn() -> bool + Sync);

/// A model being loaded into backend `B`.
pub struct Loader<'a, B: Backend> {
    /// The open model.
    pub(super) model: &'a Model,
    /// The backend for its weights.
    pub(super) be: &'a mut B,
    /// Its plan.
    pub(super) plan: &'a Plan,
    caches: Caches,
    progress: Progress<'a>,
    goes_on: GoesOn<'a>,
    loaded: u64,
    used: HashSet<String>,
    /// While the block for multi-token prediction is loaded.
    pub(super) in_mtp: bool,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// Starts loading `model` into `be`.
    pub fn new(model: &'a Model, be: &'a mut B, plan: &'a Plan, progress: Progress<'a>) -> Self {
        Self {
            model,
            be,
            plan,
            caches: Caches::new(plan),
            progress,
            goes_on: &|| true,
            loaded: 0,
            used: HashSet::new(),
            in_mtp: false,
        }
    }

    /// Asks whether to go on.
    pub fn while_it(self, goes_on: GoesOn<'a>) -> Self {
        Self { goes_on, ..self }
    }

    /// Loads the whole model; including the multi-token-prediction block if the file has one and `mtp` is set.
    pub fn decoder(mut self, mtp: Option<DraftVocab>) -> Result<Decoder<B>, Error> {
        let p = self.plan;
        self.used.extend(p.aside.iter().cloned());
        let (embedding, head) = self.embedding_and_head()?;
        self.be.stage_next(Stage::Embedding);
        let added = self.added(&p.embed)?;
        let embed_norm = self.opt_norm(p.embed.norm.as_ref())?;
        let per_layer = p.embed.per_layer.as_ref().map(|l| self.per_layer(l)).transpose()?;
        let blocks = self.blocks(&p.blocks)?;
        let streams = p.streams.as_ref().map(|s| self.streams(s)).transpose()?;
        self.be.stage_next(Stage::Head);
        let mtp = match (&p.mtp, mtp) {
            (Some(block), Some(vocab)) => Some(self.mtp(block, vocab)?),
            _ => None,
        };
        let norm = self.norm(&p.head.norm)?;
        let pool = self.pool(p.pool.as_ref())?;
        unused::refuse(self.model, p, |name| self.used.contains(name))?;
        Ok(Decoder {
            hidden: p.hidden,
            vocab: p.vocab,
            layers: p.layers,
            embedding,
            embed_scale: p.embed.scale,
            added,
            embed_norm,
            per_layer,
            blocks,
            streams,
            norm,
            head,
            pool,
            head_scale: p.head.scale,
            softcap: p.head.softcap,
            caches: self.caches.shape(mtp.is_some()),
            mtp,
            picks: false,
        })
    }

    /// The multi-token-prediction block.
    fn mtp(&mut self, m: &plan::Mtp, vocab: DraftVocab) -> Result<Mtp<B>, Error> {
        let h = self.plan.hidden;
        self.in_mtp = true;
        let block = Mtp {
            embed_norm: self.norm(&m.embed_norm)?,
            hidden_norm: self.norm(&m.hidden_norm)?,
            fc_embed: self.columns(&m.fc, 0..h)?,
            fc_hidden: self.columns(&m.fc, h..2 * h)?,
            blocks: self.blocks(&m.blocks)?,
            norm: self.norm(&m.norm)?,
            head: {
                self.be.stage_next(Stage::Head);
                self.draft_head(vocab)?
            },
        };
        self.in_mtp = false;
        Ok(block)
    }

    /// The head for drafts, if the whole one is much larger: the first tokens, [`MARKS`], and rows for recent tokens of the text.
    fn draft_head(&mut self, among: DraftVocab) -> Result<Option<DraftHead<B>>, Error> {
        let (vocab, hidden) = (self.plan.vocab, self.plan.hidden);
        if !among.is_part_of(vocab) {
            return Ok(None);
        }
        let DraftVocab { first, recent } = among;
        let tensor = self.plan.head.matrix.as_ref().unwrap_or(&self.plan.embed.table);
        let name = format!("{}.weight", tensor.name);
        let all = self.model.tensor(&name, &[vocab, hidden])?.matrix();
        let mut rows: Vec<usize> = (0..first).collect();
        let kinds = self.model.metadata.opt_ints("tokenizer.ggml.token_type")?.unwrap_or_default();
        for (id, kind) in kinds.iter().enumerate().take(vocab).skip(first) {
            if MARKS.contains(kind) {
                rows.push(id);
            }
        }
        let ids = rows.iter().map(|&id| id as u32).collect();
        // Rows without a token so far may have any content.
        rows.resize(rows.len() + recent, 0);
        let head = self.be.weight(&all.select_rows(&rows), None);
        Ok(Some(DraftHead { weight: self.named(&name, head)?, ids, recent }))
    }

    pub(crate) fn blocks(&mut self, blocks: &[plan::Block]) -> Result<Vec<Block<B>>, Error> {
        blocks.iter().map(|b| self.block(b)).collect()
    }

    fn block(&mut self, b: &plan::Block) -> Result<Block<B>, Error> {
        if !(self.goes_on)() {
            return Err(Error::LoadGivenUp);
        }
        self.be.stage_next(Stage::Layer(b.layer));
        for op in b.branches.iter().map(|r| &r.op).filter(|op| op.cache() != LayerCache::None) {
            self.be.cache_next(self.caches.at(b.layer, op));
        }
        let branch = |s: &mut Self, branch: &plan::Branch| {
            Ok::<_, Error>(Branch {
                pre: s.opt_norm(branch.pre.as_ref())?,
                op: s.op(b.layer, &branch.op)?,
                post: s.opt_norm(branch.post.as_ref())?,
            })
        };
        Ok(Block {
            layer: b.layer,
            branches: b.branches.iter().map(|r| branch(self, r)).collect::<Result<_, _>>()?,
            post: self.opt_norm(b.post.as_ref())?,
            add: b.add,
            keep: b.keep,
            norm: self.opt_norm(b.norm.as_ref())?,
        })
    }

    fn op(&mut self, layer: usize, op: &plan::Op) -> Result<Op<B>, Error> {
        match op {
            plan::Op::Attention(a) => self.attention(layer, a),
            plan::Op::Delta(d) => self.delta(layer, d),
            plan::Op::Ssm(s) => {
                let at = self.caches.at(layer, op);
                self.ssm(at, s)
            }
            plan::Op::ShortConv(s) => Ok(Op::ShortConv {
                cache: self.caches.at(layer, op),
                bcx: self.matrix(&s.bcx)?,
                out: self.matrix(&s.out)?,
                spec: verbs::ShortConv { width: s.width, taps: s.taps, conv: self.vector(&s.conv)? },
            }),
            plan::Op::Glu(g) => Ok(Op::Glu(self.glu(g)?)),
            plan::Op::SparseGlu(g, deviations) => self.sparse_glu(g, *deviations),
            plan::Op::LowRank { down, up } => {
                Ok(Op::LowRank { down: self.matrix(down)?, up: self.matrix(up)? })
            }
            plan::Op::Norm(norm) => Ok(Op::Norm(self.norm(norm)?)),
            plan::Op::Moe(m) => Ok(Op::Moe(self.moe(m)?)),
            plan::Op::PerLayer { gate, out, act } => {
                Ok(Op::PerLayer { gate: self.matrix(gate)?, out: self.matrix(out)?, act: *act })
            }
        }
    }

    fn attention(&mut self, layer: usize, a: &plan::Attention) -> Result<Op<B>, Error> {
        let (project, values_in_keys, at) = match &a.project {
            plan::Project::Direct { q, k, v } => {
                let k = k.as_ref().map(|k| self.matrix(k)).transpose()?;
                let v = v.as_ref().map(|v| self.matrix(v)).transpose()?;
                (Project::Direct { q: self.matrix(q)?, k, v }, false, 0)
            }
            plan::Project::Latent { down_q, q, down_kv, heads_k, heads_v, rotated, .. } => {
                let down_q = match down_q {
                    Some((m, n)) => Some((self.matrix(m)?, self.norm(n)?)),
                    None => None,
                };
                let project = Project::Latent {
                    down_q,
                    q: self.matrix(q)?,
                    down_kv: self.matrix(down_kv)?,
                    heads_k: self.stack(heads_k)?,
                    heads_v: self.stack(heads_v)?,
                    rotated: *rotated,
                };
                (project, true, a.v_dim)
            }
        };
        let [q, k, v] = &a.norms;
        let norms = [self.opt_norm(q.as_ref())?, self.opt_norm(k.as_ref())?, self.opt_norm(v.as_ref())?];
        let rope = a.rope.map(|r| self.rope(&self.plan.ropes[r], at)).transpose()?;
        Ok(Op::Attention {
            project,
            gate: match &a.gate {
                Some((m, gate)) if m.shape[0] == a.heads => Some((self.matrix(m)?, Times::GatedByOne(*gate))),
                Some((m, gate)) => Some((self.matrix(m)?, Times::Gated(*gate))),
                None => None,
            },
            out: self.matrix(&a.out)?,
            cache: match a.keeps {
                Keeps::Own => layer,
                Keeps::Of(other) => other,
            },
            spec: verbs::Attention {
                heads: a.heads,
                kv_heads: a.kv_heads,
                k_dim: a.k_dim,
                v_dim: a.v_dim,
                values_in_keys,
                scale: a.scale,
                softcap: a.softcap,
                sinks: a.sinks.as_ref().map(|s| self.vector(s)).transpose()?,
                gated: a.gated,
                norms,
                norm_last: a.norm_last,
                rope,
                window: a.window,
                two_way: a.two_way,
                position_scale: a.position_scale,
                value_scale: a.value_scale,
            },
        })
    }

    fn rope(&mut self, r: &RopeTable, at: usize) -> Result<verbs::Rope<B>, Error> {
        let inv_freq = self.be.vector(&r.inv_freq);
        let (inv_freq, axes) = (self.named("rope_freqs.weight", inv_freq)?, r.axes.clone());
        Ok(verbs::Rope { at, dims: r.dims, pairing: r.pairing, inv_freq, scale: r.scale, axes })
    }

    fn delta(&mut self, cache: usize, d: &plan::Delta) -> Result<Op<B>, Error> {
        let input = match (&d.qkv[..], &d.down) {
            ([q, k, v], Some([z, alpha])) => Input::Apart {
                qkv: [self.matrix(q)?, self.matrix(k)?, self.matrix(v)?],
                down: [self.matrix(z)?, self.matrix(alpha)?],
            },
            (qkv, _) => Input::Together(self.matrix(&qkv[0])?),
        };
        Ok(Op::Delta(Delta {
            input,
            z: self.matrix(&d.z)?,
            beta: self.matrix(&d.beta)?,
            alpha: self.matrix(&d.alpha)?,
            out: self.matrix(&d.out)?,
            cache,
            spec: verbs::Gdn {
                k_heads: d.k_heads,
                v_heads: d.v_heads,
                k_dim: d.k_dim,
                v_dim: d.v_dim,
                conv_kernel: d.taps,
                order: d.order,
                conv: self.taps(&d.conv, d.taps)?,
                row_decay: d.row_decay,
                dt_bias: self.vector(&d.dt_bias)?,
                a: self.vector(&d.a)?,
                sigmoid_gate: d.sigmoid_gate,
                eps: d.norm.eps,
                norm: self.vector(&d.norm.weight)?,
            },
        }))
    }

    /// The taps of a convolution `[taps, channels]` from parts `[channels, taps]` of its channels.
    fn taps(&mut self, parts: &[Tensor], taps: usize) -> Result<B::Buf, Error> {
        let mut rows = vec![Vec::new(); taps];
        for t in parts {
            let values = self.values(&t.name, &t.shape)?;
            for (i, row) in rows.iter_mut().enumerate() {
                row.extend(values.iter().skip(i).step_by(taps));
            }
            self.done(&t.name);
        }
        let v = self.be.vector(&rows.concat());
        self.named(&parts[0].name, v)
    }

    fn ssm(&mut self, cache: usize, s: &plan::Ssm) -> Result<Op<B>, Error> {
        Ok(Op::Ssm {
            z: self.matrix(&s.z)?,
            xbc: self.matrix(&s.xbc)?,
            dt: self.matrix(&s.dt)?,
            out: self.matrix(&s.out)?,
            cache,
            spec: verbs::Ssm {
                groups: s.groups,
                heads: s.heads,
                dim: s.dim,
                state: s.state,
                taps: s.taps,
                conv: self.vector(&s.conv)?,
                conv_bias: s.conv_bias.as_ref().map(|b| self.vector(b)).transpose()?,
                dt_bias: self.vector(&s.dt_bias)?,
                a: self.vector(&s.a)?,
                d: self.vector(&s.d)?,
                norm: self.opt_norm(s.norm.as_ref())?,
            },
        })
    }

    pub(crate) fn glu(&mut self, g: &plan::Glu) -> Result<verbs::Glu<B::Weight>, Error> {
        Ok(verbs::Glu {
            gate: g.gate.as_ref().map(|m| self.matrix(m)).transpose()?,
            up: self.matrix(&g.up)?,
            down: self.matrix(&g.down)?,
            act: g.act,
        })
    }

    fn moe(&mut self, m: &plan::Moe) -> Result<verbs::Moe<B>, Error> {
        let r = &m.router;
        let router = verbs::Router {
            weight: self.matrix(&r.matrix)?,
            input: self.opt_norm(r.input.as_ref())?,
            score: r.score,
            choice_bias: r.choice_bias.as_ref().map(|b| self.vector(b)).transpose()?,
            groups: r.groups,
            experts: r.experts,
            top_k: r.top_k,
            normalise: r.normalise,
            scale: r.scale,
            per_expert: r.per_expert.as_ref().map(|f| self.vector(f)).transpose()?,
            weighs_input: r.weighs_input,
        };
        let experts = match self.slots(r.experts) {
            Some(_) => self.stored_experts(&m.experts)?,
            None => {
                let (gate, up) = self.gate_and_up(&m.experts)?;
                verbs::Glu { gate, up, down: self.stack(&m.experts.down)?, act: m.experts.act }
            }
        };
        let shared = match &m.shared {
            None => None,
            Some((gate, glu)) => Some(SharedExpert {
                gate: gate.as_ref().map(|g| self.vector(g)).transpose()?,
                glu: self.glu(glu)?,
            }),
        };
        Ok(verbs::Moe { router, experts, shared })
    }

    // ---- tensors

    /// Whether this tensor has been loaded.
    pub(crate) fn is_used(&self, name: &str) -> bool {
        self.used.contains(name)
    }

    pub(crate) fn done(&mut self, name: &str) {
        // Two parts may share a norm.
        if self.used.insert(name.to_string()) {
            self.loaded += self.model.info(name).map_or(0, |t| t.size_bytes());
        }
        self.model.release(name);
        (self.progress)(self.loaded, self.model.size_bytes());
    }

    pub(super) fn named<T>(&self, name: &str, r: Result<T, octet_compute::Error>) -> Result<T, Error> {
        r.map_err(|e| octet_weights::Error::tensor(&self.model.origin, name, e.to_string()).into())
    }

    pub(crate) fn opt_norm(&mut self, n: Option<&plan::Norm>) -> Result<Option<verbs::Norm<B>>, Error> {
        n.map(|n| self.norm(n)).transpose()
    }

    pub(crate) fn norm(&mut self, n: &plan::Norm) -> Result<verbs::Norm<B>, Error> {
        Ok(verbs::Norm {
            weight: self.vector(&n.weight)?,
            bias: n.bias.as_ref().map(|b| self.vector(b)).transpose()?,
            eps: n.eps,
            centred: n.centred,
            len: n.len,
        })
    }

    /// A small tensor as f32 values, changed as the plan says.
    pub(super) fn vector(&mut self, t: &Tensor) -> Result<B::Buf, Error> {
        let len = t.shape.iter().product();
        if let Change::Constant(value) = t.change {
            let v = self.be.vector(&vec![value; len]);
            return self.named("a norm without a weight", v);
        }
        let mut values = self.values(&t.name, &t.shape)?;
        match (t.change, &t.shape[..]) {
            (Change::Repeat(n), _) => {
                values = values.into_iter().flat_map(|x| std::iter::repeat_n(x, n)).collect()
            }
            (Change::Scale(factor), _) => values.iter_mut().for_each(|x| *x *= factor),
            (Change::Transpose, &[channels, taps]) => {
                values = (0..len).map(|i| values[i % channels * taps + i / channels]).collect();
            }
            _ => {}
        }
        let v = self.be.vector(&values);
        let v = self.named(&t.name, v)?;
        self.done(&t.name);
        Ok(v)
    }

    /// A buffer with these values.
    pub(crate) fn buffer(&mut self, values: &[f32]) -> Result<B::Buf, Error> {
        Ok(self.be.vector(values)?)
    }

    /// The values of a tensor, whose shape may have further dimensions of 1.
    pub(crate) fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let shape = stored_shape(self.model, name, shape);
        Ok(self.model.tensor(name, &shape)?.to_f32())
    }

    /// The bias `{stem}.bias`, if the file has it.
    pub(super) fn bias(&mut self, stem: &str, shape: &[usize]) -> Result<Option<Vec<f32>>, Error> {
        let name = format!("{stem}.bias");
        if self.model.info(&name).is_none() {
            return Ok(None);
        }
        let values = self.values(&name, shape)?;
        self.done(&name);
        Ok(Some(values))
    }

    /// `{name}.weight` as a projection, with `{name}.bias` where the file has one; or some of their rows.
    pub(crate) fn matrix(&mut self, t: &Tensor) -> Result<B::Weight, Error> {
        let (rows, cols) = (t.whole(), t.shape[1]);
        let name = format!("{}.weight", t.name);
        let runs = t.runs();
        let bias = self.bias(&t.name, &[rows])?.map(|b| match &runs[..] {
            [] => b,
            _ => runs.iter().flat_map(|r| b[r.clone()].to_vec()).collect(),
        });
        let (label, own) = match &runs[..] {
            [] => (name.clone(), rows),
            _ => (format!("{name} {runs:?}"), runs.iter().map(ExactSizeIterator::len).sum()),
        };
        if let Some(ty) = self.type_of(&name, &[rows, cols])? {
            self.be.name_next(&name);
            let kept = self.be.kept_weight(&label, ty, [own, cols], bias.as_deref());
            if let Some(kept) = self.named(&name, kept)? {
                self.done(&name);
                return Ok(kept);
            }
        }
        let whole = self.model.tensor(&name, &[rows, cols])?.matrix();
        let m = match &runs[..] {
            [] => whole,
            [run] => whole.slice_rows(run.start, run.end),
            _ => whole.select_rows(&runs.iter().cloned().flatten().collect::<Vec<usize>>()),
        };
        self.pack(&name, &m, bias.as_deref())
    }

    /// The type of a tensor of this shape; `None` if the file does not have it.
    pub(super) fn type_of(&self, name: &str, shape: &[usize]) -> Result<Option<GgmlType>, Error> {
        let Some(info) = self.model.info(name) else { return Ok(None) };
        info.expect_shape(&self.model.origin, shape)?;
        Ok(Some(info.ty))
    }

    pub(crate) fn pack(&mut self, name: &str, m: &Matrix, bias: Option<&[f32]>) -> Result<B::Weight, Error> {
        self.be.name_next(name);
        let w = self.be.weight(m, bias);
        let w = self.named(name, w)?;
        self.done(name);
        Ok(w)
    }

    /// Columns of a projection, copied row by row.
    fn columns(&mut self, t: &Tensor, range: std::ops::Range<usize>) -> Result<B::Weight, Error> {
        let name = format!("{}.weight", t.name);
        let m = self.model.tensor(&name, &t.shape)?.matrix();
        let m = m.slice_cols(range).ok_or_else(|| {
            let what = "half its columns are not a multiple of the block size";
            octet_weights::Error::tensor(&self.model.origin, &name, what)
        })?;
        self.pack(&name, &m, None)
    }

    pub(crate) fn table(&mut self, t: &Tensor) -> Result<(B::Embedding, Matrix), Error> {
        let name = format!("{}.weight", t.name);
        let table = self.model.tensor(&name, &t.shape)?.matrix();
        let model = self.model;
        // As it is in the file, or not at all.
        let place =
            || model.unread(&name, &t.shape).ok().flatten().filter(|u| u.ty == table.ty).map(|u| u.bytes);
        let embedding = match self.be.embedding_in_file(&table, &place) {
            Some(embedding) => embedding,
            None => {
                let embedding = self.be.embedding(&table);
                self.named(&name, embedding)?
            }
        };
        self.done(&name);
        Ok((embedding, table))
    }

    /// The embedding table and the output head, which may be the same tensor. An encoder has no head.
    fn embedding_and_head(&mut self) -> Result<(B::Embedding, Option<B::Weight>), Error> {
        let (embedding, table) = self.table(&self.plan.embed.table)?;
        self.be.stage_next(Stage::Head);
        let head = match &self.plan.head.matrix {
            _ if self.plan.pool.is_some() => None,
            Some(head) => Some(self.matrix(head)?),
            None => {
                self.be.name_next("token_embd.weight");
                let kept = self.be.kept_weight("output", table.ty, [table.rows, table.cols], None);
                let head = match self.named("token_embd.weight", kept)? {
                    Some(kept) => kept,
                    None => {
                        let head = self.be.weight(&table, None);
                        self.named("token_embd.weight", head)?
                    }
                };
                Some(head)
            }
        };
        Ok((embedding, head))
    }
}

/// The shape in which a file has `shape` values of this name: it may have further dimensions of 1.
pub(crate) fn stored_shape(model: &octet_weights::Model, name: &str, shape: &[usize]) -> Vec<usize> {
    let larger = |s: &[usize]| s.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
    let stored = model.info(name).map(|t| t.shape.clone());
    match stored {
        // As many values: some converters flatten norms of groups.
        Some(s)
            if larger(&s) == larger(shape)
                || s.len() == 2 && shape.len() == 1 && s.iter().product::<usize>() == shape[0] =>
        {
            s
        }
        _ => shape.to_vec(),
    }
}
