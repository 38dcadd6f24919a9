//! `/openapi.json` against the server: it describes each route and no other, what it says that a body may have is read, and
//! answers are what it says. (`clients.rs` has Schemathesis ask everything that it describes.)

use std::collections::BTreeSet;

use crate::common::{Fixture, chat, tool, with};
use octet_api::tokens::{self, Tokenize};
use octet_api::{ApiError, Warning, anthropic, gemini, llama, ollama, openai};
use octet_upstream::Passed;
use serde_json::{Map, Value, json};

fn description() -> Value {
    serde_json::from_str(include_str!("../../assets/openapi.json")).expect("the description is JSON")
}

/// What `$ref` names.
fn named<'a>(all: &'a Value, schema: &'a Value) -> &'a Value {
    let Some(name) = schema["$ref"].as_str() else { return schema };
    let found = all.pointer(name.trim_start_matches('#'));
    named(all, found.unwrap_or_else(|| panic!("there is no {name}")))
}

/// The names in the source of the routes, and of what is said to who finds no connection, which are among them; and the paths of Gemini's API
/// and of what is passed on, each in one of its forms.
fn routes() -> BTreeSet<String> {
    let sources = [
        include_str!("../../src/http/mod.rs"),
        include_str!("../../src/http/admin/cache.rs"),
        include_str!("../../src/http/admin/customers.rs"),
        include_str!("../../src/http/admin/keys.rs"),
        include_str!("../../src/http/admin/mod.rs"),
        include_str!("../../src/http/admin/spend.rs"),
        include_str!("../../src/http/admin/teams.rs"),
        include_str!("../../src/http/admin/users.rs"),
    ];
    let route =
        |line: &str| Some(line.trim().strip_prefix(".route(\"")?.split('"').next()?.replace("{*", "{"));
    let methods = include_str!("../../src/http/gemini_path.rs").lines().filter_map(|line| {
        let method = line.trim().strip_prefix("(\"")?.split_once("\", Method::")?.0;
        Some(format!("/v1beta/models/{{id}}:{method}"))
    });
    let passed = Passed::PATHS.map(|(path, _)| format!("/v1{path}"));
    let beside =
        ["files", "files/{id}", "files/{id}/content", "batches", "batches/{id}", "batches/{id}/cancel"];
    let beside = beside.map(|path| format!("/v1/{path}"));
    let gemini = ["/v1beta/models", "/v1beta/models/{id}"].map(String::from);
    let own = sources.iter().flat_map(|source| source.lines()).filter_map(route);
    own.chain(methods).chain(passed).chain(beside).chain(gemini).collect()
}

#[test]
fn each_route_is_described_and_no_other() {
    let all = description();
    let described: BTreeSet<String> = all["paths"].as_object().unwrap().keys().cloned().collect();
    assert!(described.len() > 20);
    assert_eq!(described, routes());
}

#[test]
fn every_reference_leads_somewhere_and_every_part_is_used() {
    fn references<'a>(value: &'a Value, out: &mut BTreeSet<&'a str>) {
        match value {
            Value::Object(map) => {
                out.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|v| references(v, out));
            }
            Value::Array(items) => items.iter().for_each(|v| references(v, out)),
            _ => {}
        }
    }
    let all = description();
    let mut used = BTreeSet::new();
    references(&all, &mut used);
    for name in &used {
        assert!(all.pointer(name.trim_start_matches('#')).is_some(), "there is no {name}");
    }
    for kind in ["schemas", "responses", "parameters", "headers"] {
        for name in all["components"][kind].as_object().unwrap().keys() {
            assert!(used.contains(&*format!("#/components/{kind}/{name}")), "nothing uses {name}");
        }
    }
}

/// Properties of a schema, with those of what it is made of.
fn properties(all: &Value, schema: &Value, out: &mut Map<String, Value>) {
    let schema = named(all, schema);
    for part in ["allOf", "anyOf", "oneOf"] {
        schema[part].as_array().into_iter().flatten().for_each(|s| properties(all, s, out));
    }
    if let Some(own) = schema["properties"].as_object() {
        out.extend(own.clone());
    }
}

