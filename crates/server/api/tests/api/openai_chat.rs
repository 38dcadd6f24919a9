//! OpenAI's chat dialect towards clients: what is read, what is refused, what is written.

use crate::common::*;
use octet_api::core::*;
use octet_api::openai::chat::{ChunkWriter, parse, response};
use octet_api::{ApiError, ErrorKind};
use serde_json::{Value, json};

fn parsed(body: Value) -> GenerateRequest {
    parse(body.to_string().as_bytes()).unwrap_or_else(|e| panic!("{body}: {e}"))
}

/// A minimal request with more fields.
fn with(fields: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[track_caller]
fn refused(fields: Value, param: &str, message: &str) {
    let e: ApiError = parse(with(fields.clone()).to_string().as_bytes()).expect_err(&fields.to_string());
    assert_eq!(e.kind, ErrorKind::InvalidRequest);
    assert_eq!(e.param.as_deref(), Some(param), "{e}");
    assert!(e.message.contains(message), "{e}");
}

#[test]
fn a_whole_request() {
    let r = parsed(json!({
        "model": "m", "stream": true, "stream_options": {"include_usage": true}, "n": 2,
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": " brief."}]},
            {"role": "user", "content": "Weather?", "name": "ann"},
            {"role": "assistant", "content": null, "reasoning_content": "Hm.", "refusal": null, "annotations": [],
             "audio": null, "function_call": null,
             "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "w", "arguments": "{\"a\": 1}"}, "index": 0}]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ],
        "tools": [{"type": "function", "function": {"name": "w", "description": "d", "parameters": {"type": "object"}, "strict": true}}],
        "tool_choice": {"type": "function", "function": {"name": "w"}}, "parallel_tool_calls": false,
        "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, "repeat_last_n": -1,
        "presence_penalty": -1, "frequency_penalty": 2, "seed": 7, "logit_bias": {"11": -100, "5": 1.5},
        "max_completion_tokens": 100, "min_tokens": 3, "stop": ["a", "b"], "stop_token_ids": [4], "ignore_eos": true,
        "logprobs": true, "top_logprobs": 3, "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": true}},
        "chat_template_kwargs": {"enable_thinking": true, "preserve_thinking": true},
        "cache_prompt": true, "cache_salt": "s", "user": "u", "metadata": {"k": "v"}, "service_tier": "auto", "store": false,
        "modalities": ["text"], "best_of": null, "typical_p": 1.0, "prompt_cache_key": "p",
    }));
    assert!(r.stream && r.include_usage && r.ignore_eos);
    let chat = r.chat().unwrap();
    assert_eq!(
        chat.messages.iter().map(|m| m.role.name()).collect::<Vec<_>>(),
        ["developer", "user", "assistant", "tool"]
    );
    assert_eq!(chat.messages[0].content, [Part::text("Be"), Part::text(" brief.")]);
    assert_eq!(chat.messages[2].reasoning_text().unwrap(), "Hm.");
    assert_eq!(chat.messages[2].tool_calls[0].arguments, "{\"a\": 1}");
    assert_eq!(chat.messages[3].tool_call_id.as_deref(), Some("c1"));
    assert_eq!(chat.tool_choice, ToolChoice::Named("w".into()));
    assert_eq!((chat.reasoning.enabled, chat.reasoning.effort), (Some(true), Some(Effort::Low)));
    assert_eq!(chat.template_kwargs.len(), 1, "thinking is switched in one place");
    assert_eq!(
        r.sampling,
        Sampling {
            temperature: Some(0.5),
            top_k: Some(20),
            top_p: Some(0.9),
            min_p: Some(0.1),
            repetition_penalty: Some(1.1),
            penalty_last_n: Some(-1),
            presence_penalty: Some(-1.0),
            frequency_penalty: Some(2.0),
            seed: Some(7),
            logit_bias: vec![(5, 1.5), (11, -100.0)],
            more: MoreSampling { typical_p: Some(1.0), ..MoreSampling::default() },
        }
    );
    assert!(r.sampling.more.fields().is_empty(), "a sampler that is off is sent to no provider");
    assert_eq!((r.max_tokens, r.min_tokens, r.n, r.logprobs), (Some(100), Some(3), 2, Some(3)));
    assert_eq!((r.stop.len(), r.stop_token_ids.as_slice()), (2, &[4][..]));
    assert_eq!(r.cache, CacheOptions { prompt: Some(true), salt: Some("s".into()) });
    assert!(r.extra.contains_key("service_tier") && r.extra.contains_key("prompt_cache_key"));
}

