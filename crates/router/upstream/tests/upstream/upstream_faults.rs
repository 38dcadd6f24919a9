//! Failures of providers, on real sockets: each one is classified, both if an answer is read and if it
//! passes through, and says whether some of the answer was handed on.

use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use http::HeaderMap;
use octet_api::core::Event;
use octet_config::Provider;
use octet_upstream::{Client, Dialect, Endpoint, Failure, FailureKind, Forward, Limits, Settings, Timeouts};
use serde_json::json;

const COMPATIBLE: Provider = Provider::OpenAiCompatible;

const FIRST: &str = "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"}}]}\n\n";
const LAST: &str =
    "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn text(events: &[Event]) -> String {
    events
        .iter()
        .filter_map(|e| if let Event::Text { text, .. } = e { Some(text.as_str()) } else { None })
        .collect()
}

/// The failure of a script, in all four ways, none of which may hand anything on before it.
async fn fails(steps: Vec<Step>, kind: FailureKind, said: &str) -> Vec<Failure> {
    let server = Server::start(vec![steps]).await;
    let endpoint = endpoint(COMPATIBLE, &server.base);
    let mut out = Vec::new();
    for stream in [false, true] {
        let (events, failure) = generate(&endpoint, &request(stream)).await;
        assert_eq!(text(&events), "");
        out.push(failure.expect("it fails"));
        let (bytes, failure) = forward(&endpoint, stream).await;
        assert_eq!(bytes, "");
        out.push(failure.expect("it fails"));
    }
    for failure in &out {
        assert_eq!(failure.kind, kind, "{failure:?}");
        assert!(failure.message.contains(said), "{failure:?}");
        assert!(!failure.sent_any, "{failure:?}");
    }
    assert_eq!(server.seen().len(), 4, "nothing is sent twice");
    out
}

/// The failure of a stream, after this text.
async fn fails_midway(steps: Vec<Step>, kind: FailureKind, timeouts: Timeouts) -> Vec<Failure> {
    let server = Server::start(vec![steps]).await;
    let mut settings = Settings::new(remote(COMPATIBLE, &server.base));
    settings.timeouts = timeouts;
    let endpoint = Endpoint::new(settings).unwrap();
    let r = request(true);
    let ((events, a), (bytes, b)) = tokio::join!(generate(&endpoint, &r), forward(&endpoint, true));
    assert_eq!(text(&events), "Hel");
    assert_eq!(bytes, FIRST, "whole events pass, and no half ones");
    let out: Vec<Failure> = [a, b].into_iter().map(|f| f.expect("it fails")).collect();
    for failure in &out {
        assert_eq!((failure.kind, failure.sent_any), (kind, true), "{failure:?}");
    }
    assert_eq!(server.seen().len(), 2, "nothing is sent twice");
    out
}

#[tokio::test]
async fn a_refused_connection() {
    let endpoint = endpoint(COMPATIBLE, octet_testkit::NOBODY);
    let (_, failure) = generate(&endpoint, &request(false)).await;
    let failure = failure.unwrap();
    assert_eq!((failure.kind, failure.status, failure.sent_any), (FailureKind::Connect, None, false));
    assert!(failure.message.contains("no connection to 127.0.0.1:"), "{failure}");
    assert_eq!(client().probe(&endpoint).await.unwrap_err().kind, FailureKind::Connect);
}

#[tokio::test]
async fn a_name_that_is_no_host() {
    let endpoint = endpoint(COMPATIBLE, "http://no.such.host.invalid");
    assert_eq!(generate(&endpoint, &request(false)).await.1.unwrap().kind, FailureKind::Connect);
}

#[tokio::test]
async fn a_connection_closed_or_reset_before_the_answer() {
    fails(vec![Step::Close], FailureKind::Connect, "before it answered").await;
    fails(vec![Step::Reset], FailureKind::Connect, "before it answered").await;
}

#[tokio::test]
async fn a_reset_within_the_head() {
    let steps = vec![send("HTTP/1.1 200 OK\r\ncontent-ty"), Step::Sleep(20), Step::Reset];
    fails(steps, FailureKind::Connect, "before it answered").await;
}

