//! What models refuse, as their providers document it: requests of clients in any dialect must reach them in a form that they accept, or be
//! refused by the field's name before anything is sent.

use octet_api::anthropic::{UNSIGNED, messages};
use octet_api::core::{Answer, MemoryHandle};
use octet_api::openai::chat;
use octet_config::Provider;
use octet_upstream::{Dialect, Endpoint, Failure, Forward, Settings};
use serde_json::{Value, json};

use crate::common::*;

/// Where a request goes, and with which settings.
pub(crate) struct To<'a> {
    family: &'a str,
    provider: Provider,
    drop_params: bool,
    modify_params: bool,
}

pub(crate) fn to(family: &str) -> To<'_> {
    let provider = match family.split_once('/').expect("a provider").0 {
        "openai" => Provider::OpenAi,
        "azure" => Provider::AzureOpenAi,
        "anthropic" => Provider::Anthropic,
        "gemini" => Provider::Gemini,
        _ => Provider::OpenAiCompatible,
    };
    To { family, provider, drop_params: true, modify_params: false }
}

impl To<'_> {
    fn endpoint(&self, base: &str) -> Endpoint {
        let mut remote = remote(self.provider, base);
        remote.family = self.family.into();
        remote.model = self.family.split_once('/').expect("a provider").1.into();
        remote.changes.drop_params = self.drop_params;
        remote.changes.modify_params = self.modify_params;
        Endpoint::new(Settings::new(remote)).expect("an endpoint")
    }

    /// What the provider gets of a client's request, and the warnings.
    async fn send(&self, dialect: Dialect, body: &Value) -> Result<(Seen, Vec<String>), Failure> {
        let server = Server::start(vec![json_answer(&answer_of(self, dialect, body))]).await;
        let endpoint = self.endpoint(&server.base);
        let bytes = bytes::Bytes::from(body.to_string());
        let stream = body["stream"] == true;
        let warnings = if endpoint.forwards(dialect, &bytes) {
            let headers = http::HeaderMap::new();
            let memory = MemoryHandle::default();
            let forward = Forward {
                model: None,
                dialect,
                headers: &headers,
                body: &bytes,
                upload: None,
                memory: &memory,
                stream,
                usage: true,
            };
            client().forward(&endpoint, forward).await?.warnings().to_vec()
        } else {
            let request = match dialect {
                Dialect::AnthropicMessages => messages::parse(&bytes),
                _ => chat::parse(&bytes),
            };
            client().generate(&endpoint, &request.expect("a request")).await?.warnings().to_vec()
        };
        Ok((server.last(), warnings))
    }

    pub(crate) async fn chat(&self, fields: Value) -> Result<Value, Failure> {
        self.chat_to(fields).await.map(|(seen, _)| seen.json())
    }

    async fn chat_to(&self, fields: Value) -> Result<(Seen, Vec<String>), Failure> {
        let mut body = json!({"model": "ours", "messages": [{"role": "user", "content": "hi"}]});
        merge(&mut body, fields);
        self.send(Dialect::OpenAiChat, &body).await
    }

    pub(crate) async fn messages(&self, fields: Value) -> Result<Value, Failure> {
        let mut body =
            json!({"model": "ours", "max_tokens": 5000, "messages": [{"role": "user", "content": "hi"}]});
        merge(&mut body, fields);
        self.send(Dialect::AnthropicMessages, &body).await.map(|(seen, _)| seen.json())
    }

    /// The field by whose name it is refused before anything is sent.
    async fn refused(&self, fields: Value) -> String {
        let failure = To { drop_params: false, ..*self }.chat(fields).await.expect_err("it is refused");
        let param = failure.param.expect("a field");
        assert!(failure.status.is_none() && failure.message.contains(&param), "{}", failure.message);
        param
    }
}

fn merge(body: &mut Value, fields: Value) {
    for (name, value) in fields.as_object().expect("fields") {
        body[name] = value.clone();
    }
}

