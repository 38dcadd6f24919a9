//! Models whose keys and tensors are listed by kind of layer, as their GGUF files have them: architectures that [`crate::Shape`]'s numbers
//! do not describe. Sizes are those of the published config.json. Called by `known`, `metadata` and `plan`.

use octet_weights::{GgmlType, Metadata, TensorInfo, Value};

use crate::mix::Place;
use crate::plan::{Fill, Planned};
use crate::{Mix, Shape};

/// A model.
#[derive(Debug, PartialEq)]
pub struct Listing {
    /// Every `every`-th layer is of the second kind.
    every: usize,
    /// Layers at the front that are of a kind of their own in their feed-forward part.
    leading: usize,
    keys: &'static [(&'static str, Key)],
    /// Tensors of a layer, without `blk.N.`.
    tensors: &'static [(Of, &'static str, &'static [usize])],
    /// Divisors of rotary frequencies, and how many of them turn.
    divisors: Option<(usize, usize)>,
    /// The rule by which its tokenizer cuts texts.
    pub(crate) pre: &'static str,
}

/// The value of a key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Key {
    Int(u64),
    Float(f64),
    Text(&'static str),
    Flag(bool),
    /// One for each layer: of most, and of the second kind.
    Ints(u64, u64),
    Flags(bool, bool),
}

/// Which layers have a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    All,
    /// All but those of the second kind.
    First,
    Second,
    Leading,
    AfterLeading,
}

use Key::{Flag, Flags, Float, Int, Ints, Text};
use Of::{AfterLeading, All, First, Leading, Second};

/// gpt-oss-20b: 3.6 of 20.9 billion parameters a token; windows in every second layer.
#[rustfmt::skip] // a table
pub(crate) static GPT_OSS_20B: Listing = Listing {
    every: 2, leading: 0, divisors: None, pre: "gpt-4o",
    keys: &[
        ("context_length", Int(131_072)), ("feed_forward_length", Int(2880)), ("expert_feed_forward_length", Int(2880)),
        ("attention.head_count", Int(64)), ("attention.head_count_kv", Int(8)),
        ("attention.key_length", Int(64)), ("attention.value_length", Int(64)),
        ("attention.sliding_window", Int(128)), ("attention.layer_norm_rms_epsilon", Float(1e-5)),
        ("rope.freq_base", Float(150_000.0)), ("rope.scaling.type", Text("yarn")), ("rope.scaling.factor", Float(32.0)),
        ("rope.scaling.original_context_length", Int(4096)),
        ("expert_count", Int(32)), ("expert_used_count", Int(4)),
    ],
    tensors: &[
        (All, "attn_norm.weight", &[2880]),
        (All, "attn_q.weight", &[4096, 2880]), (All, "attn_q.bias", &[4096]),
        (All, "attn_k.weight", &[512, 2880]), (All, "attn_k.bias", &[512]),
        (All, "attn_v.weight", &[512, 2880]), (All, "attn_v.bias", &[512]),
        (All, "attn_output.weight", &[2880, 4096]), (All, "attn_output.bias", &[2880]),
        (All, "attn_sinks.weight", &[64]),
        (All, "post_attention_norm.weight", &[2880]),
        (All, "ffn_gate_inp.weight", &[32, 2880]), (All, "ffn_gate_inp.bias", &[32]),
        (All, "ffn_gate_exps.weight", &[32, 2880, 2880]), (All, "ffn_gate_exps.bias", &[32, 2880]),
        (All, "ffn_up_exps.weight", &[32, 2880, 2880]), (All, "ffn_up_exps.bias", &[32, 2880]),
        (All, "ffn_down_exps.weight", &[32, 2880, 2880]), (All, "ffn_down_exps.bias", &[32, 2880]),
    ],
};

