//! Reports against the published 35B-A3B file's figures, and against a count by an independent script.

use octet_compute::backend::KvType;
use octet_engine::models::Limits;
use octet_engine::report::{Group, Report, TokenReport};
use octet_synth::{Mix, TINY_ARCHITECTURES, known, synthetic, tiny};
use octet_weights::{GgmlType as T, Value};

fn report(name: &str, mix: Mix, layers: Option<usize>) -> Report {
    let model = synthetic(&known::shape(name).unwrap(), mix, layers, 0).unwrap();
    Report::new(&model).unwrap()
}

fn active(r: &Report) -> Vec<(Group, u64)> {
    r.groups.iter().map(|g| (g.group, g.active_bytes)).collect()
}

#[test]
fn the_35b_reads_two_gigabytes_a_token() {
    let r = report("qwen3.6-35b-a3b", Mix::Q4KM, None);
    // MB = 10^6 bytes, as measured on a file of these shapes and types
    let mb = |g| (r.group(g).unwrap().active_bytes as f64 / 1e6).round();
    assert_eq!(mb(Group::LmHead), 417.0);
    assert_eq!(mb(Group::LinearAttention), 635.0);
    assert_eq!(mb(Group::RoutedExperts), 609.0);
    assert_eq!(mb(Group::FullAttention), 155.0);
    assert_eq!(mb(Group::Router), 84.0);
    assert_eq!(mb(Group::SharedExpert), 76.0);
    assert_eq!((r.bytes_per_token as f64 / 1e6).round(), 1978.0);
    assert_eq!(format!("{:.3}", r.bytes as f64 / (1u64 << 30) as f64), "19.705");
    assert_eq!(r.tensors, 733);
    let mut types: Vec<_> = r.types.iter().map(|t| (t.ty, t.tensors)).collect();
    types.sort();
    assert_eq!(types, [(T::F32, 301), (T::Q4_K, 355), (T::Q5_K, 30), (T::Q6_K, 47)]);
    assert_eq!(
        format!("{:.2} {:.2}", r.parameters as f64 / 1e9, r.active_parameters as f64 / 1e9),
        "34.66 2.95"
    );
    // 10 layers, keys and values, 2 heads of 256
    assert_eq!(r.kv_bytes_per_position(KvType::F16.into()), 20_480);
    assert_eq!(r.kv_bytes_per_position(KvType::F32.into()), 40_960);
    assert_eq!(r.kv_bytes_per_position(KvType::Q8_0.into()), 20_480 / 64 * 34);
    // 30 layers: the state of 32 heads of 128 x 128 and three inputs of the convolution, in f32
    assert_eq!(r.state_bytes(), 30 * 4 * (32 * 128 * 128 + 3 * 8192));
    assert_eq!(
        r.traffic_per_token(100, KvType::F16.into()),
        r.bytes_per_token + 100 * 20_480 + 2 * r.state_bytes()
    );
}

/// What model cards say of these models: all parameters, and those that a token uses without the table, in billions; bytes of keys and values
/// of a position.
#[test]
fn listed_models_are_as_large_as_published() {
    for (name, all, active, kv) in [
        ("gpt-oss-20b", "20.91", "3.61", 24 * 8 * 64 * 4),
        ("gemma4-26b-a4b", "25.23", "3.82", 5 * 2 * 512 * 4 + 25 * 8 * 256 * 4),
        // 47 layers of a latent of 512 and a rotated part of 64.
        ("glm-4.7-flash", "29.94", "3.58", 47 * 576 * 2),
        ("qwen3-next-80b-a3b", "79.67", "3.56", 12 * 2 * 256 * 4),
    ] {
        let r = report(name, Mix::Q4KM, None);
        let found = (r.parameters as f64 / 1e9, r.active_parameters as f64 / 1e9);
        assert_eq!(format!("{:.2} {:.2}", found.0, found.1), format!("{all} {active}"), "{name}");
        assert_eq!(r.kv_bytes_per_position(KvType::F16.into()), kv, "{name}");
        let few = report(name, Mix::Q4KM, Some(2));
        assert!(few.bytes < r.bytes / 4, "{name}");
    }
}

