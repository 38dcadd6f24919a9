//! Models at clouds that host them: addresses, bodies, signatures, tokens, and the frames in which Bedrock's streams come.

use std::sync::Arc;

use aws_smithy_eventstream::frame::write_message_to;
use aws_smithy_types::event_stream::{Header, HeaderValue, Message};
use octet_api::core::{
    Block, Chat, FinishReason, GenerateRequest, Input, Message as Said, Role, Tool, ToolCall, ToolChoice,
};
use octet_config::{Auth, Aws, Entra, Google, Provider, Secret};
use octet_upstream::{Endpoint, FailureKind, Settings};
use serde_json::{Value, json};

use crate::common::{
    END, Server, Step, answer, answered, client, generate, json_answer, remote, request, send, stream_of,
};

fn secret(text: &str) -> Secret {
    Secret::new(text).expect("a secret")
}

fn cloud(provider: Provider, model: &str, base: &str, auth: Auth) -> Endpoint {
    let mut settings = Settings::new(remote(provider, base));
    settings.remote.api_key = None;
    settings.remote.model = model.into();
    settings.remote.auth = auth;
    if matches!(provider, Provider::Vertex | Provider::VertexAnthropic) {
        settings.remote.api_base = format!("{base}/v1/projects/p/locations/eu");
    }
    if provider == Provider::OpenAiCompatible {
        settings.remote.api_base = format!("{base}/v1/projects/p/locations/eu/endpoints/openapi");
    }
    Endpoint::new(settings).expect("an endpoint")
}

fn aws() -> Auth {
    Auth::Aws(Aws {
        region: "eu-west-1".into(),
        access_key_id: secret("AKID"),
        secret_access_key: secret("very-secret"),
        session_token: None,
    })
}

fn user(server: &Server) -> Auth {
    Auth::Google(Google::User {
        client_id: "id".into(),
        client_secret: secret("c&d"),
        refresh_token: secret("very-secret"),
        token_uri: format!("{}/token", server.base),
    })
}

/// A frame as Amazon's library writes it.
fn frame(kind: &str, name: &str, payload: &Value) -> Vec<u8> {
    let text = |value: &str| HeaderValue::String(value.to_string().into());
    let of_kind = if kind == "event" { ":event-type" } else { ":exception-type" };
    let message = Message::new(payload.to_string().into_bytes())
        .add_header(Header::new(":message-type", text(kind)))
        .add_header(Header::new(of_kind, text(name)))
        .add_header(Header::new(":content-type", text("application/json")));
    let mut out = Vec::new();
    write_message_to(&message, &mut out).expect("a frame");
    out
}

/// Frames in pieces of some bytes.
fn frames(all: &[Vec<u8>], piece: usize) -> Vec<Step> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut steps = vec![send(head)];
    for bytes in all.concat().chunks(piece) {
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        steps.push(send(chunk));
    }
    steps.push(send(END));
    steps
}

fn conversation(stream: bool) -> GenerateRequest {
    let mut call = Said::empty(Role::Assistant);
    let id = "call:1".to_string();
    call.tool_calls.push(ToolCall {
        id: id.clone(),
        name: "weather".into(),
        arguments: r#"{"city":"Oslo"}"#.into(),
        cache: None,
    });
    let mut result = Said::text(Role::Tool, "9 °C");
    result.tool_call_id = Some(id);
    let tool = Tool {
        name: "weather".into(),
        description: Some("Says it.".into()),
        parameters: json!({"type": "object", "properties": {"city": {"type": "string"}}})
            .as_object()
            .cloned()
            .expect("an object"),
        strict: None,
        cache: None,
        origin: octet_api::core::ToolOrigin::default(),
    };
    let messages =
        vec![Said::text(Role::System, "Be brief."), Said::text(Role::User, "Weather?"), call, result];
    let chat = Chat { messages, tools: vec![tool], tool_choice: ToolChoice::Required, ..Chat::default() };
    let mut r = GenerateRequest {
        stream,
        include_usage: true,
        max_tokens: Some(64),
        ..GenerateRequest::new("ours", Input::Chat(chat))
    };
    r.sampling.temperature = Some(0.5);
    r.stop = vec!["END".into()];
    r
}

