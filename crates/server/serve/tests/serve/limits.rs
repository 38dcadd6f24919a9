//! What a request may cost before anything is generated: long texts are refused soon and with the numbers, and a form that nothing
//! meets is refused before the first token.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::upstream::{Upstream, answer};
use crate::common::{Fixture, chat, model, routes, with};
use octet_serve::Options;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
/// What each of these takes, with much room for a machine that has other work. (Tokenizing it all would take far longer.)
const SOON: Duration = Duration::from_secs(240);

fn message(body: &Value) -> &str {
    body["error"]["message"].as_str().unwrap_or_default()
}

/// A conversation that no request can continue is refused with the numbers, and not with "try again".
#[tokio::test(flavor = "multi_thread")]
async fn a_stored_conversation_beyond_the_memory_is_refused_for_good() {
    const BODY_BYTES_MAX: usize = 64 << 10;
    let count = AtomicUsize::new(0);
    let up = Upstream::start(move |_| {
        let id = count.fetch_add(1, Ordering::Relaxed).to_string();
        let message = json!({"role": "assistant", "content": "Hi"});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        answer("200 OK", &json!({"id": id, "object": "chat.completion", "created": 1, "model": "theirs", "choices": [choice]}))
    })
    .await;
    let params = format!("{{model: hosted_vllm/theirs, api_base: \"{}/v1\", api_key: k}}", up.base);
    let text = format!("model_list:\n- {{model_name: far, litellm_params: {params}}}\n");
    let options =
        Options { body_bytes_max: BODY_BYTES_MAX, routes: Some(routes(&text)), ..Options::new(Vec::new()) };
    let f = Fixture::with(options).await;
    let input = "word ".repeat(12_000);
    let (mut last, mut turns) = (Value::Null, 0);
    let (status, refused) = loop {
        let body = json!({"model": "far", "input": input, "previous_response_id": last});
        let (status, body) = f.post("/v1/responses", &body).await;
        if status != 200 {
            break (status, body);
        }
        (last, turns) = (body["id"].clone(), turns + 1);
        assert!(turns < 32, "the conversation is far too long");
    };
    assert!(turns > 8, "{turns}");
    assert_eq!((status, up.seen().len()), (413, turns), "{refused}");
    let message = message(&refused);
    for part in
        ["stored responses", "has 524288 for requests", "--max-body of 65536 bytes", "send only the items"]
    {
        assert!(message.contains(part), "{message}");
    }
    // The conversation itself is still there.
    let (status, _) = f.get(&format!("/v1/responses/{}", last.as_str().expect("an id"))).await;
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn far_too_long_texts_are_refused_soon() {
    let f = Fixture::start().await;
    f.ok(CHAT, &chat("Hello")).await;
    let began = Instant::now();
    // one word without end, and words that could be cut
    for text in ["x".repeat(8_000_000), "some words, and more. ".repeat(400_000)] {
        for body in [
            chat(&text),
            json!({"model": "tiny", "prompt": text, "max_tokens": 1}),
            json!({"model": "tiny", "input": [text]}),
            json!({"content": text}),
        ] {
            let path = match &body {
                b if b.get("messages").is_some() => CHAT,
                b if b.get("prompt").is_some() => "/v1/completions",
                b if b.get("input").is_some() => "/v1/embeddings",
                _ => "/tokenize",
            };
            let (status, body) = f.post(path, &body).await;
            assert_eq!(
                (status, &body["error"]["code"]),
                (400, &json!("context_length_exceeded")),
                "{path}: {body}"
            );
            let message = message(&body);
            assert!(
                message.contains("bytes exceeds")
                    && message.contains("maximum context length is 1024 tokens"),
                "{message}"
            );
        }
        let counted = with(&chat(&text), json!({"messages": [{"role": "user", "content": text}]}));
        let counted = json!({"model": "tiny", "messages": counted["messages"]});
        let (status, body) = f.post("/v1/messages/count_tokens", &counted).await;
        assert_eq!((status, &body["error"]["type"]), (400, &json!("invalid_request_error")), "{body}");
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    // Nothing is left in the queue of what was refused.
    assert_eq!(f.app.models().busy(), 0);
    f.ok(CHAT, &chat("Hello")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counted_texts_may_exceed_the_context() {
    let f = Fixture::start().await;
    let text = "some words, and more. ".repeat(700);
    let counted = f.ok("/tokenize", &json!({"content": text})).await;
    let tokens = counted["count"].as_u64().unwrap();
    assert!(tokens > 2000 && counted["max_model_len"] == 1024, "{tokens}");
    let messages = json!([{"role": "user", "content": text}]);
    let counted = f.ok("/v1/messages/count_tokens", &json!({"model": "tiny", "messages": messages})).await;
    assert!(counted["input_tokens"].as_u64().unwrap() > tokens);
    // but not by any length
    let (status, body) =
        f.post("/tokenize", &json!({"content": "some words, and more. ".repeat(150_000)})).await;
    assert!(
        status == 400 && message(&body).contains("exceeds 65536 tokens, the maximum for counting"),
        "{body}"
    );
    // nor where there are too many only in its last piece
    let (status, body) = f.post("/tokenize", &json!({"content": "q7".repeat(50_000)})).await;
    assert!(status == 400 && message(&body).contains("exceeds 65536 tokens"), "{}", body["count"]);
    // a prompt of as many is refused with its exact length
    let (status, body) =
        f.post("/v1/completions", &json!({"model": "tiny", "prompt": text, "max_tokens": 1})).await;
    assert!(status == 400 && message(&body).contains(&format!("the prompt has {tokens} tokens")), "{body}");
    // Ollama's `truncate` cuts it
    let cut = json!({"model": "tiny", "input": "some words, and more. ".repeat(100_000), "truncate": true});
    let out = f.ok("/api/embed", &cut).await;
    assert_eq!(out["prompt_eval_count"], 1024);
    assert_eq!(f.post("/api/embed", &with(&cut, json!({"truncate": false}))).await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn unsatisfiable_formats_are_refused_before_the_first_token() {
    let f = Fixture::start().await;
    for form in [
        json!({"grammar": "start: start"}),
        json!({"grammar": "start: \"a\" start | start \"b\""}),
        json!({"regex": "[^\\x00-\\U0010ffff]"}),
        json!({"regex": "("}),
    ] {
        let asked = with(&chat("Hello"), json!({"structured_outputs": form}));
        for asked in [
            asked.clone(),
            // No stream begins.
            with(&asked, json!({"stream": true})),
            // What is wrong shows although the answer would begin with thoughts.
            with(&asked, json!({"chat_template_kwargs": {}})),
        ] {
            let (status, body) = f.post(CHAT, &asked).await;
            assert_eq!(
                (status, &body["error"]["type"]),
                (400, &json!("invalid_request_error")),
                "{form}: {body}"
            );
            let field = form.as_object().and_then(|f| f.keys().next()).unwrap();
            assert_eq!(body["error"]["param"], format!("structured_outputs.{field}"), "{body}");
            assert!(message(&body).contains("cannot be used"), "{form}: {body}");
        }
    }
    let generated = f.app.models().loaded(0).expect("it is loaded").handle.stats();
    assert_eq!((generated.generated_tokens, generated.steps), (0, 0));
    // nothing at all is an answer
    let nothing = with(&chat("Hello"), json!({"structured_outputs": {"regex": "a?"}}));
    let answer = f.ok(CHAT, &nothing).await;
    assert!(
        ["", "a"].contains(&answer["choices"][0]["message"]["content"].as_str().unwrap_or("")),
        "{answer}"
    );
    let stats = || f.app.models().loaded(0).expect("it is loaded").handle.stats();
    // Figures are shown after the step that the answer came with.
    f.until("masks are counted", || stats().masked_steps > 0).await;
    let stats = stats();
    assert!(stats.mask_wait_time <= stats.masked_step_time, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_do_not_wait_for_token_counts() {
    const COUNTS: usize = 24;
    let f = Fixture::with(Options { prompts_at_once: 1, ..Options::new(vec![model("tiny")]) }).await;
    f.ok(CHAT, &chat("Hello")).await;
    let long = json!({"content": "some words, and more. ".repeat(3_000)});
    // A machine that has other work may leave a chat alone for longer than all counts take, though not each time. In a queue with them
    // it would always come last.
    let mut seen = Vec::new();
    for _ in 0..8 {
        let done = Arc::new(AtomicUsize::new(0));
        let counts = (0..COUNTS).map(|_| {
            let (request, done) = (f.request("/tokenize", &long), Arc::clone(&done));
            tokio::spawn(async move {
                assert_eq!(request.send().await.expect("the server answers").status(), 200);
                done.fetch_add(1, Ordering::Relaxed)
            })
        });
        let counts: Vec<_> = counts.collect();
        f.until("the first are counted", || done.load(Ordering::Relaxed) > 0).await;
        let before = done.load(Ordering::Relaxed);
        // one word, and more than goes beside them
        f.ok(CHAT, &with(&chat("Hello"), json!({"max_tokens": 1}))).await;
        let (status, body) = f.post(CHAT, &chat(&"x".repeat(70_000))).await;
        assert_eq!((status, &body["error"]["code"]), (400, &json!("context_length_exceeded")), "{body}");
        let after = done.load(Ordering::Relaxed);
        for count in counts {
            count.await.expect("all are counted");
        }
        seen.push((before, after));
        if after < COUNTS / 2 {
            return;
        }
    }
    panic!("chats wait: before and after them so many of {COUNTS} were counted: {seen:?}");
}

/// A grammar, schema or the like whose texts all come to an end that is none, where that shows before anything is generated.
#[tokio::test(flavor = "multi_thread")]
async fn dead_ends_are_found_before_anything_is_generated() {
    let f = Fixture::start().await;
    let outputs = |form: Value| json!({"structured_outputs": form});
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    for form in [
        outputs(json!({"grammar": r#"start: "a" /[^\x00-\u{10ffff}]/"#})),
        outputs(json!({"grammar": "start: \"The answer is: \" x\nx: x \"b\""})),
        outputs(json!({"grammar": "start: \"a\" \"b\" \"c\" \"d\" X\nX: /e/ & /f/"})),
        outputs(json!({"regex": "abcdefg[^\\x00-\\U0010ffff]"})),
        schema(json!({"type": "object", "required": ["a"], "properties": {"a": false}})),
        schema(json!({"enum": []})),
        schema(json!({"type": "number", "minimum": 5, "maximum": 3})),
        schema(json!({"type": "object", "required": ["a"], "properties": {"a": {"enum": []}}})),
        schema(json!({"type": "array", "minItems": 2, "maxItems": 1})),
        schema(json!(false)),
    ] {
        for thinks in [false, true] {
            for streams in [false, true] {
                let kwargs = if thinks { json!({}) } else { json!({"enable_thinking": false}) };
                let asked = with(&chat("Hello"), form.clone());
                let asked = with(&asked, json!({"stream": streams, "chat_template_kwargs": kwargs}));
                let (status, body) = f.post(CHAT, &asked).await;
                let param = body["error"]["param"].as_str().unwrap_or("none");
                let field = form.as_object().and_then(|f| f.keys().next()).expect("a field");
                assert!(status == 400 && param.starts_with(field), "{form}, thinks: {thinks}: {body}");
            }
        }
    }
    let generated = f.app.models().loaded(0).expect("it is loaded").handle.stats();
    assert_eq!((generated.generated_tokens, generated.steps), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_ends_that_come_late_say_where() {
    let f = Fixture::start().await;
    // Five characters, and then one that cannot be.
    let grammar = "start: /[ab]/ /[ab]/ /[ab]/ /[ab]/ /[ab]/ X\nX: /e/ & /f/";
    for thinks in [false, true] {
        let kwargs = if thinks { json!({}) } else { json!({"enable_thinking": false}) };
        let asked = json!({
            "structured_outputs": {"grammar": grammar}, "max_tokens": 100, "chat_template_kwargs": kwargs,
            "thinking_token_budget": if thinks { json!(3) } else { Value::Null },
        });
        let asked = with(&chat("Hello"), asked);
        let (status, body) = f.post(CHAT, &asked).await;
        let says = |error: &Value| {
            assert_eq!(error["param"], "structured_outputs.grammar", "{error}");
            let message = error["message"].as_str().expect("a message");
            let (_, end) = message.split_once("the text so far ends with ").expect(message);
            assert!(message.contains("cannot be followed further: nothing matches"), "{message}");
            let letters = end.trim_matches('"').trim_end_matches(['a', 'b']).len() + 7;
            assert_eq!(end.len(), letters, "{message}");
        };
        assert_eq!(status, 400, "{body}");
        says(&body["error"]);
        let events = f.events(CHAT, &with(&asked, json!({"stream": true}))).await;
        let error =
            events.iter().find(|(_, data)| data.get("error").is_some()).expect("an event that says so");
        says(&error.1["error"]);
    }
}
