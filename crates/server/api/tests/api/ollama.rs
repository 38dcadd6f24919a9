//! Ollama's dialect towards clients.

use crate::common::*;
use octet_api::core::*;
use octet_api::ollama::{Call, chat, embed, generate, models};
use octet_api::{ApiError, ErrorKind};
use proptest::prelude::*;
use serde_json::{Value, json};

fn lines(stream: &str) -> Vec<Value> {
    stream.lines().map(|l| serde_json::from_str(l).expect("each line is JSON")).collect()
}

#[track_caller]
fn refused(fields: Value, param: &str, message: &str) {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let e: ApiError = chat::parse(body.to_string().as_bytes()).unwrap_err();
    assert_eq!(e.param.as_deref(), Some(param), "{e}");
    assert!(e.message.contains(message), "{e}");
}

#[test]
fn errors_name_the_field() {
    refused(json!({"options": {"mirostat": 3}}), "options.mirostat", "from 0 to 2");
    refused(json!({"options": {"temperature": "hot"}}), "options.temperature", "a number");
    refused(json!({"template": "x"}), "template", "--chat-template");
    refused(json!({"think": "hard"}), "think", "\"high\"");
    refused(json!({"think": 3}), "think", "true, false or how much");
    refused(json!({"format": "xml"}), "format", "\"json\" or a JSON schema");
    refused(json!({"keep_alive": "soon"}), "keep_alive", "\"5m\"");
    refused(json!({"messages": [{"role": "function"}]}), "messages[0].role", "got the string");
    refused(
        json!({"messages": [{"role": "user", "tool_calls": [{}]}]}),
        "messages[0].tool_calls",
        "only an assistant's",
    );
    let generated = |fields: Value| generate::parse(fields.to_string().as_bytes()).unwrap_err().message;
    let middle = json!({"model": "m", "prompt": "a", "suffix": "b", "system": "c"});
    assert!(generated(middle).contains("'system' and 'suffix' exclude each other"));
    assert!(
        generated(json!({"model": "m", "prompt": "a", "raw": true, "images": ["AA"]}))
            .contains("exclude each other")
    );
    let embedded = |fields: Value| embed::parse(fields.to_string().as_bytes()).unwrap_err().message;
    assert!(embedded(json!({"model": "m", "input": 5})).contains("an array of non-empty"));
    assert!(embedded(json!({"model": "m", "input": ["a", 5]})).contains("'input[1]'"));
    for none in
        [json!({"model": "m"}), json!({"model": "m", "input": ""}), json!({"model": "m", "input": []})]
    {
        assert!(
            embed::parse(none.to_string().as_bytes()).unwrap().inputs.is_empty(),
            "it loads the model: {none}"
        );
    }
    let truncates = |fields: Value| embed::parse(fields.to_string().as_bytes()).unwrap().truncate;
    assert!(truncates(json!({"model": "m", "input": "a"})), "as it does where this dialect comes from");
    assert!(!truncates(json!({"model": "m", "input": "a", "truncate": false})));
}

#[test]
fn zero_and_negative_limits_are_none() {
    for (n, most) in [(0, None), (-1, None), (-2, None), (7, Some(7))] {
        let body = json!({"model": "m", "prompt": "a", "options": {"num_predict": n}});
        let Call::Generate(r) = generate::parse(body.to_string().as_bytes()).unwrap() else { unreachable!() };
        assert_eq!(r.max_tokens, most, "{n}");
    }
}