/// An answer of the endpoint that is asked.
fn answer_of(to: &To<'_>, dialect: Dialect, body: &Value) -> Value {
    let chat =
        json!({"id": "c", "choices": [{"index": 0, "message": {"content": "ok"}, "finish_reason": "stop"}]});
    let response = json!({"id": "r", "status": "completed", "output": []});
    let message =
        json!({"id": "m", "type": "message", "content": [], "stop_reason": "end_turn", "usage": {}});
    let bytes = body.to_string();
    match to.provider {
        Provider::Anthropic => message,
        Provider::Gemini => {
            json!({"candidates": [{"content": {"parts": [{"text": "ok"}]}, "finishReason": "STOP"}]})
        }
        _ => {
            // The test sees from the path which one it was.
            let endpoint = to.endpoint("http://127.0.0.1:1");
            let tools =
                body.get("tools").is_some() && !endpoint.forwards(Dialect::OpenAiChat, bytes.as_bytes());
            let is_chat = matches!(dialect, Dialect::OpenAiChat | Dialect::AnthropicMessages);
            if (tools && to.family.contains("gpt-5.")) || to.family.contains("-pro") || !is_chat {
                response
            } else {
                chat
            }
        }
    }
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}])
}

fn claude_tools() -> Value {
    json!([{"name": "f", "input_schema": {"type": "object", "properties": {}}}])
}

/// Claude Code's id of its user: 170 characters.
fn long_user() -> String {
    json!({"device_id": "b".repeat(64), "account_uuid": "", "session_id": "b1e0b6e6-0c34-4426-8e12-7072817c5ba2"})
        .to_string()
}

#[tokio::test]
async fn the_length_of_an_answer_has_the_models_name_and_limit() {
    for (family, sent, expected) in [
        ("openai/gpt-5", json!({"max_tokens": 50}), json!({"max_completion_tokens": 50})),
        ("azure/o3-mini", json!({"max_tokens": 50}), json!({"max_completion_tokens": 50})),
        ("openai/gpt-4o", json!({"max_tokens": 50}), json!({"max_tokens": 50})),
        ("openai/gpt-4o", json!({"max_tokens": 64000}), json!({"max_tokens": 16384})),
        ("mistral/mistral-large-latest", json!({"max_completion_tokens": 50}), json!({"max_tokens": 50})),
        ("hosted_vllm/x", json!({"max_tokens": 900_000}), json!({"max_tokens": 900_000})),
    ] {
        let got = to(family).chat(sent).await.unwrap();
        let lengths: serde_json::Map<_, _> = got
            .as_object()
            .unwrap()
            .iter()
            .filter(|(name, _)| name.starts_with("max_"))
            .map(|(n, v)| (n.clone(), v.clone()))
            .collect();
        assert_eq!(Value::from(lengths), expected, "{family}");
    }
    // A client of another dialect must send a maximum.
    let got = to("openai/gpt-4o").messages(json!({"max_tokens": 64000})).await.unwrap();
    assert_eq!(got["max_completion_tokens"], 16384);
    let got = to("anthropic/claude-opus-4-1").messages(json!({"max_tokens": 64000})).await.unwrap();
    assert_eq!(got["max_tokens"], 32000);
    // Without one, Claude gets the model's own.
    let got = to("anthropic/claude-sonnet-4-5").chat(json!({})).await.unwrap();
    assert_eq!(got["max_tokens"], 64000);
}

