//! Llama and its relatives: pre-norm attention and feed-forward blocks that differ in a few choices. Qwen2 and 3, OLMoE, Mixtral, Seed-OSS,
//! ERNIE 4.5, Mistral 3, Mellum 2, MiniMax M2, GLM-4.5, dots.llm1, Hunyuan 3, Ling 1 and 2, DeepSeek 1, InternLM 2, EXAONE 3, AFM.

use octet_compute::backend::{Act, RopePairing, Window};

use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::rope::{self, WINDOWED};
use crate::models::windows::Windows;

/// The choices.
#[derive(Clone, Copy)]
pub struct Choices {
    /// How GGUF files pair rotated dimensions.
    pub pairing: RopePairing,
    /// The name of the norm before the feed-forward block.
    pub feed_forward_norm: &'static str,
    /// What a router does if the file does not say.
    pub router: RouterDefaults,
    /// Norms of queries and keys.
    pub norms: Norms,
    /// Experts follow this number of dense layers, if the file does not say.
    pub dense: usize,
}

/// Whether queries and keys have norms.
#[derive(Clone, Copy, PartialEq)]
pub enum Norms {
    /// No.
    No,
    /// If the file has them.
    Some,
    /// Always.
    All,
}

/// Llama 1 to 3, SmolLM2, Mistral, and Mixtral, which adds experts.
pub const LLAMA: Choices = Choices {
    pairing: RopePairing::Adjacent,
    feed_forward_norm: "ffn_norm",
    router: SOFTMAX,
    norms: Norms::No,
    dense: 0,
};
const HALVES: Choices = Choices { pairing: RopePairing::Half, ..LLAMA };
const QWEN3: Choices = Choices { norms: Norms::All, ..HALVES };
/// Weights of experts are probabilities among all.
const UNDIVIDED: RouterDefaults = RouterDefaults { normalise: false, ..SOFTMAX };

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    decoder(k, LLAMA)
}
/// Qwen2, EXAONE 3; the loader accepts any bias in a file.
pub fn halves(k: &Keys) -> Result<Plan, Error> {
    decoder(k, HALVES)
}
pub fn qwen3(k: &Keys) -> Result<Plan, Error> {
    decoder(k, QWEN3)
}
/// Qwen3-VL: tokens of images turn by row and column.
pub fn qwen3vl(k: &Keys) -> Result<Plan, Error> {
    let mut plan = decoder(k, QWEN3)?;
    plan.ropes = plan.ropes.into_iter().map(|r| rope::interleaved(k, r)).collect::<Result<_, _>>()?;
    Ok(plan)
}
/// Qwen2.5-VL: the same, in sections.
pub fn qwen2vl(k: &Keys) -> Result<Plan, Error> {
    let mut plan = decoder(k, HALVES)?;
    plan.ropes = plan.ropes.into_iter().map(|r| rope::in_sections(k, r)).collect::<Result<_, _>>()?;
    Ok(plan)
}
/// Qwen1.5 and 2 with experts.
pub fn qwen2moe(k: &Keys) -> Result<Plan, Error> {
    decoder(k, Choices { router: UNDIVIDED, ..HALVES })
}
pub fn olmoe(k: &Keys) -> Result<Plan, Error> {
    decoder(k, Choices { router: UNDIVIDED, ..QWEN3 })
}
pub fn seed_oss(k: &Keys) -> Result<Plan, Error> {
    decoder(k, Choices { feed_forward_norm: "post_attention_norm", ..HALVES })
}
/// Experts are chosen by probability and a bias.
pub fn ernie(k: &Keys) -> Result<Plan, Error> {
    decoder(k, Choices { router: RouterDefaults { biased: true, ..SOFTMAX }, ..LLAMA })
}
/// Ministral 3 and Devstral Small 2: queries grow with the position.
pub fn mistral3(k: &Keys) -> Result<Plan, Error> {
    decoder(k, LLAMA)
}
/// Qwen3-MoE with windows.
pub fn mellum(k: &Keys) -> Result<Plan, Error> {
    decoder(k, QWEN3)
}
pub fn minimax(k: &Keys) -> Result<Plan, Error> {
    decoder(k, Choices { router: SIGMOID, ..QWEN3 })
}
/// GLM-4.5 to 4.7; the large ones have norms of queries and keys, those that see (4.5V, 4.6V) sections of rotations.
pub fn glm4moe(k: &Keys) -> Result<Plan, Error> {
    let choices =
        Choices { feed_forward_norm: "post_attention_norm", router: SIGMOID, norms: Norms::Some, ..HALVES };
    let mut plan = decoder(k, choices)?;
    plan.ropes = plan.ropes.into_iter().map(|r| rope::in_sections(k, r)).collect::<Result<_, _>>()?;
    Ok(plan)
}
/// Experts beside shared ones: DeepSeek 1, Ling 1.
pub fn deepseek(k: &Keys) -> Result<Plan, Error> {
    decoder(k, Choices { router: UNDIVIDED, ..LLAMA })
}
/// AFM: feed-forward blocks without a gate.
pub fn arcee(k: &Keys) -> Result<Plan, Error> {
    let mut plan = decoder(k, LLAMA)?;
    plan.glus_mut().for_each(|g| (g.gate, g.act) = (None, Act::Relu2));
    Ok(plan)
}
/// dots.llm1, Ling 2.
pub fn dots(k: &Keys) -> Result<Plan, Error> {
    decoder(k, Choices { router: SIGMOID, ..QWEN3 })
}
pub fn hy_v3(k: &Keys) -> Result<Plan, Error> {
    decoder(k, Choices { router: SIGMOID, dense: 1, ..QWEN3 })
}

