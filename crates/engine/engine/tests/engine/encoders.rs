//! Encoders against transformers' numbers in f32: vectors and scores of whole texts, alone and beside others.

use std::collections::BTreeMap;

use bytes::Bytes;
use octet_compute::Batch;
use octet_engine::engine::{self, Engine, Event, Pooling, Request, Step};
use octet_engine::models::config::Config;
use octet_engine::models::{Limits, Model};
use octet_testkit::max_abs_diff;
use octet_weights::gguf::{self, Writer};
use octet_weights::{Value, hf};
use serde_json::{Value as Json, json};

use crate::common::encoders::{Text, cases, files, numbers, open, text, texts};
use crate::common::{On, drive, exact_backends, limits, load, try_load};

const TOLERANCE: f32 = 1e-4;

/// Computes texts in one step; the result of each.
fn encode(model: &mut dyn Model, texts: &[Text]) -> Vec<Vec<f32>> {
    let mut batch = Batch::default();
    for (i, (ids, types, _)) in texts.iter().enumerate() {
        batch.push(ids, 0, i, &[i as u32], 1);
        batch.see(0..ids.len());
        if !types.is_empty() {
            batch.set_types(types.iter().copied());
        }
    }
    assert!(model.step(&batch).expect("a step").is_empty(), "an encoder has no logits");
    let pooling = model.config().encoder().expect("an encoder").pooling;
    let hidden = model.config().hidden;
    let states = model.hidden().expect("states").to_vec();
    let mut from = 0;
    let mut out = Vec::new();
    for (ids, ..) in texts {
        let rows: Vec<&[f32]> =
            states[from * hidden..(from + ids.len()) * hidden].chunks_exact(hidden).collect();
        from += ids.len();
        let state: Vec<f32> = match pooling {
            Pooling::Cls => rows[0].to_vec(),
            Pooling::Last => rows[rows.len() - 1].to_vec(),
            Pooling::Mean => {
                (0..hidden).map(|j| rows.iter().map(|r| r[j]).sum::<f32>() / rows.len() as f32).collect()
            }
        };
        out.push(model.pool(&state).expect("a vector"));
    }
    out
}

/// The encoders of `fixtures/architectures.py`: nomic-embed-text v2, which no library has, and EuroBERT.
#[test]
fn gguf_files_under_their_own_names() {
    let cases = crate::architectures::cases();
    let encoders: Vec<&Json> = cases.iter().filter(|c| c["vectors"].is_array()).collect();
    assert_eq!(encoders.len(), 2);
    encoders.into_iter().for_each(|case| check_vectors(case, &crate::architectures::file(case)));
}

#[test]
fn checkpoints_under_decoders_names() {
    let case = crate::checkpoints::case("eurobert");
    let mut tensors = crate::checkpoints::tensors(&crate::architectures::file(&case), &[]);
    // What it was trained with.
    tensors.push(("lm_head.weight".into(), vec![64, 32], vec![0.5; 2048]));
    let config =
        json!({"model_type": "eurobert", "architectures": ["EuroBertForMaskedLM"], "hidden_act": "silu"});
    let file = crate::architectures::checkpoint(&tensors, &crate::checkpoints::config(config));
    check_vectors(&case, &file.expect("a checkpoint"));
}

fn check_vectors(case: &Json, file: &octet_weights::Model) {
    let prompt: Vec<u32> = (0..40).map(|i| (7 * i + 3) % 64).collect();
    let vectors = case["vectors"].as_array().expect("vectors").iter();
    let texts: Vec<Text> = [1, 9, 40]
        .into_iter()
        .zip(vectors)
        .map(|(n, v)| (prompt[..n].to_vec(), Vec::new(), numbers(v).into_iter().map(|x| x as f32).collect()))
        .collect();
    for on in exact_backends().into_iter().chain(octet_testkit::vulkan_device().map(On::ExactVulkan)) {
        let mut model = load(file, on, Limits { mtp: false, ..limits() });
        for (got, (.., want)) in encode(&mut *model, &texts).iter().zip(&texts) {
            let worst = max_abs_diff(got, want);
            assert!(worst <= TOLERANCE, "{} on {on:?}: differs by {worst}", case["name"]);
        }
    }
}