#[test]
fn null_is_absent() {
    let fields = [
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "logit_bias",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "n",
        "logprobs",
        "top_logprobs",
        "response_format",
        "stream",
        "stream_options",
        "reasoning_effort",
        "chat_template_kwargs",
        "user",
        "metadata",
        "store",
        "audio",
        "whatever",
    ];
    let nulls = fields.iter().map(|f| (f.to_string(), Value::Null)).collect();
    assert_eq!(parsed(with(Value::Object(nulls))), parsed(with(json!({}))));
}

#[test]
fn errors_name_the_field() {
    refused(
        json!({"modalities": ["text", "audio"]}),
        "modalities",
        r#"["text","audio"] is not supported: answers are text"#,
    );
    let functions = json!([{"name": "f"}]);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    refused(json!({"functions": functions, "tools": tools}), "functions", "exclude each other");
    refused(
        json!({"functions": functions, "function_call": {"name": "g"}}),
        "function_call",
        "not in 'functions'",
    );
    refused(
        json!({"functions": functions, "tool_choice": "required"}),
        "tool_choice",
        "send 'function_call'",
    );
    refused(json!({"function_call": {"name": "f"}}), "function_call", "send 'tool_choice'");
    refused(
        json!({"temperature": "hot"}),
        "temperature",
        "must be a number from 0 up, got the string \"hot\"",
    );
    refused(json!({"top_p": "most"}), "top_p", "from 0 to 1");
    refused(json!({"frequency_penalty": 3}), "frequency_penalty", "from -2 to 2");
    refused(json!({"repeat_penalty": 0}), "repeat_penalty", "from 0.01 to 100");
    refused(json!({"max_tokens": 0}), "max_tokens", "from 1 up");
    refused(json!({"max_tokens": 5, "max_completion_tokens": 6}), "max_tokens", "contradict");
    refused(json!({"n": 1000}), "n", "from 1 to 128");
    refused(json!({"stop": vec!["a"; 65]}), "stop", "at most 64");
    refused(json!({"logit_bias": {"x": 1}}), "logit_bias.x", "token ids");
    refused(json!({"logit_bias": {"1": "x"}}), "logit_bias.1", "from -100 to 100");
    refused(json!({"logit_bias": [["x", 1]]}), "logit_bias[0][0]", "whole number");
    refused(json!({"top_logprobs": 3}), "top_logprobs", "needs 'logprobs'");
    refused(json!({"tfs_z": 0.5}), "tfs_z", "0.5 is not supported: there is no tail-free");
    refused(json!({"samplers": ["top_k", "topk"]}), "samplers", "there are: penalties, dry");
    refused(json!({"samplers": "kk"}), "samplers", "'top_k' twice");
    refused(json!({"best_of": 3}), "best_of", "send 1");
    refused(json!({"grammar": "root ::= x", "guided_regex": "a"}), "guided_regex", "only one answer format");
    refused(json!({"min_tokens": 5, "max_tokens": 4}), "min_tokens", "at most the 4");
    refused(json!({"tool_choice": "required"}), "tool_choice", "has none");
    refused(
        json!({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true}}),
        "chat_template_kwargs.enable_thinking",
        "switches thinking off",
    );
    for schema in [json!(true), json!(false), json!("x"), json!([])] {
        let format =
            json!({"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": schema}});
        refused(json!({"response_format": format}), "response_format.json_schema.schema", "JSON schema");
    }
    refused(json!({"continue_final_message": true}), "continue_final_message", "of the assistant");
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let last = json!({"role": "assistant", "content": "So.", "tool_calls": [call]});
    let going_on = json!({
        "messages": [{"role": "user", "content": "Hi"}, last],
        "continue_final_message": true, "add_generation_prompt": false,
    });
    refused(going_on, "continue_final_message", "'tool_calls'");
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    refused(json!({"tools": [tool("a"), tool("a")]}), "tools", "two of the name 'a'");
    refused(json!({"tools": [tool("a"), {"type": 5}]}), "tools[1].type", "must be \"function\"");
    refused(
        json!({"tools": [tool("a")], "tool_choice": {"type": "function", "function": {"name": "b"}}}),
        "tool_choice",
        "'b'",
    );
    refused(
        json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}),
        "guided_regex",
        "besides 'response_format'",
    );
    refused(
        json!({"structured_outputs": {"regex": "a", "choice": ["b"]}}),
        "structured_outputs.regex",
        "only one",
    );
    for body in ["", "[]", "{", "\"a\"", "{\"model\": \"m\"}"] {
        assert!(parse(body.as_bytes()).is_err());
    }
}