/// A decoder of these choices.
pub fn decoder(k: &Keys, c: Choices) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let experts = k.experts()?;
    let dense = k.leading_dense()?.max(c.dense);
    let windows = Windows::read(k)?;
    let mut ropes = vec![k.rope(dims[0], c.pairing)?];
    if windows.is_some() && k.peek(WINDOWED.base).is_some() {
        ropes.push(rope::table(k, ropes[0].dims, ropes[0].pairing, WINDOWED)?);
    }
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        match c.norms {
            Norms::No => a.norms = [None, None, None],
            Norms::Some => {}
            Norms::All => require_norms(k, i, &mut a),
        }
        if let Some(w) = windows.as_ref().filter(|w| w.slides[i]) {
            (a.window, a.rope) = (Window::Last(w.size), Some(ropes.len() - 1));
        }
        a.position_scale = position_scale(k)?;
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), Op::Attention(Box::new(a))));
        let op = match experts {
            Some(e) if i >= dense => Op::Moe(Box::new(moe(k, i, e, c.router)?)),
            _ => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
        };
        blocks.push(Block::new(i, k.layer_norm(i, c.feed_forward_norm), op));
    }
    Ok(k.plan(ropes, blocks))
}

/// Experts, and the shared one that the file has: gated if it has a gate.
pub fn moe(k: &Keys, i: usize, e: Experts, router: RouterDefaults) -> Result<Moe, Error> {
    let mut m = k.moe(i, e, Act::Silu, router)?;
    if let (inner @ 1.., true) = (k.shared_inner(e)?, k.has(&format!("blk.{i}.ffn_down_shexp.weight"))) {
        let gate = format!("blk.{i}.ffn_gate_inp_shexp.weight");
        let gate = k.has(&gate).then(|| Tensor::vector(gate, k.hidden));
        m.shared = Some((gate, k.glu(i, "_shexp", inner, Act::Silu)));
    }
    Ok(m)
}

/// Makes norms of queries and keys a must.
fn require_norms(k: &Keys, i: usize, a: &mut Attention) {
    for (norm, of) in a.norms.iter_mut().zip(["q", "k"]) {
        if norm.is_none() {
            *norm = Some(k.norm(&format!("blk.{i}.attn_{of}_norm"), a.k_dim));
        }
    }
}

/// Queries are multiplied by `1 + a ln(1 + floor(position / n))`, if the file says so: `[a, n, 0]`.
pub fn position_scale(k: &Keys) -> Result<Option<[f32; 3]>, Error> {
    let scale = k.opt_f32("attention.temperature_scale")?.filter(|a| *a != 0.0);
    let length = k.opt_f32("attention.temperature_length")?.filter(|n| *n > 0.0);
    scale.map(|a| Ok([a, length.map_or_else(|| rope::original_context(k), Ok)?, 0.0])).transpose()
}
