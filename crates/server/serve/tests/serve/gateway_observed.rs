//! What operators see of the router: refusals by reason, usage by key, times to the first piece, and metrics in Prometheus' older format.

use octet_keys::{Limits, Store};
use serde_json::{Value, json};

use crate::common::upstream::{Upstream, answer, says};
use crate::common::{Fixture, PATIENCE, chat, read, with};

#[tokio::test(flavor = "multi_thread")]
async fn refusals_and_usage_are_counted_by_key() {
    let up = Upstream::saying("Hi").await;
    let folder = tempfile::tempdir().expect("a folder");
    let database = folder.path().join("keys.db");
    let options =
        octet_keys::Options { lock_timeout: PATIENCE, flush_every: 60 * PATIENCE, ..Default::default() };
    let store = Store::open_with(&database, options).expect("a store");
    let limits = Limits { rpm: Some(2), models: vec!["m".into()], ..Limits::default() };
    let (secret, _) = store.create("alice", limits).expect("a key");
    store.close().expect("written");
    let text = format!(
        "model_list:\n- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{base}/v1', input_cost_per_token: 0.01}}, model_info: {{id: one}}}}
- {{model_name: other, litellm_params: {{model: hosted_vllm/y, api_base: '{base}/v1'}}}}
general_settings: {{master_key: sk-master}}\nkeys: {{database: '{database}'}}\n",
        base = up.base,
        database = database.display(),
    );
    let f = Fixture::routed(&text).await;
    let ask = async |key: Option<&str>, model: &str| {
        let request = f.request("/v1/chat/completions", &with(&chat("Hello"), json!({"model": model})));
        let request = if let Some(key) = key { request.bearer_auth(key) } else { request };
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        let _ = answer.bytes().await;
        status
    };
    let alice = Some(secret.reveal());
    assert_eq!(ask(alice, "other").await, 403);
    assert_eq!([ask(alice, "m").await, ask(alice, "m").await, ask(alice, "m").await], [200, 200, 429]);
    assert_eq!([ask(Some("sk-wrong"), "m").await, ask(None, "m").await, ask(None, "m").await], [401; 3]);
    assert_eq!(ask(Some("sk-master"), "m").await, 200);

    let metrics = |accept: &'static str| {
        let request = f.client.get(f.url("/metrics")).bearer_auth("sk-master").header("accept", accept);
        async {
            let answer = request.send().await.expect("an answer");
            let kind = answer.headers()["content-type"].to_str().expect("text").to_string();
            (kind, answer.text().await.expect("text"))
        }
    };
    let (kind, plain) = metrics("text/plain; version=0.0.4").await;
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    for line in [
        "octet_refused_requests_total{reason=\"model\",key=\"alice\"} 1",
        "octet_refused_requests_total{reason=\"rpm\",key=\"alice\"} 1",
        "octet_refused_requests_total{reason=\"unknown_key\",key=\"\"} 1",
        "octet_refused_requests_total{reason=\"no_key\",key=\"\"} 2",
        "octet_key_requests_total{key=\"alice\"} 2",
        // Seven and two each, as the provider says.
        "octet_key_tokens_total{key=\"alice\"} 18",
        "octet_key_cost_dollars_total{key=\"alice\"} 0.14",
        "octet_key_requests_total{key=\"master-key\"} 1",
        "octet_routed_first_seconds_count{deployment=\"one\"} 3",
        "# TYPE octet_key_requests_total counter",
    ] {
        assert!(plain.lines().any(|l| l == line), "{line} is not in\n{plain}");
    }
    assert!(!plain.contains("# EOF") && !plain.contains("# UNIT"));
    let (kind, open) = metrics("*/*").await;
    assert!(kind.starts_with("application/openmetrics-text") && open.ends_with("# EOF\n"));
    assert!(open.contains("\noctet:key_requests_total{key=\"alice\"} 2\n"), "{open}");
    promtool_passes(&plain);
}