#[tokio::test]
async fn converse_requests_and_answers_are_translated() {
    let whole = json!({"output": {"message": {"role": "assistant", "content": [
            {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "sig"}}},
            {"text": "Hello"},
            {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": "Oslo"}}}]}},
        "stopReason": "tool_use", "usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15, "cacheReadInputTokens": 3}});
    let events = [
        frame("event", "messageStart", &json!({"role": "assistant"})),
        frame(
            "event",
            "contentBlockDelta",
            &json!({"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Hm."}}}),
        ),
        frame(
            "event",
            "contentBlockDelta",
            &json!({"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "sig"}}}),
        ),
        frame("event", "contentBlockStop", &json!({"contentBlockIndex": 0})),
        frame(
            "event",
            "contentBlockDelta",
            &json!({"contentBlockIndex": 1, "delta": {"text": "Hel"}, "p": "abcd"}),
        ),
        frame("event", "contentBlockDelta", &json!({"contentBlockIndex": 1, "delta": {"text": "lo"}})),
        frame(
            "event",
            "contentBlockStart",
            &json!({"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t1", "name": "weather"}}}),
        ),
        frame(
            "event",
            "contentBlockDelta",
            &json!({"contentBlockIndex": 2, "delta": {"toolUse": {"input": "{\"city\":"}}}),
        ),
        frame(
            "event",
            "contentBlockDelta",
            &json!({"contentBlockIndex": 2, "delta": {"toolUse": {"input": "\"Oslo\"}"}}}),
        ),
        frame("event", "messageStop", &json!({"stopReason": "tool_use"})),
        frame(
            "event",
            "metadata",
            &json!({"usage": {"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 3}, "metrics": {"latencyMs": 1}}),
        ),
    ];
    for (stream, steps) in
        [(false, json_answer(&whole)), (true, frames(&events, 7)), (true, frames(&events, 4096))]
    {
        let server = Server::start(vec![steps]).await;
        let e = cloud(Provider::Bedrock, "amazon.nova-lite-v1:0", &server.base, aws());
        let answer = answered(&e, &conversation(stream)).await;
        let [choice] = answer.choices.as_slice() else { panic!("one answer") };
        let blocks = [
            Block::Reasoning { text: "Hm.".into(), signature: Some("bedrock#sig".into()) },
            Block::Text("Hello".into()),
            Block::ToolCall {
                index: 0,
                id: "t1".into(),
                name: "weather".into(),
                arguments: r#"{"city":"Oslo"}"#.into(),
            },
        ];
        assert_eq!(
            (choice.blocks.as_slice(), choice.finish.as_ref()),
            (&blocks[..], Some(&FinishReason::ToolCalls))
        );
        let usage = answer.usage.expect("a count");
        assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens), (13, 5, Some(3)));

        let seen = server.last();
        let rest = if stream { "converse-stream" } else { "converse" };
        assert_eq!(seen.path(), format!("/model/amazon.nova-lite-v1%3A0/{rest}"));
        let signed = seen.header("authorization").expect("a signature");
        assert!(
            signed.starts_with("AWS4-HMAC-SHA256 Credential=AKID/") && signed.contains("/eu-west-1/bedrock/"),
            "{signed}"
        );
        let id = "call_1";
        assert_eq!(
            seen.json(),
            json!({"system": [{"text": "Be brief."}],
                "messages": [
                    {"role": "user", "content": [{"text": "Weather?"}]},
                    {"role": "assistant", "content": [{"toolUse": {"toolUseId": id, "name": "weather", "input": {"city": "Oslo"}}}]},
                    {"role": "user", "content": [{"toolResult": {"toolUseId": id, "content": [{"text": "9 °C"}]}}]}],
                "toolConfig": {"tools": [{"toolSpec": {"name": "weather", "description": "Says it.",
                    "inputSchema": {"json": {"type": "object", "properties": {"city": {"type": "string"}}}}}}],
                    "toolChoice": {"any": {}}},
                "inferenceConfig": {"maxTokens": 64, "temperature": 0.5, "stopSequences": ["END"]}})
        );
    }
}

#[tokio::test]
async fn errors_of_bedrock_are_classified() {
    let begun = || {
        vec![
            frame("event", "messageStart", &json!({"role": "assistant"})),
            frame("event", "contentBlockDelta", &json!({"contentBlockIndex": 0, "delta": {"text": "Hel"}})),
        ]
    };
    let mut thrown = begun();
    thrown.push(frame("exception", "throttlingException", &json!({"message": "slow down"})));
    let mut damaged = begun();
    let last = damaged[1].len() - 1;
    damaged[1][last] ^= 1;
    for (events, kind, said) in [
        (thrown, FailureKind::RateLimited, "slow down"),
        (damaged, FailureKind::Protocol, "cannot be read"),
        (begun(), FailureKind::Protocol, "ended before it was complete"),
    ] {
        let server = Server::start(vec![frames(&events, 64)]).await;
        let e = cloud(Provider::Bedrock, "m", &server.base, aws());
        let failure = generate(&e, &request(true)).await.1.expect("a failure");
        assert_eq!(failure.kind, kind, "{failure:?}");
        assert!(failure.message.contains(said), "{failure:?}");
    }
    let refused = "HTTP/1.1 400 Bad Request\r\nx-amzn-errortype: ValidationException:http://x/\r\ncontent-length: 51\r\n\r\n\
                   {\"message\":\"Input is too long for requested model\"} ";
    let server = Server::start(vec![vec![send(refused)]]).await;
    let e = cloud(Provider::Bedrock, "m", &server.base, aws());
    let failure = generate(&e, &request(false)).await.1.expect("a failure");
    assert_eq!(failure.kind, FailureKind::ContextWindow, "{failure:?}");
}

#[tokio::test]
async fn claude_is_invoked_at_bedrock() {
    use base64::Engine as _;
    let chunk = |event: Value| {
        let bytes = base64::engine::general_purpose::STANDARD.encode(event.to_string());
        frame("event", "chunk", &json!({"bytes": bytes, "p": "abc"}))
    };
    let events = [
        chunk(
            json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude",
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 7, "output_tokens": 1}}}),
        ),
        chunk(
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        ),
        chunk(
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}),
        ),
        chunk(json!({"type": "content_block_stop", "index": 0})),
        chunk(
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null}, "usage": {"output_tokens": 3}}),
        ),
        chunk(json!({"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 7}})),
    ];
    let server = Server::start(vec![frames(&events, 100)]).await;
    let mut settings = Settings::new(remote(Provider::BedrockAnthropic, &server.base));
    settings.remote.model = "anthropic.claude-3-5-haiku-20241022-v1:0".into();
    // With a key of Bedrock's nothing is signed.
    let e = Endpoint::new(settings).expect("an endpoint");
    let answer = answered(&e, &request(true)).await;
    assert_eq!(answer.choices[0].blocks, [Block::Text("Hello".into())]);
    assert_eq!(answer.usage.map(|u| (u.prompt_tokens, u.completion_tokens)), Some((7, 3)));
    let seen = server.last();
    assert_eq!(seen.path(), "/model/anthropic.claude-3-5-haiku-20241022-v1%3A0/invoke-with-response-stream");
    assert_eq!(seen.header("authorization"), Some("Bearer sk-very-secret-key"));
    assert_eq!(
        seen.json(),
        json!({"anthropic_version": "bedrock-2023-05-31", "max_tokens": 8192, "messages": [{"role": "user", "content": "Hi"}]})
    );
}

#[tokio::test]
async fn vertex_requests_share_one_token() {
    let token = json_answer(&json!({"access_token": "ya29.x", "expires_in": 3599, "token_type": "Bearer"}));
    let gemini = json!({"candidates": [{"content": {"parts": [{"text": "Hello"}], "role": "model"}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 1}});
    let claude = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "c", "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn", "stop_sequence": null, "usage": {"input_tokens": 4, "output_tokens": 1}});
    let piece = format!("data: {gemini}\r\n\r\n");
    for (provider, model, stream, said, path) in [
        (
            Provider::Vertex,
            "gemini-2.5-flash",
            false,
            json_answer(&gemini),
            "publishers/google/models/gemini-2.5-flash:generateContent",
        ),
        (
            Provider::Vertex,
            "gemini-2.5-flash",
            true,
            stream_of("text/event-stream", &[&piece]),
            "publishers/google/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
        ),
        (
            Provider::VertexAnthropic,
            "claude-sonnet-4-5@20250929",
            false,
            json_answer(&claude),
            "publishers/anthropic/models/claude-sonnet-4-5@20250929:rawPredict",
        ),
    ] {
        let server = Server::start(vec![token.clone(), said]).await;
        let e = cloud(provider, model, &server.base, user(&server));
        for _ in 0..2 {
            let answer = answered(&e, &request(stream)).await;
            assert_eq!(answer.choices[0].blocks, [Block::Text("Hello".into())]);
        }
        let seen = server.seen();
        let [token_request, first, second] = seen.as_slice() else {
            panic!("one token for two requests: {seen:?}")
        };
        assert_eq!(token_request.path(), "/token");
        assert_eq!(
            String::from_utf8_lossy(&token_request.body),
            "grant_type=refresh_token&client_id=id&client_secret=c%26d&refresh_token=very-secret"
        );
        for seen in [first, second] {
            assert_eq!(seen.path(), format!("/v1/projects/p/locations/eu/{path}"));
            assert_eq!(seen.header("authorization"), Some("Bearer ya29.x"));
            if provider == Provider::VertexAnthropic {
                assert_eq!(seen.json()["anthropic_version"], "vertex-2023-10-16");
                assert_eq!(seen.json().get("model"), None);
            }
        }
    }
}