#[tokio::test]
async fn an_answer_that_is_not_http() {
    fails(vec![send("220 mail.example.com ESMTP\r\n"), Step::Hang], FailureKind::Protocol, "HTTP").await;
    let endless = vec![send("HTTP/1.1 200 OK\r\nx: "), Step::Forever(vec![b'a'; 8192])];
    fails(endless, FailureKind::Protocol, "HTTP").await;
}

#[tokio::test]
async fn silence_before_and_after_the_head() {
    for steps in [vec![Step::Hang], vec![send(stream_head("text/event-stream")), Step::Hang]] {
        let server = Server::start(vec![steps]).await;
        let mut settings = Settings::new(remote(COMPATIBLE, &server.base));
        settings.timeouts = Timeouts { first_chunk: Some(Duration::from_millis(100)), ..Timeouts::default() };
        let endpoint = Endpoint::new(settings).unwrap();
        for failure in [generate(&endpoint, &request(true)).await.1, forward(&endpoint, true).await.1] {
            let failure = failure.unwrap();
            assert_eq!((failure.kind, failure.sent_any), (FailureKind::Timeout, false));
            assert_eq!(failure.message, "no first data from the provider within 0.1 s");
        }
    }
    // A whole answer has the limit of the whole alone.
    let server = Server::start(vec![vec![Step::Hang]]).await;
    let mut settings = Settings::new(remote(COMPATIBLE, &server.base));
    settings.timeouts =
        Timeouts { whole: Some(Duration::from_millis(100)), first_chunk: Some(Duration::ZERO), idle: None };
    let failure = generate(&Endpoint::new(settings).unwrap(), &request(false)).await.1.unwrap();
    assert_eq!(failure.message, "the answer is not complete within 0.1 s");
}

#[tokio::test]
async fn a_stream_that_falls_silent_or_never_ends() {
    let steps = vec![send(stream_head("text/event-stream")), send(chunk(FIRST)), Step::Hang];
    let timeouts = Timeouts { idle: Some(Duration::from_millis(80)), ..Timeouts::default() };
    let failures = fails_midway(steps, FailureKind::Timeout, timeouts).await;
    assert_eq!(failures[0].message, "no data from the provider within 0.08 s");

    // Comments keep a connection alive, but not a call. (The times are longer than the gaps on a busy machine.)
    let mut steps = vec![send(stream_head("text/event-stream")), send(chunk(FIRST))];
    steps.extend((0..600).flat_map(|_| [send(chunk(":\n")), Step::Sleep(100)]));
    let timeouts = Timeouts {
        whole: Some(Duration::from_secs(5)),
        idle: Some(Duration::from_secs(4)),
        first_chunk: None,
    };
    let failures = fails_midway(steps, FailureKind::Timeout, timeouts).await;
    assert_eq!(failures[1].message, "the answer is not complete within 5 s");
}

#[tokio::test]
async fn a_stream_that_is_cut() {
    let head = || send(stream_head("text/event-stream"));
    let half = &LAST[..20];
    for steps in [
        vec![head(), send(chunk(FIRST)), Step::Sleep(20), Step::Reset],
        vec![head(), send(chunk(FIRST)), Step::Close],
        // Half an event, and the end as if all were well.
        vec![head(), send(chunk(FIRST)), send(chunk(half)), send(END)],
        vec![head(), send(chunk(FIRST)), send(chunk(half)), Step::Close],
        // No event is cut, but the answer has no end.
        vec![head(), send(chunk(FIRST)), send(END)],
        // Half a chunk.
        vec![head(), send(chunk(FIRST)), send("ff\r\ndata: {"), Step::Close],
        vec![head(), send(chunk(FIRST)), send("nonsense\r\n"), Step::Hang],
    ] {
        fails_midway(steps, FailureKind::Protocol, Timeouts::default()).await;
    }
}

#[tokio::test]
async fn an_error_within_a_stream() {
    let error = "data: {\"error\":{\"message\":\"the key sk-very-secret-key has run dry\",\"code\":\"insufficient_quota\"}}\n\n";
    let steps = stream_of("text/event-stream", &[FIRST, error]);
    for failure in fails_midway(steps, FailureKind::RateLimited, Timeouts::default()).await {
        assert_eq!(failure.message, "the key *** has run dry");
        assert_eq!(failure.code.as_deref(), Some("insufficient_quota"));
    }
    let first = stream_of("text/event-stream", &[error]);
    for stream in [true] {
        let server = Server::start(vec![first.clone()]).await;
        let endpoint = endpoint(COMPATIBLE, &server.base);
        assert!(!generate(&endpoint, &request(stream)).await.1.unwrap().sent_any);
        assert!(!forward(&endpoint, stream).await.1.unwrap().sent_any);
    }
}

