//! One conversation with tools and thoughts, as clients of three APIs have it, through the router to five kinds of providers, streamed
//! and whole: each provider is sent the same, and each client gets the same.

use crate::common::providers::{self, sent, text};
use crate::common::upstream::{Upstream, answer};
use crate::common::{Fixture, with};
use serde_json::{Value, json};

/// What all answers mean: thoughts, text, the name and the arguments of the call, why it ended, tokens of the prompt and of the answer.
#[derive(Debug, PartialEq, Default)]
struct Meaning {
    thoughts: String,
    text: String,
    calls: Vec<(String, Value)>,
    calls_tools: bool,
    tokens: (u64, u64),
}

fn expected() -> Meaning {
    Meaning {
        thoughts: "Let me think.".into(),
        text: "Looking \"up\" 🙂.".into(),
        calls: vec![("weather".into(), json!({"city": "Köln"}))],
        calls_tools: true,
        tokens: (10, 5),
    }
}

/// What everybody is to be sent, a line for each thing said.
const CONVERSATION: [&str; 6] = [
    "system: Be brief.",
    "user: Weather in Bonn?",
    "assistant: One moment.",
    "calls: weather {\"city\":\"Bonn\"}",
    "result: 9 °C",
    "user: And in Köln?",
];

// ---- clients ----

fn schema() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
}

async fn by_openai(f: &Fixture, name: &str, stream: bool) -> Meaning {
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Bonn\"}"}});
    let mut body = json!({
        "model": name, "stream": stream, "max_tokens": 200,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather in Bonn?"},
            {"role": "assistant", "content": "One moment.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "9 °C"},
            {"role": "user", "content": "And in Köln?"},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": schema()}}],
    });
    let path = "/v1/chat/completions";
    let mut out = Meaning::default();
    let usage =
        |u: &Value| (u["prompt_tokens"].as_u64().unwrap_or(0), u["completion_tokens"].as_u64().unwrap_or(0));
    if !stream {
        let answer = f.ok(path, &body).await;
        let (choice, message) = (&answer["choices"][0], &answer["choices"][0]["message"]);
        (out.thoughts, out.text) = (text(&message["reasoning_content"]), text(&message["content"]));
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
            out.calls.push((text(&call["function"]["name"]), serde_json::from_str(arguments).unwrap()));
        }
        out.calls_tools = choice["finish_reason"] == "tool_calls";
        out.tokens = usage(&answer["usage"]);
        return out;
    }
    body["stream_options"] = json!({"include_usage": true});
    let mut arguments: Vec<(String, String)> = Vec::new();
    let events = f.events(path, &body).await;
    assert_eq!(events.last().map(|(_, e)| e), Some(&json!("[DONE]")), "{name}");
    for (_, e) in &events {
        assert!(e["error"].is_null(), "{name}: {e}");
        let (choice, delta) = (&e["choices"][0], &e["choices"][0]["delta"]);
        out.thoughts += &text(&delta["reasoning_content"]);
        out.text += &text(&delta["content"]);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            arguments.resize(arguments.len().max(index + 1), Default::default());
            arguments[index].0 += &text(&call["function"]["name"]);
            arguments[index].1 += &text(&call["function"]["arguments"]);
        }
        out.calls_tools |= choice["finish_reason"] == "tool_calls";
        if e["usage"].is_object() {
            out.tokens = usage(&e["usage"]);
        }
    }
    out.calls = arguments.into_iter().map(|(n, a)| (n, serde_json::from_str(&a).unwrap())).collect();
    out
}

async fn by_anthropic(f: &Fixture, name: &str, stream: bool) -> Meaning {
    let body = json!({
        "model": name, "stream": stream, "max_tokens": 200, "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "Weather in Bonn?"},
            {"role": "assistant", "content": [{"type": "text", "text": "One moment."},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Bonn"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "9 °C"},
                {"type": "text", "text": "And in Köln?"}]},
        ],
        "tools": [{"name": "weather", "description": "Tells it.", "input_schema": schema()}],
    });
    let path = "/v1/messages";
    let mut out = Meaning::default();
    let mut take = |block: &Value, input: Option<Value>| match block["type"].as_str().unwrap_or_default() {
        "thinking" => out.thoughts += &text(&block["thinking"]),
        "text" => out.text += &text(&block["text"]),
        "tool_use" => out.calls.push((text(&block["name"]), input.unwrap_or_else(|| block["input"].clone()))),
        other => panic!("{name}: a block of {other}"),
    };
    let (mut reason, mut tokens) = (Value::Null, (0, 0));
    let mut count = |usage: &Value| {
        tokens.0 = usage["input_tokens"].as_u64().unwrap_or(tokens.0);
        tokens.1 = usage["output_tokens"].as_u64().unwrap_or(tokens.1);
    };
    if stream {
        let (mut block, mut input, mut over) = (Value::Null, String::new(), false);
        for (event, e) in f.events(path, &body).await {
            assert!(!over, "{name}: {e} after the end");
            match event.as_str() {
                "message_start" => count(&e["message"]["usage"]),
                "content_block_start" => (block, input) = (e["content_block"].clone(), String::new()),
                "content_block_delta" => {
                    let delta = &e["delta"];
                    for field in ["thinking", "text"] {
                        if let Some(more) = delta[field].as_str() {
                            block[field] = (text(&block[field]) + more).into();
                        }
                    }
                    input += &text(&delta["partial_json"]);
                }
                "content_block_stop" => {
                    take(&block, (!input.is_empty()).then(|| serde_json::from_str(&input).unwrap()));
                }
                "message_delta" => {
                    reason = e["delta"]["stop_reason"].clone();
                    count(&e["usage"]);
                }
                "message_stop" => over = true,
                "ping" => {}
                other => panic!("{name}: {other}: {e}"),
            }
        }
        assert!(over, "{name}: an end");
    } else {
        let answer = f.ok(path, &body).await;
        answer["content"].as_array().unwrap().iter().for_each(|b| take(b, None));
        reason = answer["stop_reason"].clone();
        count(&answer["usage"]);
    }
    (out.calls_tools, out.tokens) = (reason == "tool_use", tokens);
    out
}

