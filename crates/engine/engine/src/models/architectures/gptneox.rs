//! GPT-NeoX (Pythia), Phi-2 and Falcon: LayerNorm and GELU without a gate, attention and feed-forward mostly side by side. StableLM:
//! LayerNorm with SwiGLU.

use octet_compute::backend::{Act, RopePairing};

use crate::Error;
use crate::models::keys::Keys;
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, RopeRules};

/// The norm before the feed-forward block of layer `i`, and whether that block is beside attention.
type Second = fn(&Keys, usize) -> Result<(&'static str, bool), Error>;

/// Side by side on two norms, or one after the other.
pub fn plan(k: &Keys) -> Result<Plan, Error> {
    decoder(k, Act::GeluErf, |k, _| Ok(("ffn_norm", k.flag("use_parallel_residual")?.unwrap_or(true))))
}

/// Side by side on one norm.
pub fn phi2(k: &Keys) -> Result<Plan, Error> {
    decoder(k, Act::Gelu, |_, _| Ok(("attn_norm", true)))
}

/// Side by side on one norm; in the larger models attention has its own.
pub fn falcon(k: &Keys) -> Result<Plan, Error> {
    let mut plan = decoder(k, Act::GeluErf, |_, _| Ok(("attn_norm", true)))?;
    // Converters leave the base out. Falcon 2 11B has another one than the models before it.
    if k.peek(ROPE.base).is_none() && (k.layers, k.hidden) == (60, 4096) {
        let dims = plan.ropes[0].dims;
        plan.ropes = vec![rope::table(k, dims, RopePairing::Half, RopeRules { default: 500_042.0, ..ROPE })?];
    }
    for block in &mut plan.blocks {
        let own = format!("blk.{}.attn_norm_2", block.layer);
        if k.has(&format!("{own}.weight")) {
            block.branches[0].pre = Some(k.centred(k.norm(&own, k.hidden)));
        }
    }
    Ok(plan)
}

/// The largest model has one norm for both, and side by side.
pub fn stablelm(k: &Keys) -> Result<Plan, Error> {
    decoder(k, Act::Silu, |k, i| {
        let two = k.has(&format!("blk.{i}.ffn_norm.weight"));
        // Stated in files, but the norm decides.
        k.flag("use_parallel_residual")?;
        Ok(if two { ("ffn_norm", false) } else { ("attn_norm", true) })
    })
}

fn decoder(k: &Keys, act: Act, second: Second) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let norm = |n: &str| k.centred(k.layer_norm(i, n));
        let attention = Op::Attention(Box::new(k.attention(i, [heads[i], kv_heads[i]], dims)?));
        let mut glu = k.glu(i, "", k.inner(i)?, act);
        if act != Act::Silu {
            glu.gate = None;
        }
        let (second, beside) = second(k, i)?;
        let mut block = Block::new(i, norm("attn_norm"), attention);
        let next = Block::new(i, norm(second), Op::Glu(glu));
        if beside {
            block.branches.extend(next.branches);
            blocks.push(block);
        } else {
            blocks.extend([block, next]);
        }
    }
    let mut plan = k.plan(vec![k.rope(dims[0], RopePairing::Half)?], blocks);
    plan.head.norm = k.centred(plan.head.norm);
    Ok(plan)
}
