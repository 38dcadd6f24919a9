//! `octet serve` as a process: what it does with signals, and where nobody reads its log.
#![cfg(unix)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::Place;

/// Longest time for anything here, on a machine that has other work.
const TIME_MAX: Duration = Duration::from_secs(60);

/// A server, which ends with the test.
struct Served {
    process: Child,
    port: u16,
}

impl Served {
    /// Serves `model.gguf`.
    fn start(place: &Place, log: Stdio) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = place.command(&["serve", "model.gguf", "-t", "1", "-c", "16384"]);
        command.args(["--port", &port.to_string()]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Self { process: command.spawn().unwrap(), port }
    }

    fn connect(&self, request: &str) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(TIME_MAX)).unwrap();
        stream.write_all(request.as_bytes()).ok()?;
        Some(stream)
    }

    /// What it answers; nothing where it does not.
    fn ask(&self, request: &str) -> String {
        let mut out = String::new();
        if let Some(mut stream) = self.connect(request) {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = stream.read_to_string(&mut out);
        }
        out
    }

    fn until_loaded(&self) {
        let began = Instant::now();
        while !self
            .ask("GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .contains("\"loaded\":1.0")
        {
            assert!(began.elapsed() < TIME_MAX, "the model is loaded at last");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn terminate(&self) {
        let killed = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
        assert!(killed.unwrap().success());
    }

    /// Waits for its end; its exit code.
    fn ended(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(began.elapsed() < TIME_MAX, "it ends");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn completion(more: &str) -> String {
    let body = format!("{{\"model\": \"model\", \"prompt\": \"Hi\", \"ignore_eos\": true, {more}}}");
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Whoever read its log has gone, before it has written the first line.
#[test]
fn nobody_needs_to_read_the_log() {
    let place = Place::with_model("qwen3", "q8_0");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut served = Served::start(&place, writer.into());
    served.until_loaded();
    for _ in 0..2 {
        let answer = served.ask(&completion("\"max_tokens\": 4"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    served.terminate();
    assert_eq!(served.ended(), Some(0));
}

#[test]
fn whose_answer_is_broken_off_is_told_so() {
    let place = Place::with_model("qwen3", "q8_0");
    let mut served = Served::start(&place, std::fs::File::create(place.path("log")).unwrap().into());
    served.until_loaded();
    let streams: Vec<TcpStream> = (0..4)
        .map(|i| {
            // one waits for a whole answer
            let request = completion(&format!("\"max_tokens\": 16000, \"stream\": {}", i > 0));
            let mut stream = served.connect(&request).unwrap();
            if i > 0 {
                stream.read_exact(&mut [0; 300]).unwrap();
            }
            stream
        })
        .collect();
    served.terminate();
    std::thread::sleep(Duration::from_millis(300));
    served.terminate();
    for (i, mut stream) in streams.into_iter().enumerate() {
        let mut rest = String::new();
        let read = stream.read_to_string(&mut rest);
        assert!(read.is_ok() && rest.contains("is shutting down"), "{i}: {read:?} {rest}");
        let complete = if i == 0 { rest.starts_with("HTTP/1.1 503") } else { rest.ends_with("0\r\n\r\n") };
        assert!(complete, "{i}: {rest}");
    }
    assert_eq!(served.ended(), Some(0));
}
