//! AFMoE (Trinity): attention's output has a gate, windows in three of four layers and no rotation in the others, four norms a layer.

use octet_compute::backend::{Act, Gate, RopePairing, Window};

use super::llama;
use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::windows::Windows;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let windows = Windows::with_default(k, 4)?;
    let (dense, experts) = (k.leading_dense()?, k.experts()?);
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let norm = |n: &str| k.layer_norm(i, n);
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        let gate = Tensor::matrix(format!("blk.{i}.attn_gate"), heads[i] * dims[1], k.hidden);
        a.gate = Some((gate, Gate::Sigmoid));
        (a.window, a.rope) = match windows.as_ref().filter(|w| w.slides[i]) {
            Some(w) => (Window::Last(w.size), Some(0)),
            None => (Window::All, None),
        };
        let attention = Block::new(i, norm("attn_norm"), Op::Attention(Box::new(a)));
        blocks.push(attention.post(norm("post_attention_norm")));
        let op = match experts {
            Some(e) if i >= dense => Op::Moe(Box::new(llama::moe(k, i, e, SIGMOID)?)),
            _ => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
        };
        blocks.push(Block::new(i, norm("ffn_norm"), op).post(norm("post_ffw_norm")));
    }
    let mut plan = k.plan(vec![k.rope(dims[0], RopePairing::Half)?], blocks);
    plan.embed.scale = (k.hidden as f32).sqrt();
    Ok(plan)
}