#[test]
fn a_stream_in_order() {
    let stream = write(chat::writer(&request()), &everything());
    let lines = lines(&stream);
    let messages: Vec<&Value> = lines.iter().map(|l| &l["message"]).collect();
    let said = |fields: Value| {
        let mut m = json!({"role": "assistant", "content": ""});
        m.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        m
    };
    let call = |id: &str, index: u32, name: &str, arguments: Value| {
        said(
            json!({"tool_calls": [{"id": id, "function": {"index": index, "name": name, "arguments": arguments}}]}),
        )
    };
    let expected = [
        said(json!({"thinking": "Let me "})),
        said(json!({"thinking": "think."})),
        said(json!({"content": "Looking"})),
        said(json!({"content": " up."})),
        said(json!({"content": "\n\"é\""})),
        call("call_1", 0, "weather", json!({"city": "Köln"})),
        call("call_2", 1, "time", json!({"zone": "CET"})),
        said(json!({})),
    ];
    assert_eq!(messages, expected.iter().collect::<Vec<_>>());
    let last = &lines[lines.len() - 1];
    assert_eq!(
        *last,
        json!({"model": "m", "created_at": "2023-11-14T22:13:20Z", "message": {"role": "assistant", "content": ""}, "done": true,
            "done_reason": "stop", "total_duration": 380_000_000, "load_duration": 5_000_000, "prompt_eval_count": 12,
            "prompt_eval_duration": 20_000_000, "eval_count": 7, "eval_duration": 300_000_000})
    );
    assert!(lines[..lines.len() - 1].iter().all(|l| l["done"] == false));
}

#[test]
fn whole_answers_have_the_same_shape() {
    let answer = Answer::from_events(&everything());
    let v: Value = serde_json::from_slice(&chat::response(&request(), &answer)).unwrap();
    assert_eq!(v["message"]["content"], "Looking up.\n\"é\"");
    assert_eq!(v["message"]["thinking"], "Let me think.");
    assert_eq!(v["message"]["tool_calls"][1]["function"]["arguments"], json!({"zone": "CET"}));
    let v: Value = serde_json::from_slice(&generate::response(&request(), &answer)).unwrap();
    assert_eq!((&v["response"], &v["thinking"]), (&json!("Looking up.\n\"é\""), &json!("Let me think.")));
    assert_eq!((&v["done"], &v["eval_count"]), (&json!(true), &json!(7)));
}

#[test]
fn the_text_of_a_broken_call_is_kept() {
    let events = script([
        Event::ToolCallStart { choice: 0, index: 0, id: "1".into(), name: "f".into() },
        Event::ToolCallArguments { choice: 0, index: 0, text: "{\"a\":".into() },
        finished(FinishReason::Length),
    ]);
    let stream = lines(&write(chat::writer(&request()), &events));
    assert_eq!(
        (&stream[0]["message"]["content"], &stream[1]["done_reason"]),
        (&json!("f({\"a\":)"), &json!("length"))
    );
    let v: Value =
        serde_json::from_slice(&chat::response(&request(), &Answer::from_events(&events))).unwrap();
    assert_eq!(v["message"]["content"], "f({\"a\":)");
}

#[test]
fn failures_end_a_stream_with_an_error() {
    let e = Event::Error(ApiError::new(ErrorKind::Overloaded, "too much"));
    let stream = write(generate::writer(&request()), &[started(), text("a"), e, text("b")]);
    assert_eq!(lines(&stream)[1], json!({"error": "too much"}));
    assert_eq!(lines(&stream).len(), 2);
    assert!(write(chat::writer(&request()), &[started()]).contains("ended before it was complete"));
}

#[test]
fn models_are_loaded_and_unloaded() {
    let load = |body: Value| match chat::parse(body.to_string().as_bytes()).unwrap() {
        Call::Load(load) => load,
        other => panic!("{other:?}"),
    };
    let l = load(json!({"model": "m", "messages": [], "keep_alive": -1}));
    assert_eq!((l.unloads(), l.keep_alive), (false, Some(KeepAlive::Forever)));
    assert_eq!(
        l.response(true, 0),
        json!({"model": "m", "created_at": "1970-01-01T00:00:00Z", "done": true, "done_reason": "load",
            "message": {"role": "assistant", "content": ""}})
    );
    assert!(load(json!({"model": "m", "keep_alive": "0s"})).unloads());
}

