//! What a provider of one dialect gets of a request in another: for each feature, a word of the client's request must be in the provider's.
//! The table in docs/compatibility.md is this test's; `OCTET_WRITE_DOCS=1 cargo test -p octet-api --test api dialects` writes it.

use octet_api::anthropic::messages;
use octet_api::core::GenerateRequest;
use octet_api::dialect::Body;
use octet_api::ollama::{self, Call};
use octet_api::openai::chat::{self, Flavor};
use octet_api::openai::responses;
use octet_api::{ApiError, bedrock, digits, gemini};
use serde_json::{Value, json};

/// A client's dialect, and its request with one feature; `None` if the dialect has no such feature.
type Client = (&'static str, fn(&[u8]) -> Result<GenerateRequest, ApiError>, fn(Feature) -> Option<Value>);
/// A provider's dialect, and its request.
type Provider = (&'static str, fn(&GenerateRequest) -> Result<Body, ApiError>);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Feature {
    System,
    Image,
    ImageUrl,
    Document,
    Tools,
    ImageOfTool,
    SignedReasoning,
    Breakpoint,
    Schema,
    Effort,
    Stop,
}

use Feature::*;

/// Each feature, its name, and words of which one is in a request that has it.
const FEATURES: [(Feature, &str, &[&str]); 11] = [
    (System, "instructions", &["SYSTEM_WORD"]),
    (Image, "images", &["iVBORw0KGgoWORD"]),
    (ImageUrl, "images by URL", &["https://x.example/word.png"]),
    (Document, "PDF documents", &["JVBERi0WORD"]),
    (Tools, "tools, calls and results", &["RESULT_WORD"]),
    (ImageOfTool, "images in results of tools", &["iVBORw0KGgoWORD"]),
    (SignedReasoning, "Claude's signed reasoning", &["U0lHTkVE"]),
    (Breakpoint, "`cache_control`", &["cache_control", "cachePoint"]),
    (Schema, "JSON schemas", &["SCHEMA_WORD"]),
    (
        Effort,
        "reasoning effort",
        &["\"high\"", "\"thinking\":", "\"xhigh\"", "thinkingBudget", "thinkingLevel"],
    ),
    (Stop, "stop sequences", &["STOP_WORD"]),
];

const PNG: &str = "iVBORw0KGgoWORD=";
const URL: &str = "https://x.example/word.png";
const PDF: &str = "JVBERi0WORD=";

fn schema() -> Value {
    json!({"type": "object", "properties": {"SCHEMA_WORD": {"type": "string"}}})
}

fn merged(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

fn of_chat(feature: Feature) -> Option<Value> {
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let part = |url: &str| user(json!([{"type": "image_url", "image_url": {"url": url}}]));
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let called = |result: Value| {
        json!({"tools": tools, "messages": [{"role": "user", "content": "A"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": result}]})
    };
    Some(merged(
        json!({"model": "m", "messages": [{"role": "user", "content": "A"}]}),
        match feature {
            System => {
                json!({"messages": [{"role": "system", "content": "SYSTEM_WORD"}, {"role": "user", "content": "A"}]})
            }
            Image => part(&format!("data:image/png;base64,{PNG}")),
            ImageUrl => part(URL),
            Document => user(
                json!([{"type": "file", "file": {"file_data": format!("data:application/pdf;base64,{PDF}")}}]),
            ),
            Tools => called(json!("RESULT_WORD")),
            ImageOfTool => called(
                json!([{"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{PNG}")}}]),
            ),
            SignedReasoning => json!({"messages": [{"role": "user", "content": "A"},
                {"role": "assistant", "content": "B", "reasoning_content": "T",
                 "thinking_blocks": [{"type": "thinking", "thinking": "T", "signature": "U0lHTkVE"}]},
                {"role": "user", "content": "C"}]}),
            Breakpoint => {
                user(json!([{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}]))
            }
            Schema => {
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema()}}})
            }
            Effort => json!({"reasoning_effort": "high", "max_tokens": 40000}),
            Stop => json!({"stop": ["STOP_WORD"]}),
        },
    ))
}