#[tokio::test]
async fn fields_that_a_model_refuses_are_dropped_or_refused_by_name() {
    let has = |body: &Value, name: &str| body.get(name).is_some();
    for (family, field, value, neutral) in [
        ("openai/gpt-5", "temperature", json!(0.2), json!(1)),
        ("openai/gpt-5", "top_p", json!(0.5), json!(1)),
        ("openai/gpt-5", "stop", json!(["x"]), json!([])),
        ("openai/o3", "logprobs", json!(true), json!(false)),
        ("openai/o4-mini", "presence_penalty", json!(1), json!(0)),
        ("openai/gpt-5.6", "temperature", json!(0.2), json!(1)),
        ("anthropic/claude-opus-4-7", "temperature", json!(0.2), json!(1)),
        ("anthropic/claude-sonnet-5", "top_p", json!(0.2), json!(1)),
        ("mistral/mistral-large-latest", "logprobs", json!(true), json!(false)),
        ("groq/llama-3.3-70b-versatile", "n", json!(2), json!(1)),
        ("xai/grok-4", "stop", json!(["x"]), json!([])),
        ("moonshot/kimi-k2.5", "temperature", json!(0.2), json!(null)),
    ] {
        let to = to(family);
        let (seen, warnings) = to.chat_to(json!({(field): value})).await.unwrap();
        assert!(!has(&seen.json(), field), "{family}: {field}");
        assert!(warnings.iter().any(|w| w.contains(field)), "{family}: {warnings:?}");
        assert_eq!(to.refused(json!({(field): value})).await, field, "{family}");
        let strict = To { drop_params: false, ..to };
        let sent = strict.chat(json!({(field): neutral})).await.expect("a neutral value is fine");
        assert!(!has(&sent, field) || sent[field].as_f64() == Some(1.0), "{family}: {field}");
    }
    // Two of them together.
    for family in ["anthropic/claude-sonnet-4-5", "anthropic/claude-opus-4-6", "anthropic/claude-haiku-4-5"] {
        let both = json!({"temperature": 0.5, "top_p": 0.9});
        let got = to(family).chat(both.clone()).await.unwrap();
        assert_eq!((&got["temperature"], has(&got, "top_p")), (&json!(0.5), false), "{family}");
        assert_eq!(to(family).refused(both).await, "top_p");
    }
    // A model that may be told not to think then takes a temperature.
    let got = to("openai/gpt-5.2").chat(json!({"temperature": 0.2})).await.unwrap();
    assert_eq!(got["temperature"], 0.2);
    let thinks = json!({"temperature": 0.2, "reasoning_effort": "low"});
    assert!(!has(&to("openai/gpt-5.2").chat(thinks).await.unwrap(), "temperature"));
    // Claude Code's own request.
    let got = to("anthropic/claude-opus-4-7").messages(json!({"temperature": 1, "top_k": 5})).await.unwrap();
    assert!(!has(&got, "temperature") && !has(&got, "top_k"));
}

#[tokio::test]
async fn what_the_configuration_sets_is_sent() {
    let server = Server::start(vec![json_answer(&json!({"choices": []}))]).await;
    let mut remote = remote(Provider::OpenAi, &server.base);
    remote.family = "openai/gpt-5".into();
    remote.changes.extra_body = json!({"temperature": 0.2}).as_object().unwrap().clone();
    let endpoint = Endpoint::new(Settings::new(remote)).unwrap();
    let (_, _) = forward(&endpoint, false).await;
    assert_eq!(server.last().json()["temperature"], 0.2);
}

#[tokio::test]
async fn a_users_id_is_hashed_where_it_is_too_long() {
    let got = to("openai/gpt-4o").messages(json!({"metadata": {"user_id": long_user()}})).await.unwrap();
    let user = got["user"].as_str().unwrap();
    assert!(user.len() == 64 && user.chars().all(|c| c.is_ascii_hexdigit()), "{user}");
    let again = to("openai/gpt-4o").chat(json!({"user": long_user()})).await.unwrap();
    assert_eq!(again["user"], user, "the same in every dialect");
    assert_eq!(to("openai/gpt-4o").chat(json!({"user": "me"})).await.unwrap()["user"], "me");
}

