//! Reads a model's metadata with bounds, for `architectures/`: numbers below the architecture's prefix, and the usual parts of a layer.

use std::cell::RefCell;
use std::collections::BTreeSet;

use octet_compute::backend::{Act, MAX_EXPERTS, MAX_TOP_K, RopePairing, Score, Window};
use octet_weights::{Metadata, Model, Value};

use super::plan::*;
use crate::Error;

/// Far above any known model; keeps products of dimensions from overflowing.
pub const MAX_DIM: usize = 1 << 20;
const MAX_LAYERS: usize = 1024;
const MAX_HEADS: usize = 1024;
/// Maximum dimensions of a head.
pub const MAX_HEAD_DIM: usize = 1024;

/// Maximum context in tokens.
pub const CONTEXT_MAX: usize = 1 << 28;

/// A file's metadata and tensor names, as an architecture reads them.
pub struct Keys<'a> {
    /// The file.
    pub model: &'a Model,
    /// `general.architecture`.
    pub arch: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Layers, without blocks for multi-token prediction.
    pub layers: usize,
    /// Blocks for multi-token prediction after them.
    pub mtp_layers: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Epsilon of norms.
    pub eps: f32,
    meta: &'a Metadata,
    read: RefCell<BTreeSet<String>>,
    /// Tensors that were read as numbers.
    numbers: RefCell<Vec<String>>,
}

impl<'a> Keys<'a> {
    /// Reads the sizes that every architecture has.
    pub fn new(model: &'a Model, arch: &'static str) -> Result<Self, Error> {
        let mut k = Self {
            model,
            arch,
            hidden: 0,
            layers: 0,
            mtp_layers: 0,
            vocab: 0,
            eps: 0.0,
            meta: &model.metadata,
            read: RefCell::default(),
            numbers: RefCell::default(),
        };
        let blocks = k.size("block_count", MAX_LAYERS)?;
        k.mtp_layers = k.opt_size("nextn_predict_layers", MAX_LAYERS)?.unwrap_or(0);
        k.layers = blocks.checked_sub(k.mtp_layers).filter(|&l| l > 0).ok_or_else(|| {
            k.bad("nextn_predict_layers", format!("is {}, of {blocks} blocks in all", k.mtp_layers))
        })?;
        k.hidden = k.size("embedding_length", MAX_DIM)?;
        k.vocab = k.table_rows("token_embd.weight")?;
        // Files with both have 0 for the one that does not apply.
        let eps = match k.opt_f32("attention.layer_norm_rms_epsilon")? {
            None => k.opt_f32("attention.layer_norm_epsilon")?,
            Some(0.0) => k.opt_f32("attention.layer_norm_epsilon")?.or(Some(0.0)),
            eps => eps,
        };
        k.eps = eps
            .filter(|e| *e >= 0.0)
            .ok_or_else(|| k.bad("attention.layer_norm_rms_epsilon", "is missing or negative".into()))?;
        Ok(k)
    }

    // ---- values

