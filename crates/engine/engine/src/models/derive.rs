//! What follows from a plan: caches, sizes of a step, widths of buffers, the parts that a backend must have.

use std::collections::BTreeSet;

use octet_compute::backend::{
    Act, CacheShape, KvTypes, LayerCache, PageGroup, Part, Score, StepShape, Window, WindowedPages,
};
use octet_compute::batch::PAGE_TOKENS;

use super::Limits;
use super::decoder::Widths;
use super::plan::*;
use crate::Error;

impl Op {
    /// What the operation keeps between steps.
    pub fn cache(&self) -> LayerCache {
        match self {
            Self::Attention(a) if a.keeps == Keeps::Own => {
                let v_dim = if matches!(a.project, Project::Latent { .. }) { 0 } else { a.v_dim };
                let group = if a.window.slides() { PageGroup::Windowed } else { PageGroup::All };
                LayerCache::Kv { kv_heads: a.kv_heads, k_dim: a.k_dim, v_dim, group }
            }
            Self::Delta(d) => LayerCache::State {
                conv: (d.taps - 1) * d.channels(),
                state: d.v_heads * d.k_dim * d.v_dim,
                inputs: d.channels() + d.v_heads + d.decays(),
            },
            Self::Ssm(s) => LayerCache::State {
                conv: (s.taps - 1) * s.channels(),
                state: s.heads * s.dim * s.state,
                inputs: s.channels() + s.heads,
            },
            Self::ShortConv(s) => {
                LayerCache::State { conv: (s.taps - 1) * s.width, state: 0, inputs: s.width }
            }
            _ => LayerCache::None,
        }
    }
}

impl Ssm {
    /// Channels of the convolution.
    pub fn channels(&self) -> usize {
        self.heads * self.dim + 2 * self.groups * self.state
    }
}

impl Plan {
    /// Every operation of the layers, and of the block for multi-token prediction.
    pub fn ops(&self) -> impl Iterator<Item = (usize, &Op)> {
        let mtp = self.mtp.iter().flat_map(|m| &m.blocks);
        self.blocks.iter().chain(mtp).flat_map(|b| b.branches.iter().map(|r| (b.layer, &r.op)))
    }

    /// The dense feed-forward blocks of the layers.
    pub fn glus_mut(&mut self) -> impl Iterator<Item = &mut Glu> {
        let branches = self.blocks.iter_mut().flat_map(|b| &mut b.branches);
        branches.filter_map(|r| if let Op::Glu(g) = &mut r.op { Some(g) } else { None })
    }
}

/// The caches of a plan: one of each layer, then the second ones of layers with two (attention beside Mamba-2).
#[derive(Debug, Clone)]
pub struct Caches {
    layers: Vec<LayerCache>,
    mtp: Option<LayerCache>,
    /// Layers with a second cache, and these.
    second: Vec<(usize, LayerCache)>,
}

impl Caches {
    /// Those of a plan.
    pub fn new(plan: &Plan) -> Self {
        let mut all = Self { layers: vec![LayerCache::None; plan.layers], mtp: None, second: Vec::new() };
        for (layer, op) in plan.ops() {
            match (op.cache(), all.layers.get_mut(layer)) {
                (LayerCache::None, _) => {}
                (cache, None) => all.mtp = Some(cache),
                (cache, Some(first)) if *first == LayerCache::None => *first = cache,
                (cache, Some(_)) => all.second.push((layer, cache)),
            }
        }
        // Keys and values that another layer attends to are kept as long as that one needs them.
        for (_, op) in plan.ops() {
            if let Op::Attention(a) = op
                && let Keeps::Of(layer) = a.keeps
                && !a.window.slides()
            {
                all.layers[layer] = all.layers[layer].in_group(PageGroup::All);
            }
        }
        all
    }

