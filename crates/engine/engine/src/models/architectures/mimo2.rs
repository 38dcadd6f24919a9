//! MiMo-V2-Flash: windows with attention sinks, value heads smaller than key heads, scaled values.

use octet_compute::backend::{Act, RopePairing, Window};

use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, WINDOWED};
use crate::models::windows::Windows;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let windows = Windows::read(k)?;
    let experts = k.experts()?.ok_or_else(|| k.bad("expert_count", "is missing".into()))?;
    // The tensors say which layers have experts.
    k.leading_dense()?;
    let value_scale = k.factor("attention.value_scale", 1.0)?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        a.value_scale = value_scale;
        let sinks = format!("blk.{i}.attn_sinks.weight");
        a.sinks = k.has(&sinks).then(|| Tensor::vector(sinks, heads[i]));
        if let Some(w) = windows.as_ref().filter(|w| w.slides[i]) {
            (a.window, a.rope) = (Window::Last(w.size), Some(1));
        }
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), Op::Attention(Box::new(a))));
        let op = match k.has(&format!("blk.{i}.ffn_gate_inp.weight")) {
            true => Op::Moe(Box::new(k.moe(i, experts, Act::Silu, SIGMOID)?)),
            false => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
        };
        blocks.push(Block::new(i, k.layer_norm(i, "ffn_norm"), op));
    }
    let rope_dims = k.rope_dims("rope.dimension_count", dims[0])?;
    let pairing = k.pairing(RopePairing::Half)?;
    let ropes = [ROPE, WINDOWED].map(|rules| rope::table(k, rope_dims, pairing, rules));
    Ok(k.plan(ropes.into_iter().collect::<Result<_, _>>()?, blocks))
}