#[tokio::test]
async fn tools_with_an_effort_use_responses() {
    for (family, fields, path) in [
        ("openai/gpt-5.4", json!({"tools": tools(), "reasoning_effort": "low"}), "/v1/responses"),
        ("openai/gpt-5.4", json!({"tools": tools(), "reasoning_effort": "none"}), "/v1/chat/completions"),
        ("openai/gpt-5.6", json!({"tools": tools()}), "/v1/responses"),
        ("openai/gpt-5.4", json!({"reasoning_effort": "low"}), "/v1/chat/completions"),
        ("openai/gpt-5.2", json!({"tools": tools(), "reasoning_effort": "low"}), "/v1/chat/completions"),
        ("openai/gpt-5.4-pro", json!({}), "/v1/responses"),
        (
            "azure/gpt-5.4",
            json!({"tools": tools(), "reasoning_effort": "low"}),
            "/openai/responses?api-version=2025-04-01-preview",
        ),
    ] {
        let (seen, _) = to(family).chat_to(fields).await.unwrap();
        assert_eq!(seen.path(), path, "{family}");
    }
    // Also behind another address, and from another dialect.
    let compatible = To { provider: Provider::OpenAiCompatible, ..to("openai/gpt-5.4") };
    let thinking = json!({"tools": claude_tools(), "thinking": {"type": "enabled", "budget_tokens": 2000}});
    let mut body = json!({"model": "m", "max_tokens": 5000, "messages": [{"role": "user", "content": "hi"}]});
    merge(&mut body, thinking);
    let (seen, _) = compatible.send(Dialect::AnthropicMessages, &body).await.unwrap();
    assert_eq!((seen.path(), &seen.json()["reasoning"]["effort"]), ("/v1/responses", &json!("low")));
}

#[tokio::test]
async fn efforts_become_those_that_the_model_has() {
    for (family, asked, expected) in [
        ("openai/gpt-5", "none", "minimal"),
        ("openai/o3", "minimal", "low"),
        ("openai/gpt-5.1", "xhigh", "high"),
        ("openai/gpt-5.1", "minimal", "low"),
        ("openai/gpt-5.2", "none", "none"),
        ("groq/openai/gpt-oss-120b", "none", "low"),
    ] {
        let got = to(family).chat(json!({"reasoning_effort": asked})).await.unwrap();
        assert_eq!(got["reasoning_effort"], expected, "{family}");
    }
}

/// The tool's message keeps its text; the image follows in a user message.
#[tokio::test]
async fn images_in_results_of_tools_are_moved() {
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}});
    let called = |id: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {}});
    let result =
        |id: &str, content: Value| json!({"type": "tool_result", "tool_use_id": id, "content": content});
    let history = json!([
        {"role": "user", "content": "go"}, {"role": "assistant", "content": [called("a1"), called("a2")]},
        {"role": "user", "content": [result("a1", json!([{"type": "text", "text": "shot"}, image])), result("a2", json!("two"))]},
    ]);
    for family in [
        "openai/gpt-4o",
        "azure/gpt-5",
        "mistral/mistral-large-latest",
        "groq/llama-3.3-70b-versatile",
        "deepseek/deepseek-chat",
    ] {
        let got = to(family).messages(json!({"tools": claude_tools(), "messages": history})).await.unwrap();
        let sent = got["messages"].as_array().unwrap();
        let roles: Vec<_> = sent.iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "user"], "{family}");
        assert_eq!((&sent[2]["content"], &sent[3]["content"]), (&json!("shot"), &json!("two")));
        assert_eq!(sent[4]["content"][0]["image_url"]["url"], "data:image/png;base64,iVBORw0KGgo=");
    }
    // Forwarded, and with a user message after it.
    let chat = json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]},
        {"role": "user", "content": "see?"},
    ]);
    let got = to("openai/gpt-4o").chat(json!({"messages": chat})).await.unwrap();
    assert_eq!(got["messages"].as_array().unwrap().len(), 4);
    assert_eq!(got["messages"][2]["content"], "(The image is in the next message.)");
    assert_eq!(got["messages"][3]["content"][1], json!({"type": "text", "text": "see?"}));
    // vLLM's models may see images there.
    let got = to("hosted_vllm/x").chat(json!({"messages": chat})).await.unwrap();
    assert_eq!(got["messages"], chat);
}

