//! The five kinds of providers, who say what they are told to, each in its own dialect; and what stands in the requests that they get,
//! whatever it is written in.

use serde_json::{Value, json};

use super::upstream::{STREAM_HEAD, Seen, Step, answer, chunk, event};

/// A name in the configuration, what is before the model's, and what is behind the address.
pub const KINDS: [(&str, &str, &str); 5] = [
    ("vllm", "hosted_vllm", "/v1"),
    ("claude", "anthropic", ""),
    ("gemini", "gemini", "/v1beta"),
    ("azure", "azure", ""),
    ("llama", "ollama", ""),
];

/// A configuration with all of them at one address. Each is there once for each of `models`: what its name has at its end, and what the
/// model is called there.
pub fn routes(base: &str, models: &[(&str, &str)]) -> String {
    let mut out = String::from("model_list:\n");
    for (kind, (end, model)) in KINDS.iter().flat_map(|k| models.iter().map(move |m| (k, m))) {
        let (name, provider, path) = kind;
        let version = if *provider == "azure" { ", api_version: '2024-10-21'" } else { "" };
        out += &format!(
            "- {{model_name: {name}{end}, litellm_params: {{model: {provider}/{model}, api_base: \"{base}{path}\", api_key: sk-x{version}}}}}\n"
        );
    }
    out
}

/// Why an answer is over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum End {
    Calls,
    Stop,
    Length,
}

impl End {
    /// The words of OpenAI, Anthropic, Gemini and Ollama for it.
    fn words(self) -> [&'static str; 4] {
        match self {
            Self::Calls => ["tool_calls", "tool_use", "STOP", "stop"],
            Self::Stop => ["stop", "end_turn", "STOP", "stop"],
            Self::Length => ["length", "max_tokens", "MAX_TOKENS", "length"],
        }
    }
}

/// An answer: pieces of thoughts and of text, perhaps a call for Köln's weather, and tokens of the prompt and of the answer.
pub struct Said {
    pub thoughts: &'static [&'static str],
    pub text: &'static [&'static str],
    pub end: End,
    pub tokens: (u64, u64),
}

/// An answer that calls a tool.
pub fn calls() -> Said {
    Said {
        thoughts: &["Let me ", "think."],
        text: &["Looking \"up\"", " 🙂."],
        end: End::Calls,
        tokens: (10, 5),
    }
}

/// What a provider answers, in pieces.
pub fn answers(seen: &Seen, said: &Said) -> Vec<Step> {
    match dialect(seen) {
        Some(Kind::OpenAi) => openai(streams(seen), said),
        Some(Kind::Anthropic) => anthropic(streams(seen), said),
        Some(Kind::Ollama) => ollama(streams(seen), said),
        Some(Kind::Gemini) => gemini(streams(seen), said),
        None => answer("404 Not Found", &json!({"error": {"message": format!("nothing at {}", seen.path)}})),
    }
}

/// A provider's refusal because of too many requests.
pub fn limited(seen: &Seen) -> Vec<Step> {
    let what = "Slow down";
    let body = match dialect(seen) {
        Some(Kind::Anthropic) => {
            json!({"type": "error", "error": {"type": "rate_limit_error", "message": what}})
        }
        Some(Kind::Gemini) => {
            json!({"error": {"code": 429, "message": what, "status": "RESOURCE_EXHAUSTED"}})
        }
        Some(Kind::Ollama) => json!({"error": what}),
        _ => {
            json!({"error": {"message": what, "type": "requests", "param": null, "code": "rate_limit_exceeded"}})
        }
    };
    answer("429 Too Many Requests\r\nretry-after: 7", &body)
}

/// What a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    OpenAi,
    Anthropic,
    Gemini,
    Ollama,
}

/// What is spoken where a request came.
pub fn dialect(seen: &Seen) -> Option<Kind> {
    let path = seen.path.split('?').next().unwrap_or_default();
    Some(match path.rsplit('/').next().unwrap_or_default() {
        "completions" => Kind::OpenAi,
        "messages" => Kind::Anthropic,
        "chat" => Kind::Ollama,
        _ if path.starts_with("/v1beta/models/") => Kind::Gemini,
        _ => return None,
    })
}

