//! A web page whose name resolves to this machine (DNS rebinding) may not use a server that needs no key: neither read nor write, whatever
//! the path.

use crate::common::{Fixture, chat, model};
use octet_serve::{Keys, Options};

const PATHS: [&str; 12] = [
    "/",
    "/v1/models",
    "/props",
    "/slots",
    "/metrics",
    "/metrics/history",
    "/experts",
    "/api/tags",
    "/api/ps",
    "/openapi.json",
    "/streams/abc",
    "/v1/responses/abc",
];

async fn status(f: &Fixture, path: &str, host: &str) -> u16 {
    f.client.get(f.url(path)).header("host", host).send().await.unwrap().status().as_u16()
}

async fn asked(f: &Fixture, host: &str) -> u16 {
    f.request("/v1/chat/completions", &chat("Hi"))
        .header("host", host)
        .send()
        .await
        .unwrap()
        .status()
        .as_u16()
}

/// A closed frame of the page has the origin "null". It loads a library from the page's files, and may do nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn closed_frames_get_files_of_the_page_and_nothing_else() {
    let f = Fixture::with(Options::new(vec![model("tiny")])).await;
    for (path, wanted) in
        [("/page/mermaid.js", 200), ("/page/frame.html", 200), ("/v1/models", 403), ("/", 403)]
    {
        let answer = f.client.get(f.url(path)).header("origin", "null").send().await.unwrap();
        assert_eq!(answer.status(), wanted, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_opens_the_page_under_an_unknown_name_gets_a_sentence() {
    let f = Fixture::with(Options::new(vec![model("tiny")])).await;
    let request = f.client.get(f.url("/")).header("host", "box.lan:8080").header("accept", "text/html,*/*");
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 403);
    assert_eq!(answer.headers()["content-type"], "text/plain; charset=utf-8");
    let said = answer.text().await.unwrap();
    assert!(
        said.starts_with("Octet: ") && said.contains("box.lan") && said.contains("--allowed-host"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_names_are_refused_without_a_key() {
    let names = vec!["octet.example.com".to_string()];
    let f = Fixture::with(Options { host_names: names, ..Options::new(vec![model("tiny")]) }).await;
    let own = f.address.to_string();
    for path in PATHS {
        for host in ["evil.example.com", "evil.example.com:8080", "127.0.0.1.evil.example.com"] {
            assert_eq!(status(&f, path, host).await, 403, "{path} {host}");
        }
        for host in
            [&*own, "localhost:8080", "[::1]:8080", "octet.example.com:443", "box:8080", "192.168.1.9"]
        {
            assert_ne!(status(&f, path, host).await, 403, "{path} {host}");
        }
    }
    assert_eq!((asked(&f, "evil.example.com").await, asked(&f, "octet.example.com").await), (403, 200));
    let answer = f.client.get(f.url("/props")).header("host", "evil.example.com").send().await.unwrap();
    let text = answer.text().await.unwrap();
    assert!(text.contains("--allowed-host") && !text.contains("tiny"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_enough() {
    let keys = Keys::new(["sk-a".to_string()]);
    let f = Fixture::with(Options { keys, ..Options::new(vec![model("tiny")]) }).await;
    let get =
        |key: &str| f.client.get(f.url("/v1/models")).header("host", "a.example.com").bearer_auth(key).send();
    assert_eq!(get("sk-a").await.unwrap().status(), 200);
    assert_eq!(get("sk-b").await.unwrap().status(), 401);
}
