//! What keeps a server up: limits, keys, cancellation, metrics, and a good end.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{CONTEXT, Fixture, PATIENCE, chat, endless, model, read, roomy, with};
use octet_serve::{Keys, ModelSpec, Options, Server, Stage};
use serde_json::{Value, json};
use tokio::sync::watch;

const CHAT: &str = "/v1/chat/completions";

/// A request that takes a while.
fn long() -> Value {
    with(&chat("Hello"), json!({"max_tokens": 900, "ignore_eos": true, "stream": true}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnected_client_frees_its_place() {
    let f = Fixture::with(Options::new(vec![roomy()])).await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut answer = f.send(CHAT, &endless()).await;
        assert!(answer.chunk().await.unwrap().is_some());
        streams.push(answer);
    }
    let stats = || f.app.models().loaded(0).expect("it is loaded").handle.stats();
    f.until("all four run", || stats().running == 4).await;
    drop(streams);
    f.until("nobody runs", || stats().running == 0).await;
    assert_eq!(stats().cancelled, 4);
    // a client that waits for a whole answer
    let whole = f.request(CHAT, &with(&endless(), json!({"stream": false}))).timeout(Duration::from_secs(1));
    assert!(whole.send().await.is_err_and(|e| e.is_timeout()));
    f.until("its answer is given up, too", || stats().running == 0 && f.app.models().busy() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_own_timeout_ends_its_request() {
    let f = Fixture::with(Options::new(vec![roomy()])).await;
    let more = json!({"timeout": 1e-9});
    let text = json!({"model": "tiny", "prompt": "Hello", "max_tokens": 900});
    let embedding = json!({"model": "tiny", "input": "Hello"});
    let messages = with(&chat("Hello"), json!({"max_tokens": 900}));
    for (path, body) in [
        (CHAT, &long()),
        (CHAT, &with(&long(), json!({"stream": false}))),
        ("/v1/completions", &text),
        ("/v1/messages", &messages),
        ("/api/chat", &chat("Hello")),
        ("/completion", &json!({"prompt": "Hello"})),
        ("/v1/responses", &json!({"model": "tiny", "input": "Hello"})),
        ("/v1/embeddings", &embedding),
        ("/rerank", &json!({"query": "a", "documents": ["b"]})),
    ] {
        let (status, answer) = f.post(path, &with(body, more.clone())).await;
        assert_eq!(status, 408, "{path}: {answer}");
        assert!(answer.to_string().contains("the request's own 'timeout'"), "{path}: {answer}");
    }
    f.until("nothing runs", || f.app.models().busy() == 0).await;
    // Zero is none; a stream that has begun is not cut.
    for timeout in [json!(0), json!(60.5), Value::Null] {
        let (status, answer) = f.post("/v1/embeddings", &with(&embedding, json!({"timeout": timeout}))).await;
        assert_eq!(status, 200, "{answer}");
    }
    let (status, answer) = f.post(CHAT, &with(&chat("Hello"), json!({"timeout": "soon"}))).await;
    assert_eq!((status, answer["error"]["param"].as_str()), (400, Some("timeout")), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_answers_429_with_retry_after() {
    let mut spec = roomy();
    spec.options.engine.max_seqs = 1;
    spec.options.queue = 1;
    let f = Fixture::with(Options::new(vec![spec])).await;
    let mut running = f.send(CHAT, &endless()).await;
    running.chunk().await.unwrap();
    let stats = || f.app.models().loaded(0).expect("it is loaded").handle.stats();
    f.until("one runs", || stats().running == 1 && stats().waiting == 0).await;
    let waiting = f.send(CHAT, &endless()).await;
    assert_eq!(waiting.status(), 200);
    f.until("one waits", || stats().waiting == 1).await;
    let refused = f.send(CHAT, &endless()).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(read(refused).await.1["error"]["type"], "rate_limit_error");
    let (status, body) = f
        .post(
            "/v1/messages",
            &json!({"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}),
        )
        .await;
    assert_eq!((status, &body["error"]["type"]), (429, &json!("rate_limit_error")));
    drop((running, waiting));
    // The leases are given back before the engine has looked.
    f.until("there is room", || stats().running == 0 && stats().waiting == 0).await;
    f.ok(CHAT, &chat("Hello")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_required_if_there_is_one() {
    let options = Options { keys: Keys::new(["secret".into()]), ..Options::new(vec![model("tiny")]) };
    let f = Fixture::with(options).await;
    let (status, body) = f.post(CHAT, &chat("x")).await;
    assert!(status == 401 && body["error"]["code"] == "invalid_api_key", "{body}");
    assert_eq!(f.post("/v1/messages", &json!({})).await.1["error"]["type"], "authentication_error");
    let ask =
        |name: &'static str, value: &'static str| f.request(CHAT, &chat("x")).header(name, value).send();
    assert_eq!(ask("authorization", "Bearer wrong").await.unwrap().status(), 401);
    assert_eq!(ask("authorization", "Bearer secret").await.unwrap().status(), 200);
    assert_eq!(ask("x-api-key", "secret").await.unwrap().status(), 200);
    assert_eq!(
        (f.get("/health").await.0, f.get("/ready").await.0, f.get("/metrics").await.0),
        (200, 200, 401)
    );
    assert!(f.text("/").await.contains("<html"));
}

#[tokio::test(flavor = "multi_thread")]
async fn web_pages_may_call_a_server_with_a_key() {
    let preflight = async |f: &Fixture| {
        let r = f
            .client
            .request(reqwest::Method::OPTIONS, f.url(CHAT))
            .header("origin", "https://page.example.com");
        let r = r.header("access-control-request-method", "POST");
        let r =
            r.header("access-control-request-headers", "authorization, content-type").send().await.unwrap();
        let told = |name: &str| r.headers().get(name).map(|v| v.to_str().unwrap().to_string());
        (told("access-control-allow-origin"), told("access-control-allow-headers"))
    };
    let keys = Keys::new(["secret".into()]);
    let keyed = Fixture::with(Options { keys: keys.clone(), ..Options::new(vec![model("tiny")]) }).await;
    let (origin, headers) = preflight(&keyed).await;
    assert_eq!(origin.as_deref(), Some("*"));
    assert!(headers.is_some_and(|h| h.contains("authorization")));
    let page = |f: &Fixture| f.request(CHAT, &chat("x")).header("origin", "https://page.example.com");
    let answer = page(&keyed).bearer_auth("secret").send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["access-control-allow-origin"]),
        (200, &"*".parse().unwrap())
    );
    assert_eq!(page(&keyed).send().await.unwrap().status(), 401);
    // Pages that are named are the only ones; without a key there are none.
    let cors_origins = vec!["https://chat.example.com".into()];
    let named = Fixture::with(Options { keys, cors_origins, ..Options::new(vec![model("tiny")]) }).await;
    assert_eq!(preflight(&named).await.0, None);
    assert_eq!(preflight(&Fixture::start().await).await.0, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_origins_are_limited() {
    let options = Options {
        body_bytes_max: 2000,
        cors_origins: vec!["https://chat.example.com".into()],
        ..Options::new(vec![model("tiny")])
    };
    let f = Fixture::with(options).await;
    let (status, body) = f.post(CHAT, &chat(&"x".repeat(3000))).await;
    assert!(status == 413 && body["error"]["message"].as_str().unwrap().contains("2000"), "{body}");
    let preflight = |origin: &'static str| {
        let r = f.client.request(reqwest::Method::OPTIONS, f.url(CHAT)).header("origin", origin);
        r.header("access-control-request-method", "POST")
            .header("access-control-request-headers", "content-type")
            .send()
    };
    let ours = preflight("https://chat.example.com").await.unwrap();
    assert_eq!(ours.headers()["access-control-allow-origin"], "https://chat.example.com");
    let page = |origin: &'static str| f.request(CHAT, &chat("x")).header("origin", origin).send();
    assert_eq!(page("https://evil.example.com").await.unwrap().status(), 403);
    assert_eq!(page("https://chat.example.com").await.unwrap().status(), 200);
    assert!(
        preflight("https://evil.example.com")
            .await
            .unwrap()
            .headers()
            .get("access-control-allow-origin")
            .is_none()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_tokens_are_measured() {
    let f = Fixture::start().await;
    for _ in 0..2 {
        f.ok(CHAT, &chat(&"word ".repeat(40))).await;
    }
    // Figures are shown after the step that the answer came with.
    f.until("the engine rests", || f.app.models().loaded(0).is_some_and(|l| l.handle.stats().running == 0))
        .await;
    let text = f.text("/metrics").await;
    let value = |name: &str| -> f64 {
        let line =
            text.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{name} is not in\n{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("vllm:generation_tokens_total{model_name=\"tiny\"}"), 24.0);
    assert_eq!(value("vllm:time_to_first_token_seconds_count{model_name=\"tiny\"}"), 2.0);
    assert_eq!(value("vllm:inter_token_latency_seconds_count"), 22.0);
    assert_eq!(value("vllm:num_requests_running"), 0.0);
    assert!(value("vllm:prefix_cache_hits_total") > 100.0);
    assert_eq!(value("vllm:prefix_cache_queries_total"), value("vllm:prompt_tokens_total"));
    assert!((0.0..=1.0).contains(&value("vllm:kv_cache_usage_perc")));
    assert_eq!(value("vllm:request_success_total{model_name=\"tiny\",finished_reason=\"length\"}"), 2.0);
    assert!(text.contains("vllm:cache_config_info{") && text.contains("block_size=\"64\""));
    assert!(value("octet:snapshots{") > 0.0);
    assert!(value("octet:step_bytes{") > 0.0 && value("process_resident_memory_bytes ") > 1e6);
    // Measured when the engine has rested a while after somebody asked.
    f.until("the bandwidth is known", || {
        f.app.models().loaded(0).is_some_and(|l| l.handle.bandwidth().is_some())
    })
    .await;
    assert!(text.ends_with("# EOF\n"));
}

/// `[tokens, layers, experts_per_token]` and the texts of the tokens.
fn routed(routed: &Value) -> (Vec<u16>, Vec<String>) {
    use base64::Engine as _;
    let bytes = |name: &str| {
        let text = routed[name].as_str().expect("base64");
        base64::engine::general_purpose::STANDARD.decode(text).expect("base64")
    };
    assert_eq!((&routed["layers"], &routed["experts_per_token"]), (&json!(4), &json!(3)));
    let tokens: Vec<String> = serde_json::from_value(routed["tokens"].clone()).expect("texts");
    let experts: Vec<u16> = bytes("experts").chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
    assert_eq!((experts.len(), bytes("shared_gate").len()), (tokens.len() * 4 * 3, tokens.len() * 4));
    assert!(experts.iter().all(|e| *e < 8));
    (experts, tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_says_which_experts_chose_its_tokens() {
    let f = Fixture::start().await;
    let asked = |more: Value| with(&with(&chat("Hello"), json!({"temperature": 0, "n": 2})), more);
    let plain = f.ok(CHAT, &asked(json!({}))).await;
    assert!(plain["choices"][0].get("routed_experts").is_none());
    let whole = f.ok(CHAT, &asked(json!({"return_routed_experts": true}))).await;
    let (experts, tokens) = routed(&whole["choices"][0]["routed_experts"]);
    assert_eq!(tokens.len() as u64 * 2, whole["usage"]["completion_tokens"].as_u64().unwrap());
    assert_eq!(routed(&whole["choices"][1]["routed_experts"]).0, experts, "the same answer");
    // A stream says the same, piece by piece.
    let mut streamed = (Vec::new(), Vec::new());
    for (_, chunk) in f.events(CHAT, &asked(json!({"return_routed_experts": true, "stream": true}))).await {
        for choice in chunk["choices"].as_array().into_iter().flatten().filter(|c| c["index"] == 0) {
            if choice.get("routed_experts").is_some() {
                let (experts, tokens) = routed(&choice["routed_experts"]);
                streamed.0.extend(experts);
                streamed.1.extend(tokens);
            }
        }
    }
    assert_eq!(streamed, (experts, tokens));
    let body = json!({"prompt": "Hello", "max_tokens": 5, "temperature": 0, "return_routed_experts": true});
    let completed = f.ok("/v1/completions", &body).await;
    assert_eq!(routed(&completed["choices"][0]["routed_experts"]).1.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn experts_are_counted() {
    let f = Fixture::start().await;
    for text in ["word ".repeat(40), "other ".repeat(30)] {
        f.ok(CHAT, &chat(&text)).await;
    }
    let stats = || f.app.models().loaded(0).expect("it is loaded").handle.stats();
    f.until("the engine rests", || stats().running == 0).await;
    let (status, usage) = f.get("/experts?model=tiny").await;
    assert_eq!((status, &usage["model"], &usage["is_sleeping"]), (200, &json!("tiny"), &json!(false)));
    assert_eq!((&usage["experts"], &usage["experts_per_token"]), (&json!(8), &json!(3)));
    let layers = usage["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 4);
    // What is generated is computed when it is fed back: all but the last of each answer. So are guesses that were wrong.
    let guesses = stats().speculation;
    let wrong = guesses.drafted - guesses.accepted;
    let computed = stats().computed_tokens + stats().generated_tokens - 2 + wrong;
    for l in layers {
        let counts: Vec<u64> = l["counts"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        assert_eq!((l["tokens"].as_u64(), counts.iter().sum::<u64>()), (Some(computed), 3 * computed));
        let most = *counts.iter().max().unwrap() as f64 / (3 * computed) as f64;
        assert_eq!(l["most_used"][0], json!({"experts": 1, "share": most}));
        let metrics = f.text("/metrics").await;
        let labels = format!("{{model_name=\"tiny\",layer=\"{}\",most_used=\"1\"}}", l["layer"]);
        let line = metrics.lines().find(|m| m.starts_with(&format!("octet:expert_usage_share{labels}")));
        assert_eq!(line.and_then(|l| l.rsplit(' ').next()?.parse().ok()), Some(most), "{metrics}");
        let effective = format!("octet:experts_effective{{model_name=\"tiny\",layer=\"{}\"}}", l["layer"]);
        assert!(metrics.contains(&effective), "{metrics}");
    }
    assert_eq!(usage["coverage"].as_array().unwrap().len(), 6);
    assert_eq!(f.get("/experts?model=no").await.0, 404);
    for path in ["/experts?modle=tiny", "/props?modle=tiny", "/v1/responses/resp_x?modle=true"] {
        let (status, body) = f.get(path).await;
        assert!(
            status == 400 && body["error"]["message"].as_str().unwrap().contains("modle"),
            "{path}: {body}"
        );
    }
}

/// The same numbers in `/metrics`, in the history that the page draws, and in the engine.
#[tokio::test(flavor = "multi_thread")]
async fn experts_on_disk_are_counted() {
    if octet_testkit::models_on_vulkan().is_some() {
        return; // there, all are in memory
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let made = octet_synth::tiny("qwen35moe", octet_synth::Mix::Q4KM).unwrap();
    octet_synth::write(&made, &path, false, &mut |_, _| {}).unwrap();
    let mut spec = model("tiny");
    spec.options.engine.cpu.expert_slots = Some(2);
    spec.options.engine.speculation = octet_engine::engine::speculation::Options::off();
    let open = move || octet_weights::Model::open(&path).map_err(octet_serve::BoxError::from);
    let spec = ModelSpec { options: spec.options, ..ModelSpec::new("tiny", Arc::new(open)) };
    let spec = ModelSpec { chat_template: Some(crate::common::TEMPLATE.into()), ..spec };
    let f = Fixture::with(Options::new(vec![spec])).await;
    f.ok(CHAT, &with(&chat("word"), json!({"max_tokens": 20, "ignore_eos": true}))).await;
    f.until("the engine rests", || f.app.models().loaded(0).is_some_and(|l| l.handle.stats().running == 0))
        .await;
    let stats = f.app.models().loaded(0).unwrap().handle.stats().store.expect("experts are read");
    assert!(
        stats.slots == 2 && stats.hits > 0 && stats.misses > 0 && stats.bytes > 0 && stats.read_ns > 0,
        "{stats:?}"
    );
    let metrics = f.text("/metrics").await;
    let of = |name: &str| -> f64 {
        let line = metrics.lines().find(|l| l.starts_with(&format!("{name}{{model_name=\"tiny\"}} ")));
        line.and_then(|l| l.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{name} in {metrics}"))
    };
    for (name, n) in [
        ("octet:expert_slots", stats.slots as u64),
        ("octet:expert_hits_total", stats.hits),
        ("octet:expert_misses_total", stats.misses),
        ("octet:expert_guesses_total", stats.guesses),
        ("octet:expert_guesses_right_total", stats.guessed),
        ("octet:expert_reads_total", stats.reads),
        ("octet:expert_read_bytes_total", stats.bytes),
    ] {
        assert_eq!(of(name), n as f64, "{name}");
    }
    assert_eq!(of("octet:expert_read_seconds_total"), stats.read_ns as f64 / 1e9);
    assert_eq!(of("octet:expert_stall_seconds_total"), stats.stall_ns as f64 / 1e9);
    let sample = f.app.inference.metrics.sample(f.app.models(), 0);
    f.app.history.push(0, std::time::Instant::now(), sample);
    let (_, kept) = f.get("/metrics/history?model=tiny").await;
    for name in [
        "hits_total",
        "guesses_right_total",
        "misses_total",
        "reads_total",
        "read_bytes_total",
        "read_seconds_total",
    ] {
        let name = format!("octet:expert_{name}");
        assert_eq!(
            kept["series"][&name].as_array().unwrap().last().unwrap().as_f64(),
            Some(of(&name)),
            "{name}"
        );
    }
}

/// By the same names and with the same values as `/metrics`.
#[tokio::test(flavor = "multi_thread")]
async fn an_hour_of_metrics_is_kept() {
    let f = Fixture::start().await;
    f.ok(CHAT, &chat("word")).await;
    f.until("the engine rests", || f.app.models().loaded(0).is_some_and(|l| l.handle.stats().running == 0))
        .await;
    let sample = f.app.inference.metrics.sample(f.app.models(), 0);
    f.app.history.push(0, std::time::Instant::now(), sample);
    let (status, kept) = f.get("/metrics/history?model=tiny").await;
    assert_eq!((status, &kept["model"], &kept["interval_s"]), (200, &json!("tiny"), &json!(10)));
    let ages = kept["ages_s"].as_array().unwrap().len();
    let metrics = f.text("/metrics").await;
    for (name, values) in kept["series"].as_object().unwrap() {
        let values = values.as_array().unwrap();
        assert_eq!(values.len(), ages, "{name}");
        let line = metrics
            .lines()
            .find(|l| l.strip_prefix(name.as_str()).is_some_and(|l| l.starts_with(['{', ' '])));
        // All experts of this model are in memory.
        if name.starts_with("octet:expert_") {
            assert!(
                line.is_none() && values.iter().all(|v| *v == json!(0.0)),
                "{name}: {line:?}, {values:?}"
            );
            continue;
        }
        let now: f64 = line.and_then(|l| l.rsplit(' ').next()?.parse().ok()).expect(name);
        // What a process holds changes, and so does what the memory gives, which is measured when the model rests.
        if !["process_resident_memory_bytes", "octet:memory_bandwidth_bytes"].contains(&name.as_str()) {
            assert_eq!(values.last().and_then(|v| v.as_f64()), Some(now), "{name}");
        }
    }
    assert!(
        kept["series"]["vllm:generation_tokens_total"].as_array().unwrap().last().unwrap().as_f64()
            > Some(0.0)
    );
    assert_eq!(f.get("/metrics/history?model=no").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn system_messages_are_placed_where_the_template_accepts_them() {
    // The second refuses later ones, as Qwen3.5's does; the third has none, and wants turns to alternate, as Gemma's does.
    let anywhere = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    let first = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('in front') }}{% endif %}\
                 [{{ m.role }}]{{ m.content }}{% endfor %}";
    let nowhere = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no') }}{% endif %}\
                   [{{ m.role }}]{{ m.content }}{% endfor %}";
    let list = ["system", "user", "assistant", "system", "user"];
    let list: Vec<Value> =
        list.iter().map(|role| json!({"role": role, "content": role.to_uppercase()})).collect();
    for (template, expected) in [
        (anywhere, "[system]SYSTEM[user]USER[assistant]ASSISTANT[system]SYSTEM[user]USER"),
        (first, "[system]SYSTEM[user]USER[assistant]ASSISTANT[user]<system>\nSYSTEM\n</system>[user]USER"),
        (nowhere, "[user]SYSTEM\n\nUSER[assistant]ASSISTANT[user]<system>\nSYSTEM\n</system>\n\nUSER"),
    ] {
        let spec = ModelSpec { chat_template: Some(template.into()), ..model("tiny") };
        let f = Fixture::with(Options::new(vec![spec])).await;
        assert_eq!(f.ok("/apply-template", &json!({"messages": list})).await["prompt"], expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_are_tokenized_and_tokens_decoded() {
    let f = Fixture::start().await;
    let out = f.ok("/tokenize", &json!({"content": "abc <|im_end|>", "with_pieces": true})).await;
    let tokens = out["tokens"].as_array().unwrap();
    assert_eq!(tokens.last().unwrap()["piece"], "<|im_end|>");
    let ids: Vec<&Value> = tokens.iter().map(|t| &t["id"]).collect();
    assert_eq!(f.ok("/detokenize", &json!({"tokens": ids})).await["content"], "abc <|im_end|>");
    let messages = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let prompt = f.ok("/apply-template", &messages).await;
    assert_eq!(prompt["prompt"], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n");
    let counted = f.ok("/tokenize", &messages).await;
    assert_eq!(counted["count"], counted["tokens"].as_array().unwrap().len());
    assert_eq!(f.post("/detokenize", &json!({"tokens": [99999]})).await.0, 400);
    assert_eq!(f.post("/tokenize", &json!({"content": "x", "text": "y"})).await.0, 400);
    let (status, props) = f.get("/props").await;
    assert_eq!(
        (status, &props["default_generation_settings"]["n_ctx"], &props["total_slots"]),
        (200, &json!(1024), &json!(4))
    );
    assert_eq!(f.get("/props?model=no").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_waits_for_accepted_requests() {
    let f = Fixture::with(Options::new(vec![roomy()])).await;
    // Long enough to be still at work when others ask. A graphics device in software computes far fewer tokens in that time.
    let max_tokens = if octet_testkit::models_on_vulkan().is_some() { CONTEXT / 2 } else { 4 * CONTEXT };
    let mut accepted = f.send(CHAT, &with(&long(), json!({"max_tokens": max_tokens}))).await;
    assert!(accepted.chunk().await.unwrap().is_some());
    f.stage.send(Stage::Drain).unwrap();
    f.until("it drains", || f.app.models().is_draining()).await;
    let late = f.send(CHAT, &chat("x")).await;
    assert_eq!(late.status(), 503);
    assert!(late.headers().contains_key("retry-after"));
    assert_eq!(f.get("/ready").await.0, 503);
    let rest = accepted.text().await.unwrap();
    assert!(rest.ends_with("data: [DONE]\n\n") && rest.contains("\"finish_reason\":\"length\""), "{rest}");
    tokio::time::timeout(PATIENCE, f.task).await.expect("it ends").unwrap();
    assert!(f.client.get(format!("http://{}/health", f.address)).send().await.is_err());
}

/// Connections on which nothing is answered do not hold up the end.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_does_not_wait_for_incomplete_requests() {
    let f = Fixture::start().await;
    let half_a_body = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 3000\r\n\r\n{{");
    let connections: Vec<_> = ["", "GET /hea", &half_a_body]
        .into_iter()
        .map(|sent| {
            let mut stream = std::net::TcpStream::connect(f.address).unwrap();
            stream.write_all(sent.as_bytes()).unwrap();
            stream
        })
        .collect();
    // ... but for one that comes while they wait
    let answer = f.send(CHAT, &with(&long(), json!({"max_tokens": 100}))).await;
    f.stage.send(Stage::Drain).unwrap();
    let rest = answer.text().await.unwrap();
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
    tokio::time::timeout(PATIENCE, f.task).await.expect("it ends").unwrap();
    // It has closed them, and not only given up waiting for that.
    for mut stream in connections {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let end = tokio::task::spawn_blocking(move || stream.read_to_end(&mut Vec::new())).await.unwrap();
        let is_open = |e: std::io::Error| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!end.is_err_and(is_open));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_stops_while_a_model_is_loading() {
    let mut spec = model("tiny");
    let (open, (go, wait)) = (Arc::clone(&spec.open), std::sync::mpsc::channel::<()>());
    let (wait, opened) = (Mutex::new(wait), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&opened);
    spec.open = Arc::new(move || {
        // The first time it is only looked at.
        if count.fetch_add(1, Ordering::Relaxed) > 0 {
            let _ = wait.lock().unwrap().recv();
        }
        open()
    });
    let server = Server::bind(([127, 0, 0, 1], 0).into(), Options::new(vec![spec])).await.unwrap();
    let (tell, mut stage) = watch::channel(Stage::Run);
    let preload = tokio::spawn(async move { server.preload(&mut stage).await });
    while opened.load(Ordering::Relaxed) < 2 {
        tokio::task::yield_now().await;
    }
    assert!(!preload.is_finished());
    tell.send(Stage::Drain).unwrap();
    let loaded = tokio::time::timeout(PATIENCE, preload).await.expect("it is told");
    assert!(!loaded.unwrap().expect("nothing is wrong"));
    drop(go);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_stops_the_server_at_once() {
    let f = Fixture::with(Options::new(vec![roomy()])).await;
    let mut accepted = f.send(CHAT, &endless()).await;
    assert!(accepted.chunk().await.unwrap().is_some());
    f.stage.send(Stage::Drain).unwrap();
    f.stage.send(Stage::Stop).unwrap();
    tokio::time::timeout(PATIENCE, f.task).await.expect("it ends at once").unwrap();
    let rest = accepted.text().await;
    assert!(rest.is_err() || !rest.unwrap().contains("finish_reason\":\"length"));
}
