//! A model's dimensions, read and checked from its metadata. Called by `models::load` before any tensor is touched.

use octet_compute::backend::{HeadOrder, MAX_CONV, MAX_EXPERTS, MAX_TOP_K, RopePairing};
use octet_weights::{Metadata, Model};

use super::architectures::{Architecture, architecture};
use super::keys;
use super::rope::{self, Rope};
use crate::Error;

/// Gated DeltaNet dimensions of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct GdnConfig {
    pub k_heads: usize,
    pub v_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    pub conv_kernel: usize,
    pub order: HeadOrder,
}

/// Mixture-of-experts dimensions of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MoeConfig {
    /// Experts of each layer.
    pub experts: usize,
    /// Experts that one token is routed to.
    pub top_k: usize,
    /// The chosen experts' probabilities are divided by their sum.
    pub norm_top_k: bool,
    /// Intermediate size of one expert.
    pub intermediate: usize,
    /// Intermediate size of the shared expert; 0 without one.
    pub shared_intermediate: usize,
}

/// The dimensions of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Its architecture.
    pub architecture: &'static Architecture,
    /// Decoder layers, without the multi-token-prediction block.
    pub layers: usize,
    /// Multi-token-prediction blocks after them in the file (0 or 1).
    pub mtp_layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding table, padding included.
    pub vocab: usize,
    /// Maximum context: the model's own, limited to its sliding window, within which full attention is correct.
    pub context_length: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads of each layer.
    pub kv_heads: Vec<usize>,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Epsilon of all RMS norms.
    pub eps: f32,
    /// Rotary position embedding.
    pub rope: Rope,
    /// How it pairs dimensions.
    pub rope_pairing: RopePairing,
    /// Intermediate size of the dense MLP; 0 when every layer is a mixture of experts.
    pub intermediate: usize,
    /// Mixture of experts, if the model is one.
    pub moe: Option<MoeConfig>,
    /// Gated DeltaNet layers, if the model has them.
    pub gdn: Option<GdnConfig>,
    /// Whether each layer is Gated DeltaNet (true) or softmax attention (false).
    pub recurrent: Vec<bool>,
}

/// Reads keys below the architecture's prefix, with bounds.
pub(super) struct Keys<'a> {
    meta: &'a Metadata,
    arch: &'static Architecture,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch.name)
    }
    pub(super) fn get(&self, key: &str) -> Option<&octet_weights::Value> {
        self.meta.get(&self.name(key))
    }
    pub(super) fn bad(&self, key: &str, what: String) -> Error {
        octet_weights::Error::key(self.meta.file(), &self.name(key), what).into()
    }
    fn range(&self, key: &str, value: usize, max: usize) -> Result<usize, Error> {
        match value {
            0 => Err(self.bad(key, "is 0".into())),
            v if v > max => Err(self.bad(key, format!("is {v}; at most {max} is supported"))),
            v => Ok(v),
        }
    }
    /// A number from 1 to `max`.
    fn size(&self, key: &str, max: usize) -> Result<usize, Error> {
        self.range(key, self.meta.u32(&self.name(key))? as usize, max)
    }
    /// A number up to `max`, if the key is present (0 counts as absent).
    fn opt_size(&self, key: &str, max: usize) -> Result<Option<usize>, Error> {
        match self.meta.opt_u32(&self.name(key))? {
            None | Some(0) => Ok(None),
            Some(v) => self.range(key, v as usize, max).map(Some),
        }
    }
    /// The same; 0 is an error.
    fn present_size(&self, key: &str, max: usize) -> Result<Option<usize>, Error> {
        self.meta.opt_u32(&self.name(key))?.map(|v| self.range(key, v as usize, max)).transpose()
    }
    pub(super) fn opt_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        Ok(self.meta.opt_f32(&self.name(key))?)
    }
    pub(super) fn opt_str(&self, key: &str) -> Result<Option<&str>, Error> {
        Ok(self.meta.opt_str(&self.name(key))?)
    }
}

/// Far above any known model; keeps products of dimensions from overflowing.
const MAX_DIM: usize = 1 << 20;
const MAX_LAYERS: usize = 1024;
const MAX_HEADS: usize = 1024;

/// Maximum context in tokens.
pub const CONTEXT_MAX: usize = 1 << 28;