/// As Google documents it for models of other publishers: OpenAI's body with the publisher in the model's name, Google's token.
#[tokio::test]
async fn open_models_at_vertex_have_openais_api_and_googles_token() {
    let token = json_answer(&json!({"access_token": "ya29.x", "expires_in": 3599, "token_type": "Bearer"}));
    let whole = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}});
    let piece = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]});
    let pieces = format!("data: {piece}\n\ndata: [DONE]\n\n");
    let model = "deepseek-ai/deepseek-v3.2-maas";
    for (stream, said) in [(false, json_answer(&whole)), (true, stream_of("text/event-stream", &[&pieces]))] {
        let server = Server::start(vec![token.clone(), said]).await;
        let e = cloud(Provider::OpenAiCompatible, model, &server.base, user(&server));
        let answer = answered(&e, &request(stream)).await;
        assert_eq!(answer.choices[0].blocks, [Block::Text("Hello".into())]);
        let seen = server.seen();
        let [_, asked] = seen.as_slice() else { panic!("a token and a request: {seen:?}") };
        assert_eq!(asked.path(), "/v1/projects/p/locations/eu/endpoints/openapi/chat/completions");
        assert_eq!(asked.header("authorization"), Some("Bearer ya29.x"));
        assert_eq!(
            (&asked.json()["model"], asked.json()["stream"].as_bool()),
            (&json!(model), stream.then_some(true))
        );
    }
}

