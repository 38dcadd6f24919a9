//! Canonical metadata of a synthetic model: the keys that a converter writes for its architecture.

use octet_weights::{Metadata, Value};

use crate::tokenizer::vocabulary;
use crate::{Mix, Shape};

/// ChatML, as all of these models use it or something like it.
const CHAT_TEMPLATE: &str = "{%- for message in messages %}\
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
{%- endfor %}\
{%- if add_generation_prompt %}\
{{- '<|im_start|>assistant\\n' }}\
{%- endif %}";

/// Block quantisation as of 2023, which every type here belongs to.
const QUANTIZATION_VERSION: u64 = 2;

/// All metadata of `shape`.
pub(crate) fn metadata(shape: &Shape, mix: Mix, origin: &str) -> Metadata {
    let mut m = without_tokenizer(shape, mix, origin);
    tokenizer(&mut m, shape);
    m
}

/// Those that are not of its tokenizer.
pub(crate) fn without_tokenizer(shape: &Shape, mix: Mix, origin: &str) -> Metadata {
    let mut m = Metadata::new(origin);
    m.insert("general.architecture", Value::Str(shape.architecture.into()));
    m.insert("general.type", Value::Str("model".into()));
    m.insert("general.name", Value::Str(format!("{} (random weights)", shape.name)));
    m.insert("general.quantization_version", Value::U64(QUANTIZATION_VERSION));
    if let Some(id) = mix.file_type() {
        m.insert("general.file_type", Value::U64(id));
    }
    match &shape.listing {
        Some(listing) => {
            let mut put = |key: &str, value| {
                m.insert(&format!("{}.{key}", shape.architecture), value);
            };
            put("block_count", Value::U64(shape.layers as u64));
            put("embedding_length", Value::U64(shape.hidden as u64));
            listing.keys(shape.layers).for_each(|(key, value)| put(key, value));
        }
        None => dimensions(&mut m, shape),
    }
    m
}

fn dimensions(m: &mut Metadata, s: &Shape) {
    let arch = s.architecture;
    let mut put = |key: &str, value| m.insert(&format!("{arch}.{key}"), value);
    let number = |n: usize| Value::U64(n as u64);
    // f32 in files: rounded here already, so that a written file reads back equal
    let float = |x: f32| Value::F64(x.into());
    put("block_count", number(s.blocks()));
    put("context_length", number(s.context));
    put("embedding_length", number(s.hidden));
    put("attention.head_count", number(s.heads));
    put("attention.head_count_kv", number(s.kv_heads));
    put("attention.key_length", number(s.head_dim));
    put("attention.value_length", number(s.head_dim));
    put("attention.layer_norm_rms_epsilon", float(s.eps));
    put("rope.dimension_count", number(s.rope_dims));
    put("rope.freq_base", float(s.rope_theta));
    if s.intermediate > 0 {
        put("feed_forward_length", number(s.intermediate));
    }
    if arch == "llama" {
        put("vocab_size", number(s.vocab));
    }
    if let Some(e) = s.moe {
        put("expert_count", number(e.experts));
        put("expert_used_count", number(e.top_k));
        // Mixtral's experts are as wide as `feed_forward_length` says
        if arch != "llama" {
            put("expert_feed_forward_length", number(e.intermediate));
        }
        if e.shared_intermediate > 0 {
            put("expert_shared_feed_forward_length", number(e.shared_intermediate));
        }
    }
    if let Some(g) = s.gdn {
        put("ssm.conv_kernel", number(g.conv_kernel));
        put("ssm.state_size", number(g.head_dim));
        put("ssm.group_count", number(g.k_heads));
        put("ssm.time_step_rank", number(g.v_heads));
        put("ssm.inner_size", number(g.v_heads * g.head_dim));
        put("full_attention_interval", number(g.interval));
        put("rope.dimension_sections", Value::Ints(rope_sections(s.rope_dims)));
    }
    if arch.starts_with("qwen3vl") {
        put("rope.dimension_sections", Value::Ints(vec![24, 20, 20, 0]));
    }
    if s.mtp {
        put("nextn_predict_layers", number(1));
        if s.gdn.is_some() {
            // the block after the layers breaks their rhythm, so newer converters list each one's kind
            let recurrent = (0..s.blocks()).map(|i| Value::Bool(s.is_recurrent(i))).collect();
            put("attention.recurrent_layers", Value::Array(recurrent));
        }
    }
}

