//! OpenAI's chat dialect towards providers: requests, answers, and round trips
//! without losses.

use crate::common::*;
use octet_api::core::*;
use octet_api::openai::chat::{ChunkReader, ChunkWriter, Flavor, body, events, parse, response};
use octet_api::{ApiError, ErrorKind};
use proptest::prelude::*;
use serde_json::{Value, json};

fn provider(request: &Value, flavor: Flavor) -> (Value, Vec<&'static str>) {
    let b = body(&parse(request.to_string().as_bytes()).unwrap(), "theirs", flavor).unwrap();
    (b.json.into(), b.dropped)
}

#[test]
fn openai_gets_only_what_it_knows() {
    let (json, dropped) = provider(
        &json!({
            "model": "m", "messages": [
                {"role": "developer", "content": "A"},
                {"role": "assistant", "content": "B", "reasoning_content": "C"},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}],
            "max_tokens": 5, "top_k": 3, "min_p": 0.5, "enable_thinking": false, "stream": true, "metadata": {"a": "b"},
            "guided_choice": ["a"], "service_tier": "flex", "request_id": "r", "temperature": 0.7,
        }),
        Flavor::OpenAi,
    );
    assert_eq!(
        json,
        json!({
            "model": "theirs", "messages": [
                {"role": "developer", "content": "A"}, {"role": "assistant", "content": "B"},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}],
            "reasoning_effort": "none", "temperature": 0.7, "max_completion_tokens": 5, "stream": true,
            "stream_options": {"include_usage": true}, "service_tier": "flex",
        })
    );
    assert_eq!(dropped, ["top_k", "min_p", "structured_outputs"]);
}

#[test]
fn budgets_become_efforts_and_schemas_get_names() {
    let request = json!({"model": "m", "messages": [{"role": "user", "content": "A"}],
        "thinking_budget": 5000, "guided_json": {"type": "object"}});
    let (json, dropped) = provider(&request, Flavor::OpenAi);
    assert_eq!(json["reasoning_effort"], "medium");
    let switched =
        json!({"model": "x", "messages": [{"role": "user", "content": "A"}], "enable_thinking": true});
    assert_eq!(provider(&switched, Flavor::OpenAi).0["reasoning_effort"], "medium");
    assert_eq!(json["response_format"]["json_schema"]["name"], "answer");
    assert!(dropped.is_empty());
    let (json, _) = provider(&request, Flavor::Extended);
    assert_eq!(
        (&json["thinking_token_budget"], &json["structured_outputs"]["json"]),
        (&json!(5000), &json!({"type": "object"}))
    );
    assert!(json.get("reasoning_effort").is_none());
}

fn chunk(choices: Value) -> String {
    format!("data: {}\n\n", json!({"id": "x", "created": 1, "model": "p", "choices": choices}))
}

fn stream(deltas: &[Value], end: &str) -> Vec<Event> {
    let mut text: String = deltas.iter().map(|d| chunk(json!([{"index": 0, "delta": d}]))).collect();
    text += end;
    read(ChunkReader::new(), text.as_bytes(), usize::MAX)
}

#[test]
fn server_quirks_are_handled() {
    let stop = chunk(json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]));
    // Calls without numbers, arguments as an object, `stop` instead of `tool_calls`, no [DONE].
    let call = |name: &str, args: Value| json!({"tool_calls": [{"id": "", "function": {"name": name, "arguments": args}}]});
    let got = Answer::from_events(&stream(&[call("a", json!({"x": 1})), call("b", json!("{}"))], &stop));
    assert_eq!(got.error, None);
    assert_eq!(got.choices[0].finish, Some(FinishReason::ToolCalls));
    let calls: Vec<_> = got.choices[0].tool_calls().collect();
    assert_eq!(calls, [("call_x_0_0", "a", "{\"x\":1}"), ("call_x_0_1", "b", "{}")]);
    // The whole call again and again, with numbers that begin at 1.
    let call = |args: &str| json!({"tool_calls": [{"index": 1, "id": "i", "function": {"name": "f", "arguments": args}}]});
    let got = Answer::from_events(&stream(&[call("{"), call("}")], &stop));
    assert_eq!(got.choices[0].tool_calls().collect::<Vec<_>>(), [("i", "f", "{}")]);
    // Azure's first chunk, comments, `reasoning` instead of `reasoning_content`.
    let azure =
        "data: {\"id\":\"\",\"choices\":[],\"prompt_filter_results\":[]}\n\n: OPENROUTER PROCESSING\n\n";
    let text = format!(
        "{azure}{}{stop}",
        chunk(json!([{"index": 0, "delta": {"reasoning": "r", "content": null}}]))
    );
    let got = read(ChunkReader::new(), text.as_bytes(), 7);
    assert!(matches!(&got[0], Event::Started { id, .. } if id == "x"));
    assert_eq!(got[1], reasoning("r"));
    // A refusal is text, and a reason to end.
    let got = Answer::from_events(&stream(&[json!({"refusal": "No."})], &stop));
    assert_eq!(
        (got.choices[0].text(), got.choices[0].finish.clone()),
        ("No.".into(), Some(FinishReason::ContentFilter))
    );
}