/// Reads a body; what it warns about.
type Read = fn(&[u8]) -> Result<Vec<Warning>, ApiError>;

fn of_call(call: ollama::Call) -> Vec<Warning> {
    match call {
        ollama::Call::Generate(request) => request.warnings,
        ollama::Call::Load(_) => Vec::new(),
    }
}

fn of_tokenize(asked: Tokenize) -> Vec<Warning> {
    match asked {
        Tokenize::Text(text) => text.warnings,
        Tokenize::Chat(chat) => chat.warnings,
    }
}

/// A body with the model, which is in the path.
fn named_in(body: &[u8]) -> Vec<u8> {
    let mut body: Value = serde_json::from_slice(body).expect("JSON");
    body["model"] = "m".into();
    body.to_string().into_bytes()
}

/// How the server reads each body.
const BODIES: &[(&str, Read)] = &[
    ("/v1/chat/completions", |b| openai::chat::parse(b).map(|r| r.warnings)),
    ("/v1/completions", |b| openai::completions::parse(b).map(|r| r.warnings)),
    ("/v1/responses", |b| openai::responses::parse(b).map(|r| r.warnings)),
    ("/v1/responses/input_tokens", |b| openai::responses::parse(b).map(|r| r.warnings)),
    ("/v1/embeddings", |b| openai::embeddings::parse(b).map(|r| r.warnings)),
    ("/v1/messages", |b| anthropic::messages::parse(b).map(|r| r.warnings)),
    ("/v1/messages/count_tokens", |b| anthropic::count_tokens::parse(b).map(|r| r.warnings)),
    ("/api/chat", |b| ollama::chat::parse(b).map(of_call)),
    ("/api/generate", |b| ollama::generate::parse(b).map(of_call)),
    ("/api/embed", |b| ollama::embed::parse(b).map(|r| r.warnings)),
    ("/api/embeddings", |b| ollama::embed::parse_old(b).map(|r| r.warnings)),
    ("/api/show", |b| ollama::models::parse_show(b).map(|_| Vec::new())),
    ("/api/pull", |b| ollama::models::parse_pull(b).map(|_| Vec::new())),
    ("/completion", |b| llama::completion(b).map(|r| r.warnings)),
    ("/completions", |b| llama::completion(b).map(|r| r.warnings)),
    ("/infill", |b| llama::infill(b).map(|r| r.warnings)),
    ("/embedding", |b| llama::embeddings(b).map(|r| r.0.warnings)),
    ("/embeddings", |b| llama::embeddings(b).map(|r| r.0.warnings)),
    ("/rerank", |b| llama::rerank::parse(b).map(|r| r.warnings)),
    ("/reranking", |b| llama::rerank::parse(b).map(|r| r.warnings)),
    ("/v1/rerank", |b| llama::rerank::parse(b).map(|r| r.warnings)),
    ("/v1/reranking", |b| llama::rerank::parse(b).map(|r| r.warnings)),
    ("/v2/rerank", |b| llama::rerank::parse(b).map(|r| r.warnings)),
    ("/chat/completions", |b| openai::chat::parse(b).map(|r| r.warnings)),
    ("/chat/completions/input_tokens", |b| tokens::apply_template(b, "m").map(|r| r.warnings)),
    ("/v1/chat/completions/input_tokens", |b| tokens::apply_template(b, "m").map(|r| r.warnings)),
    ("/v1beta/models/{id}:generateContent", |b| gemini::parse(&named_in(b)).map(|r| r.warnings)),
    ("/v1beta/models/{id}:streamGenerateContent", |b| gemini::parse(&named_in(b)).map(|r| r.warnings)),
    ("/v1beta/models/{id}:countTokens", |b| gemini::count_tokens::parse(&named_in(b)).map(|r| r.warnings)),
    ("/v1beta/models/{id}:embedContent", |b| gemini::embed::parse(&named_in(b)).map(|r| r.warnings)),
    ("/v1beta/models/{id}:batchEmbedContents", |b| {
        gemini::embed::parse_batch(&named_in(b)).map(|r| r.warnings)
    }),
    ("/tokenize", |b| tokens::tokenize(b, "m").map(of_tokenize)),
    ("/detokenize", |b| tokens::detokenize(b, "m").map(|r| r.warnings)),
    ("/apply-template", |b| tokens::apply_template(b, "m").map(|r| r.warnings)),
];