    /// All of them in order, with that of the block for multi-token prediction if it is loaded.
    pub fn shape(&self, mtp: bool) -> Vec<LayerCache> {
        let block = self.mtp.filter(|_| mtp);
        self.layers.iter().copied().chain(block).chain(self.second.iter().map(|s| s.1)).collect()
    }

    /// The layer of each cache, without that of the block for multi-token prediction.
    pub fn layers(&self) -> Vec<usize> {
        (0..self.layers.len()).chain(self.second.iter().map(|s| s.0)).collect()
    }

    /// That of the block for multi-token prediction.
    pub fn mtp(&self) -> LayerCache {
        self.mtp.unwrap_or(LayerCache::None)
    }

    /// The index of the cache of `op` in layer `layer`.
    pub fn at(&self, layer: usize, op: &Op) -> usize {
        let all = |c: LayerCache| c.in_group(PageGroup::All);
        let is_first = self.layers.get(layer).is_none_or(|c| all(*c) == all(op.cache()));
        if is_first {
            return layer;
        }
        let second = self.second.iter().position(|s| s.0 == layer).unwrap_or(0);
        // A model with two caches in a layer has no block for multi-token prediction.
        self.layers.len() + second
    }
}

/// Fails if the heads of a plan cannot be stored in these types.
pub(crate) fn check_kv(origin: &str, plan: &Plan, kv: KvTypes) -> Result<(), Error> {
    for cache in Caches::new(plan).shape(true) {
        if let LayerCache::Kv { k_dim, v_dim, .. } = cache {
            let named = |e| octet_compute::Error(format!("{origin}: {e}"));
            kv.check(k_dim, v_dim).map_err(named)?;
        }
    }
    Ok(())
}

/// Whether some layers attend within a window only.
pub fn has_windows(plan: &Plan) -> bool {
    plan.ops().any(|(_, op)| matches!(op, Op::Attention(a) if a.window != Window::All))
}

/// The window of layers with one, the widest of several; `None` without such layers, or if some have windows of another kind.
pub fn window(plan: &Plan) -> Option<Window> {
    let windows = plan.ops().filter_map(|(_, op)| match op {
        Op::Attention(a) if a.window.slides() => Some(a.window),
        _ => None,
    });
    let mut widest = None;
    for w in windows {
        widest = match (widest, w) {
            (None, w) => Some(w),
            (Some(Window::Last(a)), Window::Last(b)) => Some(Window::Last(a.max(b))),
            (Some(Window::Chunk(a)), Window::Chunk(b)) if a == b => Some(w),
            _ => return None,
        };
    }
    widest
}

/// Most pages of the positions that a token attends to in a window.
pub fn pages_of(window: Window) -> usize {
    match window {
        Window::All | Window::Around(_) => 0,
        // They may begin at the end of a page.
        Window::Last(n) => n.saturating_add(PAGE_TOKENS - 2) / PAGE_TOKENS + 1,
        Window::Chunk(n) => n.div_ceil(PAGE_TOKENS) + usize::from(!n.is_multiple_of(PAGE_TOKENS)),
    }
}

/// Pages of layers with a window: for each running sequence those of its window, those of the positions of a step but for a last one (prompts end
/// their part of a step at a page's end), and those of the windows that the prefix cache keeps. `None` if the plan has no such layers, if the limits
/// don't ask for it, or if it would not take less memory.
pub fn windowed_pages(plan: &Plan, limits: &Limits) -> Option<WindowedPages> {
    let window = window(plan).filter(|_| limits.page_groups)?;
    let sequences = limits.slots.saturating_add(limits.snapshots);
    // A page less than a large step may need, which is cut then; a small one may be a whole image.
    let step = limits.batch_tokens.div_ceil(PAGE_TOKENS);
    let step = if step >= 8 { step - 1 } else { step };
    let pages = sequences.saturating_mul(pages_of(window)).saturating_add(step);
    (pages < limits.pages).then_some(WindowedPages { pages, window })
}

