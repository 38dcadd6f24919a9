//! OLMo 2 and 3, EXAONE 4: norms only after attention and feed-forward. OLMo 1: norms without weights.

use octet_compute::backend::{Act, RopePairing, Window};

use super::llama;
use crate::Error;
use crate::models::keys::Keys;
use crate::models::plan::*;
use crate::models::rope::{self, WINDOWED};
use crate::models::windows::Windows;

/// OLMo 1: Llama with LayerNorm.
pub fn olmo(k: &Keys) -> Result<Plan, Error> {
    let norm = || Norm { centred: true, ..k.plain_norm(k.hidden) };
    let mut plan = llama::plan(k)?;
    plan.blocks.iter_mut().flat_map(|b| &mut b.branches).for_each(|r| r.pre = Some(norm()));
    plan.head.norm = norm();
    Ok(plan)
}

/// OLMo 2; OLMo 3, whose layers have windows but for each fourth.
pub fn plan(k: &Keys) -> Result<Plan, Error> {
    decoder(k, true)
}

/// EXAONE 4; in the large model layers with windows rotate, and the others do not.
pub fn exaone4(k: &Keys) -> Result<Plan, Error> {
    decoder(k, false)
}

fn decoder(k: &Keys, all_rotate: bool) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let windows = Windows::with_default(k, 4)?;
    let mut ropes = vec![k.rope(dims[0], RopePairing::Half)?];
    if windows.is_some() && k.peek(WINDOWED.base).is_some() {
        ropes.push(rope::table(k, ropes[0].dims, ropes[0].pairing, WINDOWED)?);
    }
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        match &windows {
            Some(w) if w.slides[i] => (a.window, a.rope) = (Window::Last(w.size), Some(ropes.len() - 1)),
            Some(_) if !all_rotate => a.rope = None,
            _ => {}
        }
        let block = |op, norm: &str| Block::plain(i, op).post(k.layer_norm(i, norm));
        blocks.push(block(Op::Attention(Box::new(a)), "post_attention_norm"));
        blocks.push(block(Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)), "post_ffw_norm"));
    }
    Ok(k.plan(ropes, blocks))
}
