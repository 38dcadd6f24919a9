//! `/key/...` and `/spend/...`: who may manage keys, and what of a wish for a key is refused. (`gateway_clients.rs` has LiteLLM's client ask.)

use crate::common::upstream::Upstream;
use crate::common::{Fixture, chat, read, with};
use serde_json::{Value, json};

async fn fixture(up: &Upstream, keys: &str) -> (Fixture, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let database = folder.path().join("keys.db");
    let text = format!(
        "model_list: [{{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{}/v1', input_cost_per_token: 0.01}}}}]\n{}",
        up.base,
        keys.replace("DB", &database.display().to_string()),
    );
    (Fixture::routed(&text).await, folder)
}

const KEYS: &str = "general_settings: {master_key: sk-master}\nkeys: {database: 'DB'}\n";

async fn post(f: &Fixture, key: &str, path: &str, body: &Value) -> (u16, Value) {
    read(f.request(path, body).bearer_auth(key).send().await.expect("an answer")).await
}

async fn get(f: &Fixture, key: &str, path: &str) -> (u16, Value) {
    read(f.client.get(f.url(path)).bearer_auth(key).send().await.expect("an answer")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_managed_with_the_servers_own_key_alone() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, KEYS).await;
    let (status, made) = post(&f, "sk-master", "/key/generate", &json!({})).await;
    assert_eq!(status, 200, "{made}");
    let key = made["key"].as_str().expect("a key");
    for path in ["/key/generate", "/key/update", "/key/delete"] {
        assert_eq!(post(&f, key, path, &json!({"key": key, "keys": [key]})).await.0, 403, "{path}");
        assert_eq!(post(&f, "sk-nobody", path, &json!({})).await.0, 401, "{path}");
    }
    for path in ["/key/list", "/spend/logs", "/global/spend/report", &format!("/key/info?key={key}")] {
        assert_eq!(get(&f, key, path).await.0, 403, "{path}");
        assert_eq!(get(&f, "sk-master", path).await.0, 200, "{path}");
    }
    let (open, _folder) = fixture(&up, "general_settings: {master_key: sk-master}\n").await;
    let (status, said) = post(&open, "sk-master", "/key/generate", &json!({})).await;
    assert_eq!(status, 400);
    assert!(said["error"]["message"].as_str().expect("words").contains("set keys.database"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_what_was_wished_or_refused() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, KEYS).await;
    let wish = json!({"models": ["m"], "rpm_limit": 1, "tpm_limit": 5000, "max_parallel_requests": 3, "max_budget": 2.5,
        "budget_duration": "30d", "duration": "1h", "key_alias": "bob", "team_id": null, "aliases": {}, "spend": 0,
        "metadata": {"why": "tests"}});
    let answer = f.request("/key/generate", &wish).bearer_auth("sk-master").send().await.expect("an answer");
    let warning =
        answer.headers().get("x-octet-warning").expect("a warning").to_str().expect("text").to_string();
    assert_eq!(warning, "'metadata' is not kept here");
    let (status, made) = read(answer).await;
    assert_eq!(status, 200, "{made}");
    for (name, value) in [
        ("models", json!(["m"])),
        ("rpm_limit", json!(1)),
        ("tpm_limit", json!(5000)),
        ("max_parallel_requests", json!(3)),
        ("max_budget", json!(2.5)),
        ("budget_duration", json!("30d")),
        ("key_alias", json!("bob")),
        ("spend", json!(0.0)),
    ] {
        assert_eq!(made[name], value, "{name}");
    }
    // What was wished is held to.
    let key = made["key"].as_str().expect("a key");
    let body = with(&chat("Hello"), json!({"model": "m"}));
    assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 200);
    assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 429);
    // What is not named stays, and what is null is lifted.
    let (_, updated) =
        post(&f, "sk-master", "/key/update", &json!({"key": made["token"], "rpm_limit": null})).await;
    assert_eq!(
        (&updated["rpm_limit"], &updated["max_budget"], &updated["models"]),
        (&Value::Null, &json!(2.5), &json!(["m"]))
    );
    assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 200);

    for (wish, said) in [
        (json!({"team_id": "t"}), "'team_id' is not supported"),
        (json!({"guardrails": ["pii"]}), "'guardrails' is not supported"),
        (json!({"model_rpm_limit": {"m": 1}}), "'model_rpm_limit' is not supported"),
        (json!({"blocked": true}), "'blocked' is not supported"),
        (json!({"key": "sk-mine"}), "'key' is not supported"),
        (json!({"duration": "soon"}), "'soon' is no length of time"),
        (json!({"rpm_limit": 0}), "rpm is a number from 1"),
        (json!({"max_budget": -1}), "max_budget"),
        (json!({"models": "m"}), "'models': invalid type"),
        (json!({"key_alias": "bob"}), "a key with the alias 'bob' exists"),
        (json!([]), "no JSON object"),
    ] {
        let (status, answer) = post(&f, "sk-master", "/key/generate", &wish).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(status, 400, "{wish}: {answer}");
        assert!(message.contains(said) || answer["error"]["param"] == said, "{wish}: {answer}");
    }
    let (status, answer) = post(&f, "sk-master", "/key/delete", &json!({"keys": [key, "sk-none"]})).await;
    assert_eq!(status, 404, "{answer}");
    assert!(!answer.to_string().contains("sk-none"), "a key is not repeated: {answer}");
    assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 200, "either all or none");
    let (_, gone) = post(&f, "sk-master", "/key/delete", &json!({"key_aliases": ["bob"]})).await;
    assert_eq!(gone["deleted_keys"], json!([made["token"]]));
    assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 401);
    assert_eq!(get(&f, "sk-master", &format!("/key/info?key={key}")).await.0, 404);
    for (path, said) in [
        ("/key/list?size=0", "'size'"),
        ("/key/list?team_id=x", "'team_id' is not supported"),
        ("/spend/logs?start_date=yesterday", "a date like 2026-11-22"),
        ("/global/spend/report?group_by=team", "it is api_key"),
        ("/key/info", "'key' is needed"),
    ] {
        let (status, answer) = get(&f, "sk-master", path).await;
        assert_eq!(status, 400, "{path}: {answer}");
        assert!(answer.to_string().contains(said), "{path}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_spent_is_told_by_tags() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, KEYS).await;
    let (_, made) = post(&f, "sk-master", "/key/generate", &json!({})).await;
    let key = made["key"].as_str().expect("a key");
    let body = with(&chat("Hello"), json!({"model": "m", "tags": ["blue", "eu"]}));
    assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 200);
    // The server's own key has no usage of its own, and its tags count all the same; so do those of metadata.
    let body = with(&chat("Hello"), json!({"model": "m", "metadata": {"tags": ["blue"]}}));
    assert_eq!(post(&f, "sk-master", "/v1/chat/completions", &body).await.0, 200);
    let (status, told) = get(&f, "sk-master", "/spend/tags").await;
    let row = |tag: &str, count: u64, cost: f64| json!({"individual_request_tag": tag, "log_count": count, "total_spend": cost, "total_input_tokens": 7 * count, "total_output_tokens": 2 * count});
    assert_eq!((status, told), (200, json!([row("blue", 2, 0.14), row("eu", 1, 0.07)])));
    assert_eq!(get(&f, "sk-master", "/spend/tags?end_date=2020-01-01").await.1, json!([]));
    assert_eq!(get(&f, key, "/spend/tags").await.0, 403);
    assert_eq!(get(&f, "sk-master", "/spend/tags?start_date=soon").await.0, 400);
}
