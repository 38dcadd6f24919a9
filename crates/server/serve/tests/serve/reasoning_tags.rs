//! Reasoning between the tags of a family, which are read off its chat template: it comes apart from the answer, and goes back into the prompt
//! where the template reads it. The templates are ours, each in the form of a family.

use serde_json::json;

use crate::common::{Fixture, chat, model, with};
use octet_serve::{ModelSpec, Options};

/// ChatML; what an assistant's message writes of its reasoning, and what begins an answer.
fn template(reasoning: &str, begins: &str) -> String {
    format!(
        "{{% for message in messages %}}<|im_start|>{{{{ message.role }}}}\n{reasoning}<|im_end|>\n{{% endfor %}}\
         {{% if add_generation_prompt %}}<|im_start|>assistant\n{begins}{{% endif %}}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn each_family_thinks_between_its_own_tags() {
    let parts = "{% if message.content is string %}{{ message.content }}{% else %}{% for p in message.content %}{% if p.type == 'thinking' %}\
                 [THINK]{{ p.thinking }}[/THINK]{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}";
    let key = |open: &str, close: &str| {
        format!(
            "{{% if message.reasoning_content %}}{open}{{{{ message.reasoning_content }}}}{close}{{% endif %}}{{{{ message.content }}}}"
        )
    };
    for (name, reasoning, open, close) in [
        ("Mistral", parts.to_string(), "[THINK]", "[/THINK]"),
        ("Seed-OSS", key("<seed:think>", "</seed:think>\n"), "<seed:think>", "</seed:think>\n"),
        ("Gemma 4", key("<|channel>thought\n", "<channel|>"), "<|channel>thought\n", "<channel|>"),
    ] {
        let chat_template = Some(template(&reasoning, open));
        let f = Fixture::with(Options::new(vec![ModelSpec { chat_template, ..model(name) }])).await;
        let mut base = chat("Why?");
        base.as_object_mut().unwrap().shift_remove("chat_template_kwargs");
        base["model"] = name.into();
        // The prompt opens the tag, and a model with random weights does not close it.
        let answer = f.ok("/v1/chat/completions", &with(&base, json!({"max_tokens": 8}))).await;
        let message = &answer["choices"][0]["message"];
        assert!(message["reasoning_content"].as_str().is_some_and(|r| !r.is_empty()), "{name}: {answer}");
        assert_eq!(message["content"].as_str().unwrap_or_default(), "", "{name}: {answer}");
        let usage = &answer["usage"];
        assert_eq!(
            usage["completion_tokens_details"]["reasoning_tokens"], usage["completion_tokens"],
            "{name}: {answer}"
        );
        let messages = json!([
            {"role": "user", "content": "1"}, {"role": "assistant", "content": "said", "reasoning_content": "thought"},
            {"role": "user", "content": "2"},
        ]);
        let prompt = f.ok("/apply-template", &json!({"model": name, "messages": messages})).await;
        let prompt = prompt["prompt"].as_str().unwrap();
        assert!(prompt.contains(&format!("{open}thought{close}said")), "{name}: {prompt}");
    }
}
