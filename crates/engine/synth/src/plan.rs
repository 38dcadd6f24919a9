//! The tensors of a model: names, shapes, types, and kinds of values.

use octet_weights::{GgmlType, TensorInfo};

use crate::listing::Listing;
use crate::mix::Place;
use crate::{Mix, Shape};

/// A tensor to generate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Planned {
    pub info: TensorInfo,
    pub fill: Fill,
}

/// The values of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fill {
    /// Random, of zero mean and this standard deviation.
    Random(f32),
    /// Norm weights: near 1.
    NearOne,
    /// `ssm_a`, minus a rate of decay: -0.1 to -30, most near -2.
    Decay,
    /// `ssm_dt.bias`: -7 to 1, most near -3. With `Decay` a state halves within 2 to 200 tokens.
    TimeStep,
    /// These values.
    Exactly(Vec<f32>),
}

/// The tensors of `shape`, in the order of a converted file.
pub(crate) fn plan(shape: &Shape, mix: Mix) -> Vec<Planned> {
    if let Some(listing) = &shape.listing {
        return listed(listing, shape, mix);
    }
    let mut p = Planner { shape, mix, out: Vec::new(), values: 0 };
    let hidden = shape.hidden;
    // As the head's rows are the embedding's when tied, and logits should be a few units wide, so is the table smaller.
    let embedding_scale = if shape.tied { 3.0 / (hidden as f32).sqrt() } else { 1.0 };
    let head_or_table = if shape.tied { "output" } else { "token_embd" };
    p.matrix_as("token_embd", head_or_table, 0, &[shape.vocab, hidden], embedding_scale);
    if let Some(divisors) = rope_divisors(shape) {
        p.vector("rope_freqs.weight".into(), &[divisors.len()], Fill::Exactly(divisors));
    }
    for i in 0..shape.blocks() {
        p.block(i);
    }
    p.vector("output_norm.weight".into(), &[hidden], Fill::NearOne);
    if !shape.tied {
        p.matrix_as("output", "output", 0, &[shape.vocab, hidden], 1.0 / (hidden as f32).sqrt());
    }
    p.out
}

struct Planner<'a> {
    shape: &'a Shape,
    mix: Mix,
    out: Vec<Planned>,
    /// Value projections so far.
    values: usize,
}

