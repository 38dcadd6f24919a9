//! Images for providers: by their bytes, by address where the provider takes one, downloaded where it does not and that is allowed; and
//! addresses that a server must not be made to read.

use octet_api::ApiError;
use octet_api::core::{GenerateRequest, ImageSource};
use octet_api::openai::chat;
use octet_config::Provider;
use octet_upstream::{ImageFetcher, Settings};
use serde_json::{Value, json};

use crate::common::*;

/// The beginning of a PNG file: its type is found in it, and nothing here decodes it.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const PNG_BASE64: &str = "iVBORw0KGgo=";

/// A question about an image, with a tool's result that is one.
fn about(url: &str) -> GenerateRequest {
    let image = json!({"type": "image_url", "image_url": {"url": url}});
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let body = json!({"model": "ours", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "C"}, image]},
    ]});
    chat::parse(body.to_string().as_bytes()).unwrap()
}

fn data_url() -> String {
    format!("data:image/png;base64,{PNG_BASE64}")
}

/// An answer with these bytes.
fn file(kind: &str, bytes: &[u8]) -> Vec<Step> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", bytes.len());
    vec![send([head.as_bytes(), bytes].concat())]
}

fn redirect(to: &str) -> Vec<Step> {
    vec![send(format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n"))]
}

/// Reaches the servers of these tests.
fn local() -> ImageFetcher {
    ImageFetcher::reaching(|ip| ip.is_loopback())
}

/// What a provider is sent.
async fn sent(
    provider: Provider,
    request: &GenerateRequest,
    images: Option<ImageFetcher>,
) -> Result<Value, String> {
    let server = Server::start(vec![json_answer(&json!({}))]).await;
    let mut remote = remote(provider, &server.base);
    remote.model = "m".into();
    let endpoint = octet_upstream::Endpoint::new(Settings::new(remote)).unwrap();
    let result = client().downloading(images).generate(&endpoint, request).await;
    match server.seen().last() {
        Some(seen) => Ok(seen.json()),
        None => Err(result.expect_err("nothing was sent").message),
    }
}

/// What the providers document.
#[tokio::test]
async fn bytes_are_sent_in_each_providers_form() {
    let request = about(&data_url());
    let of = |provider| sent(provider, &request, None);
    let chat = of(Provider::OpenAi).await.unwrap();
    let image = json!({"type": "image_url", "image_url": {"url": data_url()}});
    assert_eq!(chat["messages"][0]["content"][1], image);
    assert_eq!(chat["messages"][2]["content"][1], image);
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG_BASE64}});
    let messages = of(Provider::Anthropic).await.unwrap();
    assert_eq!(messages["messages"][0]["content"][1], image);
    assert_eq!(messages["messages"][2]["content"][0]["content"][1], image);
    let gemini = of(Provider::Gemini).await.unwrap();
    let image = json!({"inlineData": {"mimeType": "image/png", "data": PNG_BASE64}});
    assert_eq!(gemini["contents"][0]["parts"][1], image);
    assert!(gemini["contents"][2]["parts"].as_array().unwrap().contains(&image), "{gemini}");
    let converse = of(Provider::Bedrock).await;
    if let Ok(converse) = converse {
        let image = json!({"image": {"format": "png", "source": {"bytes": PNG_BASE64}}});
        assert_eq!(converse["messages"][0]["content"][1], image);
        assert_eq!(converse["messages"][2]["content"][0]["toolResult"]["content"][1], image);
    }
    let ollama = of(Provider::Ollama).await.unwrap();
    assert_eq!(ollama["messages"][0]["images"], json!([PNG_BASE64]));
    assert_eq!(ollama["messages"][2]["images"], json!([PNG_BASE64]));
}

