//! What passes through: the client's bytes with another model's name in them, the provider's bytes as they are, counts of tokens
//! on the side, and streams in pieces of any size.

use crate::common::*;
use bytes::Bytes;
use http::HeaderMap;
use octet_api::core::Usage;
use octet_config::{Edits, Provider};
use octet_upstream::{Dialect, Endpoint, FailureKind, Forward, Raw, Settings};
use proptest::prelude::*;
use serde_json::{Value, json};

async fn all(mut raw: Raw) -> (String, Option<Usage>) {
    let mut out = Vec::new();
    while let Some(bytes) = raw.next().await {
        out.extend_from_slice(&bytes.expect("it goes well"));
    }
    (String::from_utf8(out).expect("text"), raw.usage())
}

async fn pass(
    provider: Provider,
    dialect: Dialect,
    body: &str,
    stream: bool,
    steps: Vec<Step>,
) -> (String, Option<Usage>, Seen) {
    let server = Server::start(vec![steps]).await;
    let request = Forward {
        model: None,
        upload: None,
        memory: &octet_api::core::MemoryHandle::default(),
        dialect,
        headers: &HeaderMap::new(),
        body: &body.as_bytes().to_vec().into(),
        stream,
        usage: true,
    };
    let raw = client().forward(&endpoint(provider, &server.base), request).await.expect("an answer");
    let (text, usage) = all(raw).await;
    (text, usage, server.last())
}

fn counts(usage: Option<Usage>) -> Option<(u64, u64)> {
    usage.map(|u| (u.prompt_tokens, u.completion_tokens))
}

#[tokio::test]
async fn a_complete_answer_is_forwarded_byte_for_byte() {
    let whole = "{ \"id\":\"x\", \"choices\":[{\"n\":1.50}],\n\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}";
    let body =
        r#"{"model":"ours","messages":[{"role":"user","content":"\u00e9"}],"seed":12345678901234567890}"#;
    let steps = vec![send(answer("200 OK", "application/json", whole))];
    let (text, usage, seen) = pass(Provider::OpenAiCompatible, Dialect::OpenAiChat, body, false, steps).await;
    assert_eq!((text.as_str(), counts(usage)), (whole, Some((3, 2))));
    let expected = r#"{"model":"their-model","messages":[{"role":"user","content":"\u00e9"}],"seed":12345678901234567890}"#;
    assert_eq!(String::from_utf8(seen.body).unwrap(), expected);
}

