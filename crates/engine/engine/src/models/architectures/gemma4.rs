//! Gemma 4: heads of two sizes, values without a projection, layer scales; experts beside a dense block (26B-A4B); embeddings of each layer
//! and shared keys (E2B, E4B).

use octet_compute::backend::{Act, RopePairing, Window};

use crate::Error;
use crate::models::keys::*;
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, RopeRules, WINDOWED};
use crate::models::windows::Windows;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let kinds = Kinds::read(k, 6)?;
    let pairing = k.pairing(RopePairing::Half)?;
    let full = RopeRules { default: 1e6, ..ROPE };
    let ropes = vec![
        rope::table(k, k.rope_dims("rope.dimension_count", kinds.full[0])?, pairing, full)?,
        rope::table(k, k.rope_dims("rope.dimension_count_swa", kinds.windowed[0])?, pairing, WINDOWED)?,
    ];
    let per_layer = k.opt_size("embedding_length_per_layer_input", MAX_DIM)?;
    let experts = k.experts()?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let norm = |n: &str| k.layer_norm(i, n);
        let attention = Block::new(i, norm("attn_norm"), Op::Attention(Box::new(kinds.attention(k, i)?)));
        blocks.push(attention.post(norm("post_attention_norm")));
        let glu = Op::Glu(k.glu(i, "", k.inner(i)?, Act::Gelu));
        let mut feed_forward = Block::new(i, norm("ffn_norm"), glu).post(norm("post_ffw_norm"));
        if let Some(e) = experts {
            let op = Op::Moe(Box::new(moe(k, i, e)?));
            let beside =
                Branch { pre: Some(norm("pre_ffw_norm_2")), op, post: Some(norm("post_ffw_norm_2")) };
            feed_forward.branches[0].post = Some(norm("post_ffw_norm_1"));
            feed_forward.branches.push(beside);
        }
        blocks.push(feed_forward);
        if let Some(width) = per_layer {
            let gate = Tensor::matrix(format!("blk.{i}.inp_gate"), width, k.hidden);
            let out = Tensor::matrix(format!("blk.{i}.proj"), k.hidden, width);
            let op = Op::PerLayer { gate, out, act: Act::Gelu };
            let branches = vec![Branch { pre: None, op, post: None }];
            blocks.push(Block {
                layer: i,
                branches,
                post: Some(norm("post_norm")),
                add: 1.0,
                keep: 1.0,
                norm: None,
            });
        }
        let last = blocks.last_mut().expect("a layer has blocks");
        last.keep = k.number(&format!("blk.{i}.layer_output_scale.weight"))?;
    }
    let mut plan = k.plan(ropes, blocks);
    plan.embed.scale = (k.hidden as f32).sqrt();
    plan.embed.per_layer = per_layer.map(|width| embeddings(k, width, k.vocab));
    plan.head.softcap = k.cap("final_logit_softcapping")?;
    Ok(plan)
}

/// Embeddings of each layer from a table of `rows` rows.
pub(super) fn embeddings(k: &Keys, width: usize, rows: usize) -> PerLayer {
    PerLayer {
        width,
        table: Tensor::matrix("per_layer_token_embd", rows, k.layers * width),
        project: Tensor::matrix("per_layer_model_proj", k.layers * width, k.hidden),
        norm: k.norm("per_layer_proj_norm", width),
        scales: [(width as f32).sqrt(), 1.0 / (k.hidden as f32).sqrt(), std::f32::consts::FRAC_1_SQRT_2],
    }
}

/// The two kinds of layers.
pub(super) struct Kinds {
    heads: Vec<usize>,
    kv_heads: Vec<usize>,
    /// Dimensions of keys and values in layers that attend to all positions, and in those with a window.
    full: [usize; 2],
    windowed: [usize; 2],
    windows: Option<Windows>,
    /// Layers with keys and values of their own; those after them use the last such layer of their kind.
    pub own: usize,
}

impl Kinds {
    /// All but each `period`-th layer have a window, if the file has one and does not say which.
    pub fn read(k: &Keys, period: usize) -> Result<Self, Error> {
        let full = k.head_dims()?;
        let dim = |key, default| Ok::<_, Error>(k.present_size(key, MAX_HEAD_DIM)?.unwrap_or(default));
        let windowed =
            [dim("attention.key_length_swa", full[0])?, dim("attention.value_length_swa", full[1])?];
        let shared = k.opt_size("attention.shared_kv_layers", k.layers - 1)?.unwrap_or(0);
        Ok(Self {
            heads: k.heads()?,
            kv_heads: k.kv_heads()?,
            full,
            windowed,
            windows: Windows::with_default(k, period)?,
            own: k.layers - shared,
        })
    }

    fn slides(&self, i: usize) -> bool {
        self.windows.as_ref().is_some_and(|w| w.slides[i])
    }

    /// Attention of layer `i`.
    pub fn attention(&self, k: &Keys, i: usize) -> Result<Attention, Error> {
        let slides = self.slides(i);
        let dims = if slides { self.windowed } else { self.full };
        let mut a = k.attention(i, [self.heads[i], self.kv_heads[i]], dims)?;
        a.scale = k.factor("attention.scale", 1.0)?;
        a.norms[2] = Some(k.plain_norm(a.v_dim));
        if let (Some(w), true) = (&self.windows, slides) {
            (a.window, a.rope, a.two_way) = (Window::Last(w.size), Some(1), true);
        }
        let Project::Direct { k: key, v, .. } = &mut a.project else { return Ok(a) };
        if i >= self.own {
            let of = (0..self.own).rev().find(|j| self.slides(*j) == slides);
            let of = of.ok_or_else(|| {
                k.bad("attention.shared_kv_layers", format!("leaves layer {i} without keys to use"))
            })?;
            (*key, *v, a.keeps) = (None, None, Keeps::Of(of));
            a.norms[1] = None;
        } else if !k.has(&format!("blk.{i}.attn_v.weight")) {
            *v = None;
        }
        Ok(a)
    }
}

/// The router reads the residual stream through a norm of its own, and each expert has a factor.
fn moe(k: &Keys, i: usize, e: Experts) -> Result<Moe, Error> {
    let mut m = k.moe(i, e, Act::Gelu, SOFTMAX)?;
    let scale = Tensor::vector(format!("blk.{i}.ffn_gate_inp.scale"), k.hidden);
    let scale = scale.change(Change::Scale(1.0 / (k.hidden as f32).sqrt()));
    m.router.input = Some(Norm { weight: scale, ..k.plain_norm(k.hidden) });
    m.router.per_expert = Some(Tensor::vector(format!("blk.{i}.ffn_down_exps.scale"), e.count));
    Ok(m)
}