/// Gemma 4 26B-A4B: 3.8 of 25.2 billion parameters a token; every sixth layer attends to everything, with wider heads.
#[rustfmt::skip] // a table
pub(crate) static GEMMA4_26B_A4B: Listing = Listing {
    every: 6, leading: 0, divisors: Some((256, 64)), pre: "qwen2",
    keys: &[
        ("context_length", Int(262_144)), ("feed_forward_length", Int(2112)), ("expert_feed_forward_length", Int(704)),
        ("attention.head_count", Int(16)), ("attention.head_count_kv", Ints(8, 2)),
        ("attention.key_length", Int(512)), ("attention.value_length", Int(512)),
        ("attention.key_length_swa", Int(256)), ("attention.value_length_swa", Int(256)),
        ("attention.sliding_window", Int(1024)), ("attention.sliding_window_pattern", Flags(true, false)),
        ("attention.shared_kv_layers", Int(0)), ("attention.layer_norm_rms_epsilon", Float(1e-6)),
        ("rope.freq_base", Float(1e6)), ("rope.freq_base_swa", Float(1e4)),
        ("rope.dimension_count", Int(512)), ("rope.dimension_count_swa", Int(256)),
        ("final_logit_softcapping", Float(30.0)), ("embedding_length_per_layer_input", Int(0)),
        ("expert_count", Int(128)), ("expert_used_count", Int(8)),
    ],
    tensors: &[
        (All, "attn_norm.weight", &[2816]),
        (First, "attn_q.weight", &[4096, 2816]), (Second, "attn_q.weight", &[8192, 2816]),
        (First, "attn_k.weight", &[2048, 2816]), (Second, "attn_k.weight", &[1024, 2816]),
        (First, "attn_v.weight", &[2048, 2816]),
        (First, "attn_output.weight", &[2816, 4096]), (Second, "attn_output.weight", &[2816, 8192]),
        (First, "attn_q_norm.weight", &[256]), (Second, "attn_q_norm.weight", &[512]),
        (First, "attn_k_norm.weight", &[256]), (Second, "attn_k_norm.weight", &[512]),
        (All, "post_attention_norm.weight", &[2816]),
        (All, "ffn_norm.weight", &[2816]), (All, "pre_ffw_norm_2.weight", &[2816]),
        (All, "post_ffw_norm.weight", &[2816]), (All, "post_ffw_norm_1.weight", &[2816]), (All, "post_ffw_norm_2.weight", &[2816]),
        (All, "ffn_gate.weight", &[2112, 2816]), (All, "ffn_up.weight", &[2112, 2816]), (All, "ffn_down.weight", &[2816, 2112]),
        (All, "ffn_gate_inp.weight", &[128, 2816]), (All, "ffn_gate_inp.scale", &[2816]),
        (All, "ffn_gate_up_exps.weight", &[128, 1408, 2816]),
        (All, "ffn_down_exps.weight", &[128, 2816, 704]), (All, "ffn_down_exps.scale", &[128]),
        (All, "layer_output_scale.weight", &[1]),
    ],
};

/// GLM-4.7-Flash: 3 of 30 billion parameters a token; latent attention.
#[rustfmt::skip] // a table
pub(crate) static GLM_4_7_FLASH: Listing = Listing {
    every: usize::MAX, leading: 1, divisors: None, pre: "glm4",
    keys: &[
        ("context_length", Int(202_752)), ("feed_forward_length", Int(10_240)), ("expert_feed_forward_length", Int(1536)),
        ("vocab_size", Int(154_880)), ("leading_dense_block_count", Int(1)),
        ("attention.head_count", Int(20)), ("attention.head_count_kv", Int(1)),
        ("attention.q_lora_rank", Int(768)), ("attention.kv_lora_rank", Int(512)),
        ("attention.key_length", Int(576)), ("attention.value_length", Int(512)),
        ("attention.key_length_mla", Int(256)), ("attention.value_length_mla", Int(256)),
        ("attention.layer_norm_rms_epsilon", Float(1e-5)),
        ("rope.dimension_count", Int(64)), ("rope.freq_base", Float(1e6)),
        ("expert_count", Int(64)), ("expert_used_count", Int(4)), ("expert_shared_count", Int(1)),
        ("expert_group_count", Int(1)), ("expert_group_used_count", Int(1)), ("expert_gating_func", Int(2)),
        ("expert_weights_scale", Float(1.8)), ("expert_weights_norm", Flag(true)),
    ],
    tensors: &[
        (All, "attn_norm.weight", &[2048]),
        (All, "attn_q_a.weight", &[768, 2048]), (All, "attn_q_a_norm.weight", &[768]), (All, "attn_q_b.weight", &[5120, 768]),
        (All, "attn_kv_a_mqa.weight", &[576, 2048]), (All, "attn_kv_a_norm.weight", &[512]),
        (All, "attn_k_b.weight", &[20, 512, 192]), (All, "attn_v_b.weight", &[20, 256, 512]),
        (All, "attn_output.weight", &[2048, 5120]),
        (All, "ffn_norm.weight", &[2048]),
        (Leading, "ffn_gate.weight", &[10_240, 2048]), (Leading, "ffn_up.weight", &[10_240, 2048]),
        (Leading, "ffn_down.weight", &[2048, 10_240]),
        (AfterLeading, "ffn_gate_inp.weight", &[64, 2048]), (AfterLeading, "exp_probs_b.bias", &[64]),
        (AfterLeading, "ffn_gate_exps.weight", &[64, 1536, 2048]), (AfterLeading, "ffn_up_exps.weight", &[64, 1536, 2048]),
        (AfterLeading, "ffn_down_exps.weight", &[64, 2048, 1536]),
        (AfterLeading, "ffn_gate_shexp.weight", &[1536, 2048]), (AfterLeading, "ffn_up_shexp.weight", &[1536, 2048]),
        (AfterLeading, "ffn_down_shexp.weight", &[2048, 1536]),
    ],
};

