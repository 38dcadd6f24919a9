//! Anthropic's dialect, both ways.

use crate::common::*;
use octet_api::anthropic::messages::{MessageReader, MessageWriter, Provider, body, events, parse, response};
use octet_api::anthropic::{UNSIGNED, count_tokens, models};
use octet_api::core::*;
use octet_api::{ApiError, ErrorKind};
use proptest::prelude::*;
use serde_json::{Value, json};

fn with(fields: Value) -> Value {
    let mut body = json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[track_caller]
fn refused(fields: Value, param: &str, message: &str) {
    let e = parse(with(fields).to_string().as_bytes()).unwrap_err();
    assert_eq!(e.param.as_deref(), Some(param), "{e}");
    assert!(e.message.contains(message), "{e}");
}

#[test]
fn errors_name_the_field() {
    refused(json!({"max_tokens": null}), "max_tokens", "missing");
    refused(json!({"max_tokens": 0}), "max_tokens", "from 1 up");
    refused(json!({"messages": []}), "messages", "at least one");
    refused(json!({"stop_sequences": "a"}), "stop_sequences", "an array");
    refused(json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens", "missing");
    refused(json!({"tool_choice": {"type": "any"}}), "tool_choice", "has none");
    let block = |b: Value| json!({"messages": [{"role": "user", "content": [b]}]});
    refused(
        block(json!({"type": "tool_use"})),
        "messages[0].content[0].type",
        "'tool_use' is not supported here",
    );
    refused(block(json!({"type": "document"})), "messages[0].content[0].source", "missing");
    refused(block(json!({"type": "tool_result"})), "messages[0].content[0].tool_use_id", "missing");
}

#[test]
fn a_last_message_of_the_assistant_is_continued() {
    let r = parse(
        with(json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]}))
            .to_string()
            .as_bytes(),
    );
    assert!(r.unwrap().chat().unwrap().continue_final);
}

#[test]
fn images_are_refused_where_a_template_needs_them() {
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let r = parse(with(json!({"messages": [{"role": "user", "content": [image]}]})).to_string().as_bytes())
        .unwrap();
    let e = r.chat().unwrap().template(Roles::default()).unwrap_err();
    assert_eq!(e.param.as_deref(), Some("messages[0].content[0]"));
}

#[test]
fn the_billing_header_is_not_an_instruction() {
    let system = |system: Value| {
        let r = parse(with(json!({"system": system})).to_string().as_bytes()).unwrap();
        let first = r.chat().unwrap().messages[0].clone();
        (first.role, first.content.iter().filter_map(Part::as_text).collect::<Vec<_>>().join("|"))
    };
    let line = "x-anthropic-billing-header: cc_version=1.2; cch=af09;";
    let block = |text: &str| json!({"type": "text", "text": text});
    let be_brief = (Role::System, "Be brief.".to_string());
    assert_eq!(system(json!([block(line), block("Be brief.")])), be_brief);
    assert_eq!(system(json!(format!("{line}\n\nBe brief."))), be_brief);
    assert_eq!(system(json!([block(line)])).0, Role::User);
    // After other words it is ordinary text.
    let later = json!([block("Be brief."), block(line)]);
    assert_eq!(system(later), (Role::System, format!("Be brief.|{line}")));
}

#[test]
fn counting_needs_no_limit() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(count_tokens::parse(body.to_string().as_bytes()).unwrap().max_tokens, None);
    assert_eq!(count_tokens::response(9), json!({"input_tokens": 9}));
}

/// Name and place of every event, with the kind of block or delta.
fn shape(stream: &str) -> Vec<String> {
    data(stream)
        .iter()
        .map(|e| {
            let inner = e["content_block"]["type"].as_str().or(e["delta"]["type"].as_str()).unwrap_or("");
            let at = e["index"].as_u64().map(|i| i.to_string()).unwrap_or_default();
            format!("{at} {} {inner}", e["type"].as_str().unwrap()).trim().to_string()
        })
        .collect()
}

