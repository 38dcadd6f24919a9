//! What bodies of many small values take in memory. A file of its own, because a test of the same process would be measured, too.

mod common;

use common::{Fixture, chat, model, read};
use octet_serve::Options;

const CHAT: &str = "/v1/chat/completions";
/// What all of this may take together: on a busy machine one body is still there when the next one comes. (One of these bodies alone took
/// 1.4 GB.)
const MIB_MAX: u64 = 600;

/// The most memory that this process has had, in MiB; `None` where the system does not tell.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?.trim().strip_suffix(" kB")?;
    kib.trim().parse::<u64>().ok().map(|kib| kib >> 10)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_values_do_not_fill_the_memory() {
    let f = Fixture::with(Options::new(vec![model("tiny")])).await;
    f.ok(CHAT, &chat("Hello")).await;
    let list = |item: &str, n: usize| format!("[{}{item}]", format!("{item},").repeat(n - 1));
    let message = r#"{"role":"user","content":"x"}"#;
    let body = |field: &str, list: &str| format!(r#"{{"model":"tiny","max_tokens":1,"{field}":{list}}}"#);
    let messages = |n| body("messages", &list(message, n));
    let numbers = |field: &str, n| body(field, &list("1", n));
    let before = peak_mib();
    let cases: [(&str, &dyn Fn() -> String, u16, &str); 10] = [
        (CHAT, &|| messages(700_000), 413, "keys and values"),
        ("/v1/messages", &|| messages(700_000), 413, "keys and values"),
        ("/api/chat", &|| messages(700_000), 413, "keys and values"),
        // For these there is room.
        (CHAT, &|| messages(200_000), 400, "200000 messages, of at least one token each"),
        ("/v1/messages", &|| messages(200_000), 400, "maximum context length is 1024 tokens"),
        ("/v1/messages/count_tokens", &|| messages(200_000), 400, "exceeds 65536 tokens"),
        ("/apply-template", &|| messages(200_000), 400, "200000 messages"),
        ("/v1/completions", &|| numbers("prompt", 1_000_000), 400, "1000000 tokens"),
        ("/v1/completions", &|| numbers("prompt", 16_000_000), 413, "--max-body"),
        ("/detokenize", &|| numbers("tokens", 8_000_000), 413, "--max-body"),
    ];
    for (path, body, status, says) in cases {
        let mut body = body();
        if path == "/v1/messages/count_tokens" {
            body = body.replacen(r#""max_tokens":1,"#, "", 1);
        }
        let sent = f.client.post(f.url(path)).header("content-type", "application/json").body(body);
        let (got, answer) = read(sent.send().await.expect("the server answers")).await;
        println!("{path} {status}: {:?} MiB", peak_mib());
        let text = answer.to_string();
        assert!(got == status && text.contains(says), "{path}: {got} {}", &text[..text.len().min(1000)]);
    }
    match (before, peak_mib()) {
        (Some(before), Some(after)) => assert!(after - before < MIB_MAX, "{} MiB", after - before),
        _ => eprintln!("skipped: the system does not tell the memory of a process"),
    }
    // All room is given back.
    let (status, _) = f.post(CHAT, &chat(&"x ".repeat(1_000_000))).await;
    assert_eq!(status, 400);
    f.ok(CHAT, &chat("Hello")).await;
    assert_eq!(f.app.models().busy(), 0);
}
