//! The router over real connections: what a provider does wrong on the wire, and what the client sees of it.

use std::sync::Arc;

use crate::common::{config, fallback, read, request, said};
use octet_api::ErrorKind;
use octet_api::core::Event;
use octet_config as config_of;
use octet_router::{Call, Piece, Remote, Router};
use octet_upstream::{Client, Endpoint, Limits, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Reads one request, headers and body.
async fn take_request(stream: &mut TcpStream) -> Option<()> {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let n = stream.read(&mut piece).await.ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&piece[..n]);
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|l| l.strip_prefix("content-length:"))?.trim().parse().ok()?;
        if body.len() >= length {
            return Some(());
        }
    }
}

/// A server that answers every request with these bytes, and closes. Gives its address.
async fn server(answer: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                if take_request(&mut stream).await.is_some() {
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let _ = stream.shutdown().await;
                }
            });
        }
    });
    format!("http://{address}/v1")
}

fn chunk(content: &str) -> String {
    let delta = serde_json::json!({"role": "assistant", "content": content});
    let choice = serde_json::json!({"index": 0, "delta": delta, "finish_reason": null});
    format!("data: {}\n\n", serde_json::json!({"id": "c", "created": 1, "model": "m", "choices": [choice]}))
}

fn end() -> String {
    let choice = serde_json::json!({"index": 0, "delta": {}, "finish_reason": "stop"});
    let last = serde_json::json!({"id": "c", "created": 1, "model": "m", "choices": [choice]});
    format!("data: {last}\n\ndata: [DONE]\n\n")
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

fn router(bad: &str, good: &str) -> Arc<Router<Remote>> {
    let mut c = config(&[("m", "bad"), ("spare", "good")]);
    c.router.num_retries = 0;
    c.router.fallbacks = vec![fallback("m", &["spare"])];
    for (d, base) in c.deployments.iter_mut().zip([bad, good]) {
        let config_of::Target::Remote(remote) = &mut d.target else { unreachable!() };
        remote.api_base = base.into();
    }
    let client = Client::new(Limits::default());
    let target = |d: &config_of::Deployment| match &d.target {
        config_of::Target::Remote(remote) => {
            let endpoint = Endpoint::new(Settings::new(remote.clone())).map_err(|e| e.to_string())?;
            Ok(Remote::new(client.clone(), endpoint))
        }
        _ => Err("only remote ones".into()),
    };
    Arc::new(Router::new(&c, 1, target).unwrap())
}

async fn ask(router: &Arc<Router<Remote>>) -> (Vec<Event>, octet_router::Route) {
    let mut reply = router.send(Call::new(request("m", true)));
    let mut events = Vec::new();
    while let Some(piece) = reply.next().await {
        let Piece::Event(event) = piece else { panic!("{piece:?}") };
        events.push(event);
        assert!(reply.is_remote() || matches!(events.last(), Some(Event::Error(_))), "{events:?}");
        while let Some(piece) = reply.try_next() {
            let Piece::Event(event) = piece else { panic!("{piece:?}") };
            events.push(event);
        }
    }
    (events, reply.route())
}

#[tokio::test]
async fn failures_before_the_answer_are_hidden_from_the_client() {
    let good = server(format!("{STREAM}{}{}", chunk("fine"), end())).await;
    // The port is reserved, and no process listens at it.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let closed = format!("http://{}/v1", taken.local_addr().unwrap());
    let html = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n<html></html>";
    let limited = "HTTP/1.1 429 No\r\nretry-after: 30\r\ncontent-length: 2\r\n\r\n{}";
    let failed = "HTTP/1.1 500 No\r\ncontent-length: 4\r\n\r\noops";
    for (bad, header) in [
        (closed, "m>m:bad!connect>"),
        (server(String::new()).await, "m>m:bad!connect>"),
        (server("HTTP/1.1 200 OK\r\ncontent-ty".into()).await, "m>m:bad!"),
        (server(html.into()).await, "m>m:bad!protocol>"),
        (server(limited.into()).await, "m>m:bad!rate_limited(429)>"),
        (server(failed.into()).await, "m>m:bad!server(500)>"),
        (server(STREAM.into()).await, "m>m:bad!protocol>"),
        (server(format!("{STREAM}{}", &chunk("never")[..40])).await, "m>m:bad!protocol>"),
        (server(format!("{STREAM}data: no JSON\n\n{}", chunk("never"))).await, "m>m:bad!protocol>"),
    ] {
        let router = router(&bad, &good);
        let (events, route) = ask(&router).await;
        assert_eq!(read(&events).unwrap(), "fine", "{header}");
        assert!(route.header().starts_with(header), "{header} {}", route.header());
        assert!(route.header().ends_with(">fallback=spare>spare:good"), "{}", route.header());
        assert!(router.status().iter().all(|s| s.in_flight == 0));
    }
}

#[tokio::test]
async fn interrupted_streams_end_with_an_error() {
    let good = server(format!("{STREAM}{}{}", chunk("fine"), end())).await;
    let whole = format!("{STREAM}{}{}", chunk("Hel"), chunk("lo"));
    for bad in
        [whole.clone(), format!("{whole}{}", &chunk("never")[..40]), format!("{whole}data: no JSON\n\n")]
    {
        let (events, _) = ask(&router(&server(bad).await, &good)).await;
        assert_eq!(said(&events), "Hello", "all that came, once");
        assert_eq!(read(&events).unwrap_err().kind, ErrorKind::Upstream);
    }
    // Complete is complete, whatever the connection does afterwards.
    let (events, _) = ask(&router(&server(format!("{whole}{}", end())).await, &good)).await;
    assert_eq!(read(&events).unwrap(), "Hello");
}