/// Pairs of a head that turn with time, height and width: `[11, 11, 10, 0]` of 32.
fn rope_sections(rope_dims: usize) -> Vec<i64> {
    let pairs = rope_dims as i64 / 2;
    let [time, height] = [(pairs + 2) / 3, (pairs + 1) / 3];
    vec![time, height, pairs - time - height, 0]
}

fn tokenizer(m: &mut Metadata, s: &Shape) {
    // The splitting rule by which the family is known. Mixtral's own tokenizer is no byte-level BPE, so it takes
    // Llama 3's rule here.
    let (pre, specials) = match s.architecture {
        "qwen35" | "qwen35moe" => ("qwen35", 33),
        "qwen3" | "qwen3moe" | "qwen3vl" | "qwen3vlmoe" => ("qwen2", 26),
        "qwen2" | "qwen2moe" => ("qwen2", 22),
        _ if s.listing.is_some() => (s.listing.as_ref().map_or("", |l| l.pre), 26),
        _ if s.name.starts_with("smollm") => ("smollm", 26),
        _ => ("llama-bpe", 26),
    };
    let v = vocabulary(s.vocab, s.real_vocab, specials);
    let id = |id: usize| Value::U64(id as u64);
    m.insert("tokenizer.ggml.model", Value::Str("gpt2".into()));
    m.insert("tokenizer.ggml.pre", Value::Str(pre.into()));
    m.insert("tokenizer.ggml.tokens", Value::Strs(v.tokens));
    m.insert("tokenizer.ggml.token_type", Value::Ints(v.types));
    m.insert("tokenizer.ggml.merges", Value::Strs(v.merges));
    m.insert("tokenizer.ggml.bos_token_id", id(v.end_of_text));
    m.insert("tokenizer.ggml.eos_token_id", id(v.end_of_turn));
    m.insert("tokenizer.ggml.padding_token_id", id(v.end_of_text));
    m.insert("tokenizer.ggml.add_bos_token", Value::Bool(false));
    m.insert("tokenizer.chat_template", Value::Str(CHAT_TEMPLATE.into()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known;

    #[test]
    fn keys_are_those_of_the_specification() {
        let shape = known::shape("qwen3.6-35b-a3b").unwrap();
        let m = metadata(&shape, Mix::Q4KM, "x");
        let numbers = [
            ("block_count", 40),
            ("context_length", 262_144),
            ("embedding_length", 2048),
            ("attention.head_count", 16),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 256),
            ("attention.value_length", 256),
            ("rope.dimension_count", 64),
            ("expert_count", 256),
            ("expert_used_count", 8),
            ("expert_feed_forward_length", 512),
            ("expert_shared_feed_forward_length", 512),
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", 128),
            ("ssm.group_count", 16),
            ("ssm.time_step_rank", 32),
            ("ssm.inner_size", 4096),
            ("full_attention_interval", 4),
        ];
        for (key, want) in numbers {
            assert_eq!(m.u32(&format!("qwen35moe.{key}")).unwrap(), want, "{key}");
        }
        assert_eq!(m.opt_ints("qwen35moe.rope.dimension_sections").unwrap().unwrap(), [11, 11, 10, 0]);
        assert_eq!(m.f32("qwen35moe.rope.freq_base").unwrap(), 1e7);
        assert_eq!(m.u32("general.file_type").unwrap(), 15);
        assert_eq!(m.u32("tokenizer.ggml.eos_token_id").unwrap(), 248_046);
        assert!(m.opt_u32("qwen35moe.nextn_predict_layers").unwrap().is_none());
        let with_mtp = metadata(&Shape { mtp: true, ..shape }, Mix::Q4KM, "x");
        assert_eq!(with_mtp.u32("qwen35moe.block_count").unwrap(), 41);
    }
}
