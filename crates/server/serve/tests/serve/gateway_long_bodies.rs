//! Long bodies of routed requests are read and written on blocking threads: while these are busy, other requests are answered. The memory
//! that they take is counted for as long as a thread works on them.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use octet_serve::Options;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::common::upstream::{Seen, Step, Upstream, answer, says};
use crate::common::{Fixture, PATIENCE, read, routes};

/// Far longer than what is read in a request's own task.
const LONG_BYTES: usize = 1 << 20;

/// A request of each kind: forwarded in three dialects, and translated.
fn requests(text: &str) -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": text}]);
    vec![
        ("/v1/chat/completions", json!({"model": "far", "messages": messages, "tags": ["a"]})),
        ("/v1/chat/completions", json!({"model": "claude", "messages": messages})),
        ("/v1/messages", json!({"model": "claude", "max_tokens": 9, "messages": messages})),
        ("/v1/messages", json!({"model": "far", "max_tokens": 9, "messages": messages})),
        ("/api/chat", json!({"model": "llama", "messages": messages, "stream": false})),
        ("/v1/responses", json!({"model": "far", "input": text, "store": false})),
        ("/v1beta/models/far:generateContent", json!({"contents": [{"parts": [{"text": text}]}]})),
        ("/v1/embeddings", json!({"model": "far", "input": text})),
        ("/api/embed", json!({"model": "far", "input": text})),
    ]
}

/// The only blocking thread, busy until the test ends it.
struct Busy {
    open: Sender<()>,
    task: JoinHandle<()>,
}

impl Busy {
    async fn begin() -> Self {
        let (began, has_begun) = tokio::sync::oneshot::channel();
        let (open, opened) = channel::<()>();
        let task = spawn_blocking(move || {
            began.send(()).expect("the test waits for it");
            opened.recv().expect("the test ends it");
        });
        has_begun.await.expect("it begins");
        Self { open, task }
    }

    async fn end(self) {
        self.open.send(()).expect("it waits");
        self.task.await.expect("it ends");
    }
}

/// With `cache`, answers are cached, which reads each body once more.
async fn routed(up: &Upstream, cache: bool) -> Fixture {
    let entry = |group: &str, model: &str, path: &str| {
        let base = format!("{}{path}", up.base);
        format!(
            "- {{model_name: {group}, litellm_params: {{model: {model}, api_base: \"{base}\", api_key: k}}}}\n"
        )
    };
    let entries = [
        ("far", "hosted_vllm/theirs", "/v1"),
        ("claude", "anthropic/theirs", ""),
        ("llama", "ollama/theirs", ""),
    ];
    let entries: String = entries.iter().map(|(group, model, path)| entry(group, model, path)).collect();
    let rest = if cache { "litellm_settings: {cache: true, cache_params: {type: local}}\n" } else { "" };
    Fixture::routed(&format!("model_list:\n{entries}{rest}")).await
}

/// The requests that the provider got with this text in them.
fn with_text(up: &Upstream, text: &str) -> usize {
    let has = |seen: &Seen| seen.raw.windows(text.len()).any(|w| w == text.as_bytes());
    up.seen().iter().filter(|seen| has(seen)).count()
}

async fn short_requests_pass_long_ones(cache: bool) {
    let up = Upstream::saying("Hi").await;
    let f = routed(&up, cache).await;
    let long = "long ".repeat(LONG_BYTES / 5);
    let busy = Busy::begin().await;
    let waiting = requests(&long).into_iter().map(|(path, body)| {
        let sent = f.request(path, &body).send();
        (path, tokio::spawn(async move { read(sent.await.expect("the server answers")).await }))
    });
    let waiting: Vec<_> = waiting.collect();
    for text in ["one", "two", "three"] {
        for (path, body) in requests(text) {
            let (status, answer) = f.post(path, &body).await;
            assert_eq!(status, 200, "{path}: {answer}");
        }
        assert_eq!(with_text(&up, text), requests(text).len());
    }
    assert_eq!(with_text(&up, &long), 0, "a long body was read beside the blocking threads");
    busy.end().await;
    for (path, answer) in waiting {
        let (status, answer) = answer.await.expect("a task");
        assert_eq!(status, 200, "{path}: {answer}");
    }
    assert_eq!(with_text(&up, &long), requests(&long).len(), "each arrives whole");
}

/// A runtime with one blocking thread.
fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).max_blocking_threads(1).enable_all().build().expect("a runtime")
}

#[test]
fn short_requests_are_answered_while_long_bodies_wait_to_be_read() {
    runtime().block_on(short_requests_pass_long_ones(false));
}

#[test]
fn short_requests_are_answered_while_long_bodies_wait_for_the_cache() {
    runtime().block_on(short_requests_pass_long_ones(true));
}

