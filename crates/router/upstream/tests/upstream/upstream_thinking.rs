//! How providers with OpenAI's dialect are told not to think, as each documents it, and other rules of theirs.

use serde_json::{Value, json};

use crate::upstream_rules::to;

#[tokio::test]
async fn the_effort_none_has_the_providers_form() {
    let disabled = json!({"type": "disabled"});
    for (family, thinking, enabled, effort) in [
        ("deepseek/deepseek-flash", disabled.clone(), Value::Null, Value::Null),
        ("zai/glm-5", disabled.clone(), Value::Null, Value::Null),
        ("moonshot/kimi-k2.6", disabled.clone(), Value::Null, Value::Null),
        ("dashscope/qwen3.5-plus", Value::Null, json!(false), Value::Null),
        // These always think.
        ("moonshot/kimi-k3", Value::Null, Value::Null, json!("low")),
        ("zai/glm-5.3", Value::Null, Value::Null, json!("low")),
        // This one knows the word.
        ("openai/gpt-5.2", Value::Null, Value::Null, json!("none")),
    ] {
        let got = to(family).chat(json!({"reasoning_effort": "none"})).await.unwrap();
        let found = (&got["thinking"], &got["enable_thinking"], &got["reasoning_effort"]);
        assert_eq!(found, (&thinking, &enabled, &effort), "{family}: {got}");
    }
    let got = to("deepseek/deepseek-flash").chat(json!({"reasoning_effort": "high"})).await.unwrap();
    assert_eq!((&got["reasoning_effort"], got.get("thinking")), (&json!("high"), None));
    // As vLLM's clients say it, and Anthropic's.
    let got =
        to("zai/glm-5").chat(json!({"chat_template_kwargs": {"enable_thinking": false}})).await.unwrap();
    assert_eq!((&got["thinking"], got.get("chat_template_kwargs")), (&disabled, None));
    let both = json!({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false}});
    let got = to("zai/glm-5").chat(both).await.unwrap();
    assert_eq!((&got["thinking"], got.get("reasoning_effort")), (&disabled, None));
    let got =
        to("deepseek/deepseek-flash").messages(json!({"thinking": {"type": "disabled"}})).await.unwrap();
    assert_eq!((&got["thinking"], got.get("chat_template_kwargs")), (&disabled, None), "{got}");
    // What a client says in the provider's own way stays.
    let own = json!({"reasoning_effort": "none", "thinking": {"type": "enabled"}});
    assert_eq!(to("zai/glm-5").chat(own).await.unwrap()["thinking"], json!({"type": "enabled"}));
}

#[tokio::test]
async fn numbers_fit_minimax_and_names_of_lengths_zai() {
    let got = to("minimax/MiniMax-M3").chat(json!({"temperature": 1.5, "n": 2})).await.unwrap();
    assert_eq!((&got["temperature"], got.get("n")), (&json!(1.0), None));
    let got = to("zai/glm-5").chat(json!({"max_completion_tokens": 9})).await.unwrap();
    assert_eq!((&got["max_tokens"], got.get("max_completion_tokens")), (&json!(9), None));
}