#[tokio::test]
async fn frames_of_a_video_are_forwarded_in_the_providers_own_dialect() {
    let body = |model: &str| {
        let video = json!({"type": "video", "video": ["data:image/png;base64,iVBORw0KGgo=", "https://a/b.png"], "fps": 2});
        json!({"model": model, "messages": [{"role": "user", "content": [video]}]}).to_string()
    };
    let steps = vec![send(answer("200 OK", "application/json", r#"{"choices":[]}"#))];
    let (.., seen) = pass(Provider::OpenAiCompatible, Dialect::OpenAiChat, &body("ours"), false, steps).await;
    assert_eq!(String::from_utf8(seen.body).unwrap(), body("their-model"));
}

#[tokio::test]
async fn an_invalid_count_does_not_fail_an_answer() {
    let chat = |rest: &str| format!("{{\"choices\":[]{rest}}}");
    let cases = [
        (Dialect::OpenAiChat, chat(""), None),
        (Dialect::OpenAiChat, chat(r#","usage":null"#), None),
        (Dialect::OpenAiChat, chat(r#","usage":"none""#), None),
        (Dialect::OpenAiChat, chat(r#","usage":{"prompt_tokens":"3"}"#), None),
        (Dialect::OpenAiChat, chat(r#","usage":null,"usage":{"prompt_tokens":3}"#), Some((3, 0))),
        (Dialect::OpenAiEmbeddings, r#"{"usage":{"prompt_tokens":3},"data":[]}"#.into(), Some((3, 0))),
        (
            Dialect::OpenAiResponses,
            r#"{"output":[],"usage":{"input_tokens":3,"output_tokens":2}}"#.into(),
            Some((3, 2)),
        ),
    ];
    for (dialect, whole, expected) in cases {
        let steps = vec![send(answer("200 OK", "application/json", &whole))];
        let (text, usage, _) = pass(Provider::OpenAi, dialect, r#"{"model":"ours"}"#, false, steps).await;
        assert_eq!((text.as_str(), counts(usage)), (whole.as_str(), expected));
    }
}

#[tokio::test]
async fn unrequested_counts_are_removed() {
    let first = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n";
    let last =
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\r\n\r\n";
    let count = "data: {\"choices\":[],\"usage\": {\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n";
    let done = "data: [DONE]\n\n";
    for (options, shown) in [("", false), (r#","stream_options":{"include_usage":true}"#, true)] {
        let body = format!(r#"{{"model":"ours","stream":true{options}}}"#);
        let steps = stream_of("text/event-stream", &[first, last, count, done]);
        let (text, usage, seen) = pass(Provider::OpenAi, Dialect::OpenAiChat, &body, true, steps).await;
        let expected = if shown { [first, last, count, done].concat() } else { [first, last, done].concat() };
        assert_eq!((text, counts(usage)), (expected, Some((3, 2))));
        assert_eq!(seen.json()["stream_options"]["include_usage"], true);
    }
}

#[tokio::test]
async fn anthropic_passes_to_anthropic() {
    let events = [
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":6,\"output_tokens\":1}}}\n\n",
        "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"event: error message_stop\"}}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    ];
    let body = r#"{"model":"ours","max_tokens":5,"messages":[],"stream":true}"#;
    let steps = stream_of("text/event-stream", &events);
    let (text, usage, seen) = pass(Provider::Anthropic, Dialect::AnthropicMessages, body, true, steps).await;
    assert_eq!((text, counts(usage)), (events.concat(), Some((6, 15))));
    assert_eq!((seen.path(), seen.json().get("stream_options")), ("/v1/messages", None));
    // An error is not for the client yet: someone else may answer.
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let server = Server::start(vec![stream_of("text/event-stream", &[error])]).await;
    let request = Forward {
        model: None,
        upload: None,
        memory: &octet_api::core::MemoryHandle::default(),
        dialect: Dialect::AnthropicMessages,
        headers: &HeaderMap::new(),
        body: &body.as_bytes().to_vec().into(),
        stream: true,
        usage: false,
    };
    let mut raw = client().forward(&endpoint(Provider::Anthropic, &server.base), request).await.unwrap();
    let failure = raw.next().await.unwrap().unwrap_err();
    assert_eq!(
        (failure.kind, failure.message.as_str(), failure.sent_any),
        (FailureKind::Server, "Overloaded", false)
    );
}

#[tokio::test]
async fn only_headers_for_providers_are_forwarded() {
    let server = Server::start(vec![json_answer(&json!({"content": []}))]).await;
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("anthropic-beta", "a"),
        ("anthropic-beta", "b"),
        ("authorization", "Bearer client-key"),
        ("x-api-key", "client-key"),
        ("cookie", "c"),
        ("idempotency-key", "i"),
    ] {
        headers.append(name, value.parse().unwrap());
    }
    let request = Forward {
        model: None,
        upload: None,
        memory: &octet_api::core::MemoryHandle::default(),
        dialect: Dialect::AnthropicMessages,
        headers: &headers,
        body: &Bytes::from_static(b"{}"),
        stream: false,
        usage: false,
    };
    all(client().forward(&endpoint(Provider::Anthropic, &server.base), request).await.unwrap()).await;
    let seen = server.last();
    assert!(!format!("{:?}", seen.headers).contains("client-key") && seen.header("cookie").is_none());
    assert!(seen.header("idempotency-key").is_none(), "the account there is many clients'");
    assert_eq!(seen.header("x-api-key"), Some("sk-very-secret-key"));
    let betas: Vec<&str> =
        seen.headers.iter().filter(|(n, _)| n == "anthropic-beta").map(|(_, v)| v.as_str()).collect();
    assert_eq!(betas, ["a", "b"]);
}

#[tokio::test]
async fn ollama_passes_to_ollama() {
    let lines = [
        "{\"model\":\"m\",\"message\":{\"content\":\"\\\"done\\\": true \\\"error\\\"\"},\"done\":false}\n",
        "{\"model\":\"m\",\"message\":{\"content\":\"\"},\"done\": true,\"prompt_eval_count\":4,\"eval_count\":2}",
    ];
    let (text, usage, seen) = pass(
        Provider::Ollama,
        Dialect::OllamaChat,
        r#"{"model":"ours","messages":[]}"#,
        true,
        stream_of("application/x-ndjson", &lines),
    )
    .await;
    assert_eq!((text, counts(usage)), (lines.concat() + "\n", Some((4, 2))));
    assert_eq!(seen.path(), "/api/chat");
}

#[tokio::test]
async fn responses_completions_and_vectors_pass() {
    let events = [
        "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null,\"error\":null}}\n\n",
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n",
        "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":4,\"output_tokens_details\":{\"reasoning_tokens\":1}}}}\n\n",
    ];
    let steps = stream_of("text/event-stream", &events);
    let (text, usage, seen) =
        pass(Provider::OpenAi, Dialect::OpenAiResponses, r#"{"model":"x","stream":true}"#, true, steps).await;
    assert_eq!((text, counts(usage), seen.path()), (events.concat(), Some((3, 4)), "/v1/responses"));
    assert_eq!(usage.unwrap().reasoning_tokens, Some(1));
    let vectors = json!({"data": [{"embedding": [1.0]}], "usage": {"prompt_tokens": 5, "total_tokens": 5}});
    let body = r#"{"input":"a"}"#;
    let (text, usage, seen) =
        pass(Provider::AzureOpenAi, Dialect::OpenAiEmbeddings, body, false, json_answer(&vectors)).await;
    assert_eq!((text, counts(usage)), (vectors.to_string(), Some((5, 0))));
    assert_eq!(seen.path(), "/openai/deployments/their-model/embeddings?api-version=2024-10-21");
}

#[tokio::test]
async fn a_configuration_changes_forwarded_requests() {
    let server = Server::start(vec![json_answer(&json!({"choices": []}))]).await;
    let mut settings = Settings::new(remote(Provider::OpenAi, &server.base));
    let map = |v: Value| v.as_object().unwrap().clone();
    settings.params = map(json!({"temperature": 0.5, "top_p": 0.5}));
    let changes = &mut settings.remote.changes;
    changes.edits = Edits {
        drop: vec!["user".into()],
        rename: vec![("max_tokens".into(), "max_completion_tokens".into())],
        set: map(json!({"seed": 1})),
    };
    changes.drop_params = true;
    changes.extra_body = map(json!({"metadata": {"a": 1}}));
    let endpoint = Endpoint::new(settings).unwrap();
    let body = br#"{"model":"ours","user":"me","max_tokens":7,"temperature":1,"top_k":3,"metadata":{"b":2},"seed":9}"#;
    let body = &Bytes::from_static(body);
    let request = Forward {
        model: None,
        upload: None,
        memory: &octet_api::core::MemoryHandle::default(),
        dialect: Dialect::OpenAiChat,
        headers: &HeaderMap::new(),
        body,
        stream: false,
        usage: false,
    };
    all(client().forward(&endpoint, request).await.unwrap()).await;
    let expected = json!({
        "model": "their-model", "max_completion_tokens": 7, "temperature": 1, "top_p": 0.5, "seed": 1,
        "metadata": {"a": 1, "b": 2},
    });
    assert_eq!(server.last().json(), expected);
    // For a name with a wildcard.
    let named = endpoint.with_model("gpt-4o");
    all(client().forward(&named, request).await.unwrap()).await;
    assert_eq!(server.last().json()["model"], "gpt-4o");
    // OpenAI's names mean nothing in other dialects: such a request is translated instead.
    let mut settings = Settings::new(remote(Provider::Anthropic, &server.base));
    assert!(Endpoint::new(settings.clone()).unwrap().speaks(Dialect::AnthropicMessages));
    settings.params = map(json!({"temperature": 0.5}));
    assert!(!Endpoint::new(settings).unwrap().speaks(Dialect::AnthropicMessages));
}

#[tokio::test]
async fn unsupported_requests_are_refused_before_sending() {
    let server = Server::start(vec![json_answer(&json!({}))]).await;
    for (provider, dialect, body, said) in [
        (Provider::Anthropic, Dialect::OpenAiChat, "{}", "does not speak OpenAiChat"),
        (Provider::Gemini, Dialect::OpenAiChat, "{}", "does not speak"),
        (
            Provider::OpenAi,
            Dialect::OpenAiChat,
            "[]",
            "the body is not a JSON object: invalid type: sequence",
        ),
    ] {
        let request = Forward {
            model: None,
            upload: None,
            memory: &octet_api::core::MemoryHandle::default(),
            dialect,
            headers: &HeaderMap::new(),
            body: &body.as_bytes().to_vec().into(),
            stream: false,
            usage: false,
        };
        let failure = client().forward(&endpoint(provider, &server.base), request).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::BadRequest);
        assert!(failure.message.contains(said), "{failure}");
    }
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_stream_without_done_is_complete_if_all_choices_ended() {
    let end = |choice: u32| {
        format!(
            "data: {{\"choices\":[{{\"index\":{choice},\"delta\":{{}},\"finish_reason\": \"stop\"}}]}}\n\n"
        )
    };
    let steps = stream_of("text/event-stream", &[&end(0), &end(1)]);
    let body = r#"{"n":2,"stream":true}"#;
    let (text, ..) = pass(Provider::OpenAiCompatible, Dialect::OpenAiChat, body, true, steps.clone()).await;
    assert_eq!(text, end(0) + &end(1));
    let server = Server::start(vec![steps]).await;
    let request = Forward {
        model: None,
        upload: None,
        memory: &octet_api::core::MemoryHandle::default(),
        dialect: Dialect::OpenAiChat,
        headers: &HeaderMap::new(),
        body: &Bytes::from_static(br#"{"n":3}"#),
        stream: true,
        usage: false,
    };
    let endpoint = endpoint(Provider::OpenAiCompatible, &server.base);
    let mut raw = client().forward(&endpoint, request).await.unwrap();
    let mut failure = None;
    while let Some(bytes) = raw.next().await {
        failure = bytes.err();
    }
    assert_eq!(failure.map(|f| f.kind), Some(FailureKind::Protocol), "one of three is missing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However a stream is cut, the client gets the same bytes, and the same is counted.
    #[test]
    fn cuts_do_not_matter(texts in prop::collection::vec("[ -~é]{0,20}", 1..6), mut cuts in prop::collection::vec(0usize..900, 0..12), crlf: bool) {
        let newline = if crlf { "\r\n" } else { "\n" };
        let event = |json: Value| format!("data: {json}{newline}{newline}");
        let mut events: Vec<String> = texts
            .iter()
            .map(|t| event(json!({"choices": [{"index": 0, "delta": {"content": t}}], "usage": null})))
            .collect();
        events.push(event(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})));
        let shown = events.concat() + &format!(": a comment{newline}{newline}data: [DONE]{newline}{newline}");
        events.push(event(json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})));
        let stream = events.concat() + &format!(": a comment{newline}{newline}data: [DONE]{newline}{newline}");
        cuts.retain(|c| stream.is_char_boundary(*c) && *c > 0 && *c < stream.len());
        cuts.sort_unstable();
        cuts.dedup();
        let mut pieces = Vec::new();
        let mut at = 0;
        for cut in cuts.into_iter().chain([stream.len()]) {
            pieces.push(&stream[at..cut]);
            at = cut;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (text, usage, _) = runtime.block_on(pass(
            Provider::OpenAiCompatible,
            Dialect::OpenAiChat,
            r#"{"stream":true}"#,
            true,
            stream_of("text/event-stream", &pieces),
        ));
        prop_assert_eq!(text, shown);
        prop_assert_eq!(counts(usage), Some((3, 2)));
    }
}