/// Qwen3-Next-80B-A3B and Qwen3-Coder-Next: three layers of Gated DeltaNet, one of attention; 512 experts.
#[rustfmt::skip] // a table
pub(crate) static QWEN3_NEXT_80B_A3B: Listing = Listing {
    every: 4, leading: 0, divisors: None, pre: "qwen2",
    keys: &[
        ("context_length", Int(262_144)), ("feed_forward_length", Int(5120)),
        ("expert_feed_forward_length", Int(512)), ("expert_shared_feed_forward_length", Int(512)),
        ("attention.head_count", Int(16)), ("attention.head_count_kv", Int(2)),
        ("attention.key_length", Int(256)), ("attention.value_length", Int(256)),
        ("attention.layer_norm_rms_epsilon", Float(1e-6)), ("attention.recurrent_layers", Flags(true, false)),
        ("full_attention_interval", Int(4)), ("rope.dimension_count", Int(64)), ("rope.freq_base", Float(1e7)),
        ("ssm.conv_kernel", Int(4)), ("ssm.state_size", Int(128)), ("ssm.group_count", Int(16)),
        ("ssm.time_step_rank", Int(32)), ("ssm.inner_size", Int(4096)),
        ("expert_count", Int(512)), ("expert_used_count", Int(10)),
    ],
    tensors: &[
        (All, "attn_norm.weight", &[2048]),
        (First, "attn_qkv.weight", &[8192, 2048]), (First, "attn_gate.weight", &[4096, 2048]), (First, "ssm_ba.weight", &[64, 2048]),
        (First, "ssm_conv1d.weight", &[8192, 4]), (First, "ssm_a", &[32]), (First, "ssm_dt.bias", &[32]),
        (First, "ssm_norm.weight", &[128]), (First, "ssm_out.weight", &[2048, 4096]),
        (Second, "attn_q.weight", &[8192, 2048]), (Second, "attn_k.weight", &[512, 2048]), (Second, "attn_v.weight", &[512, 2048]),
        (Second, "attn_q_norm.weight", &[256]), (Second, "attn_k_norm.weight", &[256]), (Second, "attn_output.weight", &[2048, 4096]),
        (All, "post_attention_norm.weight", &[2048]),
        (All, "ffn_gate_inp.weight", &[512, 2048]), (All, "ffn_gate_inp_shexp.weight", &[2048]),
        (All, "ffn_gate_exps.weight", &[512, 512, 2048]), (All, "ffn_up_exps.weight", &[512, 512, 2048]),
        (All, "ffn_down_exps.weight", &[512, 2048, 512]),
        (All, "ffn_gate_shexp.weight", &[512, 2048]), (All, "ffn_up_shexp.weight", &[512, 2048]),
        (All, "ffn_down_shexp.weight", &[2048, 512]),
    ],
};

impl Listing {
    /// Whether layer `i` of `layers` is of the second kind. Few layers have both kinds all the same.
    fn is_second(&self, i: usize, layers: usize) -> bool {
        self.every < usize::MAX && (i + 1).is_multiple_of(self.every.min(layers.max(2)))
    }

