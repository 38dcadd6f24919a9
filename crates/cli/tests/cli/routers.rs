//! `octet serve --config` as processes: several with one database, of which one is killed; a socket that another program holds; a log in JSON.
//! Models answer from the configuration (`mock_response`).

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::Place;

/// Timeout of every wait here, on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(120);
const MASTER: &str = "sk-master";

/// A router, which ends with the test.
struct Router {
    process: Child,
    port: u16,
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Router {
    /// Starts one, and waits until it answers.
    fn start(place: &Place, flags: &[&str]) -> Self {
        // Another program may have bound the free port meanwhile: the server then ends at once.
        (0..5).find_map(|_| Self::try_start(place, flags)).expect("it finds a port")
    }

    fn try_start(place: &Place, flags: &[&str]) -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = place.command(&["serve", "--config", "octet.yaml", "--port", &port.to_string()]);
        command.args(flags).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(place.path(&format!("log-{port}"))).unwrap());
        let mut router = Self { process: command.spawn().unwrap(), port };
        soon("it answers", || {
            let ended = router.process.try_wait().unwrap().is_some();
            ended || ask(port, "GET", "/health", "").is_some()
        });
        router.process.try_wait().unwrap().is_none().then_some(router)
    }

    /// Status and body of an answer to a request with the master key.
    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        ask(self.port, method, path, &body).expect("it answers")
    }

    fn log(&self, place: &Place) -> String {
        std::fs::read_to_string(place.path(&format!("log-{}", self.port))).unwrap()
    }

    fn terminate(&mut self) {
        let killed = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
        assert!(killed.unwrap().success());
        soon("it ends", || self.process.try_wait().unwrap().is_some());
    }
}

/// Waits for `what`.
#[track_caller]
fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIME_MAX, "not so after {TIME_MAX:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ask(port: u16, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    send(&mut stream, method, path, body).ok()?;
    answered(stream)
}

fn send(stream: &mut TcpStream, method: &str, path: &str, body: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(TIME_MAX))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {MASTER}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

fn answered(mut stream: TcpStream) -> Option<(u16, Value)> {
    let mut all = String::new();
    stream.read_to_string(&mut all).ok()?;
    let (head, body) = all.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).unwrap_or_else(|_| body.into())))
}

fn config(more: &str) -> String {
    format!(
        "model_list: [{{model_name: m, litellm_params: {{model: openai/x, api_key: k, mock_response: 'Hello, Bob'}}, model_info: {{id: one}}}}]
general_settings: {{master_key: {MASTER}{more}}}\n"
    )
}

#[test]
fn a_response_outlives_the_process_that_stored_it() {
    let Some(database) = octet_testkit::Postgres::start() else { return };
    let place = Place::new();
    place.write("octet.yaml", &config(&format!(", database_url: '{}'", database.url())));
    let (mut a, b) = (Router::start(&place, &[]), Router::start(&place, &[]));
    let (status, first) = a.ask("POST", "/v1/responses", &json!({"model": "m", "input": "I am Bob"}));
    assert_eq!(status, 200, "{first}");
    let id = first["id"].as_str().expect("an id").to_string();
    // Not a word to anybody.
    a.process.kill().unwrap();
    a.process.wait().unwrap();
    let stored = format!("/v1/responses/{id}");
    assert_eq!(b.ask("GET", &stored, &Value::Null), (200, first));
    let next = json!({"model": "m", "input": "Who am I?", "previous_response_id": id, "store": true});
    let (status, second) = b.ask("POST", "/v1/responses", &next);
    assert_eq!((status, &second["previous_response_id"]), (200, &json!(id)), "{second}");
    let items = format!("/v1/responses/{}/input_items?order=asc", second["id"].as_str().expect("an id"));
    let (_, items) = b.ask("GET", &items, &Value::Null);
    let texts: Vec<&str> =
        items["data"].as_array().unwrap().iter().filter_map(|i| i["content"][0]["text"].as_str()).collect();
    assert_eq!(texts, ["I am Bob", "Hello, Bob", "Who am I?"]);
    // Another one knows them too, and what is deleted is gone everywhere.
    let c = Router::start(&place, &[]);
    assert_eq!(c.ask("DELETE", &stored, &Value::Null).0, 200);
    for router in [&b, &c] {
        assert_eq!(router.ask("GET", &stored, &Value::Null).0, 404);
        let (status, refused) = router.ask("POST", "/v1/responses", &next);
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("previous_response_not_found")));
    }
    let not = json!({"model": "m", "input": "Hi", "store": false});
    let (_, unstored) = b.ask("POST", "/v1/responses", &not);
    let path = format!("/v1/responses/{}", unstored["id"].as_str().expect("an id"));
    assert_eq!(c.ask("GET", &path, &Value::Null).0, 404);
}