fn of_responses(feature: Feature) -> Option<Value> {
    let user = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    let called = |output: Value| {
        json!({"tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}], "input": [
            {"role": "user", "content": "A"}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": output}]})
    };
    let image = |url: String| json!({"type": "input_image", "image_url": url});
    let fields = match feature {
        System => json!({"instructions": "SYSTEM_WORD"}),
        Image => user(image(format!("data:image/png;base64,{PNG}"))),
        ImageUrl => user(image(URL.into())),
        Document => user(
            json!({"type": "input_file", "filename": "a.pdf", "file_data": format!("data:application/pdf;base64,{PDF}")}),
        ),
        Tools => called(json!("RESULT_WORD")),
        ImageOfTool => called(json!([image(format!("data:image/png;base64,{PNG}"))])),
        Schema => json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": schema()}}}),
        Effort => json!({"reasoning": {"effort": "high"}, "max_output_tokens": 40000}),
        SignedReasoning | Breakpoint | Stop => return None,
    };
    Some(merged(json!({"model": "m", "input": "A"}), fields))
}

fn of_messages(feature: Feature) -> Option<Value> {
    let user = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    let base64 = |kind: &str, media: &str, data: &str| json!({"type": kind, "source": {"type": "base64", "media_type": media, "data": data}});
    let called = |blocks: Value| {
        json!({"tools": [{"name": "f", "input_schema": {"type": "object"}}], "messages": [{"role": "user", "content": "A"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": blocks}]}]})
    };
    let fields = match feature {
        System => json!({"system": "SYSTEM_WORD"}),
        Image => user(base64("image", "image/png", PNG)),
        ImageUrl => user(json!({"type": "image", "source": {"type": "url", "url": URL}})),
        Document => user(base64("document", "application/pdf", PDF)),
        Tools => called(json!("RESULT_WORD")),
        ImageOfTool => called(json!([base64("image", "image/png", PNG)])),
        SignedReasoning => json!({"messages": [{"role": "user", "content": "A"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "T", "signature": "U0lHTkVE"}, {"type": "text", "text": "B"}]},
            {"role": "user", "content": "C"}]}),
        Breakpoint => user(json!({"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}})),
        Schema => json!({"output_config": {"format": {"type": "json_schema", "schema": schema()}}}),
        Effort => json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
        Stop => json!({"stop_sequences": ["STOP_WORD"]}),
    };
    Some(merged(
        json!({"model": "m", "max_tokens": 40000, "messages": [{"role": "user", "content": "A"}]}),
        fields,
    ))
}

fn of_gemini(feature: Feature) -> Option<Value> {
    let user = |part: Value| json!({"contents": [{"role": "user", "parts": [part]}]});
    let fields = match feature {
        System => json!({"systemInstruction": {"parts": [{"text": "SYSTEM_WORD"}]}}),
        Image => user(json!({"inlineData": {"mimeType": "image/png", "data": PNG}})),
        ImageUrl => user(json!({"fileData": {"mimeType": "image/png", "fileUri": URL}})),
        Document => user(json!({"inlineData": {"mimeType": "application/pdf", "data": PDF}})),
        Tools => json!({"tools": [{"functionDeclarations": [{"name": "f"}]}], "contents": [
            {"role": "user", "parts": [{"text": "A"}]}, {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "RESULT_WORD"}}}]}]}),
        Schema => {
            json!({"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": schema()}})
        }
        Effort => {
            json!({"generationConfig": {"thinkingConfig": {"thinkingLevel": "high"}, "maxOutputTokens": 40000}})
        }
        Stop => json!({"generationConfig": {"stopSequences": ["STOP_WORD"]}}),
        ImageOfTool | SignedReasoning | Breakpoint => return None,
    };
    Some(merged(json!({"model": "m", "contents": [{"role": "user", "parts": [{"text": "A"}]}]}), fields))
}

fn of_ollama(feature: Feature) -> Option<Value> {
    let call = json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let fields = match feature {
        System => {
            json!({"messages": [{"role": "system", "content": "SYSTEM_WORD"}, {"role": "user", "content": "A"}]})
        }
        Image => json!({"messages": [{"role": "user", "content": "A", "images": [PNG]}]}),
        Tools => {
            json!({"tools": tools, "messages": [{"role": "user", "content": "A"}, call, {"role": "tool", "tool_name": "f", "content": "RESULT_WORD"}]})
        }
        Schema => json!({"format": schema()}),
        Effort => json!({"think": "high", "options": {"num_predict": 40000}}),
        Stop => json!({"options": {"stop": ["STOP_WORD"]}}),
        ImageUrl | Document | ImageOfTool | SignedReasoning | Breakpoint => return None,
    };
    Some(merged(json!({"model": "m", "messages": [{"role": "user", "content": "A"}]}), fields))
}

fn ollama_chat(body: &[u8]) -> Result<GenerateRequest, ApiError> {
    match ollama::chat::parse(body)? {
        Call::Generate(request) => Ok(*request),
        Call::Load(_) => Err(ApiError::invalid("messages", "none")),
    }
}

const CLIENTS: [Client; 5] = [
    ("OpenAI chat", chat::parse, of_chat),
    ("OpenAI responses", responses::parse, of_responses),
    ("Anthropic", messages::parse, of_messages),
    ("Gemini", gemini::parse, of_gemini),
    ("Ollama", ollama_chat, of_ollama),
];

const CLAUDE: messages::Provider = messages::Provider { max_tokens: 64_000, is_limit: true, adaptive: true };

const PROVIDERS: [Provider; 7] = [
    ("OpenAI chat", |r| chat::body(r, "m", Flavor::OpenAi)),
    ("compatible", |r| chat::body(r, "m", Flavor::Extended)),
    ("OpenAI responses", |r| responses::body(r, "m")),
    ("Anthropic", |r| messages::body(r, "m", CLAUDE)),
    ("Gemini", |r| gemini::body(r, gemini::Provider { levels: true, always_thinks: true })),
    ("Bedrock Converse", bedrock::body),
    ("Ollama", |r| ollama::chat::body(r, "m")),
];

fn cell(request: &GenerateRequest, provider: &Provider, words: &[&str]) -> &'static str {
    match provider.1(request) {
        Err(_) => "refused",
        Ok(body) if words.iter().any(|word| Value::from(body.json.clone()).to_string().contains(word)) => {
            "yes"
        }
        Ok(body) if !body.dropped.is_empty() => "refused",
        Ok(_) => "left out",
    }
}

fn table() -> String {
    let names: Vec<&str> = PROVIDERS.iter().map(|p| p.0).collect();
    let mut out =
        format!("| client | what | {} |\n|---|---{}|\n", names.join(" | "), "|---".repeat(names.len()));
    for (client, parse, body_of) in CLIENTS {
        for (feature, what, words) in FEATURES {
            let Some(body) = body_of(feature) else { continue };
            let cells: Vec<&str> = match parse(body.to_string().as_bytes()) {
                Ok(request) => PROVIDERS.iter().map(|p| cell(&request, p, words)).collect(),
                Err(e) => panic!("{client}: {what}: {e}: {body}"),
            };
            out += &format!("| {client} | {what} | {} |\n", cells.join(" | "));
        }
    }
    out
}

const BEGIN: &str = "<!-- dialects: begin -->\n";
const END: &str = "<!-- dialects: end -->\n";

#[test]
fn the_table_of_dialects_is_up_to_date() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/compatibility.md");
    let docs = std::fs::read_to_string(&path).expect("docs/compatibility.md");
    let (before, rest) = docs.split_once(BEGIN).expect("the table's beginning");
    let (written, after) = rest.split_once(END).expect("the table's end");
    let table = table();
    if std::env::var_os("OCTET_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}"))
            .expect("the file can be written");
        return;
    }
    assert!(written == table, "docs/compatibility.md is out of date; it should have:\n{table}");
}

