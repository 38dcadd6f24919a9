//! A conversation with each provider: what is sent, against their public documentation, and what their answers mean. And what
//! our own server writes in each dialect is read back the same.

mod common;

use common::*;
use octet_api::core::{
    Answer, Block, Chat, Effort, Event, FinishReason, GenerateRequest, Input, Message, Part, Prompt, Reasoning,
    ReasoningPart, ResponseFormat, Role, Timings, Tool, ToolCall, ToolChoice, Usage,
};
use octet_api::dialect::StreamWriter;
use octet_api::{anthropic, ollama, openai};
use octet_config::{Edits, Provider};
use octet_upstream::{Endpoint, FailureKind, Settings};
use serde_json::{Value, json};

/// Everything that all providers have a place for.
fn conversation(stream: bool) -> GenerateRequest {
    let call = ToolCall {
        id: "call_1".into(),
        name: "weather".into(),
        arguments: r#"{"city":"Köln"}"#.into(),
        cache: None,
    };
    let chat = Chat {
        messages: vec![
            Message::text(Role::System, "Be brief."),
            Message::text(Role::User, "Weather?"),
            Message {
                reasoning: vec![ReasoningPart::Text { text: "Look it up.".into(), signature: None }],
                content: vec![Part::text("One moment.")],
                tool_calls: vec![call],
                ..Message::empty(Role::Assistant)
            },
            Message { tool_call_id: Some("call_1".into()), ..Message::text(Role::Tool, "9 °C") },
        ],
        tools: vec![Tool {
            name: "weather".into(),
            description: Some("Tells it.".into()),
            parameters: json!({"type": "object", "properties": {"city": {"type": "string"}}}).as_object().unwrap().clone(),
            strict: None,
            cache: None,
        }],
        ..Chat::default()
    };
    let mut r = GenerateRequest { stream, max_tokens: Some(500), ..GenerateRequest::new("ours", Input::Chat(chat)) };
    r.sampling.temperature = Some(0.5);
    r.sampling.top_p = Some(0.9);
    r.stop = vec!["END".into()];
    r
}

fn chat(r: &mut GenerateRequest) -> &mut Chat {
    match &mut r.input {
        Input::Chat(chat) => chat,
        Input::Completion(_) => unreachable!("a conversation"),
    }
}

/// What is sent for a request; the answer does not matter.
async fn sent(settings: impl FnOnce(&str) -> Settings, r: &GenerateRequest) -> Seen {
    let server = Server::start(vec![json_answer(&json!({}))]).await;
    let endpoint = Endpoint::new(settings(&server.base)).unwrap();
    let (_, failure) = generate(&endpoint, r).await;
    assert!(!server.seen().is_empty(), "nothing was sent: {failure:?}");
    server.last()
}

async fn sent_to(provider: Provider, r: &GenerateRequest) -> Value {
    sent(|base| Settings::new(remote(provider, base)), r).await.json()
}

async fn refused(provider: Provider, r: &GenerateRequest) -> octet_upstream::Failure {
    let server = Server::start(vec![json_answer(&json!({}))]).await;
    let (_, failure) = generate(&endpoint(provider, &server.base), r).await;
    assert!(server.seen().is_empty(), "it is refused before it is sent");
    failure.unwrap()
}

async fn answer_of(provider: Provider, steps: Vec<Step>, stream: bool) -> Answer {
    let server = Server::start(vec![steps]).await;
    answered(&endpoint(provider, &server.base), &request(stream)).await
}

fn call(index: u32, id: &str, name: &str, arguments: &str) -> Block {
    Block::ToolCall { index, id: id.into(), name: name.into(), arguments: arguments.into() }
}

fn thought(text: &str) -> Block {
    Block::Reasoning { text: text.into(), signature: None }
}

