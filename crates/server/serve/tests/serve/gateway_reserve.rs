//! What a request can spend is reserved before it is sent, in every dialect; what a provider says about it afterwards is believed only as
//! far as it is possible; and what a client causes is not booked as the deployment's fault.

use std::path::Path;

use crate::common::upstream::{STREAM_HEAD, Seen, Step, Upstream, answer, chunk, delta, event, says};
use crate::common::{Fixture, PATIENCE, chat, read, with};
use octet_keys::{Budget, Limits, Period, Store};
use serde_json::{Value, json};
use tokio::sync::watch;

const CHAT: &str = "/v1/chat/completions";

/// A router with providers of each dialect, whose answer tokens cost a cent each, and a virtual key with a budget of a dollar.
async fn fixture(up: &Upstream) -> (Fixture, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("keys.db");
    let secret = key(&database, Limits { budget: Some(dollar()), ..Limits::default() });
    let entry = |name: &str, model: &str, path: &str| {
        format!(
            "- {{model_name: {name}, litellm_params: {{model: {model}, api_base: \"{base}{path}\", api_key: k}}, model_info: {{input_cost_per_token: 0, output_cost_per_token: 0.01, max_output_tokens: 20}}}}\n",
            base = up.base,
        )
    };
    let entries = [
        ("far", "hosted_vllm/x", "/v1"),
        ("own", "openai/x", "/v1"),
        ("claude", "anthropic/x", ""),
        ("llama", "ollama/x", ""),
        ("gemini", "gemini/x", "/v1beta"),
    ];
    let entries: String = entries.iter().map(|(name, model, path)| entry(name, model, path)).collect();
    let text = format!(
        "model_list:\n{entries}general_settings: {{master_key: sk-master}}\nkeys: {{database: \"{}\"}}\nrouter_settings: {{num_retries: 0}}\n",
        database.display()
    );
    (Fixture::routed(&text).await, secret, folder)
}

fn dollar() -> Budget {
    Budget { limit: "1".parse().unwrap(), period: Period::Ever }
}

fn key(database: &Path, limits: Limits) -> String {
    let store = Store::open(database).unwrap();
    let (secret, _) = store.create("alice", limits).unwrap();
    let secret = secret.reveal().to_string();
    store.close().unwrap();
    secret
}

async fn ask(f: &Fixture, key: &str, path: &str, body: &Value) -> (u16, Value) {
    read(f.request(path, body).bearer_auth(key).send().await.unwrap()).await
}

/// A hundred tokens of answers cost the whole budget: what may have more of them is refused, and no provider is asked.
#[tokio::test(flavor = "multi_thread")]
async fn several_answers_are_reserved_in_every_dialect() {
    let up = Upstream::saying("Hi").await;
    let (f, key, _folder) = fixture(&up).await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let contents = json!([{"role": "user", "parts": [{"text": "Hi"}]}]);
    let config = |n: u32| json!({"candidateCount": n, "maxOutputTokens": 50});
    let many: Vec<String> = (0..128).map(|i| format!("Prompt {i}")).collect();
    for (path, body) in [
        (CHAT, json!({"model": "far", "messages": messages, "n": 128, "max_tokens": 50})),
        (CHAT, json!({"model": "far", "messages": messages, "n": 128, "max_tokens": 50, "stream": true})),
        (CHAT, json!({"model": "far", "messages": messages, "n": 1e9})),
        (CHAT, json!({"model": "far", "messages": messages, "n": 8})),
        (CHAT, json!({"model": "gemini", "messages": messages, "n": 8, "max_completion_tokens": 50})),
        ("/v1/completions", json!({"model": "far", "prompt": many, "max_tokens": 50})),
        ("/v1/completions", json!({"model": "far", "prompt": [[1, 2], [3, 4], [5]], "max_tokens": 50})),
        ("/v1/completions", json!({"model": "far", "prompt": ["a", "b"], "n": 2, "max_tokens": 50})),
        ("/v1/completions", json!({"model": "far", "prompt": "Hi", "best_of": 20, "max_tokens": 50})),
        (
            "/v1beta/models/gemini:generateContent",
            json!({"contents": contents, "generationConfig": config(8)}),
        ),
        ("/v1beta/models/far:generateContent", json!({"contents": contents, "generationConfig": config(8)})),
    ] {
        let (status, answer) = ask(&f, &key, path, &body).await;
        let text = answer.to_string();
        assert!(status == 429 && text.contains("ask for fewer"), "{path} {body}: {status} {answer}");
    }
    // What some providers read as a number is none here: nobody could say what it costs.
    for n in [json!("128"), json!(true), json!(-1), json!([14]), json!(1.5)] {
        for (path, body) in [
            (CHAT, json!({"model": "far", "messages": messages, "n": n, "max_tokens": 50, "stream": true})),
            ("/v1/completions", json!({"model": "far", "prompt": "Hi", "n": n, "max_tokens": 50})),
            ("/v1/completions", json!({"model": "far", "prompt": "Hi", "best_of": n, "max_tokens": 50})),
        ] {
            let (status, answer) = ask(&f, &key, path, &body).await;
            assert_eq!(status, 400, "{path} {body}: {answer}");
        }
    }
    assert!(up.seen().is_empty(), "{:?}", up.seen().last());
    for (path, body) in [
        (CHAT, json!({"model": "far", "messages": messages, "n": 2, "max_tokens": 50})),
        ("/v1/completions", json!({"model": "far", "prompt": [1, 2, 3, 4, 5, 6], "max_tokens": 50})),
    ] {
        let (status, answer) = ask(&f, &key, path, &body).await;
        assert_ne!(status, 429, "{path} {body}: {answer}");
    }
    // The operator's own requests are not limited.
    let (status, answer) =
        ask(&f, "sk-master", CHAT, &json!({"model": "far", "messages": messages, "n": 128})).await;
    assert_eq!(status, 200, "{answer}");
}

