//! OpenAI's responses towards clients: items, the order of a stream's events, what is kept.

use crate::common::*;
use octet_api::core::*;
use octet_api::openai::responses::{
    InputItems, PageQuery, ResponseWriter, conversation, deleted, follow, input_len, output_items, parse,
    parse_with, referenced, response, response_of,
};
use octet_api::{ApiError, ErrorKind};
use proptest::prelude::*;
use serde_json::{Value, json};

#[track_caller]
fn refused(fields: Value, param: &str, message: &str) {
    let mut body = json!({"model": "m", "input": "Hi"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let e = parse(body.to_string().as_bytes()).unwrap_err();
    assert_eq!(e.param.as_deref(), Some(param), "{e}");
    assert!(e.message.contains(message), "{e}");
}

#[test]
fn errors_name_the_field() {
    refused(json!({"input": []}), "input", "at least one item");
    refused(json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].id", "send the item itself");
    refused(json!({"background": true}), "background", "answers are given at once");
    refused(json!({"messages": [{}]}), "messages", "send 'input'");
    refused(json!({"text": {"format": {"type": "grammar"}}}), "text.format.type", "not supported");
    refused(json!({"conversation": "c"}), "conversation", "not kept");
}

/// A page of the input items of the stored response `resp_abc`.
fn page(input: &[Message], query: &[(&str, &str)]) -> Result<Value, ApiError> {
    let query = query.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    InputItems::new(input).page("resp_abc", input, &PageQuery::parse(query)?)
}

#[test]
fn input_items_are_listed_in_pages() {
    let body = json!({"model": "m", "instructions": "A", "input": [
        {"role": "user", "content": "B"},
        {"type": "reasoning", "id": "rs_x", "summary": [{"type": "summary_text", "text": "C"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "D", "annotations": []}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "E"},
    ]});
    let r = parse(body.to_string().as_bytes()).unwrap();
    let kept = conversation(&r, &Answer::default());
    let items = page(&kept, &[("order", "asc")]).unwrap()["data"].take();
    let items = items.as_array().unwrap();
    let kinds: Vec<(&str, &str)> =
        items.iter().map(|i| (i["type"].as_str().unwrap(), i["id"].as_str().unwrap())).collect();
    let expected = [
        ("message", "msg_abc_in0"),
        ("reasoning", "rs_abc_in1"),
        ("message", "msg_abc_in2"),
        ("function_call", "fc_abc_in3"),
        ("function_call_output", "fco_abc_in4"),
    ];
    assert_eq!(kinds, expected);
    assert!(kinds.iter().all(|(_, id)| response_of(id) == Some("abc")));
    // They are read back as what they were.
    let again = parse(json!({"model": "m", "input": items}).to_string().as_bytes()).unwrap();
    assert_eq!(conversation(&again, &Answer::default()), kept);

    for (n, item) in items.iter().enumerate() {
        let by_id = |id: &str| InputItems::new(&kept).by_id("abc", &kept, id);
        assert_eq!(by_id(item["id"].as_str().unwrap()).as_ref(), Some(item));
        assert_eq!(by_id(&format!("x_abc_in{n}")), None);
    }
    let page = |query: &[(&str, &str)]| page(&kept, query);
    let ids = |page: &Value| {
        let ids = page["data"].as_array().unwrap().iter().map(|i| i["id"].as_str().unwrap().to_string());
        (ids.collect::<Vec<_>>(), page["has_more"].as_bool().unwrap())
    };
    let newest = page(&[("limit", "2"), ("include[]", "x")]).unwrap();
    assert_eq!(ids(&newest), (vec!["fco_abc_in4".into(), "fc_abc_in3".into()], true));
    assert_eq!((&newest["first_id"], &newest["last_id"]), (&json!("fco_abc_in4"), &json!("fc_abc_in3")));
    let rest = page(&[("order", "asc"), ("after", "msg_abc_in2"), ("limit", "2")]).unwrap();
    assert_eq!(ids(&rest), (vec!["fc_abc_in3".into(), "fco_abc_in4".into()], false));
    assert_eq!(page(&[("after", "msg_abc_in0")]).unwrap()["first_id"], Value::Null);
    for (name, value) in [("limit", "0"), ("limit", "x"), ("order", "up"), ("after", "y"), ("before", "y")] {
        assert_eq!(page(&[(name, value)]).unwrap_err().param.as_deref(), Some(name));
    }
}

#[test]
fn reasoning_that_the_client_hides_is_no_input_item() {
    let parsed = |hides: bool| {
        let body = json!({"model": "m", "input": "A", "include_reasoning": !hides});
        parse(body.to_string().as_bytes()).unwrap()
    };
    let mut answer = Answer::default();
    for event in [
        started(),
        Event::Reasoning { choice: 0, text: "secret".into() },
        Event::Text { choice: 0, text: "B".into() },
    ] {
        answer.push(&event);
    }
    for (hides, kinds) in [
        (false, &["message", "reasoning", "message", "message"][..]),
        (true, &["message", "message", "message"]),
    ] {
        let first = conversation(&parsed(hides), &answer);
        assert_eq!(first[1].reasoning_text().as_deref(), Some("secret"), "the model sees it");
        let mut second = parsed(false);
        follow(&mut second, first);
        let kept = conversation(&second, &Answer::default());
        assert_eq!(input_len(&second), 3);
        let page = page(&kept, &[("order", "asc")]).unwrap();
        let listed: Vec<&str> =
            page["data"].as_array().unwrap().iter().map(|i| i["type"].as_str().unwrap()).collect();
        assert_eq!(listed, kinds);
    }
}

#[test]
fn references_are_found_without_reading_a_request() {
    let found = |body: Value| Vec::from_iter(referenced(body.to_string().as_bytes()));
    let items = json!([
        {"role": "user", "content": "fc_z_0"}, {"type": "item_reference", "id": "msg_a\n_0"}, {"id": "fc_b_1"}, {"id": "fc_b_2"}
    ]);
    assert_eq!(found(json!({"input": items, "previous_response_id": "resp_c"})), ["a\n", "b", "c"]);
    assert_eq!(found(json!({"input": "x", "previous_response_id": "c"})), ["c"]);
    for not in [
        json!("a\n"),
        json!([{"type": "message", "role": "user", "id": "msg_a_0", "content": []}]),
        json!([{"role": "user", "id": "msg_a_0", "content": "x"}]),
        json!([{"id": "a"}]),
        json!([1]),
        json!(null),
    ] {
        assert!(found(json!({"input": not})).is_empty(), "{not}");
    }
}

/// Stored conversations are read again by other versions.
#[test]
fn a_conversation_survives_its_way_through_a_database() {
    let items = json!([
        {"role": "user", "content": [
            {"type": "input_text", "text": "\u{0}What is this?"},
            {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
    ]);
    let request = parse(json!({"model": "m", "input": items}).to_string().as_bytes()).unwrap();
    let mut answer = Answer::default();
    answer.push(&Event::Text { choice: 0, text: "A square".into() });
    let kept = conversation(&request, &answer);
    assert_eq!(kept.len(), 4);
    let text = serde_json::to_string(&kept).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Message>>(&text).unwrap(), kept);
}

/// What Vercel's AI SDK sends back: it takes what it did not ask not to store for stored.
#[test]
fn items_of_stored_responses_are_referred_to() {
    let request = parse(json!({"model": "m", "input": "Hi"}).to_string().as_bytes()).unwrap();
    assert!(request.store, "stored unless the client says no");
    let body = json!({"output": [
        {"type": "reasoning", "id": "rs_abc_0", "summary": [], "content": [{"type": "reasoning_text", "text": "A"}]},
        {"type": "function_call", "id": "fc_abc_1", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"},
    ]})
    .to_string();
    let kept = |id: &str| {
        if response_of(id) == Some("abc") { output_items(body.as_bytes()).remove(id) } else { None }
    };
    let parse = |ids: &[&str]| {
        let mut input = vec![json!({"role": "user", "content": "Hi"})];
        input.extend(ids.iter().map(|id| json!({"type": "item_reference", "id": id})));
        input.push(json!({"type": "function_call_output", "call_id": "c", "output": "B"}));
        parse_with(json!({"model": "m", "input": input}).to_string().as_bytes(), &mut kept.clone())
    };
    let r = parse(&["rs_abc_0", "fc_abc_1"]).unwrap();
    let said = &r.chat().unwrap().messages[1];
    assert_eq!(said.reasoning, [ReasoningPart::Text { text: "A".into(), signature: None }]);
    assert_eq!((&*said.tool_calls[0].name, &*said.tool_calls[0].id), ("f", "c"));
    for (ids, says) in [
        (&["fc_abc_2"][..], "not stored"),
        (&["x"], "not stored"),
        (&["fc_abc_1", "fc_abc_1"], "already in the input"),
    ] {
        let e = parse(ids).unwrap_err();
        assert!(e.message.contains(says) && e.param.is_some_and(|p| p.ends_with("].id")), "{}", e.message);
    }
}

/// Name and place of every event.
fn shape(stream: &str) -> Vec<String> {
    data(stream)
        .iter()
        .map(|e| {
            let kind = e["type"].as_str().unwrap().trim_start_matches("response.");
            match e["output_index"].as_u64() {
                Some(i) => format!("{i} {kind}"),
                None => kind.to_string(),
            }
        })
        .collect()
}

#[test]
fn a_stream_in_order() {
    let stream = write(ResponseWriter::new(&request()), &everything());
    let expected = [
        "created",
        "in_progress",
        "0 output_item.added",
        "0 content_part.added",
        "0 reasoning_text.delta",
        "0 reasoning_text.delta",
        "0 reasoning_text.done",
        "0 content_part.done",
        "0 output_item.done",
        "1 output_item.added",
        "1 content_part.added",
        "1 output_text.delta",
        "1 output_text.delta",
        "1 output_text.delta",
        "1 output_text.done",
        "1 content_part.done",
        "1 output_item.done",
        "2 output_item.added",
        "2 function_call_arguments.delta",
        "2 function_call_arguments.done",
        "2 output_item.done",
        "3 output_item.added",
        "3 function_call_arguments.delta",
        "3 function_call_arguments.delta",
        "3 function_call_arguments.delta",
        "3 function_call_arguments.done",
        "3 output_item.done",
        "completed",
    ];
    assert_eq!(shape(&stream), expected);
    let events = data(&stream);
    let last = &events[events.len() - 1]["response"];
    let items: Vec<&Value> =
        events.iter().filter(|e| e["type"] == "response.output_item.done").map(|e| &e["item"]).collect();
    assert_eq!(last["output"].as_array().unwrap().iter().collect::<Vec<_>>(), items);
    assert_eq!(last["usage"]["total_tokens"], 19);
    assert_eq!(last["output"][3]["arguments"], "{\"zone\": \"CET\"}");
    assert!(!stream.contains("[DONE]"), "this dialect has none");
    let whole: Value =
        serde_json::from_slice(&response(&request(), &Answer::from_events(&everything()))).unwrap();
    assert_eq!(*last, whole, "a stream ends with the whole answer");
}

#[test]
fn failures_and_limits_are_reported() {
    let e = Event::Error(ApiError::new(ErrorKind::Overloaded, "too much"));
    let stream = write(ResponseWriter::new(&request()), &[started(), text("a"), e, text("b")]);
    let events = data(&stream);
    let last = &events[events.len() - 1];
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(last["response"]["error"], json!({"code": "server_error", "message": "too much"}));
    let stream = write(ResponseWriter::new(&request()), &script([text("a"), finished(FinishReason::Length)]));
    let events = data(&stream);
    let last = &events[events.len() - 1];
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert!(write(ResponseWriter::new(&request()), &[]).contains("ended before it was complete"));
}

#[test]
fn a_stored_conversation_is_continued() {
    let first = json!({"model": "m", "instructions": "A", "input": "B", "store": true});
    let first = parse(first.to_string().as_bytes()).unwrap();
    let kept = conversation(&first, &Answer::from_events(&everything()));
    let next = json!({"model": "m", "instructions": "C", "previous_response_id": "resp_abc",
        "input": [{"type": "function_call_output", "call_id": "call_1", "output": "18"}]});
    let mut next = parse(next.to_string().as_bytes()).unwrap();
    follow(&mut next, kept);
    let messages = &next.chat().unwrap().messages;
    let roles: Vec<_> = messages.iter().map(|m| m.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::Tool]);
    assert_eq!(messages[0], Message::text(Role::System, "C"), "instructions are of one request");
    assert_eq!(messages[2].tool_calls.len(), 2);
    assert_eq!(deleted("abc")["id"], "resp_abc");
}

proptest! {
    #[test]
    fn items_open_and_close_in_order(choice in any_choice(0)) {
        let all = script(choice);
        let events = data(&write(ResponseWriter::new(&request()), &all));
        let mut open: Option<(u64, String)> = None;
        let mut items = 0;
        for (i, e) in events.iter().enumerate() {
            prop_assert_eq!(e["sequence_number"].as_u64(), Some(i as u64));
            match e["type"].as_str().unwrap() {
                "response.output_item.added" => {
                    prop_assert!(open.is_none());
                    prop_assert_eq!(e["output_index"].as_u64(), Some(items));
                    open = Some((items, String::new()));
                }
                "response.output_item.done" => {
                    prop_assert_eq!(open.take().map(|o| o.0), Some(items));
                    items += 1;
                }
                kind if kind.ends_with(".delta") => {
                    let (at, all) = open.as_mut().unwrap();
                    prop_assert_eq!(e["output_index"].as_u64(), Some(*at));
                    all.push_str(e["delta"].as_str().unwrap());
                }
                "response.output_text.done" | "response.reasoning_text.done" => {
                    prop_assert_eq!(e["text"].as_str(), open.as_ref().map(|o| o.1.as_str()));
                }
                "response.function_call_arguments.done" => {
                    prop_assert_eq!(e["arguments"].as_str(), open.as_ref().map(|o| o.1.as_str()));
                }
                _ => {}
            }
        }
        let whole: Value = serde_json::from_slice(&response(&request(), &Answer::from_events(&all))).unwrap();
        prop_assert_eq!(&events[events.len() - 1]["response"], &whole);
    }
}