#[tokio::test]
async fn keys_and_addresses_are_each_provider_s_own() {
    let r = request(true);
    for (provider, version, line, header, value) in [
        (Provider::OpenAiCompatible, None, "POST /v1/chat/completions HTTP/1.1", "authorization", "Bearer sk-very-secret-key"),
        (Provider::OpenAi, None, "POST /v1/chat/completions HTTP/1.1", "authorization", "Bearer sk-very-secret-key"),
        (Provider::Anthropic, None, "POST /v1/messages HTTP/1.1", "x-api-key", "sk-very-secret-key"),
        (Provider::Gemini, None, "POST /v1beta/models/their-model:streamGenerateContent?alt=sse HTTP/1.1", "x-goog-api-key", "sk-very-secret-key"),
        (Provider::AzureOpenAi, Some("2025-01-01-preview"), "POST /openai/deployments/their-model/chat/completions?api-version=2025-01-01-preview HTTP/1.1", "api-key", "sk-very-secret-key"),
        (Provider::AzureOpenAi, Some("v1"), "POST /openai/v1/chat/completions HTTP/1.1", "api-key", "sk-very-secret-key"),
        (Provider::Ollama, None, "POST /api/chat HTTP/1.1", "authorization", "Bearer sk-very-secret-key"),
    ] {
        let settings = |base: &str| {
            let mut s = Settings::new(remote(provider, base));
            s.remote.api_version = version.map(str::to_string);
            s.remote.extra_headers = vec![("X-Team".into(), octet_config::Secret::new("blue").unwrap())];
            s
        };
        let seen = sent(settings, &r).await;
        assert_eq!(seen.line, line);
        assert_eq!(seen.header(header), Some(value), "{provider:?}");
        assert_eq!(seen.header("x-team"), Some("blue"));
        assert_eq!(seen.header("content-type"), Some("application/json"));
        assert_eq!(seen.header("accept-encoding"), Some("identity"));
        let keys = seen.headers.iter().filter(|(_, v)| v.contains("secret")).count();
        assert_eq!((keys, seen.path().contains("secret")), (1, false), "the key stands in one place");
        let version = seen.header("anthropic-version");
        assert_eq!(version, (provider == Provider::Anthropic).then_some("2023-06-01"));
    }
}

#[tokio::test]
async fn names_can_not_lead_elsewhere() {
    for (model, path) in [
        ("../../admin", "/v1beta/models/..%2F..%2Fadmin:generateContent"),
        ("a?key=b#c", "/v1beta/models/a%3Fkey%3Db%23c:generateContent"),
        ("models/gemini-x", "/v1beta/models/gemini-x:generateContent"),
        ("ä b", "/v1beta/models/%C3%A4%20b:generateContent"),
    ] {
        let settings = |base: &str| {
            let mut s = Settings::new(remote(Provider::Gemini, base));
            s.remote.model = model.into();
            s
        };
        assert_eq!(sent(settings, &request(false)).await.path(), path);
    }
}