impl Config {
    /// Reads the dimensions of `model`. Fails for an unknown architecture.
    pub fn read(model: &Model) -> Result<Self, Error> {
        let arch = architecture(model)?;
        let meta = &model.metadata;
        let k = Keys { meta, arch };
        let blocks = k.size("block_count", MAX_LAYERS)?;
        let mtp_layers = match arch.mtp {
            true => k.opt_size("nextn_predict_layers", 1)?.unwrap_or(0),
            false => 0,
        };
        let layers = blocks.checked_sub(mtp_layers).filter(|&l| l > 0).ok_or_else(|| {
            k.bad("nextn_predict_layers", format!("is {mtp_layers}, of {blocks} blocks in all"))
        })?;
        let hidden = k.size("embedding_length", MAX_DIM)?;
        let vocab = vocab(model, hidden)?;
        let recurrent = recurrent_layers(&k, layers)?;
        let (heads, kv_heads) = head_counts(&k, layers, blocks, &recurrent)?;
        let head_dim = head_dim(&k, hidden, heads)?;
        let eps = k
            .opt_f32("attention.layer_norm_rms_epsilon")?
            .filter(|e| *e >= 0.0)
            .ok_or_else(|| k.bad("attention.layer_norm_rms_epsilon", "is missing or negative".into()))?;
        let rope_dims = k.opt_size("rope.dimension_count", head_dim)?.unwrap_or(head_dim);
        if rope_dims % 2 != 0 {
            return Err(k.bad("rope.dimension_count", format!("is {rope_dims}, an odd number")));
        }
        let context_length = k.size("context_length", CONTEXT_MAX)?;
        let window = k.opt_size("attention.sliding_window", usize::MAX)?;
        keys::refuse(&k, head_dim)?;
        let moe = moe(&k, arch)?;
        let config = Self {
            layers,
            mtp_layers,
            hidden,
            vocab,
            // Within its window, sliding-window attention equals full attention.
            context_length: window.map_or(context_length, |w| w.min(context_length)),
            heads,
            kv_heads,
            head_dim,
            eps,
            rope: rope::read(model, &k, rope_dims, context_length)?,
            rope_pairing: rope_pairing(&k)?,
            intermediate: if moe.is_some() { 0 } else { k.size("feed_forward_length", MAX_DIM)? },
            gdn: if recurrent.contains(&true) { Some(gdn(&k)?) } else { None },
            moe,
            recurrent,
            architecture: arch,
        };
        Ok(config)
    }
}

/// Rows of the embedding table, whose shape must be `[vocabulary, hidden]`.
fn vocab(model: &Model, hidden: usize) -> Result<usize, Error> {
    const NAME: &str = "token_embd.weight";
    let what = match model.info(NAME).map(|t| t.shape.as_slice()) {
        Some([vocab, h]) if *h == hidden && *vocab < (1 << 24) => return Ok(*vocab),
        Some(shape) => format!("has shape {shape:?}; expected [vocabulary, {hidden}]"),
        None => "is missing".into(),
    };
    Err(octet_weights::Error::tensor(&model.origin, NAME, what).into())
}

/// Dimensions of a head, the same for keys and values.
fn head_dim(k: &Keys, hidden: usize, heads: usize) -> Result<usize, Error> {
    let head_dim = match k.present_size("attention.key_length", 1024)? {
        Some(d) => d,
        None if hidden.is_multiple_of(heads) => k.range("attention.head_count", hidden / heads, 1024)?,
        None => {
            return Err(k.bad("attention.key_length", "is missing; expected dimensions of a head".into()));
        }
    };
    match k.present_size("attention.value_length", 1024)? {
        Some(v) if v != head_dim => {
            let what = format!("is {v}; only {head_dim}, as for keys, is supported");
            Err(k.bad("attention.value_length", what))
        }
        _ => Ok(head_dim),
    }
}

fn rope_pairing(k: &Keys) -> Result<RopePairing, Error> {
    match k.meta.opt_str("octet.rope_pairing")? {
        Some("half") => Ok(RopePairing::Half),
        None => Ok(k.arch.rope_pairing),
        Some(other) => {
            let what = format!("is '{other}'; expected 'half'");
            Err(octet_weights::Error::key(k.meta.file(), "octet.rope_pairing", what).into())
        }
    }
}