impl Planner<'_> {
    /// A tensor that is F32 in every file.
    fn vector(&mut self, name: String, shape: &[usize], fill: Fill) {
        self.out.push(Planned { info: TensorInfo { name, ty: GgmlType::F32, shape: shape.to_vec() }, fill });
    }

    /// `{prefix}.weight`, its type chosen as for a matrix called `stem`.
    fn matrix_as(&mut self, prefix: &str, stem: &str, layer: usize, shape: &[usize], scale: f32) {
        let place = Place {
            stem,
            layer,
            layers: self.shape.layers,
            values_before: self.values,
            experts: self.shape.moe.map_or(0, |m| m.experts),
            cols: *shape.last().expect("a matrix has columns"),
        };
        let info = TensorInfo {
            name: format!("{prefix}.weight"),
            ty: self.mix.matrix_type(&place),
            shape: shape.to_vec(),
        };
        self.out.push(Planned { info, fill: Fill::Random(scale) });
    }

    /// A projection of block `i`: the outputs of a normed input come out near 1.
    fn projection(&mut self, i: usize, stem: &str, shape: &[usize]) {
        let cols = *shape.last().expect("a projection has columns");
        self.matrix_as(&format!("blk.{i}.{stem}"), stem, i, shape, 1.0 / (cols as f32).sqrt());
    }

    fn norm(&mut self, i: usize, stem: &str, len: usize) {
        self.vector(format!("blk.{i}.{stem}.weight"), &[len], Fill::NearOne);
    }

    fn block(&mut self, i: usize) {
        let s = self.shape;
        self.norm(i, "attn_norm", s.hidden);
        if s.is_recurrent(i) {
            self.gdn(i);
        } else {
            self.attention(i);
        }
        self.norm(i, if s.is_hybrid() { "post_attention_norm" } else { "ffn_norm" }, s.hidden);
        self.feed_forward(i);
        if i >= s.layers {
            self.projection(i, "nextn.eh_proj", &[s.hidden, 2 * s.hidden]);
            for stem in ["nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"] {
                self.norm(i, stem, s.hidden);
            }
        }
    }

    fn attention(&mut self, i: usize) {
        let s = self.shape;
        let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
        let q_rows = if s.is_hybrid() { 2 * q } else { q }; // with the output gate of each head
        self.projection(i, "attn_q", &[q_rows, s.hidden]);
        self.projection(i, "attn_k", &[kv, s.hidden]);
        self.projection(i, "attn_v", &[kv, s.hidden]);
        self.values += 1;
        self.projection(i, "attn_output", &[s.hidden, q]);
        if s.qkv_bias {
            for (stem, rows) in [("attn_q", q_rows), ("attn_k", kv), ("attn_v", kv)] {
                self.vector(format!("blk.{i}.{stem}.bias"), &[rows], Fill::Random(0.1));
            }
        }
        if s.qk_norm() {
            let [q, k] = if s.is_olmoe() { [q, kv] } else { [s.head_dim; 2] };
            self.norm(i, "attn_q_norm", q);
            self.norm(i, "attn_k_norm", k);
        }
    }

    fn gdn(&mut self, i: usize) {
        let s = self.shape;
        let g = s.gdn.expect("a recurrent layer has its dimensions");
        let value = g.v_heads * g.head_dim;
        let channels = 2 * g.k_heads * g.head_dim + value;
        self.projection(i, "attn_qkv", &[channels, s.hidden]);
        self.projection(i, "attn_gate", &[value, s.hidden]);
        self.projection(i, "ssm_alpha", &[g.v_heads, s.hidden]);
        self.projection(i, "ssm_beta", &[g.v_heads, s.hidden]);
        self.vector(format!("blk.{i}.ssm_conv1d.weight"), &[channels, g.conv_kernel], Fill::Random(0.5));
        self.vector(format!("blk.{i}.ssm_a"), &[g.v_heads], Fill::Decay);
        self.vector(format!("blk.{i}.ssm_dt.bias"), &[g.v_heads], Fill::TimeStep);
        self.norm(i, "ssm_norm", g.head_dim);
        self.projection(i, "ssm_out", &[s.hidden, value]);
    }

    fn feed_forward(&mut self, i: usize) {
        let s = self.shape;
        let Some(m) = s.moe else {
            self.swiglu(i, "", &[], s.intermediate);
            return;
        };
        let router_scale = 1.0 / (s.hidden as f32).sqrt();
        self.vector(
            format!("blk.{i}.ffn_gate_inp.weight"),
            &[m.experts, s.hidden],
            Fill::Random(router_scale),
        );
        self.swiglu(i, "_exps", &[m.experts], m.intermediate);
        if m.shared_intermediate > 0 {
            self.vector(
                format!("blk.{i}.ffn_gate_inp_shexp.weight"),
                &[s.hidden],
                Fill::Random(router_scale),
            );
            self.swiglu(i, "_shexp", &[], m.shared_intermediate);
        }
    }

    fn swiglu(&mut self, i: usize, suffix: &str, experts: &[usize], inner: usize) {
        let hidden = self.shape.hidden;
        for (stem, rows, cols) in
            [("ffn_gate", inner, hidden), ("ffn_up", inner, hidden), ("ffn_down", hidden, inner)]
        {
            self.projection(i, &format!("{stem}{suffix}"), &[experts, &[rows, cols]].concat());
        }
    }
}

/// What divides each rotary frequency: 1 for waves much shorter than the original context, `factor` for longer ones,
/// and a ramp between.
fn rope_divisors(shape: &Shape) -> Option<Vec<f32>> {
    let s = shape.rope_scaling?;
    let divisor = |j: usize| {
        let frequency = shape.rope_theta.powf(-2.0 * j as f32 / shape.rope_dims as f32);
        let waves = s.original_context * frequency / (2.0 * std::f32::consts::PI);
        let ramp = ((waves - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)).clamp(0.0, 1.0);
        1.0 / ((1.0 - ramp) / s.factor + ramp)
    };
    Some((0..shape.rope_dims / 2).map(divisor).collect())
}

