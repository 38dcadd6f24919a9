//! `octet bench --url` against mock endpoints, good and bad ones.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::Place;
use serde_json::{Value, json};

/// How an endpoint answers the n-th request, counted from 0 (the warm-up).
type Answer = fn(usize, &mut Reply) -> io::Result<()>;

/// An endpoint on its own port.
struct Mock {
    url: String,
    seen: Arc<Seen>,
}

/// What an endpoint received.
#[derive(Default)]
struct Seen {
    bodies: Mutex<Vec<Value>>,
    heads: Mutex<Vec<String>>,
    running: AtomicUsize,
    running_max: AtomicUsize,
}

impl Mock {
    fn new(answer: Answer) -> Self {
        Self::named("mock", Arc::default(), answer)
    }

    /// Writes its name to `log` with each request.
    fn named(name: &'static str, log: Arc<Mutex<Vec<&'static str>>>, answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let seen = Arc::new(Seen::default());
        let shared = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, log) = (shared.clone(), log.clone());
                // A client that disconnects ends its connection's thread.
                std::thread::spawn(move || serve(stream.unwrap(), &seen, name, &log, answer));
            }
        });
        Self { url, seen }
    }

    fn bodies(&self) -> Vec<Value> {
        self.seen.bodies.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: TcpStream,
    seen: &Seen,
    name: &'static str,
    log: &Mutex<Vec<&'static str>>,
    answer: Answer,
) -> io::Result<()> {
    stream.set_nodelay(true)?; // each piece is sent when it is written
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let length =
            head.lines().find_map(|l| l.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        seen.heads.lock().unwrap().push(head.clone());
        if head.starts_with("GET /v1/models ") {
            let list = r#"{"data":[{"id":"mock-1"},{"id":"mock-2"}]}"#;
            Reply { stream: &mut stream, seen: None }.whole("200 OK", "application/json", list)?;
            continue;
        }
        assert!(head.starts_with("POST /v1/chat/completions "), "{head}");
        let n = {
            let mut bodies = seen.bodies.lock().unwrap();
            bodies.push(serde_json::from_slice(&body).unwrap());
            bodies.len() - 1
        };
        log.lock().unwrap().push(name);
        let running = seen.running.fetch_add(1, Ordering::SeqCst) + 1;
        seen.running_max.fetch_max(running, Ordering::SeqCst);
        answer(n, &mut Reply { stream: &mut stream, seen: Some(seen) })?;
    }
}

/// The answer to one request.
struct Reply<'a> {
    stream: &'a mut TcpStream,
    /// All requests; this one counts as running.
    seen: Option<&'a Seen>,
}

