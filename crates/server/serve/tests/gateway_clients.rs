//! The client libraries of OpenAI, Anthropic, Ollama and Gemini hold one conversation, with tools and thoughts, through the router with five
//! kinds of providers, streamed and whole: all hear the same, and each learns in its own way what went wrong. Fetches them from the
//! network, so that `OCTET_TEST_NETWORK` has to be set.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::Fixture;
use common::providers::{
    End, KINDS, Kind, Said, answers, asked, calls, dialect, limited, routes, sent, streams,
};
use common::python::{LIBRARIES, python, run};
use common::upstream::{Seen, Step, Upstream, answer, typed};
use serde_json::{Value, json};

/// The answer when the tool has said what it knows.
const RESULT: Said = Said {
    thoughts: &["Nine ", "it is."],
    text: &["It is 9 °C", " in Köln."],
    end: End::Stop,
    tokens: (20, 7),
};
/// The answer that may have one token.
const SHORT: Said = Said { thoughts: &[], text: &["It"], end: End::Length, tokens: (10, 1) };

/// What is wrong with a provider goes by the model's name.
const MODELS: [(&str, &str); 4] =
    [("", "theirs"), ("-limited", "limited"), ("-broken", "broken"), ("-ended", "ended")];

fn provider(seen: &Seen) -> Vec<Step> {
    match asked(seen) {
        "limited" => limited(seen),
        "broken" => half(seen, true),
        "ended" => half(seen, false),
        _ if most(seen) == Some(1) => answers(seen, &SHORT),
        _ if after_tool(seen) => answers(seen, &RESULT),
        _ => answers(seen, &calls()),
    }
}

/// An answer that breaks off after its first text: the connection goes, or it is as if that were all.
fn half(seen: &Seen, gone: bool) -> Vec<Step> {
    let mut steps = answers(seen, &RESULT);
    let holds = |step: &Step| matches!(step, Step::Send(text) if text.contains(RESULT.text[0]));
    let at = steps.iter().position(holds).expect("the text is said");
    if streams(seen) {
        steps.truncate(at + 1);
    } else {
        let Some(Step::Send(whole)) = steps.pop() else { panic!("an answer is one piece") };
        let cut = whole.find(RESULT.text[0]).expect("the text is said") + RESULT.text[0].len();
        if !gone {
            // A length that is right, for JSON that is not.
            let start = whole.find("\r\n\r\n").expect("a head") + 4;
            let Step::Send(other) = answer("200 OK", &Value::Null).remove(0) else { unreachable!() };
            let other = other.replace("content-length: 4", &format!("content-length: {}", cut - start));
            return vec![Step::Send(other.replace("null", &whole[start..cut]))];
        }
        steps.push(Step::Send(whole[..cut].into()));
    }
    if gone {
        steps.push(Step::Close);
    } else {
        steps.push(Step::Send("0\r\n\r\n".into()));
    }
    steps
}

/// The most tokens that an answer may have.
fn most(seen: &Seen) -> Option<u64> {
    let body = &seen.body;
    let places = [
        &body["max_tokens"],
        &body["max_completion_tokens"],
        &body["generationConfig"]["maxOutputTokens"],
        &body["options"]["num_predict"],
    ];
    places.into_iter().find_map(Value::as_u64)
}

/// Whether what a tool said is the last that was.
fn after_tool(seen: &Seen) -> bool {
    sent(seen).0.last().is_some_and(|last| last.starts_with("result: "))
}

/// Whether thoughts are asked for.
fn thinks(seen: &Seen) -> bool {
    let body = &seen.body;
    match dialect(seen).expect("a provider's path") {
        Kind::OpenAi => {
            body["reasoning_effort"].is_string() || body["chat_template_kwargs"]["enable_thinking"] == true
        }
        Kind::Anthropic => matches!(body["thinking"]["type"].as_str(), Some("enabled" | "adaptive")),
        Kind::Gemini => {
            // A client of its own sends the other spelling, which passes as it is.
            let config = &body["generationConfig"]["thinkingConfig"];
            config["includeThoughts"] == true || config["include_thoughts"] == true
        }
        Kind::Ollama => !matches!(body["think"], Value::Null | Value::Bool(false)),
    }
}

