//! Gemma 3n: four residual streams (AltUp), a projection of low rank beside attention (LAuReL), sparse activations in the first layers; embeddings
//! of each layer, keys shared by the last layers and windows as in Gemma 4.

use octet_compute::backend::{Act, MAX_STREAMS, RopePairing};
use octet_weights::Value;

use super::gemma4::{Kinds, embeddings};
use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, RopeRules, WINDOWED};

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let kinds = Kinds::read(k, 5)?;
    let dims = k.rope_dims("rope.dimension_count", k.head_dims()?[0])?;
    let pairing = k.pairing(RopePairing::Half)?;
    let full = RopeRules { default: 1e6, ..ROPE };
    let ropes = vec![rope::table(k, dims, pairing, full)?, rope::table(k, dims, pairing, WINDOWED)?];
    let mut blocks = Vec::new();
    for (i, deviations) in deviations(k)?.into_iter().enumerate() {
        let norm = |n: &str| k.layer_norm(i, n);
        blocks.push(attention(k, i, kinds.attention(k, i)?)?);
        let glu = k.glu(i, "", k.inner(i)?, Act::Gelu);
        let glu = match deviations {
            Some(d) => Op::SparseGlu(glu, d),
            None => Op::Glu(glu),
        };
        blocks.push(Block::new(i, norm("ffn_norm"), glu).post(norm("post_ffw_norm")));
    }
    let mut plan = k.plan(ropes, blocks);
    plan.embed.scale = (k.hidden as f32).sqrt();
    let width = k.size("embedding_length_per_layer_input", MAX_DIM)?;
    // Tokens of images and sound have no row.
    let rows = k.rows("per_layer_token_embd")?.min(k.vocab);
    plan.embed.per_layer = Some(embeddings(k, width, rows));
    plan.streams = Some(streams(k, width)?);
    // Older converters do not write it; there are only these models.
    let softcap = "final_logit_softcapping";
    plan.head.softcap = if k.get(softcap).is_some() { k.cap(softcap)? } else { Some(30.0) };
    // Published files have keys and values of layers that use those of earlier ones.
    let unused = ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"];
    let names = (kinds.own..k.layers).flat_map(|i| unused.map(|n| format!("blk.{i}.{n}")));
    plan.aside.extend(names.filter(|n| k.has(n)));
    Ok(plan)
}

/// `h = (h + attention + x + low rank of x) / sqrt(2)`, where `x = norm(h)` is what attention reads, too.
fn attention(k: &Keys, i: usize, a: Attention) -> Result<Block, Error> {
    let norm = |n: &str| k.layer_norm(i, n);
    let rank = k.rows(&format!("blk.{i}.laurel_l"))?;
    let low_rank = Op::LowRank {
        down: Tensor::matrix(format!("blk.{i}.laurel_l"), rank, k.hidden),
        up: Tensor::matrix(format!("blk.{i}.laurel_r"), k.hidden, rank),
    };
    let branch = |pre, op, post: Option<Norm>| Branch { pre, op, post };
    let pre = norm("attn_norm");
    let branches = vec![
        branch(Some(pre.clone()), Op::Attention(Box::new(a)), Some(norm("post_attention_norm"))),
        branch(Some(pre.clone()), low_rank, Some(norm("laurel_post_norm"))),
        branch(None, Op::Norm(pre), None),
    ];
    Ok(Block { layer: i, branches, post: None, add: 1.0, keep: std::f32::consts::FRAC_1_SQRT_2, norm: None })
}

fn streams(k: &Keys, width: usize) -> Result<Streams, Error> {
    let count = k.size("altup.num_inputs", MAX_STREAMS)?;
    if count < 2 {
        return Err(k.bad("altup.num_inputs", format!("is {count}; expected 2 to {MAX_STREAMS}")));
    }
    if let Some(active) = k.opt_size("altup.active_idx", MAX_STREAMS)? {
        return Err(k.bad("altup.active_idx", format!("is {active}; only 0 is supported")));
    }
    let layer = |i: usize| {
        let name = |n: &str| format!("blk.{i}.{n}");
        let norm = k.layer_norm(i, "altup_router_norm");
        let scaled = norm.weight.clone().change(Change::Scale(1.0 / k.hidden as f32));
        let matrix = |n: &str, rows| Tensor::matrix(format!("{}.weight", name(n)), rows, count);
        AltUp {
            router: Tensor::matrix(name("altup_router"), count, k.hidden),
            norm: Norm { weight: scaled, ..norm },
            predict: matrix("altup_predict_coef", count * count),
            correct: matrix("altup_correct_coef", count),
            scale: Tensor::vector(name("altup_correct_scale.weight"), k.hidden),
            gate: Tensor::matrix(name("inp_gate"), width, k.hidden),
            out: Tensor::matrix(name("proj"), k.hidden, width),
            act: Act::Gelu,
            post: k.layer_norm(i, "post_norm"),
        }
    };
    let project = |n: &str| Tensor::stack(n, count - 1, k.hidden, k.hidden);
    Ok(Streams {
        count,
        expand: project("altup_proj"),
        merge: project("altup_unembd_proj"),
        layers: (0..k.layers).map(layer).collect(),
    })
}

/// The bound of each layer's gates in standard deviations above their mean; minus infinity in a file: none.
fn deviations(k: &Keys) -> Result<Vec<Option<f32>>, Error> {
    let key = "activation_sparsity_scale";
    let wrong = || k.bad(key, format!("is no array of {} numbers or more", k.layers));
    let Some(Value::Floats(all)) = k.get(key) else { return Err(wrong()) };
    let all = all.get(..k.layers).filter(|all| all.iter().all(|x| *x < f64::INFINITY)).ok_or_else(wrong)?;
    Ok(all.iter().map(|x| x.is_finite().then_some(*x as f32)).collect())
}