/// Prometheus' own judgement of names and descriptions.
fn promtool_passes(metrics: &str) {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut promtool) = promtool.spawn() else {
        return octet_testkit::skipped("needs promtool (Debian's package prometheus)");
    };
    promtool.stdin.take().expect("a pipe").write_all(metrics.as_bytes()).expect("it reads");
    let said = promtool.wait_with_output().expect("it ends");
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && out.is_empty() && err.is_empty(), "{out}{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_are_sent_once() {
    let bad =
        Upstream::start(|_| answer("429 Too Many Requests", &json!({"error": {"message": "slow down"}})))
            .await;
    let (good, hook) =
        (Upstream::saying("Hi").await, Upstream::start(|_| answer("200 OK", &json!({}))).await);
    let folder = tempfile::tempdir().expect("a folder");
    let database = folder.path().join("keys.db");
    let options =
        octet_keys::Options { lock_timeout: PATIENCE, flush_every: 60 * PATIENCE, ..Default::default() };
    let store = Store::open_with(&database, options).expect("a store");
    let budget = octet_keys::budget(0.075, None).expect("a budget");
    let (secret, _) =
        store.create("alice", Limits { budget: Some(budget), ..Limits::default() }).expect("a key");
    store.close().expect("written");
    let text = format!(
        "model_list:\n- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{}/v1', order: 1}}, model_info: {{id: one}}}}
- {{model_name: m, litellm_params: {{model: hosted_vllm/y, api_base: '{}/v1', order: 2, input_cost_per_token: 0.01}}}}
router_settings: {{cooldown_time: 60}}
environment_variables: {{WEBHOOK_URL: '{}/hook'}}
general_settings: {{master_key: sk-master, alerting: [webhook]}}\nkeys: {{database: '{}'}}\n",
        bad.base,
        good.base,
        hook.base,
        database.display(),
    );
    let f = Fixture::routed(&text).await;
    // Seven tokens, which are 0.07 of 0.075.
    let body = with(&chat("Hello"), json!({"model": "m", "max_tokens": 2}));
    let request = f.request("/v1/chat/completions", &body).bearer_auth(secret.reveal());
    assert_eq!(request.send().await.expect("an answer").status(), 200);
    let events = || {
        hook.seen()
            .iter()
            .map(|s| s.body["event"].as_str().unwrap_or_default().to_string())
            .collect::<Vec<_>>()
    };
    f.until("both alerts are sent", || {
        let events = events();
        ["deployment_cooldown", "threshold_crossed"].iter().all(|e| events.iter().any(|seen| seen == e))
    })
    .await;
    assert_eq!(events().len(), 2, "{:?}", events());
    let cooldown =
        hook.seen().into_iter().find(|s| s.body["event"] == "deployment_cooldown").expect("it came");
    assert_eq!((&cooldown.body["model_id"], cooldown.path.as_str()), (&json!("one"), "/hook"));
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_see_change_and_refuse_requests() {
    let up = Upstream::saying("Hi").await;
    let hook = Upstream::start(|seen| {
        let mut body = seen.body["body"].clone();
        match body.to_string() {
            text if text.contains("forbidden") => answer("200 OK", &json!({"refuse": "it is forbidden"})),
            text if text.contains("broken") => answer("500 Internal Server Error", &json!({})),
            text if text.contains("secret") => {
                body["messages"][0]["content"] = "a ******".into();
                answer("200 OK", &json!({"body": body}))
            }
            _ => answer("200 OK", &json!({})),
        }
    })
    .await;
    for (fail, status) in [("closed", 503), ("open", 200)] {
        let text = format!(
            "model_list: [{{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{}/v1'}}}}]
hooks: [{{url: '{}/check', fail: {fail}}}]\n",
            up.base, hook.base
        );
        let f = Fixture::routed(&text).await;
        let ask = async |path: &str, body: Value| read(f.send(path, &body).await).await;
        let question = |text: &str| with(&chat(text), json!({"model": "m"}));
        assert_eq!(ask("/v1/chat/completions", question("Hello")).await.0, 200);
        let seen = hook.last();
        assert_eq!((seen.path.as_str(), &seen.body["path"]), ("/check", &json!("/v1/chat/completions")));
        assert_eq!(seen.body["body"]["model"], "m");
        assert_eq!(ask("/v1/chat/completions", question("a secret")).await.0, 200);
        assert_eq!(up.last().body["messages"][0]["content"], "a ******");
        let many = up.seen().len();
        let claude =
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "forbidden"}]});
        let (refused, body) = ask("/v1/messages", claude).await;
        assert_eq!((refused, &body["type"]), (403, &json!("error")), "{body}");
        assert!(body["error"]["message"].as_str().is_some_and(|m| m.contains("it is forbidden")), "{body}");
        assert_eq!(up.seen().len(), many, "nothing is sent");
        assert_eq!(ask("/v1/chat/completions", question("broken")).await.0, status);
    }
}

