//! What each provider answers, in the shapes of their public documentation, and that what our own server writes in each dialect
//! is read back the same.

use std::sync::Arc;

use crate::common::*;
use octet_api::core::{Answer, Block, Event, FinishReason, Prompt, Timings, Usage};
use octet_api::dialect::StreamWriter;
use octet_api::{anthropic, ollama, openai};
use octet_config::Provider;
use octet_upstream::FailureKind;
use serde_json::json;

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
        prompt_tokens: 10,
        cached_tokens: Some(4),
        cache_written_tokens: None,
        completion_tokens: 12,
        reasoning_tokens: Some(7),
    };
    let answer = answer_of(Provider::Gemini, json_answer(&whole), false).await;
    assert_eq!(answer.choices[0].blocks, blocks);
    assert_eq!(
        (answer.choices[0].finish.clone(), answer.usage),
        (Some(FinishReason::ToolCalls), Some(usage))
    );
    assert_eq!(
        (answer.id.as_str(), answer.model.as_str(), answer.created_s),
        ("r1", "gemini-2.5-flash", 1_795_255_200)
    );

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
        (
            json!({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}]}),
            FailureKind::Protocol,
        ),
        (json!({"error": {"code": 503, "message": "m", "status": "UNAVAILABLE"}}), FailureKind::Server),
    ] {
        let server = Server::start(vec![json_answer(&body)]).await;
        let (_, failure) = generate(&endpoint(Provider::Gemini, &server.base), &request(false)).await;
        assert_eq!(failure.unwrap().kind, kind, "{body}");
    }
    let filtered = json!({"candidates": [{"finishReason": "SAFETY", "index": 0}], "responseId": "r"});
    let filtered = answer_of(Provider::Gemini, json_answer(&filtered), false).await;
    assert_eq!(filtered.choices[0].finish, Some(FinishReason::ContentFilter));
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
        (
            stream_of(
                "application/x-ndjson",
                &[lines[0], "{\"error\":\"an error was encountered while running the model\"}\n"],
            ),
            FailureKind::Protocol,
        ),
        (
            stream_of("application/x-ndjson", &["{\"error\":\"the input exceeds the context\"}\n"]),
            FailureKind::ContextWindow,
        ),
        (
            vec![send(answer_bytes("404 Not Found", r#"{"error":"model 'x' not found"}"#))],
            FailureKind::NotFound,
        ),
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
    let usage =
        Usage { prompt_tokens: 10, cached_tokens: Some(4), completion_tokens: 15, ..Usage::default() };
    assert_eq!(answer.usage, Some(usage));
    let overloaded = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let server = Server::start(vec![stream_of("text/event-stream", &[pieces[0], overloaded])]).await;
    let (_, failure) = generate(&endpoint(Provider::Anthropic, &server.base), &request(true)).await;
    assert_eq!(failure.map(|f| (f.kind, f.sent_any)), Some((FailureKind::Server, false)));
}

/// An answer with everything, as our server would give it.
fn overrides() -> Vec<Event> {
    let usage = Usage { prompt_tokens: 12, completion_tokens: 7, ..Usage::default() };
    let text = |text: &str| Event::Text { choice: 0, text: text.into() };
    let thought = |text: &str| Event::Reasoning { choice: 0, text: text.into() };
    let mut out = vec![
        Event::Started {
            id: "abc".into(),
            model: "their-model".into(),
            created_s: 1_700_000_000,
            usage: None,
        },
        thought("Let me "),
        thought("think."),
        text("Looking"),
        text(" up.\n\"é\""),
    ];
    out.extend(Event::tool_call(0, 0, "call_1", "weather", r#"{"city":"Köln"}"#));
    out.extend(Event::tool_call(0, 1, "call_2", "time", "{}"));
    out.push(Event::Finished { choice: 0, reason: FinishReason::ToolCalls });
    out.push(Event::Usage(usage));
    out.push(Event::Timings(Timings {
        total_ms: 5.0,
        predicted_n: 7,
        predicted_ms: 4.0,
        prompt_ms: 1.0,
        prompt_n: 12,
        ..Timings::default()
    }));
    out
}

#[tokio::test]
async fn what_our_own_server_writes_is_read_back_the_same() {
    let (r, events) = (request(true), overrides());
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
async fn vectors_and_lists() {
    let embed = octet_api::core::EmbedRequest {
        model: "ours".into(),
        inputs: vec![Prompt::Text("a".into()), Prompt::Text("b".into())],
        dimensions: Some(2),
        encoding: Default::default(),
        truncate: false,
        timeout: None,
        keep_alive: None,
        context_length: None,
        user: None,
        extra: serde_json::Map::new(),
        warnings: Vec::new(),
        memory: Default::default(),
    };
    let embed = Arc::new(embed);
    let openai_answer = json!({"object": "list", "data": [
        {"object": "embedding", "index": 1, "embedding": [3.0, 4.0]},
        {"object": "embedding", "index": 0, "embedding": "AACAPwAAAEA="},
    ], "model": "m", "usage": {"prompt_tokens": 4, "total_tokens": 4}});
    let ollama_answer = json!({"model": "m", "embeddings": [[1.0, 2.0], [3.0, 4.0]], "total_duration": 1, "prompt_eval_count": 4});
    let gemini_answer = json!({"embeddings": [{"values": [1.0, 2.0]}, {"values": [3.0, 4.0]}]});
    for (provider, answer, path, dimensions, tokens) in [
        (Provider::OpenAiCompatible, &openai_answer, "/v1/embeddings", "/dimensions", 4),
        (Provider::Ollama, &ollama_answer, "/api/embed", "/dimensions", 4),
        (
            Provider::Gemini,
            &gemini_answer,
            "/v1beta/models/their-model:batchEmbedContents",
            "/requests/0/outputDimensionality",
            0,
        ),
    ] {
        let server = Server::start(vec![json_answer(answer)]).await;
        let got = client().embed(&endpoint(provider, &server.base), &embed).await.unwrap();
        assert_eq!((got.vectors, got.prompt_tokens), (vec![vec![1.0, 2.0], vec![3.0, 4.0]], tokens));
        assert_eq!(server.last().path(), path);
        assert_eq!(server.last().json().pointer(dimensions), Some(&json!(2)));
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
