//! Hunyuan A13B and its dense relatives: queries and keys are normalised after the rotation.

use octet_compute::backend::{Act, RopePairing};

use super::llama;
use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;

pub fn moe(k: &Keys) -> Result<Plan, Error> {
    let experts = k.experts()?.ok_or_else(|| k.bad("expert_count", "is missing".into()))?;
    // Some converters count all experts of a token in `expert_feed_forward_length`.
    decoder(k, Some(Experts { inner: k.inner(0)?, ..experts }))
}

pub fn dense(k: &Keys) -> Result<Plan, Error> {
    decoder(k, None)
}

fn decoder(k: &Keys, experts: Option<Experts>) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        a.norm_last = true;
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), Op::Attention(Box::new(a))));
        let op = match experts {
            Some(e) => Op::Moe(Box::new(llama::moe(k, i, e, SOFTMAX)?)),
            None => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
        };
        blocks.push(Block::new(i, k.layer_norm(i, "ffn_norm"), op));
    }
    Ok(k.plan(vec![k.rope(dims[0], RopePairing::Half)?], blocks))
}
