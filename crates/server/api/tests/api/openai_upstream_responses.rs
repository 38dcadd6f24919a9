//! OpenAI's responses towards providers: what of a chat is sent there, and what is made of responses.

use crate::common::*;
use octet_api::ErrorKind;
use octet_api::core::*;
use octet_api::openai::chat;
use octet_api::openai::responses::{ResponseReader, ResponseWriter, body, events, parse, response};
use proptest::prelude::*;
use serde_json::{Value, json};

fn provider(request: &Value) -> (Value, Vec<&'static str>) {
    let b = body(&chat::parse(request.to_string().as_bytes()).unwrap(), "theirs").unwrap();
    (b.json.into(), b.dropped)
}

#[test]
fn a_chat_becomes_items() {
    let (json, dropped) = provider(&json!({
        "model": "m", "stream": true, "temperature": 0.5, "max_completion_tokens": 9, "reasoning_effort": "low",
        "logprobs": true, "top_logprobs": 2, "service_tier": "flex", "verbosity": "low", "parallel_tool_calls": false,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": true}},
        "tools": [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "messages": [
            {"role": "system", "content": "A"},
            {"role": "user", "content": [{"type": "text", "text": "B"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]},
            {"role": "assistant", "content": "C", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "warm"},
        ],
    }));
    assert_eq!(
        json,
        json!({
            "model": "theirs", "stream": true, "store": false, "temperature": 0.5, "max_output_tokens": 16,
            "reasoning": {"effort": "low"}, "top_logprobs": 2, "include": ["message.output_text.logprobs"],
            "service_tier": "flex", "parallel_tool_calls": false,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true}, "verbosity": "low"},
            "tools": [{"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": false}],
            "tool_choice": {"type": "function", "name": "weather"},
            "input": [
                {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "A"}]},
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text", "text": "B"},
                    {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "C"}]},
                {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "warm"},
            ],
        })
    );
    assert!(dropped.is_empty(), "{dropped:?}");
    // It is a request that our own endpoint reads as the same conversation.
    let read = parse(json.to_string().as_bytes()).unwrap();
    let messages = &read.chat().unwrap().messages;
    assert_eq!((messages.len(), messages[2].tool_calls[0].name.as_str()), (4, "weather"));
    let (json, dropped) =
        provider(&json!({"model": "m", "store": true, "stop": "x", "seed": 1, "n": 2, "top_k": 3,
        "messages": [{"role": "user", "content": "A"}]}));
    assert_eq!((&json["store"], dropped), (&json!(true), vec!["top_k", "seed", "stop", "n"]));
    let completion = octet_api::openai::completions::parse(br#"{"model": "m", "prompt": "A"}"#).unwrap();
    assert!(body(&completion, "m").unwrap_err().message.contains("accepts only chats"));
}

#[test]
fn fields_of_other_apis_are_not_mixed_up() {
    let message = json!([{"role": "user", "content": "A"}]);
    let theirs =
        json!({"model": "m", "max_tokens": 20, "service_tier": "standard_only", "messages": message});
    let request = octet_api::anthropic::messages::parse(theirs.to_string().as_bytes()).unwrap();
    assert_eq!(request.extra["service_tier"], "standard_only");
    assert_eq!(body(&request, "m").unwrap().json.get("service_tier"), None);
    let theirs = json!({"contents": [{"parts": [{"text": "A"}]}], "store": true});
    let request = octet_api::gemini::parse(theirs.to_string().as_bytes()).unwrap();
    assert_eq!(request.extra["store"], true);
    assert_eq!(body(&request, "m").unwrap().json["store"], false);
}

#[test]
fn metadata_is_stored_with_a_response() {
    let mut chat =
        json!({"model": "m", "metadata": {"k": "v"}, "messages": [{"role": "user", "content": "A"}]});
    let (sent, dropped) = provider(&chat);
    assert_eq!((sent.get("metadata"), dropped), (None, vec!["metadata"]));
    chat["store"] = true.into();
    let (sent, dropped) = provider(&chat);
    assert_eq!((&sent["metadata"], dropped), (&json!({"k": "v"}), vec![]));
}

/// Without the parts that responses do not have.
fn carried(answer: Answer) -> Answer {
    without(answer, |a| {
        a.timings = None;
        if let Some(usage) = &mut a.usage {
            usage.cache_written_tokens = None;
        }
        for choice in &mut a.choices {
            if matches!(choice.finish, Some(FinishReason::StopSequence(_))) {
                choice.finish = Some(FinishReason::Stop);
            }
        }
    })
}

#[test]
fn a_response_parses_to_itself() {
    let sent = everything();
    let wanted = carried(Answer::from_events(&sent));
    let got = |events: &[Event]| {
        let mut answer = carried(Answer::from_events(events));
        answer.id = answer.id.replace("resp_", "");
        answer
    };
    let stream = write(ResponseWriter::new(&request()), &sent);
    for piece in [1, 7, 100_000] {
        let read = got(&read(ResponseReader::new(), stream.as_bytes(), piece));
        assert_eq!(read, wanted, "{piece}");
    }
    let whole = response(&request(), &Answer::from_events(&sent));
    assert_eq!(got(&events(&whole).unwrap()), wanted);
}

