//! `octet serve` as a process: signals, and a log that is not read.
#![cfg(unix)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::Place;

/// Timeout of every wait here, on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(120);

/// A server, which ends with the test.
pub struct Served {
    process: Child,
    pub port: u16,
}

impl Served {
    /// Serves `model.gguf`, and waits until it is loaded.
    fn start(place: &Place, log: impl Fn() -> Stdio) -> Self {
        Self::start_model(place, "model.gguf", log)
    }

    fn start_model(place: &Place, model: &str, log: impl Fn() -> Stdio) -> Self {
        Self::start_with(place, model, &[], log)
    }

    /// Serves a model with what its maker set: no flag but those for the machine.
    pub fn start_plain(place: &Place, model: &str) -> Self {
        let command = || place.command(&["serve", model, "-t", "1"]);
        let start = || Self::try_command(command(), free_port(), &[], Stdio::null());
        (0..5).find_map(|_| start()).expect("it finds a port")
    }

    fn start_with(place: &Place, model: &str, flags: &[&str], log: impl Fn() -> Stdio) -> Self {
        // Another program may have bound the free port meanwhile: the server then ends at once.
        (0..5).find_map(|_| Self::try_start(place, model, flags, log())).expect("it finds a port")
    }

    /// Serves what a router's file names; its models are loaded when they are asked for.
    pub fn start_config(place: &Place, file: &str) -> Self {
        let command = || place.command(&["serve", "--config", file, "-t", "1"]);
        let start = || Self::try_until("\"ready\"", command(), free_port(), &[], Stdio::null());
        (0..5).find_map(|_| start()).expect("it finds a port")
    }

    /// Serves a model by a command of one's own.
    #[cfg(target_os = "linux")]
    pub fn start_command(command: impl Fn() -> Command) -> Self {
        let start = || Self::try_command(command(), free_port(), &[], Stdio::null());
        (0..5).find_map(|_| start()).expect("it finds a port, and loads the model")
    }

    /// `None` if it ended.
    fn try_start(place: &Place, model: &str, flags: &[&str], log: Stdio) -> Option<Self> {
        let command = place.command(&["serve", model, "-t", "1", "-c", "16384"]);
        Self::try_command(command, free_port(), flags, log)
    }

    fn try_command(command: Command, port: u16, flags: &[&str], log: Stdio) -> Option<Self> {
        Self::try_until("\"loaded\":1.0", command, port, flags, log)
    }

    /// Waits until `/ready` answers with this.
    fn try_until(ready: &str, mut command: Command, port: u16, flags: &[&str], log: Stdio) -> Option<Self> {
        command
            .args(["--port", &port.to_string()])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let mut served = Self { process: command.spawn().unwrap(), port };
        soon("the model is loaded", || {
            let ended = served.process.try_wait().unwrap().is_some();
            ended || served.get("/ready").contains(ready)
        });
        served.process.try_wait().unwrap().is_none().then_some(served)
    }

    fn connect(&self, request: &str) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(TIME_MAX)).unwrap();
        stream.write_all(request.as_bytes()).ok()?;
        Some(stream)
    }

    /// The whole response; empty if it does not answer.
    fn ask(&self, request: &str) -> String {
        let mut out = String::new();
        if let Some(mut stream) = self.connect(request) {
            let _ = stream.read_to_string(&mut out);
        }
        out
    }

    pub fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
    }

    pub fn post(&self, path: &str, body: &str) -> String {
        self.ask(&post(path, body))
    }

    /// Answers that are being generated.
    fn running(&self) -> f64 {
        let metrics = self.get("/metrics");
        let line = metrics.lines().find(|l| l.starts_with("vllm:num_requests_running{"));
        line.and_then(|l| l.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }

    fn terminate(&self) {
        self.signal("-TERM");
    }

    fn signal(&self, name: &str) {
        let killed = Command::new("kill").args([name, &self.process.id().to_string()]).status();
        assert!(killed.unwrap().success());
    }

    /// Waits until it ends, and returns its exit code.
    fn ended(&mut self) -> Option<i32> {
        soon("it ends", || self.process.try_wait().unwrap().is_some());
        self.process.wait().unwrap().code()
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
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

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn completion(more: &str) -> String {
    post(
        "/v1/completions",
        &format!("{{\"model\": \"model\", \"prompt\": \"Hi\", \"ignore_eos\": true, {more}}}"),
    )
}

fn post(path: &str, body: &str) -> String {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}",
        body.len()
    );
    format!("{head}\r\nconnection: close\r\n\r\n{body}")
}

