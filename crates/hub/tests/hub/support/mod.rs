//! A mock web server on 127.0.0.1 with scripted faults, and helpers of the tests of pulls.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use octet_hub::{Event, Hub, HubConfig, Progress};
use sha2::{Digest, Sha256};

/// A received request.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    /// Number of requests with this method and path so far, including this one.
    pub nth: usize,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// An answer.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Close the connection after this number of bytes of the body.
    pub cut: Option<usize>,
    /// Pause for this time in the middle of the body.
    pub stall: Option<Duration>,
    /// Send the body in chunks, without its length.
    pub chunked: bool,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }
    pub fn text(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
    pub fn cut(mut self, after: usize) -> Self {
        self.cut = Some(after);
        self
    }
    /// A file, or the part of it that the request asks for.
    pub fn file(request: &Request, bytes: &[u8], etag: &str) -> Self {
        let reply = Self::status(200).header("etag", etag).header("accept-ranges", "bytes");
        let len = bytes.len();
        let range = request.header("range").and_then(|r| r.strip_prefix("bytes="));
        let range = range.filter(|_| request.header("if-range").is_none_or(|tag| tag == etag));
        let Some((first, last)) = range.and_then(|r| r.split_once('-')) else {
            return Self { body: bytes.to_vec(), ..reply };
        };
        let (first, last) = match first.parse::<usize>() {
            Ok(first) => (first, last.parse::<usize>().map_or(len - 1, |l| l.min(len - 1))),
            Err(_) => (len.saturating_sub(last.parse().unwrap()), len - 1),
        };
        if first >= len {
            return Self::status(416).header("content-range", format!("bytes */{len}"));
        }
        let reply = reply.header("content-range", format!("bytes {first}-{last}/{len}"));
        Self { status: 206, body: bytes[first..=last].to_vec(), ..reply }
    }
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// A running server; it stops with the test's process.
pub struct Server {
    /// `http://127.0.0.1:port`.
    pub url: String,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (handler, log): (Arc<Handler>, _) = (Arc::new(handler), seen.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (handler, log) = (handler.clone(), log.clone());
                // A client that disconnects is not a failure of the server.
                std::thread::spawn(move || stream.and_then(|s| serve(s, &*handler, &log)));
            }
        });
        Self { url, seen }
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    pub fn count(&self, method: &str, part: &str) -> usize {
        self.seen().iter().filter(|r| r.method == method && r.path.contains(part)).count()
    }
}

fn serve(mut stream: TcpStream, handler: &Handler, log: &Mutex<Vec<Request>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::to_string);
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(()) };
    let mut headers = HashMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
    }
    let request = {
        let mut log = log.lock().unwrap();
        let nth = 1 + log.iter().filter(|r| r.method == method && r.path == path).count();
        log.push(Request { method, path, headers, nth });
        log.last().unwrap().clone()
    };
    let reply = handler(&request);
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &if reply.chunked {
        "transfer-encoding: chunked\r\n\r\n".to_string()
    } else {
        format!("content-length: {}\r\n\r\n", reply.body.len())
    };
    stream.write_all(head.as_bytes())?;
    if request.method == "HEAD" {
        return Ok(());
    }
    let body = &reply.body[..reply.cut.unwrap_or(reply.body.len())];
    let (first, second) = body.split_at(body.len() / 2);
    for half in [first, second] {
        if reply.chunked {
            stream.write_all(format!("{:x}\r\n", half.len()).as_bytes())?;
        }
        stream.write_all(half)?;
        if reply.chunked {
            stream.write_all(b"\r\n")?;
        }
        stream.flush()?;
        std::thread::sleep(reply.stall.unwrap_or_default());
    }
    if reply.chunked && reply.cut.is_none() {
        stream.write_all(b"0\r\n\r\n")?;
    }
    // Waits for the client, so that sent bytes are not lost with the connection.
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let _ = stream.read(&mut [0]);
    Ok(())
}

/// Settings with short pauses before retries, and with long timeouts, since the machine may be busy.
pub fn config(cache: &std::path::Path) -> HubConfig {
    let mut config = HubConfig::new(cache);
    config.patience.retry_delay = Duration::from_millis(5);
    config.patience.connect = Duration::from_secs(60);
    config.patience.stall = Duration::from_secs(60);
    config
}

/// A hub with `server` as Hugging Face.
pub fn hub(cache: &std::path::Path, server: &Server) -> Hub {
    let mut config = config(cache);
    config.endpoint = server.url.parse().unwrap();
    Hub::new(config)
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// `len` bytes that begin like a GGUF file and do not repeat.
pub fn gguf(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let mut bytes = b"GGUF".to_vec();
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        bytes.push(state as u8);
    }
    bytes
}

/// Records events as short lines.
#[derive(Default)]
pub struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    pub fn has(&self, part: &str) -> bool {
        self.0.lock().unwrap().iter().any(|l| l.contains(part))
    }
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Progress for Recorder {
    fn event(&self, event: Event<'_>) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
}

/// Everything below a folder except locks, as sorted relative paths.
pub fn tree(dir: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match path.is_dir() && !path.is_symlink() {
                true if entry.file_name() == ".locks" => {}
                true => folders.push(path),
                false => found.push(path.strip_prefix(dir).unwrap().to_str().unwrap().to_string()),
            }
        }
    }
    found.sort();
    found
}
