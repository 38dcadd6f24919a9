//! Ollama's endpoints over real sockets.

use crate::common::{Fixture, tool, with};
use serde_json::{Value, json};

fn chat() -> Value {
    json!({
        "model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "think": false,
        "options": {"temperature": 0, "num_predict": 10},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_are_streamed_as_lines_by_default() {
    let f = Fixture::start().await;
    let lines = f.lines("/api/chat", &chat()).await;
    let last = lines.last().unwrap();
    assert!(last["done"] == true && lines[..lines.len() - 1].iter().all(|l| l["done"] == false));
    assert_eq!((&last["done_reason"], &last["eval_count"]), (&json!("length"), &json!(10)));
    let streamed: String = lines.iter().filter_map(|l| l["message"]["content"].as_str()).collect();
    let whole = f.ok("/api/chat", &with(&chat(), json!({"stream": false}))).await;
    assert_eq!(whole["message"]["content"], streamed.as_str());
    let with_tag = f.ok("/api/chat", &with(&chat(), json!({"stream": false, "model": "tiny:latest"}))).await;
    assert_eq!(with_tag["message"], whole["message"]);
    let called = f.ok("/api/chat", &with(&chat(), json!({"stream": false, "tools": [tool()]}))).await;
    assert!(called["message"].is_object());

    let generated = json!({"model": "tiny", "prompt": "Hello", "think": false, "stream": false, "options": {"temperature": 0, "num_predict": 10}});
    let generated = f.ok("/api/generate", &generated).await;
    assert_eq!(generated["response"], streamed.as_str(), "a prompt is a message");
    let raw = json!({"model": "tiny", "prompt": "Hello", "raw": true, "stream": false, "options": {"temperature": 0, "num_predict": 3}});
    assert_eq!(f.ok("/api/generate", &raw).await["eval_count"], 3);
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["ok"], "properties": {"ok": {"type": "boolean"}}});
    let formatted =
        json!({"stream": false, "format": schema, "options": {"temperature": 0, "num_predict": 50}});
    let formatted = f.ok("/api/chat", &with(&chat(), formatted)).await;
    let value: Value = serde_json::from_str(formatted["message"]["content"].as_str().unwrap()).unwrap();
    assert!(value["ok"].is_boolean());
}

/// The model sees the same conversation as by `/api/chat`.
#[tokio::test(flavor = "multi_thread")]
async fn a_generated_answer_is_continued_by_its_context() {
    let f = Fixture::start().await;
    let ask = |more: Value| {
        with(
            &json!({"model": "tiny", "think": false, "stream": false, "options": {"temperature": 0, "num_predict": 10}}),
            more,
        )
    };
    let first = f.ok("/api/generate", &ask(json!({"prompt": "Hello"}))).await;
    let second = f.ok("/api/generate", &ask(json!({"prompt": "Go on", "context": first["context"]}))).await;
    let history = json!([
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": first["response"]},
        {"role": "user", "content": "Go on"},
    ]);
    let chat = f.ok("/api/chat", &ask(json!({"messages": history}))).await;
    assert_eq!(second["response"], chat["message"]["content"]);
    assert_eq!(second["prompt_eval_count"], chat["prompt_eval_count"]);
    let lines = f.lines("/api/generate", &ask(json!({"prompt": "Hello", "stream": true}))).await;
    assert_eq!(lines.last().unwrap()["context"], first["context"]);
    let (status, body) =
        f.post("/api/generate", &ask(json!({"prompt": "Go on", "context": [1, 2, 3]}))).await;
    assert_eq!(status, 400, "{body}");
    assert!(body["error"].as_str().unwrap().contains("'context' was not returned by this server"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_listed_loaded_and_unloaded() {
    let f = Fixture::start().await;
    let (_, tags) = f.get("/api/tags").await;
    assert_eq!(tags["models"][0]["name"], "tiny");
    assert_eq!(f.get("/api/ps").await.1, json!({"models": []}));
    let loaded = f.ok("/api/generate", &json!({"model": "tiny"})).await;
    assert_eq!(loaded["done_reason"], "load");
    assert_eq!(f.get("/api/ps").await.1["models"][0]["name"], "tiny");
    let show = f.ok("/api/show", &json!({"model": "tiny"})).await;
    assert_eq!(show["details"]["family"], "qwen35moe");
    assert!(show["capabilities"].as_array().unwrap().contains(&json!("tools")));
    assert!(f.get("/api/version").await.1["version"].is_string());
    let unloaded = f.ok("/api/generate", &json!({"model": "tiny", "keep_alive": 0})).await;
    assert_eq!(unloaded["done_reason"], "unload");
    f.until("the model is unloaded", || f.app.models().loaded(0).is_none()).await;
    // and it comes back
    f.ok("/api/chat", &with(&chat(), json!({"stream": false}))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_and_errors_have_ollamas_shape() {
    let f = Fixture::start().await;
    let out = f.ok("/api/embed", &json!({"model": "tiny", "input": ["one", "two"]})).await;
    assert_eq!(out["embeddings"].as_array().unwrap().len(), 2);
    assert!(out["prompt_eval_count"].as_u64().unwrap() > 1);
    for none in [json!({}), json!({"input": ""}), json!({"input": []})] {
        let out = f.ok("/api/embed", &with(&json!({"model": "tiny"}), none.clone())).await;
        assert_eq!(out["embeddings"], json!([]), "{none}");
    }
    let old = f.ok("/api/embeddings", &json!({"model": "tiny", "prompt": "one"})).await;
    assert_eq!(old["embedding"].as_array().unwrap().len(), 256);
    // 0 is no limit in Ollama; the context's end is one.
    let unlimited = json!({"stream": false, "options": {"num_predict": 0, "stop": ["e", "a", "o", " "]}});
    f.ok("/api/chat", &with(&chat(), unlimited)).await;
    let (status, body) = f.post("/api/chat", &with(&chat(), json!({"model": "llama9"}))).await;
    assert!(status == 404 && body["error"].as_str().unwrap().contains("tiny"), "{body}");
    let (status, body) = f.post("/api/pull", &json!({"model": "x"})).await;
    assert!(status == 404 && body["error"].as_str().unwrap().contains("octet pull"), "{body}");
    // Scripts pull a model before they use it.
    let pulled = f.ok("/api/pull", &json!({"model": "tiny", "stream": false})).await;
    assert_eq!(pulled, json!({"status": "success"}));
    let lines = f.request("/api/pull", &json!({"name": "tiny"})).send().await.unwrap();
    assert_eq!(lines.headers()["content-type"], "application/x-ndjson");
    assert!(lines.text().await.unwrap().ends_with("{\"status\":\"success\"}\n"));
}
