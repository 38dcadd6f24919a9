//! Multi-head latent attention (arXiv 2405.04434): DeepSeek V2 and V3, R1, Kimi K2, Moonlight, GLM-4.7-Flash, Mistral Small 4.

use octet_compute::backend::{Act, RopePairing, Score, Window};

use super::llama;
use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, RopeRules};

/// The multiplier of YaRN's logarithm is stored as a tenth.
const TENTH: f32 = 10.0;
/// Epsilon of the norms of latents: that of the models' own code, whatever the file says.
const LATENT_EPS: f32 = 1e-6;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let heads = k.heads()?;
    let latent = Latent::read(k)?;
    let dense = k.leading_dense()?;
    let experts = k.experts()?;
    let score = if k.arch == "mistral4" || !is_glm(k) { Score::Softmax } else { Score::Sigmoid };
    let router = RouterDefaults { score, normalise: k.arch == "mistral4", biased: true };
    let mut blocks = Vec::new();
    for (i, heads) in heads.into_iter().enumerate().take(k.layers) {
        let attention = attention(k, i, heads, &latent)?;
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), Op::Attention(Box::new(attention))));
        let op = match experts {
            Some(e) if i >= dense => Op::Moe(Box::new(llama::moe(k, i, e, router)?)),
            _ => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
        };
        blocks.push(Block::new(i, k.layer_norm(i, "ffn_norm"), op));
    }
    let pairing = k.pairing(RopePairing::Adjacent)?;
    let rope = rope::table(k, latent.rotated, pairing, RopeRules { log_unit: TENTH, ..ROPE })?;
    Ok(k.plan(vec![rope], blocks))
}

/// Older files of GLM-4.7-Flash do not say that its router uses the sigmoid.
fn is_glm(k: &Keys) -> bool {
    k.layers == 47 && k.vocab == 154_880
}

/// Sizes of the latent space.
pub struct Latent {
    /// Dimensions of the latent vector of keys and values.
    rank: usize,
    /// The same of queries.
    queries: Option<usize>,
    /// Dimensions of a query head, of which the last `rotated` are rotated.
    key: usize,
    value: usize,
    rotated: usize,
}

impl Latent {
    pub fn read(k: &Keys) -> Result<Self, Error> {
        let rank = k.size("attention.kv_lora_rank", MAX_HEAD_DIM)?;
        let rotated = k.size("rope.dimension_count", MAX_HEAD_DIM - rank.min(MAX_HEAD_DIM - 1))?;
        let dims = k.head_dims()?;
        let key = k.opt_size("attention.key_length_mla", MAX_HEAD_DIM)?.unwrap_or(dims[0]);
        let value = k.opt_size("attention.value_length_mla", MAX_HEAD_DIM)?.unwrap_or(dims[1]);
        if key <= rotated || rotated % 2 != 0 {
            let what = format!("is {rotated}; expected an even number below {key}, the dimensions of a head");
            return Err(k.bad("rope.dimension_count", what));
        }
        Ok(Self { rank, queries: k.opt_size("attention.q_lora_rank", MAX_DIM)?, key, value, rotated })
    }
}

/// Latent attention of block `i`, with the first rotation.
pub fn attention(k: &Keys, i: usize, heads: usize, l: &Latent) -> Result<Attention, Error> {
    let name = |n: &str| format!("blk.{i}.attn_{n}");
    let norm = |n: &str, len| Norm { eps: LATENT_EPS, ..k.norm(&name(n), len) };
    let (q, q_cols) = if l.queries.is_some() { ("q_b", l.queries) } else { ("q", None) };
    // Checkpoints have the keys' and the values' matrices of all heads in one tensor.
    let (nope, both) = (l.key - l.rotated, l.key - l.rotated + l.value);
    let [heads_k, heads_v] = if k.has(&format!("{}.weight", name("kv_b"))) {
        let all = Tensor::matrix(name("kv_b"), heads * both, l.rank);
        [all.every(0, nope, both).split(heads, true), all.every(nope, l.value, both).split(heads, false)]
    } else {
        [Tensor::stack(name("k_b"), heads, l.rank, nope), Tensor::stack(name("v_b"), heads, l.value, l.rank)]
    };
    let mscale = rope::log_scale(k, TENTH)?.unwrap_or(1.0);
    let scale = 1.0 / (l.key as f32).sqrt() * mscale * mscale;
    k.check_heads(i, heads, 1)?;
    Ok(Attention {
        project: Project::Latent {
            down_q: l
                .queries
                .map(|rank| (Tensor::matrix(name("q_a"), rank, k.hidden), norm("q_a_norm", rank))),
            q: Tensor::matrix(name(q), heads * l.key, q_cols.unwrap_or(k.hidden)),
            down_kv: Tensor::matrix(name("kv_a_mqa"), l.rank + l.rotated, k.hidden),
            heads_k,
            heads_v,
            rotated: l.rotated,
            value: l.value,
        },
        heads,
        kv_heads: 1,
        k_dim: l.rank + l.rotated,
        v_dim: l.rank,
        scale,
        softcap: None,
        sinks: None,
        gated: false,
        gate: None,
        norms: [None, Some(norm("kv_a_norm", l.rank)), None],
        norm_last: false,
        rope: Some(0),
        window: Window::All,
        two_way: false,
        position_scale: llama::position_scale(k)?,
        value_scale: 1.0,
        keeps: Keeps::Own,
        out: Tensor::matrix(name("output"), k.hidden, heads * l.value),
    })
}