#[test]
fn endpoints_that_can_not_be_are_refused_without_their_keys() {
    let new = |change: &dyn Fn(&mut Settings)| {
        let mut s = Settings::new(remote(Provider::OpenAi, "http://h"));
        change(&mut s);
        Endpoint::new(s).map(|e| e.host().to_string()).map_err(|e| e.to_string())
    };
    assert_eq!(new(&|_| {}), Ok("h".into()));
    for (base, said) in [
        ("ftp://h", "must be an address"),
        ("h/v1", "must be an address"),
        ("", "is no address"),
        ("http://me:hunter22@h/v1", "holds a name or a password"),
        ("http://h/v1?key=hunter22", "has a query"),
        ("http://hunter22 x", "is no address"),
    ] {
        let said_now = new(&|s| s.remote.api_base = base.into()).unwrap_err();
        assert!(said_now.contains(said) && !said_now.contains("hunter22"), "{base}: {said_now}");
    }
    assert!(new(&|s| s.remote.model = String::new()).unwrap_err().contains("has no name"));
    let bad = |name: &str, value: &str| {
        let secret = octet_config::Secret::new(value).unwrap();
        new(&|s| s.remote.extra_headers = vec![(name.into(), secret.clone())]).unwrap_err()
    };
    assert!(bad("x y", "v").contains("no name of a header"));
    assert!(bad("Host", "v").contains("is made here"));
    assert!(!bad("x-key", "line\nbreak hunter22").contains("hunter22"));
    let s = Settings::new(remote(Provider::Anthropic, "http://h"));
    let shown = format!("{:?}", Endpoint::new(s).unwrap());
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test]
async fn a_conversation_for_openai_and_its_likes() {
    let mut r = conversation(true);
    r.sampling.top_k = Some(20);
    chat(&mut r).reasoning = Reasoning { enabled: Some(true), ..Reasoning::default() };
    let body = sent_to(Provider::OpenAiCompatible, &r).await;
    assert_eq!(body["model"], "their-model");
    assert_eq!(body["messages"][2]["reasoning_content"], "Look it up.");
    assert_eq!(body["messages"][3], json!({"role": "tool", "content": "9 °C", "tool_call_id": "call_1"}));
    assert_eq!(body["stream_options"]["include_usage"], true);
    assert_eq!((&body["top_k"], &body["max_tokens"]), (&json!(20), &json!(500)));
    assert_eq!(body["chat_template_kwargs"]["enable_thinking"], true);
    // What we send is what our own server takes for the same.
    let read = openai::chat::parse(body.to_string().as_bytes()).unwrap();
    assert_eq!(read.input, r.input.clone().tap(|i| {
        let Input::Chat(chat) = i else { return };
        chat.template_kwargs.insert("enable_thinking".into(), true.into());
    }));

    let failure = refused(Provider::OpenAi, &r).await;
    assert_eq!((failure.kind, failure.param.as_deref()), (FailureKind::BadRequest, Some("top_k")));
    assert!(failure.message.contains("openai has nothing like 'top_k'") && failure.message.contains("drop_params"));
    let settings = |base: &str| {
        let mut s = Settings::new(remote(Provider::OpenAi, base));
        s.remote.changes.drop_params = true;
        s
    };
    let body = sent(settings, &r).await.json();
    assert_eq!((body.get("top_k"), &body["max_completion_tokens"]), (None, &json!(500)));
}

trait Tap: Sized {
    fn tap(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl<T> Tap for T {}

#[tokio::test]
async fn a_conversation_for_anthropic() {
    let mut r = conversation(true);
    r.max_tokens = None;
    let body = sent_to(Provider::Anthropic, &r).await;
    let expected = json!({
        "model": "their-model",
        "max_tokens": 8192,
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "One moment."},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Köln"}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "9 °C"}]},
        ],
        "tools": [{"name": "weather", "description": "Tells it.", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}],
        "temperature": 0.5, "top_p": 0.9, "stop_sequences": ["END"], "stream": true,
    });
    assert_eq!(body, expected);
    r.sampling.seed = Some(1);
    r.n = 2;
    let failure = refused(Provider::Anthropic, &r).await;
    assert!(failure.message.contains("'seed', 'n'"), "{failure}");
}