/// What OpenAI sends, as its documentation shows it.
fn stream(events: &[Value]) -> String {
    let line = |e: &Value| format!("event: {}\ndata: {e}\n\n", e["type"].as_str().unwrap());
    events.iter().map(line).collect()
}

#[test]
fn a_stream_of_openai_is_read() {
    let created = json!({"type": "response.created", "response": {"id": "resp_9", "model": "o3", "created_at": 1_700_000_000.0, "status": "in_progress", "output": []}});
    let done = json!({"type": "response.completed", "response": {"id": "resp_9", "model": "o3", "status": "completed", "output": [],
        "usage": {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 12}}});
    let said = stream(&[
        created.clone(),
        json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs_1", "summary": []}}),
        json!({"type": "response.reasoning_summary_part.added", "output_index": 0, "summary_index": 0, "part": {"type": "summary_text", "text": ""}}),
        json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "One."}),
        json!({"type": "response.reasoning_summary_part.added", "output_index": 0, "summary_index": 1, "part": {"type": "summary_text", "text": ""}}),
        json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 1, "delta": "Two."}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "One."}]}}),
        json!({"type": "response.output_item.added", "output_index": 1, "item": {"type": "message", "id": "m", "role": "assistant", "content": []}}),
        json!({"type": "response.output_text.delta", "output_index": 1, "delta": "Hi", "logprobs": [{"token": "Hi", "logprob": -0.5, "top_logprobs": []}]}),
        json!({"type": "response.output_text.done", "output_index": 1, "text": "Hi"}),
        json!({"type": "response.output_item.done", "output_index": 1, "item": {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Hi"}]}}),
        json!({"type": "response.output_item.added", "output_index": 2, "item": {"type": "function_call", "id": "fc", "call_id": "c1", "name": "f", "arguments": ""}}),
        json!({"type": "response.output_item.done", "output_index": 2, "item": {"type": "function_call", "id": "fc", "call_id": "c1", "name": "f", "arguments": ""}}),
        json!({"type": "response.of_tomorrow", "output_index": 2}),
        done.clone(),
    ]);
    let events = read(ResponseReader::new(), said.as_bytes(), 5);
    let answer = Answer::from_events(&events);
    assert_eq!(
        (answer.id.as_str(), answer.model.as_str(), answer.created_s),
        ("resp_9", "o3", 1_700_000_000)
    );
    let choice = &answer.choices[0];
    assert_eq!(choice.text(), "Hi");
    assert_eq!(choice.reasoning().as_deref(), Some("One.\n\nTwo."));
    assert_eq!(choice.tool_calls().collect::<Vec<_>>(), [("c1", "f", "{}")]);
    assert_eq!((&choice.finish, choice.logprobs.len()), (&Some(FinishReason::ToolCalls), 1));
    let usage = answer.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.reasoning_tokens), (7, Some(3), Some(2)));

    // What ends it otherwise.
    let mut cut = done.clone();
    cut["type"] = "response.incomplete".into();
    cut["response"]["status"] = "incomplete".into();
    cut["response"]["incomplete_details"] = json!({"reason": "max_output_tokens"});
    let events = read(ResponseReader::new(), stream(&[created.clone(), cut]).as_bytes(), 99);
    assert!(events.contains(&finished(FinishReason::Length)), "{events:?}");
    let failed = json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow down"}}});
    let plain = json!({"type": "error", "code": "server_error", "message": "slow down", "param": null});
    for (last, kind) in [(failed, ErrorKind::RateLimit), (plain, ErrorKind::Upstream)] {
        let events = read(ResponseReader::new(), stream(&[created.clone(), last]).as_bytes(), 99);
        assert_eq!((error(&events).kind, error(&events).message.contains("slow down")), (kind, true));
    }
    for broken in [
        stream(std::slice::from_ref(&created)),
        stream(&[json!({"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "{"})]),
        stream(&[
            json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "function_call"}}),
        ]),
        "data: {\n\n".into(),
    ] {
        assert_eq!(error(&read(ResponseReader::new(), broken.as_bytes(), 99)).kind, ErrorKind::Upstream);
    }
    assert!(events_of(r#"{"object": "chat.completion"}"#).contains("no complete response"));
    assert!(events_of(r#"{"status": "failed", "error": {"message": "no"}}"#).contains("no"));
}

fn item(event: &str, number: u32, item: &Value) -> Value {
    json!({"type": format!("response.output_item.{event}"), "output_index": number, "item": item})
}

fn completed() -> Value {
    json!({"type": "response.completed", "response": {"id": "r", "model": "m", "status": "completed"}})
}

/// Items whose events overlap: each is emitted once, and complete.
#[test]
fn parallel_items_are_emitted_once() {
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": format!("{{\"{id}\":1}}")});
    let message = |text: &str| json!({"type": "message", "content": [{"type": "output_text", "text": text}]});
    let answer = |said: &[Value]| {
        let events = read(ResponseReader::new(), stream(said).as_bytes(), 99);
        let starts = events.iter().filter(|e| matches!(e, Event::ToolCallStart { .. })).count();
        let answer = Answer::from_events(&events);
        let calls: Vec<_> =
            answer.choices[0].tool_calls().map(|(id, _, a)| (id.to_string(), a.to_string())).collect();
        assert_eq!(starts, calls.len(), "{events:?}");
        (answer.choices[0].text(), calls)
    };
    let both = vec![("a".to_string(), "{\"a\":1}".to_string()), ("b".to_string(), "{\"b\":1}".to_string())];
    let (a, b) = (call("a"), call("b"));
    let delta = |number: u32, text: &str| json!({"type": "response.function_call_arguments.delta", "output_index": number, "delta": text});
    let announced = [item("added", 0, &a), item("added", 1, &b)];
    let done = [item("done", 0, &a), item("done", 1, &b), completed()];
    assert_eq!(answer(&[&announced[..], &done].concat()), (String::new(), both.clone()));
    // The same with the arguments in pieces, and with announcements and ends that are repeated.
    let pieces = [delta(0, "{\"a\""), delta(0, ":1}"), delta(1, "{\"b\":1}")];
    assert_eq!(answer(&[&announced[..], &pieces, &done[..1], &announced, &done].concat()).1, both);
    // Those of the first go on after the second has begun.
    let mixed = [delta(0, "{\"a\""), delta(1, "{\"b\""), delta(0, ":1}"), delta(1, ":1}")];
    assert_eq!(answer(&[&announced[..], &mixed, &done].concat()).1, both);
    // The second is complete first.
    let swapped = [item("done", 1, &b), item("done", 0, &a), completed()];
    assert_eq!(answer(&[&announced[..], &swapped].concat()).1, both);
    // A call of which nothing more came.
    assert_eq!(answer(&[item("added", 0, &a), completed()]).1, [("a".to_string(), "{}".to_string())]);
    let (x, y) = (message("X"), message("Y"));
    let text = json!({"type": "response.output_text.delta", "output_index": 0, "delta": "X"});
    for said in [
        vec![
            item("added", 0, &x),
            item("added", 1, &y),
            item("done", 0, &x),
            item("done", 1, &y),
            completed(),
        ],
        vec![
            item("added", 0, &x),
            text,
            item("added", 1, &y),
            item("done", 1, &y),
            item("done", 0, &x),
            completed(),
        ],
    ] {
        assert_eq!(answer(&said).0, "XY");
    }
    // Without numbers they come one after the other.
    let mut bare = [item("done", 0, &a), item("done", 0, &b), completed()];
    bare.iter_mut().for_each(|e| e["output_index"] = Value::Null);
    assert_eq!(answer(&bare).1, both);
}

/// Unknown items may have fields of the same names with other contents.
#[test]
fn unknown_items_and_events_are_skipped() {
    let message = json!({"type": "message", "content": [
        {"type": "of_tomorrow", "text": {"a": 1}}, {"type": "output_text", "text": "X"}]});
    let other = json!({"type": "mcp_call", "name": 1, "arguments": {"a": 1}, "content": "text", "summary": 7, "call_id": {}});
    let said = [
        item("added", 0, &other),
        item("done", 0, &other),
        json!({"type": "response.of_tomorrow", "output_index": null, "summary_index": "1", "item": 1, "response": "x", "logprobs": {}}),
        item("done", 1, &message),
        completed(),
    ];
    let streamed = read(ResponseReader::new(), stream(&said).as_bytes(), 99);
    let whole = json!({"id": "r", "model": "m", "status": "completed", "output": [other, message]});
    let whole = events(whole.to_string().as_bytes()).unwrap();
    for events in [streamed, whole] {
        let answer = Answer::from_events(&events);
        assert_eq!((answer.choices[0].text().as_str(), answer.choices[0].tool_calls().count()), ("X", 0));
        assert_eq!(answer.choices[0].finish, Some(FinishReason::Stop));
    }
    // Known items must have their own shape.
    let wrong = json!({"status": "completed", "output": [{"type": "message", "content": "text"}]});
    assert!(events_of(&wrong.to_string()).contains("cannot be read"));
}

fn events_of(body: &str) -> String {
    events(body.as_bytes()).unwrap_err().message
}

proptest! {
    #[test]
    fn nothing_is_lost_on_the_way(choice in any_choice(0), piece in 1usize..64) {
        let sent = script(choice);
        let stream = write(ResponseWriter::new(&request()), &sent);
        let read = Answer::from_events(&read(ResponseReader::new(), stream.as_bytes(), piece));
        let (read, wanted) = (carried(read), carried(Answer::from_events(&sent)));
        prop_assert_eq!(read.choices.first().map(|c| (c.text(), c.reasoning())), wanted.choices.first().map(|c| (c.text(), c.reasoning())));
        let calls = |a: &Answer| a.choices.iter().flat_map(|c| c.tool_calls()).map(|(_, name, arguments)| (name.to_string(), arguments.to_string())).collect::<Vec<_>>();
        prop_assert_eq!(calls(&read), calls(&wanted));
        prop_assert_eq!(read.choices.first().map(|c| c.finish.clone()), wanted.choices.first().map(|c| c.finish.clone()));
    }
}