#[tokio::test]
async fn addresses_are_sent_on_downloaded_or_refused() {
    let files = Server::start(vec![file("image/png", PNG)]).await;
    let url = format!("{}/a.png", files.base);
    let request = about(&url);
    // These providers download images themselves.
    let chat = sent(Provider::OpenAi, &request, Some(local())).await.unwrap();
    assert_eq!(chat["messages"][0]["content"][1]["image_url"]["url"], url);
    let messages = sent(Provider::Anthropic, &request, Some(local())).await.unwrap();
    assert_eq!(messages["messages"][0]["content"][1]["source"], json!({"type": "url", "url": url}));
    assert_eq!(files.seen().len(), 0);
    // This one does not.
    let why = sent(Provider::Ollama, &request, None).await.unwrap_err();
    assert!(
        why.contains("'messages[0].content[1]' is the address of an image, and ollama does not download"),
        "{why}"
    );
    let ollama = sent(Provider::Ollama, &request, Some(local())).await.unwrap();
    assert_eq!(ollama["messages"][0]["images"], json!([PNG_BASE64]));
    assert_eq!(ollama["messages"][2]["images"], json!([PNG_BASE64]));
    assert_eq!(files.seen().len(), 2);
    let seen = files.last();
    assert_eq!((seen.header("authorization"), seen.header("accept")), (None, Some("image/*")));
    let why = sent(Provider::Ollama, &request, Some(ImageFetcher::default())).await.unwrap_err();
    assert!(why.contains("the image at 'messages[0].content[1]' cannot be downloaded"), "{why}");
    assert!(why.contains("127.0.0.1 is not at a public address"), "{why}");
    assert_eq!(files.seen().len(), 2, "nothing was connected to");
}

/// A question about a video with frames at these addresses.
fn about_frames(urls: &[&str]) -> GenerateRequest {
    let video = json!({"type": "video", "video": urls, "fps": 1});
    let body = json!({"model": "ours", "messages": [{"role": "user", "content": [video]}]});
    chat::parse(body.to_string().as_bytes()).unwrap()
}

#[tokio::test]
async fn frames_of_a_video_are_refused_where_a_request_is_translated() {
    let url = data_url();
    let request = about_frames(&[&url, &url]);
    for provider in [Provider::OpenAi, Provider::Anthropic, Provider::Gemini, Provider::Ollama] {
        let why = sent(provider, &request, Some(local())).await.unwrap_err();
        assert!(
            why.contains("'messages[0].content[0].video[0]' is a frame of a video")
                && why.contains("has no form: send frames as images"),
            "{provider:?}: {why}"
        );
    }
}

#[tokio::test]
async fn a_frame_that_is_no_image_is_not_passed_on() {
    let image = Server::start(vec![file("image/png", PNG)]).await;
    let document = Server::start(vec![file("application/pdf", b"%PDF-1.7")]).await;
    let mut request = about_frames(&[&image.base, &image.base]);
    local().download(&mut request).await.unwrap();
    assert!(request.images().all(|frame| matches!(frame.source, ImageSource::Base64 { .. })));
    // As an image it is taken for a document.
    local().download(&mut about(&document.base)).await.unwrap();
    let mut request = about_frames(&[&image.base, &document.base]);
    let error = local().download(&mut request).await.unwrap_err();
    assert_eq!(error.param.as_deref(), Some("messages[0].content[0].video[1]"));
    assert!(error.message.contains("it is no image, as frames of a video are"), "{error}");
}

async fn download(fetcher: &ImageFetcher, url: &str) -> Result<ImageSource, ApiError> {
    let mut request = about(url);
    fetcher.download(&mut request).await?;
    let source = request.images().next().map(|image| image.source.clone());
    Ok(source.expect("an image"))
}

async fn refusal(fetcher: &ImageFetcher, url: &str) -> String {
    let error = download(fetcher, url).await.unwrap_err();
    assert_eq!(error.param.as_deref(), Some("messages[0].content[1]"));
    error.message
}

