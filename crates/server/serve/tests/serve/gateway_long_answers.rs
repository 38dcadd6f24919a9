//! Long answers in one piece: those in the client's dialect are sent on as they arrive, and break off where the provider's do; those that
//! are translated arrive whole.

use crate::common::upstream::{Seen, Step, Upstream, chunk};
use crate::common::{Fixture, PATIENCE, chat, read, with};
use serde_json::{Value, json};
use tokio::sync::watch;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
/// Longer than what is read before an answer is sent on.
const LONG_BYTES: usize = 3 << 20;

/// The beginning of an answer that says `text`, and its end.
fn parts(text: &str) -> (String, String) {
    let whole = json!({"id": "x", "object": "chat.completion", "created": 1, "model": "theirs",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}});
    let whole = whole.to_string();
    let middle = whole.len() - 60;
    (whole[..middle].into(), whole[middle..].into())
}

async fn routed(up: &Upstream) -> Fixture {
    let text = format!(
        "model_list:\n- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: \"{}/v1\"}}}}\nrouter_settings: {{num_retries: 0}}\n",
        up.base
    );
    Fixture::routed(&text).await
}

fn question() -> Value {
    with(&chat("Hi"), json!({"model": "m"}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_sent_on_as_it_arrives() {
    let (begin, end) = parts(&"é\"{".repeat(LONG_BYTES / 4));
    // The client gets the name that it asked for.
    let whole = format!("{begin}{end}").replacen(r#""model":"theirs""#, r#""model":"m""#, 1);
    let (go, may_end) = watch::channel(false);
    let up = Upstream::start(move |_: &Seen| {
        let last = Step::Send("0\r\n\r\n".into());
        vec![Step::Send(HEAD.into()), chunk(&begin), Step::Wait(may_end.clone()), chunk(&end), last]
    })
    .await;
    let f = routed(&up).await;
    let mut answer = f.send("/v1/chat/completions", &question()).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/json");
    let mut got = Vec::new();
    // The provider has not sent all of it yet.
    while got.len() < LONG_BYTES / 2 {
        let piece = tokio::time::timeout(PATIENCE, answer.chunk()).await.expect("it is held back").unwrap();
        got.extend_from_slice(&piece.expect("more follows"));
    }
    go.send(true).unwrap();
    while let Some(piece) = answer.chunk().await.unwrap() {
        got.extend_from_slice(&piece);
    }
    assert!(got == whole.as_bytes(), "{} of {} bytes", got.len(), whole.len());
    let metrics = f.client.get(f.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let counted =
        metrics.lines().any(|l| l.starts_with("octet:routed_generation_tokens_total") && l.ends_with(" 9"));
    assert!(counted, "the usage at its end is read");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_that_breaks_off_breaks_off() {
    let (begin, end) = parts(&"x".repeat(LONG_BYTES));
    for (rest, closes) in
        [(String::new(), true), (format!("{}]}}", &end[..9]), false), (end.clone() + "{}", false)]
    {
        let begin = begin.clone();
        let up = Upstream::start(move |_: &Seen| {
            let mut steps = vec![Step::Send(HEAD.into()), chunk(&begin)];
            if closes {
                steps.push(Step::Close);
            } else {
                steps.extend([chunk(&rest), Step::Send("0\r\n\r\n".into())]);
            }
            steps
        })
        .await;
        let f = routed(&up).await;
        let answer = f.send("/v1/chat/completions", &question()).await;
        assert!(answer.bytes().await.is_err(), "an incomplete answer looks complete");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_answers_are_translated_whole() {
    let text = "é\"{ ".repeat(LONG_BYTES / 5);
    let (begin, end) = parts(&text);
    let up = Upstream::start(move |_: &Seen| {
        vec![Step::Send(HEAD.into()), chunk(&begin), chunk(&end), Step::Send("0\r\n\r\n".into())]
    })
    .await;
    let f = routed(&up).await;
    let ask = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]});
    // More than have memory at once: they take turns.
    let asked: Vec<_> = (0..6).map(|_| tokio::spawn(f.request("/v1/messages", &ask).send())).collect();
    for answer in asked {
        let (status, answer) = read(answer.await.unwrap().unwrap()).await;
        assert_eq!(status, 200);
        assert!(answer["content"][0]["text"] == text.as_str());
    }
}