#[tokio::test]
async fn too_many_requests() {
    let body = r#"{"error":{"message":"slow down, sk-very-secret-key","type":"rate_limit_error"}}"#;
    let with = |header: &str| {
        let head =
            format!("HTTP/1.1 429 Too Many Requests\r\n{header}content-length: {}\r\n\r\n", body.len());
        vec![send(head + body)]
    };
    for failure in fails(with("Retry-After: 7\r\n"), FailureKind::RateLimited, "slow down, ***").await {
        assert_eq!((failure.status, failure.retry_after), (Some(429), Some(Duration::from_secs(7))));
    }
    let date = httpdate::fmt_http_date(std::time::SystemTime::now() + Duration::from_secs(900));
    for failure in fails(with(&format!("Retry-After: {date}\r\n")), FailureKind::RateLimited, "").await {
        let wait = failure.retry_after.unwrap();
        assert!(wait > Duration::from_secs(800) && wait <= Duration::from_secs(900), "{wait:?}");
    }
    for failure in fails(with(""), FailureKind::RateLimited, "").await {
        assert_eq!(failure.retry_after, None);
    }
}

#[tokio::test]
async fn errors_are_classified_by_status_and_code() {
    let error = |code: &str| {
        json!({"error": {"message": "m", "type": "invalid_request_error", "code": code}}).to_string()
    };
    for (status, body, kind) in [
        ("400 Bad Request", error("unknown_parameter"), FailureKind::BadRequest),
        ("400 Bad Request", error("context_length_exceeded"), FailureKind::ContextWindow),
        ("400 Bad Request", error("content_filter"), FailureKind::ContentPolicy),
        ("401 Unauthorized", error("invalid_api_key"), FailureKind::Authentication),
        ("402 Payment Required", "{}".into(), FailureKind::Authentication),
        ("403 Forbidden", error(""), FailureKind::Authentication),
        ("404 Not Found", error("model_not_found"), FailureKind::NotFound),
        ("408 Request Timeout", String::new(), FailureKind::Timeout),
        ("413 Payload Too Large", String::new(), FailureKind::BadRequest),
        ("500 Internal Server Error", "<html>oops</html>".into(), FailureKind::Server),
        ("502 Bad Gateway", String::new(), FailureKind::Server),
        ("503 Service Unavailable", error(""), FailureKind::Server),
        ("529 Overloaded", String::new(), FailureKind::Server),
    ] {
        let steps = vec![send(answer(status, "application/json", &body))];
        for failure in fails(steps, kind, "").await {
            assert_eq!(failure.status, status[..3].parse().ok());
            assert!(!failure.message.is_empty());
        }
    }
}

#[tokio::test]
async fn the_body_of_an_error_is_cut() {
    let steps = vec![send("HTTP/1.1 500 Oops\r\ncontent-length: 1000\r\n\r\nhalf of it"), Step::Close];
    fails(steps, FailureKind::Server, "status 500").await;
}

#[tokio::test]
async fn html_with_the_status_of_success() {
    let page = "<!doctype html><title>Sign in</title>";
    fails(vec![send(answer("200 OK", "text/html; charset=utf-8", page))], FailureKind::Protocol, "text/html")
        .await;
    // And where it says that it is something else.
    fails(vec![send(answer("200 OK", "application/json", page))], FailureKind::Protocol, "<title>").await;
}

#[tokio::test]
async fn invalid_json_and_json_that_is_not_an_answer() {
    fails(vec![send(answer("200 OK", "application/json", "{\"choices\": [}"))], FailureKind::Protocol, "")
        .await;
    fails(vec![send(answer("200 OK", "application/json", ""))], FailureKind::Protocol, "").await;
    for none in ["{}", "{\"choices\": 5}", "{\"choices\": null}", "[]", "null"] {
        fails(vec![send(answer("200 OK", "application/json", none))], FailureKind::Protocol, "").await;
    }
    let said = json!({"error": {"message": "in disguise", "type": "server_error"}}).to_string();
    fails(vec![send(answer("200 OK", "application/json", &said))], FailureKind::Protocol, "in disguise")
        .await;
}