/// A hook that refuses answers with "forbidden", blackens "secret", and breaks at "broken".
async fn answer_hook() -> Upstream {
    Upstream::start(|seen| {
        let text = seen.body["body"].to_string();
        match text {
            text if text.contains("forbidden") => answer("200 OK", &json!({"refuse": "it is forbidden"})),
            text if text.contains("broken") => answer("500 Internal Server Error", &json!({})),
            text if text.contains("secret") => {
                let body: Value = serde_json::from_str(&text.replace("secret", "******")).expect("JSON");
                answer("200 OK", &json!({"body": body}))
            }
            _ => answer("200 OK", &json!({})),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_see_change_and_refuse_answers_in_every_dialect() {
    // The provider repeats what the user says.
    let up = Upstream::start(|seen| {
        let said = seen.body["messages"].as_array().and_then(|all| all.last()).expect("a message");
        let text = said["content"].as_str().or(said["content"][0]["text"].as_str()).unwrap_or_default();
        says(seen, text)
    })
    .await;
    let hook = answer_hook().await;
    let text = format!(
        "model_list: [{{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{}/v1'}}}}]
hooks: [{{url: '{}/check', on: response}}]\n",
        up.base, hook.base
    );
    let f = Fixture::routed(&text).await;
    let messages = |text: &str| json!([{"role": "user", "content": text}]);
    let paths = [
        ("/v1/chat/completions", "messages"),
        ("/v1/messages", "messages"),
        ("/v1/responses", "input"),
        ("/api/chat", "messages"),
        ("/v1beta/models/m:generateContent", "contents"),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", "contents"),
    ];
    for (path, field) in paths {
        for stream in [false, true] {
            let ask = async |text: &str| {
                let mut body = match field {
                    "contents" => json!({"contents": [{"role": "user", "parts": [{"text": text}]}]}),
                    _ => json!({"model": "m", "max_tokens": 9, "stream": stream, field: messages(text)}),
                };
                if field == "input" {
                    body.as_object_mut().expect("an object").remove("max_tokens");
                }
                let answer = f.send(path, &body).await;
                (answer.status().as_u16(), answer.text().await.expect("an answer that ends well"))
            };
            let (status, said) = ask("Hello").await;
            assert!(status == 200 && said.contains("Hello"), "{path}: {said}");
            let seen = hook.last().body;
            assert_eq!((&seen["on"], seen["body"].is_object()), (&json!("response"), true), "{path}: {seen}");
            assert!(seen["request"].to_string().contains("Hello"), "{path}: {seen}");
            let (status, said) = ask("a secret!").await;
            assert!(
                status == 200 && said.contains("a ******!") && !said.contains("secret"),
                "{path}: {said}"
            );
            let (status, said) = ask("forbidden").await;
            assert!(status == 403 && said.contains("it is forbidden"), "{path}: {said}");
            let (status, said) = ask("broken").await;
            assert!(status == 503 && !said.contains("broken"), "{path}: {said}");
        }
    }
    // The provider's own fields stay in whole answers.
    let whole = f.ok("/v1/chat/completions", &with(&chat("a secret"), json!({"model": "m"}))).await;
    assert_eq!((&whole["id"], &whole["usage"]["total_tokens"]), (&json!("x"), &json!(9)), "{whole}");
}