/// The calls of a stream: id, name, arguments; and how the answer ended.
fn calls(deltas: &[Value], finish: &str) -> (Vec<[String; 3]>, Option<FinishReason>) {
    let end = chunk(json!([{"index": 0, "delta": {}, "finish_reason": finish}]));
    let events = stream(deltas, &end);
    let mut open = None;
    for event in &events {
        match event {
            Event::ToolCallStart { index, .. } => open = Some(*index),
            Event::ToolCallArguments { index, .. } => assert_eq!(open, Some(*index), "{events:?}"),
            _ => {}
        }
    }
    let answer = Answer::from_events(&events);
    assert_eq!(answer.error, None);
    let choice = &answer.choices[0];
    let calls = choice.tool_calls().map(|(id, name, arguments)| [id, name, arguments].map(String::from));
    (calls.collect(), choice.finish.clone())
}

/// openai-python reads these streams into the same calls.
#[test]
fn calls_whose_pieces_are_interleaved_stay_apart() {
    let both = [["a", "alpha", "{\"x\":1}"], ["b", "beta", "{\"y\":2}"]].map(|call| call.map(String::from));
    let begin = |i: u32, id: &str, name: &str| json!({"index": i, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
    let more = |i: u32, text: &str| json!({"tool_calls": [{"index": i, "function": {"arguments": text}}]});
    let both_begin = json!({"tool_calls": [begin(0, "a", "alpha"), begin(1, "b", "beta")]});
    let pieces = [more(0, "{\"x\":"), more(1, "{\"y\":"), more(0, "1}"), more(1, "2}")];
    let said = [&[both_begin.clone()][..], &pieces].concat();
    assert_eq!(calls(&said, "tool_calls"), (both.to_vec(), Some(FinishReason::ToolCalls)));
    // The second one is complete first.
    let said = [both_begin.clone(), more(1, "{\"y\":2}"), more(0, "{\"x\":1}")];
    assert_eq!(calls(&said, "tool_calls").0, both);
    // All calls with the number 0, each whole, as Gemini's compatible endpoint sends them.
    let whole = |id: &str, name: &str, text: &str| json!({"tool_calls": [{"index": 0, "id": id, "function": {"name": name, "arguments": text}}]});
    let said = [whole("a", "alpha", "{\"x\":1}"), whole("b", "beta", "{\"y\":2}")];
    assert_eq!(calls(&said, "stop"), (both.to_vec(), Some(FinishReason::ToolCalls)));
    // A name in pieces, and one that is repeated.
    let named = |name: &str, text: &str| json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": name, "arguments": text}}]});
    let said = [named("al", ""), named("pha", ""), named("", "{\"x\":1}")];
    assert_eq!(calls(&said, "tool_calls").0, both[..1]);
    let said = [named("alpha", "{\"x\""), named("alpha", ":1}")];
    assert_eq!(calls(&said, "tool_calls").0, both[..1]);
    // A new id in each piece.
    let said = [
        json!({"tool_calls": [begin(0, "a", "alpha")]}),
        json!({"tool_calls": [{"index": 0, "id": "z", "function": {"arguments": "{\"x\":1}"}}]}),
    ];
    assert_eq!(calls(&said, "tool_calls").0, both[..1]);
    // A call without arguments has none only if the answer is whole.
    let said = [both_begin, more(0, "{\"x\":")];
    assert_eq!(calls(&said, "length").0, [["a", "alpha", "{\"x\":"].map(String::from)]);
}

/// Mistral's documentation: a list of parts, in whole answers and in streams.
#[test]
fn content_in_parts_is_reasoning_and_text() {
    let thinking = |text: &str| json!({"type": "thinking", "thinking": [{"type": "text", "text": text}]});
    let parts = json!([thinking("Okay"), {"type": "text", "text": "ans"}, {"type": "reference", "reference_ids": [1]}]);
    let whole = json!({"id": "x", "created": 1, "model": "p", "choices": [{
        "index": 0, "message": {"role": "assistant", "content": parts}, "finish_reason": "stop"}]});
    let expected = vec![reasoning("Okay"), text("ans"), finished(FinishReason::Stop)];
    assert_eq!(events(whole.to_string().as_bytes()).unwrap()[1..], expected);
    let stop = chunk(json!([{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]));
    let said = [
        json!({"content": [thinking("Ok")]}),
        json!({"content": [thinking("ay")]}),
        json!({"content": "ans"}),
    ];
    let answer = Answer::from_events(&stream(&said, &stop));
    assert_eq!(
        (answer.choices[0].reasoning(), answer.choices[0].text()),
        (Some("Okay".into()), "ans".into())
    );
    assert!(error(&stream(&[json!({"content": 5})], &stop)).message.contains("content"));
}

/// A chat client gets Claude's signature, sends it back in any form, and Claude gets its block unchanged.
#[test]
fn signed_reasoning_survives_a_chat_client() {
    use octet_api::anthropic::messages;
    let request = json!({"model": "m", "messages": [{"role": "user", "content": "A"}]});
    let signature = Event::ReasoningSignature { choice: 0, signature: "S".into() };
    let redacted = Event::RedactedReasoning { choice: 0, data: "D".into() };
    let mut said = vec![started()];
    said.extend([
        reasoning("T1"),
        reasoning("T2"),
        signature,
        redacted,
        text("B"),
        finished(FinishReason::Stop),
    ]);
    let parsed = parse(request.to_string().as_bytes()).unwrap();
    let whole: Value = serde_json::from_slice(&response(&parsed, &Answer::from_events(&said))).unwrap();
    let whole = whole["choices"][0]["message"].clone();
    let streamed = write(ChunkWriter::new(&parsed), &said);
    let lists = |name: &str| -> Vec<Value> {
        let chunks =
            streamed.split("data: ").filter_map(|line| serde_json::from_str::<Value>(line.trim()).ok());
        chunks.filter_map(|c| c["choices"][0]["delta"][name].as_array().cloned()).flatten().collect()
    };
    assert_eq!(Value::from(lists("thinking_blocks")), whole["thinking_blocks"]);
    let expected = json!([{"type": "thinking", "thinking": "T1T2", "signature": "S"}, {"type": "redacted_thinking", "data": "D"}]);
    for name in ["thinking_blocks", "reasoning_details"] {
        let history =
            json!({"role": "assistant", "content": "B", "reasoning_content": "T1T2", (name): whole[name]});
        let next = json!({"model": "m", "messages": [{"role": "user", "content": "A"}, history, {"role": "user", "content": "C"}]});
        let next = parse(next.to_string().as_bytes()).unwrap();
        let claude = messages::Provider { max_tokens: 100, is_limit: false, adaptive: false };
        let sent = Value::from(messages::body(&next, "claude", claude).unwrap().json);
        let blocks = sent["messages"][1]["content"].as_array().unwrap();
        assert_eq!(Value::from(blocks[..2].to_vec()), expected, "{name}");
    }
}

/// OpenAI's schema has no documents among images.
#[test]
fn documents_are_files() {
    let url = "data:application/pdf;base64,JVBERi0=";
    let request = json!({"model": "m", "messages": [{"role": "user", "content": [
        {"type": "file", "file": {"filename": "a.pdf", "file_data": url}}]}]});
    let part = &provider(&request, Flavor::OpenAi).0["messages"][0]["content"][0];
    assert_eq!((&part["type"], &part["file"]["file_data"]), (&json!("file"), &json!(url)));
}

/// As LiteLLM's clients mark prefixes for Claude: parts, whole messages, tools.
#[test]
fn cache_control_of_chat_clients_reaches_claude() {
    use octet_api::anthropic::messages;
    let mark = json!({"type": "ephemeral", "ttl": "1h"});
    let request = json!({"model": "m",
        "tools": [{"type": "function", "function": {"name": "f"}, "cache_control": mark}],
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "S", "cache_control": mark}]},
            {"role": "user", "content": "A", "cache_control": {"type": "ephemeral"}},
            {"role": "assistant", "content": "B"},
            {"role": "user", "content": "C"}]});
    let parsed = parse(request.to_string().as_bytes()).unwrap();
    let claude = messages::Provider { max_tokens: 100, is_limit: false, adaptive: false };
    let sent = Value::from(messages::body(&parsed, "claude", claude).unwrap().json);
    assert_eq!(sent["tools"][0]["cache_control"], mark);
    assert_eq!(sent["system"], json!([{"type": "text", "text": "S", "cache_control": mark}]));
    let marked = json!([{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}]);
    assert_eq!((&sent["messages"][0]["content"], &sent["messages"][2]["content"]), (&marked, &json!("C")));
    // Other providers do not know it.
    assert!(!provider(&request, Flavor::Extended).0.to_string().contains("cache"), "{request}");
}