/// The cache of these layers within limits.
pub fn cache_shape(
    mut layers: Vec<LayerCache>,
    limits: &Limits,
    windowed: Option<WindowedPages>,
) -> CacheShape {
    if windowed.is_none() {
        layers.iter_mut().for_each(|l| *l = l.in_group(PageGroup::All));
    }
    let slots = limits.slots + limits.spare_slots;
    CacheShape { layers, pages: limits.pages, windowed, slots, guesses: limits.guesses, kv: limits.kv }
}

/// Bytes that a snapshot takes: the recurrent state, and the pages of a window.
pub fn snapshot_bytes(plan: &Plan, kv: KvTypes) -> u64 {
    let caches = Caches::new(plan).shape(false);
    let states: u64 = caches.iter().map(|c| c.slot_bytes() as u64).sum();
    let pages = window(plan).map_or(0, pages_of) as u64;
    let windowed = caches.iter().filter(|c| c.group() == Some(PageGroup::Windowed));
    let page: u64 = windowed.map(|c| c.page_bytes(kv) as u64).sum();
    states.saturating_add(page.saturating_mul(pages))
}

/// The largest step over all layers, of `tokens` tokens and `outputs` rows of logits.
pub fn step_shape(plan: &Plan, tokens: usize, outputs: usize) -> StepShape {
    let mut s = StepShape { tokens, outputs, ..StepShape::default() };
    let most = |a: &mut usize, b: usize| *a = (*a).max(b);
    for (_, op) in plan.ops() {
        match op {
            Op::Attention(a) => {
                most(&mut s.heads, a.heads);
                if let Project::Latent { heads_k, heads_v, .. } = &a.project {
                    most(&mut s.per_head[0], a.heads);
                    most(&mut s.per_head[1], heads_k.shape[2].max(heads_v.shape[2]));
                }
            }
            Op::Delta(d) => {
                let sizes = [d.k_heads * d.k_dim, d.v_heads * d.v_dim, d.v_heads, d.k_dim, 0, d.decays()];
                s.recurrent.iter_mut().zip(sizes).for_each(|(a, b)| most(a, b));
            }
            Op::Ssm(m) => {
                let sizes = [0, m.channels(), m.heads, 0, m.dim * (m.state + 1), 0];
                s.recurrent.iter_mut().zip(sizes).for_each(|(a, b)| most(a, b));
            }
            Op::ShortConv(c) => {
                s.recurrent.iter_mut().zip([c.width, c.width, 0, 0, 0, 0]).for_each(|(a, b)| most(a, b));
            }
            Op::Glu(g) => most(&mut s.intermediate, g.inner),
            Op::SparseGlu(..) | Op::LowRank { .. } | Op::Norm(_) => {}
            Op::Moe(m) => {
                most(&mut s.experts, m.router.experts);
                most(&mut s.top_k, m.router.top_k);
                most(&mut s.expert_intermediate, m.experts.inner);
                most(&mut s.intermediate, m.shared.as_ref().map_or(0, |(_, g)| g.inner));
            }
            Op::PerLayer { .. } => {}
        }
    }
    if let Some(streams) = &plan.streams {
        most(&mut s.per_head[0], streams.count - 1);
        most(&mut s.per_head[1], plan.hidden);
    }
    s
}