#[tokio::test]
async fn roles_and_earlier_reasoning_have_the_providers_form() {
    let history = json!([
        {"role": "developer", "content": "x"}, {"role": "user", "content": "q", "name": "n"},
        {"role": "assistant", "content": "a", "reasoning_content": "r"}, {"role": "user", "content": "q"},
    ]);
    for (family, role, assistant) in [
        ("mistral/mistral-large-latest", "system", json!({"role": "assistant", "content": "a"})),
        (
            "mistral/magistral-medium-latest",
            "system",
            json!({"role": "assistant", "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "r"}]}, {"type": "text", "text": "a"}]}),
        ),
        (
            "groq/openai/gpt-oss-120b",
            "system",
            json!({"role": "assistant", "content": "a", "reasoning": "r"}),
        ),
        (
            "deepseek/deepseek-chat",
            "system",
            json!({"role": "assistant", "content": "a", "reasoning_content": "r"}),
        ),
        (
            "moonshot/kimi-k2.6",
            "system",
            json!({"role": "assistant", "content": "a", "reasoning_content": "r"}),
        ),
        ("openai/gpt-5", "developer", json!({"role": "assistant", "content": "a"})),
        (
            "hosted_vllm/x",
            "developer",
            json!({"role": "assistant", "content": "a", "reasoning_content": "r"}),
        ),
    ] {
        let got = to(family).chat(json!({"messages": history, "stream_options": null})).await.unwrap();
        assert_eq!(
            (&got["messages"][0]["role"], &got["messages"][2]),
            (&json!(role), &assistant),
            "{family}"
        );
        let is_strict = family.starts_with("mistral") || family.starts_with("groq");
        assert_eq!(got["messages"][1].get("name").is_none(), is_strict, "{family}");
    }
}

/// Mistral refuses every field that it does not know, and ids of calls other than nine letters and digits.
#[tokio::test]
async fn mistral_gets_only_what_it_knows() {
    let history = json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "r"},
    ]);
    let fields = json!({"stream": true, "seed": 7, "user": "u", "metadata": {"a": "b"}, "messages": history, "max_completion_tokens": 5});
    let got = To { drop_params: false, ..to("mistral/mistral-large-latest") }.chat(fields).await.unwrap();
    let names: Vec<_> = got.as_object().unwrap().keys().map(String::as_str).collect();
    let known = ["model", "messages", "stream", "random_seed", "max_tokens"];
    assert!(names.iter().all(|name| known.contains(name)), "{names:?}");
    assert_eq!((&got["random_seed"], &got["max_tokens"]), (&json!(7), &json!(5)));
    let id = got["messages"][1]["tool_calls"][0]["id"].as_str().unwrap();
    assert!(id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
    assert_eq!(got["messages"][2]["tool_call_id"], id);
}

#[tokio::test]
async fn names_of_tools_fit_and_come_back() {
    let name = "mcp__a_server_with_a_long_name__a_tool_whose_name_is_even_longer.than_that";
    let body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": name, "input_schema": {"type": "object"}}], "tool_choice": {"type": "tool", "name": name}});
    for family in ["openai/gpt-4o", "gemini/gemini-2.5-flash"] {
        let request = messages::parse(body.to_string().as_bytes()).unwrap();
        let server = Server::start(vec![json_answer(&json!({}))]).await;
        let (_, failure) = generate(&to(family).endpoint(&server.base), &request).await;
        assert!(failure.is_some(), "the answer was empty");
        let sent = server.last().json();
        let tool = match family.starts_with("openai") {
            true => sent["tools"][0]["function"]["name"].clone(),
            false => sent["tools"][0]["functionDeclarations"][0]["name"].clone(),
        };
        let short = tool.as_str().unwrap();
        assert!(short.len() <= 64 && short.starts_with("mcp__a_server"), "{short}");
        assert_eq!(sent.to_string().matches(short).count(), 2, "also in the choice: {sent}");
        let answer = match family.starts_with("openai") {
            true => {
                json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"tool_calls": [
                {"id": "1", "function": {"name": short, "arguments": "{}"}}]}}]})
            }
            false => {
                json!({"candidates": [{"finishReason": "STOP", "content": {"parts": [{"functionCall": {"name": short, "args": {}}}]}}]})
            }
        };
        let server = Server::start(vec![json_answer(&answer)]).await;
        let got: Answer = answered(&to(family).endpoint(&server.base), &request).await;
        assert_eq!(got.choices[0].tool_calls().next().unwrap().1, name, "{family}");
    }
}

