//! What is passed on unread: forms and JSON for models elsewhere, files and batches of an account.

use serde_json::json;

use crate::common::upstream::{Seen, Step, Upstream, answer, typed};
use crate::common::{Fixture, read};

fn config(base: &str, more: &str) -> String {
    format!(
        "model_list:
- {{model_name: ears, litellm_params: {{model: openai/whisper-1, api_base: '{base}/v1', api_key: sk-theirs}}}}
- {{model_name: other, litellm_params: {{model: anthropic/claude, api_base: '{base}', api_key: sk-theirs}}}}
{more}"
    )
}

fn form(parts: &[(&str, &str)]) -> String {
    let part = |(name, value): &(&str, &str)| {
        format!("--XX\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    parts.iter().map(part).collect::<String>() + "--XX--\r\n"
}

async fn send(f: &Fixture, path: &str, body: String) -> (u16, String, String) {
    let request = f.client.post(f.url(path)).header("content-type", "multipart/form-data; boundary=XX");
    let response = request.body(body).send().await.expect("an answer");
    let status = response.status().as_u16();
    let kind = response.headers().get("content-type").map(|v| v.to_str().expect("text").to_string());
    (status, kind.unwrap_or_default(), response.text().await.expect("text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_are_forwarded_with_the_provider_s_model() {
    let up = Upstream::start(|_| typed("text/vtt", "WEBVTT")).await;
    let f = Fixture::routed(&config(&up.base, "")).await;
    let audio = "RIFF".repeat(200_000);
    for parts in [[("model", "ears"), ("file", &audio)], [("file", &audio), ("model", "ears")]] {
        let (status, kind, text) = send(&f, "/v1/audio/transcriptions", form(&parts)).await;
        assert_eq!((status, kind.as_str(), text.as_str()), (200, "text/vtt", "WEBVTT"));
        let seen = up.last();
        assert_eq!(seen.path, "/v1/audio/transcriptions");
        let theirs = parts.map(|(name, value)| (name, if name == "model" { "whisper-1" } else { value }));
        assert!(seen.raw == form(&theirs).into_bytes(), "all else is as it was");
        assert!(seen.head.contains("authorization: Bearer sk-theirs"), "{}", seen.head);
        assert!(seen.head.contains("content-type: multipart/form-data; boundary=XX"), "{}", seen.head);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_body_is_not_sent_twice() {
    let up =
        Upstream::start(|_| answer("500 Internal Server Error", &json!({"error": {"message": "no"}}))).await;
    let more = "router_settings: {num_retries: 2, retry_after: 0, disable_cooldowns: true}\n";
    let f = Fixture::routed(&config(&up.base, more)).await;
    let path = "/v1/images/edits";
    let (status, ..) = send(&f, path, form(&[("model", "ears"), ("prompt", "a")])).await;
    assert_eq!((status, up.seen().len()), (502, 3), "a short form is all there");
    let long = "x".repeat(4 << 20);
    let (status, _, text) = send(&f, path, form(&[("model", "ears"), ("image", &long)])).await;
    assert_eq!((status, up.seen().len()), (502, 4), "a long one was sent on: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_is_forwarded_and_bytes_are_returned() {
    fn provider(seen: &Seen) -> Vec<Step> {
        match seen.path.as_str() {
            "/v1/audio/speech" => typed("audio/mpeg", "ID3\u{1}\u{2}"),
            _ => answer(
                "200 OK",
                &json!({"path": seen.path, "model": seen.body["model"], "usage": {"total_tokens": 3, "input_tokens": 3}}),
            ),
        }
    }
    let up = Upstream::start(provider).await;
    let f = Fixture::routed(&config(&up.base, "")).await;
    let speech = json!({"model": "ears", "input": "Hello", "voice": "alloy", "new_field": {"a": 1.0}});
    let response = f.send("/v1/audio/speech", &speech).await;
    assert_eq!(response.headers()["content-type"], "audio/mpeg");
    assert_eq!(response.headers()["x-octet-model"], "whisper-1");
    assert_eq!(response.bytes().await.expect("bytes").as_ref(), b"ID3\x01\x02");
    assert_eq!(up.last().body["new_field"], json!({"a": 1.0}));
    for path in ["/v1/images/generations", "/v1/moderations", "/v1/rerank"] {
        let said =
            f.ok(path, &json!({"model": "ears", "input": "a", "query": "a", "documents": ["b"]})).await;
        assert_eq!((said["path"].as_str(), said["model"].as_str()), (Some(path), Some("whisper-1")));
    }
    assert_eq!(
        f.ok("/moderations", &json!({"model": "ears", "input": "a"})).await["path"],
        "/v1/moderations"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_cannot_be_forwarded_are_refused() {
    let up = Upstream::start(|_| answer("200 OK", &json!({}))).await;
    let f = Fixture::routed(&config(&up.base, "")).await;
    let path = "/v1/audio/transcriptions";
    for (body, status, expected) in [
        (form(&[("file", "a")]), 400, "'model' must be a non-empty string"),
        (form(&[("model", "ears"), ("model", "other")]), 400, "two fields 'model'"),
        (form(&[("model", "nobody")]), 404, "nobody"),
        (form(&[("model", "other")]), 400, "anthropic has no /audio/transcriptions"),
        ("nonsense".into(), 400, "boundary"),
        (form(&[("file", &"x".repeat(40 << 20)), ("model", "ears")]), 413, "send it before the file"),
    ] {
        let (got, _, text) = send(&f, path, body).await;
        assert!(got == status && text.contains(expected), "{got} {text}");
    }
    let (status, said) = f.post("/v1/moderations", &json!({"input": "a"})).await;
    assert!(status == 400 && said.to_string().contains("'model' must be a non-empty string"), "{said}");
    assert_eq!(up.seen().len(), 0, "nobody was asked");
    let local = Fixture::start().await;
    for path in ["/v1/audio/speech", "/v1/files"] {
        let (status, said) = local.post(path, &json!({"model": "tiny", "input": "a"})).await;
        assert!(status == 404 && said.to_string().contains("start with --config"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_batches_belong_to_an_account() {
    let up = Upstream::start(|seen| answer("200 OK", &json!({"at": seen.head.lines().next()}))).await;
    let f = Fixture::routed(&config(&up.base, "")).await;
    let get = async |path: &str| read(f.client.get(f.url(path)).send().await.expect("an answer")).await;
    assert_eq!(get("/v1/files?limit=3").await.1["at"], "GET /v1/files?limit=3 HTTP/1.1");
    assert_eq!(get("/files/file-1/content").await.1["at"], "GET /v1/files/file-1/content HTTP/1.1");
    let deleted = f.client.delete(f.url("/v1/files/file-1")).send().await.expect("an answer");
    assert_eq!(read(deleted).await.1["at"], "DELETE /v1/files/file-1 HTTP/1.1");
    let batch =
        json!({"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    assert_eq!(f.ok("/v1/batches?model=ears", &batch).await["at"], "POST /v1/batches HTTP/1.1");
    assert!(String::from_utf8_lossy(&up.last().raw).contains("completion_window"));
    let (status, said) = get("/v1/files?model=other").await;
    assert!(status == 400 && said.to_string().contains("has files and batches"), "{said}");
    assert_eq!(get("/v1/files/..%2fmodels").await.0, 404);

    let more = format!(
        "- {{model_name: more, litellm_params: {{model: openai/gpt, api_base: '{}/v1', api_key: sk-second}}}}\n",
        up.base
    );
    let two = Fixture::routed(&config(&up.base, &more)).await;
    let (status, said) = read(two.client.get(two.url("/v1/files")).send().await.expect("an answer")).await;
    assert!(status == 400 && said.to_string().contains("several accounts"), "{said}");
    let named = two.client.get(two.url("/v1/files")).header("x-litellm-model", "more").send().await;
    assert_eq!(named.expect("an answer").status(), 200);
    assert!(up.last().head.contains("Bearer sk-second"));
}