/// Which layers are Gated DeltaNet: an explicit list, or every layer but each `full_attention_interval`-th.
fn recurrent_layers(k: &Keys, layers: usize) -> Result<Vec<bool>, Error> {
    if !k.arch.gated_deltanet {
        return Ok(vec![false; layers]);
    }
    match k.meta.get(&k.name("attention.recurrent_layers")) {
        Some(octet_weights::Value::Array(v)) if v.len() >= layers => v[..layers]
            .iter()
            .map(|v| match v {
                octet_weights::Value::Bool(b) => Ok(*b),
                _ => Err(k.bad("attention.recurrent_layers", "is not an array of booleans".into())),
            })
            .collect(),
        Some(_) => {
            Err(k.bad("attention.recurrent_layers", format!("is not an array of {layers} booleans or more")))
        }
        None => {
            let interval = k.opt_size("full_attention_interval", MAX_LAYERS)?.unwrap_or(4);
            Ok((0..layers).map(|i| (i + 1) % interval != 0).collect())
        }
    }
}

/// Query heads, and key/value heads of each block that has attention (entries of other layers are 0).
fn head_counts(
    k: &Keys,
    layers: usize,
    blocks: usize,
    recurrent: &[bool],
) -> Result<(usize, Vec<usize>), Error> {
    let attends = |i: usize| i >= layers || !recurrent[i];
    let per_layer = k.meta.per_layer_u32(&k.name("attention.head_count"), blocks)?;
    let mut counts = per_layer.iter().enumerate().filter(|(i, _)| attends(*i)).map(|(_, &n)| n as usize);
    let first = counts.next().unwrap_or(per_layer[0] as usize);
    if counts.any(|n| n != first) {
        return Err(
            k.bad("attention.head_count", "differs from layer to layer, which is not supported".into())
        );
    }
    let heads = k.range("attention.head_count", first, MAX_HEADS)?;
    let kv_key = "attention.head_count_kv";
    let kv = match k.meta.get(&k.name(kv_key)) {
        None => vec![heads; blocks],
        Some(_) => k.meta.per_layer_u32(&k.name(kv_key), blocks)?.into_iter().map(|n| n as usize).collect(),
    };
    for (i, &n) in kv.iter().enumerate().filter(|(i, _)| attends(*i)) {
        if n == 0 || heads % n != 0 {
            return Err(k.bad(kv_key, format!("is {n} in layer {i}, which does not divide {heads} heads")));
        }
    }
    Ok((heads, kv))
}

fn moe(k: &Keys, architecture: &Architecture) -> Result<Option<MoeConfig>, Error> {
    let Some(experts) = k.opt_size("expert_count", MAX_EXPERTS)? else { return Ok(None) };
    let top_k = k.size("expert_used_count", MAX_TOP_K.min(experts))?;
    let intermediate = match k.opt_size("expert_feed_forward_length", MAX_DIM)? {
        Some(n) => n,
        None => k.size("feed_forward_length", MAX_DIM)?,
    };
    let shared_intermediate = k.opt_size("expert_shared_feed_forward_length", MAX_DIM)?.unwrap_or(0);
    let norm_top_k = k.meta.opt_bool(&k.name("expert_weights_norm"))?.unwrap_or(architecture.norm_top_k);
    Ok(Some(MoeConfig { experts, top_k, norm_top_k, intermediate, shared_intermediate }))
}

fn gdn(k: &Keys) -> Result<GdnConfig, Error> {
    let k_dim = k.size("ssm.state_size", 1024)?;
    let k_heads = k.size("ssm.group_count", MAX_HEADS)?;
    let v_heads = k.size("ssm.time_step_rank", MAX_HEADS)?;
    let inner = k.size("ssm.inner_size", MAX_DIM)?;
    if v_heads % k_heads != 0 {
        return Err(k.bad("ssm.time_step_rank", format!("is {v_heads}, no multiple of {k_heads} key heads")));
    }
    if inner % v_heads != 0 || inner / v_heads > 1024 {
        return Err(
            k.bad("ssm.inner_size", format!("is {inner}, no sensible multiple of {v_heads} value heads"))
        );
    }
    let order = match k.meta.opt_str("octet.gdn_head_order")? {
        None => HeadOrder::Tiled,
        Some("grouped") => HeadOrder::Grouped,
        Some(other) => {
            let what = format!("is '{other}'; expected 'grouped'");
            return Err(octet_weights::Error::key(k.meta.file(), "octet.gdn_head_order", what).into());
        }
    };
    let conv_kernel = k.size("ssm.conv_kernel", MAX_CONV)?;
    if conv_kernel < 2 {
        return Err(k.bad("ssm.conv_kernel", "is 1; expected at least 2".into()));
    }
    Ok(GdnConfig { k_heads, v_heads, k_dim, v_dim: inner / v_heads, conv_kernel, order })
}
