//! The router in front: clients of all dialects reach providers and models in this process, and what fails is not seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::upstream::{STREAM_HEAD, Seen, Step, Upstream, answer, chunk, delta, event, says, typed};
use crate::common::{Fixture, chat, model, with};
use octet_config::{Config, Disk};
use octet_serve::{Options, Routes};
use reqwest::Response;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
/// Where models of this process are.
const HERE: &str = "";

fn ask(name: &str) -> Value {
    with(&chat("Hello"), json!({"model": name}))
}

fn messages(name: &str) -> Value {
    json!({"model": name, "max_tokens": 12, "messages": [{"role": "user", "content": "Hello"}]})
}

/// A file with these deployments (their groups, their models, where they are), and what follows them.
fn file(deployments: &[(&str, &str, &str)], rest: &str) -> String {
    let entry = |(group, model, base): &(&str, &str, &str)| {
        let is_openai = model.contains("hosted_vllm/") || model.contains("openai_like/");
        let path = if is_openai { "/v1" } else { "" };
        let at = match *base {
            HERE => String::new(),
            base => format!(", api_base: \"{base}{path}\", api_key: sk-theirs"),
        };
        format!("- {{model_name: {group}, litellm_params: {{model: {model}{at}}}}}\n")
    };
    format!("model_list:\n{}{rest}", deployments.iter().map(entry).collect::<String>())
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
    let far = [("far", "hosted_vllm/theirs"), ("claude", "anthropic/theirs"), ("llama", "ollama/theirs")];
    let mut all = far.map(|(group, model)| (group, model, up.base.as_str())).to_vec();
    all.push(("local", "octet/tiny", HERE));
    let f = Fixture::routed(&file(&all, "")).await;
    let ollama = |name: &str| {
        let options = json!({"options": {"num_predict": 4}, "stream": false});
        with(&json!({"model": name, "messages": [{"role": "user", "content": "Hello"}]}), options)
    };
    for (name, _) in far {
        for (path, body, text) in [
            (CHAT, ask(name), "/choices/0/message/content"),
            (MESSAGES, messages(name), "/content/0/text"),
            ("/api/chat", ollama(name), "/message/content"),
        ] {
            let answer = f.send(path, &body).await;
            assert_eq!(header(&answer, "x-octet-model"), "theirs");
            assert!(header(&answer, "x-octet-route").starts_with(name), "{:?}", answer.headers());
            let (status, body) = crate::common::read(answer).await;
            assert_eq!(
                (status, body.pointer(text)),
                (200, Some(&json!("Hi there"))),
                "{name} {path}: {body}"
            );
        }
    }
    for (path, body) in [
        (CHAT, ask("local")),
        (MESSAGES, messages("local")),
        ("/api/chat", ollama("local:latest")),
        ("/v1/completions", json!({"model": "local", "prompt": "Once", "max_tokens": 4})),
        ("/v1/responses", json!({"model": "local", "input": "Hello", "max_output_tokens": 20})),
    ] {
        let answer = f.send(path, &body).await;
        assert_eq!(header(&answer, "x-octet-model"), "tiny", "{path}");
        let (status, body) = crate::common::read(answer).await;
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
    let text = file(&[("far", "hosted_vllm/theirs", &up.base), ("local", "octet/tiny", HERE)], "");
    let f = Fixture::routed(&text).await;
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
    let (status, body) = f.post(CHAT, &with(&ask("local"), json!({"max_tokens": "many"}))).await;
    assert_eq!((status, body["error"]["param"].as_str()), (400, Some("max_tokens")), "{body}");
}

/// The tokens in Ollama's `context` mean something only to the server that returned them.
#[tokio::test(flavor = "multi_thread")]
async fn a_context_of_another_ollama_server_goes_back_to_it() {
    let line = json!({"model": "theirs", "created_at": "2026-11-21T00:00:00Z", "response": "Hi", "done": true, "context": [1, 2, 3]});
    let up = Upstream::start(move |_| typed("application/x-ndjson", &format!("{line}\n"))).await;
    let deployments = [("llama", "ollama/theirs", up.base.as_str()), ("far", "hosted_vllm/theirs", &up.base)];
    let f = Fixture::routed(&file(&deployments, "")).await;
    let ask = |name: &str| json!({"model": name, "prompt": "Go on", "context": [1, 2, 3]});
    let lines = f.lines("/api/generate", &ask("llama")).await;
    assert_eq!((&lines[0]["response"], &lines[0]["context"]), (&json!("Hi"), &json!([1, 2, 3])));
    assert_eq!((up.last().path.as_str(), &up.last().body["context"]), ("/api/generate", &json!([1, 2, 3])));
    let (status, body) = f.post("/api/generate", &ask("far")).await;
    assert_eq!(status, 400, "the provider has no such field: {body}");
    assert_eq!(up.seen().len(), 1);
}

/// A context is written by this server if any deployment of the model cannot read Ollama's, or if another model answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_context_of_this_server_is_never_sent_to_ollama() {
    let is_sick = Arc::new(AtomicUsize::new(1));
    let sick = Arc::clone(&is_sick);
    let line =
        json!({"model": "theirs", "created_at": "2026-11-21T00:00:00Z", "done": true, "context": [1, 2, 3]});
    let llama = Upstream::start(move |seen| match (sick.load(Ordering::Relaxed), seen.path.as_str()) {
        (1, _) => answer("500 Internal Server Error", &json!({"error": "no"})),
        (_, "/api/generate") => {
            typed("application/json", &with(&line, json!({"response": "Hi"})).to_string())
        }
        _ => {
            let message = json!({"message": {"role": "assistant", "content": "Hi"}});
            typed("application/json", &with(&line, message).to_string())
        }
    })
    .await;
    let far = Upstream::saying("From the second").await;
    let entries = [
        ("llama", "ollama/theirs", llama.base.as_str()),
        ("far", "hosted_vllm/b", &far.base),
        ("mixed", "ollama/theirs", &llama.base),
        ("mixed", "hosted_vllm/b", octet_testkit::NOBODY),
    ];
    let rest = "router_settings: {fallbacks: [{llama: [far]}], num_retries: 0, allowed_fails: 1000}\n";
    let f = Fixture::routed(&file(&entries, rest)).await;
    let ask =
        |name: &str, more: Value| with(&json!({"model": name, "prompt": "Hello", "stream": false}), more);
    let first = f.ok("/api/generate", &ask("llama", json!({}))).await;
    assert_eq!(first["response"], "From the second", "{first}");
    is_sick.store(0, Ordering::Relaxed);
    // the first answer came from elsewhere: the conversation goes to Ollama as messages
    let second =
        f.ok("/api/generate", &ask("llama", json!({"prompt": "Go on", "context": first["context"]}))).await;
    let said = [("user", "Hello"), ("assistant", "From the second"), ("user", "Go on")];
    let said = said.map(|(role, text)| json!({"role": role, "content": text}));
    let seen = llama.last();
    assert_eq!((seen.path.as_str(), &seen.body["messages"]), ("/api/chat", &json!(said)), "{second}");
    assert!(second["context"].as_array().unwrap().len() > first["context"].as_array().unwrap().len());
    // only some deployments read Ollama's numbers: the conversation is never in them
    let before = llama.seen().len();
    let mut context = json!([]);
    for _ in 0..1000 {
        if llama.seen().len() >= before + 2 {
            break;
        }
        let (status, answer) = f.post("/api/generate", &ask("mixed", json!({"context": context}))).await;
        if status == 200 {
            assert_ne!(answer["context"], json!([1, 2, 3]));
            context = answer["context"].clone();
        }
    }
    let seen = llama.seen();
    assert!(seen.len() >= before + 2 && seen[before..].iter().all(|seen| seen.path == "/api/chat"));
    // refused here: other errors than of the context, and a request to unload with an error
    let seen = llama.seen().len();
    for wrong in
        [json!({"options": 3, "context": []}), json!({"prompt": "", "keep_alive": 0, "context": [1]})]
    {
        let (status, body) = f.post("/api/generate", &ask("llama", wrong)).await;
        assert_eq!(status, 400, "{body}");
    }
    assert_eq!(llama.seen().len(), seen);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_refuses_is_replaced_by_another() {
    let up = Upstream::saying("From the second").await;
    let sick =
        Upstream::start(|_| answer("500 Internal Server Error", &json!({"error": {"message": "no"}}))).await;
    let all = [
        ("gone", "hosted_vllm/a", octet_testkit::NOBODY),
        ("sick", "hosted_vllm/c", &sick.base),
        ("second", "hosted_vllm/b", &up.base),
        ("alone", "hosted_vllm/d", octet_testkit::NOBODY),
    ];
    let rest = "router_settings: {fallbacks: [{gone: [second]}, {sick: [second]}], num_retries: 0}\n";
    let f = Fixture::routed(&file(&all, rest)).await;
    for first in ["gone", "sick"] {
        for stream in [false, true] {
            let answer = f.send(CHAT, &with(&ask(first), json!({"stream": stream}))).await;
            assert_eq!(header(&answer, "x-octet-model"), "b");
            let route = header(&answer, "x-octet-route");
            assert!(route.contains('!') || route.contains("fallback=second"), "{route}");
            assert!(answer.text().await.unwrap().contains("From the second"));
        }
        assert_eq!(f.ok(MESSAGES, &messages(first)).await["content"][0]["text"], "From the second");
    }
    // nobody is left: told in the client's own words
    let (status, body) = f.post(MESSAGES, &messages("alone")).await;
    assert_eq!((status, body["type"].as_str()), (502, Some("error")), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_streams_end_with_an_error() {
    let good = Upstream::saying("Whole").await;
    // before anything is said another answers
    let early = Upstream::start(|_| vec![Step::Send(STREAM_HEAD.into()), Step::Sleep(20), Step::Reset]).await;
    // after that there is an error
    let late =
        Upstream::start(|_| vec![Step::Send(STREAM_HEAD.into()), delta("Ha"), Step::Sleep(50), Step::Reset])
            .await;
    // a whole answer is asked for again
    let cut = Upstream::start(|_| vec![Step::Send("HTTP/1.1 200".into()), Step::Reset]).await;
    let all = [
        ("early", "openai_like/a", &*early.base),
        ("late", "openai_like/b", &late.base),
        ("cut", "openai_like/c", &cut.base),
        ("good", "openai_like/d", &good.base),
    ];
    let rest =
        "router_settings: {fallbacks: [{early: [good]}, {late: [good]}, {cut: [good]}], num_retries: 0}\n";
    let f = Fixture::routed(&file(&all, rest)).await;
    let stream = |name| with(&ask(name), json!({"stream": true}));
    let events = f.events(CHAT, &stream("early")).await;
    assert_eq!(streamed(&events), "Whole");
    let events = f.events(CHAT, &stream("late")).await;
    assert_eq!(streamed(&events), "Ha", "nothing is said twice");
    assert!(events.iter().any(|(_, e)| e["error"]["message"].is_string()), "{events:?}");
    let events = f.events(MESSAGES, &with(&messages("late"), json!({"stream": true}))).await;
    assert!(events.iter().any(|(name, _)| name == "error"), "{events:?}");
    assert_eq!(said(&f.ok(CHAT, &ask("cut")).await), "Whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_model_continues_a_broken_answer() {
    let late = Upstream::start(|seen| {
        assert_eq!(seen.path, "/v1/messages");
        let message = json!({"id": "m", "type": "message", "role": "assistant", "model": "x", "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 3, "output_tokens": 1}});
        let block = json!({"type": "text", "text": ""});
        let delta = json!({"type": "text_delta", "text": "One, two"});
        vec![
            Step::Send(STREAM_HEAD.into()),
            event(&json!({"type": "message_start", "message": message})),
            event(&json!({"type": "content_block_start", "index": 0, "content_block": block})),
            event(&json!({"type": "content_block_delta", "index": 0, "delta": delta})),
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
    let all = [
        ("late", "anthropic/a", &*late.base),
        ("alike", "hosted_vllm/b", &alike.base),
        ("here", "octet/tiny", HERE),
    ];
    let rest = "router_settings: {fallbacks: [{late: [here]}, {alike: [here]}], num_retries: 0, disable_cooldowns: true}\n";
    let f = Fixture::routed(&file(&all, rest)).await;
    for name in ["late", "alike"] {
        let events = f.events(CHAT, &with(&ask(name), json!({"stream": true}))).await;
        let said = streamed(&events);
        assert!(said.starts_with("One, two") && said.len() > "One, two".len(), "{events:?}");
        assert_eq!(said.matches("One, two").count(), 1, "{events:?}");
        assert_eq!(events.last().unwrap().1, "[DONE]", "{events:?}");
        assert!(events.iter().all(|(_, e)| e["error"].is_null()), "{events:?}");
    }
    // What only the provider can do still goes there, and then ends with an error.
    let body = with(&ask("alike"), json!({"stream": true, "documents": [{"text": "x"}]}));
    let events = f.events(CHAT, &body).await;
    assert_eq!(alike.last().body["documents"][0]["text"], "x");
    assert_eq!(streamed(&events), "One, two");
    assert!(events.iter().any(|(_, e)| e["error"]["message"].is_string()), "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_model_says_what_it_does_not_enforce() {
    let f = Fixture::routed(&file(&[("local", "octet/tiny", HERE)], "")).await;
    let room = json!({"type": "string", "not": {"const": "hall"}});
    let parameters = json!({"type": "object", "properties": {"room": room}, "required": ["room"]});
    let tool = json!({"type": "function", "function": {"name": "set_light", "parameters": parameters}});
    let body = json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false,
        "max_tokens": 200, "verbosity": "low"});
    let warning = header(&f.send(CHAT, &with(&ask("local"), body)).await, "x-octet-warning");
    assert!(warning.contains("set_light") && warning.contains("not enforced"), "{warning}");
    assert_eq!(warning.matches("'verbosity'").count(), 1, "{warning}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_warnings_of_another_server_reach_the_client() {
    let behind = Fixture::start().await;
    let f = Fixture::routed(&file(&[("far", "hosted_vllm/tiny", &behind.url(""))], "")).await;
    for stream in [false, true] {
        let body = with(&ask("far"), json!({"verbosity": "low", "stream": stream}));
        assert!(header(&f.send(CHAT, &body).await, "x-octet-warning").contains("'verbosity'"), "{stream}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_aliases_and_wildcards_choose_deployments() {
    let (a, b) = (Upstream::saying("a").await, Upstream::saying("b").await);
    let all = [
        ("both", "hosted_vllm/a, weight: 3", &*a.base),
        ("both", "hosted_vllm/b, weight: 1", &b.base),
        ("\"any/*\"", "\"hosted_vllm/*\"", &a.base),
    ];
    let f = Fixture::routed(&file(&all, "router_settings: {model_group_alias: {gpt-4o: both}}\n")).await;
    // Enough for chance not to turn it round in a thousand million runs.
    for _ in 0..120 {
        f.ok(CHAT, &ask("gpt-4o")).await;
    }
    let (from_a, from_b) = (a.seen().len(), b.seen().len());
    assert!(from_a + from_b == 120 && from_a > from_b && from_b > 0, "{from_a} {from_b}");
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
    let rest = "cascades:
- {model_name: auto, fast: fast, strong: strong, rules: [{system: 'be careful'}], confidence: {window: 4, mean_logprob: -0.0001}}
- {model_name: easy, fast: fast, strong: strong, confidence: {window: 4, mean_logprob: -90}}
";
    let all = [("strong", "hosted_vllm/theirs", &*strong.base), ("fast", "octet/tiny", HERE)];
    let f = Fixture::routed(&file(&all, rest)).await;
    let careful = json!([{"role": "system", "content": "be careful"}, {"role": "user", "content": "Hello"}]);
    let answer = f.send(CHAT, &with(&ask("auto"), json!({"messages": careful}))).await;
    assert!(header(&answer, "x-octet-route").contains("rule("), "{:?}", answer.headers());
    assert_eq!(said(&crate::common::read(answer).await.1), "Strong");
    // a model with random weights is never sure
    let answer = f.send(CHAT, &ask("auto")).await;
    assert!(header(&answer, "x-octet-route").contains("=escalated"), "{:?}", answer.headers());
    assert_eq!(said(&crate::common::read(answer).await.1), "Strong");
    let answer = f.send(CHAT, &with(&ask("easy"), json!({"stream": true}))).await;
    assert!(header(&answer, "x-octet-route").contains("=kept"), "{:?}", answer.headers());
    assert_eq!(header(&answer, "x-octet-model"), "tiny");
    let text = answer.text().await.unwrap();
    assert!(text.contains("[DONE]") && !text.contains("logprobs\":{"), "{text}");
    let metrics = f.text("/metrics").await;
    assert!(metrics.contains("octet:route_confidence_total{verdict=\"escalated\"} 1"), "{metrics}");
}

/// The decision is of the prompt: not of temperature and seed, nor of what else is computed at the time.
#[tokio::test(flavor = "multi_thread")]
async fn seeds_and_concurrent_requests_do_not_change_a_decision() {
    let strong = Upstream::saying("Strong").await;
    let rest = "cascades:
- {model_name: auto, fast: fast, strong: strong, confidence: {window: 4, signal: margin.q25, threshold: 0.05}}
- {model_name: full, fast: fast, strong: strong, confidence: {window: 4, signal: entropy.mean, threshold: 1.2}}
";
    let all = [("strong", "hosted_vllm/theirs", &*strong.base), ("fast", "octet/tiny", HERE)];
    let f = Fixture::routed(&file(&all, rest)).await;
    // A device compiles its kernels now, and not while an answer is held back, which lasts a minute at most.
    f.ok(CHAT, &with(&ask("fast"), json!({"max_tokens": 8, "n": 4, "temperature": 1.5}))).await;
    let prompts = ["Hello", "What is the capital of France?", "Count to ten.", "Tell me a story."];
    let mut verdicts = std::collections::BTreeSet::new();
    for name in ["auto", "full"] {
        for prompt in prompts {
            let asked = |temperature: f64, seed: u64, stream: bool| {
                let messages = json!([{"role": "user", "content": prompt}]);
                let body =
                    json!({"messages": messages, "temperature": temperature, "seed": seed, "stream": stream});
                with(&with(&ask(name), json!({"max_tokens": 8})), body)
            };
            let decision = async |body: Value| {
                let answer = f.send(CHAT, &body).await;
                let route = header(&answer, "x-octet-route").to_string();
                let at =
                    route.find("confidence(").unwrap_or_else(|| panic!("not measured for {body}: {route}"));
                let decision = route[at..].to_string();
                answer.text().await.unwrap();
                decision.split('>').next().unwrap().to_string()
            };
            let alone = decision(asked(0.0, 1, true)).await;
            let (a, b, c) = (asked(0.7, 2, true), asked(1.5, 3, false), asked(0.0, 4, false));
            let all = tokio::join!(decision(a), decision(b), decision(c));
            assert_eq!(all, (alone.clone(), alone.clone(), alone.clone()), "{prompt}");
            verdicts.insert(alone);
        }
    }
    assert!(verdicts.len() > 2, "{verdicts:?}");
    let metrics = f.text("/metrics").await;
    assert!(metrics.contains("octet:route_decisions_total{by=\"confidence\",verdict="), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_and_token_counts_are_routed() {
    let up = Upstream::saying("x").await;
    let text = file(&[("far", "hosted_vllm/theirs", &up.base), ("local", "octet/tiny", HERE)], "");
    let f = Fixture::routed(&text).await;
    // in the provider's dialect and in another
    for (path, input, vector) in [
        ("/v1/embeddings", "input", "/data/0/embedding"),
        ("/api/embed", "input", "/embeddings/0"),
        ("/api/embeddings", "prompt", "/embedding"),
    ] {
        let body = f.ok(path, &json!({"model": "far", input: "Hello"})).await;
        assert_eq!(body.pointer(vector), Some(&json!([0.5, -0.5])), "{path}: {body}");
        let body = f.ok(path, &json!({"model": "local", input: "Hello"})).await;
        assert!(body.pointer(vector).is_some_and(|v| v[1].is_number()), "{path}: {body}");
    }
    f.ok("/v1/embeddings", &json!({"model": "local", "input": ["Hello", "you"]})).await;
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
async fn a_changed_file_is_applied_and_an_invalid_one_is_not() {
    let (a, b) = (Upstream::saying("from a").await, Upstream::saying("from b").await);
    let slow = Upstream::start(|_| {
        let mut steps = vec![Step::Send(STREAM_HEAD.into()), delta("slow")];
        steps.extend([Step::Sleep(1500), delta("ly")]);
        let end = json!({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
        steps.extend([event(&end), chunk("data: [DONE]\n\n"), Step::Send("0\r\n\r\n".into())]);
        steps
    })
    .await;
    let text = |base: &str| {
        file(&[("m", "hosted_vllm/theirs", base), ("slow", "hosted_vllm/theirs", &slow.base)], "")
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("octet.yaml");
    std::fs::write(&path, text(&a.base)).unwrap();
    let load = {
        let path = path.clone();
        move || Config::load(&path, &Disk(|_: &str| None)).map_err(|e| e.to_string())
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

    // In one step: a half of it would be looked at, too.
    let write = |text: &str| {
        let new = folder.path().join("new.yaml");
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &path)).unwrap();
    };
    write("model_list:\n- {model_name: m, litellm_params: {model: olama/x}}\n");
    f.until("the broken file was looked at", || loads.load(Ordering::Relaxed) == 1).await;
    assert_eq!(said(&f.ok(CHAT, &ask("m")).await), "from a");
    assert_eq!(gateway.reloads(), 0);

    // the new one has a model of this process too
    let new = [
        ("m", "hosted_vllm/theirs", &*b.base),
        ("other", "hosted_vllm/theirs", &slow.base),
        ("here", "octet/new", HERE),
    ];
    write(&file(&new, ""));
    f.until("the new one is taken", || gateway.reloads() == 1).await;
    assert_eq!(said(&f.ok(CHAT, &ask("m")).await), "from b");
    assert_eq!(f.post(CHAT, &ask("slow")).await.0, 404);
    assert_eq!(f.post(CHAT, &ask("here")).await.0, 200);
    let rest = running.text().await.unwrap();
    assert!(rest.contains("ly") && rest.contains("[DONE]"), "what runs finishes on the old one: {rest}");

    write(&text(&a.base));
    f.until("and back", || gateway.reloads() == 2).await;
    f.until("its model makes way", || f.app.models().loaded(0).is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_lost_its_keys_does_not_open_the_server() {
    let up = Upstream::saying("Hi").await;
    let models = file(&[("m", "hosted_vllm/theirs", &up.base)], "");
    let locked = format!("{models}general_settings: {{master_key: sk-master}}\n");
    let text = Arc::new(std::sync::Mutex::new(locked.clone()));
    let now = Arc::clone(&text);
    let parse =
        |text: &str| Config::parse("octet.yaml", text, &Disk(|_: &str| None)).map_err(|e| e.to_string());
    let made =
        Routes { reload: Arc::new(move || parse(&now.lock().unwrap())), ..crate::common::routes(&locked) };
    let f = Fixture::with(Options { routes: Some(made), ..Options::new(Vec::new()) }).await;
    let gateway = Arc::clone(f.app.gateway().unwrap());
    assert_eq!(f.post(CHAT, &ask("m")).await.0, 401);
    // The same file without its end.
    *text.lock().unwrap() = models;
    assert!(gateway.reload().unwrap_err().contains("the new configuration has no keys"));
    assert_eq!(f.post(CHAT, &ask("m")).await.0, 401);
    *text.lock().unwrap() = locked.replace("sk-master", "sk-other");
    gateway.reload().unwrap();
    for (key, status) in [("sk-master", 401), ("sk-other", 200)] {
        let answer = f.request(CHAT, &ask("m")).bearer_auth(key).send().await.unwrap();
        assert_eq!(answer.status(), status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_waits_for_remote_answers() {
    let (go, wait) = tokio::sync::watch::channel(false);
    let up = Upstream::start(move |seen| {
        let mut steps = vec![Step::Wait(wait.clone())];
        steps.extend(says(seen, "Late"));
        steps
    })
    .await;
    let f = Fixture::routed(&file(&[("m", "hosted_vllm/x", &up.base)], "")).await;
    let asked = f.request(CHAT, &ask("m"));
    let running = tokio::spawn(async move { asked.send().await.unwrap().text().await.unwrap() });
    f.until("it is on its way", || f.app.busy() == 1).await;
    f.stage.send(octet_serve::Stage::Drain).unwrap();
    f.until("it takes no more", || f.app.models().is_draining()).await;
    assert!(!f.task.is_finished());
    go.send(true).unwrap();
    assert!(running.await.unwrap().contains("Late"));
    f.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn absurd_token_counts_are_harmless() {
    let message = json!({"role": "assistant", "content": "Hi"});
    let whole = json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": u64::MAX, "completion_tokens": u64::MAX, "total_tokens": u64::MAX}});
    let up = Upstream::start(move |_| answer("200 OK", &whole)).await;
    let f = Fixture::routed(&file(&[("m", "hosted_vllm/theirs", &up.base)], "")).await;
    for _ in 0..3 {
        assert_eq!(said(&f.ok(CHAT, &ask("m")).await), "Hi");
        assert_eq!(f.post("/v1/messages", &messages("m")).await.0, 200);
        assert_eq!(f.get("/metrics").await.0, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_alives_do_not_start_the_answer() {
    let beats = |_: &Seen| {
        let beat = [chunk(": ping\n\n"), Step::Sleep(50)];
        [vec![Step::Send(STREAM_HEAD.into())], vec![beat; 6000].concat()].concat()
    };
    let (far, near) = (Upstream::start(beats).await, Upstream::saying("Hi there").await);
    let all = [("far", "hosted_vllm/x", &*far.base), ("near", "hosted_vllm/y", &near.base)];
    let rest = "router_settings: {num_retries: 0, fallbacks: [{far: [near]}]}\n";
    // The first one's.
    let f =
        Fixture::routed(&file(&all, rest).replacen("sk-theirs", "sk-theirs, stream_timeout: 0.5", 1)).await;
    let began = std::time::Instant::now();
    let answer = f.send(CHAT, &with(&ask("far"), json!({"stream": true}))).await.text().await.unwrap();
    assert!(answer.contains("Hi there") && !answer.contains("ping"), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(200), "{:?}", began.elapsed());
}
