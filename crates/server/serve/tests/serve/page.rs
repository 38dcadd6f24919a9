//! The page's files, and streams that outlive their connection.

use std::time::Duration;

use crate::common::{Fixture, chat, endless, read, roomy, with};
use octet_serve::{Keys, Options};
use reqwest::Response;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";
const NAME: &str = "x-octet-stream";
const STREAM: &str = "2b0a3f2e-1111-4222-8333-444455556666";

async fn get(f: &Fixture, path: &str, headers: &[(&str, &str)]) -> Response {
    let request = reqwest::Client::new().get(f.url(path));
    headers.iter().fold(request, |r, (name, value)| r.header(*name, *value)).send().await.expect("an answer")
}

fn header<'a>(r: &'a Response, name: &str) -> &'a str {
    r.headers().get(name).map_or("", |v| v.to_str().expect("text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_comes_with_its_policy_and_loads_without_a_key() {
    let page_connect = vec!["http://127.0.0.1:9000".into()];
    let keys = Keys::new(["secret".into()]);
    let f = Fixture::with(Options { keys, page_connect, ..Options::new(vec![roomy()]) }).await;
    let page = get(&f, "/", &[]).await;
    assert_eq!((page.status().as_u16(), header(&page, "content-type")), (200, "text/html; charset=utf-8"));
    let policy = header(&page, "content-security-policy").to_string();
    for part in [
        "default-src 'none'",
        "script-src 'self';",
        "style-src 'self';",
        "connect-src 'self' http://127.0.0.1:9000;",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.contains(part), "{part} in {policy}");
    }
    assert!(!policy.contains("-inline") && !policy.contains("-eval") && !policy.contains('{'), "{policy}");
    let script = get(&f, "/page/app.js", &[]).await;
    assert_eq!(header(&script, "content-type"), "text/javascript; charset=utf-8");
    assert_eq!(header(&script, "x-content-type-options"), "nosniff");
    let etag = header(&script, "etag").to_string();
    let plain = script.bytes().await.unwrap();
    let again = get(&f, "/page/app.js", &[("if-none-match", &etag)]).await;
    assert_eq!((again.status().as_u16(), again.bytes().await.unwrap().len()), (304, 0));
    let packed = get(&f, "/page/app.js", &[("accept-encoding", "gzip, br")]).await;
    assert_eq!((header(&packed, "content-encoding"), header(&packed, "vary")), ("gzip", "accept-encoding"));
    let packed = packed.bytes().await.unwrap();
    assert!(packed.starts_with(&[0x1f, 0x8b]) && packed.len() * 2 < plain.len());
    let frame = get(&f, "/page/frame.html", &[]).await;
    let policy = header(&frame, "content-security-policy").to_string();
    for part in
        ["sandbox allow-scripts;", "default-src 'none'", "form-action 'none'", "frame-ancestors 'self'"]
    {
        assert!(policy.contains(part), "{part} in {policy}");
    }
    assert!(!policy.contains("same-origin") && !policy.contains("connect-src"), "{policy}");
    assert_eq!(get(&f, "/page/none.js", &[]).await.status(), 404);
    assert_eq!(get(&f, "/page/../Cargo.toml", &[]).await.status(), 401);
}