impl Reply<'_> {
    /// Waits until this number of requests has run at once. If that never happens, the test that counts them fails.
    fn wait_for(&self, running: usize) {
        let began = Instant::now();
        let max = || self.seen.map_or(running, |s| s.running_max.load(Ordering::SeqCst));
        while max() < running && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(STEP);
        }
    }

    /// Call this before the last bytes are sent: the client may send another request immediately.
    fn is_over(&mut self) {
        if let Some(seen) = self.seen.take() {
            seen.running.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn whole(&mut self, status: &str, kind: &str, body: &str) -> io::Result<()> {
        self.is_over();
        let length = body.len();
        write!(
            self.stream,
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    }

    fn start(&mut self) -> io::Result<()> {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        self.stream.write_all(head.as_bytes())
    }

    fn event(&mut self, data: &str) -> io::Result<()> {
        // A single write, for a single packet.
        self.stream.write_all(format!("{:x}\r\ndata: {data}\n\n\r\n", data.len() + 8).as_bytes())
    }

    fn text(&mut self) -> io::Result<()> {
        self.event(r#"{"choices":[{"delta":{"content":"word "}}]}"#)
    }

    fn end(&mut self) -> io::Result<()> {
        self.is_over();
        self.event("[DONE]")?;
        self.stream.write_all(b"0\r\n\r\n")
    }

    fn break_off(&mut self) -> io::Result<()> {
        self.is_over();
        self.stream.shutdown(std::net::Shutdown::Both)
    }
}

const STEP: Duration = Duration::from_millis(4);

/// Five pieces, 4 ms before each, reported as ten tokens.
fn good(_: usize, reply: &mut Reply) -> io::Result<()> {
    reply.start()?;
    reply.event(r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#)?;
    for _ in 0..5 {
        std::thread::sleep(STEP);
        reply.text()?;
    }
    reply.event(r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#)?;
    reply.event(r#"{"choices":[],"usage":{"prompt_tokens":60,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":6}}}"#,
    )?;
    reply.end()
}

fn records(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn an_endpoint_is_measured() {
    let mock = Mock::new(|n, reply| {
        // The first three concurrent requests wait for each other.
        if (9..12).contains(&n) {
            reply.wait_for(3);
        }
        good(n, reply)
    });
    let args = ["bench", "--url", &mock.url, "-p", "64", "-n", "10", "--concurrency", "1,3", "-o", "jsonl"];
    let ran = Place::new().octet(&args).ok();
    let rows = records(&ran.stdout);
    assert_eq!(rows.len(), 2, "{}", ran.stdout);
    for (row, (concurrency, requests)) in rows.iter().zip([(1, 8), (3, 12)]) {
        assert_eq!(row["model"], "mock-1");
        assert_eq!((&row["concurrency"], &row["completed"]), (&json!(concurrency), &json!(requests)));
        assert_eq!((&row["failed"], &row["errors"]), (&json!(0), &json!([])));
        assert_eq!(
            (&row["output_tokens"], &row["output_tokens_counted_by"]),
            (&json!(10 * requests), &json!("usage"))
        );
        assert_eq!((&row["prompt_tokens_mean"], &row["cached_tokens_mean"]), (&json!(60.0), &json!(6.0)));
        let ms = |key: &str| row[key].as_f64().unwrap();
        // One sleep is before the first piece and four between it and the last, however late they are read. Ten tokens
        // are nine gaps.
        let last = ms("ttft_ms_mean") + ms("itl_ms_mean") * 4.0;
        assert!(ms("ttft_ms_median") >= 4.0 && ms("itl_ms_mean") > 0.0 && last >= 20.0, "{row}");
        assert!((ms("tpot_ms_mean") * 9.0 - ms("itl_ms_mean") * 4.0).abs() < 1e-6, "{row}");
        assert!(ms("ttft_ms_p99") >= ms("ttft_ms_median") && ms("latency_ms_mean") >= last - 1e-6, "{row}");
        let rate = 10.0 * f64::from(requests) / ms("duration_s");
        assert!((ms("output_tokens_per_second") - rate).abs() < 1e-6, "{row}");
    }
    assert_eq!(mock.seen.running_max.load(Ordering::SeqCst), 3, "exactly the requested concurrency");
    let bodies = mock.bodies();
    assert_eq!(bodies.len(), 1 + 8 + 12, "with the warm-up");
    let mut prompts: Vec<String> = bodies.iter().map(|b| b["messages"][0]["content"].to_string()).collect();
    prompts.sort();
    prompts.dedup_by_key(|p| p.split(' ').take(8).collect::<Vec<_>>().join(" "));
    assert_eq!(prompts.len(), bodies.len(), "no beginning is another's");
    assert_eq!(bodies[0]["stream_options"]["include_usage"], true);
}

#[test]
fn two_endpoints_take_turns() {
    let log = Arc::default();
    let (a, b) = (Mock::named("a", Arc::clone(&log), good), Mock::named("b", Arc::clone(&log), good));
    let args = [
        "bench",
        "--url",
        &a.url,
        "--url",
        &b.url,
        "-p",
        "64",
        "-n",
        "10",
        "--concurrency",
        "2",
        "-m",
        "x,y",
    ];
    let ran = Place::new().octet(&[&args[..], &["--requests", "12"]].concat()).ok();
    for words in
        ["second / first", "TTFT mean", "TPOT median", "ITL p99", "tokens/s", "model x", "model y", "12/12"]
    {
        assert!(ran.stdout.contains(words), "no '{words}' in:\n{}", ran.stdout);
    }
    let order = log.lock().unwrap().concat();
    assert_eq!(order, ["ab", "aaaabbbb", "bbbbaaaa", "aaaabbbb"].concat());
    assert_eq!((&a.bodies()[3]["model"], &b.bodies()[3]["model"]), (&json!("x"), &json!("y")));
    let ran = Place::new().octet(&[&args[..], &["--requests", "2", "-o", "json"]].concat()).ok();
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(json[1]["ratio_to_first"]["ttft_ms_mean"].as_f64().unwrap() > 0.0, "{json}");
}

#[test]
fn tokens_are_counted_if_the_provider_reports_none() {
    let mock = Mock::new(|_, reply| {
        reply.start()?;
        (0..5).try_for_each(|_| reply.text())?;
        reply.end()
    });
    let args = ["bench", "--url", &mock.url, "-p", "64", "-n", "5", "--concurrency", "1", "--requests", "2"];
    let ran = Place::new().octet(&args).ok();
    assert!(ran.stdout.contains("a piece of the stream counts as a token"), "{}", ran.stdout);
    assert!(ran.stdout.contains("answers of 5.0 tokens"), "{}", ran.stdout);
    let row = &records(&Place::new().octet(&[&args[..], &["-o", "jsonl"]].concat()).ok().stdout)[0];
    assert_eq!((&row["output_tokens"], &row["output_tokens_counted_by"]), (&json!(10), &json!("pieces")));
    assert_eq!(row["prompt_tokens_mean"], Value::Null);
}

#[test]
fn failures_are_counted_and_reported() {
    let mock = Mock::new(|n, reply| match n % 6 {
        1 => reply.whole(
            "429 Too Many Requests",
            "application/json",
            r#"{"error":{"message":"queue is full"}}"#,
        ),
        2 => {
            reply.start()?;
            reply.text()?;
            reply.break_off()
        }
        3 => reply.whole("200 OK", "text/html", "<!doctype html><title>Log in</title>"),
        4 => {
            reply.start()?;
            reply.text()?;
            reply.event(r#"{"error":{"message":"out of \u001b[31mmemory"}}"#)?;
            reply.break_off()
        }
        5 => reply.whole("500 Internal Server Error", "text/plain", "oh no"),
        _ => good(n, reply),
    });
    let args =
        ["bench", "--url", &mock.url, "-p", "64", "-n", "10", "--concurrency", "1", "--requests", "12"];
    let ran = Place::new().octet(&args).ok();
    for words in [
        "2/12",
        "2 requests failed: 429 Too Many Requests: queue is full",
        "2 requests failed: the stream broke",
        "the answer is not a stream but a web page: Log in",
        "the stream reports an error: out of \\u{1b}[31mmemory",
        "500 Internal Server Error: oh no",
    ] {
        assert!(ran.stdout.contains(words), "no '{words}' in:\n{}", ran.stdout);
    }
}

#[test]
fn bench_fails_if_no_request_succeeds() {
    let place = Place::new();
    // Nothing listens on port 9. A port that was free a moment ago may be in use by now.
    let url = "http://127.0.0.1:9/v1".to_string();
    place.octet(&["bench", "--url", &url]).fails(1, &[&url, "no connection", "--model"]);
    place.octet(&["bench", "--url", &url, "-m", "x"]).fails(1, &[&url, "no connection", "--no-warmup"]);
    let full = Mock::new(|_, reply| reply.whole("429 Too Many Requests", "text/html", "<html>busy</html>"));
    let args = ["bench", "--url", &full.url, "--concurrency", "2", "--requests", "3"];
    place.octet(&args).fails(1, &["the first request failed: 429 Too Many Requests: a web page"]);
    let ran = place.octet(&[&args[..], &["--no-warmup"]].concat());
    assert!(ran.stdout.contains("0/3") && ran.stdout.contains("3 requests failed: 429"), "{}", ran.stdout);
    ran.fails(1, &["no request succeeded: 429"]);
    let stuck = Mock::new(|_, reply| {
        reply.start()?;
        reply.text()?;
        // Until the client has had enough.
        reply.stream.read(&mut [0]).map(drop)
    });
    let args = ["bench", "--url", &stuck.url, "--request-timeout", "1"];
    place.octet(&args).fails(1, &["no end after 1 s (--request-timeout)"]);
}

#[test]
fn keys_are_sent_and_not_shown() {
    let mock = Mock::new(good);
    let place = Place::new();
    let args =
        ["bench", "--url", &mock.url, "--concurrency", "1", "--requests", "1", "--api-key-env", "MY_KEY"];
    place.octet(&args).fails(2, &["MY_KEY", "not set"]);
    let extra = ["--extra-body", r#"{"ignore_eos":true,"stream_options":null}"#];
    let ran = place.octet_with(&[&args[..], &extra].concat(), "", &[("MY_KEY", "sk-secret")]).ok();
    assert!(!ran.stdout.contains("sk-secret") && !ran.stderr.contains("sk-secret"));
    let heads = mock.seen.heads.lock().unwrap();
    assert!(heads.iter().all(|h| h.to_lowercase().contains("authorization: bearer sk-secret")), "{heads:?}");
    let body = &mock.bodies()[1];
    assert_eq!((&body["ignore_eos"], body.get("stream_options")), (&json!(true), None));
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let place = Place::new();
    let url = "http://127.0.0.1:9/v1";
    place.octet(&["bench", "--url", "localhost:8080"]).fails(2, &["--url", "http://HOST:PORT/v1"]);
    place.octet(&["bench", "--url", "http://me:key@a/v1"]).fails(2, &["--api-key-env"]);
    place.octet(&["bench", "--url", url, "model.gguf"]).fails(2, &["--url", "MODEL"]);
    place.octet(&["bench", "--url", url, "-n", "0"]).fails(2, &["-n"]);
    place.octet(&["bench", "--url", url, "-p", "64", "--shared-prefix", "65"]).fails(2, &["65", "-p"]);
    place.octet(&["bench", "--url", url, "--url", url, "--url", url]).fails(2, &["--url", "two"]);
    place.octet(&["bench", "model.gguf", "--requests", "3"]).fails(2, &["--requests", "--url"]);
    place.octet(&["bench", "--concurrency", "2"]).fails(2, &["--concurrency", "--url"]);
    place.octet(&["bench", "--url", url, "--extra-body", "[]"]).fails(2, &["JSON object"]);
}