#[test]
fn ps_shows_what_is_loaded_and_stop_unloads_it() {
    let place = Place::with_model("qwen3", "q8_0");
    let served = Served::start(&place, Stdio::null);
    let url = format!("http://127.0.0.1:{}", served.port);
    let listed = || place.octet(&["ps", "--url", &url]).ok().stdout;
    assert!(
        listed().lines().any(|l| l.starts_with("model ") && l.trim_end().ends_with("16384")),
        "{}",
        listed()
    );
    place.octet(&["stop", "other", "--url", &url]).fails(1, &["other"]);
    assert!(!listed().contains("ON CARD"), "nothing is on a card: {}", listed());
    assert_eq!(place.octet(&["stop", "model", "--url", &url]).ok().stdout, "model: unloaded\n");
    assert_eq!(place.octet(&["stop", "model", "--url", &url]).ok().stdout, "model: is not loaded\n");
    soon("it is unloaded", || !listed().lines().any(|l| l.starts_with("model ")));
    // The next request loads it again.
    assert!(served.ask(&completion("\"max_tokens\": 2")).starts_with("HTTP/1.1 200"));
    assert!(listed().contains("\nmodel "));
}

#[test]
fn a_command_for_llama_server_works() {
    let flags = "-cb -tb 2 -ngl 99 -fa on --metrics --slots --no-webui --no-warmup --jinja --embeddings -to 600 \
                 -a first,second --mirostat 2 --mirostat-ent 4 --typical 0.9 --samplers top_k;temperature \
                 --reasoning-budget 0 --cors-origins http://a.example,http://b.example --log-disable --spec-type none";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let served = Served::start_with(&Place::with_model("llama", "f16"), "model.gguf", &flags, Stdio::null);
    let models = served.get("/v1/models");
    assert!(models.contains("\"id\":\"first\"") && models.contains("\"aliases\":[\"second\"]"), "{models}");
    let props = served.get("/props");
    for what in [
        "\"mirostat\":2",
        "\"mirostat_tau\":4.0",
        "\"typical_p\":0.9",
        "\"samplers\":[\"top_k\",\"temperature\"]",
    ] {
        assert!(props.contains(what), "no {what} in {props}");
    }
    let place = Place::new();
    let lora = place.command(&["serve", "fox", "--lora", "x.gguf"]).output().unwrap();
    let said = String::from_utf8_lossy(&lora.stderr);
    assert_eq!(lora.status.code(), Some(2), "{said}");
    assert!(said.contains("--lora is not supported: merge the adapter"), "{said}");
}

/// The reader of its log has closed the pipe before the first line.
#[test]
fn the_built_in_model_is_as_old_as_the_program() {
    let served = Served::start_model(&Place::new(), "fox", Stdio::null);
    let program = std::fs::metadata(env!("CARGO_BIN_EXE_octet")).unwrap().modified().unwrap();
    let seconds = program.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let models = served.get("/v1/models");
    assert!(models.contains(&format!("\"created\":{seconds},")), "{seconds}: {models}");
    let tags = served.get("/api/tags");
    assert!(tags.contains("modified_at") && !tags.contains("1970"), "{tags}");
}

