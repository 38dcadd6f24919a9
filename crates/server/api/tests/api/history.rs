//! Histories of other programs and servers: what a model here cannot read, or what is oddly written, does not end a session.

use octet_api::core::*;
use octet_api::{ApiError, anthropic, gemini, ollama, openai};
use serde_json::{Value, json};

fn chat(messages: &Value) -> Result<GenerateRequest, ApiError> {
    openai::chat::parse(json!({"model": "m", "messages": messages}).to_string().as_bytes())
}

fn responses(input: &Value) -> Result<GenerateRequest, ApiError> {
    openai::responses::parse(json!({"model": "m", "input": input}).to_string().as_bytes())
}

fn messages(messages: &Value) -> Result<GenerateRequest, ApiError> {
    let body = json!({"model": "m", "max_tokens": 1, "system": "Be brief.", "messages": messages});
    anthropic::messages::parse(body.to_string().as_bytes())
}

fn contents(contents: &Value) -> Result<GenerateRequest, ApiError> {
    gemini::parse(json!({"model": "m", "contents": contents}).to_string().as_bytes())
}

fn params(r: &GenerateRequest) -> Vec<&str> {
    let mut params: Vec<&str> = r.warnings.iter().map(|w| &*w.param).collect();
    params.sort_unstable();
    params
}

fn template(r: &GenerateRequest) -> TemplateChat {
    r.chat().unwrap().template(Roles::default()).unwrap()
}

/// All texts of a conversation.
fn texts(r: &GenerateRequest) -> Vec<String> {
    let text = |p: &Part| p.as_text().unwrap_or("an image").to_string();
    r.chat().unwrap().messages.iter().flat_map(|m| &m.content).map(text).collect()
}

#[test]
fn content_that_is_not_read_is_refused_only_where_it_is_asked_about() {
    type Parse = fn(&Value) -> Result<GenerateRequest, ApiError>;
    type Dialect<'a> = (Parse, &'a [(Value, &'a str)], &'a str, &'a str);
    let of_chat = [
        (json!({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}), "audio"),
        (json!({"type": "audio_url", "audio_url": {"url": "http://x"}}), "audio"),
        (json!({"type": "video_url", "video_url": {"url": "http://x"}}), "a video"),
        (json!({"type": "document_url", "document_url": "http://x"}), "a document"),
        (json!({"type": "file", "file": {"file_id": "file-1", "filename": "a"}}), "a file"),
        (json!({"type": "file", "file": {"file_data": "UEsDBAAA"}}), "a file"),
        (json!({"type": "input_image", "file_id": "file-1"}), "an image"),
        (json!({"type": "image", "source": {"type": "file", "file_id": "file-1"}}), "an image"),
        (json!({"type": "hologram"}), "content of another kind"),
    ];
    let of_responses = [
        (json!({"type": "input_image", "file_id": "file-1", "detail": "auto"}), "an image"),
        (json!({"type": "input_file", "file_id": "file-1"}), "a file"),
        (json!({"type": "input_audio", "input_audio": {}}), "audio"),
        (json!({"type": "input_video", "video_url": "http://x"}), "a video"),
    ];
    let of_anthropic = [
        (json!({"type": "image", "source": {"type": "file", "file_id": "file-1"}}), "an image"),
        (
            json!({"type": "document", "title": "T", "source": {"type": "file", "file_id": "file-1"}}),
            "a document",
        ),
    ];
    let of_gemini = [
        (json!({"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}}), "audio"),
        (json!({"inlineData": {"mimeType": "video/mp4", "data": "AAAA"}}), "a video"),
        (json!({"fileData": {"mimeType": "video/mp4", "fileUri": "gs://a/b"}}), "a video"),
    ];
    let dialects: [Dialect<'_>; 4] = [
        (chat, &of_chat, "content", "text"),
        (responses, &of_responses, "content", "input_text"),
        (messages, &of_anthropic, "content", "text"),
        (contents, &of_gemini, "parts", "text"),
    ];
    for (parse, parts, key, kind) in dialects {
        let text = if key == "parts" { json!({"text": "A"}) } else { json!({"type": kind, "text": "A"}) };
        let user = |part: &Value| json!({"role": "user", key: [text, part]});
        let answer = json!({"role": if key == "parts" { "model" } else { "assistant" }, key: [text]});
        for (part, what) in parts {
            let placeholder = format!("[Here was {what}. This model reads text only.]");
            let r = parse(&json!([user(part), answer, user(&text)])).unwrap();
            assert!(texts(&r).contains(&placeholder), "{part}: {:?}", texts(&r));
            assert_eq!(r.warnings.len(), 1, "{part}: {:?}", r.warnings);
            assert!(r.warnings[0].message.contains("which this server does not read"), "{part}");
            let e = parse(&json!([user(&text), answer, user(part)])).unwrap_err();
            assert!(e.param.as_deref().is_some_and(|at| at.contains("[2]")), "{part}: {e}");
            parse(&json!([user(part)])).unwrap_err();
        }
    }
    // In the result of a tool, or beside it.
    let file = &of_anthropic[0].0;
    let r = messages(&json!([
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [file]}, file]},
    ]));
    assert_eq!(params(&r.unwrap()), ["messages[2].content[0].content[0]", "messages[2].content[1]"]);
    let e =
        messages(&json!([{"role": "user", "content": [file, {"type": "tool_result", "tool_use_id": "1"}]}]));
    assert_eq!(e.unwrap_err().param.as_deref(), Some("messages[0].content[0].source.type"));
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let r = chat(&json!([
        {"role": "user", "content": "A"}, {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [of_chat[0].0]},
    ]));
    assert_eq!(params(&r.unwrap()), ["messages[2].content[0]"]);
    // Instructions are read in every turn.
    let system = json!({"parts": [of_gemini[0].0]});
    let body = json!({"systemInstruction": system, "contents": [{"parts": [{"text": "A"}]}]});
    gemini::parse(body.to_string().as_bytes()).unwrap_err();
}

#[test]
fn images_come_in_other_apis_forms() {
    let data = "iVBORw0KGgo=";
    for part in [
        json!({"type": "input_image", "image_url": format!("data:image/png;base64,{data}"), "detail": "low"}),
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}),
    ] {
        let r = chat(&json!([{"role": "user", "content": [part]}])).unwrap();
        let Part::Image { image, .. } = &r.chat().unwrap().messages[0].content[0] else { panic!("{part}") };
        assert_eq!(
            (image.url(), image.at.as_str()),
            (format!("data:image/png;base64,{data}"), "messages[0].content[0]")
        );
        assert_eq!(r.warnings, [], "{part}");
    }
}

