//! A stream that breaks off at one server goes on at another: what that one is asked, and the one stream that the client sees.

use crate::common::upstream::{STREAM_HEAD, Seen, Step, Upstream, chunk, delta, event};
use crate::common::{Fixture, chat, with};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// Says these deltas of OpenAI's, then its connection breaks.
async fn breaks_after(deltas: &[Value]) -> Upstream {
    let deltas = deltas.to_vec();
    Upstream::start(move |_| {
        let mut steps = vec![Step::Send(STREAM_HEAD.into())];
        steps.extend(deltas.iter().map(piece));
        // What was sent is read before the connection is reset.
        steps.extend([Step::Sleep(50), Step::Reset]);
        steps
    })
    .await
}

fn piece(delta: &Value) -> Step {
    event(&json!({"id": "first", "object": "chat.completion.chunk", "created": 1, "model": "theirs",
        "choices": [{"index": 0, "delta": delta}]}))
}

fn said(text: &str) -> Value {
    json!({"content": text})
}

/// Says these pieces to the end, and counts 12 tokens of the prompt and 3 of the answer.
async fn goes_on(pieces: &[&str]) -> Upstream {
    let pieces: Vec<String> = pieces.iter().map(|p| p.to_string()).collect();
    Upstream::start(move |_| {
        let of = |choices: Value, usage: Value| {
            event(&json!({"id": "second", "object": "chat.completion.chunk", "created": 2, "model": "other",
                "choices": choices, "usage": usage}))
        };
        let mut steps = vec![Step::Send(STREAM_HEAD.into())];
        steps.extend(pieces.iter().map(|p| delta(p)));
        steps.extend([
            of(json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]), Value::Null),
            of(json!([]), json!({"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15})),
            chunk("data: [DONE]\n\n"),
            Step::Send("0\r\n\r\n".into()),
        ]);
        steps
    })
    .await
}

/// The group `m`: servers in this order, each with how its model is written and further parameters.
async fn routed(servers: &[(&Upstream, &str, &str)]) -> Fixture {
    let mut text = String::from("model_list:\n");
    for (i, (up, model, more)) in servers.iter().enumerate() {
        let base = if model.starts_with("anthropic") { up.base.clone() } else { format!("{}/v1", up.base) };
        text += &format!(
            "- {{model_name: m, litellm_params: {{model: {model}, api_base: \"{base}\", api_key: sk-x, order: {}{more}}}}}\n",
            i + 1
        );
    }
    Fixture::routed(&format!("{text}router_settings: {{num_retries: 0, disable_cooldowns: true}}\n")).await
}

fn stream() -> Value {
    let more = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true}});
    let mut body = with(&chat("Count"), more);
    // What the client says of thinking is its own.
    body.as_object_mut().unwrap().shift_remove("chat_template_kwargs");
    body
}

/// The text of a stream of OpenAI's, and what went wrong.
fn told(events: &[(String, Value)]) -> (String, Option<String>) {
    let text = events.iter().filter_map(|(_, e)| e["choices"][0]["delta"]["content"].as_str()).collect();
    let error = events.iter().find_map(|(_, e)| e["error"]["message"].as_str());
    (text, error.map(String::from))
}