/// LiteLLM's and OpenRouter's forms of signed reasoning.
#[test]
fn signed_reasoning_of_other_routers_is_read() {
    let block = json!({"type": "thinking", "thinking": "T", "signature": "S"});
    let detail =
        json!({"type": "reasoning.text", "text": "T", "signature": "S", "format": "anthropic-claude-v1"});
    let expected = [reasoning("T"), Event::ReasoningSignature { choice: 0, signature: "S".into() }];
    for message in [
        json!({"reasoning_content": "T", "thinking_blocks": [block]}),
        json!({"reasoning": "T", "reasoning_details": [detail]}),
    ] {
        let whole =
            json!({"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
        assert_eq!(events(whole.to_string().as_bytes()).unwrap()[1..3], expected);
    }
    // Another provider's cannot be verified by Claude.
    let other = json!({"type": "reasoning.encrypted", "data": "x", "format": "openai-responses-v1"});
    let whole = json!({"id": "x", "choices": [{"index": 0, "message": {"reasoning_details": [other]}, "finish_reason": "stop"}]});
    assert_eq!(events(whole.to_string().as_bytes()).unwrap()[1..], [finished(FinishReason::Stop)]);
}

#[test]
fn broken_streams_end_in_one_error() {
    let done = "data: [DONE]\n\n";
    let hi = [json!({"content": "Hi"})];
    for end in ["", done, "data: {\"cho", "data: <html>\n\n", "data: {\"choices\": 5}\n\n", "data: \u{0}\n\n"]
    {
        let got = stream(&hi, end);
        assert_eq!(got[1], text("Hi"), "what came before stays");
        assert_eq!(error(&got).kind, ErrorKind::Upstream, "{end}");
    }
    let limit = "data: {\"error\": {\"message\": \"slow down\", \"code\": 429}}\n\n";
    assert_eq!(
        error(&stream(&hi, limit)),
        &ApiError { code: None, ..ApiError::new(ErrorKind::RateLimit, "slow down") }
    );
    for body in ["", "<html>nope</html>", "{}", "[DONE]"] {
        error(&read(ChunkReader::new(), body.as_bytes(), 3));
        assert!(events(body.as_bytes()).is_err());
    }
    let nameless = json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]});
    assert!(error(&stream(&[nameless], done)).message.contains("without saying which"));
    let call = |i: u32, text: &str| json!({"tool_calls": [{"index": i, "id": i.to_string(), "function": {"name": "f", "arguments": text}}]});
    let late = [call(0, "{}"), call(1, "{}"), call(0, "}")];
    assert!(error(&stream(&late, done)).message.contains("was complete"));
    let after = format!("{}{done}", chunk(json!([{"index": 0, "delta": {}, "finish_reason": "stop"}])));
    let got = stream(&hi, &format!("{after}{}", chunk(json!([{"index": 0, "delta": {"content": "late"}}]))));
    assert_eq!(got.last(), Some(&finished(FinishReason::Stop)), "nothing counts after the end");
}