#[test]
fn errors_in_messages_name_the_field() {
    let messages = |m: Value| json!({"messages": [{"role": "user", "content": "a"}, m]});
    refused(json!({"messages": []}), "messages", "at least one");
    refused(json!({"messages": "hi"}), "messages", "an array, got the string \"hi\"");
    refused(messages(json!({"content": "x"})), "messages[1].role", "missing");
    refused(
        messages(json!({"role": "oracle", "content": "x"})),
        "messages[1].role",
        "'oracle' is not supported",
    );
    refused(messages(json!({"role": "user"})), "messages[1].content", "missing");
    refused(messages(json!({"role": "user", "content": 5})), "messages[1].content", "got 5");
    let part = |p: Value| messages(json!({"role": "user", "content": [p]}));
    refused(
        part(json!({"type": "input_audio", "input_audio": {}})),
        "messages[1].content[0].type",
        "messages[1].content[0].type 'input_audio' is not supported",
    );
    refused(part(json!({"type": "text"})), "messages[1].content[0].text", "missing");
    let call = |f: Value| {
        messages(json!({"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": f}]}))
    };
    refused(
        call(json!({"name": "", "arguments": "{}"})),
        "messages[1].tool_calls[0].function.name",
        "a non-empty string",
    );
    refused(
        call(json!({"name": "f", "arguments": [1]})),
        "messages[1].tool_calls[0].function.arguments",
        "an array",
    );
}

#[test]
fn formats_of_all_servers() {
    let schema = json!({"type": "object"});
    let plain =
        ResponseFormat::JsonSchema { name: None, description: None, schema: schema.clone(), strict: None };
    let field = |fields| parsed(with(fields)).response_format_field;
    assert_eq!(field(json!({"response_format": {"type": "json_object"}})), "response_format");
    assert_eq!(field(json!({"structured_outputs": {"regex": "a"}})), "structured_outputs.regex");
    assert_eq!(field(json!({"guided_choice": ["a"]})), "guided_choice");
    for (fields, format) in [
        (json!({"response_format": {"type": "text"}}), ResponseFormat::Text),
        (json!({"response_format": {"type": "json_object"}}), ResponseFormat::JsonObject),
        (json!({"response_format": {"type": "json_object", "schema": schema}}), plain.clone()),
        (json!({"response_format": {"type": "json_schema", "schema": schema}}), plain.clone()),
        (json!({"guided_json": schema}), plain.clone()),
        (json!({"guided_json": schema.to_string()}), plain.clone()),
        (json!({"json_schema": schema}), plain.clone()),
        (json!({"structured_outputs": {"json": schema}}), plain),
        (json!({"structured_outputs": {"regex": "a+"}}), ResponseFormat::Regex("a+".into())),
        (
            json!({"structured_outputs": {"grammar": "start: \"a\""}}),
            ResponseFormat::Grammar("start: \"a\"".into()),
        ),
        (json!({"guided_choice": ["a", "b"]}), ResponseFormat::Choice(vec!["a".into(), "b".into()])),
        (json!({"structured_outputs": {"json_object": true}}), ResponseFormat::JsonObject),
        // vLLM's clients send either notation, SGLang's have names of their own.
        (json!({"guided_grammar": "root ::= \"a\""}), ResponseFormat::Gbnf("root ::= \"a\"".into())),
        (
            json!({"guided_grammar": "start: \"root ::= a\" // root ::= b"}),
            ResponseFormat::Grammar("start: \"root ::= a\" // root ::= b".into()),
        ),
        (
            json!({"structured_outputs": {"grammar": "# A comment.\n root::= \"a\""}}),
            ResponseFormat::Gbnf("# A comment.\n root::= \"a\"".into()),
        ),
        (json!({"ebnf": "root ::= \"a\""}), ResponseFormat::Gbnf("root ::= \"a\"".into())),
        (json!({"regex": "a+"}), ResponseFormat::Regex("a+".into())),
    ] {
        assert_eq!(parsed(with(fields)).response_format, format);
    }
}

