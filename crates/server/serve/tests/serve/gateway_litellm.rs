//! Clients of LiteLLM's proxy and of Azure come as they are: by their paths, their keys, and what they ask besides.

use crate::common::upstream::{Seen, Upstream, answer, says};
use crate::common::{Fixture, read};
use serde_json::{Value, json};

fn file(base: &str, rest: &str) -> String {
    format!(
        "model_list:
- {{model_name: gpt-4o, litellm_params: {{model: hosted_vllm/theirs, api_base: \"{base}/v1\", input_cost_per_token: 0.001}}, model_info: {{max_input_tokens: 8192}}}}
- {{model_name: gpt-4o, litellm_params: {{model: hosted_vllm/other, api_base: \"{base}/v1\", input_cost_per_token: 0.002}}, model_info: {{supports_vision: true}}}}
- {{model_name: claude, litellm_params: {{model: anthropic/theirs, api_base: \"{base}\", api_key: sk-x}}}}
- {{model_name: gone, litellm_params: {{model: groq/nobody}}}}
{rest}"
    )
}

/// Answers in OpenAI's and Anthropic's dialects, and with a vector.
fn script(seen: &Seen) -> Vec<crate::common::upstream::Step> {
    match seen.path.as_str() {
        "/v1/embeddings" => answer(
            "200 OK",
            &json!({"object": "list", "model": "theirs", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
                "usage": {"prompt_tokens": 1, "total_tokens": 1}}),
        ),
        _ => says(seen, "Hi"),
    }
}

fn ask(name: Option<&str>) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hello"}]});
    if let Some(name) = name {
        body["model"] = name.into();
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_of_other_programs_lead_to_the_same_endpoints() {
    let up = Upstream::start(script).await;
    let f = Fixture::routed(&file(&up.base, "")).await;
    let text = "/choices/0/message/content";
    for (path, body, at) in [
        ("/chat/completions", ask(Some("gpt-4o")), text),
        ("/openai/v1/chat/completions", ask(Some("gpt-4o")), text),
        // The model stands in the path alone, or beats the body's.
        ("/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21", ask(None), text),
        ("/openai/deployments/gpt-4o/chat/completions", ask(Some("nobody")), text),
        ("/engines/gpt-4o/chat/completions", ask(None), text),
        (
            "/messages",
            json!({"model": "claude", "max_tokens": 9, "messages": ask(None)["messages"]}),
            "/content/0/text",
        ),
        (
            "/anthropic/v1/messages",
            json!({"model": "claude", "max_tokens": 9, "messages": ask(None)["messages"]}),
            "/content/0/text",
        ),
        ("/responses", json!({"model": "gpt-4o", "input": "Hello"}), "/output/0/content/0/text"),
    ] {
        let (status, body) = f.post(path, &body).await;
        assert_eq!((status, body.pointer(at)), (200, Some(&json!("Hi"))), "{path}: {body}");
    }
    let (status, body) = f.post("/openai/deployments/gpt-4o/embeddings", &json!({"input": "a"})).await;
    assert_eq!((status, body.pointer("/data/0/embedding/0")), (200, Some(&json!(0.5))), "{body}");
    // An error is one of the dialect that the path means.
    let (status, body) = f.post("/messages", &json!({"model": "nobody"})).await;
    assert_eq!((status, &body["type"]), (400, &json!("error")), "{body}");
    let (status, body) = f.post("/openai/deployments/nobody/chat/completions", &ask(None)).await;
    assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")), "{body}");
    assert_eq!(f.get("/openai/deployments/gpt-4o/images").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_show_the_models_that_a_client_may_use() {
    let up = Upstream::start(script).await;
    let f = Fixture::routed(&file(&up.base, "")).await;
    for path in ["/v1/models", "/models"] {
        let (_, list) = f.get(path).await;
        let names: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
        assert_eq!(names, ["gpt-4o", "claude"], "what was left out is not listed");
    }
    let (status, groups) = f.get("/model_group/info").await;
    let groups = groups["data"].as_array().unwrap().clone();
    assert_eq!((status, groups.len()), (200, 2));
    let group = &groups[0];
    assert_eq!(
        [
            &group["model_group"],
            &group["max_input_tokens"],
            &group["input_cost_per_token"],
            &group["supports_vision"]
        ],
        [&json!("gpt-4o"), &json!(8192), &json!(0.002), &json!(true)]
    );
    let body = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello, how are you?"}]});
    let (status, counted) = f.post("/utils/token_counter", &body).await;
    assert_eq!((status, &counted["tokenizer_type"]), (200, &json!("estimate")));
    assert!((4..9).contains(&counted["total_tokens"].as_u64().unwrap()), "{counted}");
    // Where nobody counts exactly, Anthropic's clients get an estimate that says so.
    let (status, counted) = f.post("/v1/messages/count_tokens", &body).await;
    assert_eq!((status, &counted["estimated"]), (200, &json!(true)), "{counted}");
    assert!(counted["input_tokens"].as_u64().unwrap() > 3, "{counted}");
    // Not every dialect says when an answer was made.
    let body = f.ok("/v1/chat/completions", &ask(Some("claude"))).await;
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000, "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_taken_from_every_client_s_header() {
    let up = Upstream::start(script).await;
    let f = Fixture::routed(&file(&up.base, "general_settings: {master_key: sk-1234}\n")).await;
    for (name, value) in [
        ("authorization", "Bearer sk-1234"),
        ("api-key", "sk-1234"),
        ("x-api-key", "sk-1234"),
        ("x-goog-api-key", "sk-1234"),
        ("x-litellm-api-key", "sk-1234"),
    ] {
        let path = "/openai/deployments/gpt-4o/chat/completions";
        let sent = f.request(path, &ask(None)).header(name, value).send().await.unwrap();
        assert_eq!(read(sent).await.0, 200, "{name}");
        let sent = f.request(path, &ask(None)).header(name, "Bearer sk-other").send().await.unwrap();
        assert_eq!(read(sent).await.0, 401, "{name}");
    }
    for path in ["/health/liveliness", "/health/liveness", "/health/readiness", "/health"] {
        assert_eq!(f.get(path).await.0, 200, "{path}");
    }
    assert_eq!(f.get("/model_group/info").await.0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_set_their_retries_and_fallbacks_and_providers_do_not_see_them() {
    let up = Upstream::start(|seen| {
        if seen.body["model"] == "broken" {
            return answer("500 Internal Server Error", &json!({"error": {"message": "no"}}));
        }
        says(seen, "Hi")
    })
    .await;
    let config = format!(
        "model_list:
- {{model_name: broken, litellm_params: {{model: hosted_vllm/broken, api_base: \"{0}/v1\"}}}}
- {{model_name: good, litellm_params: {{model: hosted_vllm/good, api_base: \"{0}/v1\"}}}}
- {{model_name: claude, litellm_params: {{model: anthropic/theirs, api_base: \"{0}\", api_key: k}}}}
router_settings: {{num_retries: 2}}
",
        up.base
    );
    let f = Fixture::routed(&config).await;
    let asked = |more: Value| crate::common::with(&ask(Some("broken")), more);
    let count = || up.seen().iter().filter(|s| s.body["model"] == "broken").count();
    for (more, status, times) in [
        (json!({}), 502, 3),
        (json!({"num_retries": 0}), 502, 1),
        (json!({"num_retries": 1, "stream": true}), 502, 2),
        (json!({"num_retries": 0, "fallbacks": ["nobody", {"model": "good"}]}), 200, 1),
    ] {
        let before = count();
        let (got, body) = f.post("/v1/chat/completions", &asked(more.clone())).await;
        assert_eq!((got, count() - before), (status, times), "{more}: {body}");
    }
    // None of it reaches a provider, and what does stays in its order.
    let body = json!({
        "model": "good", "messages": [{"role": "user", "content": "Hello"}], "unheard_of": 1.50, "num_retries": 1, "fallbacks": ["broken"],
        "timeout": 30, "tags": ["a"], "metadata": {"b": "c"}, "cache": {"no-cache": true}, "temperature": 0.5,
    });
    f.ok("/v1/chat/completions", &body).await;
    let names: Vec<String> = up.last().body.as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["model", "messages", "unheard_of", "temperature"]);
    // In Anthropic's dialect metadata is the provider's.
    let body = json!({"model": "claude", "max_tokens": 9, "messages": ask(None)["messages"], "metadata": {"user_id": "u"}, "num_retries": 1});
    f.ok("/v1/messages", &body).await;
    assert_eq!(
        (&up.last().body["metadata"]["user_id"], up.last().body.get("num_retries")),
        (&json!("u"), None)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_is_left_out_is_reported_by_its_reason() {
    let up = Upstream::start(script).await;
    let f = Fixture::routed(&file(&up.base, "router_settings: {num_retries: 0}\n")).await;
    let (status, said) = f.post("/v1/chat/completions", &ask(Some("gone"))).await;
    assert_eq!(status, 404, "{said}");
    let message = said["error"]["message"].as_str().expect("words");
    assert!(
        message.contains("'gone' is left out") && message.contains("GROQ_API_KEY is not set"),
        "{message}"
    );
    let (_, list) = f.get("/v1/models").await;
    assert!(!list.to_string().contains("gone"), "{list}");
    // Others may stand in for it all the same.
    let settings = "router_settings: {num_retries: 0, fallbacks: [{gone: [gpt-4o]}]}\n";
    let f = Fixture::routed(&file(&up.base, settings)).await;
    let answer = f.ok("/v1/chat/completions", &ask(Some("gone"))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "Hi");
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_for_the_router_are_removed_in_every_dialect() {
    let up = Upstream::start(|seen| match seen.path.as_str() {
        "/api/chat" if seen.body["model"] == "theirs" => {
            answer("500 Internal Server Error", &json!({"error": "down"}))
        }
        "/v1/chat/completions" if seen.body["model"] == "theirs" => {
            answer("500 Internal Server Error", &json!({"error": {"message": "down"}}))
        }
        _ => says(seen, "Hi"),
    })
    .await;
    let f = Fixture::routed(&format!(
        "model_list:
- {{model_name: o, litellm_params: {{model: ollama/theirs, api_base: '{base}'}}}}
- {{model_name: r, litellm_params: {{model: hosted_vllm/theirs, api_base: '{base}/v1'}}}}
- {{model_name: well, litellm_params: {{model: hosted_vllm/well, api_base: '{base}/v1'}}}}
router_settings: {{num_retries: 3, disable_cooldowns: true}}
",
        base = up.base
    ))
    .await;
    let own = json!({"num_retries": 0, "fallbacks": ["well"], "timeout": 30, "tags": ["a"], "cache": {"no-cache": true}});
    let messages = ask(None)["messages"].clone();
    for (path, body, at) in [
        ("/api/chat", json!({"model": "o", "messages": messages, "stream": false}), "/message/content"),
        ("/v1/responses", json!({"model": "r", "input": "Hello"}), "/output/0/content/0/text"),
    ] {
        let before = up.seen().len();
        let mut body = body;
        body.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
        let answer = f.ok(path, &body).await;
        assert_eq!(answer.pointer(at), Some(&json!("Hi")), "{path}: {answer}");
        let seen = &up.seen()[before..];
        assert_eq!(seen.len(), 2, "{path}: once each");
        for seen in seen {
            let names = own.as_object().expect("an object").keys();
            let sent: Vec<&String> = names.filter(|name| seen.body.get(name).is_some()).collect();
            assert!(sent.is_empty(), "{path}: {sent:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_pass_through_where_the_provider_has_them() {
    let whole = json!({"id": "resp_theirs", "object": "response", "created_at": 1, "status": "completed", "model": "theirs",
        "output": [{"type": "message", "id": "m", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "Hi", "annotations": [], "of_theirs": 1}]}],
        "usage": {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}});
    let up = Upstream::start(move |seen| match seen.path.split('?').next() {
        Some("/openai/v1/responses") => answer("200 OK", &whole),
        _ => says(&Seen { path: "/v1/chat/completions".into(), ..seen.clone() }, "Hi"),
    })
    .await;
    let f = Fixture::routed(&format!(
        "model_list:
- {{model_name: m, litellm_params: {{model: azure/theirs, api_base: '{0}', api_version: v1, api_key: k}}}}
- {{model_name: chats, litellm_params: {{model: hosted_vllm/theirs, api_base: '{0}/v1'}}}}
",
        up.base
    ))
    .await;
    let body = json!({"model": "m", "input": "Hello", "previous_response_id": "resp_before", "of_theirs": true, "num_retries": 0});
    let answer = f.ok("/v1/responses", &body).await;
    assert_eq!(
        (&answer["id"], &answer["output"][0]["content"][0]["of_theirs"]),
        (&json!("resp_theirs"), &json!(1))
    );
    let sent = json!({"model": "theirs", "input": "Hello", "previous_response_id": "resp_before", "of_theirs": true});
    assert_eq!(up.last().body, sent);

    // What is stored here the provider does not know: it is resolved first.
    let first = f.ok("/v1/responses", &json!({"model": "chats", "input": "One"})).await;
    let item = &first["output"][0]["id"];
    let reference = json!([{"role": "user", "content": "One"}, {"type": "item_reference", "id": item}, {"role": "user", "content": "Two"}]);
    for follow in [
        json!({"model": "m", "input": reference}),
        json!({"model": "m", "input": "Two", "previous_response_id": first["id"]}),
    ] {
        f.ok("/v1/responses", &follow).await;
        let sent = up.last().body;
        let texts: Vec<&Value> = sent["messages"].as_array().unwrap().iter().map(|m| &m["content"]).collect();
        assert_eq!(texts, [&json!("One"), &json!("Hi"), &json!("Two")], "{sent}");
        assert!(sent.get("previous_response_id").is_none(), "{sent}");
    }
    let seen = up.seen().len();
    let both = json!({"model": "m", "input": reference, "previous_response_id": "resp_before"});
    let (status, said) = f.post("/v1/responses", &both).await;
    assert_eq!((status, &said["error"]["code"]), (400, &json!("previous_response_not_found")));
    let others =
        json!([{"type": "item_reference", "id": item}, {"type": "item_reference", "id": "msg_theirs"}]);
    let (status, said) = f.post("/v1/responses", &json!({"model": "m", "input": others})).await;
    assert_eq!((status, &said["error"]["param"]), (400, &json!("input[1].id")));
    assert_eq!(up.seen().len(), seen, "nothing was sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_own_key_sees_the_state_of_deployments() {
    let up = Upstream::start(|seen| match seen.body["model"].as_str() {
        Some("other") => answer("401 Unauthorized", &json!({"error": {"message": "no"}})),
        _ => says(seen, "Hi"),
    })
    .await;
    let f = Fixture::routed(&format!(
        "model_list:
- {{model_name: m, litellm_params: {{model: hosted_vllm/theirs, api_base: '{0}/v1', order: 2}}, model_info: {{id: good}}}}
- {{model_name: m, litellm_params: {{model: hosted_vllm/other, api_base: '{0}/v1', order: 1, cooldown_time: 600}}, model_info: {{id: bad}}}}
general_settings: {{master_key: sk-1234}}
",
        up.base
    ))
    .await;
    assert_eq!(f.get("/health").await, (200, json!({"status": "ok"})), "others are told nothing");
    let health = || async {
        read(f.client.get(f.url("/health")).bearer_auth("sk-1234").send().await.expect("an answer")).await.1
    };
    let all = health().await;
    assert_eq!((&all["healthy_count"], &all["unhealthy_count"]), (&json!(2), &json!(0)), "{all}");
    let asked = f
        .request("/v1/chat/completions", &ask(Some("m")))
        .bearer_auth("sk-1234")
        .send()
        .await
        .expect("an answer");
    assert_eq!(read(asked).await.0, 200);
    let all = health().await;
    assert_eq!(
        all["healthy_endpoints"],
        json!([{"model": "theirs", "model_name": "m", "model_id": "good"}]),
        "{all}"
    );
    assert_eq!(all["unhealthy_endpoints"][0]["model_id"], "bad", "{all}");
    assert!(
        all["unhealthy_endpoints"][0]["error"].as_str().expect("words").starts_with("cooling, for "),
        "{all}"
    );
}