/// Counted tensor by tensor from a file of eight layers.
#[test]
fn eight_layers_to_the_byte() {
    let r = report("qwen3.6-35b-a3b", Mix::Q4KM, Some(8));
    assert_eq!((r.tensors, r.parameters, r.bytes), (149, 7_745_818_752, 4_794_171_904));
    assert_eq!(
        active(&r),
        [
            (Group::Embedding, 1152),
            (Group::LinearAttention, 127_062_528),
            (Group::FullAttention, 30_941_184),
            (Group::Router, 16_842_752),
            (Group::RoutedExperts, 121_896_960),
            (Group::SharedExpert, 15_237_120),
            (Group::Norms, 143_360),
            (Group::LmHead, 417_177_600),
        ]
    );
}

#[test]
fn a_tied_head_reads_the_whole_table() {
    let r = report("smollm2-135m", Mix::Of(T::BF16), None);
    assert!(r.tied);
    assert_eq!((r.parameters, r.bytes), (134_515_008, 2 * 134_515_008 + 2 * 61 * 576));
    let head = r.group(Group::LmHead).unwrap();
    assert_eq!((head.tensors, head.bytes, head.active_bytes), (0, 0, 2 * 49_152 * 576));
    assert_eq!(r.active_parameters, r.parameters, "no more than all");
    // the table as a whole and one row of it, and everything else
    assert_eq!(r.bytes_per_token, r.bytes + 2 * 576);
    assert_eq!(r.state_bytes(), 0);
}

#[test]
fn memory_follows_the_limits() {
    let r = Report::new(&tiny("qwen35moe", Mix::Of(T::F32)).unwrap()).unwrap();
    let limits = Limits::single(1024);
    let m = r.memory(&limits, false);
    assert_eq!(m.weights, r.bytes - r.group(Group::Mtp).unwrap().bytes);
    assert_eq!(m.kv, 1024 * r.kv_bytes_per_position(KvType::F16.into()));
    assert_eq!(m.states, r.state_bytes());
    let kept = r.memory(&Limits { snapshots: 3, ..limits.clone() }, false);
    assert_eq!(kept.states, 4 * r.state_bytes());
    assert_eq!((m.total(), m.speculation), (m.weights + m.kv + m.states + m.activations, 0));
    let with_mtp = r.memory(&Limits { mtp: true, ..limits.clone() }, false);
    // the block's own layer of keys and values is as large as the only other one
    let block = r.bytes - m.weights + m.kv;
    let states = 4 * r.config.hidden as u64 * 2 * (limits.batch_tokens as u64 + 1);
    assert_eq!((with_mtp.speculation, with_mtp.total()), (block + states, m.total() + block + states));
    let endless = r.memory(&Limits::single(usize::MAX), false);
    assert_eq!((endless.kv, endless.total()), (u64::MAX, u64::MAX));
}

/// All weights as f32, but for the table, which stays in the file; a tied one is packed besides.
#[test]
fn exact_weights_are_f32() {
    for (arch, tied) in [("qwen35moe", false), ("qwen35", true)] {
        let r = Report::new(&tiny(arch, Mix::Q4KM).unwrap()).unwrap();
        assert_eq!(r.tied, tied, "{arch}");
        let (table, mtp) = (r.group(Group::Embedding).unwrap(), r.group(Group::Mtp).unwrap());
        let packed = r.parameters - mtp.parameters - if tied { 0 } else { table.parameters };
        assert_eq!(r.memory(&Limits::single(64), true).weights, 4 * packed + table.bytes, "{arch}");
    }
}

#[test]
fn ends_that_are_no_tokens_are_refused() {
    let mut file = tiny("llama", Mix::Q4KM).unwrap();
    file.metadata.insert("tokenizer.ggml.eos_token_ids", Value::Ints(vec![2, -3]));
    let e = Report::new(&file).unwrap_err().to_string();
    assert!(e.contains("eos_token_ids") && e.contains("-3"), "{e}");
}

