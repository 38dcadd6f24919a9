//! A server that answers by a script, on a real socket, and what the tests of clients share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::HeaderMap;
use octet_api::core::{Answer, Chat, Event, GenerateRequest, Input, Message, Role};
use octet_config::{Changes, Provider, Remote, Secret};
use octet_upstream::{Client, Dialect, Endpoint, Failure, Forward, Limits, Settings};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// One step of an answer.
#[derive(Debug, Clone)]
pub enum Step {
    /// Write this.
    Send(Vec<u8>),
    /// Write this again and again.
    Forever(Vec<u8>),
    Sleep(u64),
    /// Close the connection with an RST.
    Reset,
    /// Close it as one does.
    Close,
    /// Say nothing more.
    Hang,
}

pub fn send(text: impl Into<Vec<u8>>) -> Step {
    Step::Send(text.into())
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    /// `POST /v1/chat/completions HTTP/1.1`.
    pub line: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Which connection, from 0.
    pub connection: usize,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a request's body is JSON")
    }

    pub fn path(&self) -> &str {
        self.line.split(' ').nth(1).expect("a path")
    }
}

/// A server; it ends with its test's runtime.
pub struct Server {
    pub base: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Connections that it closed and that the client has closed, too.
    closed: Arc<AtomicUsize>,
}