    fn has(&self, of: Of, i: usize, layers: usize) -> bool {
        match of {
            All => true,
            First => !self.is_second(i, layers),
            Second => self.is_second(i, layers),
            Leading => i < self.leading,
            AfterLeading => i >= self.leading,
        }
    }

    /// How many experts a layer has.
    fn experts(&self) -> usize {
        let count = self.keys.iter().find(|(key, _)| *key == "expert_count");
        if let Some((_, Int(n))) = count { *n as usize } else { 0 }
    }

    /// Adds the keys of its architecture.
    pub(crate) fn insert_keys(&self, m: &mut Metadata, shape: &Shape) {
        let each = |value: &dyn Fn(bool) -> Value| {
            Value::Array((0..shape.layers).map(|i| value(self.is_second(i, shape.layers))).collect())
        };
        let number = |n: usize| Value::U64(n as u64);
        let mut put = |key: &str, value| m.insert(&format!("{}.{key}", shape.architecture), value);
        put("block_count", number(shape.layers));
        put("embedding_length", number(shape.hidden));
        for (key, value) in self.keys {
            let value = match *value {
                Int(n) => Value::U64(n),
                // F32 in files: rounded here already, so that a written file reads back equal.
                Float(x) => Value::F64((x as f32).into()),
                Text(text) => Value::Str(text.into()),
                Flag(is) => Value::Bool(is),
                Ints(a, b) => Value::Ints(
                    (0..shape.layers)
                        .map(|i| if self.is_second(i, shape.layers) { b } else { a } as i64)
                        .collect(),
                ),
                Flags(a, b) => each(&|second| Value::Bool(if second { b } else { a })),
            };
            put(key, value);
        }
    }

    /// Its tensors.
    pub(crate) fn plan(&self, shape: &Shape, mix: Mix) -> Vec<Planned> {
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
                experts: self.experts(),
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
        for i in 0..shape.layers {
            for (of, name, dims) in self.tensors {
                if self.has(*of, i, shape.layers) {
                    add(format!("blk.{i}.{name}"), name, i, dims, None);
                }
            }
        }
        add("output_norm.weight".into(), "output_norm", 0, &[hidden], None);
        if !shape.tied {
            add("output.weight".into(), "output", 0, &[shape.vocab, hidden], None);
        }
        if let Some((all, turn)) = self.divisors {
            let divisors = (0..all).map(|i| if i < turn { 1.0 } else { 1e30 }).collect();
            let info = TensorInfo { name: "rope_freqs.weight".into(), ty: GgmlType::F32, shape: vec![all] };
            out.push(Planned { info, fill: Fill::Exactly(divisors) });
        }
        out
    }
}

/// Tensors that are F32 in every file.
fn is_float(stem: &str, dims: &[usize]) -> bool {
    dims.len() == 1 || stem.starts_with("ffn_gate_inp") || stem == "ssm_conv1d" || stem.ends_with(".bias")
}

/// The values of a layer's tensor.
fn fill(stem: &str, cols: usize) -> Fill {
    match stem {
        "ssm_a" => Fill::Decay,
        "ssm_dt.bias" => Fill::TimeStep,
        "ssm_conv1d" => Fill::Random(0.5),
        "attn_sinks" => Fill::Random(1.0),
        _ if stem.contains("norm") || stem.ends_with("scale") => Fill::NearOne,
        _ if stem.ends_with(".bias") => Fill::Random(0.1),
        // The outputs of a normed input come out near 1.
        _ => Fill::Random(1.0 / (cols as f32).sqrt()),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Mix, known, plan::plan};

    /// What model cards say, of the language model without its block for multi-token prediction.
    #[test]
    fn parameters_are_those_of_the_published_models() {
        for (name, low, high) in [
            ("gpt-oss-20b", 20.90e9, 20.93e9),
            ("gemma4-26b-a4b", 25.1e9, 25.3e9),
            ("glm-4.7-flash", 29.5e9, 30.2e9),
            ("qwen3-next-80b-a3b", 79.5e9, 79.8e9),
        ] {
            let all = plan(&known::shape(name).unwrap(), Mix::Of(octet_weights::GgmlType::BF16));
            let n: usize = all.iter().map(|p| p.info.len()).sum();
            assert!(low <= n as f64 && n as f64 <= high, "{name} has {n}");
        }
    }
}
