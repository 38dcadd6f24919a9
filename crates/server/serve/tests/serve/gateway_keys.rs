//! Virtual keys: who may ask what, for how much, told in each dialect; and billed, whatever becomes of the answer.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::upstream::{STREAM_HEAD, Step, Upstream, answer, delta, event, says};
use crate::common::{Fixture, PATIENCE, chat, read, with};
use octet_keys::{Budget, Filter, Limits, Period, Store};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// The store of a server's keys, as `octet keys` opens it: it writes to the same file, waits for the server to do so, and holds it up
/// only when it is asked for something.
fn open(database: &Path) -> Store {
    let options =
        octet_keys::Options { lock_timeout: PATIENCE, flush_every: 60 * PATIENCE, ..Default::default() };
    Store::open_with(database, options).unwrap()
}

/// A server with a store of keys, and the store as `octet keys` has it open.
async fn fixture(up: &Upstream) -> (Fixture, Store, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("keys.db");
    let text = format!(
        "model_list:\n- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: \"{base}/v1\"}}, model_info: {{input_cost_per_token: 0.01, output_cost_per_token: 0.1, max_output_tokens: 2}}}}\n- {{model_name: other, litellm_params: {{model: hosted_vllm/y, api_base: \"{base}/v1\"}}}}\ngeneral_settings: {{master_key: sk-master}}\nkeys: {{database: \"{database}\"}}\n",
        base = up.base,
        database = database.display(),
    );
    let f = Fixture::routed(&text).await;
    let store = open(&database);
    (f, store, folder)
}

