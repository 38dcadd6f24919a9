//! Apertus: Llama with norms of queries and keys, and feed-forward blocks without a gate. Their activation (xIELU) has numbers in each layer.

use octet_compute::backend::Act;
use octet_weights::Value;

use super::llama;
use crate::Error;
use crate::models::keys::Keys;
use crate::models::plan::*;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let acts = (0..k.layers).map(|i| xielu(k, i)).collect::<Result<Vec<_>, _>>()?;
    let mut plan = llama::qwen3(k)?;
    plan.glus_mut().zip(acts).for_each(|(g, act)| (g.gate, g.act) = (None, act));
    Ok(plan)
}

/// The activation of layer `i`. The model learned the inverse of softplus of its factors, and the negative one less `beta`.
fn xielu(k: &Keys, i: usize) -> Result<Act, Error> {
    let beta = number(k, i, "beta")?;
    if beta != 0.5 {
        return Err(k.bad_own("xielu.beta", format!("is {beta} in layer {i}; only 0.5 is supported")));
    }
    // `x` in the exponential is at most this, which changes nothing that a sum in f32 could show.
    let eps = number(k, i, "eps")?;
    if !(-1e-5..=0.0).contains(&eps) {
        return Err(k.bad_own("xielu.eps", format!("is {eps} in layer {i}; expected -0.00001 to 0")));
    }
    let softplus = |x: f64| if x > 30.0 { x } else { x.exp().ln_1p() };
    let positive = softplus(number(k, i, "alpha_p")?) as f32;
    let negative = (beta + softplus(number(k, i, "alpha_n")?)) as f32;
    Ok(Act::Xielu { positive, negative })
}

/// A number of layer `i`: GGUF files have keys without a prefix, with a value for each layer or one for all, and checkpoints have tensors.
fn number(k: &Keys, i: usize, name: &str) -> Result<f64, Error> {
    let (key, tensor) = (format!("xielu.{name}"), format!("blk.{i}.xielu.{name}"));
    let found = match k.model.metadata.get(&key) {
        Some(Value::Floats(all)) => all.get(i).copied(),
        Some(Value::F64(x)) => Some(*x),
        Some(_) => None,
        None if k.has(&tensor) => Some(f64::from(k.number(&tensor)?)),
        None => None,
    };
    let what = || format!("has no number for layer {i}; a number for each layer is expected");
    found.filter(|x| x.is_finite()).ok_or_else(|| k.bad_own(&key, what()))
}
