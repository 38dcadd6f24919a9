//! What is refused, and that its client gets to know: in its dialect, by name, whatever else it is doing.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::common::{Fixture, PATIENCE, chat, endless, model, read, roomy, tool, with};
use octet_serve::{Keys, ModelSpec, Options};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// Works with plain sockets, which may take its time.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("it does not panic")
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn head(path: &str, kind: &str, bytes: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {bytes}\r\n\r\n")
}

/// Whether something has come.
fn has_answer(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let came = matches!(stream.peek(&mut [0]), Ok(1));
    stream.set_nonblocking(false).unwrap();
    came
}

/// Status, whether the connection is to end, and body of what came.
fn answer(stream: &mut TcpStream) -> (u16, bool, Value) {
    let mut all = Vec::new();
    // Answers of connections that stay open are as long as they say.
    let mut piece = [0; 4096];
    loop {
        let n = stream.read(&mut piece).expect("an answer, and no reset");
        all.extend_from_slice(&piece[..n]);
        let text = String::from_utf8_lossy(&all);
        let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse().ok());
            length.is_some_and(|n: usize| body.len() >= n)
        });
        if n == 0 || whole {
            break;
        }
    }
    let text = String::from_utf8(all).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head["HTTP/1.1 ".len()..][..3].parse().unwrap();
    (status, head.contains("connection: close"), serde_json::from_str(body).unwrap_or(Value::Null))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_still_sending_receives_the_refusal() {
    // More than sockets take by themselves, and less than takes long.
    const BYTES: usize = 8 << 20;
    let open = Options { body_bytes_max: 1 << 20, ..Options::new(vec![model("tiny")]) };
    let closed = Options { keys: Keys::new(["secret".into()]), ..Options::new(vec![model("tiny")]) };
    let (open, closed) = (Fixture::with(open).await, Fixture::with(closed).await);
    let json = "application/json";
    for (to, path, kind, status, error) in [
        (open.address, CHAT, json, 413, "invalid_request_error"),
        (open.address, "/v1/messages", json, 413, "request_too_large"),
        (open.address, CHAT, "image/png", 415, "invalid_request_error"),
        (open.address, "/nowhere", json, 404, "not_found_error"),
        (closed.address, CHAT, json, 401, "authentication_error"),
    ] {
        let (got, close, body) = apart(move || {
            let mut stream = connect(to);
            stream.write_all(head(path, kind, BYTES).as_bytes()).unwrap();
            let piece = vec![b' '; 1 << 20];
            for _ in 0..BYTES / piece.len() {
                stream.write_all(&piece).expect("the server takes what it does not want");
            }
            answer(&mut stream)
        })
        .await;
        assert!(got == status && close, "{path}: {got} {body}");
        assert_eq!(body["error"]["type"], error, "{body}");
    }
    // One that neither sends nor goes is not waited for.
    let to = open.address;
    let took = apart(move || {
        let mut stream = connect(to);
        stream.write_all(head(CHAT, json, BYTES).as_bytes()).unwrap();
        assert_eq!(answer(&mut stream).0, 413);
        let since = Instant::now();
        while stream.write_all(b" ").is_ok() && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(100));
        }
        since.elapsed()
    })
    .await;
    assert!(took < PATIENCE / 2, "{took:?}");
    // Nothing of the kind where all was read.
    let mut stream = connect(open.address);
    let two = apart(move || {
        let request = head("/tokenize", json, 2) + "{}";
        [(); 2].map(|()| {
            stream.write_all(request.as_bytes()).unwrap();
            answer(&mut stream)
        })
    })
    .await;
    assert!(two.iter().all(|(status, close, _)| *status == 400 && !close), "{two:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_answers_503() {
    let f = Fixture::with(Options { connections_max: 2, ..Options::new(vec![roomy()]) }).await;
    let to = f.address;
    // Two that are answered for long do not make way.
    let mut taken = Vec::new();
    for _ in 0..2 {
        let mut busy = f.send(CHAT, &endless()).await;
        assert!(busy.chunk().await.unwrap().is_some());
        taken.push(busy);
    }
    let ask = move |request: String| {
        apart(move || {
            let mut stream = connect(to);
            stream.write_all(request.as_bytes()).unwrap();
            answer(&mut stream)
        })
    };
    let body = |path: &str| head(path, "application/json", 2) + "{}";
    let (status, close, error) = ask(body("/v1/messages")).await;
    assert!(status == 503 && close, "{error}");
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("overloaded_error")));
    let (status, _, error) = ask(body("/api/chat")).await;
    assert!(status == 503 && error["error"].as_str().unwrap().contains("--max-connections"), "{error}");
    let (status, _, error) = ask(body(CHAT)).await;
    assert!(status == 503 && error["error"]["message"].is_string(), "{error}");
    assert_eq!(ask("GET /health HTTP/1.1\r\nhost: x\r\n\r\n".into()).await.0, 200);
    let (status, _, _) = ask("GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".into()).await;
    assert_eq!(status, 200);
    drop(taken);
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if ask(body("/tokenize")).await.0 == 400 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("there is room again");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_bodies_do_not_block_other_clients() {
    // More than are served and refused together.
    const SLOW: usize = 4 + 64 + 60;
    let f = Fixture::with(Options { connections_max: 4, ..Options::new(vec![model("tiny")]) }).await;
    let to = f.address;
    let ask = move |request: String| {
        apart(move || {
            let mut stream = connect(to);
            stream.write_all(request.as_bytes()).ok()?;
            // While they are being accepted it may be one of those that are closed.
            let mut first = [0; 12];
            stream.read_exact(&mut first).ok()?;
            String::from_utf8_lossy(&first[9..]).parse::<u16>().ok()
        })
    };
    let until = async |request: String, status: u16| {
        let began = Instant::now();
        loop {
            let got = ask(request.clone()).await;
            if got == Some(status) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{request}: {got:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let half = head("/tokenize", "application/json", 1000) + "{";
    let mut slow: Vec<TcpStream> = (0..SLOW)
        .map(|_| {
            let mut stream = connect(to);
            let _ = stream.write_all(half.as_bytes()); // it may be closed by now
            stream
        })
        .collect();
    for path in ["/health", "/metrics"] {
        until(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"), 200).await;
    }
    // Whoever sends all of its request takes the place of one that does not.
    until(head("/tokenize", "application/json", 17) + r#"{"content": "hi"}"#, 200).await;
    // One that is closed to make room gets the reason.
    let (status, close, error) = apart(move || {
        let began = Instant::now();
        loop {
            for stream in &mut slow {
                if has_answer(stream) {
                    let mut start = [0; 12];
                    // Those that were closed without a word have nothing to read, or an error.
                    if stream.peek(&mut start).is_ok_and(|n| n == 12) {
                        return answer(stream);
                    }
                }
            }
            assert!(began.elapsed() < PATIENCE, "somebody is told");
            std::thread::sleep(Duration::from_millis(10));
        }
    })
    .await;
    assert!(status == 503 && close, "{status} {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_are_closed_for_new_ones() {
    let f = Fixture::with(Options { connections_max: 3, ..Options::new(vec![roomy()]) }).await;
    let to = f.address;
    let ask = |mut stream: TcpStream| {
        apart(move || {
            stream.write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            let (status, _, _) = answer(&mut stream);
            (status, stream)
        })
    };
    let closed = |mut stream: TcpStream| apart(move || matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
    // one that is answered all the time, and two that have nothing to do
    let mut busy = f.send(CHAT, &endless()).await;
    assert!(busy.chunk().await.unwrap().is_some());
    let (_, first) = ask(connect(to)).await;
    let second = connect(to);
    second.set_nonblocking(true).unwrap();
    // When one has been idle for long enough, a new one is served.
    let served = async || {
        let began = Instant::now();
        loop {
            match ask(connect(to)).await {
                (200, stream) => break stream,
                (status, _) => assert_eq!(status, 503),
            }
            assert!(began.elapsed() < PATIENCE, "one makes way");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let _third = served().await;
    assert!(closed(first).await, "it was idle for longest");
    assert!(
        second.peek(&mut [0]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock),
        "there was room"
    );
    let _fourth = served().await;
    second.set_nonblocking(false).unwrap();
    assert!(closed(second).await);
    assert!(busy.chunk().await.expect("nobody closed it").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn long_bodies_share_a_memory_budget() {
    const BYTES: usize = 1 << 20;
    let f = Fixture::with(Options { body_bytes_max: BYTES, ..Options::new(vec![model("tiny")]) }).await;
    let to = f.address;
    // Eight bodies of the greatest length fit, and a quarter of each of these is not counted: of more than ten one does not.
    let mut slow = apart(move || {
        let piece = vec![b' '; BYTES - 1];
        let begin = |_| {
            let mut stream = connect(to);
            stream.write_all(head("/v1/messages", "application/json", BYTES).as_bytes()).unwrap();
            // Whoever is refused may find the connection closed.
            let _ = stream.write_all(&piece);
            stream
        };
        (0..14).map(begin).collect::<Vec<_>>()
    })
    .await;
    // Which of them, depends on what is read first.
    let mut refused = None;
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        refused = slow.iter().position(has_answer);
        if refused.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut refused = slow.remove(refused.expect("one is refused"));
    let (status, close, error) = apart(move || answer(&mut refused)).await;
    assert!(status == 503 && close && error["error"]["type"] == "overloaded_error", "{status} {error}");
    assert!(error["error"]["message"].as_str().unwrap().contains("8388608"), "{error}");
    // Short ones come through all the time, and long ones again when there is room.
    f.ok("/tokenize", &json!({"content": "hello"})).await;
    slow.iter().for_each(|s| drop(s.shutdown(Shutdown::Both)));
    let long = json!({"content": "a ".repeat(BYTES / 3)});
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if f.post("/detokenize", &long).await.0 == 400 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("there is room again");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_before_the_body_is_read_have_the_dialect_s_shape() {
    let f = Fixture::start().await;
    for path in ["/v1/models/%ff", "/v1/responses/%ff", "/props?model=a&model=b"] {
        let (status, body) = f.get(path).await;
        assert!(status == 400 && body["error"]["type"] == "invalid_request_error", "{path}: {status} {body}");
    }
    let deleted = f.client.delete(f.url("/v1/responses/%ff")).send().await.unwrap();
    assert_eq!(read(deleted).await.1["error"]["type"], "invalid_request_error");
    let theirs = f.client.get(f.url("/v1/models/%ff")).header("anthropic-version", "2023-06-01");
    assert_eq!(read(theirs.send().await.unwrap()).await.1["type"], "error");
    // What they wrote is not given back at any length.
    let long = "x".repeat(50_000);
    for path in [format!("/{long}"), format!("/v1/models/{long}"), format!("/v1/responses/{long}")] {
        let (status, body) = f.get(&path).await;
        assert!(status == 404 && body.to_string().len() < 500, "{body}");
    }
    let (status, body) = f.post(CHAT, &with(&chat("x"), json!({"model": long}))).await;
    assert!(status == 404 && body.to_string().len() < 500, "{body}");
    let mut named = tool();
    named["function"]["name"] = long.into();
    let (status, body) =
        f.post(CHAT, &with(&chat("x"), json!({"tools": [named], "tool_choice": "required"}))).await;
    assert!(status == 400 && body.to_string().len() < 500, "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_fields_that_change_the_answer_are_refused() {
    let f = Fixture::start().await;
    let refused = async |fields: Value, param: &str, says: &str| {
        let (status, body) = f.post(CHAT, &with(&chat("Hello"), fields)).await;
        assert_eq!((status, &body["error"]["param"]), (400, &json!(param)), "{body}");
        assert!(body["error"]["message"].as_str().unwrap().contains(says), "{body}");
    };
    refused(json!({"min_tokens": 4_294_967_295u32, "max_tokens": null}), "min_tokens", "has room for").await;
    refused(json!({"min_tokens": 13}), "min_tokens", "at most the 12").await;
    refused(json!({"n": 5}), "n", "--parallel").await;
    refused(json!({"logit_bias": {"9999999": 1}}), "logit_bias", "vocabulary").await;
    refused(json!({"stop_token_ids": [9_999_999]}), "stop_token_ids", "vocabulary").await;
    let kwargs = |name: &str| json!({"chat_template_kwargs": {name: false}});
    refused(
        kwargs("enable_thinkng"),
        "chat_template_kwargs.enable_thinkng",
        "its variables: enable_thinking",
    )
    .await;
    refused(kwargs("namespace"), "chat_template_kwargs.namespace", "cannot be set").await;
    refused(kwargs("messages"), "chat_template_kwargs.messages", "cannot be set").await;
    for (path, body, param) in [
        (CHAT, r#"{"model": "tiny", "messages": [], "model": "other"}"#, json!("model")),
        ("/v1/responses", r#"{"model": "tiny", "input": "\ud83d"}"#, json!("input")),
        ("/tokenize", r#"["tiny", "hi", false, true, false]"#, Value::Null),
        ("/tokenize", r#"{"content": 1}"#, json!("content")),
        ("/detokenize", r#"{"tokens": [-1]}"#, json!("tokens[0]")),
        ("/apply-template", "[]", Value::Null),
    ] {
        let request = f.client.post(f.url(path)).header("content-type", "application/json").body(body);
        let (status, answer) = read(request.send().await.unwrap()).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &param), "{path} {body}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_that_only_tune_are_accepted_with_a_warning() {
    let fields =
        json!({"service_tier": "flex", "wings": 2, "best_of": 1, "verbosity": "medium", "max_tokens": 5000});
    let body = with(&chat("Hello"), fields);
    let f = Fixture::start().await;
    let answer = f.send(CHAT, &body).await;
    let expected = "'service_tier' is ignored: there is one service tier; 'wings' is ignored: unknown field";
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["x-octet-warning"]),
        (200, &expected.parse().unwrap())
    );
    let vectors = f.send("/api/embed", &json!({"model": "tiny", "input": "a", "wings": 2})).await;
    assert!(vectors.headers().contains_key("x-octet-warning"));
    let strict = Fixture::with(Options { strict: true, ..Options::new(vec![model("tiny")]) }).await;
    let (status, refused) = strict.post(CHAT, &body).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("service_tier")), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("--strict"), "{refused}");
    let (status, refused) =
        strict.post("/api/embed", &json!({"model": "tiny", "input": "a", "wings": 2})).await;
    assert!(status == 400, "{refused}");
    strict.ok(CHAT, &with(&chat("Hello"), json!({"best_of": 1}))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_web_pages_must_say_that_they_send_json() {
    let f = Fixture::start().await;
    let body = r#"{"content": "hello"}"#;
    for (kind, origin, status) in [
        (None, None, 200),
        (Some("application/x-www-form-urlencoded"), None, 200),
        (Some("text/plain;charset=UTF-8"), None, 200),
        (Some("image/png"), None, 415),
        (None, Some("http://localhost:3000"), 415),
        (Some("text/plain"), Some("http://localhost:3000"), 415),
        (Some("application/json"), Some("http://localhost:3000"), 200),
    ] {
        let mut request = f.client.post(f.url("/tokenize")).body(body);
        for (name, value) in [("content-type", kind), ("origin", origin)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let (got, answer) = read(request.send().await.unwrap()).await;
        assert_eq!(got, status, "{kind:?} {origin:?}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_model_needs_no_name_and_aliases_may_have_wildcards() {
    let spec = |name: &str, aliases: &[&str]| ModelSpec {
        aliases: aliases.iter().map(|a| a.to_string()).collect(),
        ..model(name)
    };
    let f = Fixture::with(Options::new(vec![spec("tiny", &["claude-*"])])).await;
    let hello = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4});
    for (path, name, told) in [
        (CHAT, None, "tiny"),
        // What huggingface_hub and Strands Agents send without a name.
        (CHAT, Some("dummy"), "dummy"),
        (CHAT, Some("default"), "default"),
        ("/v1/messages", Some("claude-haiku-4-5"), "claude-haiku-4-5"),
    ] {
        let mut body = hello.clone();
        if let Some(name) = name {
            body["model"] = name.into();
        }
        assert_eq!(f.ok(path, &body).await["model"], told);
    }
    assert_eq!(f.get("/v1/models").await.1["data"].as_array().unwrap().len(), 1);
    let f = Fixture::with(Options::new(vec![spec("a", &["claude-*"]), spec("b", &["claude-haiku-*"])])).await;
    let (status, body) = f.post(CHAT, &hello).await;
    assert_eq!((status, &body["error"]["param"]), (400, &json!("model")), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("a, b"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn schemas_beyond_a_grammar_are_refused_by_name() {
    let f = Fixture::start().await;
    let mut loose = tool();
    loose["function"]["parameters"]["properties"]["room"]["not"] = json!({"const": "hall"});
    let asked =
        json!({"tools": [loose], "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 200});
    let answer = f.send(CHAT, &with(&chat("Light!"), asked.clone())).await;
    assert_eq!(answer.status(), 200);
    let warning = answer.headers()["x-octet-warning"].to_str().unwrap();
    assert!(warning.contains("set_light") && warning.contains("not enforced"), "{warning}");
    let firm = with(&asked, json!({"tools": [tool()]}));
    let answer = f.send(CHAT, &with(&chat("Light!"), firm)).await;
    assert!(answer.status() == 200 && !answer.headers().contains_key("x-octet-warning"));
    let mut strict = asked;
    strict["tools"][0]["function"]["strict"] = json!(true);
    let (status, body) = f.post(CHAT, &with(&chat("Light!"), strict)).await;
    assert_eq!((status, &body["error"]["param"]), (400, &json!("tools")), "{body}");
}
