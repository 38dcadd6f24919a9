//! Who is told of requests: webhooks by a server of our own, spans by OpenTelemetry's own messages in Python. And tags, which both see,
//! and by which requests are routed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::common::python::python;
use crate::common::upstream::{Upstream, answer, says};
use crate::common::{Fixture, PATIENCE, chat, with};
use octet_config::{Config, Disk};
use octet_serve::{Options, Routes};
use serde_json::{Value, json};

/// A router whose configuration sees these variables.
async fn routed(text: &str, env: &[(&str, &str)]) -> Fixture {
    let env: Vec<(String, String)> = env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let source = Disk(move |name: &str| env.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()));
    let config = Config::parse("octet.yaml", text, &source).unwrap_or_else(|e| panic!("{e}"));
    let routes = Routes { watch: None, ..Routes::new(config) };
    Fixture::with(Options { routes: Some(routes), ..Options::new(Vec::new()) }).await
}

fn file(up: &Upstream, rest: &str) -> String {
    format!(
        "model_list:
- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{base}/v1', input_cost_per_token: 0.01}}}}
- {{model_name: bad, litellm_params: {{model: hosted_vllm/bad, api_base: '{base}/v1'}}}}
- {{model_name: claude, litellm_params: {{model: anthropic/x, api_base: '{base}', api_key: sk-x}}}}
router_settings: {{num_retries: 1, fallbacks: [{{bad: [m]}}], disable_cooldowns: true}}
{rest}",
        base = up.base,
    )
}

async fn provider() -> Upstream {
    Upstream::start(|seen| match seen.body["model"].as_str() {
        Some("bad") => answer("500 Internal Server Error", &json!({"error": {"message": "it is broken"}})),
        _ => says(seen, "Hi"),
    })
    .await
}

fn ask(model: &str, more: Value) -> Value {
    with(&with(&chat("Hello"), json!({"model": model})), more)
}

/// All records that a webhook got.
fn records(hook: &Upstream) -> Vec<Value> {
    hook.seen().iter().flat_map(|seen| seen.body.as_array().cloned().unwrap_or_default()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_use_litellms_field_names() {
    let up = provider().await;
    let failed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&failed);
    // The first delivery is not taken, and comes again.
    let hook = Upstream::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => answer("503 Service Unavailable", &json!({})),
        _ => answer("200 OK", &json!({})),
    })
    .await;
    let env = [
        ("GENERIC_LOGGER_ENDPOINT", hook.base.as_str()),
        ("GENERIC_LOGGER_HEADERS", "authorization=Bearer h"),
    ];
    let f = routed(&file(&up, "litellm_settings: {callbacks: [generic_api]}"), &env).await;
    let own = json!({"user": "u", "tags": ["a"], "metadata": {"tags": ["b"], "team": "blue", "user_api_key_hash": "forged"}});
    let answer =
        f.request("/v1/chat/completions", &ask("bad", own)).header("x-litellm-tags", "c, a").send().await;
    assert_eq!(answer.expect("an answer").status(), 200);
    f.ok("/v1/embeddings", &json!({"model": "m", "input": "Hello"})).await;
    f.events("/v1/chat/completions", &ask("m", json!({"stream": true}))).await;
    let nobody = f.post("/v1/chat/completions", &ask("bad", json!({"fallbacks": []}))).await.0;
    assert!(nobody >= 500);
    let ids = || records(&hook).iter().map(|r| r["id"].to_string()).collect::<std::collections::HashSet<_>>();
    let again = || failed.load(Ordering::SeqCst) >= 2;
    f.until("the webhook knows of four requests, and was told again", || ids().len() >= 4 && again()).await;
    let all = records(&hook);
    let of = |operation: &str, stream: bool, status: &str| {
        let is = |r: &&Value| r["call_type"] == operation && r["stream"] == stream && r["status"] == status;
        all.iter().find(is).unwrap_or_else(|| panic!("no {operation} {stream} {status} among {all:#?}"))
    };
    let chat = of("acompletion", false, "success");
    for (name, value) in [
        ("model_group", json!("bad")),
        ("model", json!("x")),
        ("prompt_tokens", json!(7)),
        ("completion_tokens", json!(2)),
        ("total_tokens", json!(9)),
        ("response_cost", json!(0.07)),
        ("request_tags", json!(["a", "b", "c"])),
        ("end_user", json!("u")),
        ("cache_hit", json!(false)),
        ("error_str", Value::Null),
        ("messages", Value::Null),
    ] {
        assert_eq!(chat[name], value, "{name}: {chat:#}");
    }
    assert_eq!(
        (&chat["metadata"]["team"], &chat["metadata"]["user_api_key_hash"]),
        (&json!("blue"), &Value::Null)
    );
    assert!(chat["endTime"].as_f64() > chat["startTime"].as_f64());
    let attempts = chat["attempts"].as_array().expect("a list");
    assert_eq!(attempts.len(), 3, "one retry, then the fallback: {attempts:?}");
    assert_eq!(attempts[0]["error"], "it is broken");
    assert_eq!(attempts[2]["error"], Value::Null);
    let streamed = of("acompletion", true, "success");
    assert_eq!((&streamed["completion_tokens"], &streamed["response_cost"]), (&json!(2), &json!(0.07)));
    assert_eq!(of("aembedding", false, "success")["prompt_tokens"], 3);
    let lost = of("acompletion", false, "failure");
    assert_eq!(
        (&lost["error_str"], &lost["error_information"]["error_code"]),
        (&json!("it is broken"), &json!("500"))
    );
    assert!(hook.seen().iter().all(|seen| seen.head.to_lowercase().contains("authorization: bearer h")));
    // What was said of a request is for callbacks, not for the provider.
    for seen in up.seen() {
        for name in ["tags", "metadata", "fallbacks"] {
            assert!(seen.body.get(name).is_none(), "{name} was forwarded: {}", seen.body);
        }
        assert!(!seen.head.contains("traceparent"), "nobody wants spans");
    }
}