/// Gemma 3n E2B: 30 layers, whose embeddings have 256 values for each of 262,144 tokens; Gemma 4 E2B: 35 layers.
#[test]
fn embeddings_of_layers_are_read_row_by_row() {
    for (name, layers, hidden, inner) in [("gemma3n-e2b", 30, 2048, 8192), ("gemma4-e2b", 35, 1536, 12_288)] {
        let r = report(name, Mix::Q4KM, None);
        let table = r.group(Group::LayerEmbedding).unwrap();
        assert_eq!(table.parameters, 262_144 * 256 * layers, "{name}");
        assert_eq!(table.active_parameters, 256 * layers, "{name}");
        // A gate, a projection, and a share of one for all layers.
        let inputs = r.group(Group::LayerInputs).unwrap();
        assert_eq!(inputs.parameters, 3 * 256 * hidden * layers, "{name}");
        assert_eq!(inputs.active_bytes, inputs.bytes, "{name}");
        let streams = r.group(Group::Streams);
        assert_eq!(streams.is_some(), name.starts_with("gemma3n"), "{name}");
        assert!(streams.is_none_or(|s| s.active_bytes == s.bytes && s.bytes > 0), "{name}");
        assert!(
            r.group(Group::Other).is_none_or(|g| g.parameters <= 512),
            "{name}: {:?}",
            r.group(Group::Other)
        );
        assert_eq!(r.config.intermediate(), inner, "{name}");
        assert!(r.memory(&Limits::single(64), false).weights >= r.bytes, "{name}: all of it is in memory");
    }
}

#[test]
fn every_tensor_of_every_architecture_has_a_group() {
    for arch in TINY_ARCHITECTURES {
        let r = Report::new(&tiny(arch, Mix::Q4KM).unwrap()).unwrap();
        let stray = r.group(Group::Other).map_or(0, |g| g.tensors);
        // Llama 3's table of rotary divisors is read while loading
        assert_eq!(stray, usize::from(*arch == "llama"), "{arch}");
        assert_eq!(
            r.group(Group::RoutedExperts).is_some(),
            arch.contains("moe") || *arch == "mixtral",
            "{arch}"
        );
        assert_eq!(r.group(Group::Mtp).is_some(), arch.starts_with("qwen35"), "{arch}");
    }
}

#[test]
fn the_text_report_has_all_values_in_columns() {
    let r = report("qwen3.6-35b-a3b", Mix::Q4KM, Some(8));
    assert_eq!(r.tokenizer.tokens, Some(248_077));
    assert_eq!(r.tokenizer.eos, [TokenReport { id: 248_046, text: Some("<|im_end|>".into()) }]);
    let text = r.text(&Limits::single(4096));
    for part in [
        "qwen35moe",
        "7.75 B, 996.14 M active per token",
        "8: 6 Gated DeltaNet, 2 attention",
        "8 of 256 per token",
        "<|im_end|> (248046)",
        "397.85 MiB  57.2%",
        "695.52 MiB per token, of 4.46 GiB",
        "4 KiB per position in f16",
        "no multi-token prediction",
    ] {
        assert!(text.contains(part), "'{part}' is not in\n{text}");
    }
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    // every line of the table has its share at the same place
    let table = text.lines().skip_while(|l| !l.starts_with("bytes read per token")).skip(1);
    // Long lists of types go on in the next line.
    let rows = table.take_while(|l| !l.is_empty()).filter(|l| l.contains(" of ") && l.contains('%'));
    let columns: Vec<_> = rows.map(|l| l.chars().position(|c| c == '%')).collect();
    assert_eq!(columns.len(), r.groups.len());
    assert!(columns[0].is_some() && columns.iter().all(|c| *c == columns[0]), "{columns:?}");
}

/// A checkpoint's directory and the GGUF file made of it hold the same parameters in the same groups.
#[test]
fn twins_have_the_same_parameters() {
    for name in ["qwen3_5_moe", "qwen3_5", "qwen3_moe", "llama"] {
        let paths = [format!("models/tiny-{name}"), format!("models/gguf/tiny-{name}.f32.gguf")];
        let [Some(directory), Some(file)] = paths.map(|p| octet_testkit::shared(&p)) else { return };
        let of = |path| {
            let report = Report::new(&octet_weights::Model::open(path).unwrap()).unwrap();
            assert!(!report.text(&Limits::single(512)).is_empty());
            let groups = report.groups.iter();
            groups.map(|g| (g.group, g.parameters, g.active_parameters)).collect::<Vec<_>>()
        };
        assert_eq!(of(directory), of(file), "{name}");
    }
}