/// A server with a group `sick`, which speaks `dialect` and fails, and then falls back to `well`. The group `slow` answers.
struct Failing {
    f: Fixture,
    up: Upstream,
    /// What `sick` and `slow` wait for.
    sick: watch::Sender<bool>,
    slow: watch::Sender<bool>,
}

async fn failing(dialect: &str, body_bytes_max: usize) -> Failing {
    let ((sick, sick_opened), (slow, slow_opened)) = (watch::channel(false), watch::channel(false));
    let up = Upstream::start(move |seen| match seen.body["model"].as_str() {
        Some("sick") => {
            let error = answer("500 Internal Server Error", &json!({"error": {"message": "sick"}}));
            [vec![Step::Wait(sick_opened.clone())], error].concat()
        }
        Some("slow") => [vec![Step::Wait(slow_opened.clone())], says(seen, "Hi")].concat(),
        _ if seen.path == "/v1/embeddings" => {
            let texts = seen.body["input"].as_array().map_or(1, Vec::len);
            let vector = |i| json!({"object": "embedding", "index": i, "embedding": [0.5, -0.5]});
            let vectors: Vec<Value> = (0..texts).map(vector).collect();
            answer("200 OK", &json!({"object": "list", "model": "theirs", "data": vectors}))
        }
        _ => says(seen, "Hi"),
    })
    .await;
    let (base, path) = (&up.base, if dialect == "anthropic" { "" } else { "/v1" });
    let text = format!(
        "model_list:
- {{model_name: sick, litellm_params: {{model: {dialect}/sick, api_base: \"{base}{path}\", api_key: k}}}}
- {{model_name: well, litellm_params: {{model: hosted_vllm/well, api_base: \"{base}/v1\", api_key: k}}}}
- model_name: deep
  litellm_params: {{model: hosted_vllm/deep, api_base: \"{base}/v1\", api_key: k, additional_drop_params: [a.b]}}
- model_name: deep-slow
  litellm_params: {{model: hosted_vllm/slow, api_base: \"{base}/v1\", api_key: k, additional_drop_params: [a.b]}}
- {{model_name: slow, litellm_params: {{model: hosted_vllm/slow, api_base: \"{base}/v1\", api_key: k}}}}
router_settings: {{fallbacks: [{{sick: [well]}}], num_retries: 0, disable_cooldowns: true}}
"
    );
    let options = Options { body_bytes_max, routes: Some(routes(&text)), ..Options::new(Vec::new()) };
    Failing { f: Fixture::with(options).await, up, sick, slow }
}

/// Requests at the deployments of this group.
fn in_flight(f: &Fixture, group: &str) -> u64 {
    let overview = f.app.gateway().expect("there is a router").overview();
    let of_group = overview["deployments"].as_array().expect("a list").iter().filter(|d| d["group"] == group);
    of_group.map(|d| d["in_flight"].as_u64().expect("a count")).sum()
}

/// A thread that has yet to work on a body keeps its memory when the client has left.
async fn left_bodies_are_counted(dialect: &str, path: &str) {
    const BYTES: usize = 1 << 20;
    // Eight bodies of the greatest length fit, and a quarter of each of these is not counted: an eleventh does not fit.
    const BODIES: usize = 10;
    let Failing { f, up, sick, slow: _slow } = failing(dialect, BYTES).await;
    let body = |model: &str| {
        let text = "long ".repeat(BYTES / 5 - 100);
        json!({"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": text}]})
    };
    let send = |_| tokio::spawn(f.request(path, &body("sick")).send());
    let sent: Vec<_> = (0..BODIES).map(send).collect();
    f.until("all arrive", || up.seen().len() == BODIES).await;
    let busy = Busy::begin().await;
    sick.send(true).expect("the provider waits");
    f.until("all fall back", || in_flight(&f, "well") == BODIES as u64).await;
    sent.iter().for_each(JoinHandle::abort);
    f.until("the clients have left", || f.app.busy() == 0).await;
    let refused = tokio::time::timeout(PATIENCE, f.post(path, &body("well"))).await;
    let (status, refused) = refused.expect("it is refused before it waits for a thread");
    assert!(
        status == 503 && refused.to_string().contains("the memory for long requests"),
        "{status} {}",
        refused["error"]
    );
    busy.end().await;
    let began = std::time::Instant::now();
    while f.post(path, &body("well")).await.0 != 200 {
        assert!(began.elapsed() < PATIENCE, "the memory is released");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn forwarded_bodies_are_counted_while_threads_work_on_them() {
    runtime().block_on(left_bodies_are_counted("hosted_vllm", "/v1/chat/completions"));
}

#[test]
fn translated_bodies_are_counted_while_threads_work_on_them() {
    runtime().block_on(left_bodies_are_counted("anthropic", "/v1/messages"));
}

/// A body that is only parsed to be translated takes as much memory as one that is parsed at once.
#[tokio::test(flavor = "multi_thread")]
async fn values_of_bodies_that_are_parsed_late_are_counted() {
    let Failing { f, up, sick, slow } = failing("anthropic", 64 << 10).await;
    sick.send(true).expect("the provider waits");
    let to_chat = |model: &str| {
        let messages = vec![json!({"role": "user", "content": "x"}); 600];
        f.request("/v1/messages", &json!({"model": model, "max_tokens": 9, "messages": messages})).send()
    };
    let embed =
        |texts: usize| f.request("/api/embed", &json!({"model": "well", "input": vec!["x"; texts]})).send();
    // The budget is half a MiB, and a quarter is not counted: 12000 values exceed both.
    let (status, refused) = read(embed(12_000).await.expect("an answer")).await;
    assert!(
        status == 413 && refused.to_string().contains("keys and values"),
        "{status} {}",
        refused["error"]
    );
    // A forwarded body is only parsed if nested fields are changed.
    let messages = vec![json!({"role": "user", "content": "x"}); 1500];
    let (status, refused) =
        f.post("/v1/chat/completions", &json!({"model": "deep", "messages": messages})).await;
    assert!(
        status == 413 && refused.to_string().contains("keys and values"),
        "{status} {}",
        refused["error"]
    );
    assert_eq!(up.seen().len(), 0, "they are not translated");
    let (status, _) = f.post("/v1/chat/completions", &json!({"model": "well", "messages": messages})).await;
    assert_eq!(status, 200);
    // 3000 fit once, but not twice.
    let first = tokio::spawn(to_chat("slow"));
    f.until("it arrives", || up.last().body["model"] == "slow").await;
    let (status, refused) = read(embed(3000).await.expect("an answer")).await;
    assert!(
        status == 503 && refused.to_string().contains("the memory for long requests"),
        "{status} {}",
        refused["error"]
    );
    // A fallback's failure is not what the client is told.
    assert_eq!(to_chat("sick").await.expect("an answer").status(), 502);
    assert_eq!(up.last().body["model"], "sick", "it is not translated");
    slow.send(true).expect("the provider waits");
    assert_eq!(first.await.expect("a task").expect("an answer").status(), 200);
    f.until("it is over", || f.app.busy() == 0).await;
    assert_eq!(embed(3000).await.expect("an answer").status(), 200);
    assert_eq!(to_chat("sick").await.expect("an answer").status(), 200);
    assert_eq!(up.last().body["model"], "well");
}

/// The values of a body that is parsed to be changed are free when it is written, not only when it is answered.
#[tokio::test(flavor = "multi_thread")]
async fn values_of_forwarded_bodies_are_counted_until_they_are_written() {
    let Failing { f, up, sick: _sick, slow } = failing("hosted_vllm", 64 << 10).await;
    // Two of them do not fit into half a MiB.
    let messages = vec![json!({"role": "user", "content": "x"}); 600];
    let body = |model: &str| json!({"model": model, "messages": messages});
    let first = tokio::spawn(f.request("/v1/chat/completions", &body("deep-slow")).send());
    f.until("it arrives", || up.seen().len() == 1).await;
    let (status, answer) = f.post("/v1/chat/completions", &body("deep")).await;
    assert_eq!(status, 200, "{answer}");
    slow.send(true).expect("the provider waits");
    assert_eq!(first.await.expect("a task").expect("an answer").status(), 200);
}

/// The end of Ollama's answers has the whole conversation.
async fn long_conversations_are_written_beside_short_answers() {
    let Failing { f, up, sick: _sick, slow } = failing("hosted_vllm", 32 << 20).await;
    let body =
        |model: &str, text: &str, stream: bool| json!({"model": model, "prompt": text, "stream": stream});
    let long = "long ".repeat(LONG_BYTES / 5);
    let waiting = [false, true].map(|stream| {
        let sent = f.request("/api/generate", &body("slow", &long, stream)).send();
        tokio::spawn(async move { sent.await.expect("the server answers").text().await.expect("a body") })
    });
    f.until("both arrive", || up.seen().len() == 2).await;
    let busy = Busy::begin().await;
    slow.send(true).expect("the provider waits");
    for _ in 0..30 {
        for stream in [false, true] {
            let answer = f.send("/api/generate", &body("well", "short", stream)).await;
            assert_eq!(answer.status(), 200);
            assert!(answer.text().await.expect("a body").contains("\"context\":["));
        }
    }
    let has_ended = waiting.iter().any(JoinHandle::is_finished);
    busy.end().await;
    assert!(!has_ended, "a long context was written beside the blocking threads");
    for answer in waiting {
        let answer = answer.await.expect("a task");
        let last: Value = serde_json::from_str(answer.lines().last().expect("a line")).expect("JSON");
        let numbers = last["context"].as_array().map_or(0, Vec::len);
        assert!(last["done"] == true && numbers > LONG_BYTES / 3, "{numbers}");
    }
}

#[test]
fn short_answers_are_written_while_long_contexts_wait() {
    runtime().block_on(long_conversations_are_written_beside_short_answers());
}