#[tokio::test]
async fn azure_requests_share_one_entra_id_token() {
    let token = json_answer(
        &json!({"token_type": "Bearer", "expires_in": 3599, "ext_expires_in": 3599, "access_token": "eyJ.x"}),
    );
    let said = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0,
        "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]});
    let server = Server::start(vec![token, json_answer(&said)]).await;
    let application = Entra {
        token_uri: format!("{}/tn/oauth2/v2.0/token", server.base),
        client_id: "app-id".into(),
        client_secret: secret("s+c&r t"),
        scope: "https://cognitiveservices.azure.com/.default".into(),
    };
    let e = cloud(Provider::AzureOpenAi, "gpt-4o", &server.base, Auth::Entra(application));
    for _ in 0..2 {
        let answer = answered(&e, &request(false)).await;
        assert_eq!(answer.choices[0].blocks, [Block::Text("Hello".into())]);
    }
    let seen = server.seen();
    let [token_request, first, second] = seen.as_slice() else {
        panic!("one token for two requests: {seen:?}")
    };
    assert_eq!(token_request.path(), "/tn/oauth2/v2.0/token");
    assert_eq!(token_request.header("content-type"), Some("application/x-www-form-urlencoded"));
    // What msal 1.39 posts for the same application, less its `client_info`.
    assert_eq!(
        String::from_utf8_lossy(&token_request.body),
        "client_id=app-id&grant_type=client_credentials&client_secret=s%2Bc%26r%20t&\
         scope=https%3A%2F%2Fcognitiveservices.azure.com%2F.default"
    );
    for seen in [first, second] {
        assert_eq!(seen.header("authorization"), Some("Bearer eyJ.x"));
        assert_eq!(seen.header("api-key"), None);
    }
}

#[tokio::test]
async fn a_refused_token_is_not_the_clients_error() {
    let refused = r#"{"error": "invalid_grant", "error_description": "Token has been revoked."}"#;
    let refused = format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\n\r\n{refused}", refused.len());
    let server = Server::start(vec![vec![send(refused)]]).await;
    let e = cloud(Provider::Vertex, "gemini-2.5-flash", &server.base, user(&server));
    let failure = generate(&e, &request(false)).await.1.expect("a failure");
    assert_eq!(failure.kind, FailureKind::Authentication);
    assert!(failure.message.contains("Token has been revoked."), "{failure:?}");
}

