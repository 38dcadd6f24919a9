//! BERT (arXiv 1810.04805) and its relatives: encoders with norms after each sum. `bert` has learned positions, and is also XLM-RoBERTa;
//! nomic-embed rotates instead, and has gates or, in every second layer, experts.

use octet_compute::backend::{Act, RopePairing, Window};

use super::encoder;
use crate::Error;
use crate::models::keys::{Keys, MAX_DIM, RouterDefaults, SOFTMAX};
use crate::models::plan::*;

pub fn bert(k: &Keys) -> Result<Plan, Error> {
    let mut plan = plan(k, None, |i| mlp(k, i))?;
    let positions = k.range("context_length", k.rows("position_embd")?, MAX_DIM)?;
    plan.embed.positions = Some(Tensor::matrix("position_embd", positions, k.hidden));
    Ok(plan)
}

/// nomic-embed-text v1 and v1.5.
pub fn nomic(k: &Keys) -> Result<Plan, Error> {
    plan(k, Some(0), |i| Ok(Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu))))
}

/// nomic-embed-text v2: experts in every `n`-th layer from the second on.
pub fn nomic_moe(k: &Keys) -> Result<Plan, Error> {
    let every = k.opt_size("moe_every_n_layers", k.layers)?;
    let experts = k.experts()?;
    let router = RouterDefaults { normalise: false, ..SOFTMAX };
    plan(k, Some(0), |i| match (experts, every) {
        (Some(e), Some(n)) if i % n == 1 => {
            let mut moe = k.moe(i, e, Act::GeluErf, router)?;
            moe.experts.gate = None;
            Ok(Op::Moe(Box::new(moe)))
        }
        _ => mlp(k, i),
    })
}

fn mlp(k: &Keys, i: usize) -> Result<Op, Error> {
    Ok(Op::Glu(Glu { gate: None, ..k.glu(i, "", k.inner(i)?, Act::GeluErf) }))
}

/// An encoder whose feed-forward blocks are `feed_forward`, with a rotation or without.
fn plan(
    k: &Keys,
    rope: Option<usize>,
    feed_forward: impl Fn(usize) -> Result<Op, Error>,
) -> Result<Plan, Error> {
    let norm = |name: String| k.centred(k.norm(&name, k.hidden));
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let a = Attention { rope, ..encoder::attention(k, i, Window::All)? };
        let after = Some(norm(format!("blk.{i}.attn_output_norm")));
        blocks.push(Block { norm: after, ..Block::plain(i, Op::Attention(Box::new(a))) });
        let after = norm(format!("blk.{i}.layer_output_norm"));
        blocks.push(Block { norm: Some(after), ..Block::plain(i, feed_forward(i)?) });
    }
    let ropes = rope.map(|_| k.rope(k.head_dims()?[0], RopePairing::Half)).transpose()?;
    // The norm after the last block is that before what follows.
    let last = blocks.last_mut().and_then(|b| b.norm.take());
    let mut plan = k.plan(ropes.into_iter().collect(), blocks);
    if let Some(last) = last {
        plan.head = Head { norm: last, matrix: None, ..plan.head };
    }
    plan.embed.norm = Some(norm("token_embd_norm".into()));
    if k.has("token_types.weight") {
        plan.embed.types = Some(Tensor::matrix("token_types", k.rows("token_types")?, k.hidden));
    }
    plan.pool = Some(encoder::pool(k, DenseAct::Tanh, Pooling::Cls)?);
    Ok(plan)
}