#[tokio::test]
async fn a_conversation_for_gemini() {
    let mut r = conversation(false);
    r.sampling.seed = Some(7);
    r.response_format =
        ResponseFormat::JsonSchema { name: None, description: None, schema: json!({"type": "object"}), strict: None };
    chat(&mut r).tool_choice = ToolChoice::Named("weather".into());
    chat(&mut r).reasoning = Reasoning { effort: Some(Effort::Low), ..Reasoning::default() };
    let body = sent_to(Provider::Gemini, &r).await;
    let expected = json!({
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Weather?"}]},
            {"role": "model", "parts": [
                {"text": "One moment."},
                {"functionCall": {"name": "weather", "args": {"city": "Köln"}}},
            ]},
            {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"output": "9 °C"}}}]},
        ],
        "tools": [{"functionDeclarations": [{
            "name": "weather", "description": "Tells it.",
            "parametersJsonSchema": {"type": "object", "properties": {"city": {"type": "string"}}},
        }]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weather"]}},
        "generationConfig": {
            "temperature": 0.5, "topP": 0.9, "maxOutputTokens": 500, "stopSequences": ["END"], "seed": 7,
            "responseMimeType": "application/json", "responseJsonSchema": {"type": "object"},
            "thinkingConfig": {"includeThoughts": true, "thinkingBudget": 2048},
        },
    });
    assert_eq!(body, expected);
    // From Gemini 3 on: levels, and a word where the proof of a call is not ours to give.
    let settings = |base: &str| {
        let mut s = Settings::new(remote(Provider::Gemini, base));
        s.remote.model = "gemini-3-pro-preview".into();
        s
    };
    let body = sent(settings, &r).await.json();
    assert_eq!(body["generationConfig"]["thinkingConfig"], json!({"includeThoughts": true, "thinkingLevel": "low"}));
    assert_eq!(body["contents"][1]["parts"][1]["thoughtSignature"], "skip_thought_signature_validator");
    // A proof that Gemini gave goes back to it, and to nobody else.
    chat(&mut r).messages[2].reasoning =
        vec![ReasoningPart::Text { text: "t".into(), signature: Some("gemini#c2ln".into()) }];
    assert_eq!(sent(settings, &r).await.json()["contents"][1]["parts"][1]["thoughtSignature"], "c2ln");
    chat(&mut r).reasoning = Reasoning::default();
    r.sampling.seed = None;
    let body = sent_to(Provider::Anthropic, &r).await;
    assert_eq!(body["messages"][1]["content"][0]["type"], "text", "{body}");
}