/// What must not be lost, whatever the table says.
#[test]
fn what_providers_have_a_place_for_arrives() {
    let get = |client: usize, feature: Feature, provider: usize| {
        let (_, parse, body_of) = CLIENTS[client];
        let words = FEATURES.iter().find(|f| f.0 == feature).expect("a feature").2;
        cell(
            &parse(body_of(feature).expect("it has it").to_string().as_bytes()).unwrap(),
            &PROVIDERS[provider],
            words,
        )
    };
    for (client, (name, _, body_of)) in CLIENTS.iter().enumerate() {
        for (provider, (to, _)) in PROVIDERS.iter().enumerate() {
            for feature in [System, Image, Tools] {
                assert_eq!(get(client, feature, provider), "yes", "{name} to {to}: {feature:?}");
            }
            assert!(body_of(System).is_some());
        }
        assert_eq!(get(client, Schema, 3), "yes", "{name}: schemas to Anthropic");
    }
    for client in [0, 2] {
        assert_eq!(get(client, SignedReasoning, 3), "yes");
        assert_eq!(get(client, Breakpoint, 3), "yes");
        for provider in [0, 1, 2, 4, 5, 6] {
            assert_ne!(
                get(client, SignedReasoning, provider),
                "yes",
                "others do not get Claude's signatures"
            );
        }
    }
}

