//! Tools with a model whose chat template knows none: described in the instructions, called in Hermes' syntax, and a header says so.

use serde_json::{Value, json};

use crate::common::families::template;
use crate::common::{Fixture, chat, model, tool, with};
use octet_serve::{ModelSpec, Options};

/// ChatML, without a word about tools.
const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                      {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A text in the format that was asked for may look like a call without tags.
#[tokio::test(flavor = "multi_thread")]
async fn a_format_in_the_form_of_a_call_is_text() {
    let spec = ModelSpec { chat_template: Some(CHATML.into()), ..model("tiny") };
    let f = Fixture::with(Options::new(vec![spec])).await;
    let mut base = chat("Light!");
    base.as_object_mut().unwrap().shift_remove("chat_template_kwargs");
    let wanted = r#"{"name": "set_light", "arguments": {"room": "hall", "on": true}}"#;
    let mut asked = with(
        &base,
        json!({"tools": [tool()], "structured_outputs": {"choice": [wanted]}, "max_tokens": 300, "logit_bias": {}}),
    );
    // a call is the alternative, and this model means nothing by what it chooses
    for begun in ["<", "<tool_call>"] {
        let tokens = f.ok("/tokenize", &json!({"content": begun})).await["tokens"].clone();
        asked["logit_bias"][tokens[0].to_string()] = json!(-100);
    }
    let choice = f.ok("/v1/chat/completions", &asked).await["choices"][0].clone();
    assert_eq!(choice["message"]["content"], wanted, "{choice}");
    assert!(choice["message"]["tool_calls"].is_null() && choice["finish_reason"] == "stop", "{choice}");
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_without_tools_get_a_generic_form() {
    let spec = ModelSpec { chat_template: Some(CHATML.into()), ..model("tiny") };
    let f = Fixture::with(Options::new(vec![spec])).await;
    let mut base = chat("Light!");
    base.as_object_mut().unwrap().shift_remove("chat_template_kwargs");
    let asked = with(
        &base,
        json!({"tools": [tool()], "tool_choice": "required", "max_tokens": 300, "parallel_tool_calls": false}),
    );
    let response = f.send("/v1/chat/completions", &asked).await;
    let warning = response.headers().get("x-octet-warning").map(|h| h.to_str().unwrap().to_string());
    let answer: Value = response.json().await.unwrap();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "set_light");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["on"].is_boolean() && arguments["room"].is_string());
    assert!(warning.is_some_and(|w| w.contains("Hermes")), "the header says how tools are called");

    // the conversation goes on with the tool's answer, which is text to the template
    let mut messages = asked["messages"].as_array().unwrap().clone();
    messages.push(choice["message"].clone());
    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "done"}));
    let asked = json!({"messages": messages, "tools": [tool()], "verbosity": "low"});
    let response = f.send("/apply-template", &asked).await;
    let warned = response.headers().get("x-octet-warning").map(|h| h.to_str().unwrap().to_string());
    let has_both = |w: String| w.contains("Hermes") && w.contains("'verbosity'");
    assert!(warned.is_some_and(has_both), "the header is sent with the prompt, too");
    let prompt: Value = response.json().await.unwrap();
    let prompt = prompt["prompt"].as_str().unwrap();
    // With spaces, like the example and the lists of tools of other templates: the model writes what it sees.
    assert!(
        prompt.starts_with("<|im_start|>system\n") && prompt.contains("\"name\": \"set_light\", "),
        "{prompt}"
    );
    assert!(prompt.contains("<tool_call>\n{\"name\": \"set_light\", \"arguments\": {\""), "{prompt}");
    assert!(
        prompt.contains("<|im_start|>user\n<tool_response>\ndone\n</tool_response><|im_end|>"),
        "{prompt}"
    );
}

/// A template that is slow on purpose: probing it ends with the steps of one rendering, and what was not found counts as not supported.
#[tokio::test(flavor = "multi_thread")]
async fn templates_that_are_too_slow_to_be_probed_get_the_generic_form() {
    let call = "{% for c in message.tool_calls %}<call>{{ c.function | tojson }}</call>{% endfor %}";
    let prompt = |slow: &'static str| async move {
        let chat_template = Some(format!("{slow}{}", template(call)));
        let f = Fixture::with(Options::new(vec![ModelSpec { chat_template, ..model("tiny") }])).await;
        let body = json!({"messages": [{"role": "user", "content": "Light!"}], "tools": [tool()]});
        f.ok("/apply-template", &body).await["prompt"].as_str().unwrap().to_string()
    };
    // About a fifth of the steps each time.
    let slow = prompt("{% for i in range(90000) %}{% for j in [1, 2, 3] %}{% endfor %}{% endfor %}").await;
    assert!(slow.contains("<tool_call>") && slow.contains("set_light"), "{slow}");
    let fast = prompt("").await;
    assert!(!fast.contains("<tool_call>") && fast.contains("set_light"), "{fast}");
}
