//! Kimi Linear: Kimi Delta Attention (arXiv 2510.26692) in most layers, latent attention without rotation in the others, experts.

use octet_compute::backend::{Act, HeadOrder, MAX_CONV};

use super::{deepseek2, llama};
use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads) = (k.heads()?, k.kv_heads()?);
    let latent = deepseek2::Latent::read(k)?;
    let (dense, experts) = (k.leading_dense()?, k.experts()?);
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let op = match kv_heads[i] {
            0 => Op::Delta(Box::new(delta(k, i, heads[i])?)),
            _ => {
                let a = deepseek2::attention(k, i, heads[i], &latent)?;
                Op::Attention(Box::new(Attention { rope: None, ..a }))
            }
        };
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), op));
        let op = match experts {
            Some(e) if i >= dense => Op::Moe(Box::new(llama::moe(k, i, e, SIGMOID)?)),
            _ => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
        };
        blocks.push(Block::new(i, k.layer_norm(i, "ffn_norm"), op));
    }
    Ok(k.plan(Vec::new(), blocks))
}

/// Kimi Delta Attention: gates and decays come from projections of low rank.
fn delta(k: &Keys, i: usize, heads: usize) -> Result<Delta, Error> {
    let (dim, taps) = (k.size("kda.head_dim", MAX_HEAD_DIM)?, k.size("ssm.conv_kernel", MAX_CONV)?);
    if taps < 2 || heads == 0 {
        return Err(k.bad("ssm.conv_kernel", format!("is {taps}, for {heads} heads; expected at least 2")));
    }
    let (inner, name) = (heads * dim, |n: &str| format!("blk.{i}.{n}"));
    let (f_a, g_a) = (k.rows(&name("ssm_f_a"))?, k.rows(&name("ssm_g_a"))?);
    let conv = |n: &str| Tensor {
        shape: vec![inner, taps],
        ..Tensor::vector(name(&format!("ssm_conv1d_{n}.weight")), 0)
    };
    Ok(Delta {
        qkv: ["attn_q", "attn_k", "attn_v"].map(|n| Tensor::matrix(name(n), inner, k.hidden)).into(),
        down: Some([("ssm_g_a", g_a), ("ssm_f_a", f_a)].map(|(n, r)| Tensor::matrix(name(n), r, k.hidden))),
        z: Tensor::matrix(name("ssm_g_b"), inner, g_a),
        alpha: Tensor::matrix(name("ssm_f_b"), inner, f_a),
        beta: Tensor::matrix(name("ssm_beta"), heads, k.hidden),
        conv: ["q", "k", "v"].map(conv).into(),
        row_decay: true,
        sigmoid_gate: true,
        a: Tensor::vector(name("ssm_a"), heads).change(Change::Repeat(dim)),
        dt_bias: Tensor::vector(name("ssm_dt.bias"), inner),
        norm: k.norm(&name("ssm_norm"), dim),
        taps,
        k_heads: heads,
        v_heads: heads,
        k_dim: dim,
        v_dim: dim,
        order: HeadOrder::Tiled,
        out: Tensor::matrix(name("attn_output"), k.hidden, inner),
    })
}
