//! Servers to be started, played by the test's own binary.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use octet_config::{PortChoice, Process, ProcessFilters, ProcessSettings, Secret, Span};
use octet_process::{Options, Patience, Processes};

/// A server as a test wants it.
pub struct Server {
    id: String,
    mode: String,
    ready_ms: u64,
    is_deaf: bool,
    /// The file in which it records its starts.
    pub dir: tempfile::TempDir,
}

impl Server {
    pub fn new(id: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { id: id.into(), mode: "plain".into(), ready_ms: 0, is_deaf: false, dir }
    }

    /// `plain`; `family`: starts a process of its own; `fail`: ends at once, with a word.
    pub fn mode(mut self, mode: &str) -> Self {
        self.mode = mode.into();
        self
    }

    pub fn ready_after(mut self, ms: u64) -> Self {
        self.ready_ms = ms;
        self
    }

    /// Ignores SIGTERM.
    pub fn deaf(mut self) -> Self {
        self.is_deaf = true;
        self
    }

    pub fn starts(&self) -> usize {
        std::fs::read_to_string(self.dir.path().join("starts")).map_or(0, |s| s.lines().count())
    }

    pub fn entry(&self) -> Process {
        let exe = std::env::current_exe().unwrap().to_str().unwrap().to_string();
        let mut cmd: Vec<String> = Vec::new();
        if self.is_deaf {
            cmd.extend(["/bin/sh", "-c", "trap '' TERM; exec \"$0\" \"$@\""].map(String::from));
        }
        // The port looks to the test's harness like one more test to run.
        cmd.extend([
            exe,
            "--exact".into(),
            "process_servers::child".into(),
            "--nocapture".into(),
            "${PORT}".into(),
        ]);
        let starts = self.dir.path().join("starts");
        let variable = |name: &str, value: &str| (name.to_string(), Secret::new(value).unwrap());
        Process {
            id: self.id.clone(),
            name: None,
            description: None,
            cmd,
            cmd_stop: None,
            env: vec![
                variable("OCTET_TEST_SERVER", &format!("{} {} {}", self.id, self.mode, self.ready_ms)),
                variable("OCTET_TEST_STARTS", starts.to_str().unwrap()),
            ],
            proxy: "http://127.0.0.1:${PORT}".into(),
            port: PortChoice::Chosen,
            aliases: vec![],
            check_endpoint: Some("/health".into()),
            ttl: None,
            unload_timeout: Duration::from_secs(2),
            use_model_name: None,
            filters: ProcessFilters::default(),
            concurrency_limit: None,
            unlisted: false,
            metadata: serde_json::Map::new(),
            span: Span { file: "octet.yaml".into(), line: 1, column: 1 },
        }
    }
}

/// Ports from a place of its own for each test's process, so that tests that run at the same time rarely meet. All are below those
/// that systems give away (32768 and more).
pub fn settings() -> ProcessSettings {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = (std::process::id() % 120) as u16 * 100 + NEXT.fetch_add(5, Ordering::Relaxed) % 100;
    ProcessSettings {
        health_check_timeout: Duration::from_secs(60),
        start_port: 20_000 + own,
        preload: vec![],
        groups: vec![],
    }
}

/// Short turns.
pub fn fast() -> Options {
    let ms = Duration::from_millis;
    let patience = Patience {
        turn_loads: 1,
        keep_place: Duration::ZERO,
        turn_min: ms(200),
        turn_max: ms(400),
        pause: ms(50),
        backoff_min: ms(1000),
        backoff_max: ms(4000),
    };
    Options { patience, ..Options::default() }
}

pub fn processes(entries: Vec<Process>) -> Processes {
    Processes::with(entries, &settings(), fast()).unwrap()
}

/// Plays a server, if this process was started to.
pub fn serves_if_enabled() {
    let Ok(arguments) = std::env::var("OCTET_TEST_SERVER") else { return };
    let words: Vec<&str> = arguments.split(' ').collect();
    let (id, mode, ready_ms) = (words[0].to_string(), words[1], words[2].parse().unwrap());
    let starts = std::env::var("OCTET_TEST_STARTS").unwrap();
    // A test that does not count starts has let go of the folder.
    if let Ok(mut note) = std::fs::OpenOptions::new().append(true).create(true).open(starts) {
        writeln!(note, "{}", std::process::id()).unwrap();
    }
    if mode == "fail" {
        std::io::stderr().write_all(b"loading\nout of memory: buy more\n").unwrap();
        std::process::exit(3);
    }
    let mut pids = std::process::id().to_string();
    if mode == "family" {
        // It outlives its parent unless the whole group is stopped.
        #[allow(clippy::zombie_processes)]
        let relative = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        pids += &format!(" {}", relative.id());
    }
    let port: u16 = std::env::args().filter_map(|a| a.parse().ok()).next_back().expect("a port");
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let ready_at = Instant::now() + Duration::from_millis(ready_ms);
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut request = [0; 2048];
        let n = stream.read(&mut request).unwrap_or(0);
        let path = String::from_utf8_lossy(&request[..n]).split(' ').nth(1).unwrap_or("").to_string();
        let (status, body) = match path.as_str() {
            "/health" if Instant::now() < ready_at => ("503 Service Unavailable", "loading".into()),
            "/health" => ("200 OK", "ok".into()),
            "/crash" => std::process::exit(9),
            "/pids" => ("200 OK", pids.clone()),
            _ => ("200 OK", id.clone()),
        };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let _ = stream.write_all(answer.as_bytes()); // the client may have disconnected
    }
}

/// The body of an answer.
pub fn get(base_url: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(base_url.strip_prefix("http://").unwrap())?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_string());
    body.ok_or_else(|| std::io::Error::other("no answer"))
}

pub fn pids(text: &str) -> Vec<u32> {
    text.split_whitespace().map_while(|p| p.parse().ok()).collect()
}

pub fn pid_of(base_url: &str) -> u32 {
    pids(&get(base_url, "/pids").unwrap())[0]
}

/// Whether a process runs. A zombie, which has ended but was not waited for, does not: where an orphan's new parent waits
/// for none, it stays for ever.
pub fn alive(pid: u32) -> bool {
    if !std::path::Path::new("/proc/self/stat").exists() {
        return nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), None).is_ok();
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits until something is so.
pub async fn soon(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "it is never so");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
