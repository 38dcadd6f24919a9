//! GPT-2 and StarCoder: LayerNorm, GELU without a gate, and embeddings of positions in place of a rotation.

use octet_compute::backend::Act;

use crate::Error;
use crate::models::keys::{Keys, MAX_DIM};
use crate::models::plan::*;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let norm = |n: &str| k.centred(k.layer_norm(i, n));
        let a = Attention { rope: None, ..k.attention(i, [heads[i], kv_heads[i]], dims)? };
        blocks.push(Block::new(i, norm("attn_norm"), Op::Attention(Box::new(a))));
        let glu = Glu { gate: None, ..k.glu(i, "", k.inner(i)?, Act::Gelu) };
        blocks.push(Block::new(i, norm("ffn_norm"), Op::Glu(glu)));
    }
    let mut plan = k.plan(Vec::new(), blocks);
    plan.head.norm = k.centred(plan.head.norm);
    let positions = k.range("context_length", k.rows("position_embd")?, MAX_DIM)?;
    plan.embed.positions = Some(Tensor::matrix("position_embd", positions, k.hidden));
    Ok(plan)
}
