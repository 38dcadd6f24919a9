//! Gemini's requests and answers, as its clients write and read them.

use octet_api::core::{
    Answer, Effort, Event, FinishReason, GenerateRequest, Part, ReasoningPart, ResponseFormat, Role,
    ToolChoice, Usage,
};
use octet_api::dialect::StreamWriter;
use octet_api::gemini::{self, ContentWriter, count_tokens, embed};
use serde_json::{Value, json};

fn parse(mut body: Value) -> GenerateRequest {
    body["model"] = "m".into();
    gemini::parse(body.to_string().as_bytes()).unwrap_or_else(|e| panic!("{e}: {body}"))
}

fn refused(mut body: Value) -> String {
    if body.get("contents").is_none() {
        body["contents"] = json!([{"parts": [{"text": "a"}]}]);
    }
    gemini::parse(body.to_string().as_bytes()).expect_err("it is refused").to_string()
}

/// Gemini CLI's requests have them in JSON schemas.
#[test]
fn googles_names_of_types_are_read_in_json_schemas() {
    let schema = json!({"type": "OBJECT", "properties": {
        "type": {"type": "STRING"}, "n": {"type": "ARRAY", "items": {"type": "NUMBER"}}}, "required": ["n"]});
    let read = json!({"type": "object", "properties": {
        "type": {"type": "string"}, "n": {"type": "array", "items": {"type": "number"}}}, "required": ["n"]});
    let config = json!({"responseMimeType": "application/json", "responseJsonSchema": schema});
    let tool = json!({"name": "f", "parametersJsonSchema": schema});
    let contents = json!([{"parts": [{"text": "a"}]}]);
    let r = parse(
        json!({"contents": contents, "generationConfig": config, "tools": [{"functionDeclarations": [tool]}]}),
    );
    let ResponseFormat::JsonSchema { schema, .. } = &r.response_format else {
        panic!("{:?}", r.response_format)
    };
    assert_eq!(schema, &read);
    assert_eq!(Value::from(r.chat().expect("a conversation").tools[0].parameters.clone()), read);
}

#[test]
fn a_conversation_with_calls_is_read() {
    let r = parse(json!({
        "system_instruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Two?"}, {"inlineData": {"mimeType": "text/plain", "data": "aGk="}}]},
            {"role": "model", "parts": [
                {"text": "I ", "thought": true}, {"text": "think.", "thought": true},
                {"functionCall": {"name": "f", "args": {"x": 1}}, "thoughtSignature": "QUJD"},
                {"functionCall": {"name": "f", "args": {"x": 2}}},
            ]},
            {"role": "function", "parts": [
                {"functionResponse": {"name": "f", "response": {"output": "one"}}},
                {"function_response": {"name": "f", "response": {"error": "two"}}},
                {"text": "And?"},
            ]},
        ],
        "tools": [{"functionDeclarations": [
            {"name": "f", "parameters": {"type": "OBJECT", "properties": {"x": {"type": "INTEGER"}}}}, {"name": "g"}]},
            {"googleSearch": {}}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    }));
    let chat = r.chat().expect("a conversation");
    let roles: Vec<Role> = chat.messages.iter().map(|m| m.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::Tool, Role::Tool, Role::User]);
    assert_eq!(chat.messages[1].content, [Part::text("Two?"), Part::text("hi")]);
    let said = &chat.messages[2];
    let thought = ReasoningPart::Text { text: "I think.".into(), signature: Some("gemini#QUJD".into()) };
    assert_eq!(said.reasoning, [thought]);
    let ids: Vec<&str> = said.tool_calls.iter().map(|c| c.id.as_str()).collect();
    let answered: Vec<&str> =
        chat.messages[3..5].iter().map(|m| m.tool_call_id.as_deref().expect("an id")).collect();
    assert_eq!(ids, answered, "results belong to the calls in order");
    assert_eq!((chat.messages[3].is_error, chat.messages[4].is_error), (false, true));
    assert_eq!(chat.messages[4].content, [Part::text("two")]);
    assert_eq!((chat.tools.len(), &chat.tool_choice), (1, &ToolChoice::Required));
    assert_eq!(
        Value::from(chat.tools[0].parameters.clone()),
        json!({"type": "object", "properties": {"x": {"type": "integer"}}})
    );
    assert!(chat.reasoning.hide && r.include_usage);
    let told: Vec<&str> = r.warnings.iter().map(|w| w.message.as_str()).collect();
    assert_eq!(told, ["'tools[1].googleSearch' is left out: this server has no such tool"]);
}