#[test]
fn thinking_is_switched_in_many_ways() {
    let reasoning = |fields| parsed(with(fields)).chat().unwrap().reasoning.clone();
    let off = Reasoning { enabled: Some(false), ..Reasoning::default() };
    assert_eq!(reasoning(json!({"reasoning_effort": "none"})), off);
    assert_eq!(reasoning(json!({"enable_thinking": false})), off);
    assert_eq!(reasoning(json!({"chat_template_kwargs": {"enable_thinking": false}})), off);
    assert_eq!(reasoning(json!({"chat_template_kwargs": {"thinking": false}})), off);
    for fields in [
        json!({"reasoning": {"enabled": false}}),
        json!({"reasoning": {"effort": "none"}}),
        json!({"thinking": {"type": "disabled"}}),
        json!({"thinking": false}),
    ] {
        assert_eq!(reasoning(fields), off);
    }
    let high = Reasoning { enabled: Some(true), effort: Some(Effort::High), ..Reasoning::default() };
    assert_eq!(reasoning(json!({"reasoning": {"effort": "high", "summary": "auto"}})), high);
    assert_eq!(reasoning(json!({"thinking": {"type": "adaptive"}})), Reasoning::default());
    let on = Reasoning { enabled: Some(true), budget_tokens: Some(9), ..Reasoning::default() };
    assert_eq!(reasoning(json!({"thinking": {"type": "enabled", "budget_tokens": 9}})), on);
    refused(json!({"thinking": {"type": "some"}}), "thinking.type", "\"disabled\"");
    assert!(!parsed(with(json!({"reasoning": {"exclude": true}}))).shows_reasoning());
    let budget = Reasoning { budget_tokens: Some(9), ..Reasoning::default() };
    assert_eq!(reasoning(json!({"thinking_budget_tokens": 9})), budget);
    assert!(!parsed(with(json!({"include_reasoning": false}))).shows_reasoning());
    assert_eq!(reasoning(json!({})), Reasoning::default());
}

#[test]
fn images_are_data_until_a_template_needs_them() {
    let r = parsed(json!({"model": "m", "messages": [{"role": "user", "content": [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
    ]}]}));
    let chat = r.chat().unwrap();
    let Part::Image { image, .. } = &chat.messages[0].content[1] else { panic!("no image") };
    assert_eq!(image.media_type(), Some("image/png"));
    let e = chat.template(Roles::default()).unwrap_err();
    assert_eq!(e.message, "'messages[0].content[1]' is an image, and this model reads text only; send text");
    assert_eq!(e.param.as_deref(), Some("messages[0].content[1]"));
}

#[test]
fn templates_get_the_whole_conversation() {
    let r = parsed(json!({
        "model": "m", "reasoning_effort": "high", "chat_template_kwargs": {"x": 1},
        "messages": [
            {"role": "system", "content": "A"}, {"role": "developer", "content": "B"},
            {"role": "user", "content": [{"type": "text", "text": "C"}, {"type": "text", "text": "D"}]},
            {"role": "assistant", "content": "", "reasoning": "E",
             "tool_calls": [{"id": "1", "type": "function", "function": {"arguments": "{\"z\": 1, \"a\": [2]}", "name": "f"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "F"},
        ],
        "tools": [{"function": {"parameters": {"z": 1, "a": 2}, "strict": true, "name": "f"}, "type": "function"}],
    }));
    let t = r.chat().unwrap().template(Roles::default()).unwrap();
    let expected = json!([
        {"role": "system", "content": "A\n\nB"},
        {"role": "user", "content": [{"type": "text", "text": "C"}, {"type": "text", "text": "D"}]},
        {"role": "assistant", "content": "", "reasoning_content": "E",
         "tool_calls": [{"type": "function", "id": "1", "function": {"name": "f", "arguments": {"z": 1, "a": [2]}}}]},
        {"role": "tool", "content": "F", "tool_call_id": "1", "name": "f"},
    ]);
    assert_eq!(Value::from(t.messages).to_string(), expected.to_string(), "to the order of keys");
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}});
    assert_eq!(t.tools.unwrap()[0].to_string(), tool.to_string());
    assert_eq!(
        Value::from(t.variables),
        json!({"x": 1, "enable_thinking": true, "reasoning_effort": "high"})
    );
    assert!(t.add_generation_prompt);
}