#[test]
fn each_field_that_is_described_is_known() {
    let all = description();
    // What is passed on is not read; the page's own endpoints have no fields of other programs; those for managers refuse unknown fields
    // (`gateway_admin`).
    let is_other = |tag: &Value| tag == "Passed on" || tag == "Page" || tag == "Management";
    let reads = |p: &&Value| p["post"].is_object() && !is_other(&p["post"]["tags"][0]);
    let takes_body = all["paths"].as_object().unwrap().values().filter(reads).count();
    assert_eq!(takes_body, BODIES.len());
    for (path, read) in BODIES {
        let schema = &all["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let alternatives = schema["anyOf"].as_array().cloned().unwrap_or(vec![schema.clone()]);
        for schema in &alternatives {
            let mut fields = Map::new();
            properties(&all, schema, &mut fields);
            let example = &named(&all, schema)["example"];
            read(example.to_string().as_bytes()).unwrap_or_else(|e| panic!("{path}: {example}: {e}"));
            for field in fields.keys() {
                // A value that is right nowhere: it is refused, or has no effect, but the field is known.
                let mut body = example.clone();
                body[field] = json!([{"neither": "nor"}]);
                let warnings = read(body.to_string().as_bytes()).unwrap_or_default();
                let unknown = format!("'{field}' is ignored: unknown field");
                assert!(warnings.iter().all(|w| w.message != unknown), "{path} has {field}");
            }
        }
    }
}

/// Checks answers against the description.
struct Checked<'a> {
    f: &'a Fixture,
    all: Value,
}