/// Widths of the buffers of a step.
pub fn widths(plan: &Plan) -> Widths {
    let mut w = Widths::default();
    let most = |a: &mut usize, b: usize| *a = (*a).max(b);
    for (_, op) in plan.ops() {
        match op {
            Op::Attention(a) => {
                let (q, kv) = (a.heads * a.k_dim, a.kv_heads);
                most(&mut w.qkv, if a.gated { 2 * q } else { q });
                most(&mut w.kv[0], kv * a.k_dim);
                most(&mut w.kv[1], kv * a.v_dim);
                most(&mut w.out, a.heads * a.v_dim);
                if a.gate.is_some() {
                    most(&mut w.z, a.heads * a.v_dim);
                }
                if let Project::Latent { q, down_q, value, .. } = &a.project {
                    most(&mut w.z, q.shape[0].max(a.heads * value));
                    most(&mut w.kv[1], down_q.as_ref().map_or(0, |(m, _)| m.shape[0]));
                }
            }
            Op::Delta(d) => {
                let (keys, values) = (d.k_heads * d.k_dim, d.v_heads * d.v_dim);
                if d.qkv.len() == 1 {
                    most(&mut w.qkv, d.channels());
                } else {
                    most(&mut w.qkv, keys);
                    most(&mut w.kv[0], keys);
                    most(&mut w.kv[1], values);
                }
                most(&mut w.z, values);
                most(&mut w.heads, d.v_heads);
                most(&mut w.decays, d.decays());
                most(&mut w.out, values);
                for down in d.down.iter().flatten() {
                    most(&mut w.out, down.shape[0]);
                    most(&mut w.decays, down.shape[0]);
                }
            }
            Op::Ssm(s) => {
                most(&mut w.qkv, s.channels());
                most(&mut w.z, s.heads * s.dim);
                most(&mut w.heads, s.heads);
                most(&mut w.out, s.heads * s.dim);
            }
            Op::ShortConv(s) => {
                most(&mut w.qkv, 3 * s.width);
                most(&mut w.out, s.width);
            }
            Op::PerLayer { gate, .. } => most(&mut w.z, gate.shape[0]),
            Op::SparseGlu(g, _) => {
                most(&mut w.z, g.inner);
                most(&mut w.qkv, g.inner);
            }
            Op::LowRank { down, .. } => most(&mut w.z, down.shape[0]),
            Op::Glu(_) | Op::Moe(_) | Op::Norm(_) => {}
        }
    }
    if let Some(streams) = &plan.streams {
        w.streams = [(streams.count - 1) * plan.hidden, streams.count];
        w.sum = plan.hidden;
        streams.layers.iter().for_each(|l| most(&mut w.z, l.gate.shape[0]));
    }
    let blocks = || plan.blocks.iter();
    let sums =
        |b: &Block| b.post.is_some() || b.branches.len() > 1 || b.branches.iter().any(|r| r.post.is_some());
    let adds = plan.embed.positions.is_some() || plan.embed.types.is_some();
    if adds || blocks().any(sums) {
        w.sum = plan.hidden;
    }
    if blocks().any(|b| b.branches.iter().any(|r| r.post.is_some())) {
        w.part = plan.hidden;
    }
    w.per_layer = plan.embed.per_layer.as_ref().map_or(0, |p| plan.layers * p.width);
    w
}

/// The parts of a plan that not every backend has.
pub fn parts(plan: &Plan) -> BTreeSet<Part> {
    let mut parts = BTreeSet::new();
    let mut needs = |part, if_true: bool| {
        if if_true {
            parts.insert(part);
        }
    };
    let norm = |n: &Norm| n.centred || n.bias.is_some();
    for b in &plan.blocks {
        needs(Part::PostNorm, b.post.is_some() || b.branches.iter().any(|r| r.post.is_some()));
        needs(Part::ParallelBranches, b.branches.len() > 1);
        needs(Part::Scales, b.add != 1.0 || b.keep != 1.0);
        needs(Part::LayerNorm, b.branches.iter().any(|r| r.pre.as_ref().is_some_and(norm)));
        needs(Part::PostNorm, b.norm.is_some() || b.branches.iter().any(|r| r.pre.is_none()));
    }
    needs(Part::Streams, plan.streams.is_some());
    needs(Part::Encoder, plan.pool.is_some());
    needs(Part::Positions, plan.embed.positions.is_some());
    needs(Part::LayerNorm, norm(&plan.head.norm));
    needs(Part::Scales, plan.embed.scale != 1.0 || plan.head.scale != 1.0 || plan.head.softcap.is_some());
    needs(Part::PostNorm, plan.embed.norm.is_some());
    needs(Part::PerLayerEmbedding, plan.embed.per_layer.is_some());
    let mut ropes = BTreeSet::new();
    for (_, op) in plan.ops() {
        match op {
            Op::Attention(a) => {
                ropes.extend(a.rope);
                needs(Part::NoRotation, a.rope.is_none());
                attention_parts(a, &mut needs);
            }
            Op::Ssm(_) => needs(Part::Mamba2, true),
            Op::ShortConv(_) => needs(Part::ShortConvolution, true),
            Op::Glu(g) => needs(Part::Activation, g.act != Act::Silu || g.gate.is_none()),
            Op::SparseGlu(..) => needs(Part::SparseActivation, true),
            Op::LowRank { .. } | Op::Norm(_) => {}
            Op::Moe(m) => moe_parts(m, &mut needs),
            Op::Delta(d) => needs(Part::RowDecay, d.row_decay || d.sigmoid_gate || d.qkv.len() > 1),
            Op::PerLayer { .. } => {}
        }
    }
    needs(Part::RopeByLayer, ropes.len() > 1);
    parts
}