/// The maximum length of an answer is reserved by the name that each dialect has for it.
#[tokio::test(flavor = "multi_thread")]
async fn long_answers_are_reserved_in_every_dialect() {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (path, body) in [
        (CHAT, json!({"model": "far", "messages": messages, "max_tokens": 100})),
        ("/v1/messages", json!({"model": "claude", "messages": messages, "max_tokens": 100})),
        ("/v1/messages", json!({"model": "far", "messages": messages, "max_tokens": 100})),
        ("/api/chat", json!({"model": "llama", "messages": messages, "options": {"num_predict": 100}})),
        ("/v1/responses", json!({"model": "own", "input": "Hi", "max_output_tokens": 100})),
        ("/v1/responses", json!({"model": "far", "input": "Hi", "max_output_tokens": 100, "store": false})),
    ] {
        let (end, ended) = watch::channel(false);
        let up = Upstream::start(move |_| vec![Step::Wait(ended.clone()), Step::Close]).await;
        let (f, key, _folder) = fixture(&up).await;
        let running = f.request(path, &body).bearer_auth(&key).send();
        let running = tokio::spawn(running);
        let began = std::time::Instant::now();
        while up.seen().is_empty() {
            assert!(began.elapsed() < PATIENCE, "{path} {body}: it never arrives");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let (status, answer) = ask(&f, &key, path, &body).await;
        assert!(status == 429 && answer.to_string().contains("used up"), "{path} {body}: {status} {answer}");
        end.send(true).unwrap();
        let _ = running.await.unwrap();
    }
}

/// An answer in one piece or in a stream, by OpenAI's or Anthropic's API, with this usage.
fn counting(seen: &Seen, prompt: &Value, completion: &Value) -> Vec<Step> {
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": completion});
    let head = json!({"id": "x", "created": 1, "model": "m"});
    let choice = |piece: Value| with(&json!({"index": 0, "finish_reason": "stop"}), piece);
    match seen.path.as_str() {
        "/v1/messages" => answer(
            "200 OK",
            &json!({"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "Hi"}],
                "stop_reason": "end_turn", "stop_sequence": null, "usage": {"input_tokens": prompt, "output_tokens": completion}}),
        ),
        _ if seen.body["stream"] == true => vec![
            Step::Send(STREAM_HEAD.into()),
            delta("Hi"),
            event(&with(
                &head,
                json!({"object": "chat.completion.chunk", "choices": [choice(json!({"delta": {}}))]}),
            )),
            event(&with(&head, json!({"object": "chat.completion.chunk", "choices": [], "usage": usage}))),
            chunk("data: [DONE]\n\n"),
            Step::Send("0\r\n\r\n".into()),
        ],
        _ => {
            let message = json!({"message": {"role": "assistant", "content": "Hi"}});
            let body = json!({"object": "chat.completion", "choices": [choice(message)], "usage": usage});
            answer("200 OK", &with(&head, body))
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_count_of_a_provider_uses_up_no_budget() {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (prompt, completion) in [
        (json!(1_u64 << 63), json!(1_u64 << 63)),
        (json!(3), json!(u64::MAX)),
        (json!(u64::MAX), json!(2)),
        (json!(3), json!(1_000_000)),
    ] {
        let (of_prompt, of_answer) = (prompt.clone(), completion.clone());
        let up = Upstream::start(move |seen| counting(seen, &of_prompt, &of_answer)).await;
        let (f, key, _folder) = fixture(&up).await;
        for (path, model) in
            [(CHAT, "far"), ("/v1/messages", "claude"), ("/v1/messages", "far"), (CHAT, "claude")]
        {
            for stream in [false, true] {
                // The script streams in one dialect only.
                if stream && model != "far" {
                    continue;
                }
                let body = json!({"model": model, "messages": messages, "max_tokens": 5, "stream": stream});
                let response = f.request(path, &body).bearer_auth(&key).send().await.unwrap();
                let status = response.status();
                let text = response.text().await.unwrap();
                assert_eq!(status, 200, "{path} {body} {prompt} {completion}: {text}");
            }
        }
        let info = f.client.get(f.url(&format!("/key/info?key={key}"))).bearer_auth("sk-master");
        let info = read(info.send().await.unwrap()).await.1;
        let spend = info["info"]["spend"].as_f64().unwrap();
        assert!(spend > 0.0 && spend < 0.5, "{info}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_own_timeout_is_its_own_fault() {
    let up = Upstream::start(|seen| match seen.body.to_string().contains("slow") {
        true => vec![Step::Sleep(3_600_000)],
        false => says(seen, "Hi"),
    })
    .await;
    let f = Fixture::routed(&format!(
        "model_list:\n- {{model_name: m, litellm_params: {{model: hosted_vllm/a, api_base: \"{base}/v1\"}}}}\n- {{model_name: m, litellm_params: {{model: hosted_vllm/b, api_base: \"{base}/v1\"}}}}\nrouter_settings: {{num_retries: 2, allowed_fails: 1}}\n",
        base = up.base
    ))
    .await;
    for stream in [false, true] {
        for _ in 0..6 {
            let body = json!({"model": "m", "timeout": 0.05, "stream": stream, "messages": [{"role": "user", "content": "slow"}]});
            let (status, answer) = f.post(CHAT, &body).await;
            let error = &answer["error"];
            assert_eq!((status, error["param"].as_str()), (408, Some("timeout")), "{answer}");
        }
    }
    assert_eq!(up.seen().len(), 12, "a request is not sent again");
    for _ in 0..4 {
        assert_eq!(f.post(CHAT, &with(&chat("Hello"), json!({"model": "m"}))).await.0, 200);
    }
    let metrics = f.client.get(f.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let failures: Vec<&str> =
        metrics.lines().filter(|l| l.starts_with("octet:route_failures_total")).collect();
    assert!(failures.iter().all(|l| l.contains("client_timeout")) && !failures.is_empty(), "{failures:?}");
}

/// A request that excludes every token is refused, by a model alone and behind the router, and no deployment is put into cooldown.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_excludes_every_token_is_the_clients_fault() {
    let alone = Fixture::start().await;
    let routed = Fixture::routed(
        "model_list:\n- {model_name: tiny, litellm_params: {model: octet/tiny}}\n- {model_name: tiny, litellm_params: {model: octet/tiny2}}\nrouter_settings: {num_retries: 0, allowed_fails: 1}\n",
    )
    .await;
    // The error for a token that does not exist says how many there are.
    let (_, answer) = alone.post(CHAT, &with(&chat("Hi"), json!({"logit_bias": {"4000000000": 1}}))).await;
    let message = answer["error"]["message"].as_str().unwrap();
    let vocabulary: u32 = message.rsplit(' ').next().unwrap().parse().expect(message);
    let all: serde_json::Map<String, Value> =
        (0..vocabulary).map(|id| (id.to_string(), json!(-100))).collect();
    let none: Vec<Value> = (0..vocabulary).map(|id| json!([id, false])).collect();
    for f in [&alone, &routed] {
        let mut ask =
            json!({"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]});
        // A bias of -100 makes tokens improbable, not impossible.
        let (status, answer) = f.post(CHAT, &with(&ask, json!({"logit_bias": all}))).await;
        assert_eq!(status, 200, "{answer}");
        ask["logit_bias"] = none.clone().into();
        for _ in 0..4 {
            let (status, answer) = f.post(CHAT, &ask).await;
            assert_eq!((status, answer["error"]["param"].as_str()), (400, Some("logit_bias")), "{answer}");
            // A stream may have begun.
            let stream = f.send(CHAT, &with(&ask, json!({"stream": true}))).await;
            let text = stream.text().await.unwrap();
            assert!(text.contains("invalid_request_error") && text.contains("\"logit_bias\""), "{text}");
        }
        for _ in 0..4 {
            let form = json!({"structured_outputs": {"choice": ["a"]}});
            let (status, answer) = f.post(CHAT, &with(&ask, form)).await;
            assert_eq!(status, 400, "{answer}");
        }
        let (status, answer) = f.post(CHAT, &with(&chat("Hello"), json!({"model": "tiny"}))).await;
        assert_eq!(status, 200, "{answer}");
    }
    let metrics = routed.client.get(routed.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let failures: Vec<&str> =
        metrics.lines().filter(|l| l.starts_with("octet:route_failures_total")).collect();
    assert!(failures.iter().all(|l| l.contains("bad_request")) && !failures.is_empty(), "{failures:?}");
}