#[test]
fn unread_logs_do_not_block() {
    let place = Place::with_model("qwen3", "q8_0");
    let mut served = Served::start(&place, || std::io::pipe().unwrap().1.into());
    for _ in 0..2 {
        let answer = served.ask(&completion("\"max_tokens\": 4"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    served.terminate();
    assert_eq!(served.ended(), Some(0));
}

/// One line for a refused request, with the reason; the request's content is not logged.
#[test]
fn the_log_says_why_a_request_was_refused() {
    let place = Place::with_model("qwen3", "q8_0");
    let log = place.path("log");
    let mut served = Served::start(&place, || std::fs::File::create(&log).unwrap().into());
    assert!(served.ask(&completion("\"temperature\": \"secret\"")).starts_with("HTTP/1.1 400"));
    assert!(
        served.ask(&completion("\"max_tokens\": 1").replace("\"model\":", "\"Model\":")).contains("HTTP/1.1")
    );
    assert!(served.get("/nowhere").starts_with("HTTP/1.1 404"));
    served.terminate();
    assert_eq!(served.ended(), Some(0));
    let log = std::fs::read_to_string(&log).unwrap();
    let line = |path: &str, status: u16| {
        let is = |l: &&str| l.contains(path) && l.contains(&format!(" {status} "));
        log.lines().find(is).unwrap_or_else(|| panic!("{path}: {log}"))
    };
    let refused = line("/v1/completions", 400);
    assert!(refused.contains("error=\"invalid_request_error (temperature)\""), "{refused}");
    assert!(!refused.contains("secret"), "{refused}");
    assert!(line("/nowhere", 404).contains("error=\"not_found_error\""), "{log}");
}

#[test]
fn an_interrupted_answer_ends_with_an_error() {
    let place = Place::with_model("qwen3", "q8_0");
    let log = place.path("log");
    let mut served = Served::start(&place, || std::fs::File::create(&log).unwrap().into());
    let streams: Vec<TcpStream> = (0..4)
        .map(|i| {
            // one request is not streamed
            let request = completion(&format!("\"max_tokens\": 16000, \"stream\": {}", i > 0));
            let mut stream = served.connect(&request).unwrap();
            if i > 0 {
                stream.read_exact(&mut [0; 300]).unwrap();
            }
            stream
        })
        .collect();
    // Only this shows that the request without streaming is running.
    soon("all four are being answered", || served.running() == 4.0);
    served.terminate();
    // Two signals at the same time count as one.
    soon("it drains", || std::fs::read_to_string(&log).unwrap().contains("press Ctrl-C again to quit now"));
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

/// A terminal that is closed ends the server as Ctrl-C does: what runs is finished. With `nohup` it goes on.
#[test]
fn a_hangup_without_a_configuration_drains() {
    let place = Place::with_model("qwen3", "q8_0");
    let log = place.path("log");
    // Whether or not the tests themselves run with `nohup`.
    let start = || {
        let octet = place.command(&["serve", "model.gguf", "-t", "1", "-c", "16384"]);
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP").arg(octet.get_program()).args(octet.get_args());
        command.current_dir(place.dir.path()).env_clear().env("HOME", place.dir.path());
        Served::try_command(command, free_port(), &[], std::fs::File::create(&log).unwrap().into())
    };
    let mut served = (0..5).find_map(|_| start()).expect("it finds a port");
    let mut stream = served.connect(&completion("\"max_tokens\": 200, \"stream\": true")).unwrap();
    stream.read_exact(&mut [0; 300]).unwrap();
    served.signal("-HUP");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]") && rest.ends_with("0\r\n\r\n"), "{rest}");
    assert_eq!(served.ended(), Some(0));
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("finishing open requests") || log.contains("stopping"), "{log}");
}

/// `octet serve` with few files, as a shell sets them; the hard limit, too.
fn limited(place: &Place, files: u32, log: impl Fn() -> Stdio) -> Served {
    let start = || {
        let octet = place.command(&[]);
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -n {files}; exec \"$0\" serve model.gguf -t 1 -c 1024 \"$@\""));
        shell
            .arg(octet.get_program())
            .current_dir(place.dir.path())
            .env_clear()
            .env("HOME", place.dir.path());
        Served::try_command(shell, free_port(), &[], log())
    };
    (0..5).find_map(|_| start()).expect("it finds a port")
}

#[test]
fn idle_connections_beyond_the_open_files_do_not_make_it_deaf() {
    let place = Place::with_model("qwen3", "q8_0");
    let log = place.path("log");
    let mut served = limited(&place, 160, || std::fs::File::create(&log).unwrap().into());
    let idle: Vec<TcpStream> =
        (0..220).map(|_| TcpStream::connect(("127.0.0.1", served.port)).unwrap()).collect();
    // Idle ones are closed for it, once they have been idle for a moment.
    soon("it answers", || served.ask(&completion("\"max_tokens\": 2")).starts_with("HTTP/1.1 200"));
    drop(idle);
    served.terminate();
    assert_eq!(served.ended(), Some(0));
    let log = std::fs::read_to_string(&log).unwrap();
    // A burst may come before those that are turned away are closed. Without files it would fail ten times a second.
    let failed = log.matches("could not be accepted").count();
    assert!(log.contains("160 files open") && failed < 20, "{log}");
}