pub fn streams(seen: &Seen) -> bool {
    seen.body["stream"] == true || seen.path.contains(":streamGenerateContent")
}

/// The model that a request is for, in its body or its path.
pub fn asked(seen: &Seen) -> &str {
    let in_path = || {
        let rest = seen.path.split("/models/").nth(1).or(seen.path.split("/deployments/").nth(1));
        rest.and_then(|r| r.split([':', '/']).next())
    };
    in_path().or(seen.body["model"].as_str()).unwrap_or_default()
}

fn sse(events: impl IntoIterator<Item = Step>) -> Vec<Step> {
    let end = Step::Send("0\r\n\r\n".into());
    std::iter::once(Step::Send(STREAM_HEAD.into())).chain(events).chain([end]).collect()
}

fn openai(streams: bool, said: &Said) -> Vec<Step> {
    let (prompt, answered) = said.tokens;
    let usage =
        json!({"prompt_tokens": prompt, "completion_tokens": answered, "total_tokens": prompt + answered});
    let finish = said.end.words()[0];
    let call = |arguments: &str| json!({"index": 0, "id": "call_9", "type": "function", "function": {"name": "weather", "arguments": arguments}});
    if !streams {
        let mut message = json!({"role": "assistant", "content": said.text.concat()});
        if !said.thoughts.is_empty() {
            message["reasoning_content"] = said.thoughts.concat().into();
        }
        if said.end == End::Calls {
            message["tool_calls"] = json!([call("{\"city\": \"Köln\"}")]);
        }
        return answer(
            "200 OK",
            &json!({"id": "x", "object": "chat.completion", "created": 1, "model": "theirs", "usage": usage,
                "choices": [{"index": 0, "message": message, "finish_reason": finish}]}),
        );
    }
    let piece = |delta: Value, finish: Value| {
        event(&json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "theirs",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))
    };
    let mut out = vec![piece(json!({"role": "assistant", "content": ""}), Value::Null)];
    out.extend(said.thoughts.iter().map(|t| piece(json!({"reasoning_content": t}), Value::Null)));
    out.extend(said.text.iter().map(|t| piece(json!({"content": t}), Value::Null)));
    if said.end == End::Calls {
        let more =
            |arguments: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]});
        out.push(piece(json!({"tool_calls": [call("")]}), Value::Null));
        out.push(piece(more("{\"city\":"), Value::Null));
        out.push(piece(more(" \"Köln\"}"), Value::Null));
    }
    out.push(piece(json!({}), json!(finish)));
    out.push(event(&json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "theirs",
        "choices": [], "usage": usage})));
    out.push(chunk("data: [DONE]\n\n"));
    sse(out)
}

fn anthropic(streams: bool, said: &Said) -> Vec<Step> {
    let message = |content: Value, reason: Value, tokens: u64| {
        json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "theirs", "content": content,
            "stop_reason": reason, "stop_sequence": null, "usage": {"input_tokens": said.tokens.0, "output_tokens": tokens}})
    };
    let reason = said.end.words()[1];
    if !streams {
        let mut content = vec![json!({"type": "text", "text": said.text.concat()})];
        if !said.thoughts.is_empty() {
            let block = json!({"type": "thinking", "thinking": said.thoughts.concat(), "signature": "EqQB"});
            content.insert(0, block);
        }
        if said.end == End::Calls {
            content.push(
                json!({"type": "tool_use", "id": "toolu_9", "name": "weather", "input": {"city": "Köln"}}),
            );
        }
        return answer("200 OK", &message(content.into(), json!(reason), said.tokens.1));
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
    let mut out =
        vec![named(json!({"type": "message_start", "message": message(json!([]), Value::Null, 1)}))];
    let mut at = 0;
    if !said.thoughts.is_empty() {
        out.push(start(0, json!({"type": "thinking", "thinking": "", "signature": ""})));
        out.push(named(json!({"type": "ping"})));
        out.extend(said.thoughts.iter().map(|t| delta(0, json!({"type": "thinking_delta", "thinking": t}))));
        out.extend([delta(0, json!({"type": "signature_delta", "signature": "EqQB"})), stop(0)]);
        at = 1;
    }
    out.push(start(at, json!({"type": "text", "text": ""})));
    out.extend(said.text.iter().map(|t| delta(at, json!({"type": "text_delta", "text": t}))));
    out.push(stop(at));
    if said.end == End::Calls {
        at += 1;
        out.push(start(at, json!({"type": "tool_use", "id": "toolu_9", "name": "weather", "input": {}})));
        out.push(delta(at, json!({"type": "input_json_delta", "partial_json": "{\"city\":"})));
        out.push(delta(at, json!({"type": "input_json_delta", "partial_json": " \"Köln\"}"})));
        out.push(stop(at));
    }
    out.push(named(json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null},
        "usage": {"output_tokens": said.tokens.1}})));
    out.push(named(json!({"type": "message_stop"})));
    sse(out)
}