    fn name(&self, key: &str) -> String {
        let name = format!("{}.{key}", self.arch);
        self.read.borrow_mut().insert(key.to_string());
        name
    }
    /// The value of a key, if it is present.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.meta.get(&self.name(key))
    }
    /// Whether an architecture has asked for this key.
    pub fn is_read(&self, key: &str) -> bool {
        self.read.borrow().contains(key)
    }
    /// The value of a key, without marking it as read.
    pub fn peek(&self, key: &str) -> Option<&Value> {
        self.meta.get(&format!("{}.{key}", self.arch))
    }
    /// A key with a value that cannot be used.
    pub fn bad(&self, key: &str, what: String) -> Error {
        octet_weights::Error::key(self.meta.file(), &format!("{}.{key}", self.arch), what).into()
    }
    /// A key of Octet's own, without a prefix.
    pub fn own(&self, key: &str) -> Result<Option<&str>, Error> {
        Ok(self.meta.opt_str(key)?)
    }
    /// The same error for a key of Octet's own.
    pub fn bad_own(&self, key: &str, what: String) -> Error {
        octet_weights::Error::key(self.meta.file(), key, what).into()
    }
    /// `value`, which must be 1 to `max`.
    pub fn range(&self, key: &str, value: usize, max: usize) -> Result<usize, Error> {
        match value {
            0 => Err(self.bad(key, format!("is 0; expected 1 to {max}"))),
            v if v > max => Err(self.bad(key, format!("is {v}; at most {max} is supported"))),
            v => Ok(v),
        }
    }
    /// A number from 1 to `max`.
    pub fn size(&self, key: &str, max: usize) -> Result<usize, Error> {
        self.range(key, self.meta.u32(&self.name(key))? as usize, max)
    }
    /// A number up to `max`, if the key is present (0 counts as absent).
    pub fn opt_size(&self, key: &str, max: usize) -> Result<Option<usize>, Error> {
        match self.meta.opt_u32(&self.name(key))? {
            None | Some(0) => Ok(None),
            Some(v) => self.range(key, v as usize, max).map(Some),
        }
    }
    /// The same; 0 is an error.
    pub fn present_size(&self, key: &str, max: usize) -> Result<Option<usize>, Error> {
        self.meta.opt_u32(&self.name(key))?.map(|v| self.range(key, v as usize, max)).transpose()
    }
    /// A number of each layer, if the key is present: one for all, or a list.
    pub fn each(&self, key: &str, max: usize) -> Result<Option<Vec<usize>>, Error> {
        if self.get(key).is_none() {
            return Ok(None);
        }
        let all = self.meta.per_layer_u32(&self.name(key), self.layers + self.mtp_layers)?;
        match all.iter().find(|&&n| n as usize > max) {
            Some(n) => Err(self.bad(key, format!("is {n}; at most {max} is supported"))),
            None => Ok(Some(all.into_iter().map(|n| n as usize).collect())),
        }
    }
    /// A number, if the key is present.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        Ok(self.meta.opt_f32(&self.name(key))?)
    }
    /// A number that is not 0, or `default`.
    pub fn factor(&self, key: &str, default: f32) -> Result<f32, Error> {
        match self.opt_f32(key)?.filter(|f| *f != 0.0) {
            Some(f) if !f.is_finite() => Err(self.bad(key, format!("is {f}; expected a finite number"))),
            f => Ok(f.unwrap_or(default)),
        }
    }
    /// A positive number, if the key is present and not 0.
    pub fn cap(&self, key: &str) -> Result<Option<f32>, Error> {
        match self.opt_f32(key)?.filter(|f| *f != 0.0) {
            Some(f) if !(f > 0.0 && f.is_finite()) => {
                Err(self.bad(key, format!("is {f}; expected a positive number")))
            }
            f => Ok(f),
        }
    }
    /// A text, if the key is present.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, Error> {
        Ok(self.meta.opt_str(&self.name(key))?)
    }
    /// True or false, if the key is present.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        Ok(self.meta.opt_bool(&self.name(key))?)
    }
    /// True or false for each layer: a list of booleans or numbers, or a number `n`, where all but each `n`-th are true.
    pub fn pattern(&self, key: &str) -> Result<Option<Vec<bool>>, Error> {
        let all = self.layers;
        let wrong =
            || self.bad(key, format!("is not a number, nor an array of {all} booleans or numbers or more"));
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(v)) if v.len() >= all => {
                let flag = |v: &Value| if let Value::Bool(b) = v { Ok(*b) } else { Err(wrong()) };
                v[..all].iter().map(flag).collect::<Result<_, _>>().map(Some)
            }
            Some(Value::Ints(v)) if v.len() >= all => Ok(Some(v[..all].iter().map(|n| *n != 0).collect())),
            Some(Value::U64(n)) => Ok(Some(self.all_but_each(usize::try_from(*n).unwrap_or(0)))),
            Some(_) => Err(wrong()),
        }
    }
    /// True for all layers but each `n`-th; for `n` = 0, true for all.
    pub fn all_but_each(&self, n: usize) -> Vec<bool> {
        (1..=self.layers).map(|i| n == 0 || i % n != 0).collect()
    }
    /// Whether the file has this tensor.
    pub fn has(&self, tensor: &str) -> bool {
        self.model.info(tensor).is_some()
    }
    /// The value of a tensor of one value; 1 if the file does not have it.
    pub fn number(&self, tensor: &str) -> Result<f32, Error> {
        if !self.has(tensor) {
            return Ok(1.0);
        }
        let value = self.model.tensor(tensor, &[1])?.to_f32()[0];
        self.numbers.borrow_mut().push(tensor.to_string());
        Ok(value)
    }
    /// Rows of the matrix `{name}.weight`, or of each matrix of a stack.
    pub fn rows(&self, name: &str) -> Result<usize, Error> {
        let name = format!("{name}.weight");
        match self.model.info(&name).map(|t| t.shape.as_slice()) {
            Some([.., rows, _]) if *rows <= MAX_DIM => Ok(*rows),
            Some(shape) => {
                let what = format!("has shape {shape:?}; expected a matrix of at most {MAX_DIM} rows");
                Err(octet_weights::Error::tensor(&self.model.origin, &name, what).into())
            }
            None => Err(octet_weights::Error::tensor(&self.model.origin, &name, "is missing").into()),
        }
    }
    /// Rows of a table `[rows, hidden]`.
    fn table_rows(&self, name: &str) -> Result<usize, Error> {
        let what = match self.model.info(name).map(|t| t.shape.as_slice()) {
            Some([rows, h]) if *h == self.hidden && *rows < (1 << 24) => return Ok(*rows),
            Some(shape) => format!("has shape {shape:?}; expected [vocabulary, {}]", self.hidden),
            None => "is missing".into(),
        };
        Err(octet_weights::Error::tensor(&self.model.origin, name, what).into())
    }

    // ---- parts of a layer

    /// An RMS norm with the weight `{name}.weight`.
    pub fn norm(&self, name: &str, len: usize) -> Norm {
        Norm {
            weight: Tensor::vector(format!("{name}.weight"), len),
            bias: None,
            eps: self.eps,
            centred: false,
            len,
        }
    }
    /// The norm `{name}` of block `i` over the residual stream.
    pub fn layer_norm(&self, i: usize, name: &str) -> Norm {
        self.norm(&format!("blk.{i}.{name}"), self.hidden)
    }
    /// A norm without a weight.
    pub fn plain_norm(&self, len: usize) -> Norm {
        Norm { weight: Tensor::vector("", len).change(Change::Constant(1.0)), ..self.norm("", len) }
    }
    /// LayerNorm, with a bias if the file has one.
    pub fn centred(&self, norm: Norm) -> Norm {
        let name = norm.weight.name.replace(".weight", ".bias");
        let bias = self.has(&name).then(|| Tensor::vector(name, norm.len));
        Norm { bias, centred: true, ..norm }
    }

    /// Query heads of each block.
    pub fn heads(&self) -> Result<Vec<usize>, Error> {
        let key = "attention.head_count";
        let all = self.each(key, MAX_HEADS)?;
        let all = all.ok_or_else(|| self.bad(key, "is missing; expected a number of heads".into()))?;
        match all.iter().all(|n| *n == 0) {
            true => Err(self.bad(key, "is 0".into())),
            false => Ok(all),
        }
    }
    /// Key/value heads of each block; 0 where it has no attention.
    pub fn kv_heads(&self) -> Result<Vec<usize>, Error> {
        let all = self.each("attention.head_count_kv", MAX_HEADS)?;
        all.map_or_else(|| self.heads(), Ok)
    }
    /// Fails unless the key/value heads of block `i` divide its query heads.
    pub fn check_heads(&self, i: usize, heads: usize, kv_heads: usize) -> Result<(), Error> {
        if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let what = format!("is {kv_heads} in layer {i}, which does not divide {heads} heads");
            return Err(self.bad("attention.head_count_kv", what));
        }
        Ok(())
    }
    /// Dimensions of a key head and of a value head.
    pub fn head_dims(&self) -> Result<[usize; 2], Error> {
        let heads = self.heads()?.into_iter().find(|n| *n > 0).unwrap_or(1);
        let key = match self.present_size("attention.key_length", MAX_HEAD_DIM)? {
            Some(d) => d,
            None if self.hidden.is_multiple_of(heads) => {
                self.range("attention.head_count", self.hidden / heads, MAX_HEAD_DIM)?
            }
            None => {
                return Err(
                    self.bad("attention.key_length", "is missing; expected dimensions of a head".into())
                );
            }
        };
        let value = self.present_size("attention.value_length", MAX_HEAD_DIM)?.unwrap_or(key);
        Ok([key, value])
    }
    /// Rotated dimensions of a head of `head_dim`, by `key`.
    pub fn rope_dims(&self, key: &str, head_dim: usize) -> Result<usize, Error> {
        let dims = self.opt_size(key, head_dim)?.unwrap_or(head_dim);
        match dims.is_multiple_of(2) {
            true => Ok(dims),
            false => Err(self.bad(key, format!("is {dims}, an odd number"))),
        }
    }
    /// The window of layers that have one.
    pub fn window(&self) -> Result<Option<usize>, Error> {
        self.opt_size("attention.sliding_window", usize::MAX)
    }
    /// How a file pairs rotated dimensions: `gguf` in GGUF files of this architecture, halves in checkpoints.
    pub fn pairing(&self, gguf: RopePairing) -> Result<RopePairing, Error> {
        match self.own("octet.rope_pairing")? {
            Some("half") => Ok(RopePairing::Half),
            Some("adjacent") => Ok(RopePairing::Adjacent),
            None => Ok(gguf),
            Some(other) => {
                Err(self
                    .bad_own("octet.rope_pairing", format!("is '{other}'; expected 'half' or 'adjacent'")))
            }
        }
    }

    /// Whether tensors of queries, keys and values have them by key/value head: its queries, its key, its value, then the next one's.
    fn has_grouped_rows(&self) -> Result<bool, Error> {
        let key = "octet.qkv_rows";
        match self.own(key)? {
            None => Ok(false),
            Some("grouped") => Ok(true),
            Some(other) => Err(self.bad_own(key, format!("is '{other}'; expected 'grouped'"))),
        }
    }

    /// Attention of block `i` with `heads` query heads, `kv_heads` key/value heads of `[key, value]` dimensions: projections in three tensors or in one, norms
    /// of queries and keys if the file has them, all positions, the first rotation.
    pub fn attention(
        &self,
        i: usize,
        [heads, kv_heads]: [usize; 2],
        [k_dim, v_dim]: [usize; 2],
    ) -> Result<Attention, Error> {
        self.check_heads(i, heads, kv_heads)?;
        let name = |n: &str| format!("blk.{i}.{n}");
        let project = |n: &str, rows| Tensor::matrix(name(n), rows, self.hidden);
        let [q, k, v] = [heads * k_dim, kv_heads * k_dim, kv_heads * v_dim];
        let [q, k, v] = match self.has(&name("attn_qkv.weight")) {
            true => {
                let all = project("attn_qkv", q + k + v);
                match self.has_grouped_rows()? {
                    false => [all.rows(0, q), all.rows(q, k), all.rows(q + k, v)],
                    true => {
                        let queries = q / kv_heads;
                        let each = queries + k_dim + v_dim;
                        let part = |from, len| all.every(from, len, each);
                        [part(0, queries), part(queries, k_dim), part(queries + k_dim, v_dim)]
                    }
                }
            }
            false => [("attn_q", q), ("attn_k", k), ("attn_v", v)].map(|(n, rows)| project(n, rows)),
        };
        let norm = |n: &str, heads: usize| {
            let info = self.model.info(&name(&format!("{n}.weight")))?;
            // Of each head, or of all heads of a token together.
            let of_all = info.shape.iter().product::<usize>() == heads * k_dim;
            Some(self.norm(&name(n), if of_all { heads * k_dim } else { k_dim }))
        };
        Ok(Attention {
            project: Project::Direct { q, k: Some(k), v: Some(v) },
            heads,
            kv_heads,
            k_dim,
            v_dim,
            scale: 1.0 / (k_dim as f32).sqrt(),
            softcap: None,
            sinks: None,
            gated: false,
            gate: None,
            norms: [norm("attn_q_norm", heads), norm("attn_k_norm", kv_heads), None],
            norm_last: false,
            rope: Some(0),
            window: Window::All,
            two_way: false,
            position_scale: None,
            value_scale: 1.0,
            keeps: Keeps::Own,
            out: Tensor::matrix(name("attn_output"), self.hidden, heads * v_dim),
        })
    }

    /// A feed-forward block `ffn_{gate,up,down}{suffix}` of block `i`.
    pub fn glu(&self, i: usize, suffix: &str, inner: usize, act: Act) -> Glu {
        let name = |n: &str| format!("blk.{i}.ffn_{n}{suffix}");
        let [gate, up] = match self.has(&format!("{}.weight", name("gate_up"))) {
            true => {
                let both = Tensor::matrix(name("gate_up"), 2 * inner, self.hidden);
                [both.rows(0, inner), both.rows(inner, inner)]
            }
            false => ["gate", "up"].map(|n| Tensor::matrix(name(n), inner, self.hidden)),
        };
        Glu { gate: Some(gate), up, down: Tensor::matrix(name("down"), self.hidden, inner), act, inner }
    }

    /// Width of the dense block of layer `i`.
    pub fn inner(&self, i: usize) -> Result<usize, Error> {
        let key = "feed_forward_length";
        let all = self.each(key, MAX_DIM)?;
        let all = all.ok_or_else(|| self.bad(key, "is missing; expected a width".into()))?;
        self.range(key, all[i], MAX_DIM)
    }

    /// Experts of the model; `None` without any.
    pub fn experts(&self) -> Result<Option<Experts>, Error> {
        let Some(count) = self.opt_size("expert_count", MAX_EXPERTS)? else { return Ok(None) };
        let top_k = self.size("expert_used_count", MAX_TOP_K.min(count))?;
        let inner = match self.opt_size("expert_feed_forward_length", MAX_DIM)? {
            Some(n) => n,
            None => self.inner(0)?,
        };
        Ok(Some(Experts { count, top_k, inner }))
    }

    /// The experts of block `i`: their router, by softmax unless the file says sigmoid, without a shared expert.
    pub fn moe(&self, i: usize, e: Experts, act: Act, defaults: RouterDefaults) -> Result<Moe, Error> {
        let name = |n: &str| format!("blk.{i}.{n}");
        let score = match self.opt_size("expert_gating_func", usize::MAX)? {
            None => defaults.score,
            Some(1) => Score::Softmax,
            Some(2) => Score::Sigmoid,
            // gpt-oss: a softmax over the chosen ones is one over all, divided by the sum of these.
            Some(3) => Score::Softmax,
            Some(other) => {
                let what =
                    format!("is {other}; expected 1 (softmax), 2 (sigmoid) or 3 (softmax of the chosen)");
                return Err(self.bad("expert_gating_func", what));
            }
        };
        let bias = [name("exp_probs_b.bias"), name("exp_probs_b")]
            .into_iter()
            .find(|n| defaults.biased && self.has(n));
        let stack = |n: &str, rows, cols| Tensor::stack(name(&format!("ffn_{n}_exps")), e.count, rows, cols);
        Ok(Moe {
            router: Router {
                matrix: Tensor::matrix(name("ffn_gate_inp"), e.count, self.hidden),
                input: None,
                score,
                choice_bias: bias.map(|n| Tensor::vector(n, e.count)),
                groups: self.expert_groups(e)?,
                experts: e.count,
                top_k: e.top_k,
                normalise: self.flag("expert_weights_norm")?.unwrap_or(defaults.normalise),
                scale: self.factor("expert_weights_scale", 1.0)?,
                per_expert: None,
                weighs_input: false,
            },
            experts: Glu {
                gate: Some(stack("gate", e.inner, self.hidden)),
                up: stack("up", e.inner, self.hidden),
                down: stack("down", self.hidden, e.inner),
                act,
                inner: e.inner,
            },
            shared: None,
        })
    }

    /// Groups that experts are chosen within; `None` if there is one, or all are used.
    fn expert_groups(&self, e: Experts) -> Result<Option<[usize; 2]>, Error> {
        let groups = self.opt_size("expert_group_count", e.count)?.unwrap_or(1);
        let used = self.opt_size("expert_group_used_count", groups)?.unwrap_or(groups);
        if groups == 1 || used == groups {
            return Ok(None);
        }
        if !e.count.is_multiple_of(groups) || used * (e.count / groups) < e.top_k {
            let what = format!("is {groups} for {} experts, of which {} are chosen", e.count, e.top_k);
            return Err(self.bad("expert_group_count", what));
        }
        Ok(Some([groups, used]))
    }

    /// A shared expert `inner` wide, which every token gets without a gate.
    pub fn shared(&self, i: usize, inner: usize, act: Act) -> Option<(Option<Tensor>, Glu)> {
        Some((None, self.glu(i, "_shexp", inner, act)))
    }

    /// Width of the shared expert: stated, or as many routed ones.
    pub fn shared_inner(&self, e: Experts) -> Result<usize, Error> {
        let stated = self.opt_size("expert_shared_feed_forward_length", MAX_DIM)?;
        let count = self.opt_size("expert_shared_count", MAX_EXPERTS)?;
        match (stated, count) {
            (Some(n), _) => Ok(n),
            (None, Some(n)) => self.range("expert_shared_count", n * e.inner, MAX_DIM),
            (None, None) => Ok(0),
        }
    }

    /// The number of leading layers without experts.
    pub fn leading_dense(&self) -> Result<usize, Error> {
        Ok(self.opt_size("leading_dense_block_count", MAX_LAYERS)?.unwrap_or(0))
    }

    /// The embedding, its rows multiplied by `scale`.
    pub fn embed(&self, scale: f32) -> Embed {
        Embed {
            table: Tensor::matrix("token_embd", self.vocab, self.hidden),
            scale,
            positions: None,
            types: None,
            norm: None,
            per_layer: None,
        }
    }

    /// The head with the norm `output_norm`; the embedding table if the file has none of its own.
    pub fn head(&self) -> Head {
        let own = self.has("output.weight");
        Head {
            norm: self.norm("output_norm", self.hidden),
            matrix: own.then(|| Tensor::matrix("output", self.vocab, self.hidden)),
            scale: 1.0,
            softcap: None,
        }
    }

    /// A plan of these blocks, with the usual embedding and head, without multi-token prediction.
    pub fn plan(&self, ropes: Vec<RopeTable>, blocks: Vec<Block>) -> Plan {
        Plan {
            hidden: self.hidden,
            vocab: self.vocab,
            embed: self.embed(1.0),
            ropes,
            blocks,
            streams: None,
            layers: self.layers,
            head: self.head(),
            pool: None,
            mtp: None,
            further: self.mtp_layers,
            alternating: self.meta.get("octet.gate_up_rows") == Some(&Value::Str("alternating".into())),
            aside: self.numbers.borrow().clone(),
        }
    }
}

/// Experts of each layer.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct Experts {
    pub count: usize,
    pub top_k: usize,
    pub inner: usize,
}

/// What a router does if the file does not say.
#[derive(Debug, Clone, Copy)]
pub struct RouterDefaults {
    /// Logits to scores.
    pub score: Score,
    /// The weights of the chosen experts are divided by their sum.
    pub normalise: bool,
    /// The choice may have a bias.
    pub biased: bool,
}

/// The usual router.
pub const SOFTMAX: RouterDefaults = RouterDefaults { score: Score::Softmax, normalise: true, biased: false };
/// The usual router of models since DeepSeek V3.
pub const SIGMOID: RouterDefaults = RouterDefaults { score: Score::Sigmoid, normalise: true, biased: true };
