//! Long bodies of routed requests are read and written on blocking threads: while these are busy, other requests are answered.

use std::sync::mpsc::channel;

use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::common::upstream::{Seen, Upstream};
use crate::common::{Fixture, read};

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
    // The only blocking thread is busy until `open` says so.
    let (began, has_begun) = tokio::sync::oneshot::channel();
    let (open, opened) = channel::<()>();
    let busy = spawn_blocking(move || {
        began.send(()).expect("the test waits for it");
        opened.recv().expect("the test ends it");
    });
    has_begun.await.expect("it begins");
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
    open.send(()).expect("it waits");
    busy.await.expect("it ends");
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