/// Ended with its test.
struct Collector(Child);

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Spans by their names, with attributes as one object.
fn spans(told: &Value) -> Vec<(String, Value, Value)> {
    let all = told["sent"]["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans").clone();
    let value = |v: &Value| {
        let v = v.as_object().and_then(|o| o.values().next()).cloned().unwrap_or_default();
        // Protobuf's JSON writes 64-bit numbers as texts.
        v.as_str().and_then(|s| s.parse::<i64>().ok()).map_or(v, Value::from)
    };
    let attributes = |span: &Value| {
        let all = span["attributes"].as_array().expect("attributes").iter();
        Value::Object(
            all.map(|a| (a["key"].as_str().expect("a key").to_string(), value(&a["value"]))).collect(),
        )
    };
    all.into_iter().map(|s| (s["name"].as_str().expect("a name").to_string(), attributes(&s), s)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_arrive_at_a_foreign_collector() {
    let python = tokio::task::spawn_blocking(|| python("otlp", &["opentelemetry-proto==1.45.2"]))
        .await
        .expect("pip ran");
    let Some(python) = python else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/collector.py");
    let mut child =
        Command::new(python).arg(script).stdout(Stdio::piped()).spawn().expect("python3 can be run");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let _collector = Collector(child);
    let port = lines.next().expect("a line").expect("text");
    let (to, told) = mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if to.send(serde_json::from_str::<Value>(&line).expect("JSON")).is_err() {
                return;
            }
        }
    });
    let base = format!("http://127.0.0.1:{port}");
    let up = provider().await;
    let env = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", base.as_str()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue"),
        ("LANGFUSE_PUBLIC_KEY", "pk"),
        ("LANGFUSE_SECRET_KEY", "sk"),
        ("LANGFUSE_HOST", base.as_str()),
    ];
    let f =
        routed(&file(&up, "litellm_settings: {callbacks: [otel], success_callback: [langfuse]}"), &env).await;
    let sent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let path = "/v1/chat/completions";
    let body = ask("bad", json!({"tags": ["a"], "metadata": {"team": "blue"}}));
    let answer = f.request(path, &body).header("traceparent", sent).send().await.expect("an answer");
    let id = answer.headers()["x-request-id"].to_str().expect("text").to_string();
    assert_eq!(answer.status(), 200);
    // A caller that keeps no trace, and one that names none; the second is translated for its provider.
    let unsampled = sent.replace("-01", "-00");
    f.request(path, &ask("m", json!({}))).header("traceparent", unsampled).send().await.expect("an answer");
    f.ok(path, &ask("claude", json!({}))).await;

    let next = || told.recv_timeout(PATIENCE).expect("spans come");
    let mut by_path: std::collections::HashMap<String, Vec<Value>> = std::collections::HashMap::new();
    let count = |all: &std::collections::HashMap<String, Vec<Value>>, path: &str| {
        all.get(path).map_or(0, |v| v.iter().map(|t| spans(t).len()).sum())
    };
    let (otel, langfuse) = ("/v1/traces", "/api/public/otel/v1/traces");
    while count(&by_path, otel) < 6 || count(&by_path, langfuse) < 6 {
        let told = next();
        by_path.entry(told["path"].as_str().expect("a path").into()).or_default().push(told);
    }
    assert_eq!(by_path[otel][0]["headers"]["x-team"], "blue");
    assert_eq!(by_path[otel][0]["headers"].get("authorization"), None, "a key is for the one that it is for");
    assert_eq!(by_path[langfuse][0]["headers"]["authorization"], "Basic cGs6c2s=");
    assert_eq!(by_path[langfuse][0]["headers"].get("x-team"), None);

    let all: Vec<_> = by_path[otel].iter().flat_map(spans).collect();
    assert_eq!(
        all.len(),
        6,
        "a request with three attempts, one with one, and none for the unsampled: {all:#?}"
    );
    let (_, request, span) = all.iter().find(|(name, ..)| name == "chat bad").expect("the request");
    for (name, value) in [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.request.model", json!("bad")),
        ("gen_ai.response.model", json!("x")),
        ("gen_ai.usage.input_tokens", json!(7)),
        ("gen_ai.usage.output_tokens", json!(2)),
        ("gen_ai.usage.cost", json!(0.07)),
        ("octet.request.id", json!(id)),
        ("metadata.team", json!("blue")),
    ] {
        assert_eq!(request[name], value, "{name}: {request:#}");
    }
    // Protobuf's JSON writes bytes in base64: the caller's trace and span.
    assert_eq!(
        (&span["traceId"], &span["parentSpanId"]),
        (&json!("S/kvNXezTaajzpKdDg5HNg=="), &json!("APBnqgupArc="))
    );
    let attempts: Vec<_> = all.iter().filter(|(_, _, s)| s["parentSpanId"] == span["spanId"]).collect();
    assert_eq!(attempts.len(), 3);
    let failed = attempts
        .iter()
        .filter(|(_, a, s)| a["error.type"] == "server" && s["status"]["message"] == "it is broken");
    assert_eq!(failed.count(), 2);
    let nanos = |s: &Value, name: &str| s[name].as_str().expect("a time").parse::<u64>().expect("a number");
    for (_, _, attempt) in &attempts {
        let (began, ended) = (nanos(attempt, "startTimeUnixNano"), nanos(attempt, "endTimeUnixNano"));
        assert!(nanos(span, "startTimeUnixNano") <= began && began <= ended);
    }
    // Providers see the trace, passed through and translated.
    let heads: Vec<String> = up.seen().iter().map(|seen| seen.head.to_lowercase()).collect();
    let ours = heads.iter().filter(|h| h.contains("traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-"));
    assert_eq!(ours.clone().count(), 4);
    assert!(ours.clone().all(|h| !h.contains("00f067aa0ba902b7")), "it names the router's own span");
    assert!(heads.last().is_some_and(|h| h.contains("traceparent: 00-")), "{heads:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_down_delays_nobody() {
    let up = provider().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
    let url = format!("http://{free}");
    let f = routed(
        &file(&up, "litellm_settings: {callbacks: [generic_api]}"),
        &[("GENERIC_LOGGER_ENDPOINT", &url)],
    )
    .await;
    for _ in 0..20 {
        f.ok("/v1/chat/completions", &ask("m", json!({}))).await;
    }
    let metrics = f.text("/metrics").await;
    assert!(metrics.contains("octet:callback_records_dropped"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_choose_among_the_deployments_of_a_group() {
    let up = Upstream::start(|seen| says(seen, seen.body["model"].as_str().unwrap_or_default())).await;
    let entry = |model: &str, tags: &str| {
        format!(
            "- {{model_name: m, litellm_params: {{model: hosted_vllm/{model}, api_base: '{}/v1'{tags}}}}}\n",
            up.base
        )
    };
    let list = entry("free", ", tags: [free, default]")
        + &entry("paid", ", tags: [paid, eu]")
        + &entry("other", ", tags: [us]");
    let any = format!("model_list:\n{list}router_settings: {{enable_tag_filtering: true, num_retries: 0}}\n");
    let strict = any.replace("num_retries: 0", "num_retries: 0, tag_filtering_match_any: false");
    let asked = async |f: &Fixture, tags: &[&str]| {
        let (status, said) = f.post("/v1/chat/completions", &ask("m", json!({"tags": tags}))).await;
        let text = said["choices"][0]["message"]["content"].as_str();
        text.map_or_else(|| format!("{status}"), str::to_string)
    };
    let f = Fixture::routed(&any).await;
    for (tags, who) in [
        (&["paid"][..], "paid"),
        (&["us"], "other"),
        (&["free"], "free"),
        // No such tag, and no tag: those for all others.
        (&["nobody"], "free"),
        (&[], "free"),
        (&["&eu"], "paid"),
        (&["!free", "eu", "nobody"], "paid"),
        (&["&eu", "&us"], "400"),
        (&["!default"], "400"),
    ] {
        // As LiteLLM's proxy 1.106.2 answers the same requests.
        for _ in 0..4 {
            assert_eq!(asked(&f, tags).await, who, "{tags:?}");
        }
    }
    let f = Fixture::routed(&strict).await;
    assert_eq!(asked(&f, &["paid", "eu"]).await, "paid");
    assert_eq!(asked(&f, &["paid", "us"]).await, "free");
    // Without the setting tags choose nothing.
    let f = Fixture::routed(&any.replace("enable_tag_filtering: true, ", "")).await;
    let mut seen = std::collections::BTreeSet::new();
    let began = std::time::Instant::now();
    while seen.len() < 3 && began.elapsed() < PATIENCE {
        seen.insert(asked(&f, &["paid"]).await);
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}
