//! A provider that answers by a script, on a real socket.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// One step of an answer.
#[derive(Debug, Clone)]
pub enum Step {
    Send(String),
    /// Close the connection with an RST: what has not been read by then is lost.
    Reset,
    /// Close the connection; what was sent arrives.
    Close,
    Sleep(u64),
    /// Wait until the test says so.
    Wait(watch::Receiver<bool>),
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub path: String,
    pub head: String,
    pub body: Value,
    /// The same as it came.
    pub raw: Vec<u8>,
}

type Script = dyn Fn(&Seen) -> Vec<Step> + Send + Sync;

/// A provider; it ends with its test's runtime.
pub struct Upstream {
    pub base: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Upstream {
    pub async fn start(script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (all, script): (_, Arc<Script>) = (Arc::clone(&seen), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&all), Arc::clone(&script)));
            }
        });
        Self { base, seen }
    }

    /// Says this, in whatever dialect it is asked.
    pub async fn saying(text: &str) -> Self {
        let text = text.to_string();
        Self::start(move |seen| says(seen, &text)).await
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no panic").clone()
    }

    pub fn last(&self) -> Seen {
        self.seen().last().expect("a request came").clone()
    }
}

pub fn answer(status: &str, body: &Value) -> Vec<Step> {
    let body = body.to_string();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
    vec![Step::Send(format!("{head}\r\n\r\n{body}"))]
}

/// An answer of any type.
pub fn typed(kind: &str, body: &str) -> Vec<Step> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}", body.len());
    vec![Step::Send(format!("{head}\r\n\r\n{body}"))]
}

pub const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

pub fn chunk(text: &str) -> Step {
    Step::Send(format!("{:x}\r\n{text}\r\n", text.len()))
}

pub fn event(data: &Value) -> Step {
    chunk(&format!("data: {data}\n\n"))
}

/// A piece of OpenAI's stream.
pub fn delta(text: &str) -> Step {
    event(&json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "theirs",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]}))
}

/// What OpenAI's, Anthropic's and Ollama's servers answer.
pub fn says(seen: &Seen, text: &str) -> Vec<Step> {
    let streams = seen.body["stream"].as_bool().unwrap_or(seen.path.starts_with("/api/"));
    let usage = json!({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9});
    match (seen.path.as_str(), streams) {
        ("/v1/chat/completions", false) => answer(
            "200 OK",
            &json!({"id": "x", "object": "chat.completion", "created": 1, "model": "theirs",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                "usage": usage}),
        ),
        ("/v1/chat/completions", true) => {
            let end = json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "theirs",
                "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
            let count = json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "theirs",
                "choices": [], "usage": usage});
            vec![
                Step::Send(STREAM_HEAD.into()),
                delta(text),
                event(&end),
                event(&count),
                chunk("data: [DONE]\n\n"),
                Step::Send("0\r\n\r\n".into()),
            ]
        }
        ("/v1/embeddings", _) => answer(
            "200 OK",
            &json!({"object": "list", "model": "theirs", "usage": {"prompt_tokens": 3, "total_tokens": 3},
                "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}]}),
        ),
        ("/v1/messages", false) => answer(
            "200 OK",
            &json!({"id": "m", "type": "message", "role": "assistant", "model": "theirs",
                "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "stop_sequence": null,
                "usage": {"input_tokens": 7, "output_tokens": 2}}),
        ),
        ("/api/chat", false) => answer(
            "200 OK",
            &json!({"model": "theirs", "created_at": "2026-11-21T00:00:00Z",
                "message": {"role": "assistant", "content": text}, "done": true, "done_reason": "stop",
                "prompt_eval_count": 7, "eval_count": 2}),
        ),
        _ => answer("404 Not Found", &json!({"error": {"message": format!("nothing at {}", seen.path)}})),
    }
}

async fn serve(mut stream: TcpStream, all: Arc<Mutex<Vec<Seen>>>, script: Arc<Script>) {
    while let Some(seen) = read(&mut stream).await {
        let steps = script(&seen);
        all.lock().expect("no panic").push(seen);
        for step in steps {
            match step {
                Step::Send(text) => {
                    if stream.write_all(text.as_bytes()).await.is_err() {
                        return;
                    }
                }
                Step::Reset => {
                    stream.set_zero_linger().expect("a socket");
                    return;
                }
                Step::Close => return,
                Step::Sleep(ms) => tokio::time::sleep(std::time::Duration::from_millis(ms)).await,
                Step::Wait(mut told) => {
                    if told.wait_for(|told| *told).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<Seen> {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    let head = loop {
        if let Some(at) = all.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        let n = stream.read(&mut buffer).await.ok().filter(|n| *n > 0)?;
        all.extend_from_slice(&buffer[..n]);
    };
    let text = String::from_utf8(all[..head].to_vec()).expect("a head is text");
    let chunked = text.to_lowercase().contains("transfer-encoding: chunked");
    let length = text
        .lines()
        .find_map(|l| l.to_lowercase().strip_prefix("content-length: ").map(|v| v.parse::<usize>()))
        .map_or(0, |v| v.expect("a number"));
    while all.len() < head + length || (chunked && !all.ends_with(b"\r\n0\r\n\r\n")) {
        let n = stream.read(&mut buffer).await.ok().filter(|n| *n > 0)?;
        all.extend_from_slice(&buffer[..n]);
    }
    let path = text.split(' ').nth(1).expect("a path").to_string();
    let raw = all.split_off(head);
    let body = serde_json::from_slice(&raw).unwrap_or(Value::Null);
    Some(Seen { path, head: text, body, raw })
}
