//! gpt-oss: attention sinks, windows in every second layer, experts with biases and a clamped SwiGLU.

use octet_compute::backend::{Act, RopePairing, Window};

use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, RopeRules};
use crate::models::windows::Windows;

const ACT: Act = Act::ClampedSwiglu { alpha: 1.702, limit: 7.0 };

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let windows = Windows::with_default(k, 2)?;
    let experts = k.experts()?.ok_or_else(|| k.bad("expert_count", "is missing".into()))?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        a.sinks = Some(Tensor::vector(format!("blk.{i}.attn_sinks.weight"), heads[i]));
        if let Some(w) = windows.as_ref().filter(|w| w.slides[i]) {
            a.window = Window::Last(w.size);
        }
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), Op::Attention(Box::new(a))));
        let moe = Op::Moe(Box::new(k.moe(i, experts, ACT, SOFTMAX)?));
        blocks.push(Block::new(i, k.layer_norm(i, "post_attention_norm"), moe));
    }
    let rope_dims = k.rope_dims("rope.dimension_count", dims[0])?;
    // The ends of YaRN's ramp are not rounded; no key says so.
    let rules = RopeRules { default: 150_000.0, rounds: false, ..ROPE };
    let rope = rope::table(k, rope_dims, k.pairing(RopePairing::Half)?, rules)?;
    Ok(k.plan(vec![rope], blocks))
}
