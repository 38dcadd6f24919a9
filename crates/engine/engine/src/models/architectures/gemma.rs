//! Gemma 1; Gemma 2 and 3: norms before and after each part, windows, gated GELU.

use octet_compute::backend::{Act, RopePairing, Window};

use super::encoder;
use super::llama;
use crate::Error;
use crate::models::keys::Keys;
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, RopeRules, WINDOWED};
use crate::models::windows::Windows;

/// Gemma 1: Llama's layers with gated GELU.
pub fn gemma(k: &Keys) -> Result<Plan, Error> {
    let mut plan = llama::halves(k)?;
    plan.glus_mut().for_each(|g| g.act = Act::Gelu);
    plan.embed.scale = (k.hidden as f32).sqrt();
    Ok(plan)
}

/// Soft-caps of scores and logits; every second layer has a window.
pub fn gemma2(k: &Keys) -> Result<Plan, Error> {
    let dims = k.head_dims()?;
    // The 27B model divides scores by the square root of another size.
    let scale = scale(k, dims[0], 46)?;
    plan(k, 2, vec![k.rope(dims[0], RopePairing::Half)?], scale)
}

/// Five of six layers have a window, and a rotation of their own.
pub fn gemma3(k: &Keys) -> Result<Plan, Error> {
    let dims = k.head_dims()?;
    let full = RopeRules { default: 1e6, ..ROPE };
    let rope_dims = k.rope_dims("rope.dimension_count", dims[0])?;
    let pairing = k.pairing(RopePairing::Half)?;
    let ropes = [full, WINDOWED]
        .map(|rules| rope::table(k, rope_dims, pairing, rules))
        .into_iter()
        .collect::<Result<_, _>>();
    plan(k, 6, ropes?, scale(k, dims[0], 62)?)
}

/// EmbeddingGemma: Gemma 3 as an encoder, whose windows reach to both sides, with projections after pooling.
pub fn embedding(k: &Keys) -> Result<Plan, Error> {
    let mut plan = gemma3(k)?;
    for block in &mut plan.blocks {
        for branch in &mut block.branches {
            let Op::Attention(a) = &mut branch.op else { continue };
            encoder::see_both_ways(a, block.layer, true);
            if let Window::Last(size) = a.window {
                a.window = Window::Around(size / 2);
            }
        }
    }
    plan.head.matrix = None;
    plan.pool = Some(encoder::pool(k, DenseAct::None, Pooling::Mean)?);
    Ok(plan)
}

/// The factor of scores: stated, or by the size of a head, but in the largest model, of `largest` layers.
fn scale(k: &Keys, head_dim: usize, largest: usize) -> Result<f32, Error> {
    let heads = k.heads()?[0].max(1);
    let size = if k.layers == largest { k.hidden / heads } else { head_dim };
    k.factor("attention.scale", 1.0 / (size as f32).sqrt())
}

fn plan(k: &Keys, period: usize, ropes: Vec<RopeTable>, scale: f32) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let windows = Windows::with_default(k, period)?;
    let softcap = k.cap("attn_logit_softcapping")?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        (a.scale, a.softcap) = (scale, softcap);
        a.two_way = k.arch == "gemma3";
        if let Some(w) = windows.as_ref().filter(|w| w.slides[i]) {
            (a.window, a.rope) = (Window::Last(w.size), Some(ropes.len() - 1));
        }
        let norm = |n: &str| k.layer_norm(i, n);
        let attention = Block::new(i, norm("attn_norm"), Op::Attention(Box::new(a)));
        blocks.push(attention.post(norm("post_attention_norm")));
        let glu = Op::Glu(k.glu(i, "", k.inner(i)?, Act::Gelu));
        blocks.push(Block::new(i, norm("ffn_norm"), glu).post(norm("post_ffw_norm")));
    }
    let mut plan = k.plan(ropes, blocks);
    plan.embed.scale = (k.hidden as f32).sqrt();
    plan.head.softcap = k.cap("final_logit_softcapping")?;
    Ok(plan)
}
