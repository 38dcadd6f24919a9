//! One conversation with tools and thoughts, as clients of three APIs have it, through the router to five kinds of providers, streamed
//! and whole: each provider is sent the same, and each client gets the same.

mod common;

use common::Fixture;
use common::upstream::{STREAM_HEAD, Seen, Step, Upstream, answer, chunk, event};
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

// ---- providers ----

/// What a provider answers, in pieces.
fn provider(seen: &Seen) -> Vec<Step> {
    let streams = seen.body["stream"] == true || seen.path.contains(":streamGenerateContent");
    let path = seen.path.split('?').next().unwrap_or_default();
    match path.rsplit('/').next().unwrap_or_default() {
        "completions" => openai(streams),
        "messages" => anthropic(streams),
        "chat" => ollama(streams),
        _ if path.starts_with("/v1beta/models/theirs:") => gemini(streams),
        _ => answer("404 Not Found", &json!({"error": {"message": format!("nothing at {}", seen.path)}})),
    }
}

fn sse(events: impl IntoIterator<Item = Step>) -> Vec<Step> {
    let end = Step::Send("0\r\n\r\n".into());
    std::iter::once(Step::Send(STREAM_HEAD.into())).chain(events).chain([end]).collect()
}

fn openai(streams: bool) -> Vec<Step> {
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15});
    let call = |arguments: &str| json!({"index": 0, "id": "call_9", "type": "function", "function": {"name": "weather", "arguments": arguments}});
    if !streams {
        let message = json!({"role": "assistant", "reasoning_content": "Let me think.", "content": "Looking \"up\" 🙂.",
            "tool_calls": [call("{\"city\": \"Köln\"}")]});
        return answer(
            "200 OK",
            &json!({"id": "x", "object": "chat.completion", "created": 1, "model": "theirs", "usage": usage,
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}),
        );
    }
    let piece = |delta: Value, finish: Value| {
        event(&json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "theirs",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))
    };
    sse([
        piece(json!({"role": "assistant", "content": ""}), Value::Null),
        piece(json!({"reasoning_content": "Let me "}), Value::Null),
        piece(json!({"reasoning_content": "think."}), Value::Null),
        piece(json!({"content": "Looking \"up\""}), Value::Null),
        piece(json!({"content": " 🙂."}), Value::Null),
        piece(json!({"tool_calls": [call("")]}), Value::Null),
        piece(json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"city\":"}}]}), Value::Null),
        piece(json!({"tool_calls": [{"index": 0, "function": {"arguments": " \"Köln\"}"}}]}), Value::Null),
        piece(json!({}), json!("tool_calls")),
        event(
            &json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "theirs", "choices": [],
            "usage": usage}),
        ),
        chunk("data: [DONE]\n\n"),
    ])
}

fn anthropic(streams: bool) -> Vec<Step> {
    let message = |content: Value, reason: Value, tokens: u64| {
        json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "theirs", "content": content,
            "stop_reason": reason, "stop_sequence": null, "usage": {"input_tokens": 10, "output_tokens": tokens}})
    };
    if !streams {
        let content = json!([{"type": "thinking", "thinking": "Let me think.", "signature": "EqQB"},
            {"type": "text", "text": "Looking \"up\" 🙂."},
            {"type": "tool_use", "id": "toolu_9", "name": "weather", "input": {"city": "Köln"}}]);
        return answer("200 OK", &message(content, json!("tool_use"), 5));
    }
    let named = |data: Value| {
        chunk(&format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default()))
    };
    let start = |i: u32, block: Value| {
        named(json!({"type": "content_block_start", "index": i, "content_block": block}))
    };
    let delta =
        |i: u32, delta: Value| named(json!({"type": "content_block_delta", "index": i, "delta": delta}));
    let stop = |i: u32| named(json!({"type": "content_block_stop", "index": i}));
    sse([
        named(json!({"type": "message_start", "message": message(json!([]), Value::Null, 1)})),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        named(json!({"type": "ping"})),
        delta(0, json!({"type": "thinking_delta", "thinking": "Let me "})),
        delta(0, json!({"type": "thinking_delta", "thinking": "think."})),
        delta(0, json!({"type": "signature_delta", "signature": "EqQB"})),
        stop(0),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "Looking \"up\""})),
        delta(1, json!({"type": "text_delta", "text": " 🙂."})),
        stop(1),
        start(2, json!({"type": "tool_use", "id": "toolu_9", "name": "weather", "input": {}})),
        delta(2, json!({"type": "input_json_delta", "partial_json": "{\"city\":"})),
        delta(2, json!({"type": "input_json_delta", "partial_json": " \"Köln\"}"})),
        stop(2),
        named(json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null},
            "usage": {"output_tokens": 5}})),
        named(json!({"type": "message_stop"})),
    ])
}