fn gemini(streams: bool, said: &Said) -> Vec<Step> {
    let mut parts: Vec<Value> = Vec::new();
    if !said.thoughts.is_empty() {
        parts.push(json!({"text": said.thoughts.concat(), "thought": true}));
    }
    parts.extend(said.text.iter().map(|t| json!({"text": t})));
    if said.end == End::Calls {
        parts.push(json!({"functionCall": {"name": "weather", "args": {"city": "Köln"}}}));
    }
    // What was thought is counted on its own there.
    let (prompt, answered) = said.tokens;
    let thought = said.thoughts.len() as u64;
    let usage = json!({"promptTokenCount": prompt, "candidatesTokenCount": answered - thought,
        "thoughtsTokenCount": thought, "totalTokenCount": prompt + answered});
    let finish = said.end.words()[2];
    let whole = |parts: &[Value], finish: Option<&str>| {
        let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
        if let Some(finish) = finish {
            candidate["finishReason"] = finish.into();
        }
        json!({"candidates": [candidate], "usageMetadata": usage, "responseId": "r1", "modelVersion": "theirs"})
    };
    if !streams {
        return answer("200 OK", &whole(&parts, Some(finish)));
    }
    let pieces = parts.iter().map(|p| event(&whole(std::slice::from_ref(p), None)));
    sse(pieces.chain([event(&whole(&[json!({"text": ""})], Some(finish)))]))
}

fn ollama(streams: bool, said: &Said) -> Vec<Step> {
    let line = |message: Value, done: bool| {
        let mut line = json!({"model": "theirs", "created_at": "2026-11-21T10:00:00Z", "message": message, "done": done});
        if done {
            line["done_reason"] = said.end.words()[3].into();
            (line["prompt_eval_count"], line["eval_count"]) = (said.tokens.0.into(), said.tokens.1.into());
        }
        line
    };
    let calls = json!([{"function": {"name": "weather", "arguments": {"city": "Köln"}}}]);
    if !streams {
        let mut message = json!({"role": "assistant", "content": said.text.concat()});
        if !said.thoughts.is_empty() {
            message["thinking"] = said.thoughts.concat().into();
        }
        if said.end == End::Calls {
            message["tool_calls"] = calls;
        }
        return answer("200 OK", &line(message, true));
    }
    let head = STREAM_HEAD.replace("text/event-stream", "application/x-ndjson");
    let say = |message: Value, done: bool| chunk(&format!("{}\n", line(message, done)));
    let mut out = vec![Step::Send(head)];
    let thoughts = said.thoughts.iter();
    out.extend(thoughts.map(|t| say(json!({"role": "assistant", "content": "", "thinking": t}), false)));
    out.extend(said.text.iter().map(|t| say(json!({"role": "assistant", "content": t}), false)));
    if said.end == End::Calls {
        out.push(say(json!({"role": "assistant", "content": "", "tool_calls": calls}), false));
    }
    out.extend([say(json!({"role": "assistant", "content": ""}), true), Step::Send("0\r\n\r\n".into())]);
    out
}

/// A text, or the texts in a list of parts.
pub fn text(content: &Value) -> String {
    match content {
        Value::Array(parts) => parts.iter().filter_map(|p| p["text"].as_str()).collect(),
        other => other.as_str().unwrap_or_default().into(),
    }
}

/// What stands in a request, whatever it is written in; and the names of its tools.
pub fn sent(seen: &Seen) -> (Vec<String>, Vec<String>) {
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
