//! What of a conversation is computed again, as clients send it: a header that changes before unchanged tools, and answers
//! that are written anew some turns late.

use crate::common::{Fixture, chat, model, tool, with};
use octet_serve::{Options, ToolSyntax};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// Writes tools before the instructions, in one message with them, as Qwen's templates do.
const TOOLS_FIRST: &str = r#"
{%- set instructions = messages[0].content if messages[0].role == 'system' else '' %}
{%- if tools or instructions %}{{- '<|im_start|>system\n' }}
{%- for tool in tools or [] %}{{- tool | tojson + '\n' }}{%- endfor %}{{- instructions + '<|im_end|>\n' }}{%- endif %}
{%- for message in messages if message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"#;

async fn start(template: &str) -> Fixture {
    let mut spec = model("tiny");
    spec.chat_template = Some(template.into());
    spec.tool_syntax = Some(ToolSyntax::Qwen3Coder); // these templates do not tell
    Fixture::with(Options::new(vec![spec])).await
}

/// Tokens of a conversation's prompt up to and with `text`.
async fn up_to(f: &Fixture, body: &Value, text: &str) -> u64 {
    let prompt = f.ok("/apply-template", body).await["prompt"].as_str().unwrap().to_string();
    let end = prompt.find(text).expect("it is in the prompt") + text.len();
    let tokens = f.ok("/tokenize", &json!({"content": &prompt[..end], "parse_special": true})).await;
    tokens["tokens"].as_array().unwrap().len() as u64
}

async fn cached(f: &Fixture, body: &Value) -> u64 {
    f.ok(CHAT, body).await["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_stay_cached_after_a_changing_header() {
    let f = start(TOOLS_FIRST).await;
    let ask = |header: &str| {
        let messages = json!([
            {"role": "system", "content": format!("{header}. Be brief.")}, {"role": "user", "content": "Hello"},
        ]);
        with(&chat(""), json!({"messages": messages, "tools": [tool()]}))
    };
    let tools = up_to(&f, &ask("Bill 5"), "}}\n").await;
    assert!(tools > 64, "{tools}");
    // from the second on, though no two had parted there before
    for (header, want) in [("Bill 5", 0), ("2030-01-02", tools), ("x", tools)] {
        let got = cached(&f, &ask(header)).await;
        assert!(got <= want && got + 2 >= want, "{header}: {got} of {want}");
    }
    // without tools there is no such place, and with no instructions neither
    let bare = with(&ask("x"), json!({"tools": []}));
    f.ok(CHAT, &bare).await;
    f.ok(CHAT, &with(&ask(""), json!({"messages": [{"role": "user", "content": "Hello"}]}))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewritten_answer_recomputes_what_follows_it() {
    let f = start(crate::common::TEMPLATE).await;
    let turns = |changed: Option<usize>| {
        let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
        for i in 0..8 {
            messages
                .push(json!({"role": "user", "content": format!("Question {i} about words and numbers")}));
            let again = if changed == Some(i) { "anew" } else { "once" };
            messages.push(json!({"role": "assistant", "content": format!("{again} and again, {i}")}));
        }
        messages.push(json!({"role": "user", "content": "And now?"}));
        with(&chat(""), json!({"messages": messages}))
    };
    // all of it is new at once
    assert_eq!(cached(&f, &turns(None)).await, 0);
    for changed in [7, 6, 5] {
        let body = turns(Some(changed));
        let question = format!("Question {changed} about words and numbers");
        let want = up_to(&f, &body, &question).await;
        assert_eq!(cached(&f, &body).await, want, "{changed}");
    }
}

/// No message ends in them.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_completions_are_not_recomputed() {
    let f = start(crate::common::TEMPLATE).await;
    let ask = async |words: usize, more: &str| {
        let prompt = format!("{words} {}{more}", "of words ".repeat(words));
        let body =
            json!({"model": "tiny", "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": true});
        let answer = f.ok("/v1/completions", &body).await;
        let usage = &answer["usage"];
        let tokens = usage["prompt_tokens"].as_u64().unwrap();
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (answer["choices"][0]["text"].as_str().unwrap().to_string(), tokens, cached)
    };
    // all but the last token, from the second time on
    let (text, tokens, cached) = ask(60, "").await;
    assert!(tokens > 200 && cached == 0, "{tokens}");
    for _ in 0..2 {
        assert_eq!(ask(60, "").await, (text.clone(), tokens, tokens - 1));
    }
    // what goes on from there does so, too
    let (_, _, cached) = ask(60, "and more").await;
    assert!(cached + 3 >= tokens, "{cached} of {tokens}");
    // a short one: from the third time on
    let (text, tokens, _) = ask(10, "").await;
    assert!((20..128).contains(&tokens), "{tokens}");
    assert_eq!(ask(10, "").await, (text.clone(), tokens, 0));
    assert_eq!(ask(10, "").await, (text, tokens, tokens - 1));
}