async fn by_ollama(f: &Fixture, name: &str, stream: bool) -> Meaning {
    let body = json!({
        "model": name, "stream": stream, "options": {"num_predict": 200},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather in Bonn?"},
            {"role": "assistant", "content": "One moment.",
                "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Bonn"}}}]},
            {"role": "tool", "tool_name": "weather", "content": "9 °C"},
            {"role": "user", "content": "And in Köln?"},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": schema()}}],
    });
    let path = "/api/chat";
    let lines = if stream { f.lines(path, &body).await } else { vec![f.ok(path, &body).await] };
    let mut out = Meaning::default();
    for line in &lines {
        let message = &line["message"];
        out.thoughts += &text(&message["thinking"]);
        out.text += &text(&message["content"]);
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            out.calls.push((text(&call["function"]["name"]), call["function"]["arguments"].clone()));
        }
    }
    let last = lines.last().unwrap();
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")), "{name}: {last}");
    // Ollama has no word of its own for that.
    out.calls_tools = !out.calls.is_empty();
    let count = |field: &str| last[field].as_u64().unwrap_or(0);
    out.tokens = (count("prompt_eval_count"), count("eval_count"));
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn three_dialects_get_the_same_answer_from_five_kinds_of_providers() {
    let up = Upstream::start(|seen| providers::answers(seen, &providers::calls())).await;
    let f = Fixture::routed(&providers::routes(&up.base, &[("", "theirs")])).await;
    for (name, ..) in providers::KINDS {
        for stream in [false, true] {
            for client in ["openai", "anthropic", "ollama"] {
                let got = match client {
                    "openai" => by_openai(&f, name, stream).await,
                    "anthropic" => by_anthropic(&f, name, stream).await,
                    _ => by_ollama(&f, name, stream).await,
                };
                assert_eq!(got, expected(), "{client} to {name}, stream {stream}");
                let (said, tools) = sent(&up.last());
                assert_eq!(said, CONVERSATION, "{client} to {name}: {}", up.last().body);
                assert_eq!(tools, ["weather"], "{client} to {name}");
            }
        }
    }
    assert_eq!(up.seen().len(), 30, "each once");
}

/// The group's provider gets the client's bytes unread; the one that answers in its place has another dialect.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_fallback_answers_have_the_form_that_the_request_asks_for() {
    let refusal = json!({"error": {"message": "no"}});
    let up = Upstream::start(move |seen| match providers::asked(seen) {
        "down" => answer("503 Service Unavailable", &refusal),
        _ => providers::answers(seen, &providers::calls()),
    })
    .await;
    let f = Fixture::routed(&providers::routes(&up.base, &[("", "theirs"), ("-down", "down")])).await;
    let legacy = json!({"functions": [{"name": "weather", "parameters": schema()}]});
    let custom = json!({"tools": [{"type": "custom", "custom": {"name": "weather"}}]});
    let path = "/v1/chat/completions";
    for name in ["claude", "gemini", "llama"] {
        let base = json!({
            "model": "vllm-down", "messages": [{"role": "user", "content": "Weather?"}],
            "fallbacks": [name], "num_retries": 0,
        });
        let whole = f.ok(path, &with(&base, legacy.clone())).await;
        let choice = &whole["choices"][0];
        let call = &choice["message"]["function_call"];
        assert_eq!((&choice["finish_reason"], &call["name"]), (&json!("function_call"), &json!("weather")));
        assert!(choice["message"].get("tool_calls").is_none(), "{name}: {whole}");
        let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
        let events = f.events(path, &with(&with(&base, legacy.clone()), stream)).await;
        let delta =
            |key: &str| events.iter().filter(|(_, e)| e["choices"][0]["delta"].get(key).is_some()).count();
        assert!(delta("function_call") > 0 && delta("tool_calls") == 0, "{name}: {events:?}");
        assert!(events.iter().any(|(_, e)| e["usage"]["prompt_tokens"] == 10), "{name}: {events:?}");
        let whole = f.ok(path, &with(&base, custom.clone())).await;
        assert_eq!(whole["choices"][0]["message"]["tool_calls"][0]["type"], "custom", "{name}: {whole}");
    }
}