/// Addresses of this machine, of its network and of clouds' metadata, written in all ways.
#[tokio::test]
async fn only_public_addresses_are_reached() {
    let public = ImageFetcher::default();
    let server = Server::start(vec![file("image/png", PNG)]).await;
    let port = server.base.rsplit(':').next().unwrap();
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0.0.0.0",
    ] {
        let why = refusal(&public, &format!("http://{host}:{port}/a.png")).await;
        // Names may also not be found at all.
        assert!(why.contains("is not at a public address") || why.contains("no connection"), "{host}: {why}");
    }
    for url in
        ["http://169.254.169.254/latest/meta-data/", "https://10.0.0.7/a.png", "http://[fd00:ec2::254]/"]
    {
        assert!(refusal(&public, url).await.contains("is not at a public address"), "{url}");
    }
    for (url, why) in [
        ("file:///etc/passwd", "is not a URL"),
        ("ftp://example.com/a.png", "neither http nor https"),
        ("gopher://127.0.0.1/", "neither http nor https"),
        ("http://user:word@example.com/", "has a user name"),
        ("http://", "not a URL"),
        ("a.png", "neither http nor https"),
    ] {
        let said = refusal(&public, url).await;
        assert!(said.contains(why), "{url}: {said}");
    }
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn redirects_are_checked_like_addresses() {
    // The fetcher of this test reaches 127.0.0.1, but no other address of this machine.
    let fetcher = ImageFetcher::reaching(|ip| ip == std::net::Ipv4Addr::LOCALHOST);
    let target = Server::start(vec![file("image/png", PNG)]).await;
    let to = |url: &str| Server::start(vec![redirect(url)]);
    let good = to(&format!("{}/b.png", target.base)).await;
    assert!(download(&fetcher, &good.base).await.is_ok());
    let before = target.seen().len();
    let port = target.base.rsplit(':').next().unwrap().to_string();
    for (url, why) in [
        (format!("http://127.0.0.2:{port}/"), "is not at a public address"),
        (format!("http://[::1]:{port}/"), "is not at a public address"),
        ("file:///etc/passwd".into(), "redirects to no valid address"),
        ("ftp://127.0.0.1/a.png".into(), "neither http nor https"),
        (format!("http://a:b@127.0.0.1:{port}/"), "has a user name"),
        ("//127.0.0.1/".into(), ""),
    ] {
        let why_not = refusal(&fetcher, &to(&url).await.base).await;
        assert!(why_not.contains(why), "{url}: {why_not}");
    }
    assert_eq!(target.seen().len(), before);
    let circle = Server::start(vec![redirect("/again")]).await;
    assert!(refusal(&fetcher, &circle.base).await.contains("more than 3 redirects"));
}

#[tokio::test]
async fn what_is_no_image_is_not_passed_on() {
    let fetcher = local();
    let get = |steps: Vec<Step>| async move {
        let server = Server::start(vec![steps]).await;
        refusal(&local(), &server.base).await
    };
    assert!(
        get(file("image/png", b"root:x:0:0:"))
            .await
            .contains("neither a PNG, JPEG, WebP or GIF image nor a PDF")
    );
    assert!(get(file("image/png", b"")).await.contains("neither a PNG"));
    assert!(get(vec![send(answer("404 Not Found", "text/plain", "no"))]).await.contains("answers 404"));
    let long = "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n";
    assert!(get(vec![send(long)]).await.contains("more than 20971520 bytes"));
    let endless = vec![
        send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
        Step::Forever(chunk(&"x".repeat(1 << 16))),
    ];
    assert!(get(endless).await.contains("more than 20971520 bytes"));
    let zipped = "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\u{8b}";
    assert!(get(vec![send(zipped), Step::Close]).await.contains("compressed"));
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc";
    assert!(get(vec![send(cut), Step::Close]).await.contains("broke off"));
    let many = Server::start(vec![file("image/png", PNG)]).await;
    let image = json!({"type": "image_url", "image_url": {"url": many.base}});
    let body = json!({"model": "m", "messages": [{"role": "user", "content": vec![image; 33]}]});
    let mut request = chat::parse(body.to_string().as_bytes()).unwrap();
    let error = fetcher.download(&mut request).await.unwrap_err();
    assert!(error.message.contains("at most 32 images are downloaded"), "{error}");
}