#[tokio::test]
async fn thinking_leaves_room_for_an_answer() {
    for (fields, max_tokens, budget) in [
        (json!({"reasoning_effort": "high"}), 64000, 16384),
        (json!({"reasoning_effort": "medium"}), 64000, 8192),
        (json!({"reasoning_effort": "low", "max_tokens": 2000}), 2000, 1024),
        (json!({"reasoning_effort": "medium", "max_tokens": 4096}), 4096, 2048),
        (json!({"reasoning_effort": "high", "max_tokens": 10000}), 10000, 5000),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 5000}, "max_tokens": 6000}), 6000, 5000),
    ] {
        let got = to("anthropic/claude-sonnet-4-5").chat(fields.clone()).await.unwrap();
        assert_eq!(
            (&got["max_tokens"], &got["thinking"]["budget_tokens"]),
            (&json!(max_tokens), &json!(budget)),
            "{fields}"
        );
    }
    let short = json!({"reasoning_effort": "high", "max_tokens": 1024});
    assert_eq!(to("anthropic/claude-sonnet-4-5").refused(short.clone()).await, "reasoning_effort");
    assert!(to("anthropic/claude-sonnet-4-5").chat(short).await.unwrap().get("thinking").is_none());
    // A model of which nothing is known: the usual answer, and the budget.
    let got = to("anthropic/my-model")
        .chat(json!({"thinking": {"type": "enabled", "budget_tokens": 9000}}))
        .await
        .unwrap();
    assert_eq!(got["max_tokens"], 9000 + 8192);
}

#[tokio::test]
async fn claude_thinks_as_each_model_can() {
    let on = json!({"type": "enabled", "budget_tokens": 3000});
    let adaptive = json!({"type": "adaptive"});
    let off = json!({"type": "disabled"});
    for (family, sent, expected) in [
        ("anthropic/claude-opus-4-7", &on, adaptive.clone()),
        ("anthropic/claude-opus-4-6", &on, on.clone()),
        ("anthropic/claude-sonnet-4-5", &on, on.clone()),
        ("anthropic/claude-sonnet-4-5", &adaptive, json!({"type": "enabled", "budget_tokens": 2500})),
        ("anthropic/claude-opus-4-7", &off, Value::Null),
        ("anthropic/claude-sonnet-5", &off, off.clone()),
        ("anthropic/claude-fable-5", &off, Value::Null),
        ("anthropic/claude-3-5-haiku-20241022", &on, Value::Null),
    ] {
        let got = to(family).messages(json!({"thinking": sent})).await.unwrap();
        assert_eq!(got.get("thinking").unwrap_or(&Value::Null), &expected, "{family}");
    }
    let got = to("anthropic/claude-opus-4-7").messages(json!({"thinking": on})).await.unwrap();
    assert_eq!(got["output_config"]["effort"], "medium");
    let got = to("anthropic/claude-opus-4-7").chat(json!({"reasoning_effort": "high"})).await.unwrap();
    assert_eq!(
        (&got["thinking"]["type"], &got["output_config"]["effort"]),
        (&json!("adaptive"), &json!("high"))
    );
    let effort = json!({"output_config": {"effort": "low"}});
    assert!(to("anthropic/claude-sonnet-4-5").messages(effort).await.unwrap().get("output_config").is_none());
}

#[tokio::test]
async fn a_prefill_has_no_blank_at_its_end_and_models_that_continue_none_refuse_it() {
    let history = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Dear \n"}]);
    let prefilled = json!({"messages": history});
    let got = to("anthropic/claude-sonnet-4-5").messages(prefilled.clone()).await.unwrap();
    assert_eq!(got["messages"][1]["content"], "Dear");
    let to = to("anthropic/claude-opus-4-6");
    let failure = to.messages(prefilled.clone()).await.expect_err("it is refused");
    assert_eq!(failure.param.as_deref(), Some("messages[1]"));
    let got = To { modify_params: true, ..to }.messages(prefilled).await.unwrap();
    assert_eq!(got["messages"][2]["role"], "user");
}