#[test]
fn a_stream_in_order() {
    let stream = write(ChunkWriter::new(&request()), &everything());
    assert!(stream.ends_with("data: [DONE]\n\n"));
    let chunks = data(&stream);
    for c in &chunks {
        assert_eq!(
            (&c["id"], &c["object"], &c["created"]),
            (&json!("chatcmpl-abc"), &json!("chat.completion.chunk"), &json!(1_700_000_000))
        );
    }
    let deltas: Vec<Value> =
        chunks.iter().filter_map(|c| c["choices"].get(0)).map(|c| c["delta"].clone()).collect();
    let expected = json!([
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Let me "}, {"reasoning_content": "think."},
        {"content": "Looking"}, {"content": " up."}, {"content": "\n\"é\""},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{\"city\":\"Köln\"}"}}]},
        {"tool_calls": [{"index": 1, "id": "call_2", "type": "function", "function": {"name": "time", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{\"zone\""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": ": \"CET\""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]},
        {},
    ]);
    assert_eq!(Value::from(deltas), expected);
    let last = &chunks[chunks.len() - 1];
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"],
        json!({"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 8}, "completion_tokens_details": {"reasoning_tokens": 3}})
    );
    assert_eq!(last["timings"]["predicted_per_second"], json!(20.0));
    assert_eq!(last["timings"]["prompt_per_second"], json!(200.0));
    let finish = &chunks[chunks.len() - 2];
    assert_eq!(finish["choices"][0]["finish_reason"], "tool_calls");
    let counted = chunks.iter().filter(|c| c.as_object().unwrap().contains_key("usage")).count();
    assert_eq!(counted, 1, "strands' LlamaCppModel takes the first chunk with the field as the last");
}

#[test]
fn optional_parts_are_left_out_unless_requested() {
    let mut r = request();
    r.include_usage = false;
    let Input::Chat(chat) = &mut r.input else { unreachable!() };
    chat.reasoning.hide = true;
    let mut events = everything();
    events.insert(1, Event::Logprobs { choice: 0, tokens: vec![logprob("a", -1.0)] });
    let stream = write(ChunkWriter::new(&r), &events);
    assert!(
        !stream.contains("usage") && !stream.contains("reasoning") && !stream.contains("logprobs"),
        "{stream}"
    );
    let chunks = data(&stream);
    let last = &chunks[chunks.len() - 1];
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls", "no chunk without choices");
    assert_eq!(last["timings"]["predicted_n"], 7, "times come in the last chunk");
}

#[test]
fn log_probabilities_come_with_their_text() {
    let r = GenerateRequest { logprobs: Some(2), ..request() };
    let events = script([
        Event::Logprobs { choice: 0, tokens: vec![logprob("a", -0.5)] },
        text("a"),
        Event::Logprobs { choice: 0, tokens: vec![logprob("<end>", -0.25)] },
        finished(FinishReason::StopSequence("x".into())),
    ]);
    let chunks = data(&write(ChunkWriter::new(&r), &events));
    let first = &chunks[1]["choices"][0];
    assert_eq!(first["delta"]["content"], "a");
    assert_eq!(
        first["logprobs"]["content"],
        json!([{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
        {"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "x", "logprob": -9999.0, "bytes": [120]}]}])
    );
    let end = &chunks[2]["choices"][0];
    assert_eq!((&end["finish_reason"], &end["stop_reason"]), (&json!("stop"), &json!("x")));
    assert_eq!(end["logprobs"]["content"][0]["token"], "<end>");
}

#[test]
fn failures_end_a_stream_with_an_error() {
    let e = ApiError::new(ErrorKind::Overloaded, "too much");
    let stream = write(ChunkWriter::new(&request()), &[started(), text("a"), Event::Error(e), text("b")]);
    assert!(stream.ends_with("data: {\"error\":{\"message\":\"too much\",\"type\":\"overloaded_error\",\"param\":null,\"code\":null}}\n\ndata: [DONE]\n\n"));
    for cut in [vec![], vec![started()], vec![started(), text("a")]] {
        let stream = write(ChunkWriter::new(&request()), &cut);
        assert!(stream.contains("ended before it was complete"), "{stream}");
    }
}

#[test]
fn a_whole_answer() {
    let answer = Answer::from_events(&everything());
    let v: Value = serde_json::from_slice(&response(&request(), &answer)).unwrap();
    assert_eq!(
        v["choices"],
        json!([{
        "index": 0,
        "message": {"role": "assistant", "content": "Looking up.\n\"é\"", "refusal": null, "reasoning_content": "Let me think.",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Köln\"}"}},
                {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{\"zone\": \"CET\"}"}}]},
        "logprobs": null, "finish_reason": "tool_calls"}])
    );
    assert_eq!((&v["object"], &v["usage"]["total_tokens"]), (&json!("chat.completion"), &json!(19)));
    let only_calls = Answer::from_events(&script(Event::tool_call(0, 0, "1", "f", "{}")));
    let v: Value = serde_json::from_slice(&response(&request(), &only_calls)).unwrap();
    assert_eq!(v["choices"][0]["message"]["content"], Value::Null);
}

/// Two tools that take a text, as OpenAI's own clients send them.
fn custom_tools() -> GenerateRequest {
    parsed(with(json!({
        "tools": [
            {"type": "custom", "custom": {"name": "patch", "description": "Patches.",
             "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: \"x\""}}}},
            {"type": "custom", "custom": {"name": "digits",
             "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+"}}}},
            {"type": "function", "function": {"name": "f"}},
        ],
        "tool_choice": {"type": "custom", "custom": {"name": "digits"}},
    })))
}