/// What a provider would refuse in a conversation with a call and its result.
fn check_call(who: &str, seen: &Seen) {
    let body = &seen.body;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let messages = list(&body["messages"]);
    let with = |role: &str| messages.iter().rev().find(|m| m["role"] == role).cloned().unwrap_or_default();
    let part = |message: Value, kind: &str| {
        list(&message["content"]).into_iter().find(|p| p["type"] == kind).unwrap_or_default()
    };
    match dialect(seen).expect("a provider's path") {
        Kind::OpenAi => {
            let id = &with("assistant")["tool_calls"][0]["id"];
            assert!(id.is_string() && with("tool")["tool_call_id"] == *id, "{who}: {body}");
        }
        Kind::Anthropic => {
            let id = &part(with("assistant"), "tool_use")["id"];
            assert!(
                id.is_string() && part(with("user"), "tool_result")["tool_use_id"] == *id,
                "{who}: {body}"
            );
            // Who thinks has to begin with what it thought, and prove it.
            let first = &with("assistant")["content"][0];
            let own = first["type"] == "thinking" && first["signature"] == "EqQB";
            assert!(first["type"] != "thinking" || own, "{who}: {body}");
            assert_eq!(thinks(seen), own, "{who}: {body}");
        }
        Kind::Gemini => {
            let results = list(&body["contents"]).into_iter().flat_map(|c| list(&c["parts"]));
            let names: Vec<Value> = results.map(|p| p["functionResponse"]["name"].clone()).collect();
            assert!(names.contains(&json!("weather")), "{who}: {body}");
        }
        Kind::Ollama => assert_eq!(with("tool")["tool_name"], "weather", "{who}: {body}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_libraries_get_the_same_from_all_kinds_of_providers() {
    let found = tokio::task::spawn_blocking(|| python("libraries", LIBRARIES)).await;
    let Some(python) = found.expect("pip ran") else { return };
    let up = Upstream::start(provider).await;
    // Everything fails many times in a row here.
    let settings = "router_settings: {num_retries: 0, disable_cooldowns: true}\n";
    let f = Fixture::routed(&(routes(&up.base, &MODELS) + settings)).await;
    let url = f.url("");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway_clients.py");
    let asking = tokio::task::spawn_blocking(move || {
        run(Command::new(python).arg(script).arg(url).args(KINDS.map(|k| k.0)));
    });
    asking.await.expect("the clients are content");

    // In order: by provider, client, and whether it streams, a call, its result, and a short one.
    let seen = up.seen();
    let (good, bad): (Vec<_>, Vec<_>) = seen.iter().partition(|s| asked(s) == "theirs");
    assert_eq!((good.len(), bad.len()), (5 * 4 * 2 * 3, 5 * 4 * 2 * 3), "each once");
    for (i, turns) in good.chunks(3).enumerate() {
        let (kind, client, stream) =
            (KINDS[i / 8].0, ["openai", "anthropic", "ollama", "gemini"][i / 2 % 4], i % 2 == 1);
        let who = format!("{client} to {kind}, stream {stream}");
        let said = ["system: Be brief.", "user: Weather in Köln?"];
        let then = ["assistant: Looking \"up\" 🙂.", "calls: weather {\"city\":\"Köln\"}", "result: 9 °C"];
        let all = [said.as_slice(), &then].concat();
        for (turn, lines) in turns.iter().zip([&said[..], &all, &said]) {
            let (heard, tools) = sent(turn);
            assert_eq!(heard, lines, "{who}: {}", turn.body);
            assert_eq!(tools, ["weather"], "{who}");
            assert_eq!(streams(turn), stream, "{who}");
        }
        assert!(thinks(turns[0]), "{who}: {}", turns[0].body);
        check_call(&who, turns[1]);
        assert_eq!(most(turns[2]), Some(1), "{who}: {}", turns[2].body);
    }
}

/// The images of a provider's request, each as its type and its data, from where this provider documents them.
fn images(seen: &Seen) -> Vec<(String, String)> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let messages = list(&seen.body["messages"]);
    let parts = messages.iter().flat_map(|m| list(&m["content"]));
    match dialect(seen).expect("a provider's path") {
        Kind::OpenAi => {
            let url = |part: Value| {
                let url = text(&part["image_url"]["url"]);
                let (kind, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
                Some((kind.into(), data.into()))
            };
            parts.filter_map(url).collect()
        }
        Kind::Anthropic => {
            let inner =
                |part: Value| if part["type"] == "tool_result" { list(&part["content"]) } else { vec![part] };
            let blocks = parts.flat_map(inner).filter(|block| block["type"] == "image");
            blocks.map(|b| (text(&b["source"]["media_type"]), text(&b["source"]["data"]))).collect()
        }
        Kind::Gemini => {
            let parts = list(&seen.body["contents"]).into_iter().flat_map(|c| list(&c["parts"]));
            // A client of its own sends the other spelling, which passes as it is, and images of tools within their result.
            let inner = |part: Value| {
                let mut all = list(&part["functionResponse"]["parts"]);
                all.push(part);
                all
            };
            let inline = |part: Value| {
                let data = part.get("inlineData").or(part.get("inline_data"))?.clone();
                Some((text(data.get("mimeType").or(data.get("mime_type"))?), text(&data["data"])))
            };
            parts.flat_map(inner).filter_map(inline).collect()
        }
        Kind::Ollama => messages
            .iter()
            .flat_map(|m| list(&m["images"]))
            .map(|data| ("image/png".into(), text(&data)))
            .collect(),
    }
}

/// Four libraries send two images, and one in a tool's result, to five kinds of providers.
#[tokio::test(flavor = "multi_thread")]
async fn client_libraries_send_images_to_all_kinds_of_providers() {
    let found = tokio::task::spawn_blocking(|| python("libraries", LIBRARIES)).await;
    let Some(python) = found.expect("pip ran") else { return };
    let up = Upstream::start(|seen| answers(seen, &RESULT)).await;
    let f = Fixture::routed(&(routes(&up.base, &MODELS[..1]) + "router_settings: {num_retries: 0}\n")).await;
    let url = f.url("");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway_images.py");
    let asking = tokio::task::spawn_blocking(move || {
        run(Command::new(python).arg(script).arg(url).args(KINDS.map(|k| k.0)));
    });
    asking.await.expect("the clients are content");
    let seen = up.seen();
    assert_eq!(seen.len(), 5 * 5, "each once");
    for (i, seen) in seen.iter().enumerate() {
        let who = format!(
            "{} to {}",
            ["chat", "responses", "anthropic", "ollama", "gemini"][i % 5],
            KINDS[i / 5].0
        );
        let images = images(seen);
        let kinds: Vec<&str> = images.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(kinds, ["image/png"; 3], "{who}: {}", seen.body);
        let data: Vec<&str> = images.iter().map(|(_, data)| data.as_str()).collect();
        assert_eq!(data, ["iVBORw0KGgo=", "iVBORw0KGgoA", "iVBORw0KGgo="], "{who}: {}", seen.body);
    }
}

/// Starts a provider that is written in Python, with a folder for its files; it ends when its input does. Gives its port, too.
fn provider_in_python(python: &Path, script: &str, folder: &Path) -> (Child, String) {
    let mut provider = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script))
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 can be run");
    let mut port = String::new();
    BufReader::new(provider.stdout.take().expect("its output")).read_line(&mut port).expect("a port");
    (provider, port)
}