/// Makes a key, and waits until the server knows it.
async fn key(f: &Fixture, store: &Store, limits: Limits) -> String {
    let (secret, _) = store.create(octet_keys::UNNAMED, limits).unwrap();
    let secret = secret.reveal().to_string();
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let list = f.client.get(f.url("/v1/models")).bearer_auth(&secret).send().await.unwrap();
        if list.status() == 200 {
            return secret;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the server does not see the key");
}

async fn ask(f: &Fixture, key: &str, path: &str, body: &Value) -> (u16, Value) {
    read(f.request(path, body).bearer_auth(key).send().await.unwrap()).await
}

fn question(name: &str) -> Value {
    with(&chat("Hello"), json!({"model": name}))
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_limit_which_models_a_client_may_use() {
    let up = Upstream::saying("Hi").await;
    let (f, store, _folder) = fixture(&up).await;
    let secret = key(&f, &store, Limits { models: vec!["m".into()], ..Limits::default() }).await;
    assert_eq!(ask(&f, "sk-master", CHAT, &question("other")).await.0, 200);
    assert_eq!(ask(&f, &secret, CHAT, &question("m")).await.0, 200);
    let (status, body) = ask(&f, &secret, CHAT, &question("other")).await;
    assert_eq!((status, body["error"]["code"].as_str()), (403, Some("model_not_allowed")), "{body}");
    // in each dialect
    let message =
        json!({"model": "other", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]});
    let (status, body) = ask(&f, &secret, "/v1/messages", &message).await;
    assert_eq!((status, body["error"]["type"].as_str()), (403, Some("permission_error")), "{body}");
    let message = json!({"model": "other", "messages": [{"role": "user", "content": "Hello"}]});
    let (status, body) = ask(&f, &secret, "/api/chat", &message).await;
    assert!(status == 403 && body["error"].is_string(), "{body}");
    for wrong in ["", "sk-wrong", "sk-octet-0000"] {
        let (status, body) = ask(&f, wrong, CHAT, &question("m")).await;
        assert_eq!(status, 401, "{body}");
        assert!(!body.to_string().contains("sk-wrong"), "{body}");
    }
    assert_eq!(f.post(CHAT, &question("m")).await.0, 401);
    // lists show what may be used; how the server does is the operator's
    let list = f.client.get(f.url("/v1/models")).header("x-api-key", &secret).send().await.unwrap();
    assert_eq!(read(list).await.1["data"].as_array().unwrap().len(), 1);
    let metrics = |key: &str| f.client.get(f.url("/metrics")).bearer_auth(key).send();
    assert_eq!(metrics(&secret).await.unwrap().status(), 403);
    assert_eq!(metrics("sk-master").await.unwrap().status(), 200);
    // taken back, it is refused as soon as the store's file was looked at again
    let id = store.find(octet_keys::UNNAMED).unwrap().id;
    store.revoke(id).unwrap();
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if ask(&f, &secret, CHAT, &question("m")).await.0 == 401 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("a revoked key is let in");
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_and_rate_limits_are_enforced() {
    let up = Upstream::saying("Hi").await;
    let (f, store, _folder) = fixture(&up).await;
    // 7 tokens for 0.01 and 2 for 0.1 are 0.27
    let budget = Budget { limit: "0.50".parse().unwrap(), period: Period::Ever };
    let secret = key(&f, &store, Limits { budget: Some(budget), ..Limits::default() }).await;
    assert_eq!(ask(&f, &secret, CHAT, &question("m")).await.0, 200);
    assert_eq!(ask(&f, &secret, CHAT, &with(&question("m"), json!({"stream": true}))).await.0, 200);
    let (status, body) = ask(&f, &secret, CHAT, &question("m")).await;
    assert_eq!((status, body["error"]["code"].as_str()), (429, Some("insufficient_quota")), "{body}");
    let limited = key(&f, &store, Limits { rpm: Some(1), ..Limits::default() }).await;
    assert_eq!(ask(&f, &limited, CHAT, &question("other")).await.0, 200);
    let answer = f.request(CHAT, &question("other")).bearer_auth(&limited).send().await.unwrap();
    assert!(answer.status() == 429 && answer.headers().contains_key("retry-after"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnected_client_pays_for_the_received_part() {
    let up = Upstream::start(|seen| match seen.body["stream"] == true {
        true => vec![Step::Send(STREAM_HEAD.into()), delta(&"much ".repeat(100)), Step::Sleep(3_600_000)],
        false => says(seen, "Hi"),
    })
    .await;
    let (f, store, _folder) = fixture(&up).await;
    let secret = key(&f, &store, Limits::default()).await;
    let stream = with(&question("m"), json!({"stream": true}));
    let mut answer = f.request(CHAT, &stream).bearer_auth(&secret).send().await.unwrap();
    assert!(answer.chunk().await.unwrap().is_some());
    drop(answer);
    let row = billed(&f, &store).await;
    assert!(row.usage.input > 0 && row.usage.output > 0 && row.cost.nanos() > 0, "{row:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_models_count_no_tokens_and_are_not_named() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("keys.db");
    let f = Fixture::routed(&format!(
        "model_list:\n- {{model_name: secret, litellm_params: {{model: octet/tiny}}}}\n- {{model_name: open, litellm_params: {{model: octet/tiny}}}}\ngeneral_settings: {{master_key: sk-master}}\nkeys: {{database: \"{}\"}}\n",
        database.display()
    ))
    .await;
    let store = open(&database);
    let limited = key(&f, &store, Limits { models: vec!["open".into()], ..Limits::default() }).await;
    let talk = json!([{"role": "user", "content": "Hello"}]);
    for (path, more) in [
        ("/tokenize", json!({"content": "a b"})),
        ("/tokenize", json!({"messages": talk})),
        ("/detokenize", json!({"tokens": [1, 2]})),
        ("/apply-template", json!({"messages": talk})),
    ] {
        let of = |name: &str| with(&more, json!({"model": name}));
        let (status, body) = ask(&f, &limited, path, &of("secret")).await;
        assert_eq!(
            (status, body["error"]["code"].as_str()),
            (403, Some("model_not_allowed")),
            "{path}: {body}"
        );
        assert_eq!(ask(&f, &limited, path, &of("open")).await.0, 200, "{path}");
        assert_eq!(
            ask(&f, &limited, path, &more).await.0,
            200,
            "{path}: without a name, one that it may use"
        );
        assert_eq!(ask(&f, "sk-master", path, &of("secret")).await.0, 200, "{path}");
    }
    for name in ["secret", "nothing"] {
        let (status, body) = ask(&f, &limited, "/api/show", &json!({"model": name})).await;
        let said = body["error"].as_str().unwrap();
        assert!(status == 404 && said.ends_with("models are: open"), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn virtual_keys_cannot_set_keep_alive() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("keys.db");
    let f = Fixture::routed(&format!(
        "model_list:\n- {{model_name: tiny, litellm_params: {{model: octet/tiny}}}}\ngeneral_settings: {{master_key: sk-master}}\nkeys: {{database: \"{}\"}}\n",
        database.display()
    ))
    .await;
    let store = open(&database);
    let secret = key(&f, &store, Limits::default()).await;
    let talk = json!([{"role": "user", "content": "Hello"}]);
    let load = json!({"model": "tiny"});
    let chat = with(&load, json!({"messages": talk, "stream": false, "options": {"num_predict": 2}}));
    let embed = with(&load, json!({"input": "Hello"}));
    assert_eq!(ask(&f, &secret, "/api/generate", &load).await.0, 200, "it may be used");
    let ps =
        async || read(f.client.get(f.url("/api/ps")).bearer_auth("sk-master").send().await.unwrap()).await.1;
    let expires = ps().await["models"][0]["expires_at"].clone();
    assert!(expires.is_string(), "{expires}");
    for (path, body) in [("/api/generate", &load), ("/api/chat", &chat), ("/api/embed", &embed)] {
        for (keep, status) in [(json!("1s"), 200), (json!(0), if body == &load { 403 } else { 200 })] {
            let got = ask(&f, &secret, path, &with(body, json!({"keep_alive": keep}))).await;
            assert_eq!(got.0, status, "{path} {keep}: {}", got.1);
            assert_eq!(ps().await["models"][0]["expires_at"], expires, "{path} {keep}");
        }
    }
    // The server's own key does.
    assert_eq!(ask(&f, "sk-master", "/api/generate", &with(&load, json!({"keep_alive": 0}))).await.0, 200);
    f.until("the model is unloaded", || f.app.models().loaded(0).is_none()).await;
}

/// What one key was billed, once that is known.
async fn billed(f: &Fixture, store: &Store) -> octet_keys::UsageRow {
    f.until("it is over", || f.app.busy() == 0).await;
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let [row] = &store.usage(&Filter::default()).unwrap()[..] {
            return row.clone();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("nothing was billed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_before_the_answer_pays_for_the_prompt() {
    for stream in [false, true] {
        let up = Upstream::start(|_| vec![Step::Sleep(3_600_000)]).await;
        let (f, store, _folder) = fixture(&up).await;
        let secret = key(&f, &store, Limits::default()).await;
        let request = f.request(CHAT, &with(&question("m"), json!({"stream": stream}))).bearer_auth(&secret);
        let asked = tokio::spawn(request.send());
        f.until("the provider was asked", || !up.seen().is_empty()).await;
        asked.abort();
        let row = billed(&f, &store).await;
        assert!(row.usage.input > 0 && row.usage.output == 0 && row.cost.nanos() > 0, "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_without_usage_cost_by_their_length() {
    let message = json!({"role": "assistant", "content": "word ".repeat(2000)});
    let whole = json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    let up = Upstream::start(move |_| crate::common::upstream::answer("200 OK", &whole)).await;
    let (f, store, _folder) = fixture(&up).await;
    let secret = key(&f, &store, Limits::default()).await;
    assert_eq!(ask(&f, &secret, CHAT, &question("m")).await.0, 200);
    let row = billed(&f, &store).await;
    assert!((2000..4000).contains(&row.usage.output), "{row:?}");
}

/// A token of OpenAI's stream that might as well have been another one.
fn unsure(token: &str) -> Step {
    let top = json!([{"token": token, "logprob": -5.0, "bytes": null}, {"token": "x", "logprob": -5.1, "bytes": null}]);
    let one = json!({"token": token, "logprob": -5.0, "bytes": null, "top_logprobs": top});
    event(&json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "theirs", "choices":
        [{"index": 0, "delta": {"role": "assistant", "content": token}, "logprobs": {"content": [one]}}]}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discarded_answer_of_a_cascade_is_paid_for() {
    let up = Upstream::start(|seen| match seen.body["model"] == "fast" {
        true => [vec![Step::Send(STREAM_HEAD.into())], vec![unsure("a"); 9], vec![Step::Sleep(3_600_000)]]
            .concat(),
        false => says(seen, "Hi"),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("keys.db");
    let entry = |name: &str, dollars: &str| {
        let base = &up.base;
        format!(
            "- {{model_name: {name}, litellm_params: {{model: hosted_vllm/{name}, api_base: \"{base}/v1\"}}, model_info: {{output_cost_per_token: {dollars}}}}}\n"
        )
    };
    let f = Fixture::routed(&format!(
        "model_list:\n{}{}cascades: [{{model_name: auto, fast: fast, strong: strong, confidence: {{window: 4, mean_logprob: -0.5}}}}]\ngeneral_settings: {{master_key: sk-master}}\nkeys: {{database: \"{}\"}}\n",
        entry("fast", "1.0"),
        entry("strong", "10.0"),
        database.display()
    ))
    .await;
    let store = open(&database);
    let secret = key(&f, &store, Limits::default()).await;
    let (status, body) = ask(&f, &secret, CHAT, &question("auto")).await;
    assert_eq!((status, body["choices"][0]["message"]["content"].as_str()), (200, Some("Hi")), "{body}");
    let row = billed(&f, &store).await;
    // 7 and 2 tokens of the strong one; a token of the fast one was enough to know, and its prompt is estimated
    assert_eq!((row.requests, row.usage.output, row.cost), (1, 3, "21".parse().unwrap()), "{row:?}");
    assert!(row.usage.input > 7, "{row:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_pays_for_the_part_before_an_error() {
    // Anthropic counts the prompt first.
    let up = Upstream::start(|_| {
        let usage = json!({"input_tokens": 50, "output_tokens": 1});
        let begin = json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant",
            "model": "theirs", "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage}});
        vec![Step::Send(STREAM_HEAD.into()), event(&begin), Step::Close]
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("keys.db");
    let f = Fixture::routed(&format!(
        "model_list:\n- {{model_name: m, litellm_params: {{model: anthropic/x, api_base: \"{}\", api_key: sk-x}}, model_info: {{input_cost_per_token: 0.01}}}}\nrouter_settings: {{num_retries: 0}}\ngeneral_settings: {{master_key: sk-master}}\nkeys: {{database: \"{}\"}}\n",
        up.base,
        database.display()
    ))
    .await;
    let store = open(&database);
    let secret = key(&f, &store, Limits::default()).await;
    let stream = with(&question("m"), json!({"stream": true}));
    assert_ne!(ask(&f, &secret, CHAT, &stream).await.0, 200);
    let row = billed(&f, &store).await;
    assert_eq!((row.requests, row.usage.input, row.cost), (1, 50, "0.5".parse().unwrap()), "{row:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_responses_belong_to_their_key() {
    // The ids are the provider's.
    let count = std::sync::atomic::AtomicU8::new(b'a');
    let up = Upstream::start(move |seen| {
        let id = char::from(count.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let named = |step: Step| match step {
            Step::Send(text) => Step::Send(text.replace("\"id\":\"x\"", &format!("\"id\":\"{id}\""))),
            other => other,
        };
        says(seen, "Hi").into_iter().map(named).collect()
    })
    .await;
    let (f, store, _folder) = fixture(&up).await;
    let alice = key(&f, &store, Limits::default()).await;
    let bob = key(&f, &store, Limits::default()).await;
    let request = |more: Value| with(&json!({"model": "m", "input": "Hello", "store": true}), more);
    let create = async |key: &str, more: Value| ask(&f, key, "/v1/responses", &request(more)).await;
    let at = |id: &str| f.url(&format!("/v1/responses/{id}"));
    let get =
        async |key: &str, id: &str| read(f.client.get(at(id)).bearer_auth(key).send().await.unwrap()).await;
    let delete = async |key: &str, id: &str| {
        read(f.client.delete(at(id)).bearer_auth(key).send().await.unwrap()).await
    };
    let (status, made) = create(&alice, json!({})).await;
    assert_eq!(status, 200, "{made}");
    let id = made["id"].as_str().unwrap();
    // A stream's too.
    let stream = f.request("/v1/responses", &request(json!({"stream": true}))).bearer_auth(&alice).send();
    let text = stream.await.unwrap().text().await.unwrap();
    let streamed = text.split('"').find(|w| w.starts_with("resp_")).unwrap().to_string();
    let other = "resp_00000000000000000000000000000000";
    let masked = |(status, body): (u16, Value), id: &str| (status, body.to_string().replace(id, "ID"));
    for id in [id, &streamed] {
        assert_eq!(get(&alice, id).await.0, 200);
        assert_eq!(get("sk-master", id).await.0, 200);
        let follow = json!({"previous_response_id": id});
        assert_eq!(create(&alice, follow.clone()).await.0, 200);
        // To others it is one that there never was.
        let unknown = masked(get(&bob, other).await, other);
        assert_eq!((unknown.0, masked(get(&bob, id).await, id)), (404, unknown.clone()));
        assert_eq!(masked(delete(&bob, id).await, id), unknown);
        let unknown = masked(create(&bob, json!({"previous_response_id": other})).await, other);
        assert_eq!(masked(create(&bob, follow).await, id), unknown);
        assert!(unknown.1.contains("previous_response_not_found"), "{unknown:?}");
    }
    let (_, made) = create("sk-master", json!({})).await;
    let masters = made["id"].as_str().unwrap();
    assert_eq!((get(&alice, masters).await.0, get("sk-master", masters).await.0), (404, 200));
    assert_eq!((delete(&alice, id).await.0, get(&alice, id).await.0), (200, 404));
    assert_eq!(delete("sk-master", &streamed).await.0, 200);
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn keys_with_a_budget_are_refused_soon_after_the_file_was_overwritten() {
    use std::os::unix::fs::FileExt;
    let up = Upstream::saying("Hi").await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("keys.db");
    let store = open(&database);
    let budget = Budget { limit: "100".parse().unwrap(), period: Period::Ever };
    let (paid, _) = store.create("paid", Limits { budget: Some(budget), ..Limits::default() }).unwrap();
    let (free, _) = store.create("free", Limits::default()).unwrap();
    store.close().unwrap();
    let f = Fixture::routed(&format!(
        "model_list:\n- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: \"{}/v1\"}}}}\ngeneral_settings: {{master_key: sk-master}}\nkeys: {{database: \"{}\"}}\n",
        up.base,
        database.display()
    ))
    .await;
    assert_eq!(ask(&f, paid.reveal(), CHAT, &question("m")).await.0, 200);
    let file = std::fs::OpenOptions::new().write(true).open(&database).unwrap();
    let length = usize::try_from(file.metadata().unwrap().len()).unwrap();
    file.write_all_at(&vec![0; length], 0).unwrap();
    let began = Instant::now();
    loop {
        let (status, body) = ask(&f, paid.reveal(), CHAT, &question("m")).await;
        if status == 503 {
            assert!(body.to_string().contains("is damaged"), "{body}");
            break;
        }
        assert!(began.elapsed() < 2 * PATIENCE, "budgets go on from memory");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(ask(&f, free.reveal(), CHAT, &question("m")).await.0, 200, "keys without a budget go on");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_requests_together_have_a_budget() {
    let up = Upstream::saying("Hi").await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("keys.db");
    let text = |usd: &str| {
        format!(
            "model_list:\n- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: \"{base}/v1\"}}, model_info: {{input_cost_per_token: 0.01, output_cost_per_token: 0.1, max_output_tokens: 2}}}}\n- {{model_name: free, litellm_params: {{model: hosted_vllm/y, api_base: \"{base}/v1\"}}}}\ngeneral_settings: {{master_key: sk-master}}\nkeys: {{database: \"{database}\"}}\nlitellm_settings: {{max_budget: {usd}, budget_duration: 30d}}\n",
            base = up.base,
            database = database.display(),
        )
    };
    // 7 tokens for 0.01 and 2 for 0.1 are 0.27
    let f = Fixture::routed(&text("0.50")).await;
    let store = open(&database);
    let secret = key(&f, &store, Limits::default()).await;
    assert_eq!(ask(&f, &secret, CHAT, &question("m")).await.0, 200);
    assert_eq!(ask(&f, "sk-master", CHAT, &with(&question("m"), json!({"stream": true}))).await.0, 200);
    for who in [&*secret, "sk-master"] {
        for name in ["m", "free"] {
            let (status, body) = ask(&f, who, CHAT, &question(name)).await;
            assert_eq!((status, body["error"]["code"].as_str()), (429, Some("insufficient_quota")), "{body}");
            let said = body["error"]["message"].as_str().unwrap();
            assert!(said.contains("the budget of this server is used up; it resets on"), "{said}");
        }
    }
    // It is kept, and usage is told by key: that of the virtual one and that of the server's own.
    f.app.gateway().unwrap().stop().await;
    store.flush().unwrap();
    assert_eq!(store.total().unwrap().spent, "0.54".parse().unwrap());
    assert_eq!(store.usage(&Filter::default()).unwrap().len(), 2);
    drop(f);
    let again = Fixture::routed(&text("0.50")).await;
    assert_eq!(ask(&again, "sk-master", CHAT, &question("free")).await.0, 429);
    drop(again);
    let more = Fixture::routed(&text("5")).await;
    assert_eq!(ask(&more, "sk-master", CHAT, &question("m")).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_use_and_list_the_models_of_their_access_groups() {
    let up = Upstream::saying("Hi").await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("keys.db");
    let text = format!(
        "model_list:\n- {{model_name: 'new/*', litellm_params: {{model: 'hosted_vllm/*', api_base: \"{base}/v1\"}}, model_info: {{access_groups: [beta]}}}}\n- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: \"{base}/v1\"}}, model_info: {{id: one, access_groups: [beta], supports_vision: true, base_model: big, max_input_tokens: 100, input_cost_per_token: 0.5, owner: me}}}}\n- {{model_name: other, litellm_params: {{model: hosted_vllm/y, api_base: \"{base}/v1\"}}}}\nrouter_settings: {{model_group_alias: {{gpt: m}}}}\ngeneral_settings: {{master_key: sk-master}}\nkeys: {{database: \"{database}\"}}\n",
        base = up.base,
        database = database.display(),
    );
    let f = Fixture::routed(&text).await;
    let store = open(&database);
    let secret = key(&f, &store, Limits { models: vec!["beta".into()], ..Limits::default() }).await;
    for (name, status) in [("m", 200), ("gpt", 200), ("new/one", 200), ("other", 403), ("beta", 404)] {
        let (got, body) = ask(&f, &secret, CHAT, &question(name)).await;
        assert_eq!(got, status, "{name}: {body}");
    }
    // A key for a model may use the model's aliases.
    let of_model = key(&f, &store, Limits { models: vec!["m".into()], ..Limits::default() }).await;
    for (name, status) in [("m", 200), ("gpt", 200), ("new/one", 403), ("other", 403)] {
        let (got, body) = ask(&f, &of_model, CHAT, &question(name)).await;
        assert_eq!(got, status, "{name}: {body}");
    }
    // What LiteLLM's clients look for, of what this key may use.
    for path in ["/model/info", "/v1/model/info"] {
        let list = f.client.get(f.url(path)).bearer_auth(&secret).send().await.unwrap();
        let (_, body) = read(list).await;
        let all = body["data"].as_array().unwrap();
        let names: Vec<&str> = all.iter().filter_map(|m| m["model_name"].as_str()).collect();
        assert_eq!(names, ["m", "gpt"]);
        let expected = json!({"id": "one", "mode": "chat", "base_model": "big", "max_input_tokens": 100,
            "input_cost_per_token": 0.5, "supports_vision": true, "access_groups": ["beta"], "owner": "me"});
        assert_eq!(
            (&all[0]["model_info"], &all[0]["litellm_params"]),
            (&expected, &json!({"model": "hosted_vllm/x"}))
        );
        let all = read(f.client.get(f.url(path)).bearer_auth("sk-master").send().await.unwrap()).await.1;
        assert_eq!(all["data"].as_array().unwrap().len(), 3, "stars are no names");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_written_to_a_cache_have_a_price() {
    let up = Upstream::start(|_| {
        crate::common::upstream::answer(
            "200 OK",
            &json!({"id": "m", "type": "message", "role": "assistant", "model": "theirs",
                "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn", "stop_sequence": null,
                "usage": {"input_tokens": 1, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 100, "output_tokens": 2}}),
        )
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("keys.db");
    let f = Fixture::routed(&format!(
        "model_list:\n- {{model_name: m, litellm_params: {{model: anthropic/x, api_base: \"{}\"}}, model_info: {{input_cost_per_token: 0.1, output_cost_per_token: 1, cache_read_input_token_cost: 0.001, cache_creation_input_token_cost: 0.2}}}}\ngeneral_settings: {{master_key: sk-master}}\nkeys: {{database: \"{}\"}}\n",
        up.base,
        database.display()
    ))
    .await;
    let store = open(&database);
    let secret = key(&f, &store, Limits::default()).await;
    assert_eq!(ask(&f, &secret, CHAT, &question("m")).await.0, 200);
    let row = billed(&f, &store).await;
    // 1 for 0.1, 10 for 0.2, 100 for 0.001, 2 for 1
    assert_eq!((row.cost, row.usage.cache_written), ("4.2".parse().unwrap(), 10), "{row:?}");
}

/// Ranking is no text, and was once asked of the model without a look at the key's limits.
#[tokio::test(flavor = "multi_thread")]
async fn a_rerank_request_is_billed() {
    let up = Upstream::saying("Hi").await;
    let (f, store, _folder) = fixture(&up).await;
    let limited = key(&f, &store, Limits { rpm: Some(1), ..Limits::default() }).await;
    let documents = json!({"model": "m", "query": "What?", "documents": ["That."]});
    let (status, body) = ask(&f, &limited, "/v1/rerank", &documents).await;
    assert_eq!(status, 404, "the server that is asked ranks nothing: {body}");
    let (status, body) = ask(&f, &limited, "/v1/rerank", &documents).await;
    assert_eq!((status, body["error"]["code"].as_str()), (429, Some("rate_limit_exceeded")), "{body}");
}

/// A model that is known to cost nothing answers although a budget is spent, and then no other model instead of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_spent_budget_does_not_refuse_what_costs_nothing() {
    let up = Upstream::start(|seen| match seen.body["model"] == "down" {
        true => answer("500 Internal Server Error", &json!({"error": {"message": "down"}})),
        false => says(seen, "Hi"),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("keys.db");
    let entry = |name: &str, model: &str, price: &str| {
        let base = &up.base;
        format!(
            "- {{model_name: {name}, litellm_params: {{model: hosted_vllm/{model}, api_base: \"{base}/v1\"}}, model_info: {{{price}}}}}\n"
        )
    };
    let (zero, paid) = (
        "input_cost_per_token: 0, output_cost_per_token: 0",
        "input_cost_per_token: 0.01, output_cost_per_token: 0.1, max_output_tokens: 2",
    );
    let entries = [
        entry("free", "free", zero),
        entry("paid", "paid", paid),
        entry("mixed", "free", zero),
        entry("mixed", "paid", paid),
        entry("unknown", "free", ""),
        entry("down", "down", zero),
        entry("down-too", "down", zero),
    ];
    let text = format!(
        "model_list:\n{}router_settings: {{num_retries: 0, fallbacks: [{{down: [paid]}}, {{down-too: [free]}}], model_group_alias: {{other: free}}}}\ngeneral_settings: {{master_key: sk-master}}\nkeys: {{database: \"{}\"}}\n",
        entries.concat(),
        database.display()
    );
    let f = Fixture::routed(&text).await;
    let store = open(&database);
    let budget = Budget { limit: "0.25".parse().unwrap(), period: Period::Ever };
    let secret = key(&f, &store, Limits { budget: Some(budget), ..Limits::default() }).await;
    // Its fallback costs something, and is allowed as long as something is left.
    assert_eq!(ask(&f, &secret, CHAT, &question("down")).await.0, 200);
    for (name, status) in [
        ("paid", 429),
        ("free", 200),
        ("other", 200),
        ("mixed", 429),
        ("unknown", 429),
        ("down", 502),
        ("down-too", 200),
    ] {
        let (got, body) = ask(&f, &secret, CHAT, &question(name)).await;
        assert_eq!(got, status, "{name}: {body}");
    }
    let asked: Vec<Value> = up.seen().iter().map(|seen| seen.body["model"].clone()).collect();
    assert_eq!(asked, ["down", "paid", "free", "free", "down", "down", "free"]);
}