/// Arguments of earlier calls, as text or as objects, keep all digits of their numbers on the way from any client to any provider.
#[test]
fn numbers_in_earlier_calls_keep_their_digits() {
    let arguments =
        r#"{"id":123456789012345678901234567890,"most":[1e400],"least":{"at":0.1234567890123456789}}"#;
    let quoted = Value::from(arguments).to_string();
    for (client, parse, body_of) in CLIENTS {
        let empty = body_of(Tools).expect("calls").to_string();
        let body = empty
            .replace("\"arguments\":\"{}\"", &format!("\"arguments\":{quoted}"))
            .replace("\"arguments\":{}", &format!("\"arguments\":{arguments}"))
            .replace("\"input\":{}", &format!("\"input\":{arguments}"))
            .replace("\"args\":{}", &format!("\"args\":{arguments}"));
        assert_ne!(body, empty, "{client}");
        let request = parse(body.as_bytes()).unwrap();
        for (to, write) in PROVIDERS {
            let sent = digits::text(&write(&request).unwrap().json.into());
            assert!(sent.contains(arguments) || sent.contains(&quoted), "{client} to {to}: {sent}");
        }
    }
    // Nothing else has the mark of such a number.
    for body in [r#"{"model":"m","input":123456789012345678901}"#, r#"{"model":"m","input":[1e400]}"#] {
        assert!(responses::parse(body.as_bytes()).is_err(), "{body}");
    }
    let output = r#"{"type":"local_shell_call_output","call_id":"c","output":{"x":0.10000000000000001}}"#;
    let call = r#"{"type":"local_shell_call","call_id":"c","action":{"type":"exec","command":["ls"]}}"#;
    let request =
        responses::parse(format!(r#"{{"model":"m","input":[{call},{output}]}}"#).as_bytes()).unwrap();
    let sent = digits::text(&chat::body(&request, "m", Flavor::OpenAi).unwrap().json.into());
    assert!(sent.contains(r#"{\"x\":0.10000000000000001}"#), "{sent}");
    let schema =
        r#"{"type":"object","properties":{"input":{"type":"number","maximum":0.10000000000000001}}}"#;
    let tool = format!(r#"{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}"#);
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}],"tools":[{tool}]}}"#);
    let request = chat::parse(body.as_bytes()).unwrap();
    assert_eq!(request.chat().unwrap().tools[0].parameters["properties"]["input"]["maximum"], 0.1);
    let body = format!("{{\"input_schema\":{arguments},\"input\":{arguments}}}");
    let object = digits::read(body.as_bytes()).unwrap();
    assert_eq!(digits::text(&object.into()), body);
}
