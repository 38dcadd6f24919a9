//! OpenAI's endpoints over real sockets: whole answers, streams, counts, limits, errors.

use crate::common::{CONTEXT, Fixture, chat, tool, with};
use serde_json::{Value, json};

/// The text of a chat's stream, choice 0.
fn text(events: &[(String, Value)]) -> String {
    events.iter().filter_map(|(_, e)| e["choices"][0]["delta"]["content"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_is_the_same_whole_and_streamed() {
    let f = Fixture::start().await;
    let whole = f.ok("/v1/chat/completions", &chat("Hello")).await;
    assert_eq!(whole["object"], "chat.completion");
    assert!(whole["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["role"]),
        (&json!("length"), &json!("assistant"))
    );
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    assert_eq!(whole["timings"]["predicted_n"], 12);
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(!content.is_empty());

    let asked = with(&chat("Hello"), json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = f.events("/v1/chat/completions", &asked).await;
    assert_eq!(events[0].1["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(text(&events), content);
    assert_eq!(events.last().unwrap().1, "[DONE]");
    let usage = &events[events.len() - 2].1;
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
    let cached = &usage["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64().is_some(), "{usage}");
    let finish: Vec<&Value> =
        events.iter().map(|(_, e)| &e["choices"][0]["finish_reason"]).filter(|r| r.is_string()).collect();
    assert_eq!(finish, ["length"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_mean_no_model_are_those_of_the_only_one() {
    let f = Fixture::start().await;
    for (name, status) in [("", 200), ("dummy", 200), ("default", 200), ("other", 404)] {
        let asked = with(&chat("Hello"), json!({"model": name, "max_tokens": 1}));
        assert_eq!(f.post("/v1/chat/completions", &asked).await.0, status, "{name:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_continues_from_the_cache() {
    let f = Fixture::start().await;
    let long = "word ".repeat(60);
    let first = f.ok("/v1/chat/completions", &chat(&long)).await;
    let said = &first["choices"][0]["message"]["content"];
    let mut next = chat(&long);
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": said}));
    messages.push(json!({"role": "user", "content": "And then?"}));
    let asked = f.request("/v1/chat/completions", &next).header("x-octet-explain-cache", "1");
    let answer = asked.send().await.unwrap();
    let miss =
        answer.headers().get("x-octet-cache-miss").expect("it is explained").to_str().unwrap().to_string();
    assert!(miss.contains("cached"), "{miss}");
    assert!(answer.headers()["x-request-id"].to_str().unwrap().starts_with("req_"));
    let (_, second) = crate::common::read(answer).await;
    let usage = &second["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > 250 && cached < usage["prompt_tokens"].as_u64().unwrap(), "{usage}");
    // the same without the cache
    let cold = f.ok("/v1/chat/completions", &with(&next, json!({"cache_prompt": false}))).await;
    assert_eq!(cold["choices"], second["choices"]);
    assert_eq!(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_is_separate_from_the_answer_and_limited() {
    let f = Fixture::start().await;
    let thinking = json!({"max_tokens": 60, "chat_template_kwargs": {}, "thinking_token_budget": 5});
    let asked = with(&chat("Hello"), thinking);
    let (status, whole) = f.post("/v1/chat/completions", &asked).await;
    assert_eq!(status, 200, "{whole}");
    let message = &whole["choices"][0]["message"];
    let reasoning = message["reasoning_content"].as_str().unwrap();
    assert!(reasoning.contains("I answer now"), "{whole}");
    assert!(!message["content"].as_str().unwrap().contains("</think>"));
    assert!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_answers_have_stops_and_log_probabilities() {
    let f = Fixture::start().await;
    let plain = f.ok("/v1/chat/completions", &chat("Hello")).await;
    let content = plain["choices"][0]["message"]["content"].as_str().unwrap().to_string();
    let several = f.ok("/v1/chat/completions", &with(&chat("Hello"), json!({"n": 3}))).await;
    let all = several["choices"].as_array().unwrap();
    assert!(all.len() == 3 && all.iter().all(|c| c["message"]["content"] == content.as_str()));
    assert_eq!(several["usage"]["completion_tokens"], 36);

    let middle: String = content.chars().skip(3).take(2).collect();
    let stopped = f.ok("/v1/chat/completions", &with(&chat("Hello"), json!({"stop": middle}))).await;
    let choice = &stopped["choices"][0];
    let before = content.split(middle.as_str()).next().unwrap();
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("stop"), &json!(before)));

    let scored = f
        .ok("/v1/chat/completions", &with(&chat("Hello"), json!({"logprobs": true, "top_logprobs": 2})))
        .await;
    let tokens = scored["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len(), 12);
    for t in tokens {
        assert!(t["logprob"].as_f64().unwrap() <= 0.0 && t["top_logprobs"].as_array().unwrap().len() == 2);
        assert_eq!(t["top_logprobs"][0]["logprob"], t["logprob"], "greedy takes the likeliest");
    }
    let stream = with(&chat("Hello"), json!({"logprobs": true, "top_logprobs": 2, "stream": true}));
    let events = f.events("/v1/chat/completions", &stream).await;
    let streamed: usize = events
        .iter()
        .filter_map(|(_, e)| e["choices"][0]["logprobs"]["content"].as_array().map(Vec::len))
        .sum();
    assert_eq!(streamed, 12);
}

/// After reasoning, too, and before a stop string that follows held-back white space.
#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_are_those_of_the_content() {
    let f = Fixture::start().await;
    let stopped = json!({"logprobs": true, "structured_outputs": {"regex": "  qzxwvx"}, "stop": ["qzxwv"], "max_tokens": 50});
    let answer = f.ok("/v1/chat/completions", &with(&chat("Hello"), stopped)).await;
    let choice = &answer["choices"][0];
    let tokens = choice["logprobs"]["content"].as_array().unwrap().iter();
    let tokens: String = tokens.map(|t| t["token"].as_str().unwrap()).collect();
    assert_eq!((&choice["message"]["content"], tokens.as_str()), (&json!("  "), "  "), "{answer}");
    let mut thinks = chat("Hello");
    thinks.as_object_mut().unwrap().shift_remove("chat_template_kwargs");
    for budget in [0, 5] {
        let more = json!({"logprobs": true, "thinking_token_budget": budget, "max_tokens": 90});
        let answer = f.ok("/v1/chat/completions", &with(&thinks, more)).await;
        let choice = &answer["choices"][0];
        let tokens = choice["logprobs"]["content"].as_array().unwrap();
        let bytes = tokens.iter().flat_map(|t| t["bytes"].as_array().unwrap());
        let bytes: Vec<u8> = bytes.map(|b| b.as_u64().unwrap() as u8).collect();
        let content = choice["message"]["content"].as_str().unwrap();
        let thought = &answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
        assert!(!content.is_empty() && thought.as_u64() > Some(0), "{answer}");
        // Random weights also choose control tokens, which the content does not show.
        let begin = |text: &str| text.chars().take(20).collect::<String>();
        assert_eq!(begin(&String::from_utf8_lossy(&bytes)), begin(content), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_echo_and_score() {
    let f = Fixture::start().await;
    let base = json!({"model": "tiny", "prompt": "abc def", "max_tokens": 0, "temperature": 0, "echo": true, "logprobs": 1});
    let scored = f.ok("/v1/completions", &base).await;
    let choice = &scored["choices"][0];
    assert_eq!(choice["text"], "abc def");
    let logprobs = &choice["logprobs"];
    let n = logprobs["tokens"].as_array().unwrap().len();
    assert_eq!(scored["usage"]["prompt_tokens"], n);
    assert!(logprobs["token_logprobs"][0].is_null() && logprobs["token_logprobs"][1].as_f64().unwrap() < 0.0);
    assert_eq!(
        logprobs["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect::<String>(),
        "abc def"
    );

    // token ids, several prompts, an answer behind each
    let ids = f.ok("/tokenize", &json!({"content": "abc def"})).await["tokens"].clone();
    let several = json!({"model": "tiny", "prompt": [ids, ids], "max_tokens": 3, "temperature": 0, "echo": true, "n": 2});
    let several = f.ok("/v1/completions", &several).await;
    let all = several["choices"].as_array().unwrap();
    assert_eq!(all.len(), 4);
    let plain = json!({"model": "tiny", "prompt": "abc def", "max_tokens": 3, "temperature": 0});
    let plain = f.ok("/v1/completions", &plain).await;
    let whole = format!("abc def{}", plain["choices"][0]["text"].as_str().unwrap());
    assert!(all.iter().all(|c| c["text"] == whole.as_str()), "{several}");

    // more prompts than the queue has room for
    let many: Vec<String> = (0..40).map(|i| format!("prompt {i}")).collect();
    let many = f.ok("/v1/completions", &json!({"model": "tiny", "prompt": many, "max_tokens": 2})).await;
    assert_eq!(many["choices"].as_array().unwrap().len(), 40);

    let events = f.events("/v1/completions", &with(&base, json!({"stream": true, "max_tokens": 2}))).await;
    let text: String = events.iter().filter_map(|(_, e)| e["choices"][0]["text"].as_str()).collect();
    assert!(text.starts_with("abc def") && events.last().unwrap().1 == "[DONE]");
}

#[tokio::test(flavor = "multi_thread")]
async fn response_formats_are_enforced() {
    let f = Fixture::start().await;
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["ok", "color"],
        "properties": {"ok": {"type": "boolean"}, "color": {"enum": ["red", "green"]}},
    });
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
    let asked = with(&chat("Hello"), json!({"response_format": format, "max_tokens": 100}));
    let answer = f.ok("/v1/chat/completions", &asked).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{answer}");
    let value: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
    assert!(value["ok"].is_boolean() && ["red", "green"].contains(&value["color"].as_str().unwrap()));
    let choices = with(&chat("Hello"), json!({"structured_outputs": {"choice": ["yes", "no"]}}));
    let answer = f.ok("/v1/chat/completions", &choices).await;
    assert!(["yes", "no"].contains(&answer["choices"][0]["message"]["content"].as_str().unwrap()));
    for form in [json!({"regex": "("}), json!({"grammar": "start: start"})] {
        let wrong = with(&chat("Hello"), json!({ "structured_outputs": form }));
        let (status, body) = f.post("/v1/chat/completions", &wrong).await;
        assert_eq!((status, &body["error"]["type"]), (400, &json!("invalid_request_error")), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn required_tools_are_called() {
    let f = Fixture::start().await;
    let asked = with(
        &chat("Light!"),
        json!({"tools": [tool()], "tool_choice": "required", "max_tokens": 300, "parallel_tool_calls": false}),
    );
    let answer = f.ok("/v1/chat/completions", &asked).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "set_light");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["on"].is_boolean() && arguments["room"].is_string());

    let streamed = f.events("/v1/chat/completions", &with(&asked, json!({"stream": true}))).await;
    let deltas: Vec<&Value> =
        streamed.iter().map(|(_, e)| &e["choices"][0]["delta"]["tool_calls"][0]).collect();
    assert!(deltas.iter().any(|d| d["function"]["name"] == "set_light" && d["id"].is_string()));
    let streamed: String = deltas.iter().filter_map(|d| d["function"]["arguments"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&streamed).unwrap(), arguments);

    // the conversation goes on with the tool's answer
    let mut next = with(&asked, json!({"tool_choice": "none", "max_tokens": 5}));
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(choice["message"].clone());
    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "done"}));
    f.ok("/v1/chat/completions", &next).await;

    let both = with(&asked, json!({"response_format": {"type": "json_object"}}));
    let body = f.ok("/v1/chat/completions", &both).await;
    assert_eq!(body["choices"][0]["finish_reason"], "tool_calls", "a required call goes before a format");
    // a form and tools that may be called: either
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["ok"], "properties": {"ok": {"type": "boolean"}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let either = with(&asked, json!({"tool_choice": "auto", "response_format": format}));
    let answer = f.ok("/v1/chat/completions", &either).await;
    let message = &answer["choices"][0]["message"];
    let fits = message["content"]
        .as_str()
        .is_some_and(|c| serde_json::from_str::<Value>(c).is_ok_and(|v| v["ok"].is_boolean()));
    assert!(fits || message["tool_calls"].is_array(), "{answer}");
}

/// A short, greedy response.
fn response() -> Value {
    json!({
        "model": "tiny", "input": "Hello", "max_output_tokens": 8, "temperature": 0, "reasoning": {"effort": "none"},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_are_stored_and_deleted() {
    let f = Fixture::start().await;
    let base = response();
    let first = f.ok("/v1/responses", &base).await;
    let id = first["id"].as_str().unwrap();
    assert!(id.starts_with("resp_") && first["object"] == "response");
    let (status, again) = f.get(&format!("/v1/responses/{id}")).await;
    assert_eq!((status, &again), (200, &first));
    let next = with(&base, json!({"previous_response_id": id, "input": "More"}));
    let second = f.ok("/v1/responses", &next).await;
    let prompt = |response: &Value| response["usage"]["input_tokens"].as_u64();
    assert!(prompt(&second) > prompt(&first));
    let named: Vec<Value> = first["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| json!({"type": "item_reference", "id": item["id"]}))
        .collect();
    let user = |text: &str| json!({"role": "user", "content": text});
    let turns = [&[user("Hello")], &named[..], &[user("More")]].concat();
    let referring = with(&base, json!({"input": turns}));
    assert_eq!(prompt(&f.ok("/v1/responses", &referring).await), prompt(&second));
    let items = async |query: &str| {
        f.get(&format!("/v1/responses/{}/input_items{query}", second["id"].as_str().unwrap())).await
    };
    let (status, page) = items("?order=asc").await;
    assert_eq!(status, 200, "{page}");
    let texts: Vec<&Value> =
        page["data"].as_array().unwrap().iter().map(|i| &i["content"][0]["text"]).collect();
    assert_eq!(texts, [&json!("Hello"), &first["output"][0]["content"][0]["text"], &json!("More")]);
    assert_eq!(items("?limit=0").await.0, 400);
    assert_eq!(f.get("/v1/responses/x/input_items?limit=0").await.0, 400, "before anything is looked up");
    assert_eq!(f.get("/v1/responses/x/input_items").await.0, 404);
    let all: Vec<Value> = page["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| json!({"type": "item_reference", "id": i["id"]}))
        .collect();
    let again = f.ok("/v1/responses", &with(&base, json!({"input": all}))).await;
    assert_eq!(prompt(&again), prompt(&second));
    for asked in [&next, &referring] {
        let counted = f.ok("/v1/responses/input_tokens", asked).await;
        assert_eq!(counted["input_tokens"].as_u64(), prompt(&second));
    }
    let deleted = f.client.delete(f.url(&format!("/v1/responses/{id}"))).send().await.unwrap();
    assert_eq!(crate::common::read(deleted).await.1["deleted"], true);
    assert_eq!(f.get(&format!("/v1/responses/{id}")).await.0, 404);
    let (status, body) = f.post("/v1/responses", &next).await;
    assert_eq!((status, &body["error"]["code"]), (400, &json!("previous_response_not_found")));
    let (status, body) = f.post("/v1/responses", &referring).await;
    assert_eq!((status, &body["error"]["param"]), (400, &json!("input[1].id")));
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_are_streamed() {
    let f = Fixture::start().await;
    let body = with(&response(), json!({"stream": true, "store": false}));
    let events = f.events("/v1/responses", &body).await;
    let names: Vec<&str> = events.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names[0], "response.created");
    assert!(["response.completed", "response.incomplete"].contains(names.last().unwrap()), "{names:?}");
    assert!(names.contains(&"response.output_text.delta"));
    let numbers: Vec<u64> = events.iter().filter_map(|(_, e)| e["sequence_number"].as_u64()).collect();
    assert!(numbers.len() == events.len() && numbers.is_sorted());
    assert_eq!(
        f.get(&format!("/v1/responses/{}", events[0].1["response"]["id"].as_str().unwrap())).await.0,
        404
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_are_answered_in_their_deprecated_form() {
    let f = Fixture::start().await;
    let function = crate::common::tool()["function"].clone();
    let asked =
        json!({"functions": [function], "function_call": {"name": function["name"]}, "max_tokens": 300});
    let asked = with(&chat("Light!"), asked);
    let whole = f.ok("/v1/chat/completions", &asked).await;
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["function_call"]["name"]),
        (&json!("function_call"), &function["name"])
    );
    let arguments = choice["message"]["function_call"]["arguments"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object(), "{arguments}");
    let events = f.events("/v1/chat/completions", &with(&asked, json!({"stream": true}))).await;
    let pieces: String = events
        .iter()
        .filter_map(|(_, e)| e["choices"][0]["delta"]["function_call"]["arguments"].as_str())
        .collect();
    assert_eq!(pieces, arguments);
    let mut next = with(&asked, json!({"function_call": "none", "max_tokens": 5}));
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(choice["message"].clone());
    messages.push(json!({"role": "function", "name": function["name"], "content": "done"}));
    f.ok("/v1/chat/completions", &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_have_length_one() {
    let f = Fixture::start().await;
    let out = f.ok("/v1/embeddings", &json!({"model": "tiny", "input": ["one", "two"]})).await;
    let data = out["data"].as_array().unwrap();
    assert_eq!(data.len(), 2);
    let length = |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap().powi(2)).sum::<f64>();
    assert!(data.iter().all(|d| (length(&d["embedding"]) - 1.0).abs() < 1e-4));
    let short = f.ok("/v1/embeddings", &json!({"model": "tiny", "input": "one", "dimensions": 16})).await;
    assert_eq!(short["data"][0]["embedding"].as_array().unwrap().len(), 16);
    let long = "a ".repeat(2 * CONTEXT);
    assert_eq!(f.post("/v1/embeddings", &json!({"model": "tiny", "input": long})).await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_the_field() {
    let f = Fixture::start().await;
    let error = |(status, body): (u16, Value)| {
        (status, body["error"]["message"].as_str().unwrap_or_default().to_string())
    };
    let chat_path = "/v1/chat/completions";
    let (status, what) = error(f.post(chat_path, &with(&chat("x"), json!({"model": "gpt-9"}))).await);
    assert!(status == 404 && what.contains("gpt-9") && what.contains("tiny"), "{what}");
    let (status, what) = error(f.post(chat_path, &with(&chat("x"), json!({"temperature": "hot"}))).await);
    assert!(status == 400 && what.contains("temperature"), "{what}");
    for most in [1, 300] {
        let long = with(&chat(&"long ".repeat(CONTEXT)), json!({"max_tokens": most}));
        let (status, body) = f.post(chat_path, &long).await;
        let what = body["error"]["message"].as_str().unwrap();
        assert!(
            status == 400 && body["error"]["code"] == "context_length_exceeded" && what.contains("1024"),
            "{body}"
        );
        assert!(what.contains(&format!("max_tokens is {most};")), "{body}");
    }
    let image = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]);
    let image = json!({"messages": [{"role": "user", "content": image}]});
    let (status, what) = error(f.post(chat_path, &with(&chat("x"), image)).await);
    assert!(status == 400 && what.contains("is an image, and this model reads text only"), "{what}");

    let raw = |body: &'static str, kind: &'static str| {
        f.client.post(f.url(chat_path)).header("content-type", kind).body(body).send()
    };
    let answer = crate::common::read(raw("{\"model\":", "application/json").await.unwrap()).await;
    assert_eq!(answer.0, 400, "{}", answer.1);
    let answer = crate::common::read(raw("{}", "multipart/form-data").await.unwrap()).await;
    assert!(answer.0 == 415 && answer.1["error"]["message"].as_str().unwrap().contains("application/json"));
    let (status, body) = f.get(chat_path).await;
    assert!(status == 405 && body["error"]["message"].as_str().unwrap().contains("GET"), "{body}");
    assert_eq!(f.get("/v1/nothing").await.0, 404);
    for path in ["/v1/v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions/"] {
        let (status, what) = error(f.post(path, &chat("x")).await);
        assert!(status == 404 && what.contains("did you mean /v1/chat/completions?"), "{what}");
    }
    let packed =
        f.client.post(f.url(chat_path)).header("content-encoding", "gzip").body(&b"\x1f\x8b\x08"[..]);
    let (status, what) = error(crate::common::read(packed.send().await.unwrap()).await);
    assert!(status == 415 && what.contains("'gzip'; send it without compression"), "{what}");
}
