//! Llama-Nemotron (Super, Ultra): Llama's layers, some of which lack attention or a feed-forward block.

use octet_compute::backend::{Act, RopePairing};

use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let inner = k.each("feed_forward_length", MAX_DIM)?.unwrap_or_default();
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        if heads[i] > 0 && kv_heads[i] == 0 {
            let what = format!("is 0 in layer {i}: one matrix in place of attention is not supported");
            return Err(k.bad("attention.head_count_kv", what));
        }
        if heads[i] > 0 {
            let a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
            blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), Op::Attention(Box::new(a))));
        }
        if let Some(&inner @ 1..) = inner.get(i) {
            let glu = Op::Glu(k.glu(i, "", inner, Act::Silu));
            blocks.push(Block::new(i, k.layer_norm(i, "ffn_norm"), glu));
        }
    }
    Ok(k.plan(vec![k.rope(dims[0], RopePairing::Adjacent)?], blocks))
}
