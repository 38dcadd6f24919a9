//! Command R and Aya; Command R7B and A, which have windows, and later ones, which have experts: attention and feed-forward side by side on one norm.

use octet_compute::backend::{Act, RopePairing, Window};

use super::llama;
use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::windows::{self, Windows};

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

/// With experts: the block's result is the mean of the routed ones' and the shared one's. Of the layers without windows only those without
/// experts rotate.
pub fn moe(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let size = k.window()?.filter(|_| k.peek("attention.sliding_window_pattern").is_some());
    let size = size.ok_or_else(|| k.bad("attention.sliding_window_pattern", "is missing".into()))?;
    let windows = Windows { size, slides: windows::all_but_first_of_each(k, 0)? };
    let experts = k.experts()?.ok_or_else(|| k.bad("expert_count", "is missing".into()))?;
    let dense = k.leading_dense()?;
    // The file has the epsilon of its kind of norm.
    let is_rms = k.opt_f32("attention.layer_norm_rms_epsilon")?.is_some_and(|e| e != 0.0);
    let norm = |n: Norm| if is_rms { n } else { k.centred(n) };
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        a.norms = [None, None, None];
        (a.window, a.rope) = match windows.slides[i] {
            true => (Window::Last(windows.size), Some(0)),
            false => (Window::All, (i < dense).then_some(0)),
        };
        let mut block = Block::new(i, norm(k.layer_norm(i, "attn_norm")), Op::Attention(Box::new(a)));
        let op = match i < dense {
            true => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
            false => Op::Moe(Box::new(mean(k, llama::moe(k, i, experts, SIGMOID)?))),
        };
        block.branches.extend(Block::new(i, norm(k.layer_norm(i, "attn_norm")), op).branches);
        blocks.push(block);
    }
    let mut plan = k.plan(vec![k.rope(dims[0], RopePairing::Adjacent)?], blocks);
    plan.head.norm = norm(plan.head.norm);
    plan.head.scale = k.factor("logit_scale", 1.0)?;
    Ok(plan)
}

/// The mean of routed experts and the shared one, if there is one: a gate of zeros is a half.
fn mean(k: &Keys, mut moe: Moe) -> Moe {
    if let Some((gate, _)) = &mut moe.shared {
        *gate = Some(Tensor::vector("", k.hidden).change(Change::Constant(0.0)));
        moe.router.scale *= 0.5;
    }
    moe
}
