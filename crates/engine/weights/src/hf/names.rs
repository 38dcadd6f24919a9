//! Hugging Face tensor names to GGUF's, with what has to be done to the values.
//!
//! Prefixes `model.`, `model.language_model.`, `language_model.model.` and longer ones mean the same; `i` is a layer, `e` an expert, `t` the first block
//! after the trunk, `j` a multi-token-prediction layer.
//!
//! | Hugging Face | GGUF | values |
//! |---|---|---|
//! | embed_tokens.weight | token_embd.weight | |
//! | norm.weight | output_norm.weight | norm |
//! | lm_head.weight (with or without a prefix) | output.weight | absent when tied |
//! | layers.i.input_layernorm.weight | blk.i.attn_norm.weight | norm |
//! | layers.i.post_attention_layernorm.weight | blk.i.post_attention_norm.weight (qwen35*), blk.i.ffn_norm.weight | norm |
//! | layers.i.self_attn.{q,k,v,o}_proj.{weight,bias} | blk.i.attn_{q,k,v,output}.{weight,bias} | rows not permuted |
//! | layers.i.self_attn.{q,k}_norm.weight | blk.i.attn_{q,k}_norm.weight | norm |
//! | layers.i.linear_attn.in_proj_{qkv,z,b,a}.weight | blk.i.{attn_qkv,attn_gate,ssm_beta,ssm_alpha}.weight | heads not permuted |
//! | layers.i.linear_attn.conv1d.weight [C,1,K] | blk.i.ssm_conv1d.weight [C,K] | |
//! | layers.i.linear_attn.A_log | blk.i.ssm_a | -exp |
//! | layers.i.linear_attn.dt_bias | blk.i.ssm_dt.bias | |
//! | layers.i.linear_attn.norm.weight | blk.i.ssm_norm.weight | as it is |
//! | layers.i.linear_attn.out_proj.weight | blk.i.ssm_out.weight | |
//! | layers.i.mlp.{gate,up,down}_proj.{weight,bias} | blk.i.ffn_{gate,up,down}.{weight,bias} | |
//! | layers.i.mlp.gate.weight, .block_sparse_moe.gate.weight | blk.i.ffn_gate_inp.weight | |
//! | layers.i.mlp.experts.gate_up_proj [E,2I,H] | blk.i.ffn_gate_up_exps.weight | gate rows, then up |
//! | layers.i.mlp.experts.down_proj [E,H,I] | blk.i.ffn_down_exps.weight | |
//! | layers.i.mlp.experts.e.{gate,up,down}_proj.weight | blk.i.ffn_{gate,up,down}.e.weight | |
//! | layers.i.mlp.switch_mlp.{gate,up,down}_proj.weight [E,..] (MLX) | blk.i.ffn_{gate,up,down}_exps.weight | |
//! | layers.i.block_sparse_moe.experts.e.{w1,w3,w2}.weight | blk.i.ffn_{gate,up,down}.e.weight | |
//! | layers.i.mlp.shared_expert.{gate,up,down}_proj.weight | blk.i.ffn_{gate,up,down}_shexp.weight | |
//! | layers.i.mlp.shared_expert_gate.weight | blk.i.ffn_gate_inp_shexp.weight | |
//! | mtp.layers.j.* | blk.(t+j).* | as for layers |
//! | mtp.{fc,pre_fc_norm_embedding,pre_fc_norm_hidden,norm}.weight | blk.t.nextn.{eh_proj,enorm,hnorm,shared_head_norm}.weight | norms |
//! | mtp.{embed_tokens,lm_head}.weight | blk.t.nextn.{embed_tokens,shared_head_head}.weight | |
//!
//! "norm": qwen35 and qwen35moe store RMS norms around zero, so GGUF's value is `1 + w`; for others, and for MLX's files, it is `w`.
//! Heads and rows are not permuted as a GGUF converter would: `octet.rope_pairing` and `octet.gdn_head_order` say so.
//! Everything else is left out: vision towers (`model.visual.*`) and stored rotary frequencies silently, other names
//! counted as ignored.

use super::arch::Layout;
use crate::source::Convert;

/// The target of a tensor.
#[derive(Debug, PartialEq)]
pub(super) enum Target {
    /// A tensor of this name.
    Tensor {
        name: String,
        convert: Convert,
        /// Drop the middle dimension, which is 1.
        squeeze: bool,
    },
    /// A known tensor that is not used here.
    Unused,
    Unknown,
}

/// Projections of a layer; each may have a bias.
const LINEAR: &[(&str, &str)] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.out_proj", "ssm_out"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
];

/// Projections of one expert.
pub(super) const EXPERT: &[(&str, &str)] = &[
    ("gate_proj", "ffn_gate"),
    ("up_proj", "ffn_up"),
    ("down_proj", "ffn_down"),
    ("w1", "ffn_gate"),
    ("w3", "ffn_up"),
    ("w2", "ffn_down"),
];