/// The tensors of a listed model.
fn listed(listing: &Listing, shape: &Shape, mix: Mix) -> Vec<Planned> {
    let hidden = shape.hidden;
    let mut out = Vec::new();
    let mut values = 0;
    let mut add = |name: String, stem: &str, layer: usize, dims: &[usize], scale: Option<f32>| {
        let stem = stem.strip_suffix(".weight").unwrap_or(stem);
        let cols = *dims.last().expect("a tensor has columns");
        let place = Place {
            stem,
            layer,
            layers: shape.layers,
            values_before: values,
            experts: listing.experts(),
            cols,
        };
        let ty = if is_float(stem, dims) { GgmlType::F32 } else { mix.matrix_type(&place) };
        values += usize::from(stem == "attn_v");
        let fill = scale.map_or_else(|| fill(stem, cols), Fill::Random);
        out.push(Planned { info: TensorInfo { name, ty, shape: dims.to_vec() }, fill });
    };
    let table = if shape.tied { 3.0 / (hidden as f32).sqrt() } else { 1.0 };
    let stem = if shape.tied { "output" } else { "token_embd" };
    add("token_embd.weight".into(), stem, 0, &[shape.vocab, hidden], Some(table));
    if listing.per_layer > 0 {
        let width = shape.layers * listing.per_layer;
        for (stem, dims) in [
            ("per_layer_token_embd", &[shape.vocab, width][..]),
            ("per_layer_model_proj", &[width, hidden][..]),
            ("per_layer_proj_norm", &[listing.per_layer][..]),
        ] {
            add(format!("{stem}.weight"), stem, 0, dims, None);
        }
    }
    if listing.streams > 0 {
        for stem in ["altup_proj", "altup_unembd_proj"] {
            add(format!("{stem}.weight"), stem, 0, &[listing.streams, hidden, hidden], None);
        }
    }
    for i in 0..shape.layers {
        for (name, dims) in listing.tensors(i, shape.layers) {
            add(format!("blk.{i}.{name}"), name, i, dims, None);
        }
    }
    add("output_norm.weight".into(), "output_norm", 0, &[hidden], None);
    if !shape.tied {
        add("output.weight".into(), "output", 0, &[shape.vocab, hidden], None);
    }
    if let Some((all, turn)) = listing.divisors {
        let divisors = (0..all).map(|i| if i < turn { 1.0 } else { 1e30 }).collect();
        let info = TensorInfo { name: "rope_freqs.weight".into(), ty: GgmlType::F32, shape: vec![all] };
        out.push(Planned { info, fill: Fill::Exactly(divisors) });
    }
    out
}

/// Tensors that are F32 in every file.
fn is_float(stem: &str, dims: &[usize]) -> bool {
    dims.len() == 1
        || stem.starts_with("ffn_gate_inp")
        || stem.starts_with("ssm_conv1d")
        || stem == "inp_gate"
        || stem.starts_with("altup_") && dims.len() == 2
        || stem.ends_with(".bias")
}

