//! Anthropic's endpoints over real sockets.

use crate::common::{Fixture, tool, with};
use serde_json::{Value, json};

fn message() -> Value {
    json!({
        "model": "tiny", "max_tokens": 10, "temperature": 0, "system": "Be brief.",
        "messages": [{"role": "user", "content": "Hello"}], "thinking": {"type": "disabled"},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_the_same_whole_and_streamed() {
    let f = Fixture::start().await;
    let whole = f.ok("/v1/messages", &message()).await;
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("max_tokens"))
    );
    let text = whole["content"][0]["text"].as_str().unwrap();
    let events = f.events("/v1/messages", &with(&message(), json!({"stream": true}))).await;
    let names: Vec<&str> = events.iter().map(|(n, _)| n.as_str()).filter(|n| *n != "ping").collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    assert!(names[2..names.len() - 3].iter().all(|n| *n == "content_block_delta"));
    let streamed: String = events.iter().filter_map(|(_, e)| e["delta"]["text"].as_str()).collect();
    assert_eq!(streamed, text);
    let end = &events[events.len() - 2].1;
    assert_eq!(
        (&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]),
        (&json!("max_tokens"), &json!(10))
    );
    // what was counted before is what was computed and cached
    let counted = with(&message(), json!({}));
    let mut counted = counted.as_object().unwrap().clone();
    ["max_tokens", "temperature"].iter().for_each(|k| drop(counted.remove(*k)));
    let counted = f.ok("/v1/messages/count_tokens", &counted.into()).await;
    let usage = &whole["usage"];
    let sum: u64 = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"]
        .iter()
        .filter_map(|k| usage[*k].as_u64())
        .sum();
    assert_eq!(counted["input_tokens"], sum, "{usage}");
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_and_tools_are_blocks() {
    let f = Fixture::start().await;
    let function = &tool()["function"];
    let tool = json!({"name": function["name"], "input_schema": function["parameters"]});
    let asked =
        json!({"tools": [tool], "tool_choice": {"type": "tool", "name": "set_light"}, "max_tokens": 400});
    let answer = f.ok("/v1/messages", &with(&message(), asked.clone())).await;
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let block = answer["content"].as_array().unwrap().last().unwrap();
    assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!("set_light")));
    assert!(block["input"]["on"].is_boolean());
    let events = f.events("/v1/messages", &with(&with(&message(), asked), json!({"stream": true}))).await;
    let input: String = events.iter().filter_map(|(_, e)| e["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), block["input"]);

    let thinking =
        json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1100, "temperature": 1});
    // A context of 1024 tokens has no room for that many: the answer is cut to what there is.
    f.ok("/v1/messages", &with(&message(), thinking)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_anthropics_shape() {
    let f = Fixture::start().await;
    let (status, body) = f.post("/v1/messages", &with(&message(), json!({"model": "opus"}))).await;
    assert_eq!(
        (status, &body["type"], &body["error"]["type"]),
        (404, &json!("error"), &json!("not_found_error"))
    );
    assert!(body["request_id"].as_str().unwrap().starts_with("req_"));
    let (status, body) = f.post("/v1/messages", &with(&message(), json!({"max_tokens": 0}))).await;
    assert!(status == 400 && body["error"]["message"].as_str().unwrap().contains("max_tokens"));
    let list =
        f.client.get(f.url("/v1/models")).header("anthropic-version", "2023-06-01").send().await.unwrap();
    let (_, list) = crate::common::read(list).await;
    assert_eq!((&list["data"][0]["id"], &list["data"][0]["type"]), (&json!("tiny"), &json!("model")));
}