/// Amazon's library checks the signature and the shape of what Bedrock is asked, Google's the statement that Vertex AI's token is asked with.
#[tokio::test(flavor = "multi_thread")]
async fn cloud_sdks_accept_the_requests() {
    let packages = ["botocore==1.44.5", "google-auth==2.43.0", "cryptography==46.0.3", "requests"];
    let found = tokio::task::spawn_blocking(move || python("clouds", &packages)).await;
    let Some(python) = found.expect("pip ran") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let (mut clouds, port) = provider_in_python(&python, "clouds.py", dir.path());
    let base = format!("http://127.0.0.1:{}", port.trim());
    let keys = "aws_access_key_id: AKIDEXAMPLE, aws_secret_access_key: wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY, \
                aws_region_name: eu-central-1";
    let (claude, nova) =
        ("bedrock/anthropic.claude-3-5-haiku-20241022-v1:0", "bedrock/eu.amazon.nova-lite-v1:0");
    let vertex = dir.path().join("vertex.json");
    let vertex = vertex.display();
    let f = Fixture::routed(&format!(
        "model_list:
- {{model_name: invoked, litellm_params: {{model: '{claude}', aws_bedrock_runtime_endpoint: '{base}', {keys}}}}}
- {{model_name: conversed, litellm_params: {{model: '{nova}', aws_bedrock_runtime_endpoint: '{base}', {keys}}}}}
- {{model_name: titan, litellm_params: {{model: 'bedrock/amazon.titan-embed-text-v2:0', aws_bedrock_runtime_endpoint: '{base}', {keys}}}}}
- {{model_name: gecko, litellm_params: {{model: vertex_ai/text-embedding-005, api_base: '{base}', vertex_credentials: '{vertex}'}}}}
- {{model_name: gemini, litellm_params: {{model: vertex_ai/gemini-2.5-flash, api_base: '{base}', vertex_credentials: '{vertex}'}}}}
router_settings: {{num_retries: 0}}
"
    ))
    .await;
    let function = json!({"name": "weather", "description": "Tells it.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}});
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Oslo\"}"}});
    let picture = "data:image/png;base64,iVBORw0KGgo=";
    for (model, stream, said) in [
        ("invoked", false, "Hello from Bedrock"),
        ("conversed", false, "Hello from Bedrock"),
        ("conversed", true, "Hello from Bedrock"),
        ("gemini", false, "Hello from Vertex"),
    ] {
        let body = json!({"model": model, "stream": stream, "max_tokens": 64, "temperature": 0.5, "stop": ["END"],
            "tools": [{"type": "function", "function": function}], "tool_choice": "required",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": picture}}]},
                {"role": "assistant", "content": null, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "9 °C"}]});
        if stream {
            let text = f.send("/v1/chat/completions", &body).await.text().await.expect("a stream");
            assert!(
                text.contains("Hello from ") && text.contains("\"Bedrock\"") && text.contains("[DONE]"),
                "{text}"
            );
            continue;
        }
        let answer = f.ok("/v1/chat/completions", &body).await;
        assert_eq!(answer["choices"][0]["message"]["content"], said, "{answer}");
        assert_eq!(
            (&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]),
            (&json!(9), &json!(3))
        );
    }
    for model in ["titan", "gecko"] {
        let answer = f.ok("/v1/embeddings", &json!({"model": model, "input": ["one", "two"]})).await;
        let vectors: Vec<&Value> =
            answer["data"].as_array().expect("vectors").iter().map(|d| &d["embedding"]).collect();
        assert_eq!(vectors, [&json!([0.5, 0.25]); 2], "{answer}");
        assert_eq!(answer["usage"]["prompt_tokens"], 2);
    }
    drop(clouds.stdin.take());
    assert!(clouds.wait().expect("it ends").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn litellms_client_manages_keys_users_and_teams() {
    // The last three are what its command needs.
    let packages = ["litellm==1.106.2", "requests", "rich", "InquirerPy", "tomlkit"];
    let found = tokio::task::spawn_blocking(move || python("litellm-proxy", &packages)).await;
    let Some(python) = found.expect("pip ran") else { return };
    let up = Upstream::saying("Hi").await;
    let dir = tempfile::tempdir().expect("a folder");
    let f = Fixture::routed(&format!(
        "model_list:
- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{base}/v1', input_cost_per_token: 0.01, output_cost_per_token: 0.1}}}}
- {{model_name: other, litellm_params: {{model: hosted_vllm/y, api_base: '{base}/v1'}}}}
general_settings: {{master_key: sk-master}}
keys: {{database: '{}'}}
",
        dir.path().join("keys.db").display(),
        base = up.base,
    ))
    .await;
    let url = f.url("");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/litellm_keys.py");
    let asking = tokio::task::spawn_blocking(move || run(Command::new(python).arg(script).arg(url)));
    asking.await.expect("the client is content");
}

/// What stands in a field of a form; of a file, how many bytes it has.
fn field<'a>(seen: &'a Seen, name: &str) -> &'a [u8] {
    let find = |bytes: &[u8], what: &str| bytes.windows(what.len()).position(|w| w == what.as_bytes());
    let Some(at) = find(&seen.raw, &format!("name=\"{name}\"")) else { return b"" };
    let rest = &seen.raw[at..];
    let rest = &rest[find(rest, "\r\n\r\n").expect("a head") + 4..];
    &rest[..find(rest, "\r\n--").expect("a boundary")]
}

