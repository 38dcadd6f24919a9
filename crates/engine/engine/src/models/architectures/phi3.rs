//! Phi-3, 3.5 and 4: fused projections, and LongRoPE. Phi-3.5-MoE: LayerNorm, and experts that SparseMixer chooses.

use octet_compute::backend::{Act, RopePairing, Score, Window};

use super::glm4::fused;
use crate::Error;
use crate::models::keys::{CONTEXT_MAX, Keys, SOFTMAX};
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, RopeRules};
use crate::models::windows::Windows;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    decoder(k, |norm| norm, |i| Ok(Op::Glu(fused(k, i, k.inner(i)?))))
}

/// Phi-3.5-MoE, as transformers computes it. llama.cpp (b11549) leaves the mean in the norms, weighs the two experts by a softmax over
/// these two, where the model's weights are each nearly 1, and has another factor of the rotation: with these three, its logits
/// are those of the tests' file.
pub fn moe(k: &Keys) -> Result<Plan, Error> {
    let experts = k.experts()?.ok_or_else(|| k.bad("expert_count", "is missing".into()))?;
    if experts.top_k != 2 {
        return Err(k.bad("expert_used_count", format!("is {}; only 2 is supported", experts.top_k)));
    }
    let feed_forward = |i: usize| -> Result<Op, Error> {
        let mut moe = k.moe(i, experts, Act::Silu, SOFTMAX)?;
        if moe.router.groups.is_some() || moe.router.score != Score::Softmax {
            let what = "or groups of experts: only this model's own choice of experts is supported";
            return Err(k.bad("expert_gating_func", what.into()));
        }
        (moe.router.score, moe.router.normalise) = (Score::SparseMixer, false);
        Ok(Op::Moe(Box::new(moe)))
    };
    let mut plan = decoder(k, |norm| k.centred(norm), feed_forward)?;
    plan.head.norm = k.centred(plan.head.norm);
    for rope in &mut plan.ropes {
        correct_scale(k, rope)?;
    }
    Ok(plan)
}

/// Converters to GGUF derive the factor of sines and cosines from the two contexts, as for Phi-3: 1.19. The published model states another
/// one in its configuration, `sqrt(1 + ln(64) / ln(2048))`, and the file does not have it.
fn correct_scale(k: &Keys, rope: &mut RopeTable) -> Result<(), Error> {
    let (context, original) = (k.size("context_length", CONTEXT_MAX)?, rope::original_context(k)?);
    let derived = (1.0 + 32f32.ln() / 4096f32.ln()).sqrt();
    if (context, original) == (131_072, 4096.0) && (rope.scale - derived).abs() < 1e-4 {
        rope.scale = (1.0 + 64f32.ln() / 2048f32.ln()).sqrt();
    }
    Ok(())
}

fn decoder(
    k: &Keys,
    norm: impl Fn(Norm) -> Norm,
    feed_forward: impl Fn(usize) -> Result<Op, Error>,
) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let windows = Windows::read(k)?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        if let Some(w) = windows.as_ref().filter(|w| w.slides[i]) {
            a.window = Window::Last(w.size);
        }
        blocks.push(Block::new(i, norm(k.layer_norm(i, "attn_norm")), Op::Attention(Box::new(a))));
        blocks.push(Block::new(i, norm(k.layer_norm(i, "ffn_norm")), feed_forward(i)?));
    }
    let rope_dims = k.rope_dims("rope.dimension_count", dims[0])?;
    let rules = RopeRules { long: true, ..ROPE };
    let mut rope = rope::table(k, rope_dims, k.pairing(RopePairing::Half)?, rules)?;
    rope::longrope(k, &mut rope)?;
    Ok(k.plan(vec![rope], blocks))
}
