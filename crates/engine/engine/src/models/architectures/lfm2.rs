//! LFM2 and LFM2-MoE: gated short convolutions in most layers, attention in the others.

use octet_compute::backend::{Act, MAX_CONV, RopePairing};

use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let (experts, dense) = (k.experts()?, k.leading_dense()?);
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let op = match kv_heads[i] {
            0 => Op::ShortConv(short_conv(k, i)?),
            kv => Op::Attention(Box::new(k.attention(i, [heads[i], kv], dims)?)),
        };
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), op));
        let op = match experts {
            Some(e) if i >= dense => Op::Moe(Box::new(k.moe(i, e, Act::Silu, SIGMOID)?)),
            _ => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
        };
        blocks.push(Block::new(i, k.layer_norm(i, "ffn_norm"), op));
    }
    let mut plan = k.plan(vec![k.rope(dims[0], RopePairing::Half)?], blocks);
    // The norm after the last layer has the name of one of the embedding.
    if !k.has("output_norm.weight") {
        plan.head.norm = k.norm("token_embd_norm", k.hidden);
    }
    Ok(plan)
}

fn short_conv(k: &Keys, i: usize) -> Result<ShortConv, Error> {
    let (width, taps) = (k.hidden, k.size("shortconv.l_cache", MAX_CONV)?);
    let name = |n: &str| format!("blk.{i}.shortconv.{n}");
    Ok(ShortConv {
        bcx: Tensor::matrix(name("in_proj"), 3 * width, k.hidden),
        conv: Tensor { shape: vec![width, taps], ..Tensor::vector(name("conv.weight"), 0) }
            .change(Change::Transpose),
        taps,
        width,
        out: Tensor::matrix(name("out_proj"), k.hidden, width),
    })
}