#[tokio::test]
async fn a_length_that_is_wrong() {
    let body = "{\"choices\":[";
    let head = |n: usize| {
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {n}\r\n\r\n")
    };
    // Shorter than it says, longer than it says, and no number.
    fails(vec![send(head(100) + body), Step::Close], FailureKind::Protocol, "ended before it was complete")
        .await;
    fails(vec![send(head(5) + body), Step::Close], FailureKind::Protocol, "cannot be read").await;
    let none = "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n{}";
    fails(vec![send(none), Step::Close], FailureKind::Protocol, "HTTP").await;
}

#[tokio::test]
async fn an_answer_without_end() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
    let sse = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ";
    for (head, stream) in [(head, false), (sse, true)] {
        let server = Server::start(vec![vec![send(head), Step::Forever(vec![b' '; 65536])]]).await;
        let mut settings = Settings::new(remote(COMPATIBLE, &server.base));
        settings.answer_bytes_max = 1 << 20;
        let endpoint = Endpoint::new(settings).unwrap();
        for failure in [generate(&endpoint, &request(stream)).await.1, forward(&endpoint, stream).await.1] {
            let failure = failure.unwrap();
            assert_eq!(failure.kind, FailureKind::Protocol);
            assert_eq!(failure.message, "the answer is longer than 1048576 bytes");
        }
    }
}

