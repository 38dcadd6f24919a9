//! OpenAI's deprecated `functions`, and text files: as tools and as text to the model, in their own form to the client.

use crate::common::*;
use octet_api::anthropic::messages;
use octet_api::core::*;
use octet_api::openai::{chat, responses};
use octet_api::{bedrock, gemini, ollama};
use serde_json::{Value, json};

fn legacy(more: Value) -> GenerateRequest {
    let mut body = json!({
        "model": "m", "messages": [{"role": "user", "content": "?"}],
        "functions": [{"name": "f", "description": "F.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}, {"name": "g"}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    chat::parse(body.to_string().as_bytes()).unwrap()
}

#[test]
fn functions_are_tools_with_one_call_at_most() {
    for (asked, choice) in [
        (json!({}), ToolChoice::Auto),
        (json!({"function_call": "auto"}), ToolChoice::Auto),
        (json!({"function_call": "none"}), ToolChoice::None),
        (
            json!({"function_call": {"name": "g"}, "tools": [], "tool_choice": null}),
            ToolChoice::Named("g".into()),
        ),
    ] {
        let r = legacy(asked);
        let c = r.chat().unwrap();
        assert_eq!((&c.tool_choice, c.parallel_tool_calls), (&choice, Some(false)));
        let names: Vec<&str> = c.tools.iter().map(|t| &*t.name).collect();
        assert_eq!(names, ["f", "g"]);
        assert_eq!(c.tools[0].parameters["properties"]["a"]["type"], "integer");
        assert!(r.warnings.is_empty(), "{:?}", r.warnings);
    }
    let none = chat::parse(br#"{"model": "m", "messages": [{"role": "user", "content": "?"}], "functions": [], "function_call": "auto"}"#);
    assert!(none.unwrap().chat().unwrap().tools.is_empty());
}

#[test]
fn functions_must_be_a_list() {
    let body =
        json!({"model": "m", "messages": [{"role": "user", "content": "?"}], "functions": {"name": "f"}});
    let e = chat::parse(body.to_string().as_bytes()).unwrap_err();
    assert!(e.message.starts_with("'functions' must be an array"), "{e}");
}

/// No provider has to be told that one call at most is wanted: only the first is written.
#[test]
fn functions_are_sent_to_providers_of_every_kind() {
    let dropped = |more: Value| {
        let r = legacy(more);
        let model = gemini::Provider { levels: true, always_thinks: true };
        let bodies = [
            gemini::body(&r, model).unwrap(),
            bedrock::body(&r).unwrap(),
            ollama::chat::body(&r, "m").unwrap(),
            messages::body(&r, "m", messages::Provider { max_tokens: 100, is_limit: false, adaptive: true })
                .unwrap(),
            chat::body(&r, "m", chat::Flavor::OpenAi).unwrap(),
            responses::body(&r, "m").unwrap(),
        ];
        bodies.map(|b| b.dropped)
    };
    assert_eq!(dropped(json!({})), [const { Vec::<&str>::new() }; 6]);
    let call =
        json!({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}});
    let asked = json!({"function_call": "none", "messages": [{"role": "user", "content": "?"}, call]});
    assert_eq!(dropped(asked)[1], ["function_call"], "by the name that the client knows");
    assert_eq!(dropped(json!({"function_call": {"name": "f"}}))[2], ["function_call"]);
}

#[test]
fn their_calls_are_function_calls() {
    let r = legacy(json!({}));
    let mut events = vec![started()];
    events.extend(Event::tool_call(0, 0, "c0", "f", "{\"a\":1}"));
    events.extend(Event::tool_call(0, 1, "c1", "g", "{}"));
    events.push(Event::Finished { choice: 0, reason: FinishReason::ToolCalls });
    let mut answer = Answer::default();
    events.iter().for_each(|e| answer.push(e));
    let whole: Value = serde_json::from_slice(&chat::response(&r, &answer)).unwrap();
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["function_call"], json!({"name": "f", "arguments": "{\"a\":1}"}));
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("function_call"), &Value::Null)
    );
    assert!(choice["message"].get("tool_calls").is_none());
    let chunks = data(&write(chat::ChunkWriter::new(&r), &events));
    let pieces: Vec<&Value> =
        chunks.iter().filter_map(|c| c["choices"][0]["delta"].get("function_call")).collect();
    assert_eq!(pieces[0], &json!({"name": "f", "arguments": ""}));
    let arguments: String = pieces.iter().map(|p| p["arguments"].as_str().unwrap()).collect();
    assert_eq!(arguments, "{\"a\":1}");
    assert!(chunks.iter().any(|c| c["choices"][0]["finish_reason"] == "function_call"));
    assert!(!chunks.iter().any(|c| c.to_string().contains("tool_call")));
}

#[test]
fn their_calls_in_the_history_have_ids_of_their_own() {
    let call = |name: &str| json!({"role": "assistant", "content": null, "function_call": {"name": name, "arguments": "{}"}});
    let result = |name: &str, text: &str| json!({"role": "function", "name": name, "content": text});
    let user = json!({"role": "user", "content": "?"});
    let r = legacy(
        json!({"messages": [user, call("f"), result("f", "1"), call("f"), result("f", "2"), call("g"), result("g", "3")]}),
    );
    let messages = &r.chat().unwrap().messages;
    let calls: Vec<&str> = messages.iter().flat_map(|m| &m.tool_calls).map(|c| &*c.id).collect();
    let results: Vec<&str> = messages.iter().filter_map(|m| m.tool_call_id.as_deref()).collect();
    assert_eq!(calls, ["call_f", "call_f_2", "call_g"]);
    assert_eq!(results, calls);
}

/// The ids of the calls and of the results of a conversation.
fn ids(messages: Value) -> (Vec<String>, Vec<String>) {
    let r = legacy(json!({"messages": messages}));
    let messages = &r.chat().unwrap().messages;
    let calls = messages.iter().flat_map(|m| &m.tool_calls).map(|c| c.id.clone());
    (calls.collect(), messages.iter().filter_map(|m| m.tool_call_id.clone()).collect())
}

#[test]
fn results_belong_to_the_calls_before_them() {
    let call = |name: &str| json!({"role": "assistant", "content": null, "function_call": {"name": name, "arguments": "{}"}});
    let result = |name: &str| json!({"role": "function", "name": name, "content": "1"});
    let user = json!({"role": "user", "content": "?"});
    let (calls, results) = ids(json!([user, call("f"), user, call("f"), result("f")]));
    assert_eq!((calls[0] == calls[1], &results[..]), (false, &calls[1..]), "the first has no result");
    let (calls, _) = ids(json!([user, call("f"), call("f_2"), call("f")]));
    assert_eq!(calls, ["call_f", "call_f_2", "call_f_3"]);
    // Calls of one message in order.
    let unnamed = json!({"type": "function", "function": {"name": "f", "arguments": "{}"}});
    let both = json!({"role": "assistant", "tool_calls": [unnamed, unnamed]});
    let answer = json!({"role": "tool", "name": "f", "content": "1"});
    let (calls, results) = ids(json!([user, both, answer, answer]));
    assert_eq!((&calls, calls[0] == calls[1]), (&results, false));
    // Ids that the client sends stay as they are.
    let named = json!({"role": "assistant", "tool_calls": [{"id": "call_f", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let answer = json!({"role": "tool", "tool_call_id": "call_f", "content": "1"});
    let (calls, results) = ids(json!([user, named, answer, named, answer, call("f"), result("f")]));
    assert_eq!((&calls[..2], &results[..2]), (&["call_f".to_string(), "call_f".into()][..], &calls[..2]));
    assert_eq!((&results[2], calls[2] != "call_f"), (&calls[2], true));
}

/// The parts of a user's message in chats and in responses.
fn files(name: &str, data: &str) -> [Result<Vec<Part>, octet_api::ApiError>; 2] {
    let of_chat = json!([{"type": "file", "file": {"filename": name, "file_data": data}}]);
    let of_responses = json!([{"type": "input_file", "filename": name, "file_data": data}]);
    let in_chat = json!({"model": "m", "messages": [{"role": "user", "content": of_chat}]});
    let in_responses = json!({"model": "m", "input": [{"role": "user", "content": of_responses}]});
    let parts = |r: GenerateRequest| r.chat().unwrap().messages[0].content.clone();
    [
        chat::parse(in_chat.to_string().as_bytes()).map(parts),
        responses::parse(in_responses.to_string().as_bytes()).map(parts),
    ]
}

#[test]
fn text_files_are_text() {
    for data in [
        "data:text/plain;base64,YSwgw6kK",
        "data:text/csv;charset=utf-8;base64,YSwgw6kK",
        "data:application/json;base64,YSwgw6kK",
        "data:application/octet-stream;base64,YSwgw6kK",
        "YSwgw6kK",
        // In lines and without padding, as some encoders write it.
        "YSwg\r\nw6kK\n",
        "data:text/plain;base64,YSwgw6k\nK",
    ] {
        for parts in files("notes.txt", data) {
            assert_eq!(parts.unwrap(), [Part::text("notes.txt\na, é\n")], "{data}");
        }
    }
    assert_eq!(files("a", "aGk")[0].as_ref().unwrap(), &[Part::text("a\nhi")], "no padding");
    assert_eq!(files("a", "Pz8-")[0].as_ref().unwrap(), &[Part::text("a\n??>")], "the alphabet for URLs");
    let noted = "U2VlICVQREY="; // "See %PDF"
    assert_eq!(files("a", noted)[0].as_ref().unwrap(), &[Part::text("a\nSee %PDF")]);
    // The last begins with the bytes 0xff 0x0a.
    for data in ["data:application/pdf;base64,JVBERi0xLjcK", "JVBERi0xLjcK", "/wolUERGLTEuNwo="] {
        for parts in files("a.pdf", data) {
            let Part::Image { image, .. } = &parts.unwrap()[0] else { panic!("{data}") };
            assert!(image.is_document(), "{data}");
        }
    }
    for data in [
        "data:application/zip;base64,UEsDBAAA",
        "data:text/plain;base64,gICA",
        "UEsDBAAA",
        "data:text/plain;base64,%",
    ] {
        let [chat, responses] = files("a.zip", data);
        let (chat, responses) = (chat.unwrap_err(), responses.unwrap_err());
        let what = if data.ends_with('%') { "must be base64" } else { "neither text nor a PDF" };
        assert_eq!(chat.param.as_deref(), Some("messages[0].content[0].file.file_data"), "{data}");
        assert_eq!(responses.param.as_deref(), Some("input[0].content[0].file_data"));
        assert!(chat.message.contains(what), "{chat}");
    }
    let by_id = json!({"model": "m", "messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]});
    let e = chat::parse(by_id.to_string().as_bytes()).unwrap_err();
    assert!(e.message.contains("files are not kept"), "{e}");
}

#[test]
fn files_are_the_same_in_all_dialects() {
    let anthropic = |media_type: &str, data: &str| {
        let document = json!({"type": "document", "title": "notes.txt", "source": {"type": "base64", "media_type": media_type, "data": data}});
        let body =
            json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [document]}]});
        messages::parse(body.to_string().as_bytes())
    };
    let gemini = |media_type: &str, data: &str| {
        let inline =
            json!({"inlineData": {"mimeType": media_type, "displayName": "notes.txt", "data": data}});
        gemini::parse(json!({"model": "m", "contents": [{"parts": [inline]}]}).to_string().as_bytes())
    };
    for parse in [&anthropic as &dyn Fn(&str, &str) -> Result<GenerateRequest, octet_api::ApiError>, &gemini]
    {
        let content = |r: GenerateRequest| r.chat().unwrap().messages[0].content.clone();
        for media_type in ["text/plain", "application/x-yaml"] {
            assert_eq!(content(parse(media_type, "YSwgw6kK").unwrap()), [Part::text("notes.txt\na, é\n")]);
        }
        let Part::Image { image, .. } = &content(parse("application/pdf", "JVBERi0xLjcK").unwrap())[0] else {
            panic!("a document")
        };
        assert!(image.is_document());
        for (media_type, data, what) in [
            ("text/plain", "gICA", "neither text nor a PDF"),
            ("application/zip", "UEsDBAAA", "neither text nor a PDF"),
            ("text/plain", "%", "must be base64"),
        ] {
            let e = parse(media_type, data).unwrap_err();
            assert!(e.message.contains(what), "{e}");
        }
    }
}
