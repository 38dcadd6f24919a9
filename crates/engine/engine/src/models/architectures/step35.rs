//! Step 3.5 Flash: in three of four layers windows, more query heads, and a rotation of whole heads instead of half; gates of attention's
//! heads; bounds of the activation in some layers.

use octet_compute::backend::{Act, Gate, RopePairing, Window};
use octet_weights::Value;

use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, RopeRules, WINDOWED};
use crate::models::windows::Windows;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let windows = Windows::read(k)?;
    let experts = k.experts()?.ok_or_else(|| k.bad("expert_count", "is missing".into()))?;
    // The tensors say which layers have experts.
    k.leading_dense()?;
    let [of_experts, of_others] = ["swiglu_clamp_exp", "swiglu_clamp_shexp"].map(|key| acts(k, key));
    let (of_experts, of_others) = (of_experts?, of_others?);
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let has = |n: &str| k.has(&format!("blk.{i}.{n}.weight"));
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        let gate = Tensor::matrix(format!("blk.{i}.attn_gate"), heads[i], k.hidden);
        a.gate = has("attn_gate").then_some((gate, Gate::Sigmoid));
        if let Some(w) = windows.as_ref().filter(|w| w.slides[i]) {
            (a.window, a.rope) = (Window::Last(w.size), Some(1));
        }
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), Op::Attention(Box::new(a))));
        let op = if has("ffn_gate_inp") {
            let mut moe = k.moe(i, experts, of_experts[i], SIGMOID)?;
            if has("ffn_down_shexp") {
                moe.shared = k.shared(i, k.shared_inner(experts)?, of_others[i]);
            }
            Op::Moe(Box::new(moe))
        } else {
            Op::Glu(k.glu(i, "", k.inner(i)?, of_others[i]))
        };
        blocks.push(Block::new(i, k.layer_norm(i, "ffn_norm"), op));
    }
    Ok(k.plan(ropes(k, dims[0])?, blocks))
}

/// The activation of each layer: bounded where `key` has a number that is not 0.
fn acts(k: &Keys, key: &str) -> Result<Vec<Act>, Error> {
    let act = |limit: f64| match limit {
        0.0 => Some(Act::Silu),
        l if l > 0.0 && l.is_finite() => Some(Act::CappedSilu { limit: l as f32 }),
        _ => None,
    };
    let all: Option<Vec<Act>> = match k.get(key) {
        None => Some(vec![Act::Silu; k.layers]),
        Some(Value::F64(limit)) => (0..k.layers).map(|_| act(*limit)).collect(),
        Some(Value::Floats(all)) if all.len() >= k.layers => {
            all[..k.layers].iter().map(|l| act(*l)).collect()
        }
        Some(_) => None,
    };
    all.ok_or_else(|| k.bad(key, format!("is no list of {} bounds, each 0 or more", k.layers)))
}

/// The rotation of layers without a window, which is of half of what the file states, and that of the others.
fn ropes(k: &Keys, head_dim: usize) -> Result<Vec<RopeTable>, Error> {
    let stated = k.rope_dims("rope.dimension_count", head_dim)?;
    let windowed = match k.peek("rope.dimension_count_swa") {
        Some(_) => k.rope_dims("rope.dimension_count_swa", head_dim)?,
        None => stated,
    };
    if !stated.is_multiple_of(4) {
        let what = format!("is {stated}; expected a multiple of 4, as some layers rotate half of these");
        return Err(k.bad("rope.dimension_count", what));
    }
    let pairing = k.pairing(RopePairing::Half)?;
    let mut half = rope::table(k, stated / 2, pairing, RopeRules { divided: false, ..ROPE })?;
    let divisors = "rope_freqs.weight";
    if k.has(divisors) {
        // Converters compute them for the pairs of whole heads. Pair `j` of half a head turns as pair `2 j` of a whole one; llama.cpp
        // divides by the first ones instead, so its keys of far positions differ from the model's. Another converter writes those of half a
        // head, and ones behind them: of whole heads the last ones are divided.
        let all = k.model.tensor(divisors, &[stated / 2])?.to_f32();
        let step = if all[stated / 4..].iter().all(|d| *d == 1.0) { 1 } else { 2 };
        half.inv_freq.iter_mut().zip(all.iter().step_by(step)).for_each(|(f, d)| *f /= d);
        if half.inv_freq.iter().any(|f| !f.is_finite()) {
            return Err(k.bad(ROPE.base, format!("and '{divisors}' give frequencies that are not finite")));
        }
    }
    Ok(vec![half, rope::table(k, windowed, pairing, WINDOWED)?])
}