#[test]
fn calls_of_hosted_tools_are_left_out_with_their_results() {
    let call = |kind: &str, id: &str| json!({"id": id, "type": kind, "function": {"name": "$web_search", "arguments": "{}"}});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "B"});
    let user = json!({"role": "user", "content": "A"});
    let hosted = json!({"role": "assistant", "content": "", "tool_calls": [call("builtin_function", "1")]});
    let r = chat(&json!([user, hosted, result("1"), user])).unwrap();
    assert_eq!(texts(&r), ["A", "A"]);
    assert_eq!(params(&r), ["messages[1].tool_calls[0]", "messages[2]"]);
    let mixed =
        json!({"role": "assistant", "content": "C", "tool_calls": [call("web_search", "1"), call("", "2")]});
    let r = chat(&json!([user, mixed, result("1"), result("2")])).unwrap();
    assert_eq!(texts(&r), ["A", "C", "B"]);
    assert_eq!(r.chat().unwrap().messages[1].tool_calls.len(), 1);
    chat(&json!([hosted])).unwrap_err();
}

#[test]
fn reasoning_is_read_in_all_forms() {
    for (fields, text, warned) in [
        (json!({"reasoning_content": "A", "reasoning": "B"}), Some("A"), vec!["messages[1].reasoning"]),
        (json!({"reasoning_content": "A", "reasoning": "A"}), Some("A"), vec![]),
        (json!({"reasoning_content": "", "reasoning": "B"}), Some("B"), vec![]),
        (json!({"reasoning": [{"type": "reasoning.text", "text": "A"}, "B"]}), Some("AB"), vec![]),
        (
            json!({"reasoning": {"type": "reasoning", "summary": [{"type": "summary_text", "text": "A"}]}}),
            Some("A"),
            vec![],
        ),
        (json!({"reasoning": {"content": "A"}}), Some("A"), vec![]),
        (json!({"reasoning": {"encrypted_content": "x"}}), None, vec![]),
    ] {
        let mut message = json!({"role": "assistant", "content": "C"});
        message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let r = chat(&json!([{"role": "user", "content": "Hi"}, message])).unwrap();
        assert_eq!(r.chat().unwrap().messages[1].reasoning_text().as_deref(), text, "{fields}");
        assert_eq!(params(&r), warned, "{fields}");
    }
    let e = chat(&json!([{"role": "assistant", "content": "C", "reasoning": 5}])).unwrap_err();
    assert_eq!(e.param.as_deref(), Some("messages[0].reasoning"));
}

#[test]
fn anthropic_s_calls_in_a_chat_are_calls() {
    let block = |id: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {"a": 1}});
    let same = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let hosted = [
        json!({"type": "server_tool_use", "id": "3", "name": "web_search", "input": {}}),
        json!({"type": "web_search_tool_result", "tool_use_id": "3", "content": []}),
    ];
    let r = chat(&json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [same], "content": [
            hosted[0], hosted[1], {"type": "text", "text": "A"}, block("1"), block("2")]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": "one", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "B"}, {"type": "tool_result", "tool_use_id": "2"}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "2", "content": [{"type": "text", "text": "two"}], "is_error": true}]},
    ]))
    .unwrap();
    let said: Vec<(Role, Option<&str>, String)> = r.chat().unwrap().messages[2..]
        .iter()
        .map(|m| (m.role, m.tool_call_id.as_deref(), m.content.iter().filter_map(Part::as_text).collect()))
        .collect();
    let results = [
        (Role::Tool, Some("1"), "one".to_string()),
        (Role::Tool, Some("2"), String::new()),
        (Role::User, None, "B".to_string()),
        (Role::Tool, Some("2"), "two".to_string()),
    ];
    assert_eq!(said, results);
    let t = template(&r);
    let calls = t.messages[1]["tool_calls"].as_array().unwrap();
    let ids: Vec<&Value> = calls.iter().map(|c| &c["id"]).collect();
    assert_eq!((ids, &calls[1]["function"]["arguments"]), (vec![&json!("1"), &json!("2")], &json!({"a": 1})));
    assert_eq!(t.messages[1]["content"], "A");
    assert_eq!(params(&r), ["messages[1].content[0]", "messages[1].content[1]"]);
}

