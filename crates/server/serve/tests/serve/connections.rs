//! Connections that end early, and HTTP/2. (`clients.rs` has httpx ask over HTTP/2.)

use std::time::Instant;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::common::upstream::{Step, Upstream, says};
use crate::common::{Fixture, PATIENCE, chat};

async fn connected(f: &Fixture, path: &str, body: &Value, version: &str) -> TcpStream {
    let mut stream = TcpStream::connect(f.address).await.expect("it listens");
    let body = body.to_string();
    let head = format!("POST {path} HTTP/{version}\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await.expect("it is taken");
    stream
}

async fn rest(mut stream: TcpStream) -> String {
    let mut out = Vec::new();
    stream.read_to_end(&mut out).await.expect("an answer");
    String::from_utf8(out).expect("text")
}

fn routed(base: &str) -> String {
    format!(
        "model_list:\n- {{model_name: tiny, litellm_params: {{model: hosted_vllm/theirs, api_base: '{base}/v1'}}}}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_closed_client_gets_its_answer() {
    let f = Fixture::start().await;
    for stream in [false, true] {
        let mut asked = chat("Hello");
        asked["stream"] = stream.into();
        let mut connection = connected(&f, "/v1/chat/completions", &asked, "1.1").await;
        connection.shutdown().await.expect("a socket");
        let text = rest(connection).await;
        assert!(text.contains("HTTP/1.1 200 OK"), "{text}");
        assert!(text.contains(if stream { "[DONE]" } else { "\"finish_reason\"" }), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_clients_are_probed() {
    let up = Upstream::start(|seen| [vec![Step::Sleep(1000)], says(seen, "Hi")].concat()).await;
    let f = Fixture::routed(&routed(&up.base)).await;
    for (version, interim) in [("1.1", true), ("1.0", false)] {
        let mut connection = connected(&f, "/v1/chat/completions", &chat("Hello"), version).await;
        connection.shutdown().await.expect("a socket");
        let text = rest(connection).await;
        let answer = text.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(answer.is_some(), interim, "{text}");
        assert!(answer.unwrap_or(&text).contains("200 OK") && text.contains("\"Hi\""), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_stops_when_the_client_is_gone() {
    let (told, waits) = watch::channel(false);
    let up = Upstream::start(move |_| vec![Step::Wait(waits.clone())]).await;
    let f = Fixture::routed(&routed(&up.base)).await;
    let connection = connected(&f, "/v1/chat/completions", &chat("Hello"), "1.1").await;
    let began = Instant::now();
    while up.seen().is_empty() {
        assert!(began.elapsed() < PATIENCE, "the provider is asked");
        tokio::task::yield_now().await;
    }
    assert_eq!(f.app.busy(), 1);
    drop(connection);
    while f.app.busy() > 0 {
        assert!(began.elapsed() < PATIENCE, "the request is given up");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    drop(told);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_request_is_not_answered() {
    let f = Fixture::start().await;
    for sent in [
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{",
    ] {
        let mut stream = TcpStream::connect(f.address).await.expect("it listens");
        stream.write_all(sent.as_bytes()).await.expect("it is taken");
        stream.shutdown().await.expect("a socket");
        let text = tokio::time::timeout(PATIENCE, rest(stream)).await.expect("it ends");
        assert!(!text.contains("200 OK"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_may_start_as_http_2() {
    let f = Fixture::start().await;
    let mut stream = TcpStream::connect(f.address).await.expect("it listens");
    // The preface, and settings without any.
    let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(begin).await.expect("it is taken");
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.expect("a frame");
    assert_eq!((head[3], head[4]), (4, 0), "settings come first");
    let (status, _) = f.get("/health").await;
    assert_eq!(status, 200);
}