#[test]
fn vectors_and_scores() {
    check(&exact_backends());
}

#[test]
fn vectors_and_scores_on_a_graphics_device() {
    if let Some(index) = octet_testkit::vulkan_device() {
        check(&[On::ExactVulkan(index)]);
    }
}

fn check(backends: &[On]) {
    let mut wrong = Vec::new();
    for case in cases() {
        let file = open(&case);
        let name = text(&case["name"]);
        let texts = texts(&case);
        for &on in backends {
            let mut model = load(&file, on, Limits { mtp: false, ..limits() });
            let together = encode(&mut *model, &texts);
            for (i, text) in texts.iter().enumerate() {
                let worst = max_abs_diff(&together[i], &text.2);
                if worst > TOLERANCE {
                    wrong.push(format!("{name} on {on:?}: text {i} differs by {worst}"));
                }
                let alone = encode(&mut *model, std::slice::from_ref(text)).remove(0);
                assert_eq!(alone, together[i], "{name} on {on:?}: text {i} has other bits alone");
                // A device replays a step of few tokens, with this text's types.
                let mut other = text.clone();
                other.0.reverse();
                other.1.clear();
                encode(&mut *model, &[other]);
                let again = encode(&mut *model, std::slice::from_ref(text)).remove(0);
                assert_eq!(alone, again, "{name} on {on:?}: text {i} has other bits after another text");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Names of tensors are those of llama.cpp's converter, as its package `gguf` has them.
#[test]
fn tensors_have_ggufs_names() {
    for case in cases() {
        let file = open(&case);
        let mut known = 0;
        for (own, gguf) in case["gguf"].as_object().expect("names") {
            let (gguf, rows) = (text(gguf), &case["tensors"][own]);
            let info = file.info(gguf);
            let info = info.unwrap_or_else(|| panic!("{}: {own} should be {gguf}", case["name"]));
            assert_eq!(info.shape.len(), numbers(rows).len(), "{own}");
            known += 1;
        }
        assert!(known > 1, "{}", case["name"]);
    }
}

/// A checkpoint as a GGUF file has it: without what only checkpoints say.
fn as_gguf(case: &Json) -> octet_weights::Model {
    let file = open(case);
    let mut metadata = file.metadata.clone();
    let own: Vec<String> = metadata.iter().map(|(key, _)| key.to_string()).collect();
    for key in own.iter().filter(|k| k.starts_with("octet.") || k.ends_with("huggingface.json")) {
        metadata.remove(key);
    }
    // The number that llama.cpp's converter writes in place of a list of layers.
    let pattern = "modern-bert.attention.sliding_window_pattern";
    if metadata.get(pattern).is_some() {
        metadata.insert(pattern, Value::U64(3));
    }
    let mut writer = Writer::new(Vec::new(), &metadata, file.tensors().to_vec()).expect("a header");
    for info in file.tensors() {
        let values = file.tensor(&info.name, &info.shape).expect("a tensor").to_f32();
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.append(&bytes).expect("its bytes");
    }
    gguf::from_bytes(text(&case["name"]), writer.finish().expect("all tensors").into()).expect("a file")
}

#[test]
fn gguf_files() {
    for case in cases() {
        // GGUF has no activations of projections, and no other pooling of ModernBERT's rerankers.
        if ["bert with mean and projections", "modernbert reranker of the first token"]
            .contains(&text(&case["name"]))
        {
            continue;
        }
        let mut model = load(&as_gguf(&case), On::Reference, limits());
        let texts = texts(&case);
        for (got, (.., want)) in encode(&mut *model, &texts).iter().zip(&texts) {
            let worst = max_abs_diff(got, want);
            assert!(worst <= TOLERANCE, "{}: differs by {worst}", case["name"]);
        }
    }
}

/// The engine computes texts as a whole, several in a step, and writes none.
#[test]
fn engine() {
    for case in cases() {
        let (file, texts) = (open(&case), texts(&case));
        let name = text(&case["name"]);
        let encoder = Config::read(&file).expect("a plan").encoder().expect("an encoder").clone();
        let cpu = octet_compute::cpu::CpuOptions { exact: true, ..drive::options().cpu };
        let options =
            engine::Options { context: None, batch_tokens: 64, max_seqs: 1, cpu, ..drive::options() };
        let mut engine = Engine::open(&file, &options, &mut |_, _| {}).expect("an engine");
        let rules = std::sync::Arc::clone(engine.rules());
        let mut answers = Vec::new();
        for (ids, types, _) in &texts {
            let request = Request {
                prompt: ids.clone(),
                types: types.iter().map(|t| *t as u8).collect(),
                pooling: Some(encoder.pooling),
                max_tokens: Some(0),
                ..Request::default()
            };
            let (sink, events) = std::sync::mpsc::channel();
            engine.submit(rules.prepare(request).expect("a request"), Box::new(sink));
            answers.push(events);
        }
        assert_eq!(engine.step(), Step::Worked, "{name}");
        assert_eq!(engine.step(), Step::Idle, "{name}: one step for all");
        for (events, (_, _, want)) in answers.iter().zip(&texts) {
            let vector = events.iter().find_map(|e| if let Event::Embedding(v) = e { Some(v) } else { None });
            let worst = max_abs_diff(&vector.expect("a vector"), want);
            assert!(worst <= TOLERANCE, "{name}: differs by {worst}");
        }
        engine.audit().expect("pages and slots are free again");
        let refused =
            rules.prepare(Request { prompt: vec![5], ..Request::default() }).err().expect("a refusal");
        assert!(refused.to_string().contains("cannot write any; use it with /v1/embeddings"), "{refused}");
        let long = Request { prompt: vec![5; 4096], pooling: Some(Pooling::Mean), ..Request::default() };
        let refused = rules.prepare(long).err().expect("a refusal").to_string();
        assert!(refused.contains("maximum context length"), "{refused}");
    }
}

#[test]
fn damaged_checkpoints() {
    let cases = cases();
    let refusal = |i: usize, change: &dyn Fn(&mut BTreeMap<String, Bytes>)| {
        let mut files = files(&cases[i]);
        change(&mut files);
        match hf::from_files("dir", files) {
            Err(e) => e.to_string(),
            Ok(file) => try_load(&file, On::Reference, limits()).err().expect("a refusal"),
        }
    };
    let with = |i: usize, field: &str, value: Json| {
        refusal(i, &|files| {
            let mut config: Json = serde_json::from_slice(&files["config.json"]).expect("JSON");
            config[field] = value.clone();
            files.insert("config.json".into(), config.to_string().into());
        })
    };
    for (i, field, value, what) in [
        (0, "position_embedding_type", json!("relative_key"), "only 'absolute' is supported"),
        (0, "hidden_act", json!("relu"), "only 'gelu' is supported"),
        (0, "is_decoder", json!(true), "only false is supported"),
        (2, "id2label", json!({"0": "a", "1": "b", "2": "c"}), "has 3 labels"),
        (3, "pad_token_id", json!(90), "positions begin in row 91"),
        (5, "hidden_activation", json!("relu"), "another one than hidden_activation"),
        (8, "moe_every_n_layers", json!(2), "use a GGUF file"),
        (8, "rotary_emb_fraction", json!(0.5), "only 1 is supported"),
    ] {
        let e = with(i, field, value);
        assert!(e.contains(what), "{field}: {e}");
    }
    let modules = |text: &'static str| {
        refusal(1, &|files| drop(files.insert("modules.json".into(), text.as_bytes().into())))
    };
    for (text, what) in [
        ("[", "is not JSON"),
        (r#"[{"type": "a.Pooling"}, {"type": "a.Dense", "path": "../x"}]"#, "has the path '../x'"),
        (r#"[{"type": "a.Dense", "path": "2_Dense"}]"#, "has a Dense module before pooling"),
        (r#"[{"type": "a.Pooling"}, {"type": "a.LSTM"}]"#, "has a module 'LSTM'"),
    ] {
        let e = modules(text);
        assert!(e.contains(what), "{text}: {e}");
    }
    let e = refusal(1, &|files| drop(files.remove("2_Dense/model.safetensors")));
    assert!(e.contains("2_Dense/model.safetensors"), "{e}");
}