fn gemini(streams: bool) -> Vec<Step> {
    let parts = [
        json!({"text": "Let me think.", "thought": true}),
        json!({"text": "Looking \"up\" 🙂."}),
        json!({"functionCall": {"name": "weather", "args": {"city": "Köln"}}}),
    ];
    let usage = json!({"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15});
    let whole = |parts: &[Value], finish: Option<&str>| {
        let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
        if let Some(finish) = finish {
            candidate["finishReason"] = finish.into();
        }
        json!({"candidates": [candidate], "usageMetadata": usage, "responseId": "r1", "modelVersion": "theirs"})
    };
    if !streams {
        return answer("200 OK", &whole(&parts, Some("STOP")));
    }
    let pieces = parts.iter().map(|p| event(&whole(std::slice::from_ref(p), None)));
    sse(pieces.chain([event(&whole(&[json!({"text": ""})], Some("STOP")))]))
}

fn ollama(streams: bool) -> Vec<Step> {
    let line = |message: Value, done: bool| {
        let mut line = json!({"model": "theirs", "created_at": "2026-11-21T10:00:00Z", "message": message, "done": done});
        if done {
            line["done_reason"] = "stop".into();
            (line["prompt_eval_count"], line["eval_count"]) = (10.into(), 5.into());
        }
        line
    };
    let calls = json!([{"function": {"name": "weather", "arguments": {"city": "Köln"}}}]);
    if !streams {
        let message = json!({"role": "assistant", "thinking": "Let me think.", "content": "Looking \"up\" 🙂.",
            "tool_calls": calls});
        return answer("200 OK", &line(message, true));
    }
    let head = STREAM_HEAD.replace("text/event-stream", "application/x-ndjson");
    let said = |message: Value, done: bool| chunk(&format!("{}\n", line(message, done)));
    vec![
        Step::Send(head),
        said(json!({"role": "assistant", "content": "", "thinking": "Let me "}), false),
        said(json!({"role": "assistant", "content": "", "thinking": "think."}), false),
        said(json!({"role": "assistant", "content": "Looking \"up\""}), false),
        said(json!({"role": "assistant", "content": " 🙂."}), false),
        said(json!({"role": "assistant", "content": "", "tool_calls": calls}), false),
        said(json!({"role": "assistant", "content": ""}), true),
        Step::Send("0\r\n\r\n".into()),
    ]
}

// ---- what a provider is sent ----

/// What everybody is to be sent, a line for each thing said.
const CONVERSATION: [&str; 6] = [
    "system: Be brief.",
    "user: Weather in Bonn?",
    "assistant: One moment.",
    "calls: weather {\"city\":\"Bonn\"}",
    "result: 9 °C",
    "user: And in Köln?",
];

/// A text, or the texts in a list of parts.
fn text(content: &Value) -> String {
    match content {
        Value::Array(parts) => parts.iter().filter_map(|p| p["text"].as_str()).collect(),
        other => other.as_str().unwrap_or_default().into(),
    }
}

/// What stands in a request, whatever it is written in; and the names of its tools.
fn sent(seen: &Seen) -> (Vec<String>, Vec<String>) {
    let body = &seen.body;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (mut out, mut tools) = (Vec::new(), Vec::new());
    let mut say = |who: &str, what: String| {
        if !what.is_empty() {
            out.push(format!("{who}: {what}"));
        }
    };
    if body["contents"].is_array() {
        say("system", text(&body["systemInstruction"]["parts"]));
        for content in list(&body["contents"]) {
            let who = if content["role"] == "model" { "assistant" } else { "user" };
            for part in list(&content["parts"]) {
                let (call, result) = (&part["functionCall"], &part["functionResponse"]);
                if call.is_object() {
                    say("calls", format!("{} {}", call["name"].as_str().unwrap_or_default(), call["args"]));
                } else if result.is_object() {
                    let said = result["response"].as_object().and_then(|r| r.values().next());
                    say("result", said.map(text).unwrap_or_default());
                } else {
                    say(who, text(&part["text"]));
                }
            }
        }
        for tool in list(&body["tools"]).iter().flat_map(|t| list(&t["functionDeclarations"])) {
            tools.push(tool["name"].as_str().unwrap_or_default().to_string());
        }
        return (out, tools);
    }
    say("system", text(&body["system"]));
    for message in list(&body["messages"]) {
        let who = message["role"].as_str().unwrap_or_default();
        for part in list(&message["content"]) {
            match part["type"].as_str().unwrap_or_default() {
                "tool_use" => {
                    say("calls", format!("{} {}", part["name"].as_str().unwrap_or_default(), part["input"]));
                }
                "tool_result" => say("result", text(&part["content"])),
                _ => say(who, text(&json!([part]))),
            }
        }
        if message["content"].is_string() {
            say(if who == "tool" { "result" } else { who }, text(&message["content"]));
        }
        for call in list(&message["tool_calls"]) {
            let (name, arguments) = (&call["function"]["name"], &call["function"]["arguments"]);
            let arguments = match arguments.as_str() {
                Some(written) => serde_json::from_str(written).unwrap_or_default(),
                None => arguments.clone(),
            };
            say("calls", format!("{} {arguments}", name.as_str().unwrap_or_default()));
        }
    }
    for tool in list(&body["tools"]) {
        let name = tool["name"].as_str().or(tool["function"]["name"].as_str());
        tools.push(name.unwrap_or_default().to_string());
    }
    (out, tools)
}

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
async fn three_clients_and_five_kinds_of_providers_mean_the_same() {
    let up = Upstream::start(provider).await;
    let base = &up.base;
    let f = Fixture::routed(&format!(
        "model_list:
- {{model_name: vllm, litellm_params: {{model: hosted_vllm/theirs, api_base: \"{base}/v1\"}}}}
- {{model_name: claude, litellm_params: {{model: anthropic/theirs, api_base: \"{base}\", api_key: sk-a}}}}
- {{model_name: gemini, litellm_params: {{model: gemini/theirs, api_base: \"{base}/v1beta\", api_key: sk-g}}}}
- {{model_name: azure, litellm_params: {{model: azure/theirs, api_base: \"{base}\", api_key: sk-z, api_version: '2024-10-21'}}}}
- {{model_name: llama, litellm_params: {{model: ollama/theirs, api_base: \"{base}\"}}}}
"
    ))
    .await;
    for name in ["vllm", "claude", "gemini", "azure", "llama"] {
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
