//! Conversations that a model's chat template refuses as they are: what it needs is found by rendering, and they are answered in every
//! dialect.

use crate::common::{Fixture, model};
use octet_serve::{ModelSpec, Options};
use serde_json::{Value, json};

/// Refuses a conversation without a user's message, as Qwen's newer templates do, and instructions that are not at the beginning.
const NEEDS_USER: &str = r#"
{%- set ns = namespace(asked=false) %}
{%- for m in messages if m.role == 'user' %}{% set ns.asked = true %}{% endfor %}
{%- if not ns.asked %}{{ raise_exception('No user query found in messages.') }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}
{{- '<|im_start|>' + m.role + '\n' + (m.content or '') + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"#;

/// Refuses a conversation that the assistant begins, and has no instructions, as Gemma's templates do.
const ALTERNATES: &str = r#"
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"#;

async fn start(template: &str) -> Fixture {
    Fixture::with(Options::new(vec![ModelSpec { chat_template: Some(template.into()), ..model("tiny") }]))
        .await
}

/// Templates that need a user's message: ours, and Qwen's where it is there.
fn templates() -> Vec<String> {
    let qwen = octet_testkit::shared("templates/qwen3_6.jinja");
    let qwen = qwen.map(|path| std::fs::read_to_string(path).expect("a template"));
    [NEEDS_USER.to_string()].into_iter().chain(qwen).collect()
}

async fn prompt(f: &Fixture, messages: &[Value]) -> String {
    let body = json!({"messages": messages, "chat_template_kwargs": {}});
    f.ok("/apply-template", &body).await["prompt"].as_str().expect("a prompt").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_without_a_user_s_message_are_answered() {
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let (system, answer) = (said("system", "Be brief."), said("assistant", "Yes."));
    for template in templates() {
        let f = start(&template).await;
        for messages in [
            vec![system.clone()],
            vec![said("developer", "Be brief.")],
            vec![system.clone(), answer.clone()],
            vec![answer.clone()],
        ] {
            let text = prompt(&f, &messages).await;
            assert_eq!(text.matches("<|im_start|>user\n<|im_end|>\n").count(), 1, "{text}");
        }
        for (path, body) in [
            ("/v1/responses/input_tokens", json!({"instructions": "Be brief.", "input": []})),
            ("/v1/responses/input_tokens", json!({"input": [said("developer", "Be brief.")]})),
            ("/v1/messages/count_tokens", json!({"system": "Be brief.", "messages": [answer]})),
            (
                "/v1beta/models/tiny:countTokens",
                json!({"contents": [{"role": "model", "parts": [{"text": "Yes."}]}]}),
            ),
        ] {
            let mut body = body;
            if !path.starts_with("/v1beta") {
                body["model"] = "tiny".into();
            }
            f.ok(path, &body).await;
        }
        // The beginning of a conversation does not change as it goes on.
        let all =
            [system.clone(), answer.clone(), said("user", "More"), answer.clone(), said("user", "And more")];
        let whole = prompt(&f, &all).await;
        for n in [1, 3] {
            let some = prompt(&f, &all[..n]).await;
            let begun = some.rfind("<|im_start|>assistant").expect("an answer begins");
            assert!(whole.starts_with(&some[..begun]), "{some}\n{whole}");
        }
        // A user's message that is there stays the only one.
        let text = prompt(&f, &[system.clone(), said("user", "Hi")]).await;
        assert_eq!(text.matches("<|im_start|>user\n").count(), 1, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_may_begin_where_roles_alternate() {
    let f = start(ALTERNATES).await;
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    for (first, user) in [(None, ""), (Some(said("system", "Be brief.")), "Be brief.")] {
        let rest = [said("assistant", "Hello!"), said("user", "Hi")];
        let messages: Vec<Value> = first.into_iter().chain(rest).collect();
        let text = prompt(&f, &messages).await;
        let turns: Vec<&str> = text.split("<|im_start|>").skip(1).collect();
        let first = format!("user\n{user}<|im_end|>\n");
        assert_eq!(turns, [&*first, "assistant\nHello!<|im_end|>\n", "user\nHi<|im_end|>\n", "assistant\n"]);
    }
}
