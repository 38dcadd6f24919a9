//! What of a conversation is computed again, as clients send it: answers that are written anew some turns late.

mod common;

use common::{Fixture, chat, model, with};
use octet_serve::Options;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

async fn start(template: &str) -> Fixture {
    let mut spec = model("tiny");
    spec.chat_template = Some(template.into());
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
async fn answers_written_anew_cost_what_follows_them() {
    let f = start(common::TEMPLATE).await;
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