/// Anthropic: "Invalid `signature` in `thinking` block".
#[tokio::test]
async fn reasoning_that_another_program_signed_is_never_sent() {
    let history = |signature: &str| {
        json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "T", "signature": signature},
                {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]},
        ])
    };
    for (signature, is_sent) in
        [(UNSIGNED, false), ("gemini#AAA=", false), ("bedrock#x", false), ("EqQB", true)]
    {
        let body = json!({"messages": history(signature), "tools": claude_tools(), "thinking": {"type": "enabled", "budget_tokens": 1024}});
        for family in ["anthropic/claude-sonnet-4-5", "anthropic/a-model-that-nobody-knows"] {
            let got = to(family).messages(body.clone()).await.unwrap();
            let kinds: Vec<_> = got["messages"][1]["content"]
                .as_array()
                .unwrap()
                .iter()
                .map(|b| b["type"].as_str().unwrap())
                .collect();
            assert_eq!(kinds.contains(&"thinking"), is_sent, "{family}: {signature}");
            let thinks = got["thinking"]["type"] == "enabled";
            assert_eq!(thinks, is_sent, "without its own reasoning, the turn is sent without thinking");
        }
    }
}

/// What is not concerned keeps its bytes.
#[tokio::test]
async fn bodies_that_need_no_change_keep_their_bytes() {
    let server = Server::start(vec![json_answer(&json!({"choices": []}))]).await;
    let endpoint = to("openai/gpt-5").endpoint(&server.base);
    for (body, expected) in [
        (
            r#"{"model":"ours","messages":[{"role":"user", "content":"\u0061" }],"x":1.50}"#,
            r#"{"model":"gpt-5","messages":[{"role":"user", "content":"\u0061" }],"x":1.50}"#,
        ),
        (
            r#"{"model":"ours","max_tokens":5,"messages":[{"role":"user", "content":"\u0061" }]}"#,
            r#"{"model":"gpt-5","messages":[{"role":"user", "content":"\u0061" }],"max_completion_tokens":5}"#,
        ),
    ] {
        let (headers, memory, bytes) =
            (http::HeaderMap::new(), MemoryHandle::default(), bytes::Bytes::from(body));
        let forward = Forward {
            model: None,
            dialect: Dialect::OpenAiChat,
            headers: &headers,
            body: &bytes,
            upload: None,
            memory: &memory,
            stream: false,
            usage: true,
        };
        client().forward(&endpoint, forward).await.unwrap();
        assert_eq!(String::from_utf8(server.last().body).unwrap(), expected);
    }
}

/// As in translated answers: a client sees the name that it asked for.
#[tokio::test]
async fn a_forwarded_answer_has_the_name_that_was_asked_for() {
    let whole = json!({"id": "c", "model": "gpt-4o-2024-08-06", "choices": []});
    let pieces = [
        r#"{"model":"gpt-4o-2024-08-06","choices":[{"delta":{"content":"a"}}]}"#,
        r#"{"model":"gpt-4o-2024-08-06","choices":[{"finish_reason":"stop"}]}"#,
    ];
    for stream in [false, true] {
        let mut steps = vec![send(stream_head("text/event-stream"))];
        steps.extend(pieces.iter().map(|p| send(chunk(&format!("data: {p}\n\n")))));
        steps.push(send(END));
        let server = Server::start(vec![if stream { steps } else { json_answer(&whole) }]).await;
        let endpoint = to("openai/gpt-4o").endpoint(&server.base);
        let body = bytes::Bytes::from(json!({"model": "mine", "messages": [], "stream": stream}).to_string());
        let (headers, memory) = (http::HeaderMap::new(), MemoryHandle::default());
        let (dialect, usage) = (Dialect::OpenAiChat, true);
        let forward = Forward {
            dialect,
            model: Some("mine"),
            headers: &headers,
            body: &body,
            upload: None,
            memory: &memory,
            stream,
            usage,
        };
        let mut raw = client().forward(&endpoint, forward).await.unwrap();
        let mut out = Vec::new();
        while let Some(piece) = raw.next().await {
            out.extend_from_slice(&piece.unwrap());
        }
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains(r#""model":"mine""#) && !out.contains("2024"), "{out}");
    }
}
