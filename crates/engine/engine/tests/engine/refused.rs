//! Files whose metadata requires another computation than ours, or whose weights give NaN, are refused by name.

use bytes::Bytes;
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_compute::reference::Reference;
use octet_engine::bench::{self, Kind, Test};
use octet_engine::engine::{Engine, Options};
use octet_engine::models::{self, Limits};
use octet_engine::tokenizer::Tokenizer;
use octet_synth::{Mix, tiny};
use octet_weights::{GgmlType, Model, Source, TensorInfo, Value};

fn load(arch: &str, keys: &[(&str, Value)]) -> Result<usize, String> {
    let mut file = tiny(arch, Mix::Of(GgmlType::F32)).expect("a tiny model can be made");
    for (key, value) in keys {
        file.metadata.insert(key, value.clone());
    }
    let loaded = models::load(&file, Reference, crate::common::limits(), &mut |_, _| {});
    loaded.map(|m| m.config().context_length).map_err(|e| e.to_string())
}

#[test]
fn keys_that_change_results_are_refused() {
    for (arch, key, value) in [
        ("llama", "llama.attention.scale", Value::F64(0.5)),
        ("llama", "llama.logit_scale", Value::F64(0.25)),
        ("llama", "llama.final_logit_softcapping", Value::F64(30.0)),
        ("llama", "llama.attn_logit_softcapping", Value::F64(50.0)),
        ("llama", "llama.embedding_scale", Value::F64(12.0)),
        ("llama", "llama.rope.scaling.attn_factor", Value::F64(1.5)),
        ("llama", "llama.use_parallel_residual", Value::Bool(true)),
        ("qwen3", "qwen3.attention.causal", Value::Bool(false)),
        ("qwen3", "qwen3.rope.freq_base_swa", Value::F64(10_000.0)),
        ("llama", "llama.residual_scale", Value::F64(0.5)),
        ("llama", "llama.attention.kv_lora_rank", Value::U64(512)),
        ("qwen3moe", "qwen3moe.expert_gating_func", Value::U64(7)),
        ("qwen3moe", "qwen3moe.interleave_moe_layer_step", Value::U64(2)),
        ("qwen35moe", "qwen35moe.attention.sliding_window", Value::U64(16)),
        ("qwen35moe", "qwen35moe.attention.clamp_kqv", Value::Ints(vec![0, 8])),
        ("llama", "llama.attention.key_length", Value::U64(0)),
        ("llama", "llama.attention.value_length", Value::U64(0)),
    ] {
        let e = load(arch, &[(key, value)]).expect_err(key);
        assert!(e.contains(key) && e.contains("is "), "{e}");
    }
}

#[test]
fn neutral_keys_are_accepted() {
    let neutral = [
        ("llama.attention.scale", Value::F64(0.125)),
        ("llama.logit_scale", Value::F64(1.0)),
        ("llama.attention.causal", Value::Bool(true)),
        ("llama.attention.clamp_kqv", Value::Ints(vec![0, 0])),
        ("llama.final_logit_softcapping", Value::F64(0.0)),
        ("llama.attention.key_length", Value::U64(64)),
    ];
    load("llama", &neutral).expect("neutral values load");
}

#[test]
fn a_sliding_window_does_not_limit_the_context() {
    let window = |w| load("llama", &[("llama.attention.sliding_window", Value::U64(w))]).unwrap();
    let whole = load("llama", &[]).unwrap();
    assert_eq!([window(16), window(0), window(1 << 30)], [whole; 3]);
}

#[test]
fn a_context_beyond_the_window_is_refused() {
    // Qwen3.5 has no window: within one as long as its context, its attention is the same.
    let mut file = tiny("qwen35moe", Mix::Of(GgmlType::F32)).unwrap();
    let own = models::context_length(&file).unwrap();
    file.metadata.insert("qwen35moe.attention.sliding_window", Value::U64(own as u64));
    let cpu = CpuOptions { threads: Some(1), pin: false, ..CpuOptions::default() };
    let open = |context| {
        let options =
            Options { context: Some(context), kv_tokens: Some(64), cpu: cpu.clone(), ..Options::default() };
        Engine::open(&file, &options, &mut |_, _| {}).map(|e| e.context()).map_err(|e| e.to_string())
    };
    assert_eq!([open(32), open(own)], [Ok(32), Ok(own)]);
    let e = open(own + 1).unwrap_err();
    assert!(e.contains(&format!("{} tokens exceeds the sliding window of {own}", own + 1)), "{e}");
}

/// Fewer layers than the file has would be another model.
#[test]
fn a_wrong_number_of_layers_is_found() {
    let e = load("llama", &[("llama.block_count", Value::U64(1))]).unwrap_err();
    assert!(e.contains("blk.1."), "{e}");
    let e = load("qwen35", &[("qwen35.nextn_predict_layers", Value::U64(0))]).unwrap_err();
    assert!(e.contains("blk.4") && e.contains("nextn"), "{e}");
    let e = load("llama", &[("llama.block_count", Value::U64(90))]).unwrap_err();
    assert!(e.contains("is missing"), "{e}");
}

#[test]
fn a_first_token_outside_of_the_vocabulary_is_refused() {
    let mut file = tiny("llama", Mix::Of(GgmlType::F32)).unwrap();
    file.metadata.insert("tokenizer.ggml.bos_token_id", Value::U64(1_000_000));
    let e = Tokenizer::from_metadata(&file.metadata).unwrap_err().to_string();
    assert!(e.contains("bos_token_id") && e.contains("1000000"), "{e}");
}

/// A synthetic model whose last norm is NaN.
struct NotANumber(Model);

impl Source for NotANumber {
    fn tensors(&self) -> &[TensorInfo] {
        self.0.tensors()
    }
    fn data(&self, index: usize) -> Result<Bytes, octet_weights::Error> {
        let info = &self.tensors()[index];
        match info.name.as_str() {
            "output_norm.weight" => Ok(f32::NAN.to_le_bytes().repeat(info.len()).into()),
            name => Ok(self.0.optional(name)?.expect("it is listed").data),
        }
    }
}

#[test]
fn garbage_is_neither_scored_nor_measured() {
    let inner = tiny("llama", Mix::Of(GgmlType::F32)).unwrap();
    let file = Model::new("made".into(), inner.metadata.clone(), Box::new(NotANumber(inner))).unwrap();
    let cpu = CpuOptions { threads: Some(1), pin: false, ..CpuOptions::default() };
    let options = Options { context: Some(64), score_tokens: 8, cpu: cpu.clone(), ..Options::default() };
    let mut engine = Engine::open(&file, &options, &mut |_, _| {}).unwrap();
    let e = engine.score(&[1, 2, 3], &mut |_| {}).unwrap_err().to_string();
    assert!(e.contains("NaN"), "{e}");
    for kind in [Kind::Prompt(8), Kind::Generate(2)] {
        let mut model =
            models::load(&file, Cpu::new(&cpu).unwrap(), Limits::single(64), &mut |_, _| {}).unwrap();
        let test = Test { kind, depth: 0, sequences: 1 };
        let e = bench::run(&mut *model, test, 1, false, &mut || {}).unwrap_err().to_string();
        assert!(e.contains("NaN"), "{kind:?}: {e}");
    }
}