/// Browsers ignore some headers where they do not trust the address, and complain about them.
#[tokio::test(flavor = "multi_thread")]
async fn the_opener_policy_is_sent_where_browsers_heed_it() {
    let keys = Keys::new(["secret".into()]);
    let f = Fixture::with(Options { keys, ..Options::new(vec![roomy()]) }).await;
    let policy = async |headers: &[(&str, &str)]| {
        let page = get(&f, "/", headers).await;
        assert_eq!(page.status(), 200);
        header(&page, "cross-origin-opener-policy").to_string()
    };
    assert_eq!(policy(&[]).await, "same-origin", "this machine");
    assert_eq!(policy(&[("host", "chat.lan")]).await, "");
    assert_eq!(policy(&[("host", "chat.lan"), ("x-forwarded-proto", "https")]).await, "same-origin");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_admin_page_browsers_are_told_what_to_do() {
    let f = Fixture::start().await;
    let program = get(&f, "/admin", &[]).await;
    assert_eq!((program.status().as_u16(), header(&program, "content-type")), (404, "application/json"));
    for (language, text) in [("en-US,en", "start the server with"), ("de,en;q=0.5", "den Server mit")] {
        let page =
            get(&f, "/admin", &[("accept", "text/html,*/*;q=0.8"), ("accept-language", language)]).await;
        assert_eq!(
            (page.status().as_u16(), header(&page, "content-type")),
            (404, "text/html; charset=utf-8")
        );
        assert!(header(&page, "content-security-policy").contains("default-src 'none'"));
        let page = page.text().await.expect("text");
        assert!(page.contains(text) && page.contains("general_settings.master_key"), "{page}");
    }
}

/// The events of a stream, without what differs: nothing, for it is the same stream.
async fn named(f: &Fixture, body: &serde_json::Value) -> Response {
    f.request(CHAT, body).header(NAME, STREAM).send().await.expect("an answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_stream_is_read_again_after_its_connection_broke() {
    let f = Fixture::with(Options::new(vec![roomy()])).await;
    let long = with(&chat("Hello"), json!({"max_tokens": 300, "ignore_eos": true, "stream": true}));
    let mut first = named(&f, &long).await;
    let begin = first.chunk().await.unwrap().expect("a first piece");
    drop(first);
    let path = format!("/streams/{STREAM}");
    let again = get(&f, &path, &[]).await;
    assert_eq!((again.status().as_u16(), header(&again, "content-type")), (200, "text/event-stream"));
    let all = again.bytes().await.unwrap();
    assert!(all.starts_with(&begin) && all.ends_with(b"data: [DONE]\n\n"));
    // It is over, and still there, for several.
    assert_eq!(get(&f, &path, &[]).await.bytes().await.unwrap(), all);
    let stats = f.app.models().loaded(0).expect("it is loaded").handle.stats();
    assert_eq!(stats.cancelled, 0);
    assert_eq!(get(&f, "/streams/0000000000000000", &[]).await.status(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_stream_is_stopped_by_name_and_keeps_what_came() {
    let f = Fixture::with(Options::new(vec![roomy()])).await;
    let mut running = named(&f, &endless()).await;
    let begin = running.chunk().await.unwrap().expect("a first piece");
    let taken = named(&f, &endless()).await;
    assert_eq!(taken.status(), 400);
    let path = format!("/streams/{STREAM}");
    let stopped = reqwest::Client::new().delete(f.url(&path)).send().await.unwrap();
    assert_eq!(read(stopped).await, (200, json!({"id": STREAM, "stopped": true})));
    let stats = || f.app.models().loaded(0).expect("it is loaded").handle.stats();
    f.until("nobody runs", || stats().running == 0 && f.app.models().busy() == 0).await;
    let kept = tokio::time::timeout(Duration::from_secs(60), get(&f, &path, &[]).await.bytes()).await;
    assert!(kept.expect("it has ended").unwrap().starts_with(&begin));
    for name in ["short", "with a space and enough", "../../../../../../etc"] {
        let refused = f.request(CHAT, &endless()).header(NAME, name).send().await.unwrap();
        assert_eq!(refused.status(), 400, "{name}");
    }
    // What is no stream is not kept.
    let whole = named(&f, &with(&chat("x"), json!({"max_tokens": 2}))).await;
    assert_eq!(whole.status(), 200);
}

/// An item of the page's store.
fn item(kind: &str, id: &str, chat: &str, text: Option<&str>) -> serde_json::Value {
    let value = text.map(|text| json!({"id": id, "text": text, "picks": {"": "x"}}));
    json!({"kind": kind, "id": id, "chat": chat, "value": value})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_conversations_are_kept_by_key() {
    let folder = tempfile::tempdir().unwrap();
    let store = octet_conversations::Store::open(&folder.path().join("c.db")).unwrap();
    let keys = Keys::new(["ann".into(), "bob".into()]);
    let page_store = Some(std::sync::Arc::new(store));
    let f = Fixture::with(Options { keys, page_store, ..Options::new(vec![roomy()]) }).await;
    let post = async |key: &str, body: serde_json::Value| {
        let request = f.client.post(f.url("/page-store")).bearer_auth(key).json(&body);
        read(request.send().await.unwrap()).await
    };
    let list = async |key: &str, since: i64| {
        let request = f.client.get(f.url(&format!("/page-store?since={since}"))).bearer_auth(key);
        read(request.send().await.unwrap()).await.1
    };
    let items = [item("chat", "c", "c", Some("a")), item("message", "m", "c", Some("b \"c\""))];
    let (status, put) = post("ann", json!({"items": items})).await;
    assert_eq!(status, 200, "{put}");
    let all = list("ann", 0).await;
    assert_eq!((&all["kept"], &all["more"], &all["items"]), (&json!(true), &json!(false), &json!(items)));
    assert_eq!(list("bob", 0).await["items"], json!([]));
    assert_ne!(list("bob", 0).await["user"], all["user"]);
    assert_eq!(list("ann", put["seq"].as_i64().unwrap()).await["items"], json!([]));
    post("ann", json!({"items": [item("chat", "c", "c", None)]})).await;
    // What a page still has of one user is not taken for the next.
    assert_eq!(post("bob", json!({"user": all["user"], "items": items})).await.0, 400);
    assert_eq!(list("bob", 0).await["items"], json!([]));
    assert_eq!(post("ann", json!({"user": all["user"], "items": []})).await.0, 200);
    let gone = list("ann", put["seq"].as_i64().unwrap()).await;
    assert!(gone["items"].as_array().unwrap().iter().all(|i| i["value"].is_null()), "{gone}");
    for wrong in [
        json!({"items": [item("x", "a", "a", None)]}),
        json!({"items": [item("chat", "a/b", "a/b", None)]}),
        json!([]),
    ] {
        assert_eq!(post("ann", wrong.clone()).await.0, 400, "{wrong}");
    }
    assert_eq!(post("eve", json!({"items": []})).await.0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_store_and_without_mcp_servers_the_page_is_told() {
    let f = Fixture::with(Options::new(vec![roomy()])).await;
    assert_eq!(f.get("/page-store").await, (200, json!({"kept": false})));
    assert_eq!(f.get("/mcp/tools").await, (200, json!({"servers": [], "tools": []})));
    let called = f.client.post(f.url("/mcp/call")).json(&json!({"name": "x"})).send().await.unwrap();
    assert_eq!(called.status(), 404);
}
