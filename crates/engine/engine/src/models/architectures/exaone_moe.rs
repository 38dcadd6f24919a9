//! K-EXAONE: experts, and windows in three of four layers; only these rotate.

use octet_compute::backend::{Act, RopePairing, Window};

use super::llama;
use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::windows::Windows;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let windows = Windows::with_default(k, 4)?;
    let experts = k.experts()?.ok_or_else(|| k.bad("expert_count", "is missing".into()))?;
    // The tensors say which layers have experts.
    k.leading_dense()?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        match &windows {
            Some(w) if w.slides[i] => a.window = Window::Last(w.size),
            Some(_) => a.rope = None,
            None => {}
        }
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), Op::Attention(Box::new(a))));
        let op = match k.has(&format!("blk.{i}.ffn_gate_inp.weight")) {
            true => Op::Moe(Box::new(llama::moe(k, i, experts, SIGMOID)?)),
            false => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
        };
        blocks.push(Block::new(i, k.layer_norm(i, "ffn_norm"), op));
    }
    Ok(k.plan(vec![k.rope(dims[0], RopePairing::Half)?], blocks))
}
