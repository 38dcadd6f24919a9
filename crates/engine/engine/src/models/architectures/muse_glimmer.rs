//! Muse Glimmer: attention's output has a gate, windows in three of four layers and no rotation in the others, four norms a layer.

use octet_compute::backend::{Act, Gate, RopePairing, Window};

use crate::Error;
use crate::models::keys::Keys;
use crate::models::plan::*;
use crate::models::windows::Windows;

/// Epsilon of the norms after a block.
const POST_EPS: f32 = 1e-8;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let windows = Windows::with_default(k, 4)?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let norm = |n: &str| k.layer_norm(i, n);
        let post = |n: &str| Norm { eps: POST_EPS, ..norm(n) };
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        if let Some(factor) = k.opt_f32("attention.query_norm")? {
            // Checkpoints have a number where GGUF files have a tensor of it.
            let constant = |x| Norm {
                weight: Tensor::vector("", dims[0]).change(Change::Constant(x)),
                ..k.plain_norm(dims[0])
            };
            a.norms = [Some(constant(factor)), Some(constant(1.0)), None];
        }
        let gate = Tensor::matrix(format!("blk.{i}.attn_gate"), heads[i] * dims[1], k.hidden);
        a.gate = Some((gate, Gate::Sigmoid));
        (a.window, a.rope) = match windows.as_ref().filter(|w| w.slides[i]) {
            Some(w) => (Window::Last(w.size), Some(0)),
            None => (Window::All, None),
        };
        let attention = Block::new(i, norm("attn_norm"), Op::Attention(Box::new(a)));
        blocks.push(attention.post(post("post_attention_norm")));
        let glu = Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu));
        blocks.push(Block::new(i, norm("ffn_norm"), glu).post(post("post_ffw_norm")));
    }
    let mut plan = k.plan(vec![k.rope(dims[0], RopePairing::Adjacent)?], blocks);
    plan.embed.norm = Some(k.plain_norm(k.hidden));
    plan.head.scale = k.factor("logit_scale", 1.0)?;
    plan.head.softcap = k.cap("final_logit_softcapping")?;
    Ok(plan)
}