impl Checked<'_> {
    #[track_caller]
    fn check(&self, path: &str, method: &str, status: u16, body: &Value) {
        let responses = &self.all["paths"][path][method]["responses"];
        let by_class = format!("{}XX", status / 100);
        let response = [status.to_string(), by_class].iter().find_map(|s| responses.get(s));
        let response =
            named(&self.all, response.unwrap_or_else(|| panic!("{path}: {status} is not described")));
        let mut schema = response["content"]["application/json"]["schema"].clone();
        schema["components"] = self.all["components"].clone();
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).expect("a schema");
        let errors: Vec<String> =
            validator.iter_errors(body).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(errors.is_empty(), "{path} {status}: {errors:#?}\n{body:#}");
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self.f.ok(path, &body).await;
        self.check(path, "post", 200, &answer);
        answer
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_as_described() {
    let f = Fixture::start().await;
    let c = Checked { f: &f, all: description() };
    for path in [
        "/v1/models",
        "/v1/model/info",
        "/model/info",
        "/api/tags",
        "/api/ps",
        "/api/version",
        "/health",
        "/ready",
        "/props",
        "/openapi.json",
        "/models",
        "/slots",
        "/v1/health",
        "/page-store",
        "/mcp/tools",
    ] {
        let (status, body) = f.get(path).await;
        assert_eq!(status, 200, "{path}");
        c.check(path, "get", 200, &body);
    }
    c.check("/v1/models/{id}", "get", 200, &f.get("/v1/models/tiny").await.1);
    for (path, at) in [("/v1/models", "/v1/models"), ("/v1/models/{id}", "/v1/models/tiny")] {
        let theirs = f.client.get(f.url(at)).header("anthropic-version", "2023-06-01").send().await.unwrap();
        c.check(path, "get", 200, &crate::common::read(theirs).await.1);
    }

    let at = "/v1/chat/completions";
    c.post(at, with(&chat("Hello"), json!({"n": 2, "logprobs": true, "top_logprobs": 2}))).await;
    let thinking = json!({"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0});
    c.post(at, thinking).await;
    let calls = json!({"tools": [tool()], "tool_choice": "required", "max_tokens": 300, "parallel_tool_calls": false});
    let called = c.post(at, with(&chat("Light!"), calls.clone())).await;
    assert!(called["choices"][0]["message"]["tool_calls"].is_array());
    let function = tool()["function"].clone();
    let legacy =
        json!({"functions": [function], "function_call": {"name": function["name"]}, "max_tokens": 300});
    let called = c.post(at, with(&chat("Light!"), legacy)).await;
    assert!(called["choices"][0]["message"]["function_call"].is_object());
    let scored = json!({"model": "tiny", "prompt": ["a", "b c"], "echo": true, "logprobs": 2, "max_tokens": 2, "temperature": 0});
    c.post("/v1/completions", scored).await;

    let at = "/v1/responses";
    let function = with(&tool()["function"], json!({"type": "function"}));
    let asked = json!({
        "model": "tiny", "input": "Hello", "max_output_tokens": 8, "temperature": 0, "store": true, "instructions": "Be brief.",
        "include": ["message.output_text.logprobs"], "reasoning": {"effort": "none"}, "tools": [function.clone()],
    });
    let kept = c.post(at, asked.clone()).await["id"].as_str().expect("an id").to_string();
    let called = json!({"tool_choice": "required", "max_output_tokens": 300, "parallel_tool_calls": false});
    c.post(at, with(&asked, called)).await;
    c.post(at, json!({"model": "tiny", "input": "Hello", "max_output_tokens": 8, "temperature": 0})).await;
    c.post("/v1/responses/input_tokens", json!({"model": "tiny", "input": "Hello"})).await;
    let (status, again) = f.get(&format!("/v1/responses/{kept}")).await;
    c.check("/v1/responses/{id}", "get", status, &again);
    let (status, items) = f.get(&format!("/v1/responses/{kept}/input_items")).await;
    c.check("/v1/responses/{id}/input_items", "get", status, &items);
    let forgotten = f.client.delete(f.url(&format!("/v1/responses/{kept}"))).send().await.unwrap();
    c.check("/v1/responses/{id}", "delete", 200, &crate::common::read(forgotten).await.1);

    let texts = json!({"model": "tiny", "input": ["one", "two"]});
    c.post("/v1/embeddings", texts.clone()).await;
    c.post("/v1/embeddings", with(&texts, json!({"encoding_format": "base64"}))).await;
    c.post("/api/embed", texts).await;
    c.post("/api/embeddings", json!({"model": "tiny", "prompt": "one"})).await;

    let hello = json!([{"role": "user", "content": "Hello"}]);
    let asked = json!({"model": "tiny", "messages": hello, "max_tokens": 8, "temperature": 0});
    c.post("/v1/messages", asked.clone()).await;
    let claude = json!({
        "tools": [{"name": "set_light", "input_schema": tool()["function"]["parameters"]}], "max_tokens": 300,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true}, "thinking": {"type": "disabled"},
    });
    assert_eq!(c.post("/v1/messages", with(&asked, claude)).await["stop_reason"], "tool_use");
    c.post("/v1/messages/count_tokens", json!({"model": "tiny", "messages": hello})).await;

    let llama = json!({"model": "tiny", "stream": false, "options": {"num_predict": 8, "temperature": 0}, "logprobs": true, "top_logprobs": 1});
    c.post("/api/chat", with(&llama, json!({"messages": hello, "think": false}))).await;
    c.post("/api/chat", with(&llama, json!({"messages": hello}))).await;
    c.post("/api/generate", with(&llama, json!({"prompt": "Hello"}))).await;
    c.post("/api/generate", json!({"model": "tiny"})).await;
    c.post("/api/show", json!({"model": "tiny"})).await;
    c.post("/api/pull", json!({"model": "tiny", "stream": false})).await;

    let native =
        json!({"prompt": "Hello", "n_predict": 4, "n_probs": 2, "return_tokens": true, "temperature": 0});
    c.post("/completion", native.clone()).await;
    c.post("/completion", with(&native, json!({"prompt": ["a", "b"], "n": 2, "post_sampling_probs": true})))
        .await;
    c.post("/embeddings", json!({"content": ["one", "two"]})).await;
    c.post("/v1/chat/completions/input_tokens", json!({"messages": hello})).await;
    c.check("/slots", "get", 200, &f.get("/slots").await.1);

    c.post("/tokenize", json!({"content": "a \u{1f600}", "with_pieces": true})).await;
    c.post("/tokenize", json!({"messages": hello})).await;
    c.post("/detokenize", json!({"tokens": [1, 2]})).await;
    c.post("/apply-template", json!({"messages": hello})).await;
    let said = json!({"contents": [{"role": "user", "parts": [{"text": "Hello"}]}], "generationConfig": {"maxOutputTokens": 8}});
    let text = json!({"content": {"parts": [{"text": "one"}]}});
    for (method, body) in [
        ("generateContent", said.clone()),
        ("streamGenerateContent", said.clone()),
        ("countTokens", json!({"contents": said["contents"]})),
        ("embedContent", text.clone()),
        ("batchEmbedContents", json!({"requests": [text]})),
    ] {
        let answer = f.ok(&format!("/v1beta/models/tiny:{method}"), &body).await;
        c.check(&format!("/v1beta/models/{{id}}:{method}"), "post", 200, &answer);
    }
    c.check("/v1beta/models", "get", 200, &f.get("/v1beta/models").await.1);
    c.check("/v1beta/models/{id}", "get", 200, &f.get("/v1beta/models/tiny").await.1);
    // Loaded, more can be said.
    c.check("/props", "get", 200, &f.get("/props").await.1);
    c.check("/api/ps", "get", 200, &f.get("/api/ps").await.1);
    c.check("/ready", "get", 200, &f.get("/ready").await.1);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_as_described() {
    let f = Fixture::start().await;
    let c = Checked { f: &f, all: description() };
    for (path, _) in BODIES {
        for (kind, body, status) in [
            ("application/json", "{", 400),
            ("application/json", r#"{"model": 1}"#, 400),
            ("image/png", "{}", 415),
        ] {
            let request =
                f.client.post(f.url(&path.replace("{id}", "tiny"))).header("content-type", kind).body(body);
            let (got, answer) = crate::common::read(request.send().await.unwrap()).await;
            assert_eq!(got, status, "{path}: {answer}");
            c.check(path, "post", status, &answer);
        }
        // It does not say what it was meant to be, and is in the same shape for all.
        let (status, answer) =
            crate::common::read(f.client.put(f.url(&path.replace("{id}", "tiny"))).send().await.unwrap())
                .await;
        assert_eq!(status, 405, "{path}");
        c.check(path, "post", status, &answer);
    }
    for (path, at, status) in [
        ("/v1/models/{id}", "/v1/models/other", 404),
        ("/v1/responses/{id}", "/v1/responses/other", 404),
        ("/v1/responses/{id}/input_items", "/v1/responses/other/input_items", 404),
        ("/v1beta/models/{id}", "/v1beta/models/other", 404),
        ("/v1/files", "/v1/files", 404),
        ("/props", "/props?model=other", 404),
        ("/props", "/props?model=a&model=b", 400),
    ] {
        let (got, answer) = f.get(at).await;
        assert_eq!(got, status, "{at}");
        c.check(path, "get", got, &answer);
    }
}
