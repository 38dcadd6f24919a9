//! Llama 4: attention within chunks in three of four layers, one expert a token, whose input is weighted (as in Switch Transformer).

use octet_compute::backend::{Act, RopePairing, Window};

use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::windows::Windows;

/// Chunks and steps of the position scale, which files do not state.
const CHUNK: usize = 8192;
/// Experts of the model that has no norms of queries and keys.
const MAVERICK: usize = 128;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let experts = k.experts()?.ok_or_else(|| k.bad("expert_count", "is missing".into()))?;
    let step = k.opt_size("interleave_moe_layer_step", k.layers)?.unwrap_or(1);
    let windows = Windows::with_default(k, 4)?;
    let chunk = k.opt_size("attention.chunk_size", usize::MAX)?;
    let chunk = chunk.or_else(|| windows.as_ref().map(|w| w.size)).unwrap_or(CHUNK);
    let slides = windows.map_or_else(|| k.all_but_each(4), |w| w.slides);
    let temperature = k.opt_f32("attention.temperature_scale")?.unwrap_or(0.1);
    let length = k.opt_f32("attention.temperature_length")?.unwrap_or(CHUNK as f32);
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        if slides[i] {
            a.window = Window::Chunk(chunk);
            let norm = || (experts.count != MAVERICK).then(|| k.plain_norm(dims[0]));
            (a.norms, a.norm_last) = ([norm(), norm(), None], true);
        } else {
            (a.rope, a.position_scale) = (None, Some([temperature, length, 1.0]));
        }
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), Op::Attention(Box::new(a))));
        let op = match (i + 1) % step {
            0 => Op::Moe(Box::new(moe(k, i, experts)?)),
            _ => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
        };
        blocks.push(Block::new(i, k.layer_norm(i, "ffn_norm"), op));
    }
    Ok(k.plan(vec![k.rope(dims[0], RopePairing::Adjacent)?], blocks))
}

fn moe(k: &Keys, i: usize, e: Experts) -> Result<Moe, Error> {
    let mut m = k.moe(i, e, Act::Silu, RouterDefaults { normalise: false, ..SIGMOID })?;
    m.router.weighs_input = true;
    m.shared = k.shared(i, k.rows(&format!("blk.{i}.ffn_up_shexp"))?, Act::Silu);
    Ok(m)
}