/// Fields that OpenAI's dialect does not have.
fn comparable(mut a: Answer) -> Answer {
    a.id = a.id.trim_start_matches("chatcmpl-").into();
    if let Some(t) = &mut a.timings {
        (t.load_ms, t.total_ms) = (0.0, t.prompt_ms + t.predicted_ms);
    }
    for c in &mut a.choices {
        for t in &mut c.logprobs {
            t.top.iter_mut().filter(|t| t.logprob.is_infinite()).for_each(|t| t.logprob = -9999.0);
        }
        c.blocks.retain(|b| !matches!(b, Block::Text(t) if t.is_empty()));
    }
    a
}

#[test]
fn there_and_back() {
    let r = GenerateRequest { logprobs: Some(1), ..request() };
    let mut all = everything();
    all.insert(3, Event::Logprobs { choice: 0, tokens: vec![logprob("Looking", -0.125)] });
    let expected = comparable(Answer::from_events(&all));
    let stream = write(ChunkWriter::new(&r), &all);
    for piece in [1, 2, 3, 64, usize::MAX] {
        let got = Answer::from_events(&read(ChunkReader::new(), stream.as_bytes(), piece));
        assert_eq!(comparable(Answer { usage: got.usage, ..got }), expected, "{piece}");
    }
    let whole = response(&r, &Answer::from_events(&all));
    assert_eq!(comparable(Answer::from_events(&events(&whole).unwrap())), expected);
}

