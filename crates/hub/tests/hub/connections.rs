//! Proxies, and reused connections.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Reply, Server, config, gguf};
use octet_hub::{Hub, Reference, Silent};

#[test]
fn a_proxy_forwards_http_and_tunnels_https() {
    let dir = tempfile::tempdir().unwrap();
    let proxy = Server::start(|r| match r.method.as_str() {
        "CONNECT" => Reply::status(403),
        _ => Reply::file(r, &gguf(1_000, 1), "\"v1\""),
    });
    let address = proxy.url.replace("http://", "http://us%3Aer:secret@");
    let mut config = config(dir.path());
    config.proxies.http = Some(address.clone());
    // Without a scheme, as some users write it.
    config.proxies.https = Some(address.replace("http://", ""));
    let hub = Hub::new(config);

    let plain = Reference::parse("http://models.invalid:8080/x.gguf?a=b").unwrap();
    let path = hub.pull(&plain, &Silent).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), gguf(1_000, 1));
    let asked = proxy.seen().pop().unwrap();
    assert_eq!(asked.path, "http://models.invalid:8080/x.gguf?a=b");
    assert_eq!(asked.header("host"), Some("models.invalid:8080"));
    assert_eq!(asked.header("proxy-authorization"), Some("Basic dXM6ZXI6c2VjcmV0"));
    assert_eq!(asked.header("authorization"), None);

    let secret = Reference::parse("https://models.invalid/x.gguf").unwrap();
    let e = hub.pull(&secret, &Silent).unwrap_err().to_string();
    assert!(e.contains("the proxy refused: unsuccessful"), "{e}");
    let asked = proxy.seen().pop().unwrap();
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("CONNECT", "models.invalid:443"));
    assert_eq!(asked.header("proxy-authorization"), Some("Basic dXM6ZXI6c2VjcmV0"));
}

#[test]
fn a_proxy_that_cannot_be_one_is_an_error_of_the_settings() {
    let dir = tempfile::tempdir().unwrap();
    for text in ["socks5://127.0.0.1:9", "http://", "ftp://a.invalid"] {
        let mut config = config(dir.path());
        config.proxies.http = Some(text.into());
        let model = Reference::parse("http://models.invalid/x.gguf").unwrap();
        let e = Hub::new(config).pull(&model, &Silent).unwrap_err().to_string();
        assert!(e.contains("expected http://host:port"), "{text}: {e}");
    }
}

#[test]
fn a_proxy_that_cannot_be_reached_is_named_and_not_the_host_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (proxy, said) in [
        (format!("http://{closed}"), "no connection to the proxy 127.0.0.1: "),
        ("http://proxy.invalid:80".into(), "the host proxy.invalid of the proxy cannot be resolved"),
    ] {
        for model in ["http://models.invalid/x.gguf", "https://models.invalid/x.gguf"] {
            let mut config = config(dir.path());
            (config.proxies.http, config.proxies.https) = (Some(proxy.clone()), Some(proxy.clone()));
            let model = Reference::parse(model).unwrap();
            let e = Hub::new(config).pull(&model, &Silent).unwrap_err().to_string();
            assert!(e.contains(said), "{proxy}: {e}");
        }
    }
}

#[test]
fn a_redirect_that_leaves_http_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server =
        Server::start(|_| Reply::status(302).header("location", "ftp://models.invalid/x.gguf?key=1"));
    let model = Reference::parse(&format!("{}/x.gguf", server.url)).unwrap();
    let e = Hub::new(config(dir.path())).pull(&model, &Silent).unwrap_err().to_string();
    let said = "redirects to ftp://models.invalid/x.gguf, which is neither http nor https; refused";
    assert!(e.contains(said), "{e}");
}

/// Answers `per_connection` requests on each connection, then closes it without notice. Counts the connections.
fn serve(per_connection: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x.gguf", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::SeqCst);
            let mut reader = BufReader::new(stream);
            for _ in 0..per_connection {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    if reader.read_line(&mut head).unwrap_or(0) == 0 {
                        break;
                    }
                }
                let body = gguf(100, 1);
                let whole = !head.contains("bytes=0-0");
                let (status, body) = if whole { (200, &body[..]) } else { (206, &body[..1]) };
                let range = if whole { "" } else { "content-range: bytes 0-0/100\r\n" };
                let length = body.len();
                let _ = write!(
                    reader.get_mut(),
                    "HTTP/1.1 {status} OK\r\netag: \"1\"\r\n{range}content-length: {length}\r\n\r\n"
                );
                let _ = reader.get_mut().write_all(body);
            }
        }
    });
    (url, connections)
}

/// Pulls a file from such a server, and returns the number of connections.
fn pulled_over(per_connection: usize) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let (url, connections) = serve(per_connection);
    let mut config = config(dir.path());
    config.patience.retries = 0;
    let path = Hub::new(config).pull(&Reference::parse(&url).unwrap(), &Silent).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), gguf(100, 1));
    connections.load(Ordering::SeqCst)
}

#[test]
fn connections_are_reused_and_closed_ones_replaced() {
    // A pull asks for one byte, then for the file.
    assert_eq!(pulled_over(1), 2);
    // On a busy machine the end of the first answer may be late, which costs one connection.
    assert!((0..5).any(|_| pulled_over(2) == 1));
}