#[test]
fn models_are_shown() {
    let m = ModelInfo {
        id: "qwen".into(),
        size_bytes: 5,
        format: "gguf".into(),
        family: "qwen35moe".into(),
        parameters: 35_107_000_000,
        quantization: "Q4_K_M".into(),
        context_length: 4096,
        abilities: Abilities { completion: true, tools: true, ..Abilities::default() },
        loaded: Some(Loaded { memory_bytes: 9, accelerator_bytes: 2, expires_s: None }),
        ..ModelInfo::default()
    };
    let copied = models::tags(&[octet_api::core::ModelInfo { aliases: vec!["small".into()], ..m.clone() }]);
    let names: Vec<&Value> = copied["models"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    assert_eq!(names, ["qwen", "small"]);
    let tags = models::tags(std::slice::from_ref(&m));
    assert_eq!((&tags["models"][0]["name"], &tags["models"][0]["size"]), (&json!("qwen"), &json!(5)));
    assert_eq!(tags["models"][0]["details"]["parameter_size"], "35.1B");
    assert_eq!(tags["models"][0]["digest"].as_str().unwrap().len(), 64);
    let ps = models::ps(&[m.clone(), ModelInfo { loaded: None, ..m.clone() }]);
    assert_eq!(ps["models"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&ps["models"][0]["size_vram"], &ps["models"][0]["expires_at"]),
        (&json!(2), &json!("9999-12-31T23:59:59Z"))
    );
    let show = models::show(&m);
    assert_eq!(show["capabilities"], json!(["completion", "tools"]));
    assert_eq!(show["model_info"]["qwen35moe.context_length"], 4096);
}

/// `base` with more fields.
fn with(base: &Value, more: Value) -> Value {
    let mut out = base.clone();
    let (Value::Object(o), Value::Object(more)) = (&mut out, more) else { panic!("two objects") };
    o.extend(more);
    out
}

/// The last line of a generated answer `text` to this request, and the request.
fn generated(fields: Value, text: &str) -> (GenerateRequest, Value) {
    let body = with(&json!({"model": "m", "think": false}), fields).to_string();
    let Ok(Call::Generate(request)) = generate::parse(body.as_bytes()) else { panic!("a request: {body}") };
    let events = [
        Event::Text { choice: 0, text: text.into() },
        Event::Finished { choice: 0, reason: FinishReason::Stop },
    ];
    let whole: Value =
        serde_json::from_slice(&generate::response(&request, &Answer::from_events(&events))).unwrap();
    let streamed = lines(&write(generate::writer(&request), &events));
    let last = streamed.last().unwrap();
    assert_eq!(last.get("context"), whole.get("context"), "streams and whole answers agree");
    assert!(streamed[..streamed.len() - 1].iter().all(|line| line.get("context").is_none()));
    (*request, whole)
}

/// The roles and texts of a request's messages.
fn turns(request: &GenerateRequest) -> Vec<(&'static str, String)> {
    let text = |m: &Message| m.content.iter().filter_map(Part::as_text).collect();
    request.chat().expect("a chat").messages.iter().map(|m| (m.role.name(), text(m))).collect()
}

#[test]
fn a_context_continues_the_conversation() {
    let (_, first) =
        generated(json!({"prompt": "My name is Zoë.", "system": "Be brief."}), "Hello, Zoë \u{1f44b}");
    let (request, second) = generated(json!({"prompt": "Who am I?", "context": first["context"]}), "Zoë.");
    let before =
        [("system", "Be brief."), ("user", "My name is Zoë."), ("assistant", "Hello, Zoë \u{1f44b}")];
    let before = before.map(|(role, text)| (role, text.to_string()));
    assert_eq!(turns(&request)[..3], before);
    assert_eq!(turns(&request)[3..], [("user", "Who am I?".to_string())]);
    // Clients send the instructions with each prompt.
    let again = json!({"prompt": "Sure?", "context": second["context"], "system": "Be long."});
    let (request, _) = generated(again, "Yes.");
    let names: Vec<&str> = turns(&request).iter().map(|(role, _)| *role).collect();
    assert_eq!(names, ["system", "user", "assistant", "user", "assistant", "user"]);
    assert_eq!(turns(&request)[0].1, "Be long.");
}

#[test]
fn only_a_context_of_this_server_is_accepted() {
    for empty in [json!(null), json!([])] {
        let (request, _) = generated(json!({"prompt": "a", "context": empty, "template": ""}), "b");
        assert_eq!(turns(&request).len(), 1);
    }
    let (_, answer) = generated(json!({"prompt": "a"}), "b");
    let ours = answer["context"].as_array().unwrap();
    let cut = json!(ours[..ours.len() - 1]);
    let changed: Vec<Value> =
        ours.iter().enumerate().map(|(i, n)| if i == 3 { json!(0) } else { n.clone() }).collect();
    let error = |fields: Value| {
        let body = with(&json!({"model": "m", "prompt": "a"}), fields).to_string();
        let e = generate::parse(body.as_bytes()).expect_err("refused");
        (e.param.unwrap_or_default(), e.message)
    };
    for foreign in [json!([1, 2, 3]), json!([151_644, 8948, 198]), cut, json!(changed)] {
        let (param, message) = error(json!({"context": foreign}));
        assert_eq!(param, "context");
        assert!(
            message.contains("not returned by this server") && message.contains("/api/chat"),
            "{message}"
        );
    }
    assert_eq!(error(json!({"context": [1.5]})).0, "context[0]");
    assert_eq!(error(json!({"context": "x"})).0, "context");
    for (other, value) in [("raw", json!(true)), ("suffix", json!("x"))] {
        let (param, message) = error(json!({"context": ours, other: value}));
        assert_eq!(
            (param.as_str(), message),
            ("context", format!("'context' and '{other}' exclude each other"))
        );
    }
    let (_, raw) = generated(json!({"prompt": "a", "raw": true}), "b");
    assert_eq!(raw.get("context"), None, "a raw prompt has no turns");
}

#[test]
fn a_template_is_refused_unless_it_is_empty() {
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "a"}]});
    let prompt = json!({"model": "m", "prompt": "a"});
    for empty in [json!(null), json!("")] {
        chat::parse(with(&chat, json!({"template": empty})).to_string().as_bytes()).expect("accepted");
        generate::parse(with(&prompt, json!({"template": empty})).to_string().as_bytes()).expect("accepted");
    }
    let fields = json!({"template": "{{ .Prompt }}"});
    let of_chat = chat::parse(with(&chat, fields.clone()).to_string().as_bytes()).expect_err("refused");
    let of_prompt = generate::parse(with(&prompt, fields).to_string().as_bytes()).expect_err("refused");
    for refused in [of_chat, of_prompt] {
        assert_eq!(refused.param.as_deref(), Some("template"));
        assert!(refused.message.contains("--chat-template"), "{}", refused.message);
    }
}