#[tokio::test]
async fn no_error_repeats_a_clouds_secrets() {
    let token = json_answer(&json!({"access_token": "ya29.a-token", "expires_in": 3600}));
    let said = json!({"error": {"message": "no: ya29.a-token, very-secret"}}).to_string();
    let server =
        Server::start(vec![token, vec![send(answer("400 Bad Request", "application/json", &said))]]).await;
    let e = cloud(Provider::Vertex, "gemini-2.5-flash", &server.base, user(&server));
    let failure = generate(&e, &request(false)).await.1.expect("a failure");
    assert!(failure.message.contains("no: ***, ***"), "{failure:?}");

    let said = json!({"message": "no: ya29.a-token, very-secret"}).to_string();
    let server = Server::start(vec![vec![send(answer("400 Bad Request", "application/json", &said))]]).await;
    let e = cloud(Provider::Bedrock, "amazon.nova-lite-v1:0", &server.base, aws());
    let failure = generate(&e, &request(false)).await.1.expect("a failure");
    assert!(failure.message.contains("no: ya29.a-token, ***"), "{failure:?}");
}

#[tokio::test]
async fn vectors_of_the_clouds() {
    let body = json!({"model": "ours", "input": ["a", "b"], "dimensions": 256, "input_type": "search_query"});
    let request = octet_api::openai::embeddings::parse(body.to_string().as_bytes()).expect("a request");
    let request = Arc::new(request);
    let two = vec![vec![1.0, 2.0], vec![3.0, 4.0]];

    // One text at a time, in whatever order they are answered.
    let titan = |values: [f64; 2]| json_answer(&json!({"embedding": values, "inputTextTokenCount": 3}));
    let server = Server::start(vec![titan([1.0, 2.0]), titan([1.0, 2.0])]).await;
    let model = "amazon.titan-embed-text-v2:0";
    let endpoint = cloud(Provider::Bedrock, model, &server.base, aws());
    let got = client().embed(&endpoint, &request).await.expect("vectors");
    assert_eq!((got.vectors, got.prompt_tokens), (vec![two[0].clone(); 2], 6));
    let seen = server.last();
    assert_eq!(seen.path(), "/model/amazon.titan-embed-text-v2%3A0/invoke");
    assert!(seen.header("authorization").is_some_and(|v| v.starts_with("AWS4-HMAC-SHA256")));
    assert_eq!(seen.json()["dimensions"], 256);

    let answer = json!({"id": "x", "texts": ["a", "b"], "embeddings": {"float": two}});
    let mut head = json_answer(&answer);
    if let Some(Step::Send(bytes)) = head.first_mut() {
        let text = String::from_utf8(bytes.clone()).expect("text");
        *bytes = text.replacen("\r\n", "\r\nx-amzn-bedrock-input-token-count: 7\r\n", 1).into_bytes();
    }
    let server = Server::start(vec![head]).await;
    let endpoint = cloud(Provider::Bedrock, "cohere.embed-v4:0", &server.base, aws());
    let got = client().embed(&endpoint, &request).await.expect("vectors");
    assert_eq!((&got.vectors, got.prompt_tokens), (&two, 7));
    let sent = json!({"texts": ["a", "b"], "input_type": "search_query", "truncate": "NONE", "embedding_types": ["float"], "output_dimension": 256});
    assert_eq!(server.last().json(), sent);

    let prediction = |values: &Vec<f32>| json!({"embeddings": {"values": values, "statistics": {"token_count": 2, "truncated": false}}});
    let answer = json!({"predictions": two.iter().map(prediction).collect::<Vec<_>>()});
    let server = Server::start(vec![json_answer(&answer)]).await;
    let endpoint = cloud(Provider::Vertex, "text-embedding-005", &server.base, Auth::Key);
    let got = client().embed(&endpoint, &request).await.expect("vectors");
    assert_eq!((&got.vectors, got.prompt_tokens), (&two, 4));
    let path = "/v1/projects/p/locations/eu/publishers/google/models/text-embedding-005:predict";
    assert_eq!(server.last().path(), path);
    assert_eq!(server.last().json()["parameters"]["outputDimensionality"], 256);
}