#[tokio::test]
async fn a_conversation_for_ollama() {
    let mut r = conversation(false);
    chat(&mut r).reasoning = Reasoning { enabled: Some(false), ..Reasoning::default() };
    r.response_format = ResponseFormat::JsonObject;
    let body = sent_to(Provider::Ollama, &r).await;
    let expected = json!({
        "model": "their-model",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "One moment.", "thinking": "Look it up.", "tool_calls": [
                {"id": "call_1", "function": {"index": 0, "name": "weather", "arguments": {"city": "Köln"}}},
            ]},
            {"role": "tool", "content": "9 °C", "tool_name": "weather", "tool_call_id": "call_1"},
        ],
        "tools": [{"type": "function", "function": {
            "name": "weather", "description": "Tells it.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        }}],
        "think": false, "format": "json", "stream": false, "truncate": false, "shift": false,
        "options": {"temperature": 0.5, "top_p": 0.9, "num_predict": 500, "stop": ["END"]},
    });
    assert_eq!(body, expected);
    // Our own server takes it for the same.
    let ollama::Call::Generate(read) = ollama::chat::parse(body.to_string().as_bytes()).unwrap() else {
        panic!("a chat");
    };
    let mut expected = r.clone();
    chat(&mut expected).messages[3].name = Some("weather".into());
    assert_eq!((&read.input, &read.sampling, &read.stop), (&expected.input, &r.sampling, &r.stop));
    chat(&mut r).tool_choice = ToolChoice::Required;
    assert_eq!(refused(Provider::Ollama, &r).await.param.as_deref(), Some("tool_choice"));
    chat(&mut r).tool_choice = ToolChoice::None;
    assert_eq!(sent_to(Provider::Ollama, &r).await.get("tools"), None);
}

#[tokio::test]
async fn parameters_of_the_configuration_mean_the_same_everywhere() {
    let settings = |provider| {
        move |base: &str| {
            let mut s = Settings::new(remote(provider, base));
            let map = |v: Value| v.as_object().unwrap().clone();
            s.params = map(json!({"temperature": 0.1, "max_tokens": 9, "special": 1}));
            s.remote.changes.edits = Edits {
                drop: vec!["seed".into()],
                rename: Vec::new(),
                set: map(json!({"top_p": 0.25})),
            };
            s.remote.changes.extra_body = map(json!({"priority": 3}));
            s.remote.changes.chat_template_kwargs = map(json!({"enable_thinking": false}));
            s
        }
    };
    let mut r = request(false);
    r.sampling.seed = Some(1);
    r.sampling.temperature = Some(0.75);
    for (provider, pointers) in [
        (Provider::OpenAiCompatible, ["/temperature", "/max_tokens", "/top_p"]),
        (Provider::OpenAi, ["/temperature", "/max_completion_tokens", "/top_p"]),
        (Provider::Anthropic, ["/temperature", "/max_tokens", "/top_p"]),
        (Provider::Ollama, ["/options/temperature", "/options/num_predict", "/options/top_p"]),
        (Provider::Gemini, ["/generationConfig/temperature", "/generationConfig/maxOutputTokens", "/generationConfig/topP"]),
    ] {
        let body = sent(settings(provider), &r).await.json();
        let values = pointers.map(|p| body.pointer(p).cloned().unwrap_or_default());
        assert_eq!(values, [json!(0.75), json!(9), json!(0.25)], "{body}");
        assert!(!body.to_string().contains("seed"), "{body}");
        assert_eq!((&body["special"], &body["priority"]), (&json!(1), &json!(3)));
        let off = match provider {
            Provider::OpenAiCompatible => &body["chat_template_kwargs"]["enable_thinking"] == false,
            Provider::OpenAi => body["reasoning_effort"] == "none",
            Provider::Anthropic => body["thinking"]["type"] == "disabled",
            Provider::Ollama => body["think"] == false,
            _ => body["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 0,
        };
        assert!(off, "thinking is off: {body}");
    }
}

#[tokio::test]
async fn an_answer_of_gemini() {
    let whole = json!({
        "candidates": [{
            "content": {"parts": [
                {"text": "Let me think.", "thought": true},
                {"text": "Looking up."},
                {"functionCall": {"name": "weather", "args": {"city": "Köln"}}, "thoughtSignature": "c2ln"},
                {"functionCall": {"id": "c2", "name": "time", "args": {}}},
            ], "role": "model"},
            "finishReason": "STOP", "index": 0, "safetyRatings": [],
        }],
        "usageMetadata": {"promptTokenCount": 10, "cachedContentTokenCount": 4, "candidatesTokenCount": 5, "thoughtsTokenCount": 7, "totalTokenCount": 22, "promptTokensDetails": []},
        "modelVersion": "gemini-2.5-flash", "responseId": "r1", "createTime": "2026-11-21T10:00:00.123Z",
    });
    let blocks = vec![
        thought("Let me think."),
        Block::Text("Looking up.".into()),
        Block::Reasoning { text: String::new(), signature: Some("gemini#c2ln".into()) },
        call(0, "call_r1_0_0", "weather", r#"{"city":"Köln"}"#),
        call(1, "c2", "time", "{}"),
    ];
    let usage = Usage {
        prompt_tokens: 10, cached_tokens: Some(4), cache_written_tokens: None, completion_tokens: 12, reasoning_tokens: Some(7),
    };
    let answer = answer_of(Provider::Gemini, json_answer(&whole), false).await;
    assert_eq!(answer.choices[0].blocks, blocks);
    assert_eq!((answer.choices[0].finish.clone(), answer.usage), (Some(FinishReason::ToolCalls), Some(usage)));
    assert_eq!((answer.id.as_str(), answer.model.as_str(), answer.created_s), ("r1", "gemini-2.5-flash", 1_795_255_200));

    // As a stream: a part each, with counts that grow.
    let parts = whole["candidates"][0]["content"]["parts"].as_array().unwrap();
    let mut pieces: Vec<String> = parts
        .iter()
        .map(|p| {
            let data = json!({
                "candidates": [{"content": {"parts": [p], "role": "model"}, "index": 0}],
                "usageMetadata": {"promptTokenCount": 10, "totalTokenCount": 10}, "responseId": "r1", "modelVersion": "g",
            });
            format!("data: {data}\r\n\r\n")
        })
        .collect();
    let last = json!({
        "candidates": [{"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": whole["usageMetadata"], "responseId": "r1", "modelVersion": "g",
    });
    pieces.push(format!("data: {last}\r\n\r\n"));
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    let answer = answer_of(Provider::Gemini, stream_of("text/event-stream", &pieces), true).await;
    assert_eq!((&answer.choices[0].blocks, answer.usage), (&blocks, Some(usage)));

    let server = Server::start(vec![stream_of("text/event-stream", &pieces[..2])]).await;
    let (_, failure) = generate(&endpoint(Provider::Gemini, &server.base), &request(true)).await;
    assert_eq!(failure.map(|f| (f.kind, f.sent_any)), Some((FailureKind::Protocol, true)), "it was cut");
}

#[tokio::test]
async fn refusals_and_failures_of_gemini() {
    for (body, kind) in [
        (json!({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}), FailureKind::ContentPolicy),
        (json!({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}]}), FailureKind::Protocol),
        (json!({"error": {"code": 503, "message": "m", "status": "UNAVAILABLE"}}), FailureKind::Server),
    ] {
        let server = Server::start(vec![json_answer(&body)]).await;
        let (_, failure) = generate(&endpoint(Provider::Gemini, &server.base), &request(false)).await;
        assert_eq!(failure.unwrap().kind, kind, "{body}");
    }
    let filtered = json!({"candidates": [{"finishReason": "SAFETY", "index": 0}], "responseId": "r"});
    let answer = answer_of(Provider::Gemini, json_answer(&filtered), false).await;
    assert_eq!(answer.choices[0].finish, Some(FinishReason::ContentFilter));
    let quota = json!({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "12s"},
    ]}});
    let steps = vec![send(answer("429 Too Many Requests", "application/json", &quota.to_string()))];
    let server = Server::start(vec![steps]).await;
    let (_, failure) = generate(&endpoint(Provider::Gemini, &server.base), &request(false)).await;
    let failure = failure.unwrap();
    assert_eq!((failure.kind, failure.retry_after.unwrap().as_secs()), (FailureKind::RateLimited, 12));
}