#[test]
fn settings_are_read() {
    let r = parse(json!({"contents": "Hello", "generationConfig": {
        "temperature": 0.5, "topP": 0.9, "topK": 40.0, "maxOutputTokens": 7, "stopSequences": ["a"], "seed": -5,
        "candidateCount": 2, "responseLogprobs": true, "logprobs": 3, "responseModalities": ["TEXT"],
        "thinkingConfig": {"includeThoughts": true, "thinkingLevel": "LOW"},
    }, "safetySettings": [{"category": "x", "threshold": "BLOCK_LOW_AND_ABOVE"}]}));
    let s = &r.sampling;
    assert_eq!(
        (s.temperature, s.top_p, s.top_k, s.seed),
        (Some(0.5), Some(0.9), Some(40), Some(-5i64 as u64))
    );
    assert_eq!(
        (r.max_tokens, r.n, r.logprobs, r.stop.as_slice()),
        (Some(7), 2, Some(3), &["a".to_string()][..])
    );
    let reasoning = &r.chat().expect("a conversation").reasoning;
    assert_eq!((reasoning.enabled, reasoning.effort, reasoning.hide), (Some(true), Some(Effort::Low), false));
    assert_eq!(r.warnings[0].message, "'safetySettings' is ignored: this server does not filter content");
    for (budget, enabled, tokens) in
        [(0, Some(false), None), (-1, Some(true), None), (99, Some(true), Some(99))]
    {
        let r = parse(
            json!({"contents": "a", "generationConfig": {"thinkingConfig": {"thinkingBudget": budget}}}),
        );
        let reasoning = &r.chat().expect("a conversation").reasoning;
        assert_eq!((reasoning.enabled, reasoning.budget_tokens), (enabled, tokens));
    }
}

#[test]
fn formats_are_read() {
    let form = |config: Value| {
        let r = parse(json!({"contents": "a", "generationConfig": config}));
        (r.response_format, r.response_format_field)
    };
    let schema = json!({"type": "OBJECT", "properties": {"a": {"type": "STRING", "nullable": true}}});
    let (format, field) = form(json!({"responseMimeType": "application/json", "responseSchema": schema}));
    let ResponseFormat::JsonSchema { schema, .. } = format else { panic!("a schema") };
    assert_eq!(schema, json!({"type": "object", "properties": {"a": {"type": ["string", "null"]}}}));
    assert_eq!(field, "generationConfig.responseSchema");
    assert_eq!(form(json!({"responseMimeType": "application/json"})).0, ResponseFormat::JsonObject);
    let words =
        json!({"responseMimeType": "text/x.enum", "responseSchema": {"type": "STRING", "enum": ["a", "b"]}});
    assert_eq!(form(words).0, ResponseFormat::Choice(vec!["a".into(), "b".into()]));
}

#[test]
fn unsupported_fields_are_refused_by_name() {
    for (body, expected) in [
        (json!({"contents": []}), "'contents' must have at least one content"),
        (
            json!({"contents": [{"role": "nobody", "parts": []}]}),
            "contents[0].role 'nobody' is not supported",
        ),
        (json!({"cachedContent": "cachedContents/x"}), "'cachedContent' is not supported"),
        (
            json!({"generationConfig": {"responseModalities": ["IMAGE"]}}),
            "'generationConfig.responseModalities'",
        ),
        (
            json!({"generationConfig": {"temperature": "hot"}}),
            "'generationConfig.temperature' must be a number",
        ),
        (json!({"generationConfig": {"responseSchema": {}}}), "needs \"responseMimeType\""),
        (json!({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}), "'tools' has no function"),
        (
            json!({"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": ""}}]}]}),
            "is not supported",
        ),
    ] {
        let e = refused(body);
        assert!(e.contains(expected), "{e}");
    }
}

fn events() -> Vec<Event> {
    let text = |text: &str| Event::Text { choice: 0, text: text.into() };
    let mut out = vec![
        Event::Started { id: "r1".into(), model: "m".into(), created_s: 1, usage: None },
        Event::Reasoning { choice: 0, text: "Hm.".into() },
        Event::ReasoningSignature { choice: 0, signature: "EqQB".into() },
        text("He"),
        text("llo"),
    ];
    out.extend(Event::tool_call(0, 0, "call_1", "f", "{\"x\":1}"));
    out.extend(Event::tool_call(0, 1, "call_2", "f", "{\"x\":"));
    out.push(Event::Finished { choice: 0, reason: FinishReason::ToolCalls });
    out.push(Event::Usage(Usage {
        prompt_tokens: 5,
        completion_tokens: 9,
        reasoning_tokens: Some(2),
        ..Usage::default()
    }));
    out
}

fn shown() -> GenerateRequest {
    parse(json!({"contents": "a", "generationConfig": {"thinkingConfig": {"includeThoughts": true}}}))
}

fn written(mut writer: ContentWriter, events: &[Event]) -> String {
    let mut out = Vec::new();
    events.iter().for_each(|e| writer.write(e, &mut out));
    writer.end(&mut out);
    String::from_utf8(out).expect("text")
}

