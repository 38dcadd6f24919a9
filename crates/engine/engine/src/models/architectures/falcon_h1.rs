//! Falcon-H1: attention and Mamba-2 side by side in every layer. Its multipliers are folded into the weights of GGUF files.

use octet_compute::backend::{Act, RopePairing};

use super::nemotron_h::mamba2;
use crate::Error;
use crate::models::keys::Keys;
use crate::models::plan::*;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let branch = |op| Branch { pre: Some(k.layer_norm(i, "attn_norm")), op, post: None };
        let attention = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        let branches =
            vec![branch(Op::Attention(Box::new(attention))), branch(Op::Ssm(Box::new(mamba2(k, i)?)))];
        blocks.push(Block { layer: i, branches, post: None, add: 1.0, keep: 1.0, norm: None });
        let mut norm = k.layer_norm(i, "ffn_norm");
        // Its converter forgets the end of this name.
        let short = format!("blk.{i}.ffn_norm");
        if k.has(&short) {
            norm.weight.name = short;
        }
        blocks.push(Block::new(i, norm, Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu))));
    }
    let mut plan = k.plan(vec![k.rope(dims[0], RopePairing::Half)?], blocks);
    // Of checkpoints.
    plan.embed.scale = k.factor("embedding_scale", 1.0)?;
    plan.head.scale = k.factor("logit_scale", 1.0)?;
    Ok(plan)
}