#[test]
fn vectors_come_in_both_shapes() {
    let e = Embeddings {
        id: String::new(),
        model: "m".into(),
        vectors: vec![vec![1.0, 0.5]],
        prompt_tokens: 3,
        total_ms: 2.0,
        load_ms: 0.0,
    };
    let v: Value = serde_json::from_slice(&embed::response(&e)).unwrap();
    assert_eq!(
        v,
        json!({"model": "m", "embeddings": [[1.0, 0.5]], "total_duration": 2_000_000, "load_duration": 0, "prompt_eval_count": 3})
    );
    assert_eq!(embed::response_old(&e), br#"{"embedding":[1.0,0.5]}"#);
}

proptest! {
    #[test]
    fn streams_and_whole_answers_agree(choice in any_choice(0)) {
        let all = script(choice);
        let answer = Answer::from_events(&all);
        let whole: Value = serde_json::from_slice(&chat::response(&request(), &answer)).unwrap();
        let lines = lines(&write(chat::writer(&request()), &all));
        let joined = |name: &str| lines.iter().filter_map(|l| l["message"][name].as_str()).collect::<String>();
        prop_assert_eq!(joined("content"), whole["message"]["content"].as_str().unwrap());
        prop_assert_eq!(joined("thinking"), whole["message"]["thinking"].as_str().unwrap_or(""));
        let calls: Vec<Value> = lines.iter().filter_map(|l| l["message"]["tool_calls"].as_array()).flatten().cloned().collect();
        prop_assert_eq!(Value::from(calls), whole["message"].get("tool_calls").cloned().unwrap_or(json!([])));
        prop_assert_eq!(&lines[lines.len() - 1]["done_reason"], &whole["done_reason"]);
    }
}
