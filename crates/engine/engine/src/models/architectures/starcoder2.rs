//! StarCoder2: LayerNorm, GELU without a gate, biases everywhere. Nemotron 4, Minitron and Jais 2, with another activation.

use octet_compute::backend::{Act, RopePairing, Window};

use crate::Error;
use crate::models::keys::Keys;
use crate::models::plan::*;
use crate::models::windows::Windows;

/// Nemotron 4, Minitron, Jais 2.
pub fn nemotron(k: &Keys) -> Result<Plan, Error> {
    let mut plan = plan(k)?;
    plan.glus_mut().for_each(|g| g.act = Act::Relu2);
    Ok(plan)
}

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let windows = Windows::read(k)?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let norm = |n: &str| k.centred(k.layer_norm(i, n));
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        if let Some(w) = windows.as_ref().filter(|w| w.slides[i]) {
            a.window = Window::Last(w.size);
        }
        blocks.push(Block::new(i, norm("attn_norm"), Op::Attention(Box::new(a))));
        let glu = Glu { gate: None, ..k.glu(i, "", k.inner(i)?, Act::Gelu) };
        blocks.push(Block::new(i, norm("ffn_norm"), Op::Glu(glu)));
    }
    let mut plan = k.plan(vec![k.rope(dims[0], RopePairing::Half)?], blocks);
    plan.head.norm = k.centred(plan.head.norm);
    Ok(plan)
}