#[test]
fn an_answer_is_the_same_whole_in_events_and_in_an_array() {
    let request = shown();
    let whole: Value =
        serde_json::from_slice(&gemini::response(&request, &Answer::from_events(&events()))).expect("JSON");
    let parts = &whole["candidates"][0]["content"]["parts"];
    assert_eq!(parts[0], json!({"text": "Hm.", "thought": true}));
    assert_eq!(parts[1]["text"], "Hello");
    assert_eq!(parts[2]["functionCall"], json!({"id": "call_1", "name": "f", "args": {"x": 1}}));
    assert_eq!(parts[3]["text"], "f({\"x\":)", "what cannot be called is text");
    assert_eq!(whole["candidates"][0]["finishReason"], "STOP");
    let usage = json!({"promptTokenCount": 5, "candidatesTokenCount": 7, "thoughtsTokenCount": 2, "totalTokenCount": 14});
    assert_eq!(whole["usageMetadata"], usage);

    let events_text = written(ContentWriter::events(&request), &events());
    let pieces: Vec<Value> = events_text
        .split("\n\n")
        .filter_map(|e| serde_json::from_str(e.strip_prefix("data: ")?).ok())
        .collect();
    let array: Vec<Value> =
        serde_json::from_str(&written(ContentWriter::array(&request), &events())).expect("an array");
    assert_eq!(pieces, array);
    assert_eq!(pieces.len(), 6);
    assert_eq!(pieces[5]["usageMetadata"], usage);
    assert!(pieces[..5].iter().all(|p| p["candidates"][0].get("finishReason").is_none()));
    let signed: Vec<bool> = pieces
        .iter()
        .map(|p| p["candidates"][0]["content"]["parts"][0]["thoughtSignature"].is_string())
        .collect();
    assert_eq!(
        signed,
        [false, true, false, false, false, false],
        "a proof stands in the part behind what it proves"
    );

    // Sent back, it is what it was.
    let turn = json!({"role": "model", "parts": parts});
    let back = parse(json!({"contents": [{"parts": [{"text": "a"}]}, turn]}));
    let thought = ReasoningPart::Text { text: "Hm.".into(), signature: Some("EqQB".into()) };
    assert_eq!(back.chat().expect("a conversation").messages[1].reasoning, [thought]);
}

#[test]
fn an_interrupted_stream_ends_with_an_error() {
    let broken = &events()[..5];
    let text = written(ContentWriter::events(&shown()), broken);
    let last = text.trim_end().rsplit("\n\n").next().expect("a last event");
    let error: Value = serde_json::from_str(last).expect("JSON alone, as Google's servers write it");
    assert_eq!(error["error"]["status"], "INTERNAL");
    let array: Vec<Value> =
        serde_json::from_str(&written(ContentWriter::array(&shown()), broken)).expect("an array");
    assert_eq!(array.last().expect("an error")["error"]["code"], 502);
    let nothing = written(ContentWriter::array(&shown()), &[]);
    assert!(serde_json::from_str::<Vec<Value>>(&nothing).expect("an array")[0]["error"].is_object());
}

#[test]
fn a_provider_s_events_become_an_array() {
    let mut writer = ContentWriter::array(&shown());
    let mut out = Vec::new();
    writer.pass(b"data: {\"a\":1}\r\n\r\ndata: {\"b\":2}\n\n", &mut out);
    writer.pass(b": x\n\ndata: {\"c\":3}\n\n", &mut out);
    writer.end_passed(&mut out);
    assert_eq!(
        serde_json::from_slice::<Value>(&out).expect("an array"),
        json!([{"a": 1}, {"b": 2}, {"c": 3}])
    );
}

#[test]
fn counts_and_vectors_are_read() {
    let count = |body: Value| count_tokens::parse(body.to_string().as_bytes()).expect("a request");
    let r = count(json!({"model": "m", "generateContentRequest": {
        "model": "models/other", "contents": [{"parts": [{"text": "a"}]}], "systemInstruction": {"parts": {"text": "b"}}}}));
    assert_eq!((r.model.as_str(), r.chat().expect("a conversation").messages.len()), ("m", 2));
    assert_eq!(count(json!({"model": "m", "contents": "a"})).model, "m");

    let batch = json!({"model": "m", "requests": [
        {"model": "models/x", "content": {"parts": [{"text": "a"}]}, "taskType": "RETRIEVAL_QUERY", "outputDimensionality": 8},
        {"model": "models/x", "content": {"parts": [{"text": "b"}]}, "taskType": "RETRIEVAL_QUERY", "outputDimensionality": 8}]});
    let r = embed::parse_batch(batch.to_string().as_bytes()).expect("a request");
    assert_eq!((r.inputs.len(), r.dimensions), (2, Some(8)));
    let sent = embed::body(&r, "theirs").expect("texts");
    assert_eq!(sent["requests"][1]["taskType"], "RETRIEVAL_QUERY");
    let mut mixed = batch;
    mixed["requests"][1]["outputDimensionality"] = 4.into();
    assert!(embed::parse_batch(mixed.to_string().as_bytes()).is_err());
}
