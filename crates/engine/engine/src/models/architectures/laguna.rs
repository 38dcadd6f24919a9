//! Laguna: the gates of attention's heads are not bounded (softplus). XS and S have windows in three of four layers, with a rotation and query
//! heads of their own; M has none, and a gate for each value.

use octet_compute::backend::{Act, Gate, RopePairing, Window};

use super::llama;
use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, RopeRules, WINDOWED};
use crate::models::windows;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let (window, slides) = (k.window()?, windows::all_but_first_of_each(k, 4)?);
    let experts = k.experts()?.ok_or_else(|| k.bad("expert_count", "is missing".into()))?;
    let dense = k.leading_dense()?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        let name = format!("blk.{i}.attn_gate");
        // One value for a head, or one for each of its dimensions.
        let rows = if k.rows(&name)? == heads[i] { heads[i] } else { heads[i] * dims[1] };
        a.gate = Some((Tensor::matrix(name, rows, k.hidden), Gate::Softplus));
        if let Some(size) = window.filter(|_| slides[i]) {
            (a.window, a.rope) = (Window::Last(size), Some(1));
        }
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), Op::Attention(Box::new(a))));
        let op = match i < dense {
            true => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
            false => Op::Moe(Box::new(llama::moe(k, i, experts, SIGMOID)?)),
        };
        blocks.push(Block::new(i, k.layer_norm(i, "ffn_norm"), op));
    }
    let pairing = k.pairing(RopePairing::Half)?;
    let full = rope::table(k, k.rope_dims("rope.dimension_count", dims[0])?, pairing, YARN)?;
    let windowed = rope::table(k, k.rope_dims("rope.dimension_count_swa", dims[0])?, pairing, WINDOWED)?;
    Ok(k.plan(vec![full, windowed], blocks))
}

/// Its converter stores YaRN's factor of sines and cosines as the configuration states it. llama.cpp (b11549) does not read it.
const YARN: RopeRules = RopeRules { whole_factor: true, ..ROPE };