/// The target of tensor `hf` of a checkpoint.
pub(super) fn target(layout: &Layout, hf: &str) -> Target {
    let inner = inner(hf);
    let is_tower = ["visual.", "vision_tower.", "multi_modal_projector.", "vision_model.", "connector."]
        .iter()
        .any(|t| inner.starts_with(t));
    // Older checkpoints contain frequencies, which follow from config.json.
    if is_tower || hf.ends_with(".rotary_emb.inv_freq") {
        return Target::Unused;
    }
    let found = match hf.strip_prefix("mtp.") {
        Some(rest) => mtp(layout, rest),
        None => trunk(layout, hf),
    };
    match found {
        Some((name, kind)) => Target::Tensor {
            name,
            convert: match kind {
                Kind::Norm if layout.arch.is_qwen35() && !layout.mlx => Convert::PlusOne,
                Kind::LogDecay => Convert::NegExp,
                _ => Convert::None,
            },
            squeeze: kind == Kind::Conv,
        },
        None => Target::Unknown,
    }
}

/// What a tensor is, as far as its values or shape change.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Norm,
    LogDecay,
    Conv,
}

/// A name without what tools put in front of it, some of them twice.
pub(super) fn inner(mut hf: &str) -> &str {
    while let Some(rest) =
        ["model.", "language_model.", "text_model."].iter().find_map(|p| hf.strip_prefix(p))
    {
        hf = rest;
    }
    hf
}

fn trunk(layout: &Layout, hf: &str) -> Option<(String, Kind)> {
    let rest = inner(hf);
    if rest == "lm_head.weight" {
        return Some(("output.weight".into(), Kind::Plain));
    }
    if rest.len() == hf.len() {
        return None;
    }
    match rest {
        "embed_tokens.weight" => Some(("token_embd.weight".into(), Kind::Plain)),
        "norm.weight" => Some(("output_norm.weight".into(), Kind::Norm)),
        _ => {
            let (i, rest) = numbered(rest.strip_prefix("layers.")?)?;
            (i < layout.trunk).then(|| in_layer(layout, i, rest))?
        }
    }
}

fn mtp(layout: &Layout, rest: &str) -> Option<(String, Kind)> {
    if layout.mtp == 0 {
        return None;
    }
    if let Some(rest) = rest.strip_prefix("layers.") {
        let (j, rest) = numbered(rest)?;
        return (j < layout.mtp).then(|| in_layer(layout, layout.trunk + j, rest))?;
    }
    let (name, kind) = match rest {
        "fc.weight" => ("eh_proj", Kind::Plain),
        "pre_fc_norm_embedding.weight" => ("enorm", Kind::Norm),
        "pre_fc_norm_hidden.weight" => ("hnorm", Kind::Norm),
        "norm.weight" => ("shared_head_norm", Kind::Norm),
        "embed_tokens.weight" => ("embed_tokens", Kind::Plain),
        "lm_head.weight" => ("shared_head_head", Kind::Plain),
        _ => return None,
    };
    Some((format!("blk.{}.nextn.{name}.weight", layout.trunk), kind))
}

/// A tensor of block `i`.
fn in_layer(layout: &Layout, i: usize, rest: &str) -> Option<(String, Kind)> {
    let (name, kind) = match rest {
        "input_layernorm.weight" => ("attn_norm.weight", Kind::Norm),
        "post_attention_layernorm.weight" if layout.arch.is_qwen35() => {
            ("post_attention_norm.weight", Kind::Norm)
        }
        "post_attention_layernorm.weight" => ("ffn_norm.weight", Kind::Norm),
        "self_attn.q_norm.weight" => ("attn_q_norm.weight", Kind::Norm),
        "self_attn.k_norm.weight" => ("attn_k_norm.weight", Kind::Norm),
        "linear_attn.conv1d.weight" => ("ssm_conv1d.weight", Kind::Conv),
        "linear_attn.A_log" => ("ssm_a", Kind::LogDecay),
        "linear_attn.dt_bias" => ("ssm_dt.bias", Kind::Plain),
        "linear_attn.norm.weight" => ("ssm_norm.weight", Kind::Plain),
        "mlp.experts.gate_up_proj" => ("ffn_gate_up_exps.weight", Kind::Plain),
        "mlp.experts.down_proj" => ("ffn_down_exps.weight", Kind::Plain),
        // MLX's stacks of experts.
        "mlp.switch_mlp.gate_proj.weight" => ("ffn_gate_exps.weight", Kind::Plain),
        "mlp.switch_mlp.up_proj.weight" => ("ffn_up_exps.weight", Kind::Plain),
        "mlp.switch_mlp.down_proj.weight" => ("ffn_down_exps.weight", Kind::Plain),
        _ => {
            let experts = ["mlp.experts.", "block_sparse_moe.experts."];
            let (stem, end) = rest.rsplit_once('.').filter(|(_, end)| matches!(*end, "weight" | "bias"))?;
            let name = match experts.iter().find_map(|p| stem.strip_prefix(p)) {
                Some(expert) => {
                    let (e, stem) = numbered(expert)?;
                    format!("{}.{e}", lookup(EXPERT, stem)?)
                }
                None => lookup(LINEAR, stem)?.to_string(),
            };
            return Some((format!("blk.{i}.{name}.{end}"), Kind::Plain));
        }
    };
    Some((format!("blk.{i}.{name}"), kind))
}

