//! Granite 3 and 4, dense and with experts; Granite 4 H, whose layers are mostly Mamba-2; MiniCPM. Multipliers of embeddings, scores, blocks, logits.

use octet_compute::backend::{Act, RopePairing};

use super::{llama, nemotron_h::mamba2};
use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, RopeRules};

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    decoder(k, true)
}

/// Without a rotation, unless the file says otherwise.
pub fn hybrid(k: &Keys) -> Result<Plan, Error> {
    let rotates = k.flag("rope.scaling.finetuned")?.unwrap_or(true);
    decoder(k, rotates)
}

/// MiniCPM: as Granite, with other multipliers where an old file does not say, and LongRoPE in new ones.
pub fn minicpm(k: &Keys) -> Result<Plan, Error> {
    let mut plan = decoder(k, true)?;
    let add = k.factor("residual_scale", 1.4 / (k.layers as f32).sqrt())?;
    plan.blocks.iter_mut().for_each(|b| b.add = add);
    plan.embed.scale = k.factor("embedding_scale", 12.0)?;
    plan.head.scale = 1.0 / k.factor("logit_scale", k.hidden as f32 / 256.0)?;
    rope::longrope(k, &mut plan.ropes[0])?;
    Ok(plan)
}

fn decoder(k: &Keys, rotates: bool) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let experts = k.experts()?;
    let scale = k.factor("attention.scale", 1.0 / (dims[0] as f32).sqrt())?;
    let add = k.factor("residual_scale", 1.0)?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let op = if kv_heads[i] == 0 {
            Op::Ssm(Box::new(mamba2(k, i)?))
        } else {
            let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
            (a.scale, a.rope) = (scale, rotates.then_some(0));
            Op::Attention(Box::new(a))
        };
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), op).scaled(add));
        let op = match experts {
            Some(e) => Op::Moe(Box::new(llama::moe(k, i, e, SOFTMAX)?)),
            None => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
        };
        blocks.push(Block::new(i, k.layer_norm(i, "ffn_norm"), op).scaled(add));
    }
    let rope_dims = k.rope_dims("rope.dimension_count", dims[0])?;
    let rules = RopeRules { long: k.arch == "minicpm", ..ROPE };
    let rope = rope::table(k, rope_dims, k.pairing(RopePairing::Adjacent)?, rules)?;
    let mut plan = k.plan(vec![rope], blocks);
    plan.embed.scale = k.factor("embedding_scale", 1.0)?;
    plan.head.scale = 1.0 / k.factor("logit_scale", 1.0)?;
    Ok(plan)
}