#[tokio::test]
async fn compressed_answers_are_read_and_forwarded_unchanged() {
    use flate2::{Compression, write::GzEncoder};
    let zipped = |parts: &[&str]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        for part in parts {
            std::io::Write::write_all(&mut encoder, part.as_bytes()).unwrap();
            std::io::Write::flush(&mut encoder).unwrap();
            pieces.push(std::mem::take(encoder.get_mut()));
        }
        pieces.push(encoder.finish().unwrap());
        pieces
    };
    let steps = |kind: &str, parts: &[&str]| {
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        let mut out = vec![send(head)];
        for piece in zipped(parts) {
            let mut bytes = format!("{:x}\r\n", piece.len()).into_bytes();
            bytes.extend(piece);
            bytes.extend(b"\r\n");
            out.push(send(bytes));
        }
        out.push(send("0\r\n\r\n"));
        out
    };
    let ok = json!({"id": "x", "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]}).to_string();
    let server = Server::start(vec![
        steps("application/json", &[&ok]),
        steps("application/json", &[&ok]),
        steps("text/event-stream", &[FIRST, LAST, DONE]),
    ])
    .await;
    let endpoint = endpoint(COMPATIBLE, &server.base);
    let (events, failure) = generate(&endpoint, &request(false)).await;
    assert_eq!((text(&events).as_str(), failure), ("Hello", None));
    let (bytes, failure) = forward(&endpoint, false).await;
    assert_eq!((bytes.as_str(), failure), (ok.as_str(), None));
    let (bytes, failure) = forward(&endpoint, true).await;
    assert_eq!((bytes, failure), (format!("{FIRST}{LAST}{DONE}"), None));
    assert_eq!(server.seen().len(), 3, "no request is sent twice");
}

#[tokio::test]
async fn wrong_and_unknown_encodings() {
    let head = "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 14\r\n\r\nno gzip at all";
    fails(vec![send(head)], FailureKind::Protocol, "cannot be decompressed").await;
    let head = "HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 3\r\n\r\nabc";
    fails(vec![send(head)], FailureKind::Protocol, "encoded as br").await;
}

#[tokio::test]
async fn many_headers_are_taken() {
    let ok = json!({"id": "x", "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]}).to_string();
    let headers: String = (0..200).map(|i| format!("x-proxy-{i}: a\r\n")).collect();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{ok}",
        ok.len()
    );
    let server = Server::start(vec![vec![send(answer)]]).await;
    let (events, failure) = generate(&endpoint(COMPATIBLE, &server.base), &request(false)).await;
    assert_eq!((text(&events).as_str(), failure), ("Hello", None));
}

#[tokio::test]
async fn invalid_events_are_not_forwarded() {
    let stream = |bad: &str| {
        let mut out = vec![
            send(stream_head("text/event-stream")),
            send(chunk(FIRST)),
            send(chunk(bad)),
            send(chunk(LAST)),
            send(chunk(DONE)),
        ];
        out.push(send("0\r\n\r\n"));
        out
    };
    for bad in ["data: {\"id\":\"x\",\n\n", "data: <html>\n\n", "{\"choices\":[]}\n\n", "data: oops\n\n"] {
        let server = Server::start(vec![stream(bad)]).await;
        let endpoint = endpoint(COMPATIBLE, &server.base);
        let (bytes, failure) = forward(&endpoint, true).await;
        assert_eq!(bytes, FIRST, "{bad}");
        let failure = failure.expect(bad);
        assert!(failure.sent_any && failure.message.contains("of the stream is not"), "{failure:?}");
    }
    // Unknown fields and comments are part of an event.
    let server = Server::start(vec![stream(": ping\n\nevent: x\nid: 7\nretry: 10\n\n")]).await;
    let (bytes, failure) = forward(&endpoint(COMPATIBLE, &server.base), true).await;
    assert!(failure.is_none() && bytes.ends_with(DONE), "{bytes} {failure:?}");
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Server::start(vec![vec![Step::Close]]).await;
    let head = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: {}/x?token=abc\r\ncontent-length: 0\r\n\r\n",
        elsewhere.base
    );
    for failure in fails(vec![send(head)], FailureKind::Protocol, "redirects to http://127.0.0.1:").await {
        assert!(!failure.message.contains("token"), "{failure}");
    }
    assert!(elsewhere.seen().is_empty(), "the key goes nowhere else");
}

#[tokio::test]
async fn a_complete_answer_instead_of_a_stream() {
    let whole = json!({"id": "x", "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]});
    let server = Server::start(vec![json_answer(&whole)]).await;
    let endpoint = endpoint(COMPATIBLE, &server.base);
    // Read, it is as good; a client of streams could not read it.
    assert_eq!(answered(&endpoint, &request(true)).await.choices[0].text(), "Hello");
    assert_eq!(forward(&endpoint, true).await.1.unwrap().kind, FailureKind::Protocol);
}

#[tokio::test]
async fn a_call_that_is_dropped_ends_at_the_provider() {
    let mut steps = vec![send(stream_head("text/event-stream")), send(chunk(FIRST))];
    steps.push(Step::Forever(chunk(FIRST)));
    let server = Server::start(vec![steps, json_answer(&json!({}))]).await;
    let client = client();
    let endpoint = endpoint(COMPATIBLE, &server.base);
    let mut events = client.generate(&endpoint, &request(true)).await.unwrap();
    assert!(matches!(events.next().await, Some(Ok(Event::Started { .. }))));
    drop(events);
    // The connection in the middle of an answer is not used again.
    client.probe(&endpoint).await.unwrap();
    assert_eq!(server.last().connection, 1);
}

/// A connection goes back to rest beside who used it, and a request that comes too soon opens another. So each try gives it more time.
const PAUSES_MS: [u64; 4] = [50, 400, 3000, 20_000];

#[tokio::test]
async fn a_request_written_to_an_idle_connection_is_not_sent_again() {
    let ok = json!({"id": "x", "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]});
    // The second request is read, worked on for a while or not at all, and the connection closed without an answer.
    for steps in [vec![Step::Close], vec![Step::Sleep(300), Step::Close], vec![Step::Sleep(300), Step::Reset]]
    {
        let mut used = Vec::new();
        for pause_ms in PAUSES_MS {
            let server = Server::start(vec![json_answer(&ok), steps.clone(), json_answer(&ok)]).await;
            let client = Client::new(Limits::default());
            let endpoint = endpoint(COMPATIBLE, &server.base);
            client.generate(&endpoint, &request(false)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            let failure = client.generate(&endpoint, &request(false)).await.unwrap_err();
            assert_eq!((failure.kind, failure.sent_any), (FailureKind::Connect, false), "{failure:?}");
            used = server.connections();
            if used == [0, 0] {
                break;
            }
        }
        assert_eq!(used, [0, 0], "used once by each request");
    }
}

#[tokio::test]
async fn a_closed_idle_connection_causes_no_error() {
    let ok = json!({"id": "x", "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]});
    let server = Server::start(vec![vec![json_answer(&ok)[0].clone(), Step::Close]]).await;
    let client = Client::new(Limits::default());
    let endpoint = endpoint(COMPATIBLE, &server.base);
    for connection in [0, 1, 2] {
        client.generate(&endpoint, &request(false)).await.unwrap();
        assert_eq!(server.last().connection, connection);
        server.until_closed(connection + 1).await;
    }
}

#[tokio::test]
async fn connections_are_used_again_after_streams_and_errors() {
    let mut with_end = stream_of("text/event-stream", &[FIRST, LAST, DONE]);
    // The end comes some time after the last event, as servers write it.
    with_end.insert(with_end.len() - 1, Step::Sleep(30));
    let error = vec![send(answer("429 Too Many Requests", "application/json", "{}"))];
    let body = &Bytes::from_static(br#"{"messages":[],"stream":true}"#);
    let call = Forward {
        model: None,
        upload: None,
        memory: &octet_api::core::MemoryHandle::default(),
        dialect: Dialect::OpenAiChat,
        headers: &HeaderMap::new(),
        body,
        stream: true,
        usage: false,
    };
    let mut used = Vec::new();
    for pause_ms in PAUSES_MS {
        let pause = || tokio::time::sleep(Duration::from_millis(pause_ms));
        let server = Server::start(vec![with_end.clone(), error.clone(), with_end.clone()]).await;
        let client = client();
        let endpoint = endpoint(COMPATIBLE, &server.base);
        for _ in 0..2 {
            let mut events = client.generate(&endpoint, &request(true)).await.unwrap();
            while let Some(event) = events.next().await {
                event.unwrap();
            }
            // Its end is read beside us.
            pause().await;
            if let Ok(mut raw) = client.forward(&endpoint, call).await {
                while let Some(bytes) = raw.next().await {
                    bytes.unwrap();
                }
            }
            pause().await;
        }
        used = server.connections();
        if used == [0, 0, 0, 0] {
            break;
        }
    }
    assert_eq!(used, [0, 0, 0, 0]);
}

#[tokio::test]
async fn probes_say_whether_a_server_is_there() {
    let server = Server::start(vec![
        json_answer(&json!({"data": []})),
        vec![send(answer("404 Not Found", "application/json", "{}"))],
        vec![send(answer("401 Unauthorized", "application/json", "{}"))],
        vec![send(answer("200 OK", "text/html", "<html>"))],
    ])
    .await;
    let endpoint = endpoint(COMPATIBLE, &server.base);
    let client = client();
    client.probe(&endpoint).await.unwrap();
    client.probe(&endpoint).await.unwrap();
    assert_eq!(client.probe(&endpoint).await.unwrap_err().kind, FailureKind::Authentication);
    assert_eq!(client.probe(&endpoint).await.unwrap_err().kind, FailureKind::Protocol);
    assert_eq!(server.last().line, "GET /v1/models HTTP/1.1");
}

#[tokio::test]
async fn no_field_of_an_error_repeats_the_key() {
    let key = "sk-a-key-of-ours";
    let said =
        json!({"error": {"message": format!("no: {key}"), "param": format!("Bearer {key}"), "code": key}});
    for status in ["401 Unauthorized", "400 Bad Request", "200 OK"] {
        let server =
            Server::start(vec![vec![send(answer(status, "application/json", &said.to_string()))]]).await;
        let mut remote = remote(COMPATIBLE, &server.base);
        remote.api_key = octet_config::Secret::new(key);
        let endpoint = Endpoint::new(Settings::new(remote)).unwrap();
        for stream in [false, true] {
            for failure in [generate(&endpoint, &request(stream)).await.1, forward(&endpoint, stream).await.1]
            {
                let failure = failure.expect("it fails");
                assert!(failure.message.contains("***"), "{failure:?}");
                assert!(!format!("{failure:?} {:?}", failure.to_error()).contains(key), "{failure:?}");
            }
        }
    }
}
