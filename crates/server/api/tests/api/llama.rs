//! llama-server's bodies: what editors' plugins and clients of rerankers send.

use octet_api::core::GenerateRequest;
use octet_api::llama::{completion, infill, rerank};
use octet_api::{ApiError, Warning, openai};
use serde_json::{Value, json};

fn with(base: &Value, more: &Value) -> Vec<u8> {
    let mut out = base.clone();
    out.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    out.to_string().into_bytes()
}

/// What is warned about, sorted.
fn params(warnings: &[Warning]) -> Vec<&str> {
    let mut all: Vec<&str> = warnings.iter().map(|w| w.param.as_str()).collect();
    all.sort_unstable();
    all
}

/// Other programs' names of its length are refused with the right one.
#[test]
fn other_names_of_the_length_are_refused() {
    for name in ["max_new_tokens", "max_output_tokens", "num_predict"] {
        let body = json!({"prompt": "a", name: 5});
        let e = octet_api::llama::completion(body.to_string().as_bytes()).expect_err(name);
        assert!(e.param.as_deref() == Some(name) && e.message.contains("send 'n_predict'"), "{e}");
    }
}

/// The bodies of llama.vscode (`src/llama-server.ts`) and llama.vim (`autoload/llama.vim`).
#[test]
fn what_editors_send_is_accepted() {
    let gap = json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [], "prompt": "c", "cache_prompt": true});
    for (more, samplers, ignored, lines) in [
        (
            json!({
                "n_predict": 128, "top_k": 40, "top_p": 0.99, "stream": false, "samplers": ["top_k", "top_p", "infill"],
                "n_indent": 4, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
            }),
            json!(["top_k", "top_p"]),
            vec!["samplers", "t_max_prompt_ms"],
            (4, Some(1000)),
        ),
        (
            json!({"n_predict": 0, "samplers": [], "t_max_prompt_ms": 500, "t_max_predict_ms": 1}),
            json!([]),
            vec!["t_max_prompt_ms"],
            (0, Some(1)),
        ),
        (json!({"n_indent": 0, "t_max_predict_ms": -1}), Value::Null, vec![], (0, None)),
    ] {
        let r = infill(&with(&gap, &more)).unwrap_or_else(|e| panic!("{more}: {e}"));
        assert_eq!(json!(r.sampling.more.samplers), samplers, "{more}");
        assert_eq!(params(&r.warnings), ignored, "{more}");
        assert_eq!((r.lines.indent, r.lines.time_ms), lines, "{more}");
    }
}

type Parse = fn(&[u8]) -> Result<GenerateRequest, ApiError>;

#[test]
fn other_names_and_values_of_sampling_settings() {
    let parsers: [(Parse, Value); 3] = [
        (completion, json!({"prompt": "a"})),
        (openai::completions::parse, json!({"model": "m", "prompt": "a"})),
        (openai::chat::parse, json!({"model": "m", "messages": [{"role": "user", "content": "a"}]})),
    ];
    for (parse, base) in parsers {
        let sampling = |more: Value| parse(&with(&base, &more)).map(|r| r.sampling);
        for (samplers, left) in [
            (json!(["tfs_z", "top_k", "adaptive_p", "temperature"]), vec!["top_k", "temperature"]),
            (json!("kfait"), vec!["top_k", "temperature"]),
            (json!([]), vec![]),
        ] {
            let more = sampling(json!({"samplers": samplers})).unwrap().more;
            assert_eq!(more.samplers.unwrap(), left, "{samplers}");
        }
        assert!(sampling(json!({"samplers": ["topk"]})).unwrap_err().message.contains("'topk'"));
        // Mistral's name.
        assert_eq!(sampling(json!({"random_seed": 7})).unwrap().seed, Some(7));
        let both = sampling(json!({"seed": 1, "random_seed": 2})).unwrap_err();
        assert!(both.message.contains("two names"), "{both}");
        for off in [json!(-1), json!(-0.01), json!(-1.0)] {
            sampling(json!({"adaptive_target": off})).unwrap_or_else(|e| panic!("{off}: {e}"));
        }
        let on = sampling(json!({"adaptive_target": 0.3})).unwrap_err();
        assert!(on.message.contains("adaptive-p"), "{on}");
    }
}

#[test]
fn rerank_fields_of_other_servers() {
    let base = json!({"query": "q", "documents": [{"text": "a"}, "b"]});
    let parse = |more: &Value| rerank::parse(&with(&base, more));
    for (more, ignored) in [
        (
            json!({"truncate": true, "truncation_direction": "right"}),
            vec!["truncate", "truncation_direction"],
        ),
        (json!({"truncate": false, "max_chunks_per_doc": null}), vec![]),
        (json!({"max_chunks_per_doc": 10}), vec!["max_chunks_per_doc"]),
        (json!({"truncate_prompt_tokens": -1, "rank_fields": ["text"]}), vec![]),
        (json!({"max_tokens_per_doc": 4096, "return_documents": "true", "top_k": 1}), vec![]),
    ] {
        let r = parse(&more).unwrap_or_else(|e| panic!("{more}: {e}"));
        assert_eq!(params(&r.warnings), ignored, "{more}");
    }
    let r = parse(&json!({"max_tokens_per_doc": 4096, "return_documents": "true", "top_k": 1})).unwrap();
    assert_eq!((r.document_tokens_max, r.return_documents, r.top_n), (Some(4096), true, Some(1)));
    assert!(!parse(&json!({"return_documents": "false"})).unwrap().return_documents);
    for (more, param) in [
        (json!({"truncate_prompt_tokens": 100}), "truncate_prompt_tokens"),
        (json!({"rank_fields": ["title"]}), "rank_fields"),
        (json!({"max_tokens_per_doc": 0}), "max_tokens_per_doc"),
        (json!({"return_documents": "yes"}), "return_documents"),
        (json!({"top_n": 1, "top_k": 2}), "top_k"),
    ] {
        assert_eq!(parse(&more).unwrap_err().param.as_deref(), Some(param), "{more}");
    }
}