fn lookup<'a>(table: &[(&str, &'a str)], stem: &str) -> Option<&'a str> {
    table.iter().find(|(hf, _)| *hf == stem).map(|(_, gguf)| *gguf)
}

/// Splits `12.rest` into `(12, "rest")`; a number must be written the one usual way.
pub(super) fn numbered(s: &str) -> Option<(usize, &str)> {
    let (number, rest) = s.split_once('.')?;
    let n: usize = number.parse().ok()?;
    (n.to_string() == number).then_some((n, rest))
}

#[cfg(test)]
mod tests {
    use super::super::arch::Arch;
    use super::*;

    fn name(arch: Arch, hf: &str) -> String {
        match target(
            &Layout {
                arch,
                trunk: 4,
                mtp: 1,
                guessing: Vec::new(),
                tied: None,
                mlx: false,
                ranks: false,
                factors: Vec::new(),
                first_position: 0,
            },
            hf,
        ) {
            Target::Tensor { name, convert, squeeze } => {
                let squeeze = if squeeze { " squeeze" } else { "" };
                match convert {
                    Convert::None => format!("{name}{squeeze}"),
                    convert => format!("{name} {convert:?}{squeeze}"),
                }
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn names() {
        for (arch, hf, want) in [
            (Arch::Qwen35Moe, "model.language_model.embed_tokens.weight", "token_embd.weight"),
            (Arch::Qwen35Moe, "model.embed_tokens.weight", "token_embd.weight"),
            (Arch::Qwen35Moe, "model.norm.weight", "output_norm.weight PlusOne"),
            (Arch::Qwen3, "model.norm.weight", "output_norm.weight"),
            (Arch::Qwen35, "lm_head.weight", "output.weight"),
            (Arch::Qwen35, "model.layers.3.linear_attn.A_log", "blk.3.ssm_a NegExp"),
            (Arch::Qwen35, "model.layers.3.linear_attn.norm.weight", "blk.3.ssm_norm.weight"),
            (Arch::Qwen35, "model.layers.3.linear_attn.conv1d.weight", "blk.3.ssm_conv1d.weight squeeze"),
            (Arch::Qwen35, "model.layers.3.self_attn.q_norm.weight", "blk.3.attn_q_norm.weight PlusOne"),
            (
                Arch::Qwen35,
                "model.layers.0.post_attention_layernorm.weight",
                "blk.0.post_attention_norm.weight PlusOne",
            ),
            (Arch::Llama, "model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"),
            (Arch::Qwen2, "model.layers.0.self_attn.q_proj.bias", "blk.0.attn_q.bias"),
            (Arch::Qwen35Moe, "model.layers.0.mlp.experts.gate_up_proj", "blk.0.ffn_gate_up_exps.weight"),
            (Arch::Qwen3Moe, "model.layers.0.mlp.experts.12.up_proj.weight", "blk.0.ffn_up.12.weight"),
            (Arch::Mixtral, "model.layers.0.block_sparse_moe.experts.7.w2.weight", "blk.0.ffn_down.7.weight"),
            (Arch::Mixtral, "model.layers.0.block_sparse_moe.gate.weight", "blk.0.ffn_gate_inp.weight"),
            (
                Arch::Qwen35Moe,
                "mtp.layers.0.mlp.shared_expert_gate.weight",
                "blk.4.ffn_gate_inp_shexp.weight",
            ),
            (Arch::Qwen35Moe, "mtp.pre_fc_norm_hidden.weight", "blk.4.nextn.hnorm.weight PlusOne"),
            (Arch::Qwen35Moe, "mtp.layers.1.mlp.gate.weight", "Unknown"),
            (Arch::Qwen35Moe, "model.visual.blocks.0.attn.qkv.weight", "Unused"),
            (Arch::Qwen35, "language_model.lm_head.weight", "output.weight"),
            (
                Arch::Qwen35Moe,
                "model.language_model.language_model.language_model.layers.0.mlp.gate.weight",
                "blk.0.ffn_gate_inp.weight",
            ),
            (
                Arch::Qwen35Moe,
                "language_model.model.layers.1.mlp.switch_mlp.up_proj.weight",
                "blk.1.ffn_up_exps.weight",
            ),
            (Arch::Qwen35Moe, "vision_tower.blocks.0.attn.qkv.weight", "Unused"),
            (Arch::Llama, "model.layers.4.input_layernorm.weight", "Unknown"),
            (Arch::Llama, "model.layers.03.input_layernorm.weight", "Unknown"),
            (Arch::Llama, "model.layers.+3.input_layernorm.weight", "Unknown"),
            (Arch::Llama, "model.layers.0.self_attn.rotary_emb.inv_freq", "Unused"),
            (Arch::Llama, "model.layers.0.mlp.experts.x.up_proj.weight", "Unknown"),
            (Arch::Llama, "layers.0.mlp.up_proj.weight", "Unknown"),
        ] {
            assert_eq!(name(arch, hf), want, "{hf}");
        }
    }
}
