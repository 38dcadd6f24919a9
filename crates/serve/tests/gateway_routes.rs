//! The router in front: clients of all dialects reach providers and models in this process, and what fails is not seen.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::upstream::{STREAM_HEAD, Step, Upstream, answer, delta, nobody, says};
use common::{Fixture, chat, model, with};
use octet_config::{Config, Disk};
use octet_serve::{Options, Routes};
use reqwest::Response;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

fn ask(name: &str) -> Value {
    with(&chat("Hello"), json!({"model": name}))
}

fn messages(name: &str) -> Value {
    json!({"model": name, "max_tokens": 12, "messages": [{"role": "user", "content": "Hello"}]})
}

/// An entry of a group.
fn entry(group: &str, model: &str, base: &str, more: &str) -> String {
    format!(
        "- {{model_name: {group}, litellm_params: {{model: {model}, api_base: \"{base}\", api_key: sk-theirs{more}}}}}\n"
    )
}

fn header(answer: &Response, name: &str) -> String {
    answer.headers().get(name).map(|v| v.to_str().unwrap().to_string()).unwrap_or_default()
}

fn said(body: &Value) -> &str {
    body["choices"][0]["message"]["content"].as_str().unwrap_or_default()
}

/// The text of a stream of OpenAI's.
fn streamed(events: &[(String, Value)]) -> String {
    events.iter().filter_map(|(_, e)| e["choices"][0]["delta"]["content"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_dialect_reaches_every_kind() {
    let up = Upstream::saying("Hi there").await;
    let text = format!(
        "model_list:\n{}{}{}- {{model_name: local, litellm_params: {{model: octet/tiny}}}}\n",
        entry("far", "hosted_vllm/theirs", &format!("{}/v1", up.base), ""),
        entry("claude", "anthropic/theirs", &up.base, ""),
        entry("llama", "ollama/theirs", &up.base, ""),
    );
    let f = Fixture::routed(&text).await;
    for name in ["far", "claude", "llama"] {
        let answer = f.send(CHAT, &ask(name)).await;
        assert_eq!(header(&answer, "x-octet-model"), "theirs");
        assert!(header(&answer, "x-octet-route").starts_with(name), "{:?}", answer.headers());
        let (status, body) = common::read(answer).await;
        assert_eq!((status, said(&body)), (200, "Hi there"), "{name}: {body}");
        let body = f.ok(MESSAGES, &messages(name)).await;
        assert_eq!(body["content"][0]["text"], "Hi there", "{name}");
        let body = f
            .ok(
                "/api/chat",
                &json!({"model": name, "stream": false,
            "messages": [{"role": "user", "content": "Hello"}]}),
            )
            .await;
        assert_eq!(body["message"]["content"], "Hi there", "{name}");
    }
    for (path, body) in [
        (CHAT, ask("local")),
        (MESSAGES, messages("local")),
        (
            "/api/chat",
            json!({"model": "local:latest", "stream": false, "options": {"num_predict": 4},
            "messages": [{"role": "user", "content": "Hello"}]}),
        ),
        ("/v1/completions", json!({"model": "local", "prompt": "Once", "max_tokens": 4})),
        ("/v1/responses", json!({"model": "local", "input": "Hello", "max_output_tokens": 20})),
    ] {
        let answer = f.send(path, &body).await;
        assert_eq!(header(&answer, "x-octet-model"), "tiny", "{path}");
        let (status, body) = common::read(answer).await;
        assert_eq!(status, 200, "{path}: {body}");
    }
    let metrics = f.text("/metrics").await;
    assert!(metrics.contains("octet:routed_requests_total{group=\"far\""), "{metrics}");
    let (status, body) = f.post(CHAT, &ask("nobody")).await;
    assert_eq!((status, body["error"]["code"].as_str()), (404, Some("model_not_found")));
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_pass_where_the_dialect_is_the_same() {
    let up = Upstream::saying("Hi").await;
    let base = format!("{}/v1", up.base);
    let f = Fixture::routed(&format!("model_list:\n{}", entry("far", "hosted_vllm/theirs", &base, ""))).await;
    let new = json!({"a": [1.50, "}"], "b": null});
    let body = with(&ask("far"), json!({"something_new": new, "stream": true}));
    let events = f.events(CHAT, &body).await;
    assert_eq!(streamed(&events), "Hi");
    assert_eq!(events.last().unwrap().1, "[DONE]");
    assert!(events.iter().all(|(_, e)| e["usage"].is_null()), "counted for us alone: {events:?}");
    let seen = up.last();
    assert_eq!((&seen.body["model"], &seen.body["something_new"]), (&json!("theirs"), &new));
    assert!(seen.head.to_lowercase().contains("authorization: bearer sk-theirs"), "{}", seen.head);
    // a model here reads all of it, and says what it does not know
    let f = Fixture::routed("model_list: [{model_name: a, litellm_params: {model: octet/tiny}}]").await;
    let (status, body) = f.post(CHAT, &with(&ask("a"), json!({"max_tokens": "many"}))).await;
    assert_eq!((status, body["error"]["param"].as_str()), (400, Some("max_tokens")), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_refuses_is_passed_over_for_another() {
    let up = Upstream::saying("From the second").await;
    let sick =
        Upstream::start(|_| answer("500 Internal Server Error", &json!({"error": {"message": "no"}}))).await;
    for base in [nobody().await, sick.base.clone()] {
        let text = format!(
            "model_list:\n{}{}router_settings: {{fallbacks: [{{first: [second]}}], num_retries: 0}}\n",
            entry("first", "hosted_vllm/a", &format!("{base}/v1"), ""),
            entry("second", "hosted_vllm/b", &format!("{}/v1", up.base), ""),
        );
        let f = Fixture::routed(&text).await;
        for stream in [false, true] {
            let answer = f.send(CHAT, &with(&ask("first"), json!({"stream": stream}))).await;
            assert_eq!(header(&answer, "x-octet-model"), "b");
            let route = header(&answer, "x-octet-route");
            assert!(route.contains('!') || route.contains("fallback=second"), "{route}");
            assert!(answer.text().await.unwrap().contains("From the second"));
        }
        assert_eq!(f.ok(MESSAGES, &messages("first")).await["content"][0]["text"], "From the second");
    }
    // nobody is left: told in the client's own words
    let f = Fixture::routed(&format!(
        "model_list:\n{}router_settings: {{num_retries: 0}}\n",
        entry("first", "hosted_vllm/a", &format!("{}/v1", nobody().await), "")
    ))
    .await;
    let (status, body) = f.post(MESSAGES, &messages("first")).await;
    assert_eq!((status, body["type"].as_str()), (502, Some("error")), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_break_are_not_silent() {
    let good = Upstream::saying("Whole").await;
    // before anything is said another answers
    let early = Upstream::start(|_| vec![Step::Send(STREAM_HEAD.into()), Step::Sleep(20), Step::Reset]).await;
    // after that there is an error
    let late =
        Upstream::start(|_| vec![Step::Send(STREAM_HEAD.into()), delta("Ha"), Step::Sleep(50), Step::Reset])
            .await;
    let text = format!(
        "model_list:\n{}{}{}router_settings: {{fallbacks: [{{early: [good]}}, {{late: [good]}}], num_retries: 0}}\n",
        entry("early", "openai_like/a", &format!("{}/v1", early.base), ""),
        entry("late", "openai_like/b", &format!("{}/v1", late.base), ""),
        entry("good", "openai_like/c", &format!("{}/v1", good.base), ""),
    );
    let f = Fixture::routed(&text).await;
    let stream = |name| with(&ask(name), json!({"stream": true}));
    let events = f.events(CHAT, &stream("early")).await;
    assert_eq!(streamed(&events), "Whole");
    let events = f.events(CHAT, &stream("late")).await;
    assert_eq!(streamed(&events), "Ha", "nothing is said twice");
    assert!(events.iter().any(|(_, e)| e["error"]["message"].is_string()), "{events:?}");
    let events = f.events(MESSAGES, &with(&messages("late"), json!({"stream": true}))).await;
    assert!(events.iter().any(|(name, _)| name == "error"), "{events:?}");
    // a whole answer is asked for again
    let cut = Upstream::start(|seen| {
        if seen.body["stream"] == true {
            says(seen, "x")
        } else {
            vec![Step::Send("HTTP/1.1 200".into()), Step::Reset]
        }
    })
    .await;
    let text = format!(
        "model_list:\n{}{}router_settings: {{fallbacks: [{{cut: [good]}}], num_retries: 0}}\n",
        entry("cut", "openai_like/a", &format!("{}/v1", cut.base), ""),
        entry("good", "openai_like/c", &format!("{}/v1", good.base), ""),
    );
    let f = Fixture::routed(&text).await;
    assert_eq!(said(&f.ok(CHAT, &ask("cut")).await), "Whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_here_goes_on_where_another_broke_off() {
    let late = Upstream::start(|seen| {
        assert_eq!(seen.path, "/v1/messages");
        vec![
            Step::Send(STREAM_HEAD.into()),
            common::upstream::chunk("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"x\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}\n\n"),
            common::upstream::chunk("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"),
            common::upstream::chunk("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"One, two\"}}\n\n"),
            Step::Sleep(50),
            Step::Reset,
        ]
    })
    .await;
    // one that speaks as the client does, and whose bytes would pass unread if nobody could go on
    let alike = Upstream::start(|_| {
        vec![Step::Send(STREAM_HEAD.into()), delta("One, two"), Step::Sleep(50), Step::Reset]
    })
    .await;
    let text = format!(
        "model_list:\n{}{}- {{model_name: here, litellm_params: {{model: octet/tiny}}}}\nrouter_settings: {{fallbacks: [{{late: [here]}}, {{alike: [here]}}], num_retries: 0, disable_cooldowns: true}}\n",
        entry("late", "anthropic/a", &late.base, ""),
        entry("alike", "hosted_vllm/b", &format!("{}/v1", alike.base), ""),
    );
    let f = Fixture::routed(&text).await;
    for name in ["late", "alike"] {
        let events = f.events(CHAT, &with(&ask(name), json!({"stream": true}))).await;
        let said = streamed(&events);
        assert!(said.starts_with("One, two") && said.len() > "One, two".len(), "{events:?}");
        assert_eq!(said.matches("One, two").count(), 1, "{events:?}");
        assert_eq!(events.last().unwrap().1, "[DONE]", "{events:?}");
        assert!(events.iter().all(|(_, e)| e["error"].is_null()), "{events:?}");
    }
    // what only the provider knows still goes there, and then ends with an error
    let body = with(&ask("alike"), json!({"stream": true, "something_new": 1}));
    let events = f.events(CHAT, &body).await;
    assert_eq!(alike.last().body["something_new"], 1);
    assert_eq!(streamed(&events), "One, two");
    assert!(events.iter().any(|(_, e)| e["error"]["message"].is_string()), "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_aliases_and_stars() {
    let (a, b) = (Upstream::saying("a").await, Upstream::saying("b").await);
    let text = format!(
        "model_list:\n{}{}{}router_settings: {{model_group_alias: {{gpt-4o: both}}}}\n",
        entry("both", "hosted_vllm/a", &format!("{}/v1", a.base), ", weight: 3"),
        entry("both", "hosted_vllm/b", &format!("{}/v1", b.base), ", weight: 1"),
        entry("\"any/*\"", "\"hosted_vllm/*\"", &format!("{}/v1", a.base), ""),
    );
    let f = Fixture::routed(&text).await;
    for _ in 0..60 {
        f.ok(CHAT, &ask("gpt-4o")).await;
    }
    let (from_a, from_b) = (a.seen().len(), b.seen().len());
    assert!(from_a + from_b == 60 && from_a > from_b && from_b > 0, "{from_a} {from_b}");
    f.ok(CHAT, &ask("any/thing")).await;
    assert_eq!(a.last().body["model"], "thing");
    let (_, list) = f.get("/v1/models").await;
    let names: Vec<&str> = list["data"].as_array().unwrap().iter().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!(names, ["both", "gpt-4o"]);
    let (_, tags) = f.get("/api/tags").await;
    assert_eq!(tags["models"].as_array().unwrap().len(), 2);
    assert_eq!(f.get("/v1/models/any/thing").await.0, 200);
    assert_eq!(f.get("/v1/models/none").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn cascades_send_what_is_hard_to_the_strong_one() {
    let strong = Upstream::saying("Strong").await;
    let text = format!(
        "model_list:\n{}- {{model_name: fast, litellm_params: {{model: octet/tiny}}}}\ncascades:\n- {{model_name: auto, fast: fast, strong: strong, rules: [{{system: 'be careful'}}], confidence: {{window: 4, mean_logprob: -0.0001}}}}\n- {{model_name: easy, fast: fast, strong: strong, confidence: {{window: 4, mean_logprob: -90}}}}\n",
        entry("strong", "hosted_vllm/theirs", &format!("{}/v1", strong.base), ""),
    );
    let f = Fixture::routed(&text).await;
    let careful = json!([{"role": "system", "content": "be careful"}, {"role": "user", "content": "Hello"}]);
    let answer = f.send(CHAT, &with(&ask("auto"), json!({"messages": careful}))).await;
    assert!(header(&answer, "x-octet-route").contains("rule("), "{:?}", answer.headers());
    assert_eq!(said(&common::read(answer).await.1), "Strong");
    // a model with random weights is never sure
    let answer = f.send(CHAT, &ask("auto")).await;
    assert!(header(&answer, "x-octet-route").contains("=escalated"), "{:?}", answer.headers());
    assert_eq!(said(&common::read(answer).await.1), "Strong");
    let answer = f.send(CHAT, &with(&ask("easy"), json!({"stream": true}))).await;
    assert!(header(&answer, "x-octet-route").contains("=kept"), "{:?}", answer.headers());
    assert_eq!(header(&answer, "x-octet-model"), "tiny");
    let text = answer.text().await.unwrap();
    assert!(text.contains("[DONE]") && !text.contains("logprobs\":{"), "{text}");
    let metrics = f.text("/metrics").await;
    assert!(metrics.contains("octet:route_confidence_total{verdict=\"escalated\"} 1"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_and_counts() {
    let up = Upstream::saying("x").await;
    let text = format!(
        "model_list:\n{}- {{model_name: local, litellm_params: {{model: octet/tiny}}}}\n",
        entry("far", "hosted_vllm/theirs", &format!("{}/v1", up.base), ""),
    );
    let f = Fixture::routed(&text).await;
    let body = f.ok("/v1/embeddings", &json!({"model": "far", "input": "Hello"})).await;
    assert_eq!(body["data"][0]["embedding"], json!([0.5, -0.5]));
    let body = f.ok("/api/embed", &json!({"model": "far", "input": "Hello"})).await;
    assert_eq!(body["embeddings"][0], json!([0.5, -0.5]), "in another dialect");
    let body = f.ok("/api/embeddings", &json!({"model": "far", "prompt": "Hello"})).await;
    assert_eq!(body["embedding"], json!([0.5, -0.5]), "{body}");
    for (path, body) in [
        ("/v1/embeddings", json!({"model": "local", "input": ["Hello", "you"]})),
        ("/api/embed", json!({"model": "local", "input": "Hello"})),
        ("/api/embeddings", json!({"model": "local", "prompt": "Hello"})),
    ] {
        f.ok(path, &body).await;
    }
    let counted = json!({"model": "local", "messages": [{"role": "user", "content": "Hello"}]});
    let counted = f.ok("/v1/messages/count_tokens", &counted).await;
    assert!(counted["input_tokens"].as_u64().unwrap() > 1, "{counted}");
    let tokens = f.ok("/tokenize", &json!({"model": "local", "content": "Hello"})).await;
    assert!(tokens["count"].as_u64().unwrap() > 0);
    assert_eq!(f.post("/tokenize", &json!({"model": "far", "content": "Hello"})).await.0, 400);
    assert_eq!(f.post("/v1/embeddings", &json!({"input": "Hello"})).await.0, 400);
    let (status, ready) = f.get("/ready").await;
    assert_eq!((status, ready["status"].as_str()), (200, Some("ready")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_file_is_taken_over_and_a_broken_one_is_not() {
    let (a, b) = (Upstream::saying("from a").await, Upstream::saying("from b").await);
    let slow = Upstream::start(|_| {
        let mut steps = vec![Step::Send(STREAM_HEAD.into()), delta("slow")];
        steps.extend([Step::Sleep(1500), delta("ly")]);
        let end = json!({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
        steps.extend([
            common::upstream::event(&end),
            common::upstream::chunk("data: [DONE]\n\n"),
            Step::Send("0\r\n\r\n".into()),
        ]);
        steps
    })
    .await;
    let text = |base: &str| {
        format!(
            "model_list:\n{}{}",
            entry("m", "hosted_vllm/theirs", &format!("{base}/v1"), ""),
            entry("slow", "hosted_vllm/theirs", &format!("{}/v1", slow.base), "")
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("octet.yaml");
    std::fs::write(&file, text(&a.base)).unwrap();
    let load = {
        let file = file.clone();
        move || Config::load(&file, &Disk(|_: &str| None)).map_err(|e| e.to_string())
    };
    let loads = Arc::new(AtomicUsize::new(0));
    let counted = {
        let (load, loads) = (load.clone(), Arc::clone(&loads));
        move || {
            loads.fetch_add(1, Ordering::Relaxed);
            load()
        }
    };
    let made = Routes {
        reload: Arc::new(counted),
        watch: Some(Duration::from_millis(50)),
        local: Arc::new(|name, _| Ok(model(name))),
        config: load().unwrap(),
    };
    let f = Fixture::with(Options { routes: Some(made), ..Options::new(Vec::new()) }).await;
    assert_eq!(said(&f.ok(CHAT, &ask("m")).await), "from a");
    let mut running = f.send(CHAT, &with(&ask("slow"), json!({"stream": true}))).await;
    assert!(running.chunk().await.unwrap().is_some());
    let gateway = Arc::clone(f.app.gateway().unwrap());

    std::fs::write(&file, "model_list:\n- {model_name: m, litellm_params: {model: olama/x}}\n").unwrap();
    f.until("the broken file was looked at", || loads.load(Ordering::Relaxed) == 1).await;
    assert_eq!(said(&f.ok(CHAT, &ask("m")).await), "from a");
    assert_eq!(gateway.reloads(), 0);

    // the new one has a model of this process too
    let new = format!(
        "{}- {{model_name: here, litellm_params: {{model: octet/new}}}}\n",
        text(&b.base).replace("model_name: slow", "model_name: other")
    );
    std::fs::write(&file, new).unwrap();
    f.until("the new one is taken", || gateway.reloads() == 1).await;
    assert_eq!(said(&f.ok(CHAT, &ask("m")).await), "from b");
    assert_eq!(f.post(CHAT, &ask("slow")).await.0, 404);
    assert_eq!(f.post(CHAT, &ask("here")).await.0, 200);
    let rest = running.text().await.unwrap();
    assert!(rest.contains("ly") && rest.contains("[DONE]"), "what runs finishes on the old one: {rest}");

    std::fs::write(&file, text(&a.base)).unwrap();
    f.until("and back", || gateway.reloads() == 2).await;
    f.until("its model makes way", || f.app.models.loaded(0).is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_lost_its_keys_does_not_open_the_server() {
    let up = Upstream::saying("Hi").await;
    let models = format!("model_list:\n{}", entry("m", "hosted_vllm/theirs", &format!("{}/v1", up.base), ""));
    let locked = format!("{models}general_settings: {{master_key: sk-master}}\n");
    let text = Arc::new(std::sync::Mutex::new(locked.clone()));
    let now = Arc::clone(&text);
    let parse =
        |text: &str| Config::parse("octet.yaml", text, &Disk(|_: &str| None)).map_err(|e| e.to_string());
    let made = Routes { reload: Arc::new(move || parse(&now.lock().unwrap())), ..common::routes(&locked) };
    let f = Fixture::with(Options { routes: Some(made), ..Options::new(Vec::new()) }).await;
    let gateway = Arc::clone(f.app.gateway().unwrap());
    assert_eq!(f.post(CHAT, &ask("m")).await.0, 401);
    // The same file without its end.
    *text.lock().unwrap() = models;
    assert!(gateway.reload().unwrap_err().contains("no key is named any more"));
    assert_eq!(f.post(CHAT, &ask("m")).await.0, 401);
    *text.lock().unwrap() = locked.replace("sk-master", "sk-other");
    gateway.reload().unwrap();
    for (key, status) in [("sk-master", 401), ("sk-other", 200)] {
        let answer = f.request(CHAT, &ask("m")).bearer_auth(key).send().await.unwrap();
        assert_eq!(answer.status(), status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_waits_for_what_is_elsewhere() {
    let up = Upstream::start(|seen| {
        let mut steps = vec![Step::Sleep(600)];
        steps.extend(says(seen, "Late"));
        steps
    })
    .await;
    let f = Fixture::routed(&format!(
        "model_list:\n{}",
        entry("m", "hosted_vllm/x", &format!("{}/v1", up.base), "")
    ))
    .await;
    let asked = f.request(CHAT, &ask("m"));
    let running = tokio::spawn(async move { asked.send().await.unwrap().text().await.unwrap() });
    f.until("it is on its way", || f.app.busy() == 1).await;
    f.stage.send(octet_serve::Stage::Drain).unwrap();
    assert!(running.await.unwrap().contains("Late"));
    f.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_beyond_reason_harm_nobody() {
    let message = json!({"role": "assistant", "content": "Hi"});
    let whole = json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": u64::MAX, "completion_tokens": u64::MAX, "total_tokens": u64::MAX}});
    let up = Upstream::start(move |_| answer("200 OK", &whole)).await;
    let m = entry("m", "hosted_vllm/theirs", &format!("{}/v1", up.base), "");
    let f = Fixture::routed(&format!("model_list:\n{m}")).await;
    for _ in 0..3 {
        assert_eq!(said(&f.ok(CHAT, &ask("m")).await), "Hi");
        assert_eq!(f.post("/v1/messages", &messages("m")).await.0, 200);
        assert_eq!(f.get("/metrics").await.0, 200);
    }
}