fn passed(seen: &Seen) -> Vec<Step> {
    let ok = |body: Value| answer("200 OK", &body);
    let file = |id: &str| json!({"id": id, "object": "file", "bytes": 600_000, "created_at": 1, "filename": "a.jsonl", "purpose": "batch", "status": "processed"});
    let batch = |status: &str| {
        json!({"id": "batch_1", "object": "batch", "endpoint": "/v1/chat/completions", "input_file_id": "file-1",
        "completion_window": "24h", "status": status, "created_at": 1})
    };
    let said = |name: &str| String::from_utf8_lossy(field(seen, name)).into_owned();
    match (seen.head.split(' ').next().unwrap_or_default(), seen.path.split('?').next().unwrap_or_default()) {
        _ if seen.path.starts_with("/v1/audio/tr") && said("model") == "busy" => limited(seen),
        ("POST", "/v1/audio/transcriptions" | "/v1/audio/translations") => {
            let (model, language, bytes) = (said("model"), said("language"), field(seen, "file").len());
            ok(json!({"text": format!("model={model} language={language} bytes={bytes}")}))
        }
        ("POST", "/v1/audio/speech") => {
            let words =
                ["model", "input"].map(|name| seen.body[name].as_str().unwrap_or_default().to_string());
            typed("audio/mpeg", &format!("ID3 {}", words.join(" ")))
        }
        ("POST", "/v1/images/generations" | "/v1/images/edits" | "/v1/images/variations") => {
            assert!(seen.body["model"] == "theirs" || said("model") == "theirs");
            ok(json!({"created": 1, "data": [{"b64_json": "Zm94"}]}))
        }
        ("POST", "/v1/moderations") => ok(
            json!({"id": "m", "model": "theirs", "results": [{"flagged": false, "categories": {}, "category_scores": {}, "category_applied_input_types": {}}]}),
        ),
        ("POST", "/v1/files") => {
            assert_eq!(field(seen, "file").len(), 600_000);
            ok(file("file-1"))
        }
        ("GET", "/v1/files") => ok(json!({"object": "list", "data": [file("file-1")], "has_more": false})),
        ("GET", "/v1/files/file-1/content") => typed("application/octet-stream", "{}"),
        ("DELETE", "/v1/files/file-1") => ok(json!({"id": "file-1", "object": "file", "deleted": true})),
        ("POST", "/v1/batches") | ("GET", "/v1/batches/batch_1") => ok(batch("in_progress")),
        ("POST", "/v1/batches/batch_1/cancel") => ok(batch("cancelling")),
        _ => answer(
            "404 Not Found",
            &json!({"error": {"message": "No such file", "type": "invalid_request_error"}}),
        ),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_library_gets_what_is_passed_on() {
    let found = tokio::task::spawn_blocking(|| python("libraries", LIBRARIES)).await;
    let Some(python) = found.expect("pip ran") else { return };
    let up = Upstream::start(passed).await;
    let entry = |name: &str, model: &str| {
        format!(
            "- {{model_name: {name}, litellm_params: {{model: {model}, api_base: '{}/v1', api_key: sk-x}}}}\n",
            up.base
        )
    };
    let entries =
        [entry("ours", "openai/theirs"), entry("busy", "openai/busy"), entry("claude", "anthropic/claude")];
    let settings = "router_settings: {num_retries: 0}\n";
    let f = Fixture::routed(&format!("model_list:\n{}{settings}", entries.concat())).await;
    let url = f.url("");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passed.py");
    let asking = tokio::task::spawn_blocking(move || run(Command::new(python).arg(script).arg(url)));
    asking.await.expect("the client is content");
}

/// Where the provider below listens, for the process that trusts it.
const H2_PORT: &str = "OCTET_TEST_H2_PORT";

/// A provider with TLS and HTTP/2, written with the library `h2`. What certificates are trusted is set for a process, so that another one asks.
#[tokio::test(flavor = "multi_thread")]
async fn providers_with_tls_are_asked_over_http_2() {
    if let Ok(port) = std::env::var(H2_PORT) {
        return ask_over_http_2(&port).await;
    }
    let found = tokio::task::spawn_blocking(|| python("h2", &["h2==4.4.1", "cryptography==46.0.3"])).await;
    let Some(python) = found.expect("pip ran") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let (mut provider, port) = provider_in_python(&python, "h2_provider.py", dir.path());
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again.args(["--exact", "providers_with_tls_are_asked_over_http_2", "--nocapture"]);
    again.env(H2_PORT, port.trim()).env("SSL_CERT_FILE", dir.path().join("ca.pem"));
    tokio::task::spawn_blocking(move || run(&mut again)).await.expect("it is asked");
    drop(provider.stdin.take());
    assert!(provider.wait().expect("it ends").success());
}

async fn ask_over_http_2(port: &str) {
    let entry = |name: &str| {
        format!(
            "- {{model_name: {name}, litellm_params: {{model: hosted_vllm/{name}, api_base: 'https://localhost:{port}/v1', api_key: sk-x}}}}\n"
        )
    };
    let f = Fixture::routed(&format!("model_list:\n{}{}", entry("one"), entry("many"))).await;
    let asked = |model: &str| json!({"model": model, "messages": [{"role": "user", "content": "Hello"}]});
    let path = "/v1/chat/completions";
    for _ in 0..3 {
        let said = f.ok(path, &asked("one")).await;
        assert_eq!(said["choices"][0]["message"]["content"], "1 connections");
    }
    let mut stream = asked("one");
    stream["stream"] = true.into();
    let text = f.send(path, &stream).await.text().await.expect("a stream");
    assert!(text.contains("1 connections") && text.contains("[DONE]"), "{text}");
    // None of these is answered before all are there, and they are more than the server lets be on a connection.
    let body = asked("many");
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..80 {
        all.spawn(f.request(path, &body).send());
    }
    while let Some(response) = all.join_next().await {
        let said: Value = response.expect("no panic").expect("an answer").json().await.expect("JSON");
        let content = said["choices"][0]["message"]["content"].as_str().expect("text");
        assert!(content.ends_with(" connections") && content != "1 connections", "{content}");
    }
}