impl Server {
    /// The first request gets the first answer, whatever the connection; the last answer is given again and again.
    pub async fn start(answers: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let closed: Arc<AtomicUsize> = Arc::default();
        let (all, gone) = (Arc::clone(&seen), Arc::clone(&closed));
        tokio::spawn(async move {
            let mut connection = 0;
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).expect("a socket");
                let (all, gone) = (Arc::clone(&all), Arc::clone(&gone));
                tokio::spawn(serve(stream, connection, answers.clone(), all, gone));
                connection += 1;
            }
        });
        Self { base, seen, closed }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no panic").clone()
    }

    pub fn last(&self) -> Seen {
        self.seen().last().expect("a request came").clone()
    }

    /// The connection that each request came by.
    pub fn connections(&self) -> Vec<usize> {
        self.seen().iter().map(|s| s.connection).collect()
    }

    /// Waits until that many connections are closed on both sides.
    pub async fn until_closed(&self, count: usize) {
        let began = Instant::now();
        while self.closed.load(Ordering::SeqCst) < count {
            assert!(began.elapsed() < Duration::from_secs(60), "the client keeps what is closed");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn serve(
    mut stream: TcpStream,
    connection: usize,
    answers: Vec<Vec<Step>>,
    all: Arc<Mutex<Vec<Seen>>>,
    closed: Arc<AtomicUsize>,
) {
    while let Some(seen) = read(&mut stream, connection).await {
        let number = {
            let mut all = all.lock().expect("no panic");
            all.push(seen);
            all.len() - 1
        };
        for step in answers.get(number).or(answers.last()).cloned().unwrap_or_default() {
            match step {
                Step::Send(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Step::Forever(bytes) => while stream.write_all(&bytes).await.is_ok() {},
                Step::Sleep(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                Step::Reset => {
                    stream.set_zero_linger().expect("a socket");
                    return;
                }
                Step::Close => {
                    let _ = stream.shutdown().await;
                    while stream.read(&mut [0; 64]).await.is_ok_and(|n| n > 0) {}
                    closed.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                Step::Hang => tokio::time::sleep(Duration::from_secs(3600)).await,
            }
        }
    }
}

async fn read(stream: &mut TcpStream, connection: usize) -> Option<Seen> {
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
    let mut lines = text.lines();
    let line = lines.next().expect("a request line").to_string();
    let headers: Vec<(String, String)> = lines
        .filter_map(|l| l.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_string()))
        .collect();
    let length =
        headers.iter().find(|(n, _)| n == "content-length").map_or(0, |(_, v)| v.parse().expect("a number"));
    while all.len() < head + length {
        let n = stream.read(&mut buffer).await.ok().filter(|n| *n > 0)?;
        all.extend_from_slice(&buffer[..n]);
    }
    Some(Seen { line, headers, body: all[head..].to_vec(), connection })
}

/// An answer with a length.
pub fn answer(status: &str, kind: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into()
}

pub fn json_answer(body: &Value) -> Vec<Step> {
    vec![send(answer("200 OK", "application/json", &body.to_string()))]
}

/// The head of a stream.
pub fn stream_head(kind: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n").into()
}

/// A piece of a chunked body.
pub fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into()
}

pub const END: &[u8] = b"0\r\n\r\n";

/// A stream of pieces, each in a separate packet.
pub fn stream_of(kind: &str, pieces: &[&str]) -> Vec<Step> {
    let mut steps = vec![send(stream_head(kind))];
    steps.extend(pieces.iter().map(|p| send(chunk(p))));
    steps.push(send(END));
    steps
}

pub fn remote(provider: Provider, base: &str) -> Remote {
    let path = match provider {
        Provider::OpenAi | Provider::OpenAiCompatible => "/v1",
        Provider::Gemini => "/v1beta",
        _ => "",
    };
    Remote {
        provider,
        model: "their-model".into(),
        api_base: format!("{base}{path}"),
        api_key: Secret::new("sk-very-secret-key"),
        organization: None,
        api_version: None,
        extra_headers: Vec::new(),
        continues: false,
        responses: octet_config::ResponsesUse::None,
        auth: octet_config::Auth::Key,
        family: String::new(),
        changes: Changes::default(),
    }
}

pub fn endpoint(provider: Provider, base: &str) -> Endpoint {
    Endpoint::new(Settings::new(remote(provider, base))).expect("an endpoint")
}

pub fn client() -> Client {
    Client::new(Limits::default())
}

pub fn request(stream: bool) -> GenerateRequest {
    let chat = Chat { messages: vec![Message::text(Role::User, "Hi")], ..Chat::default() };
    GenerateRequest { stream, include_usage: true, ..GenerateRequest::new("ours", Input::Chat(chat)) }
}

/// All events, or those before a failure and the failure.
pub async fn generate(e: &Endpoint, r: &GenerateRequest) -> (Vec<Event>, Option<Failure>) {
    let mut events = match client().generate(e, r).await {
        Ok(events) => events,
        Err(failure) => return (Vec::new(), Some(failure)),
    };
    let mut out = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => out.push(event),
            Err(failure) => {
                assert!(events.next().await.is_none(), "nothing follows a failure");
                return (out, Some(failure));
            }
        }
    }
    (out, None)
}

/// The whole answer, which is to go well.
pub async fn answered(e: &Endpoint, r: &GenerateRequest) -> Answer {
    let (events, failure) = generate(e, r).await;
    assert_eq!(failure, None, "after {events:?}");
    Answer::from_events(&events)
}

/// What came through of a chat, and what ended it.
pub async fn forward(e: &Endpoint, stream: bool) -> (String, Option<Failure>) {
    let body = json!({"model": "ours", "messages": [], "stream": stream}).to_string();
    let request = Forward {
        model: None,
        upload: None,
        memory: &octet_api::core::MemoryHandle::default(),
        dialect: Dialect::OpenAiChat,
        headers: &HeaderMap::new(),
        body: &body.as_bytes().to_vec().into(),
        stream,
        usage: true,
    };
    let mut raw = match client().forward(e, request).await {
        Ok(raw) => raw,
        Err(failure) => return (String::new(), Some(failure)),
    };
    let mut out = Vec::new();
    while let Some(bytes) = raw.next().await {
        match bytes {
            Ok(bytes) => out.extend_from_slice(&bytes),
            Err(failure) => {
                assert!(raw.next().await.is_none(), "nothing follows a failure");
                return (String::from_utf8(out).expect("text"), Some(failure));
            }
        }
    }
    (String::from_utf8(out).expect("text"), None)
}
