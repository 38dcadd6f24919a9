//! Tools with models whose chat templates have a syntax of calls of their own: it is read off the template, enforced, read back, and earlier
//! calls go through the template again. The templates are ours, each in the form of a family.

use serde_json::{Value, json};

use crate::common::families::{FAMILIES, MARKS, RECIPIENTS, source};
use crate::common::{Fixture, chat, model, tool, with};
use octet_serve::{ModelSpec, Options};

#[tokio::test(flavor = "multi_thread")]
async fn each_family_calls_in_its_own_syntax() {
    for family in &FAMILIES {
        let f = Fixture::with(Options::new(vec![ModelSpec {
            chat_template: Some(source(family)),
            ..model(family.0)
        }]))
        .await;
        let (name, _, several, begins) = *family;
        let mut base = chat("Light!");
        base.as_object_mut().unwrap().shift_remove("chat_template_kwargs");
        base["model"] = name.into();
        let forced = json!({"tools": [tool()], "tool_choice": "required", "max_tokens": 400, "parallel_tool_calls": false, "reasoning_effort": "none"});
        let asked = with(&base, forced);
        let response = f.send("/v1/chat/completions", &asked).await;
        assert_eq!(response.headers().get("x-octet-warning"), None, "{name}");
        let answer: Value = response.json().await.unwrap();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{name}: {answer}");
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!(call["function"]["name"], "set_light");
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments["on"].is_boolean() && arguments["room"].is_string(), "{name}: {arguments}");

        // the same call streamed, and through Anthropic's dialect
        let streamed =
            f.events("/v1/chat/completions", &with(&asked, json!({"stream": true, "seed": 5}))).await;
        let pieces = streamed.iter().map(|(_, e)| &e["choices"][0]["delta"]["tool_calls"][0]["function"]);
        let text: String = pieces.filter_map(|f| f["arguments"].as_str()).collect();
        let whole: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"));
        assert!(whole["on"].is_boolean(), "{name}: {whole}");
        let anthropic = json!({"model": name, "max_tokens": 400, "thinking": {"type": "disabled"}, "messages": base["messages"], "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "tools": [{"name": "set_light", "input_schema": tool()["function"]["parameters"]}]});
        let answer = f.ok("/v1/messages", &anthropic).await;
        assert_eq!(answer["content"][0]["type"], "tool_use", "{name}: {answer}");
        assert_eq!(answer["stop_reason"], "tool_use", "{name}: {answer}");

        // two calls and their answers go through the template as it takes them
        let called = |id: &str| json!({"id": id, "type": "function", "function": {"name": "set_light", "arguments": "{\"room\": \"A\", \"on\": true}"}});
        let mut messages = base["messages"].as_array().unwrap().clone();
        messages.push(json!({"role": "assistant", "content": "", "tool_calls": [called("call_first_of_two"), called("call_second")]}));
        for id in ["call_first_of_two", "call_second"] {
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": format!("result of {id}")}));
        }
        let body = json!({"model": name, "messages": messages, "tools": [tool()]});
        let prompt = f.ok("/apply-template", &body).await;
        let prompt = prompt["prompt"].as_str().unwrap();
        assert!(prompt.contains(begins), "{name}: {prompt}");
        assert_eq!(
            prompt.matches("_start|>assistant").count() + prompt.matches("<|start|>assistant").count(),
            if several { 2 } else { 3 },
            "{name}: {prompt}"
        );
        let results: Vec<usize> = ["result of call_first_of_two", "result of call_second"]
            .iter()
            .filter_map(|r| prompt.find(r))
            .collect();
        assert!(results.len() == 2 && results.is_sorted(), "{name}: {prompt}");
    }
}

/// Text that must be JSON follows its header, which the prompt has begun and which is no part of the answer.
#[tokio::test(flavor = "multi_thread")]
async fn text_with_a_header_may_be_constrained() {
    for (name, template, begun) in
        [("marks", MARKS, "<|im_start|>assistant\n>>>"), ("recipients", RECIPIENTS, "<|im_start|>assistant")]
    {
        let chat_template = Some(template.to_string());
        let f = Fixture::with(Options::new(vec![ModelSpec { chat_template, ..model(name) }])).await;
        let schema = json!({"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": false});
        let format = json!({"type": "json_schema", "json_schema": {"name": "light", "schema": schema, "strict": true}});
        let messages = json!([
            {"role": "user", "content": "Light?"}, {"role": "assistant", "content": "On."}, {"role": "user", "content": "And now?"},
        ]);
        let mut body =
            json!({"model": name, "messages": messages, "reasoning_effort": "none", "max_tokens": 200});
        let prompt = f.ok("/apply-template", &json!({"messages": messages})).await["prompt"].clone();
        assert!(prompt.as_str().unwrap().ends_with(begun), "{name}: {prompt}");
        body["response_format"] = format;
        let answer = f.ok("/v1/chat/completions", &body).await;
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let read: Value = serde_json::from_str(content).unwrap_or_else(|e| panic!("{name}: {e}: {content}"));
        assert!(read["on"].is_boolean(), "{name}: {content}");
        // A message that goes on has its header already, whatever its text ends with.
        for last in ["So: 1 >", "1 <", "1"] {
            let messages =
                json!([{"role": "user", "content": "Count"}, {"role": "assistant", "content": last}]);
            let asked = json!({
                "model": name, "messages": messages, "reasoning_effort": "none", "max_tokens": 200,
                "continue_final_message": true, "add_generation_prompt": false, "structured_outputs": {"choice": ["2"]},
            });
            let answer = f.ok("/v1/chat/completions", &asked).await;
            assert_eq!(answer["choices"][0]["message"]["content"], "2", "{name}: {answer}");
            assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() <= 2, "{name}: {answer}");
        }
    }
}
