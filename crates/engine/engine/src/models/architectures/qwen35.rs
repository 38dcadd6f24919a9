//! Qwen3.5 and 3.6, Qwen3-Next: Gated DeltaNet in three of four layers, gated attention in the others, a multi-token-prediction block.

use octet_compute::backend::{Act, HeadOrder, MAX_CONV, RopePairing};

use super::llama;
use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::rope;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let recurrent = match k.pattern("attention.recurrent_layers")? {
        Some(all) => all,
        None => k.all_but_each(k.opt_size("full_attention_interval", k.layers.max(4))?.unwrap_or(4)),
    };
    let mut blocks = Vec::new();
    for (i, recurrent) in recurrent.iter().enumerate() {
        blocks.extend(layer(k, i, *recurrent)?);
    }
    let dims = k.head_dims()?;
    let rope = rope::interleaved(k, k.rope(dims[0], RopePairing::Half)?)?;
    let mut plan = k.plan(vec![rope], blocks);
    if k.mtp_layers > 1 {
        return Err(k.bad("nextn_predict_layers", format!("is {}; at most 1 is supported", k.mtp_layers)));
    }
    if k.mtp_layers == 1 {
        plan.mtp = Some(mtp(k)?);
    }
    Ok(plan)
}

/// The two blocks of layer `i`.
fn layer(k: &Keys, i: usize, recurrent: bool) -> Result<[Block; 2], Error> {
    let mixer = match recurrent {
        true => Op::Delta(Box::new(delta(k, i)?)),
        false => Op::Attention(Box::new(attention(k, i)?)),
    };
    let feed_forward = match k.experts()? {
        Some(e) => Op::Moe(Box::new(llama::moe(k, i, e, SOFTMAX)?)),
        None => Op::Glu(k.glu(i, "", k.inner(i)?, Act::Silu)),
    };
    Ok([
        Block::new(i, k.layer_norm(i, "attn_norm"), mixer),
        Block::new(i, k.layer_norm(i, "post_attention_norm"), feed_forward),
    ])
}

/// Attention whose queries come with gates of the output.
fn attention(k: &Keys, i: usize) -> Result<Attention, Error> {
    let (heads, dims) = (k.heads()?[i], k.head_dims()?);
    let mut a = k.attention(i, [heads, k.kv_heads()?[i]], dims)?;
    a.gated = true;
    if let Project::Direct { q, .. } = &mut a.project {
        q.shape[0] *= 2;
    }
    for (norm, of) in a.norms.iter_mut().zip(["q", "k"]) {
        *norm = Some(k.norm(&format!("blk.{i}.attn_{of}_norm"), dims[0]));
    }
    Ok(a)
}

fn delta(k: &Keys, i: usize) -> Result<Delta, Error> {
    let (k_dim, k_heads) = (k.size("ssm.state_size", MAX_HEAD_DIM)?, k.size("ssm.group_count", MAX_DIM)?);
    let (v_heads, inner) = (k.size("ssm.time_step_rank", MAX_DIM)?, k.size("ssm.inner_size", MAX_DIM)?);
    if v_heads % k_heads != 0 {
        return Err(k.bad("ssm.time_step_rank", format!("is {v_heads}, no multiple of {k_heads} key heads")));
    }
    if inner % v_heads != 0 || inner / v_heads > MAX_HEAD_DIM {
        let what = format!("is {inner}, no sensible multiple of {v_heads} value heads");
        return Err(k.bad("ssm.inner_size", what));
    }
    let taps = k.size("ssm.conv_kernel", MAX_CONV)?;
    if taps < 2 {
        return Err(k.bad("ssm.conv_kernel", "is 1; expected at least 2".into()));
    }
    let (channels, name) = (2 * k_heads * k_dim + inner, |n: &str| format!("blk.{i}.{n}"));
    let matrix = |n: &str, rows| Tensor::matrix(name(n), rows, k.hidden);
    let [beta, alpha] = match k.arch {
        // Both in one tensor: of each key head the rows of its value heads, first for beta, then for the decay.
        "qwen3next" => {
            let each = v_heads / k_heads;
            [0, each].map(|from| matrix("ssm_ba", 2 * v_heads).every(from, each, 2 * each))
        }
        _ => ["ssm_beta", "ssm_alpha"].map(|n| matrix(n, v_heads)),
    };
    let [qkv, z] = if k.has(&name("attn_qkvz.weight")) {
        // Of each key head its query, its key, its values, and their gates.
        let values = inner / k_heads;
        let each = 2 * (k_dim + values);
        let all = Tensor::matrix(name("attn_qkvz"), k_heads * each, k.hidden);
        let part = |from, len| all.every(from, len, each);
        let qk = part(0, k_dim).then(part(k_dim, k_dim));
        [qk.then(part(2 * k_dim, values)), part(2 * k_dim + values, values)]
    } else {
        [matrix("attn_qkv", channels), matrix("attn_gate", inner)]
    };
    let conv = Tensor { shape: vec![channels, taps], ..Tensor::vector(name("ssm_conv1d.weight"), 0) };
    Ok(Delta {
        qkv: vec![qkv],
        z,
        beta,
        alpha,
        down: None,
        conv: vec![conv],
        row_decay: false,
        sigmoid_gate: false,
        a: Tensor::vector(name("ssm_a"), v_heads),
        dt_bias: Tensor::vector(name("ssm_dt.bias"), v_heads),
        norm: k.norm(&name("ssm_norm"), inner / v_heads),
        taps,
        k_heads,
        v_heads,
        k_dim,
        v_dim: inner / v_heads,
        order: order(k)?,
        out: Tensor::matrix(name("ssm_out"), k.hidden, inner),
    })
}

/// GGUF files of Qwen3.5 have value heads in another order than checkpoints and files of Qwen3-Next.
fn order(k: &Keys) -> Result<HeadOrder, Error> {
    match k.own("octet.gdn_head_order")? {
        None if k.arch == "qwen3next" => Ok(HeadOrder::Grouped),
        None => Ok(HeadOrder::Tiled),
        Some("grouped") => Ok(HeadOrder::Grouped),
        Some(other) => Err(k.bad_own("octet.gdn_head_order", format!("is '{other}'; expected 'grouped'"))),
    }
}

/// The block for multi-token prediction, which is the block after the layers.
fn mtp(k: &Keys) -> Result<Mtp, Error> {
    let i = k.layers;
    let norm = |n: &str| k.norm(&format!("blk.{i}.nextn.{n}"), k.hidden);
    let own = k.has(&norm("shared_head_norm").weight.name);
    Ok(Mtp {
        embed_norm: norm("enorm"),
        hidden_norm: norm("hnorm"),
        fc: Tensor::matrix(format!("blk.{i}.nextn.eh_proj"), k.hidden, 2 * k.hidden),
        blocks: layer(k, i, false)?.into(),
        norm: if own { norm("shared_head_norm") } else { k.norm("output_norm", k.hidden) },
    })
}
