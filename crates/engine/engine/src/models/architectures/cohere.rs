//! Command R and Aya; Command R7B and A, which have windows: attention and feed-forward side by side on one LayerNorm.

use octet_compute::backend::{Act, RopePairing, Window};

use super::llama::Windows;
use crate::Error;
use crate::models::keys::Keys;
use crate::models::plan::*;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let windows = Windows::with_default(k, 4)?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        // The largest models normalise each head with a weight of its own: refused, as such tensors are then unused.
        a.norms = [None, None, None];
        if let Some(w) = &windows {
            (a.window, a.rope) =
                if w.slides[i] { (Window::Last(w.size), Some(0)) } else { (Window::All, None) };
        }
        let pre = || Some(k.centred(k.layer_norm(i, "attn_norm")));
        let branch = |op| Branch { pre: pre(), op, post: None };
        let branches =
            vec![branch(Op::Attention(Box::new(a))), branch(Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)))];
        blocks.push(Block { layer: i, branches, post: None, add: 1.0, keep: 1.0, norm: None });
    }
    let mut plan = k.plan(vec![k.rope(dims[0], RopePairing::Adjacent)?], blocks);
    plan.head.norm = k.centred(plan.head.norm);
    plan.head.scale = k.factor("logit_scale", 1.0)?;
    Ok(plan)
}