#[test]
fn a_log_in_json_has_a_request_in_one_line() {
    let place = Place::new();
    place.write("octet.yaml", &config(""));
    let mut router = Router::start(&place, &["--log-format", "json"]);
    let body = json!({"model": "m", "user": "u-1", "messages": [{"role": "user", "content": "a secret"}]});
    assert_eq!(router.ask("POST", "/v1/chat/completions", &body).0, 200);
    assert_eq!(
        router.ask("POST", "/v1/chat/completions", &json!({"model": "none", "messages": body["messages"]})).0,
        404
    );
    router.terminate();
    let log = router.log(&place);
    // What the program says of itself, such as that it has stopped, is no part of the log.
    let lines = log.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<Value> =
        lines.map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect();
    let requests: Vec<&Value> =
        lines.iter().filter(|l| l.to_string().contains("/v1/chat/completions")).collect();
    let field = |line: &Value, name: &str| line.get(name).or(line["fields"].get(name)).cloned();
    assert_eq!(requests.len(), 2, "{log}");
    for (name, value) in [
        ("status", json!(200)),
        ("method", json!("POST")),
        ("user", json!("u-1")),
        ("model", json!("x")),
        ("deployment", json!("one")),
    ] {
        assert_eq!(field(requests[0], name), Some(value), "{name}: {log}");
    }
    assert!(field(requests[0], "request_id").is_some_and(|id| id.as_str().unwrap().starts_with("req_")));
    assert_eq!(field(requests[1], "status"), Some(json!(404)));
    assert!(field(requests[1], "error").is_some(), "{log}");
    assert!(!log.contains("secret"), "{log}");
}

/// What systemd does: it listens, and gives the socket to the service.
fn inherits(place: &Place, socket: &TcpListener) -> Child {
    let octet = place.command(&["serve", "--config", "octet.yaml"]);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\" 3<&0 0</dev/null"]);
    shell.arg(octet.get_program()).args(octet.get_args()).current_dir(place.dir.path()).env_clear();
    shell.envs(octet.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.stdin(OwnedFd::from(socket.try_clone().unwrap())).stdout(Stdio::null());
    shell.stderr(File::create(place.path("log")).unwrap()).spawn().unwrap()
}

#[test]
fn a_socket_of_systemd_loses_no_connection_in_a_restart() {
    let place = Place::new();
    place.write("octet.yaml", &config(""));
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    for _ in 0..2 {
        // Nobody accepts it yet.
        let mut early = TcpStream::connect(("127.0.0.1", port)).expect("the socket listens");
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).to_string();
        send(&mut early, "POST", "/v1/chat/completions", &body).unwrap();
        let mut router = Router { process: inherits(&place, &socket), port };
        let (status, answer) = answered(early).unwrap_or_else(|| panic!("no answer: {}", log(&place)));
        assert_eq!((status, &answer["choices"][0]["message"]["content"]), (200, &json!("Hello, Bob")));
        router.terminate();
    }
}

fn log(place: &Place) -> String {
    std::fs::read_to_string(place.path("log")).unwrap_or_default()
}

/// What users copy passes: the configuration beside the compose file.
#[test]
fn the_configuration_of_the_compose_file_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/compose");
    let compose = std::fs::read_to_string(folder.join("router.yaml")).unwrap();
    assert!(compose.contains("./octet.yaml:/etc/octet/octet.yaml"));
    let place = Place::new();
    let config = place.write("octet.yaml", &std::fs::read_to_string(folder.join("octet.yaml")).unwrap());
    // The variables that the compose file sets; keys of providers may be missing.
    let variables = [
        ("OCTET_MASTER_KEY", "sk-master"),
        ("DATABASE_URL", "postgresql://octet:octet@postgres:5432/octet"),
        ("REDIS_URL", "redis://valkey:6379/0"),
        ("OPENAI_API_KEY", "sk-openai"),
    ];
    let checked = place.octet_with(&["config", "check", crate::common::str(&config)], "", &variables).ok();
    assert!(
        !checked.stderr.contains("not used") && !checked.stderr.contains("not shared"),
        "{}",
        checked.stderr
    );
}