#[test]
fn calls_have_any_arguments() {
    for (input, arguments) in [
        (json!({"input": null}), json!({})),
        (json!({}), json!({})),
        (json!({"input": [1]}), json!({"arguments": "[1]"})),
        (json!({"input": "{bad"}), json!({"arguments": "{bad"})),
        (json!({"input": {"a": 1}}), json!({"a": 1})),
    ] {
        let mut block = json!({"type": "tool_use", "id": "1", "name": "f"});
        block.as_object_mut().unwrap().extend(input.as_object().unwrap().clone());
        let r =
            messages(&json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [block]}]));
        let t = template(&r.unwrap());
        assert_eq!(t.messages[2]["tool_calls"][0]["function"]["arguments"], arguments, "{input}");
    }
}

#[test]
fn fields_of_another_role_are_ignored() {
    let ask = |messages: Value| {
        let body = json!({"model": "m", "messages": messages});
        match ollama::chat::parse(body.to_string().as_bytes()).unwrap() {
            ollama::Call::Generate(r) => *r,
            other => panic!("{other:?}"),
        }
    };
    let r = ask(json!([
        {"role": "user", "content": "Hi", "thinking": "A", "tool_name": ""},
        {"role": "assistant", "content": "B", "tool_name": "f", "tool_call_id": "1"},
    ]));
    assert_eq!(params(&r), ["messages[0].thinking", "messages[1].tool_call_id", "messages[1].tool_name"]);
    assert_eq!(texts(&r), ["Hi", "B"]);
    // Gemini's answers that ended early have no parts.
    let user = json!({"role": "user", "parts": [{"text": "Hi"}]});
    let r = contents(&json!([user, {"role": "model"}, user])).unwrap();
    assert_eq!(texts(&r), ["Hi", "Hi"]);
    contents(&json!([{"role": "user"}])).unwrap_err();
}

#[test]
fn the_last_message_may_say_that_it_is_continued() {
    let ask = |last: Value, more: Value| {
        let messages = json!([
            {"role": "user", "content": "Hi", "prefix": false},
            {"role": "assistant", "content": "A", "partial": true},
            {"role": "user", "content": "Go on"}, last,
        ]);
        let mut body = json!({"model": "m", "messages": messages});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        openai::chat::parse(body.to_string().as_bytes())
    };
    for (field, on) in [("prefix", true), ("partial", true), ("prefix", false), ("partial", false)] {
        let last = json!({"role": "assistant", "content": "```python\n", field: on});
        let r = ask(last, json!({})).unwrap();
        assert_eq!(r.chat().unwrap().continue_final, on, "{field}");
        assert_eq!(params(&r), ["messages[1].partial"], "{field}");
    }
    let last = json!({"role": "assistant", "content": "A", "prefix": true});
    let e = ask(last.clone(), json!({"continue_final_message": false})).unwrap_err();
    assert_eq!(e.param.as_deref(), Some("messages[3].prefix"));
    ask(last, json!({"continue_final_message": true})).unwrap();
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let e = ask(json!({"role": "assistant", "tool_calls": [call], "prefix": true}), json!({})).unwrap_err();
    assert!(e.message.contains("'messages[3].prefix' cannot continue"), "{e}");
}

/// As beside Anthropic's results: one screenshot does not end a session.
#[test]
fn content_beside_results_is_left_out() {
    let audio = json!({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}});
    let call =
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]});
    let result = |content: Value| json!({"type": "tool_result", "tool_use_id": "1", "content": content});
    let text = json!({"type": "text", "text": "B"});
    for (content, at, all) in [
        (
            json!([result(json!("sunny")), audio, text]),
            "messages[2].content[1]",
            ["Hi", "sunny", "[Here was audio. This model reads text only.]", "B"],
        ),
        (
            json!([result(json!([audio])), text]),
            "messages[2].content[0].content[0]",
            ["Hi", "[Here was audio. This model reads text only.]", "B", ""],
        ),
    ] {
        let r = chat(&json!([{"role": "user", "content": "Hi"}, call, {"role": "user", "content": content}]))
            .unwrap();
        let all: Vec<&str> = all.into_iter().filter(|t| !t.is_empty()).collect();
        assert_eq!(
            (texts(&r), params(&r)),
            (all.iter().map(|t| t.to_string()).collect(), vec![at]),
            "{content}"
        );
    }
    // Without results, it is asked about.
    assert!(chat(&json!([{"role": "user", "content": [text, audio]}])).is_err());
}