#[tokio::test]
async fn an_answer_of_ollama() {
    let lines = [
        r#"{"model":"m","created_at":"2026-11-21T10:00:00.5Z","message":{"role":"assistant","content":"","thinking":"Let me"},"done":false}"#,
        r#"{"model":"m","created_at":"2026-11-21T10:00:01Z","message":{"role":"assistant","content":"","thinking":" think."},"done":false}"#,
        r#"{"model":"m","created_at":"2026-11-21T10:00:02Z","message":{"role":"assistant","content":"Looking up."},"done":false}"#,
        r#"{"model":"m","created_at":"2026-11-21T10:00:03Z","message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"weather","arguments":{"city":"Köln"}}},{"id":"c2","function":{"index":1,"name":"time","arguments":{}}}]},"done":false}"#,
        r#"{"model":"m","created_at":"2026-11-21T10:00:04Z","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","total_duration":4000000,"load_duration":1000000,"prompt_eval_count":10,"prompt_eval_duration":1000000,"eval_count":5,"eval_duration":2000000}"#,
    ]
    .map(|l| format!("{l}\n"));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let answer = answer_of(Provider::Ollama, stream_of("application/x-ndjson", &lines), true).await;
    let blocks = [
        thought("Let me think."),
        Block::Text("Looking up.".into()),
        call(0, "call_202611211000005_0", "weather", r#"{"city":"Köln"}"#),
        call(1, "c2", "time", "{}"),
    ];
    assert_eq!(answer.choices[0].blocks, blocks);
    assert_eq!(answer.choices[0].finish, Some(FinishReason::ToolCalls));
    assert_eq!(answer.usage.unwrap(), Usage { prompt_tokens: 10, completion_tokens: 5, ..Usage::default() });
    assert_eq!((answer.created_s, answer.timings.unwrap().predicted_ms), (1_795_255_200, 2.0));
    for (steps, kind) in [
        (stream_of("application/x-ndjson", &lines[..3]), FailureKind::Protocol),
        (stream_of("application/x-ndjson", &[lines[0], "{\"error\":\"an error was encountered while running the model\"}\n"]), FailureKind::Protocol),
        (stream_of("application/x-ndjson", &["{\"error\":\"the input exceeds the context\"}\n"]), FailureKind::ContextWindow),
        (vec![send(answer_bytes("404 Not Found", r#"{"error":"model 'x' not found"}"#))], FailureKind::NotFound),
    ] {
        let server = Server::start(vec![steps]).await;
        let (_, failure) = generate(&endpoint(Provider::Ollama, &server.base), &request(true)).await;
        assert_eq!(failure.unwrap().kind, kind);
    }
}

fn answer_bytes(status: &str, body: &str) -> Vec<u8> {
    answer(status, "application/json", body)
}

#[tokio::test]
async fn an_answer_of_anthropic() {
    let pieces = [
        r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":6,"cache_read_input_tokens":4,"output_tokens":1}}}"#,
        r#"event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
        "event: ping\ndata: {\"type\": \"ping\"}",
        r#"event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Let me think."}}"#,
        r#"event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQB"}}"#,
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}",
        r#"event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"weather","input":{}}}"#,
        r#"event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"city\": \"K"}}"#,
        r#"event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"öln\"}"}}"#,
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":1}",
        r#"event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":15}}"#,
        "event: message_stop\ndata: {\"type\":\"message_stop\"}",
    ]
    .map(|p| format!("{p}\n\n"));
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    let answer = answer_of(Provider::Anthropic, stream_of("text/event-stream", &pieces), true).await;
    let blocks = [
        Block::Reasoning { text: "Let me think.".into(), signature: Some("EqQB".into()) },
        call(0, "toolu_1", "weather", r#"{"city": "Köln"}"#),
    ];
    assert_eq!(answer.choices[0].blocks, blocks);
    let usage = Usage { prompt_tokens: 10, cached_tokens: Some(4), completion_tokens: 15, ..Usage::default() };
    assert_eq!(answer.usage, Some(usage));
    let overloaded = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let server = Server::start(vec![stream_of("text/event-stream", &[pieces[0], overloaded])]).await;
    let (_, failure) = generate(&endpoint(Provider::Anthropic, &server.base), &request(true)).await;
    assert_eq!(failure.map(|f| (f.kind, f.sent_any)), Some((FailureKind::Server, false)));
}

/// An answer with everything, as our server would give it.
fn ours() -> Vec<Event> {
    let usage = Usage { prompt_tokens: 12, completion_tokens: 7, ..Usage::default() };
    let text = |text: &str| Event::Text { choice: 0, text: text.into() };
    let thought = |text: &str| Event::Reasoning { choice: 0, text: text.into() };
    let mut out = vec![
        Event::Started { id: "abc".into(), model: "their-model".into(), created_s: 1_700_000_000, usage: None },
        thought("Let me "),
        thought("think."),
        text("Looking"),
        text(" up.\n\"é\""),
    ];
    out.extend(Event::tool_call(0, 0, "call_1", "weather", r#"{"city":"Köln"}"#));
    out.extend(Event::tool_call(0, 1, "call_2", "time", "{}"));
    out.push(Event::Finished { choice: 0, reason: FinishReason::ToolCalls });
    out.push(Event::Usage(usage));
    out.push(Event::Timings(Timings { total_ms: 5.0, predicted_n: 7, predicted_ms: 4.0, prompt_ms: 1.0, prompt_n: 12, ..Timings::default() }));
    out
}

#[tokio::test]
async fn what_our_own_server_writes_is_read_back_the_same() {
    let (r, events) = (request(true), ours());
    let expected = Answer::from_events(&events);
    let stream = |mut writer: Box<dyn StreamWriter>| {
        let mut out = Vec::new();
        events.iter().for_each(|e| writer.write(e, &mut out));
        writer.end(&mut out);
        String::from_utf8(out).unwrap()
    };
    for (provider, kind, stream, whole) in [
        (
            Provider::OpenAiCompatible,
            "text/event-stream",
            stream(Box::new(openai::chat::ChunkWriter::new(&r))),
            openai::chat::response(&r, &expected),
        ),
        (
            Provider::Anthropic,
            "text/event-stream",
            stream(Box::new(anthropic::messages::MessageWriter::new(&r))),
            anthropic::messages::response(&r, &expected),
        ),
        (
            Provider::Ollama,
            "application/x-ndjson",
            stream(Box::new(ollama::chat::writer(&r))),
            ollama::chat::response(&r, &expected),
        ),
    ] {
        let pieces: Vec<&str> = stream.split_inclusive('\n').collect();
        let streamed = answer_of(provider, stream_of(kind, &pieces), true).await;
        let whole = vec![send(answer_bytes("200 OK", &String::from_utf8(whole).unwrap()))];
        let gathered = answer_of(provider, whole, false).await;
        for got in [streamed, gathered] {
            assert_eq!(got.choices, expected.choices, "{provider:?}");
            let counts = |a: &Answer| a.usage.map(|u| (u.prompt_tokens, u.completion_tokens));
            assert_eq!(counts(&got), counts(&expected), "{provider:?}");
        }
    }
}

#[tokio::test]
async fn plain_prompts_are_for_those_who_take_them() {
    let prompt = octet_api::core::Completion { prompts: vec![Prompt::Text("Once".into())], echo: false };
    let r = GenerateRequest::new("m", Input::Completion(prompt));
    for provider in [Provider::OpenAi, Provider::Anthropic, Provider::Gemini, Provider::Ollama] {
        let failure = refused(provider, &r).await;
        assert_eq!((failure.kind, failure.param.as_deref()), (FailureKind::BadRequest, Some("prompt")));
    }
}

#[tokio::test]
async fn vectors_and_lists() {
    let embed = octet_api::core::EmbedRequest {
        model: "ours".into(),
        inputs: vec![Prompt::Text("a".into()), Prompt::Text("b".into())],
        dimensions: Some(2),
        encoding: Default::default(),
        truncate: false,
        keep_alive: None,
        context_length: None,
        user: None,
    };
    let openai_answer = json!({"object": "list", "data": [
        {"object": "embedding", "index": 1, "embedding": [3.0, 4.0]},
        {"object": "embedding", "index": 0, "embedding": "AACAPwAAAEA="},
    ], "model": "m", "usage": {"prompt_tokens": 4, "total_tokens": 4}});
    let ollama_answer = json!({"model": "m", "embeddings": [[1.0, 2.0], [3.0, 4.0]], "total_duration": 1, "prompt_eval_count": 4});
    let gemini_answer = json!({"embeddings": [{"values": [1.0, 2.0]}, {"values": [3.0, 4.0]}]});
    for (provider, answer, path, tokens) in [
        (Provider::OpenAiCompatible, &openai_answer, "/v1/embeddings", 4),
        (Provider::Ollama, &ollama_answer, "/api/embed", 4),
        (Provider::Gemini, &gemini_answer, "/v1beta/models/their-model:batchEmbedContents", 0),
    ] {
        let server = Server::start(vec![json_answer(answer)]).await;
        let got = client().embed(&endpoint(provider, &server.base), &embed).await.unwrap();
        assert_eq!((got.vectors, got.prompt_tokens), (vec![vec![1.0, 2.0], vec![3.0, 4.0]], tokens));
        assert_eq!(server.last().path(), path);
        assert!(server.last().json().to_string().contains("2"), "dimensions");
    }
    let server = Server::start(vec![json_answer(&json!({"embeddings": [[1.0]]}))]).await;
    let failure = client().embed(&endpoint(Provider::Ollama, &server.base), &embed).await.unwrap_err();
    assert_eq!(failure.message, "1 vectors came for 2 texts");
    let failure = client().embed(&endpoint(Provider::Anthropic, &server.base), &embed).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::BadRequest);

    for (provider, path) in [
        (Provider::OpenAi, "/v1/models"),
        (Provider::Anthropic, "/v1/models"),
        (Provider::Gemini, "/v1beta/models?pageSize=1000"),
        (Provider::Ollama, "/api/tags"),
        (Provider::AzureOpenAi, "/openai/models?api-version=2024-10-21"),
    ] {
        let server = Server::start(vec![json_answer(&json!({"data": [{"id": "a"}]}))]).await;
        let models = client().models(&endpoint(provider, &server.base)).await.unwrap();
        assert_eq!((models[0].id.as_str(), server.last().path()), ("a", path));
        assert!(server.last().line.starts_with("GET "));
    }
}