fn maybe<T: std::fmt::Debug + Clone + 'static>(
    s: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Option<T>> {
    prop::option::of(s).boxed()
}

/// Numbers that survive serde_json's quick reading of decimals, which is off by one bit at times.
fn number(range: std::ops::Range<i32>) -> BoxedStrategy<f64> {
    (range.start * 64..range.end * 64).prop_map(|n| f64::from(n) / 64.0).boxed()
}

fn any_sampling() -> impl Strategy<Value = Sampling> {
    let biases = prop::collection::btree_map(any::<u32>(), number(-100..100), 0..3)
        .prop_map(|m| m.into_iter().collect());
    (
        (
            maybe(number(0..9)),
            maybe(any::<u32>()),
            maybe(number(0..1)),
            maybe(number(0..1)),
            maybe(number(1..9)),
        ),
        (maybe(-1..9i32), maybe(number(-2..2)), maybe(number(-2..2)), maybe(0..u64::MAX), biases),
    )
        .prop_map(
            |(
                (temperature, top_k, top_p, min_p, repetition_penalty),
                (last_n, presence, frequency, seed, logit_bias),
            )| Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty,
                penalty_last_n: last_n,
                presence_penalty: presence,
                frequency_penalty: frequency,
                seed,
                logit_bias,
                ..Sampling::default()
            },
        )
}

fn any_message() -> impl Strategy<Value = Message> {
    let parts = || prop::collection::vec(any_text().prop_map(Part::text), 1..3);
    let call = (any_text(), "[a-z]{1,5}", any_arguments()).prop_map(|(id, name, arguments)| ToolCall {
        id,
        name,
        arguments,
        cache: None,
    });
    prop_oneof![
        (prop::sample::select(vec![Role::System, Role::User]), parts(), maybe(any_text()))
            .prop_map(|(role, content, name)| Message { content, name, ..Message::empty(role) }),
        (parts(), any_text()).prop_map(|(content, id)| Message {
            content,
            tool_call_id: Some(id),
            ..Message::empty(Role::Tool)
        }),
        (prop::option::of(any_text()), maybe(any_text()), prop::collection::vec(call, 0..3)).prop_map(
            |(text, thought, tool_calls)| Message {
                content: text.into_iter().map(Part::text).collect(),
                reasoning: thought
                    .into_iter()
                    .map(|text| ReasoningPart::Text { text, signature: None })
                    .collect(),
                tool_calls,
                ..Message::empty(Role::Assistant)
            }
        ),
    ]
}

fn any_format() -> impl Strategy<Value = ResponseFormat> {
    let name = || "[a-z]{1,5}".prop_map(String::from);
    let schema = prop_oneof![Just(json!({"type": "object"})), Just(json!({}))];
    prop_oneof![
        Just(ResponseFormat::Text),
        Just(ResponseFormat::JsonObject),
        (name(), maybe(any_text()), schema, maybe(any::<bool>())).prop_map(
            |(name, description, schema, strict)| {
                ResponseFormat::JsonSchema { name: Some(name), description, schema, strict }
            }
        ),
        name().prop_map(ResponseFormat::Regex),
        name().prop_map(ResponseFormat::Grammar),
        prop::collection::vec(name(), 1..3).prop_map(ResponseFormat::Choice),
    ]
}

