//! GLM-4-0414 and GLM-4.1V: norms before and after each part, gate and up projection in one tensor. GLM-4 before them, without the norms after.

use octet_compute::backend::{Act, RopePairing};

use crate::Error;
use crate::models::keys::Keys;
use crate::models::plan::*;
use crate::models::rope;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let norm = |n: &str| k.layer_norm(i, n);
        let a = Op::Attention(Box::new(k.attention(i, [heads[i], kv_heads[i]], dims)?));
        blocks.push(Block::new(i, norm("attn_norm"), a).post(norm("post_attention_norm")));
        let glu = Op::Glu(fused(k, i, k.inner(i)?));
        blocks.push(Block::new(i, norm("ffn_norm"), glu).post(norm("post_ffw_norm")));
    }
    // llama.cpp's converter reorders queries and keys of models whose rotations have sections.
    let sections = k.get("rope.dimension_sections").is_some();
    let pairing = if sections { RopePairing::Half } else { RopePairing::Adjacent };
    let rope = rope::in_sections(k, k.rope(dims[0], pairing)?)?;
    Ok(k.plan(vec![rope], blocks))
}

/// ChatGLM 3, GLM-4 9B and GLM-Edge.
pub fn chatglm(k: &Keys) -> Result<Plan, Error> {
    let mut plan = plan(k)?;
    plan.blocks.iter_mut().for_each(|b| b.post = None);
    Ok(plan)
}

/// A SwiGLU block whose tensor `ffn_up` has the rows of the gate, then those of the up projection.
pub fn fused(k: &Keys, i: usize, inner: usize) -> Glu {
    let both = Tensor::matrix(format!("blk.{i}.ffn_up"), 2 * inner, k.hidden);
    Glu { gate: Some(both.rows(0, inner)), up: both.rows(inner, inner), ..k.glu(i, "", inner, Act::Silu) }
}