fn last_message(seen: &Seen) -> &Value {
    seen.body["messages"].as_array().unwrap().last().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_continues_and_the_client_sees_one_stream() {
    for model in ["hosted_vllm/theirs", "vllm/theirs", "sglang/theirs"] {
        let first = breaks_after(&[said("One, "), said("two")]).await;
        let second = goes_on(&[", ", "three"]).await;
        let f = routed(&[(&first, "openai_like/theirs", ""), (&second, model, "")]).await;
        let events = f.events(CHAT, &stream()).await;
        assert_eq!(told(&events), ("One, two, three".into(), None), "{events:?}");
        assert_eq!(events.last().unwrap().1, "[DONE]");
        let chunks: Vec<&Value> = events.iter().map(|(_, e)| e).filter(|e| e.is_object()).collect();
        assert!(chunks.iter().all(|e| e["id"] == chunks[0]["id"] && e["model"] == "m"), "{chunks:?}");
        let ends = chunks.iter().filter(|e| e["choices"][0]["finish_reason"] == "stop").count();
        let roles = chunks.iter().filter(|e| e["choices"][0]["delta"]["role"].is_string()).count();
        assert_eq!((ends, roles), (1, 1), "{chunks:?}");
        // two pieces of the first are no prompt, but a part of the answer
        let counts: Vec<&Value> = chunks.iter().map(|e| &e["usage"]).filter(|u| u.is_object()).collect();
        assert_eq!(counts.len(), 1, "{chunks:?}");
        let numbers = ["prompt_tokens", "completion_tokens", "total_tokens"].map(|n| counts[0][n].as_u64());
        assert_eq!(numbers, [Some(10), Some(5), Some(15)]);

        let seen = second.last();
        assert_eq!(last_message(&seen), &json!({"role": "assistant", "content": "One, two"}));
        assert_eq!(seen.body["messages"][0], json!({"role": "user", "content": "Count"}));
        assert_eq!(
            (&seen.body["continue_final_message"], &seen.body["add_generation_prompt"]),
            (&json!(true), &json!(false))
        );
        assert_eq!(seen.body["chat_template_kwargs"]["enable_thinking"], false, "it has begun to answer");
        assert_eq!((&seen.body["max_tokens"], &seen.body["stream"]), (&json!(10), &json!(true)));
        assert_eq!((first.seen().len(), second.seen().len()), (1, 1));
        f.until("it is over", || f.app.busy() == 0).await;
        assert!(f.text("/metrics").await.contains("octet:route_continued_total 1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_every_dialect_see_one_answer() {
    let first = breaks_after(&[said("One, "), said("two")]).await;
    let second = goes_on(&[", three"]).await;
    let f = routed(&[(&first, "hosted_vllm/theirs", ""), (&second, "hosted_vllm/theirs", "")]).await;
    let talk = json!([{"role": "user", "content": "Count"}]);
    let body = json!({"model": "m", "max_tokens": 12, "stream": true, "messages": talk});
    let events = f.events("/v1/messages", &body).await;
    let text: String = events.iter().filter_map(|(_, e)| e["delta"]["text"].as_str()).collect();
    assert_eq!(text, "One, two, three", "{events:?}");
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let count = |name: &str| names.iter().filter(|n| **n == name).count();
    assert_eq!(
        ["message_start", "content_block_start", "content_block_stop", "message_stop", "error"].map(count),
        [1, 1, 1, 1, 0],
        "{names:?}"
    );
    let delta = events.iter().find(|(name, _)| name == "message_delta").unwrap();
    assert_eq!(delta.1["usage"]["output_tokens"], 5);
    let lines = f.lines("/api/chat", &json!({"model": "m", "messages": talk})).await;
    let text: String = lines.iter().filter_map(|l| l["message"]["content"].as_str()).collect();
    assert_eq!(text, "One, two, three", "{lines:?}");
    let last = lines.last().unwrap();
    assert_eq!(
        (&last["done"], &last["prompt_eval_count"], &last["eval_count"]),
        (&json!(true), &json!(10), &json!(5))
    );
    // what is not streamed is asked for as a whole
    let broken = with(&stream(), json!({"stream": false, "stream_options": null}));
    let (status, _) = f.post(CHAT, &broken).await;
    assert!(
        second.seen().iter().filter(|s| s.body["continue_final_message"] == true).count() == 2,
        "{status}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn white_space_at_the_break_appears_once() {
    for (before, after, whole) in [
        (&["One,", " "][..], &[" two"][..], "One, two"),
        (&["One, "][..], &["two"][..], "One, two"),
        (&["One.\n\n"][..], &["\n", "\nTwo"][..], "One.\n\nTwo"),
        (&["f():\n    "][..], &["\n    x = 1\n"][..], "f():\n    x = 1\n"),
    ] {
        let deltas: Vec<Value> = before.iter().map(|t| said(t)).collect();
        let (first, second) = (breaks_after(&deltas).await, goes_on(after).await);
        let f = routed(&[(&first, "hosted_vllm/theirs", ""), (&second, "hosted_vllm/theirs", "")]).await;
        assert_eq!(told(&f.events(CHAT, &stream()).await), (whole.into(), None));
        let content = last_message(&second.last())["content"].as_str().unwrap().to_string();
        assert_eq!(
            content,
            before.concat().trim_end(),
            "templates would trim it, and tokens end before a space"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_servers_that_can_continue_are_asked_to() {
    for (model, more, goes) in [
        ("hosted_vllm/theirs", "", true),
        ("openai_like/theirs", "", false),
        ("openai_like/theirs", ", continues: true", true),
        ("hosted_vllm/theirs", ", continues: false", false),
        ("openai/theirs", "", false),
        ("anthropic/theirs", "", false),
        // It would not know, and begin again.
        ("hosted_vllm/theirs", ", additional_drop_params: [continue_final_message]", false),
        ("hosted_vllm/theirs", ", extra_body: {add_generation_prompt: true}", false),
    ] {
        let (first, second) = (breaks_after(&[said("One, two")]).await, goes_on(&[", three"]).await);
        let f = routed(&[(&first, "openai_like/theirs", ""), (&second, model, more)]).await;
        let (text, error) = told(&f.events(CHAT, &stream()).await);
        assert_eq!(
            (text == "One, two, three", error.is_none()),
            (goes, goes),
            "{model}{more}: {text} {error:?}"
        );
        assert_eq!(second.seen().len(), usize::from(goes), "{model}{more}");
        assert_eq!(
            f.app.gateway().unwrap().continues_streams("m"),
            goes,
            "{model}{more}: else bytes pass unread"
        );
    }
    // nobody goes on with what broke off at itself, so that nothing has to be read
    let alone = breaks_after(&[said("One")]).await;
    let f = routed(&[(&alone, "hosted_vllm/theirs", "")]).await;
    assert!(!f.app.gateway().unwrap().continues_streams("m"));
    let (text, error) = told(&f.events(CHAT, &stream()).await);
    assert!(text == "One" && error.is_some() && alone.seen().len() == 1, "{text} {error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_and_tool_calls_are_not_continued() {
    let call = json!({"tool_calls": [{"index": 0, "id": "c", "type": "function",
        "function": {"name": "set_light", "arguments": "{\"room\": \"ki"}}]});
    for deltas in [
        vec![json!({"reasoning_content": "Let me see"})],
        vec![json!({"reasoning_content": "Let me see"}), said("\n\n")],
        vec![said("I switch it on."), call],
    ] {
        let (first, second) = (breaks_after(&deltas).await, goes_on(&["never"]).await);
        let f = routed(&[(&first, "hosted_vllm/theirs", ""), (&second, "hosted_vllm/theirs", "")]).await;
        let events = f.events(CHAT, &with(&stream(), json!({"tools": [crate::common::tool()]}))).await;
        let (text, error) = told(&events);
        assert!(error.is_some() && !text.contains("never"), "{events:?}");
        assert!(second.seen().is_empty(), "{:?}", second.seen());
    }
    // an answer after thoughts is, and the thoughts go along
    let deltas = [json!({"reasoning_content": "Let me see"}), said("One, two")];
    let (first, second) = (breaks_after(&deltas).await, goes_on(&[", three"]).await);
    let f = routed(&[(&first, "hosted_vllm/theirs", ""), (&second, "hosted_vllm/theirs", "")]).await;
    assert_eq!(told(&f.events(CHAT, &stream()).await), ("One, two, three".into(), None));
    let message = json!({"role": "assistant", "content": "One, two", "reasoning_content": "Let me see"});
    assert_eq!(last_message(&second.last()), &message);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuation_that_starts_to_reason_is_rejected() {
    let first = breaks_after(&[said("One, two")]).await;
    let thinks = breaks_after(&[json!({"reasoning_content": ", three? Hm"})]).await;
    let third = goes_on(&[", three"]).await;
    let f =
        routed(&[(&first, "openai_like/a", ""), (&thinks, "sglang/b", ""), (&third, "hosted_vllm/c", "")])
            .await;
    let events = f.events(CHAT, &stream()).await;
    assert_eq!(told(&events), ("One, two, three".into(), None), "{events:?}");
    assert!(!format!("{events:?}").contains("Hm") && thinks.seen().len() == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuation_can_break_off_too() {
    let first = breaks_after(&[said("One, ")]).await;
    let second = breaks_after(&[said("two, ")]).await;
    let third = goes_on(&["three"]).await;
    let f = routed(&[
        (&first, "hosted_vllm/a", ""),
        (&second, "hosted_vllm/b", ""),
        (&third, "hosted_vllm/c", ""),
    ])
    .await;
    assert_eq!(told(&f.events(CHAT, &stream()).await), ("One, two, three".into(), None));
    assert_eq!(last_message(&third.last())["content"], "One, two,");
}

#[tokio::test(flavor = "multi_thread")]
async fn octet_continues_answers_too() {
    let ours = Fixture::start().await;
    let first = breaks_after(&[json!({"reasoning_content": "Easy."}), said("One, two")]).await;
    let text = format!(
        "model_list:\n- {{model_name: m, litellm_params: {{model: openai_like/theirs, api_base: \"{}/v1\", order: 1}}}}\n- {{model_name: m, litellm_params: {{model: openai_like/tiny, api_base: \"{}\", continues: true, order: 2}}}}\nrouter_settings: {{num_retries: 0}}\n",
        first.base,
        ours.url("/v1"),
    );
    let f = Fixture::routed(&text).await;
    let events = f.events(CHAT, &stream()).await;
    let (text, error) = told(&events);
    assert_eq!(error, None, "{events:?}");
    let rest = text.strip_prefix("One, two").unwrap_or_else(|| panic!("{events:?}"));
    // what it says when it is asked directly
    let message = json!({"role": "assistant", "content": "One, two", "reasoning_content": "Easy."});
    let direct = with(
        &chat("Count"),
        json!({"messages": [{"role": "user", "content": "Count"}, message], "max_tokens": 10,
            "continue_final_message": true, "add_generation_prompt": false}),
    );
    let direct = ours.ok(CHAT, &direct).await;
    assert_eq!(Some(rest), direct["choices"][0]["message"]["content"].as_str());
    let usage = events.iter().map(|(_, e)| &e["usage"]).find(|u| u.is_object()).unwrap();
    assert_eq!(usage["total_tokens"], direct["usage"]["total_tokens"]);
}
