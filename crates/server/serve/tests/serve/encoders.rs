//! Encoders: vectors and scores at every endpoint for them, and what they cannot do.

use std::sync::Arc;

use octet_engine::engine::Options as EngineOptions;
use octet_engine::scheduler;
use octet_serve::{BoxError, ModelSpec, Options};
use serde_json::{Value, json};

use crate::common::{Fixture, chat, vulkan};

#[allow(dead_code)]
#[path = "../../../../engine/engine/tests/engine/common/encoders.rs"]
mod tiny;

/// A tiny encoder of the engine's tests under its own name.
fn spec(name: &str) -> ModelSpec {
    let case = tiny::cases().into_iter().find(|c| c["name"] == name).expect("a case");
    let cpu =
        octet_compute::cpu::CpuOptions { threads: Some(1), pin: false, exact: true, ..Default::default() };
    let device = octet_testkit::models_on_vulkan().map(vulkan);
    let engine = EngineOptions { cpu, device, max_seqs: 4, batch_tokens: 16, ..EngineOptions::default() };
    ModelSpec {
        options: scheduler::Options { engine, queue: 16 },
        ..ModelSpec::new(name, Arc::new(move || Ok::<_, BoxError>(tiny::open(&case))))
    }
}

fn normalised(x: &[f32]) -> Vec<f64> {
    let length = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    x.iter().map(|x| f64::from(*x) / length).collect()
}

fn near(got: &Value, want: &[f64]) {
    let got: Vec<f64> =
        got.as_array().expect("a vector").iter().map(|x| x.as_f64().expect("a number")).collect();
    assert_eq!(got.len(), want.len());
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-5, "differs by {worst}");
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_in_every_dialect() {
    let names = ["bert", "embeddinggemma", "bert with mean and projections"];
    let f = Fixture::with(Options::new(names.map(spec).to_vec())).await;
    for name in names {
        let case = tiny::cases().into_iter().find(|c| c["name"] == name).expect("a case");
        let texts = tiny::texts(&case);
        let wants: Vec<Vec<f64>> = texts.iter().map(|(.., want)| normalised(want)).collect();
        // More texts than are computed at once, in their order.
        let many: Vec<_> = (0..50).map(|i| &texts[i % 3].0).collect();
        let asked = json!({"model": name, "input": many});
        let answer = f.ok("/v1/embeddings", &asked).await;
        let data = answer["data"].as_array().expect("vectors");
        assert_eq!(data.len(), 50);
        for (i, one) in data.iter().enumerate() {
            near(&one["embedding"], &wants[i % 3]);
        }
        let tokens: usize = many.iter().map(|ids| ids.len()).sum();
        assert_eq!(answer["usage"]["prompt_tokens"], tokens);
    }
    // A text is read with what its tokenizer puts around it.
    let text = f.ok("/v1/embeddings", &json!({"model": "bert", "input": "w5 w9"})).await;
    let ids = f.ok("/v1/embeddings", &json!({"model": "bert", "input": [3, 5, 9, 4]})).await;
    assert_eq!(text["data"][0]["embedding"], ids["data"][0]["embedding"]);
    let ollama = f.ok("/api/embed", &json!({"model": "bert", "input": ["w5 w9"]})).await;
    assert_eq!(ollama["embeddings"][0], text["data"][0]["embedding"]);
    let shorter = f.ok("/v1/embeddings", &json!({"model": "bert", "input": "w5 w9", "dimensions": 8})).await;
    assert_eq!(shorter["data"][0]["embedding"].as_array().expect("a vector").len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_too_long_is_refused_or_cut() {
    let f = Fixture::with(Options::new(vec![spec("bert")])).await;
    let long = "w5 ".repeat(50);
    let (status, answer) = f.post("/v1/embeddings", &json!({"model": "bert", "input": long})).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")), "{answer}");
    let cut = f.ok("/api/embed", &json!({"model": "bert", "input": long})).await;
    let fits = f.ok("/v1/embeddings", &json!({"model": "bert", "input": "w5 ".repeat(38)})).await;
    assert_eq!(cut["embeddings"][0], fits["data"][0]["embedding"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rerankers_score_pairs() {
    let names = ["cross-encoder", "xlm-roberta reranker", "modernbert reranker"];
    let f = Fixture::with(Options::new(names.map(spec).to_vec())).await;
    for name in names {
        let case = tiny::cases().into_iter().find(|c| c["name"] == name).expect("a case");
        let (.., want) = tiny::texts(&case).pop().expect("a pair");
        let documents = ["w7 w30 w11", "w8", "w7 w30 w11"];
        let asked = json!({"model": name, "query": "w5 w9", "documents": documents});
        let answer = f.ok("/v1/rerank", &asked).await;
        let results = answer["results"].as_array().expect("results");
        assert_eq!(results.len(), 3);
        let of =
            |i: u64| results.iter().find(|r| r["index"] == i).expect("a result")["relevance_score"].as_f64();
        let score = 1.0 / (1.0 + f64::from(-want[0]).exp());
        assert!((of(0).expect("a score") - score).abs() < 1e-5, "{name}: {answer}, not {score}");
        assert_eq!(of(0), of(2));
        let raw = json!({"model": name, "query": "w5 w9", "texts": documents, "raw_scores": true});
        let raw = f.ok("/rerank", &raw).await;
        let first = raw.as_array().expect("an array").iter().find(|r| r["index"] == 0).expect("the first");
        assert!((first["score"].as_f64().expect("a score") - f64::from(want[0])).abs() < 1e-4, "{raw}");
        let (status, refused) = f.post("/v1/embeddings", &json!({"model": name, "input": "w5"})).await;
        assert_eq!(status, 400);
        assert!(
            refused["error"]["message"].as_str().expect("a text").contains("it is for /v1/rerank"),
            "{refused}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn encoders_write_nothing() {
    let f = Fixture::with(Options::new(vec![spec("bert")])).await;
    let mut asked = chat("w5");
    asked["model"] = json!("bert");
    for (path, asked) in
        [("/v1/chat/completions", asked), ("/v1/completions", json!({"model": "bert", "prompt": "w5"}))]
    {
        let (status, refused) = f.post(path, &asked).await;
        assert_eq!(status, 400, "{path}: {refused}");
        assert!(
            refused["error"]["message"].as_str().expect("a text").contains("cannot write any"),
            "{refused}"
        );
    }
    let (status, refused) =
        f.post("/v1/rerank", &json!({"model": "bert", "query": "w5", "documents": ["w6"]})).await;
    assert_eq!(status, 400);
    assert!(
        refused["error"]["message"].as_str().expect("a text").contains("use /v1/embeddings"),
        "{refused}"
    );
    let shown = f.ok("/api/show", &json!({"model": "bert"})).await;
    assert_eq!(shown["capabilities"], json!(["embedding"]));
}
