//! llama-server's own endpoints.

use crate::common::{CONTEXT, Fixture, chat, model, with};
use octet_engine::engine::Pooling;
use octet_engine::sampler::{Mirostat, MirostatVersion, SamplingDefaults, Stage, Xtc};
use octet_serve::{ModelSpec, Options};
use serde_json::{Value, json};
use std::sync::Arc;

fn completion(more: Value) -> Value {
    with(&json!({"prompt": "Once upon a time", "n_predict": 8, "temperature": 0, "ignore_eos": true}), more)
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_are_the_same_whole_and_streamed() {
    let f = Fixture::start().await;
    let whole = f.ok("/completion", &completion(json!({"return_tokens": true}))).await;
    assert_eq!(
        (&whole["stop"], &whole["stop_type"], &whole["tokens_predicted"]),
        (&json!(true), &json!("limit"), &json!(8))
    );
    assert_eq!(whole["tokens"].as_array().unwrap().len(), 8);
    assert_eq!(whole["prompt"], "Once upon a time");
    assert_eq!(whole["timings"]["predicted_n"], 8);
    assert_eq!(whole["generation_settings"]["n_predict"], 8);
    assert!(f.ok("/completions", &completion(json!({}))).await["tokens"].as_array().unwrap().is_empty());
    // OpenAI's clients that leave out /v1.
    let theirs = json!({"model": "tiny", "prompt": "Once", "max_tokens": 2});
    assert!(f.ok("/completions", &theirs).await["choices"].is_array());
    assert!(f.ok("/embeddings", &json!({"model": "tiny", "input": "a"})).await["data"].is_array());

    let events =
        f.events("/completion", &completion(json!({"stream": true, "timings_per_token": true}))).await;
    let (last, pieces) = events.split_last().unwrap();
    let text: String = pieces.iter().map(|e| e.1["content"].as_str().unwrap()).collect();
    assert_eq!(text, whole["content"].as_str().unwrap());
    let tokens: Vec<&Value> = pieces.iter().flat_map(|e| e.1["tokens"].as_array().unwrap()).collect();
    assert_eq!(tokens.len() + last.1["tokens"].as_array().unwrap().len(), 8);
    assert!(pieces.iter().all(|e| e.1["stop"] == false && e.1["timings"]["predicted_n"].as_u64() > Some(0)));
    assert_eq!((&last.1["stop"], &last.1["content"]), (&json!(true), &json!("")));
    assert_eq!(last.1["generation_settings"]["temperature"], 0.0);

    // -1 is as long as the context; 0 only reads the prompt.
    assert_eq!(f.ok("/completion", &completion(json!({"n_predict": 0}))).await["content"], "");
    let fields = json!({"response_fields": ["content", "timings/predicted_n", "no/such"]});
    let some = f.ok("/completion", &completion(fields)).await;
    assert_eq!(some, json!({"content": whole["content"], "timings/predicted_n": 8}));
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_may_be_texts_tokens_or_both() {
    let f = Fixture::start().await;
    let tokens = f.ok("/tokenize", &json!({"content": "Once upon a time"})).await["tokens"].clone();
    let text = f.ok("/completion", &completion(json!({}))).await;
    for prompt in [tokens.clone(), json!({"prompt_string": "Once upon a time"}), json!(["Once upon a time"])]
    {
        let same = f.ok("/completion", &completion(json!({"prompt": prompt}))).await;
        assert_eq!(same["content"], text["content"], "{prompt}");
    }
    let mixed = f.ok("/completion", &completion(json!({"prompt": [tokens[0], " and on"]}))).await;
    assert!(mixed["tokens_evaluated"].as_u64() > Some(1));
    let two = f.ok("/completion", &completion(json!({"prompt": ["Once upon a time", tokens]}))).await;
    assert_eq!((&two[0]["content"], &two[1]["content"]), (&text["content"], &text["content"]));
    assert_eq!((&two[1]["index"], &two[1]["tokens_predicted"]), (&json!(1), &json!(8)));
    for prompt in [json!([]), json!(3), json!([[]]), json!({"text": "x"}), json!([9_999_999])] {
        assert_eq!(f.post("/completion", &completion(json!({"prompt": prompt}))).await.0, 400, "{prompt}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_of_embeddings_may_be_texts_tokens_or_both() {
    let f = Fixture::start().await;
    let tokens = f.ok("/tokenize", &json!({"content": "Once upon a time"})).await["tokens"].clone();
    let ids: Vec<Value> = tokens.as_array().unwrap().clone();
    let parts =
        json!({"content": [{"type": "text", "text": "Once upon"}, {"type": "text", "text": " a time"}]});
    let inputs = json!(["Once upon a time", {"prompt_string": "Once upon a time"}, parts, tokens]);
    for path in ["/v1/embeddings", "/embeddings"] {
        let all = f.ok(path, &json!({"model": "tiny", "input": inputs})).await;
        let vectors: Vec<&Value> = all["data"].as_array().unwrap().iter().map(|d| &d["embedding"]).collect();
        assert_eq!(vectors.len(), 4);
        assert!(vectors.iter().all(|v| *v == vectors[0]), "the same text, the same vector");
        let mixed = json!([ids[0], " upon a", ids[ids.len() - 1]]);
        let mixed = f.ok(path, &json!({"model": "tiny", "input": mixed})).await;
        assert_eq!(mixed["data"].as_array().unwrap().len(), 1);
        let image = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]);
        for wrong in [json!([]), json!([[]]), json!({"content": "a"}), json!({"content": image})] {
            let (status, e) = f.post(path, &json!({"model": "tiny", "input": wrong})).await;
            assert_eq!((status, &e["error"]["type"]), (400, &json!("invalid_request_error")), "{wrong}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probabilities_are_reported_before_and_after_the_samplers() {
    let f = Fixture::start().await;
    let warm = json!({"n_probs": 3, "temperature": 1.5, "top_k": 2, "seed": 4});
    let before = f.ok("/completion", &completion(warm.clone())).await;
    let after = f.ok("/completion", &completion(with(&warm, json!({"post_sampling_probs": true})))).await;
    assert_eq!(before["content"], after["content"], "to look changes nothing");
    let all = before["completion_probabilities"].as_array().unwrap();
    assert_eq!(all.len(), 8);
    assert!(
        all.iter()
            .all(|t| t["top_logprobs"].as_array().unwrap().len() == 3 && t["logprob"].as_f64() < Some(0.0))
    );
    for token in after["completion_probabilities"].as_array().unwrap() {
        let top: Vec<f64> =
            token["top_probs"].as_array().unwrap().iter().map(|t| t["prob"].as_f64().unwrap()).collect();
        assert_eq!(top.len(), 2, "top_k leaves two");
        assert!((top.iter().sum::<f64>() - 1.0).abs() < 1e-5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn samplers_take_effect_in_every_dialect() {
    let f = Fixture::start().await;
    let greedy = f.ok("/completion", &completion(json!({"n_predict": 30}))).await;
    // A penalty that no repetition survives.
    let dry = json!({"n_predict": 30, "dry_multiplier": 100.0, "dry_allowed_length": 1, "dry_sequence_breakers": ["\u{1}"]});
    let dry = f.ok("/completion", &completion(with(&dry, json!({"return_tokens": true})))).await;
    let tokens: Vec<u64> = dry["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
    let pairs: Vec<_> = tokens.windows(2).collect();
    assert!(pairs.iter().enumerate().all(|(i, p)| !pairs[..i].contains(p)), "{tokens:?}");
    assert_eq!(dry["generation_settings"]["dry_multiplier"], 100.0);
    // Without "temperature" in its order, temperature 0 is not greedy, and top_k 1 is.
    let order = json!({"n_predict": 30, "samplers": ["top_k"], "top_k": 1});
    assert_eq!(f.ok("/completion", &completion(order)).await["content"], greedy["content"]);
    assert_eq!(
        f.ok("/completion", &completion(json!({"n_predict": 30, "samplers": "kt", "top_k": 9}))).await["content"],
        greedy["content"]
    );
    for (at, base) in [("/v1/chat/completions", chat("Hello")), ("/completion", completion(json!({})))] {
        for more in [
            json!({"mirostat": 2, "temperature": 1}),
            json!({"typical_p": 0.4, "xtc_probability": 0.5, "temperature": 1}),
        ] {
            let asked = with(&with(&base, more), json!({"seed": 7}));
            let (a, b) = (f.ok(at, &asked).await, f.ok(at, &asked).await);
            assert_eq!(
                (&a["content"], &a["choices"]),
                (&b["content"], &b["choices"]),
                "the same seed, the same text"
            );
        }
        for (field, value) in
            [("mirostat", json!(3)), ("samplers", json!(["best_guess"])), ("repeat_penalty", json!(0))]
        {
            let (status, e) = f.post(at, &with(&base, json!({field: value}))).await;
            assert_eq!((status, &e["error"]["param"]), (400, &json!(field)), "{e}");
        }
    }
    let ollama = json!({"model": "tiny", "prompt": "Hi", "stream": false, "options": {"mirostat": 1, "num_predict": 4}});
    f.ok("/api/generate", &ollama).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gbnf_grammars_constrain_the_answer() {
    let f = Fixture::start().await;
    let fixed = json!({"grammar": "root ::= \"yes\" | \"no\"\n", "n_predict": 20, "ignore_eos": false});
    let answer = f.ok("/completion", &completion(fixed)).await;
    assert!(["yes", "no"].contains(&answer["content"].as_str().unwrap()), "{answer}");
    let nested = "root ::= list\nlist ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= [0-9] | list\n";
    let asked =
        with(&chat("Hello"), json!({"grammar": nested, "max_tokens": 60, "temperature": 1, "seed": 3}));
    let answer = f.ok("/v1/chat/completions", &asked).await;
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.starts_with('[') && text.chars().all(|c| "[],0123456789".contains(c)), "{text}");
    let (status, e) = f.post("/completion", &completion(json!({"grammar": "root ::= other"}))).await;
    assert!(
        status == 400 && e["error"]["message"].as_str().unwrap().contains("'other' is not defined"),
        "{e}"
    );
    let both = json!({"grammar": "root ::= \"a\"", "json_schema": {"type": "string"}});
    assert_eq!(f.post("/completion", &completion(both)).await.0, 400);
}

/// As editors' plugins ask for. The grammar leaves one text, so that its lines are known.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_ends_at_the_line_that_the_limits_say() {
    let f = Fixture::start().await;
    let grammar = r#"root ::= "if x:\n    a()\n  b()\nreturn\nend""#;
    for (limits, text, stop) in [
        (json!({}), "if x:\n    a()\n  b()\nreturn\nend", "eos"),
        (json!({"n_indent": 0, "t_max_predict_ms": -1}), "if x:\n    a()\n  b()\nreturn\nend", "eos"),
        (json!({"n_indent": 1}), "if x:\n    a()\n  b()\n", "limit"),
        (json!({"n_indent": 3}), "if x:\n    a()\n  ", "limit"),
        (json!({"n_indent": 3, "stop": ["()\n  b"]}), "if x:\n    a", "word"),
        (json!({"n_indent": 3, "stop": ["b()"]}), "if x:\n    a()\n  ", "word"),
    ] {
        let asked = json!({"grammar": grammar, "n_predict": 60, "ignore_eos": false});
        let asked = completion(with(&asked, limits.clone()));
        let answer = f.ok("/completion", &asked).await;
        assert_eq!((&answer["content"], &answer["stop_type"]), (&json!(text), &json!(stop)), "{limits}");
        let events = f.events("/completion", &with(&asked, json!({"stream": true}))).await;
        let streamed: String = events.iter().filter_map(|e| e.1["content"].as_str()).collect();
        assert_eq!(streamed, text, "{limits}");
    }
    // The steps for 80 letters take longer than 1 ms.
    let grammar = r#"root ::= [ab]{80} "\n" [ab]{20}"#;
    let timed = json!({"t_max_predict_ms": 1, "n_predict": 120, "ignore_eos": false, "grammar": grammar});
    let answer = f.ok("/completion", &completion(timed)).await;
    let text = answer["content"].as_str().unwrap();
    assert_eq!((text.matches('\n').count(), &answer["stop_type"]), (1, &json!("limit")), "{text}");
    assert!(text.len() < 101, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_of_a_long_prompt_is_reported() {
    let f = Fixture::start().await;
    let prompt = "One two three. ".repeat(40);
    let asked = json!({"prompt": prompt, "stream": true, "return_progress": true, "cache_prompt": false});
    let events = f.events("/completion", &completion(asked)).await;
    let progress: Vec<&Value> =
        events.iter().map(|e| &e.1["prompt_progress"]).filter(|p| p.is_object()).collect();
    assert!(progress.len() > 2, "{events:?}");
    let done: Vec<u64> = progress.iter().map(|p| p["processed"].as_u64().unwrap()).collect();
    assert!(done.is_sorted() && done[0] == 0);
    assert_eq!(progress.last().unwrap()["processed"], progress.last().unwrap()["total"]);
    let asked = with(&chat(&prompt), json!({"stream": true, "return_progress": true}));
    let events = f.events("/chat/completions", &asked).await;
    assert!(events.iter().any(|e| e.1["prompt_progress"]["total"].as_u64() > Some(100)));
}

#[tokio::test(flavor = "multi_thread")]
async fn infill_uses_the_model_s_own_tokens() {
    let f = Fixture::start().await;
    let asked = json!({"input_prefix": "a", "prompt": "b", "input_suffix": "c", "n_predict": 4});
    let answer = f.ok("/infill", &asked).await;
    assert_eq!(answer["prompt"], "<|fim_prefix|>ab<|fim_suffix|>c<|fim_middle|>");
    // What a client writes stays text.
    let asked = json!({"input_prefix": "<|fim_suffix|>", "input_suffix": "c", "n_predict": 4});
    assert!(f.ok("/infill", &asked).await["tokens_evaluated"].as_u64() > Some(10));
    // The text nearest to the gap stays, in three to one.
    let long = json!({"input_prefix": "a".repeat(3000), "input_suffix": "b".repeat(3000), "n_predict": 4});
    let prompt = f.ok("/infill", &long).await["prompt"].as_str().unwrap().to_string();
    let count = |c| prompt.matches(c).count();
    assert!(count('a') > 2 * count('b') && count('b') > 100, "{prompt}");
    let asked = json!({"model": "tiny", "prompt": "a", "suffix": "b", "max_tokens": 2});
    assert_eq!(f.ok("/v1/completions", &asked).await["usage"]["prompt_tokens"], 5);
    assert_eq!(f.post("/infill", &json!({"input_prefix": "a"})).await.1["error"]["param"], "input_suffix");
}

#[tokio::test(flavor = "multi_thread")]
async fn props_reports_the_defaults_of_the_server() {
    let mut spec = model("tiny");
    let said = SamplingDefaults {
        temperature: Some(0.8),
        top_k: Some(7),
        seed: Some(5),
        ..SamplingDefaults::default()
    };
    spec.options.engine.sampling = said;
    spec.predict = Some(3);
    spec.pooling = Some(Pooling::Last);
    let f = Fixture::with(Options::new(vec![spec])).await;
    let plain = json!({"prompt": "Once", "ignore_eos": true});
    let answer = f.ok("/completion", &plain).await;
    assert_eq!(
        (&answer["tokens_predicted"], &answer["generation_settings"]["top_k"]),
        (&json!(3), &json!(7))
    );
    let props = f.get("/props").await.1;
    let params = &props["default_generation_settings"]["params"];
    assert_eq!(
        (&params["temperature"], &params["top_k"], &params["seed"]),
        (&json!(0.8), &json!(7), &json!(5)),
        "0.8, not an f32 widened to an f64"
    );
    assert_eq!(f.get("/slots").await.1.as_array().unwrap().len(), 4);
    for (path, status) in [
        ("/props?model=tiny&autoload=false", 200),
        ("/slots?fail_on_no_slot=1", 200),
        ("/slots?fail_on_no_slots=1", 400),
    ] {
        assert_eq!(f.get(path).await.0, status, "{path}");
    }
    // The last token's state, whatever came before has gone into it.
    let vectors =
        f.ok("/embeddings", &json!({"content": ["one two", "one two"], "embd_normalize": -1})).await;
    assert_eq!(vectors[0]["embedding"], vectors[1]["embedding"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_turns_samplers_of_the_server_off() {
    let mut spec = model("tiny");
    spec.options.engine.sampling = SamplingDefaults {
        typical_p: Some(0.5),
        xtc: Some(Xtc { probability: 0.5, threshold: 0.2 }),
        mirostat: Some(Mirostat { version: MirostatVersion::V2, tau: 3.0, eta: 0.2 }),
        order: Some(vec![Stage::TopK, Stage::Temperature]),
        ..SamplingDefaults::default()
    };
    let f = Fixture::with(Options::new(vec![spec])).await;
    let of = async |more: Value| f.ok("/completion", &completion(more)).await["generation_settings"].clone();
    let plain = of(json!({})).await;
    for (name, want) in [
        ("typical_p", json!(0.5)),
        ("xtc_threshold", json!(0.2)),
        ("mirostat", json!(2)),
        ("mirostat_tau", json!(3.0)),
        ("samplers", json!(["top_k", "temperature"])),
    ] {
        assert_eq!(plain[name], want, "{name}");
    }
    assert_eq!(of(json!({"mirostat_tau": 4})).await["mirostat_tau"], 4.0);
    let off = of(json!({"mirostat": 0, "xtc_probability": 0, "typical_p": 1})).await;
    assert_eq!(
        (&off["mirostat"], &off["xtc_probability"], &off["typical_p"]),
        (&json!(0), &json!(0.0), &json!(1.0)),
        "0 is off, not the server's default"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_models_has_their_other_names() {
    let spec = ModelSpec { aliases: vec!["second".into(), "claude-*".into()], ..model("tiny") };
    let f = Fixture::with(Options::new(vec![spec])).await;
    let listed = f.get("/v1/models").await.1;
    assert_eq!(listed["data"][0]["aliases"], json!(["second"]), "a pattern is no name");
    assert_eq!(f.get("/v1/models/second").await.1["aliases"], json!(["second"]));
    // As in llama-server, the model's own context is told besides the one that is served.
    assert_eq!(
        (&listed["data"][0]["max_model_len"], &listed["data"][0]["meta"]["n_ctx_train"]),
        (&json!(CONTEXT), &json!(4096))
    );
}

/// As in llama-server's `test_responses_stream_with_llama_telemetry`.
#[tokio::test(flavor = "multi_thread")]
async fn streamed_responses_have_progress_and_times() {
    let f = Fixture::start().await;
    let asked = json!({
        "input": "This is a test".repeat(10), "max_output_tokens": 8, "stream": true, "timings_per_token": true,
        "return_progress": true
    });
    let events: Vec<Value> = f.events("/v1/responses", &asked).await.into_iter().map(|e| e.1).collect();
    let progress: Vec<&Value> = events.iter().filter(|e| e.get("prompt_progress").is_some()).collect();
    assert!(!progress.is_empty());
    for event in progress {
        let p = &event["prompt_progress"];
        assert_eq!(event["type"], "response.in_progress");
        assert!(p["total"].as_u64() > Some(0) && p["processed"].as_u64() >= p["cache"].as_u64(), "{p}");
    }
    let timed = |ends: &str| {
        let mut all = events.iter().filter(|e| e["type"].as_str().is_some_and(|kind| kind.ends_with(ends)));
        all.next().is_some_and(|e| e["timings"]["predicted_per_second"].is_f64())
    };
    // The tiny model may reason first.
    assert!(timed("_text.delta"), "{events:?}");
    assert!(timed("response.completed") || timed("response.incomplete"), "{events:?}");
    let plain =
        f.events("/v1/responses", &json!({"input": "Hi", "max_output_tokens": 2, "stream": true})).await;
    assert!(plain.iter().all(|(_, e)| e.get("timings").is_none() && e.get("prompt_progress").is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_ranked_in_three_shapes() {
    let f = Fixture::start().await;
    let texts = ["A bear.", "A car.", "A boat."];
    let asked = json!({"query": "What is a panda?", "documents": texts, "return_documents": true});
    let (status, got) = f.post("/v1/rerank", &asked).await;
    if status == 400 {
        // The tiny vocabulary writes "yes" in several tokens, and the server says so.
        let message = got["error"]["message"].as_str().unwrap();
        assert!(message.contains("not one token"), "{message}");
    } else {
        assert_eq!(got["results"].as_array().unwrap().len(), 3);
    }
    for (path, wrong) in [
        ("/rerank", json!({"query": "a", "documents": []})),
        ("/v1/rerank", json!({"documents": ["a"]})),
        ("/v2/rerank", json!({"query": "a", "documents": [1]})),
    ] {
        assert_eq!(f.post(path, &wrong).await.0, 400, "{path} {wrong}");
    }
}

/// The score is the probability of "yes" where only "yes" and "no" are allowed: here from the log-probabilities of the same prompt.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_model_ranks_by_the_odds_of_yes() {
    let Some(path) = octet_testkit::model("smollm2") else { return };
    let open = move || octet_weights::Model::open(&path).map_err(octet_serve::BoxError::from);
    let mut spec = model("tiny");
    spec.chat_template = None;
    let f = Fixture::with(Options::new(vec![ModelSpec { open: Arc::new(open), ..spec }])).await;
    let (query, documents) = ("What is a panda?", ["A car.", "A bear of China."]);
    let ranking = f.ok("/rerank", &json!({"query": query, "documents": documents})).await;
    assert_eq!(ranking["model"], "tiny");
    let results = ranking["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    assert!(results[0]["relevance_score"].as_f64() >= results[1]["relevance_score"].as_f64());
    let system = "Decide whether the document meets the query under the given instruction. Answer with \"yes\" or \"no\" only.";
    for result in results {
        let document = documents[result["index"].as_u64().unwrap() as usize];
        let instruct = "Given a search query, find passages that answer it";
        let user = format!("<Instruct>: {instruct}\n<Query>: {query}\n<Document>: {document}");
        let messages =
            [("system", system), ("user", &*user)].map(|(role, text)| json!({"role": role, "content": text}));
        let prompt = f.ok("/apply-template", &json!({"messages": messages})).await["prompt"].clone();
        let logprob = async |word: &str| {
            let asked = json!({
                "prompt": prompt, "max_tokens": 1, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "logprobs": 1,
                "structured_outputs": {"choice": [word]},
            });
            let answer = f.ok("/v1/completions", &asked).await;
            assert_eq!(answer["choices"][0]["text"], word);
            answer["choices"][0]["logprobs"]["token_logprobs"][0].as_f64().unwrap()
        };
        let expected = 1.0 / (1.0 + (logprob("no").await - logprob("yes").await).exp());
        let score = result["relevance_score"].as_f64().unwrap();
        assert!((score - expected).abs() < 1e-4, "{document}: {score} and {expected}");
    }
    // text-embeddings-inference's form, with log-odds.
    let bare = f.ok("/rerank", &json!({"query": query, "texts": documents, "raw_scores": true})).await;
    let p = results[0]["relevance_score"].as_f64().unwrap();
    assert!((bare[0]["score"].as_f64().unwrap() - (p / (1.0 - p)).ln()).abs() < 1e-3, "{bare}");
    assert_eq!(bare[0]["index"], results[0]["index"]);
    let few = json!({"query": query, "documents": documents, "top_n": 1, "return_documents": true, "model": "tiny"});
    let few = f.ok("/v2/rerank", &few).await;
    assert_eq!(few["results"].as_array().unwrap().len(), 1);
    let best = documents[results[0]["index"].as_u64().unwrap() as usize];
    assert_eq!(few["results"][0]["document"]["text"], best);
    // Only the beginning of a document is ranked; it is returned as a whole.
    let score = async |document: &str, most: Option<u32>| {
        let asked = json!({"query": query, "documents": [document], "return_documents": true, "max_tokens_per_doc": most});
        let one = f.ok("/rerank", &asked).await["results"][0].clone();
        assert_eq!(one["document"]["text"], document);
        one["relevance_score"].as_f64().unwrap()
    };
    let beginning = score("A bear", None).await;
    assert_eq!(score("A bear of China.", Some(2)).await, beginning);
    assert_eq!(score("A bear", Some(4096)).await, beginning);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_message_goes_on_whatever_ends_messages() {
    let mut spec = model("tiny");
    // The end of a turn here is no end token of the vocabulary; only the prompt begins with one.
    let template = "<|endoftext|>{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}\
                    {% if add_generation_prompt %}[assistant]{% endif %}";
    spec.chat_template = Some(template.into());
    let f = Fixture::with(Options::new(vec![spec])).await;
    let asked = json!({
        "messages": [
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello<|endoftext|>"},
            {"role": "user", "content": "Go on"}, {"role": "assistant", "content": "Once upon "},
        ],
        "continue_final_message": true, "add_generation_prompt": false,
    });
    let prompt = f.ok("/apply-template", &asked).await["prompt"].clone();
    assert_eq!(
        prompt,
        "<|endoftext|>[user]Hi[end][assistant]Hello<|endoftext|>[end][user]Go on[end][assistant]Once upon"
    );
    let body = with(&asked, json!({"model": "tiny", "max_tokens": 2}));
    f.ok("/v1/chat/completions", &body).await;
    // A text that is part of the end.
    let mut short = asked.clone();
    short["messages"][3]["content"] = "en".into();
    let prompt = f.ok("/apply-template", &short).await["prompt"].clone();
    assert!(prompt.as_str().unwrap().ends_with("[user]Go on[end][assistant]en"), "{prompt}");
}

/// instructor asks for a call and a format at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_required_call_goes_before_a_format() {
    let f = Fixture::start().await;
    let schema = json!({"type": "object", "properties": {"n": {"enum": [1]}}, "required": ["n"], "additionalProperties": false});
    let asked = json!({
        "model": "tiny", "input": "Hi", "max_output_tokens": 200, "tool_choice": {"type": "function", "name": "P"},
        "text": {"format": {"type": "json_schema", "name": "P", "strict": true, "schema": schema}},
        "tools": [{"type": "function", "name": "P", "parameters": schema}], "reasoning": {"effort": "none"},
    });
    let answer = f.send("/v1/responses", &asked).await;
    assert_eq!(answer.status(), 200);
    let warning = answer.headers()["x-octet-warning"].to_str().unwrap().to_string();
    assert!(warning.contains("'text.format' has no effect"), "{warning}");
    let body: Value = answer.json().await.unwrap();
    let call = body["output"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["type"] == "function_call")
        .expect("a call");
    assert_eq!(call["name"], "P");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"n": 1}));
}

/// What Claude Code sends after each result, to templates in the manner of Mistral's.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_wants_answers_to_results_gets_what_the_user_says_in_them() {
    let mut spec = model("tiny");
    let template = "{% set ns = namespace(user=true) %}{% for m in messages %}\
        {% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}\
        {% if (m.role == 'user') != ns.user %}{{ raise_exception('roles must alternate') }}{% endif %}{% set ns.user = not ns.user %}{% endif %}\
        {% if m.tool_calls %}[TOOL_CALLS]{% for c in m.tool_calls %}{% if c.id|length != 9 %}{{ raise_exception('nine characters') }}{% endif %}\
        {{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}\
        {% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}";
    spec.chat_template = Some(template.into());
    let f = Fixture::with(Options::new(vec![spec])).await;
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let asked = json!({"messages": [
        {"role": "user", "content": "A"}, {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "B"}, {"role": "user", "content": "C"},
    ]});
    let prompt = f.ok("/apply-template", &asked).await["prompt"].clone();
    assert_eq!(prompt, "[user]A[TOOL_CALLS]f[ARGS]{}[tool]B\n\n<user>\nC\n</user>");
}

/// In the manner of Qwen3.5's template, which refuses a conversation in which no user speaks.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_wants_a_user_gets_one_in_every_dialect() {
    let mut spec = model("tiny");
    let template = "{% set ns = namespace(asked=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.asked = true %}{% endif %}\
        {% if m.role == 'system' and not loop.first %}{{ raise_exception('not at the beginning') }}{% endif %}{% endfor %}\
        {% if not ns.asked %}{{ raise_exception('No user query found in messages.') }}{% endif %}\
        {% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    spec.chat_template = Some(template.into());
    let f = Fixture::with(Options::new(vec![spec])).await;
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let system = json!({"role": "system", "content": "A"});
    let answer = json!({"role": "assistant", "content": "B"});
    let called = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let result = json!({"role": "tool", "tool_call_id": "1", "content": "C"});
    let user = json!({"role": "user", "content": "D"});
    for (messages, prompt) in [
        (json!([system]), "[system]A[user]"),
        (json!([{"role": "developer", "content": "A"}]), "[system]A[user]"),
        (json!([system, answer]), "[system]A[user][assistant]B"),
        (json!([system, answer, user]), "[system]A[user][assistant]B[user]D"),
        (
            json!([system, called, result]),
            "[system]A[user][assistant]\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\
             [user]<tool_response>\nC\n</tool_response>",
        ),
        (json!([system, user]), "[system]A[user]D"),
    ] {
        let asked = json!({"messages": messages, "add_generation_prompt": true});
        assert_eq!(f.ok("/apply-template", &asked).await["prompt"], prompt, "{messages}");
    }
    let contents = json!([{"role": "model", "parts": [{"text": "B"}]}]);
    for (path, body) in [
        ("/v1/responses", json!({"instructions": "A", "input": [], "max_output_tokens": 1})),
        (
            "/v1beta/models/tiny:generateContent",
            json!({"contents": contents, "generationConfig": {"maxOutputTokens": 1}}),
        ),
        (
            "/v1/messages",
            json!({"system": "A", "messages": [{"role": "assistant", "content": "B"}], "max_tokens": 1}),
        ),
        (
            "/api/chat",
            json!({"model": "tiny", "messages": [system], "stream": false, "options": {"num_predict": 1}}),
        ),
    ] {
        f.ok(path, &body).await;
    }
}