fn any_chat() -> impl Strategy<Value = Chat> {
    let tool =
        ("[a-z]{1,5}", maybe(any_text()), maybe(any::<bool>())).prop_map(|(name, description, strict)| {
            Tool {
                name,
                description,
                parameters: json!({"type": "object", "properties": {}}).as_object().unwrap().clone(),
                strict,
                cache: None,
                origin: ToolOrigin::default(),
            }
        });
    let effort = prop::sample::select(Effort::NAMES.map(|e| e.1).to_vec());
    (
        prop::collection::vec(any_message(), 1..5),
        prop::collection::vec(tool, 0..3),
        0..4u8,
        maybe(any::<bool>()),
        (maybe(effort), maybe(any::<bool>()), maybe(0..9999u32), any::<bool>()),
    )
        .prop_map(|(messages, mut tools, choice, parallel, (effort, enabled, budget_tokens, hide))| {
            tools.sort_by(|a, b| a.name.cmp(&b.name));
            tools.dedup_by(|a, b| a.name == b.name);
            let tool_choice = match (choice, tools.first()) {
                (1, Some(_)) => ToolChoice::None,
                (2, Some(_)) => ToolChoice::Required,
                (3, Some(t)) => ToolChoice::Named(t.name.clone()),
                _ => ToolChoice::Auto,
            };
            let enabled = if effort.is_some() { Some(true) } else { enabled };
            Chat {
                messages,
                parallel_tool_calls: parallel.filter(|_| !tools.is_empty()),
                tools,
                tool_choice,
                reasoning: Reasoning { enabled, effort, budget_tokens, hide },
                ..Chat::default()
            }
        })
}

fn any_request() -> impl Strategy<Value = GenerateRequest> {
    (
        any_chat(),
        any_sampling(),
        (maybe(10..999u32), maybe(1..9u32), 1..9u32, maybe(0..20u32)),
        prop::collection::vec(any_text(), 0..3),
        any_format(),
        (any::<bool>(), maybe(any::<bool>()), maybe("[a-z]{1,4}".prop_map(String::from)), maybe(any_text())),
    )
        .prop_map(
            |(
                chat,
                sampling,
                (max_tokens, min_tokens, n, logprobs),
                stop,
                response_format,
                (stream, prompt, salt, user),
            )| {
                GenerateRequest {
                    sampling,
                    max_tokens,
                    min_tokens,
                    stop,
                    n,
                    logprobs,
                    response_format,
                    stream,
                    include_usage: stream,
                    cache: CacheOptions { prompt, salt },
                    user,
                    ..GenerateRequest::new("m", Input::Chat(chat))
                }
            },
        )
}

proptest! {
    #[test]
    fn requests_round_trip_through_the_dialect(request in any_request()) {
        let sent = body(&request, "m", Flavor::Extended).unwrap();
        prop_assert!(sent.dropped.is_empty());
        let text = Value::from(sent.json).to_string();
        let read = parse(text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"));
        // Several fields can ask for a form; errors name the one that did.
        let request = GenerateRequest { response_format_field: read.response_format_field.clone(), ..request };
        prop_assert_eq!(read, request);
    }

    #[test]
    fn answers_round_trip_through_the_dialect(
        a in any_choice(0), b in any_choice(3), piece in 1usize..50, counts in any::<bool>(),
    ) {
        let mut all = vec![started()];
        let (mut a, mut b) = (a.into_iter(), b.into_iter());
        loop {
            let before = all.len();
            all.extend(a.next());
            all.extend(b.next());
            if all.len() == before { break }
        }
        if counts {
            all.extend([Event::Usage(usage()), Event::Timings(timings())]);
        }
        let expected = comparable(Answer::from_events(&all));
        let stream = write(ChunkWriter::new(&request()), &all);
        let got = comparable(Answer::from_events(&read(ChunkReader::new(), stream.as_bytes(), piece)));
        prop_assert_eq!(Answer { usage: expected.usage, ..got }, expected.clone());
        let whole = events(&response(&request(), &Answer::from_events(&all))).unwrap();
        let mut got = comparable(Answer::from_events(&whole));
        got.usage = expected.usage;
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn any_stream_is_harmless(bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1usize..50) {
        error(&read(ChunkReader::new(), &bytes, piece));
        prop_assert!(parse(&bytes).is_err());
    }
}