#[test]
fn a_stream_in_order() {
    let stream = write(MessageWriter::new(&request()), &everything());
    let expected = [
        "message_start",
        "0 content_block_start thinking",
        "0 content_block_delta thinking_delta",
        "0 content_block_delta thinking_delta",
        "0 content_block_delta signature_delta",
        "0 content_block_stop",
        "1 content_block_start text",
        "1 content_block_delta text_delta",
        "1 content_block_delta text_delta",
        "1 content_block_delta text_delta",
        "1 content_block_stop",
        "2 content_block_start tool_use",
        "2 content_block_delta input_json_delta",
        "2 content_block_stop",
        "3 content_block_start tool_use",
        "3 content_block_delta input_json_delta",
        "3 content_block_delta input_json_delta",
        "3 content_block_delta input_json_delta",
        "3 content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(shape(&stream), expected);
    for (line, next) in stream.lines().zip(stream.lines().skip(1)).filter(|(l, _)| l.starts_with("event: ")) {
        let v: Value = serde_json::from_str(next.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(v["type"], line["event: ".len()..], "the event's name equals its type");
    }
    let events = data(&stream);
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 4);
    let last = &events[events.len() - 2];
    assert_eq!(last["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
    assert_eq!(
        (&last["usage"]["output_tokens"], &last["usage"]["cache_read_input_tokens"]),
        (&json!(7), &json!(8))
    );
}

#[test]
fn a_whole_answer() {
    let v: Value =
        serde_json::from_slice(&response(&request(), &Answer::from_events(&everything()))).unwrap();
    assert_eq!(
        v["content"],
        json!([
            {"type": "thinking", "thinking": "Let me think.", "signature": UNSIGNED},
            {"type": "text", "text": "Looking up.\n\"é\""},
            {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Köln"}},
            {"type": "tool_use", "id": "call_2", "name": "time", "input": {"zone": "CET"}},
        ])
    );
    assert_eq!((&v["stop_reason"], &v["id"]), (&json!("tool_use"), &json!("msg_abc")));
}

/// A client's library fails if the input of a `tool_use` is not an object.
#[test]
fn a_call_without_an_object_is_text() {
    let call = |index: u32, parts: &[&str]| {
        let id = format!("call_{index}");
        let part = |p: &&str| Event::ToolCallArguments { choice: 0, index, text: (*p).into() };
        let start = Event::ToolCallStart { choice: 0, index, id, name: "weather".into() };
        std::iter::once(start).chain(parts.iter().map(part)).collect::<Vec<_>>()
    };
    let end = Event::Finished { choice: 0, reason: FinishReason::ToolCalls };
    let calls = [call(0, &[" ", "\"Ro", "me\""]), call(1, &[]), call(2, &["\n", " {\"city\":", "1}"])];
    let all: Vec<Event> =
        std::iter::once(started()).chain(calls.concat()).chain(std::iter::once(end)).collect();
    let stream = write(MessageWriter::new(&request()), &all);
    let expected = [
        "message_start",
        "0 content_block_start text",
        "0 content_block_delta text_delta",
        "0 content_block_delta text_delta",
        "0 content_block_delta text_delta",
        "0 content_block_delta text_delta",
        "0 content_block_stop",
        "1 content_block_start tool_use",
        "1 content_block_stop",
        "2 content_block_start tool_use",
        "2 content_block_delta input_json_delta",
        "2 content_block_delta input_json_delta",
        "2 content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(shape(&stream), expected);
    let of_stream = Answer::from_events(&read(MessageReader::new(), stream.as_bytes(), 7));
    let body: Value = serde_json::from_slice(&response(&request(), &Answer::from_events(&all))).unwrap();
    assert_eq!(body["content"][0]["type"], "text");
    assert_eq!(of_stream.choices[0].text(), "weather(\"Rome\")");
    let inputs: Vec<&Value> = body["content"].as_array().unwrap()[1..].iter().map(|b| &b["input"]).collect();
    assert_eq!(inputs, [&json!({}), &json!({"city": 1})]);
}

#[test]
fn failures_end_a_stream_with_an_error() {
    let e = Event::Error(ApiError::new(ErrorKind::Overloaded, "too much"));
    let stream = write(MessageWriter::new(&request()), &[started(), text("a"), e, text("b")]);
    assert!(stream.ends_with("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"too much\"},\"request_id\":null}\n\n"), "{stream}");
    assert!(write(MessageWriter::new(&request()), &[started()]).contains("ended before it was complete"));
}

#[test]
fn a_request_round_trips_through_a_provider() {
    for text in [
        include_str!("../clients/anthropic_stream.json"),
        include_str!("../clients/anthropic_tools.json"),
        include_str!("../clients/anthropic_parse.json"),
    ] {
        let mut r = parse(text.as_bytes()).unwrap();
        let sent = body(&r, "m", Provider { max_tokens: 5, is_limit: false, adaptive: false }).unwrap();
        assert!(sent.dropped.is_empty(), "{:?}", sent.dropped);
        // Reasoning that the provider did not sign is not for it.
        let Input::Chat(chat) = &mut r.input else { panic!("a chat") };
        chat.messages.iter_mut().for_each(|m| m.reasoning.clear());
        assert_eq!(parse(Value::from(sent.json).to_string().as_bytes()).unwrap(), r);
    }
}

#[test]
fn models_are_listed() {
    let m = ModelInfo {
        id: "q".into(),
        created_s: 1_700_000_000,
        context_length: 9,
        trained_context_length: 40,
        ..ModelInfo::default()
    };
    let v = models::list(std::slice::from_ref(&m));
    assert_eq!((&v["first_id"], &v["last_id"], &v["has_more"]), (&json!("q"), &json!("q"), &json!(false)));
    assert_eq!(v["data"][0]["created_at"], "2023-11-14T22:13:20Z");
    assert_eq!(models::list(&[])["first_id"], Value::Null);
    let v = octet_api::openai::models::list(&[m]);
    assert_eq!(
        (&v["object"], &v["data"][0]["id"], &v["data"][0]["max_model_len"]),
        (&json!("list"), &json!("q"), &json!(9))
    );
    assert_eq!(v["data"][0]["meta"]["n_ctx_train"], 40);
}

/// Without the parts that this dialect does not have.
fn comparable(answer: Answer) -> Answer {
    without(answer, |a| {
        a.created_s = 0;
        a.timings = None;
        a.id = a.id.trim_start_matches("msg_").to_string();
        if let Some(u) = &mut a.usage {
            u.cached_tokens = Some(u.cached_tokens.unwrap_or(0));
            u.cache_written_tokens = Some(u.cache_written_tokens.unwrap_or(0));
        }
    })
}

#[test]
fn a_stream_may_be_split_anywhere() {
    let stream = write(MessageWriter::new(&request()), &everything());
    let whole = read(MessageReader::new(), stream.as_bytes(), usize::MAX);
    assert_eq!(comparable(Answer::from_events(&whole)), comparable(Answer::from_events(&everything())));
    for cut in 0..stream.len() {
        let mut reader = MessageReader::new();
        let mut out = Vec::new();
        use octet_api::dialect::StreamReader;
        reader.push(&stream.as_bytes()[..cut], &mut out);
        reader.push(&stream.as_bytes()[cut..], &mut out);
        reader.end(&mut out);
        assert_eq!(out, whole, "cut at {cut}");
    }
}

proptest! {
    #[test]
    fn answers_round_trip_through_the_dialect(choice in any_choice(0), piece in 1usize..50) {
        let all = script(choice);
        let expected = comparable(Answer::from_events(&all));
        let stream = write(MessageWriter::new(&request()), &all);
        let got = read(MessageReader::new(), stream.as_bytes(), piece);
        prop_assert_eq!(comparable(Answer::from_events(&got)), expected);
        let whole = events(&response(&request(), &Answer::from_events(&all))).unwrap();
        let (a, b) = (Answer::from_events(&whole), Answer::from_events(&got));
        prop_assert_eq!(a.choices.iter().map(Choice::text).collect::<Vec<_>>(), b.choices.iter().map(Choice::text).collect::<Vec<_>>());
        prop_assert_eq!(a.usage, b.usage);
    }

    #[test]
    fn blocks_open_and_close_in_order(choice in any_choice(0)) {
        let mut open = None;
        let mut blocks = 0;
        for e in data(&write(MessageWriter::new(&request()), &script(choice))) {
            match e["type"].as_str().unwrap() {
                "content_block_start" => {
                    prop_assert_eq!((open, e["index"].as_u64()), (None, Some(blocks)));
                    open = Some(blocks);
                }
                "content_block_delta" => prop_assert_eq!(e["index"].as_u64(), open),
                "content_block_stop" => {
                    prop_assert_eq!(e["index"].as_u64(), open.take());
                    blocks += 1;
                }
                "message_delta" => prop_assert_eq!(open, None),
                _ => {}
            }
        }
    }

    #[test]
    fn any_stream_is_harmless(bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1usize..50) {
        error(&read(MessageReader::new(), &bytes, piece));
    }
}

/// Anthropic's clients send a thread's first message with `create`, and only what is new later, unless the error says that there are no
/// threads.
#[test]
fn threads_are_refused_in_the_way_that_clients_expect() {
    let body = |thread: Value| {
        json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}], "thread": thread})
            .to_string()
    };
    for thread in [json!({"type": "create"}), json!({"type": "continue", "previous_message_id": "msg_1"})] {
        let e = octet_api::anthropic::messages::parse(body(thread).as_bytes()).unwrap_err();
        let details = &octet_api::anthropic::error::body(&e, None)["error"]["details"];
        assert_eq!(details["error_code"], "thread_unsupported_request", "{e}");
    }
    assert!(octet_api::anthropic::messages::parse(body(Value::Null).as_bytes()).is_ok());
}

/// The blocks that `addTools` and `removeTools` of Anthropic's clients send.
#[test]
fn system_messages_add_and_remove_tools() {
    let tool = |name: &str| json!({"name": name, "input_schema": {"type": "object"}});
    let change = |kind: &str, tool: Value| json!({"type": kind, "tool": tool});
    let added =
        |name: &str| change("tool_addition", json!({"type": "tool_definition", "definition": tool(name)}));
    let named = |kind: &str, name: &str| change(kind, json!({"type": "tool_reference", "name": name}));
    for (blocks, names, warnings) in [
        (json!([added("c")]), vec!["a", "b", "c"], 0),
        (json!([named("tool_removal", "a"), added("b")]), vec!["b"], 0),
        (json!([named("tool_removal", "a"), named("tool_addition", "a")]), vec!["a", "b"], 0),
        (
            json!([
                named("tool_removal", "x"),
                change("tool_addition", json!({"type": "mcp_toolset_reference"}))
            ]),
            vec!["a", "b"],
            2,
        ),
    ] {
        let body = json!({"model": "m", "max_tokens": 1, "tools": [tool("a"), tool("b")], "messages": [
            {"role": "user", "content": "Hi"}, {"role": "system", "content": blocks}]});
        let r = octet_api::anthropic::messages::parse(body.to_string().as_bytes()).unwrap();
        let chat = r.chat().unwrap();
        let all: Vec<&str> = chat.tools.iter().map(|t| t.name.as_str()).collect();
        assert_eq!((all, chat.messages.len(), r.warnings.len()), (names, 1, warnings), "{blocks}");
    }
}