#[test]
fn custom_tools_are_functions_of_one_text() {
    let r = custom_tools();
    let chat = r.chat().unwrap();
    assert_eq!(chat.tool_choice, ToolChoice::Named("digits".into()));
    assert_eq!(chat.tools[1].parameters["properties"]["input"]["pattern"], "^(?:[0-9]+)$");
    assert_eq!(chat.tools.iter().map(|t| t.origin.custom).collect::<Vec<_>>(), [true, true, false]);
    let shown = chat.tools[0].parameters["properties"]["input"]["description"].as_str().unwrap();
    assert!(shown.contains("start: \"x\""), "{shown}");
    let allowed = json!([{"type": "custom", "custom": {"name": "digits"}}, {"type": "function", "function": {"name": "f"}}]);
    let mut body = with(json!({
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": allowed}},
    }));
    body["tools"] = json!([
        {"type": "custom", "custom": {"name": "digits"}}, {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "g"}},
    ]);
    let r = parsed(body);
    let chat = r.chat().unwrap();
    assert_eq!((chat.tools.len(), &chat.tool_choice), (2, &ToolChoice::Required));
    let earlier = json!({"id": "1", "type": "custom", "custom": {"name": "digits", "input": "12"}});
    let r = parsed(json!({"model": "m", "messages": [
        {"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [earlier]},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]}));
    assert_eq!(r.chat().unwrap().messages[1].tool_calls[0].arguments, r#"{"input":"12"}"#);
}

#[test]
fn calls_of_custom_tools_have_a_text() {
    let r = custom_tools();
    let mut events = vec![started()];
    let call = |index, id: &str, name: &str, pieces: [&str; 2]| {
        let (id, name) = (id.to_string(), name.to_string());
        let arguments = pieces.map(|p| Event::ToolCallArguments { choice: 0, index, text: p.into() });
        std::iter::once(Event::ToolCallStart { choice: 0, index, id, name }).chain(arguments)
    };
    events.extend(call(0, "c0", "digits", ["{\"input\": \"1", "2\\n\"}"]));
    events.extend(call(1, "c1", "f", ["{", "}"]));
    events.extend(call(2, "c2", "patch", ["no ", "JSON"]));
    events.push(Event::Finished { choice: 0, reason: FinishReason::ToolCalls });
    let mut answer = Answer::default();
    events.iter().for_each(|e| answer.push(e));
    let whole: Value = serde_json::from_slice(&response(&r, &answer)).unwrap();
    let calls = json!([
        {"id": "c0", "type": "custom", "custom": {"name": "digits", "input": "12\n"}},
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "no JSON"}},
    ]);
    assert_eq!(whole["choices"][0]["message"]["tool_calls"], calls);
    let stream = write(ChunkWriter::new(&r), &events);
    let deltas: Vec<Value> = data(&stream)
        .iter()
        .map(|c| c["choices"][0]["delta"]["tool_calls"].clone())
        .filter(|c| !c.is_null())
        .collect();
    let expected = json!([
        [{"index": 0, "id": "c0", "type": "custom", "custom": {"name": "digits", "input": ""}}],
        [{"index": 0, "custom": {"input": "12\n"}}],
        [{"index": 1, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 1, "function": {"arguments": "{"}}],
        [{"index": 1, "function": {"arguments": "}"}}],
        [{"index": 2, "id": "c2", "type": "custom", "custom": {"name": "patch", "input": ""}}],
        [{"index": 2, "custom": {"input": "no JSON"}}],
    ]);
    assert_eq!(Value::from(deltas), expected);
}
