//! Nemotron-H and Nemotron 3: each layer is one of Mamba-2, attention without rotation, a ReLU-squared block, or experts of such blocks.

use octet_compute::backend::{Act, MAX_CONV};

use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let inner = k.each("feed_forward_length", MAX_DIM)?.unwrap_or_default();
    let experts = k.experts()?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let op = match (kv_heads[i], inner.get(i).copied().unwrap_or(0), experts) {
            (0, 0, _) => Op::Ssm(Box::new(mamba2(k, i)?)),
            (0, _, Some(e)) => Op::Moe(Box::new(moe(k, i, e)?)),
            (0, n, None) => Op::Glu(Glu { gate: None, ..k.glu(i, "", n, Act::Relu2) }),
            (kv, ..) => {
                let a = k.attention(i, [heads[i], kv], dims)?;
                Op::Attention(Box::new(Attention { rope: None, ..a }))
            }
        };
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), op));
    }
    Ok(k.plan(Vec::new(), blocks))
}

fn moe(k: &Keys, i: usize, e: Experts) -> Result<Moe, Error> {
    let mut m = k.moe(i, e, Act::Relu2, SIGMOID)?;
    m.experts.gate = None;
    if let inner @ 1.. = k.shared_inner(e)? {
        m.shared = Some((None, Glu { gate: None, ..k.glu(i, "_shexp", inner, Act::Relu2) }));
    }
    Ok(m)
}

/// Mamba-2 of block `i`, whose input projection has the rows of the gate, of the convolution and of the time steps.
pub fn mamba2(k: &Keys, i: usize) -> Result<Ssm, Error> {
    let inner = k.size("ssm.inner_size", MAX_DIM)?;
    let heads = k.size("ssm.time_step_rank", MAX_DIM)?;
    let groups = k.opt_size("ssm.group_count", heads)?.unwrap_or(1);
    let (state, taps) = (k.size("ssm.state_size", MAX_HEAD_DIM)?, k.size("ssm.conv_kernel", MAX_CONV)?);
    if inner % heads != 0 || inner / heads > MAX_HEAD_DIM || heads % groups != 0 || taps < 2 {
        let what = format!("is {inner}, for {heads} heads in {groups} groups and {taps} taps");
        return Err(k.bad("ssm.inner_size", what));
    }
    let (channels, name) = (inner + 2 * groups * state, |n: &str| format!("blk.{i}.ssm_{n}"));
    let input = Tensor::matrix(name("in"), inner + channels + heads, k.hidden);
    let bias = name("conv1d.bias");
    let norm = k.norm(&name("norm"), inner / groups);
    let weight = Tensor::vector(norm.weight.name.clone(), inner);
    Ok(Ssm {
        z: input.rows(0, inner),
        xbc: input.rows(inner, channels),
        dt: input.rows(inner + channels, heads),
        conv: Tensor { shape: vec![channels, taps], ..Tensor::vector(name("conv1d.weight"), 0) }
            .change(Change::Transpose),
        conv_bias: k.has(&bias).then(|| Tensor::vector(bias, channels)),
        a: Tensor::vector(name("a"), heads),
        dt_bias: Tensor::vector(name("dt.bias"), heads),
        d: Tensor::vector(name("d"), heads),
        norm: k.has(&weight.name).then_some(Norm { weight, ..norm }),
        taps,
        groups,
        heads,
        dim: inner / heads,
        state,
        out: Tensor::matrix(name("out"), k.hidden, inner),
    })
}