/// The values of a layer's tensor.
fn fill(stem: &str, cols: usize) -> Fill {
    match stem {
        "ssm_a" => Fill::Decay,
        "ssm_dt.bias" => Fill::TimeStep,
        _ if stem.starts_with("ssm_conv1d") => Fill::Random(0.5),
        "attn_sinks" => Fill::Random(1.0),
        _ if stem.contains("norm") || stem.ends_with("scale") => Fill::NearOne,
        _ if stem.ends_with(".bias") => Fill::Random(0.1),
        // The outputs of a normed input come out near 1.
        _ => Fill::Random(1.0 / (cols as f32).sqrt()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::known;

    /// The published Q4_K_M file of the 35B-A3B model: 733 tensors, 19.705 GiB.
    #[test]
    fn the_mix_is_that_of_the_published_file() {
        let plan = plan(&known::shape("qwen3.6-35b-a3b").unwrap(), Mix::Q4KM);
        let mut types = BTreeMap::new();
        for p in &plan {
            *types.entry(p.info.ty.name()).or_insert(0) += 1;
        }
        assert_eq!(plan.len(), 733);
        assert_eq!(types, BTreeMap::from([("F32", 301), ("Q4_K", 355), ("Q5_K", 30), ("Q6_K", 47)]));
        let bytes: u64 = plan.iter().map(|p| p.info.size_bytes()).sum();
        assert_eq!(format!("{:.3}", bytes as f64 / (1u64 << 30) as f64), "19.705");
        let values: Vec<usize> = (3..40).step_by(4).collect();
        let ty = |i: &usize| {
            plan.iter().find(|p| p.info.name == format!("blk.{i}.attn_v.weight")).unwrap().info.ty
        };
        let six: Vec<usize> = values.into_iter().filter(|i| ty(i) == GgmlType::Q6_K).collect();
        assert_eq!(six, [3, 7, 11, 15, 19, 31]);
    }

    #[test]
    fn small_tensors_are_f32_in_every_mix() {
        for mix in [Mix::Q4KM, Mix::Of(GgmlType::BF16), Mix::Of(GgmlType::IQ4_XS)] {
            let shape = Shape { mtp: true, ..known::shape("qwen3.6-35b-a3b").unwrap() };
            for p in plan(&shape, mix) {
                let name = &p.info.name;
                let is_small = ["_norm.", "norm.weight", "ffn_gate_inp", "ssm_conv1d", "ssm_a", "ssm_dt"];
                // ssm_alpha begins like ssm_a, and is a matrix
                let is_small = is_small.iter().any(|s| name.contains(s)) && !name.contains("ssm_alpha");
                assert_eq!(p.info.ty == GgmlType::F32, is_small, "{name} is {}", p.info.ty);
            }
        }
    }

    #[test]
    fn rotary_divisors_go_from_one_to_the_factor() {
        let d = rope_divisors(&known::shape("llama-3.1-8b").unwrap()).unwrap();
        assert_eq!((d.len(), d[0], d[63]), (64, 1.0, 8.0));
        assert!(d.is_sorted());
        assert!(rope_divisors(&known::shape("qwen3-8b").unwrap()).is_none());
    }

    /// What model cards say, of the language model without its block for multi-token prediction.
    #[test]
    fn listed_models_are_as_large_as_published() {
        for (name, low, high) in [
            ("gpt-oss-20b", 20.90e9, 20.93e9),
            ("gpt-oss-120b", 116.7e9, 116.9e9),
            ("gemma3-4b", 3.87e9, 3.89e9),
            ("gemma3-12b", 11.7e9, 11.8e9),
            ("gemma3-27b", 26.9e9, 27.1e9),
            ("gemma4-31b", 30.6e9, 30.8e9),
            ("gemma3n-e2b", 4.45e9, 4.47e9),
            ("gemma3n-e4b", 6.86e9, 6.88e9),
            ("gemma4-e2b", 4.6e9, 4.7e9),
            ("gemma4-e4b", 7.4e9, 7.6e9),
            ("gemma4-26b-a4b", 25.1e9, 25.3e9),
            ("glm-4.7-flash", 29.5e9, 30.2e9),
            ("qwen3-next-80b-a3b", 79.5e9, 79.8e9),
            ("kimi-linear-48b-a3b", 49.115e9, 49.125e9),
            ("laguna-xs-2.1", 33.2e9, 33.6e9),
            ("phi-3.5-moe", 41.8e9, 41.95e9),
            ("step-3.5-flash", 196.5e9, 197.5e9),
        ] {
            let all = plan(&known::shape(name).unwrap(), Mix::Of(GgmlType::BF16));
            let n: usize = all.iter().map(|p| p.info.len()).sum();
            assert!(low <= n as f64 && n as f64 <= high, "{name} has {n}");
        }
    }
}