fn attention_parts(a: &Attention, needs: &mut impl FnMut(Part, bool)) {
    needs(Part::Windows, a.window != Window::All);
    needs(Part::SoftCaps, a.softcap.is_some());
    needs(Part::Sinks, a.sinks.is_some());
    needs(Part::HeadSizes, a.k_dim != a.v_dim);
    needs(Part::LatentAttention, matches!(a.project, Project::Latent { .. }));
    needs(Part::AttentionScale, a.scale != 1.0 / (a.k_dim as f32).sqrt());
    needs(Part::ValueNorm, a.norms[2].is_some() || a.value_scale != 1.0);
    needs(Part::SharedKeys, a.keeps != Keeps::Own);
    needs(Part::NormAfterRotation, a.norm_last);
    needs(Part::PositionScale, a.position_scale.is_some());
    needs(Part::OutputGate, a.gate.is_some());
}

fn moe_parts(m: &Moe, needs: &mut impl FnMut(Part, bool)) {
    let r = &m.router;
    let special = r.score != Score::Softmax || r.choice_bias.is_some() || r.groups.is_some();
    needs(Part::RouterScores, special || r.scale != 1.0 || r.input.is_some() || r.per_expert.is_some());
    needs(Part::RouterScores, r.weighs_input);
    needs(Part::UngatedSharedExpert, m.shared.as_ref().is_some_and(|(gate, _)| gate.is_none()));
    let plain = m.experts.act == Act::Silu && m.experts.gate.is_some();
    needs(Part::Activation, !plain);
    // Only experts with such an activation have biases.
    needs(Part::ExpertBias, matches!(m.experts.act, Act::ClampedSwiglu { .. }));
}

/// What a tensor of this name is for, where other architectures have one.
pub fn purpose(name: &str) -> Option<&'static str> {
    const PURPOSES: &[(&str, &str)] = &[
        ("attn_sinks", "attention sinks"),
        ("exp_probs_b", "biases of the choice of experts"),
        ("_exps.bias", "biases of experts"),
        ("_shexp", "shared experts"),
        ("attn_kv_a", "latent keys and values"),
        ("attn_q_norm", "norms of queries"),
        ("attn_k_norm", "norms of keys"),
        ("post_attention_norm", "norms after attention"),
        ("post_ffw_norm", "norms after the feed-forward block"),
        ("layer_output_scale", "scales of layers"),
        ("per_layer", "embeddings of each layer"),
        ("ssm_", "recurrent layers"),
        ("shortconv", "short convolutions"),
        ("indexer", "indexers of sparse attention"),
        ("hc_", "hyper-connections"),
        ("altup", "alternating updates"),
        ("rope_factors", "LongRoPE's divisors"),
        ("pre_quant_scale", "scales of a quantised input"),
    ];
    PURPOSES.iter().find(|(part, _)| name.contains(part)).map(|(_, what)| *what)
}
