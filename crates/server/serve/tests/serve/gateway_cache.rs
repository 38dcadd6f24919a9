//! The cache of responses: what is given again, to whom, for how long; in memory, and in a real Redis where there is one.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::common::upstream::{Seen, Step, Upstream, answer, says};
use crate::common::{Fixture, PATIENCE, chat, read, with};
use serde_json::{Value, json};

const MEMORY: &str = "litellm_settings: {cache: true, cache_params: {type: local}}";

fn file(up: &Upstream, rest: &str) -> String {
    format!(
        "model_list:
- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{base}/v1', input_cost_per_token: 0.01}}}}
- {{model_name: claude, litellm_params: {{model: anthropic/x, api_base: '{base}', api_key: sk-x}}}}
router_settings: {{num_retries: 0}}
{rest}",
        base = up.base,
    )
}

fn m(text: &str) -> Value {
    with(&chat(text), json!({"model": "m"}))
}

/// Status, whether it came from the cache, its key there, and the body.
struct Got {
    status: u16,
    cached: Option<String>,
    key: Option<String>,
    body: String,
}

async fn ask_as(f: &Fixture, key: &str, path: &str, body: &Value) -> Got {
    let answer = f.request(path, body).bearer_auth(key).send().await.expect("an answer");
    let header = |name: &str| answer.headers().get(name).map(|v| v.to_str().expect("text").to_string());
    let (cached, key) = (header("x-octet-response-cache"), header("x-litellm-cache-key"));
    Got { status: answer.status().as_u16(), cached, key, body: answer.text().await.expect("a body") }
}

async fn ask(f: &Fixture, body: &Value) -> Got {
    ask_as(f, "none", "/v1/chat/completions", body).await
}

/// Whether an answer came from the cache; it is a good one.
async fn hit(f: &Fixture, body: &Value) -> bool {
    let got = ask(f, body).await;
    assert_eq!(got.status, 200, "{}", got.body);
    got.cached.as_deref() == Some("hit")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_is_answered_once_in_every_dialect() {
    let up = Upstream::saying("Hi").await;
    let f = Fixture::routed(&file(&up, MEMORY)).await;
    let claude =
        json!({"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]});
    let gemini = json!({"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]});
    let requests = [
        ("/v1/chat/completions", m("Hello")),
        ("/v1/chat/completions", with(&m("Hello"), json!({"stream": true}))),
        ("/v1/embeddings", json!({"model": "m", "input": "Hello"})),
        ("/v1/messages", claude.clone()),
        // Translated: the provider speaks another dialect.
        ("/v1/messages", with(&claude, json!({"model": "m"}))),
        ("/v1/messages", with(&claude, json!({"model": "m", "stream": true}))),
        ("/v1/responses", json!({"model": "m", "input": "Hello", "store": false})),
        ("/api/chat", json!({"model": "m", "messages": [{"role": "user", "content": "Hello"}]})),
        ("/v1beta/models/m:generateContent", gemini.clone()),
        // Its streams have two forms.
        ("/v1beta/models/m:streamGenerateContent", gemini.clone()),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", gemini),
    ];
    for (n, (path, body)) in requests.iter().enumerate() {
        let first = ask_as(&f, "none", path, body).await;
        assert_eq!((first.status, first.cached.as_deref()), (200, Some("miss")), "{path}: {}", first.body);
        assert_eq!(up.seen().len(), n + 1, "{path}");
        let again = ask_as(&f, "none", path, body).await;
        assert_eq!((again.status, again.cached.as_deref()), (200, Some("hit")), "{path}: {}", again.body);
        assert_eq!((&again.body, &again.key), (&first.body, &first.key), "{path}");
        assert_eq!(first.key.map(|k| k.len()), Some(64));
        assert_eq!(up.seen().len(), n + 1, "{path}: the provider was asked again");
    }
    // The head of a stream is that of a stream.
    let events = f.events("/v1/chat/completions", &requests[1].1).await;
    assert_eq!(events.last().map(|e| e.1.clone()), Some(json!("[DONE]")));
    assert!(f.text("/metrics").await.contains("octet:response_cache_hits_total 12"));
    // Neither what is counted nor what is kept by its id.
    for (path, body) in [
        ("/v1/responses", json!({"model": "m", "input": "Hello"})),
        ("/v1/messages/count_tokens", json!({"model": "claude", "messages": claude["messages"]})),
    ] {
        assert_eq!(ask_as(&f, "none", path, &body).await.cached, None, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_different_answers_have_different_entries() {
    let up = Upstream::saying("Hi").await;
    let f = Fixture::routed(&file(&up, MEMORY)).await;
    assert!(!hit(&f, &m("Hello")).await);
    for more in [
        json!({"temperature": 0.5}),
        json!({"max_tokens": 13}),
        json!({"messages": [{"role": "user", "content": "Hello "}]}),
        json!({"stream": true}),
        json!({"user": "u"}),
        json!({"tools": [crate::common::tool()]}),
        json!({"unknown_to_us": 1}),
        json!({"cache": {"namespace": "other"}}),
    ] {
        assert!(!hit(&f, &with(&m("Hello"), more.clone())).await, "{more}");
    }
    // What is said to the router alone changes nothing, nor does the order of the fields.
    let own =
        json!({"tags": ["a"], "metadata": {"b": "c"}, "num_retries": 1, "timeout": 30, "cache": {"ttl": 5}});
    assert!(hit(&f, &with(&m("Hello"), own)).await);
    let turned: serde_json::Map<String, Value> =
        m("Hello").as_object().expect("an object").clone().into_iter().rev().collect();
    assert!(hit(&f, &turned.into()).await);
    let beta = f.request("/v1/chat/completions", &m("Hello")).header("openai-beta", "x").send().await;
    assert_eq!(beta.expect("an answer").headers()["x-octet-response-cache"], "miss");
    // A long conversation is not looked at: LiteLLM's `max_messages`.
    let turn = json!({"role": "user", "content": "Hello"});
    let long = with(&m(""), json!({"messages": vec![turn; 5]}));
    assert_eq!(ask(&f, &long).await.cached, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_control_how_they_are_cached() {
    let up = Upstream::saying("Hi").await;
    let f = Fixture::routed(&file(&up, MEMORY)).await;
    let cache = |text: &str, control: Value| with(&m(text), json!({"cache": control}));
    // What is not kept is asked again.
    assert!(!hit(&f, &cache("a", json!({"no-store": true}))).await);
    assert!(!hit(&f, &m("a")).await);
    assert!(hit(&f, &m("a")).await);
    // `no-cache` asks again, and keeps the new answer.
    assert!(!hit(&f, &cache("a", json!({"no-cache": true}))).await);
    assert!(hit(&f, &cache("a", json!({"s-maxage": 600}))).await);
    assert!(!hit(&f, &cache("b", json!({"ttl": 0}))).await);
    assert!(!hit(&f, &m("b")).await, "kept for no time");
    // Nothing is younger than it is.
    let began = Instant::now();
    while hit(&f, &cache("b", json!({"s-maxage": 0, "no-store": true}))).await {
        assert!(began.elapsed() < PATIENCE);
    }
    assert!(hit(&f, &m("b")).await);
    // What is not understood keeps out of the cache.
    for odd in [json!("no"), json!({"no-cache": "yes"}), json!([true])] {
        assert_eq!(ask(&f, &cache("a", odd.clone())).await.cached, None, "{odd}");
    }
    assert!(up.seen().iter().all(|seen| seen.body.get("cache").is_none()), "it was forwarded");

    let opt_in = "litellm_settings: {cache: true, cache_params: {type: local, mode: default_off, namespace: ns, supported_call_types: [acompletion]}}";
    let f = Fixture::routed(&file(&up, opt_in)).await;
    assert_eq!(ask(&f, &m("a")).await.cached, None);
    let wish = cache("a", json!({"use-cache": true}));
    assert!(!hit(&f, &wish).await);
    let got = ask(&f, &wish).await;
    assert_eq!(got.cached.as_deref(), Some("hit"));
    assert!(got.key.expect("a key").starts_with("ns:"));
    let vectors = json!({"model": "m", "input": "a", "cache": {"use-cache": true}});
    assert_eq!(ask_as(&f, "none", "/v1/embeddings", &vectors).await.cached, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_share_answers_only_if_configured_and_hits_are_free() {
    let up = Upstream::saying("Hi").await;
    for shared in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let rest = format!(
            "litellm_settings: {{cache: true, cache_params: {{shared_between_keys: {shared}}}}}\ngeneral_settings: {{master_key: sk-master}}\nkeys: {{database: '{}'}}\n",
            folder.path().join("keys.db").display()
        );
        let f = Fixture::routed(&file(&up, &rest)).await;
        let make = async |wish: Value| {
            let made = read(
                f.request("/key/generate", &wish).bearer_auth("sk-master").send().await.expect("an answer"),
            );
            made.await.1["key"].as_str().expect("a key").to_string()
        };
        let (one, two) = (make(json!({})).await, make(json!({})).await);
        let none = make(json!({"models": ["claude"]})).await;
        let path = "/v1/chat/completions";
        let is_hit =
            async |key: &str| ask_as(&f, key, path, &m("Hello")).await.cached.as_deref() == Some("hit");
        assert!(!is_hit(&one).await);
        assert!(is_hit(&one).await);
        assert_eq!(is_hit(&two).await, shared);
        assert_eq!(is_hit("sk-master").await, shared);
        // A key without access to the model gets no cached answers of others.
        assert_eq!(ask_as(&f, &none, path, &m("Hello")).await.status, 403);
        let info = f.client.get(f.url(&format!("/key/info?key={one}"))).bearer_auth("sk-master").send().await;
        let (_, info) = read(info.expect("an answer")).await;
        assert_eq!(info["info"]["spend"], json!(0.07), "7 tokens of one request: {info}");
        let logs =
            f.client.get(f.url(&format!("/spend/logs?api_key={one}"))).bearer_auth("sk-master").send().await;
        let (_, logs) = read(logs.expect("an answer")).await;
        assert_eq!((&logs[0]["requests"], &logs[0]["total_input_tokens"]), (&json!(2), &json!(7)), "{logs}");
    }
}

/// An error, then an answer that breaks off, then a good one.
fn mends(seen: &Seen, before: usize) -> Vec<Step> {
    match before {
        0 => answer("500 Internal Server Error", &json!({"error": {"message": "no"}})),
        1 if seen.body["stream"] == true => {
            let mut steps = says(seen, "Hi");
            steps.truncate(2);
            steps.push(Step::Close);
            steps
        }
        _ => says(seen, "Hi"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_complete_answers_are_cached() {
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let up =
        Upstream::start(move |seen| mends(seen, count.fetch_add(1, std::sync::atomic::Ordering::SeqCst)))
            .await;
    let f = Fixture::routed(&file(&up, MEMORY)).await;
    let body = with(&m("Hello"), json!({"stream": true}));
    let failed = ask(&f, &body).await;
    assert!(failed.status >= 500, "{}", failed.body);
    let broken = ask(&f, &body).await;
    assert_eq!(broken.cached.as_deref(), Some("miss"));
    assert!(broken.body.contains("error"), "{}", broken.body);
    let whole = ask(&f, &body).await;
    assert_eq!(whole.cached.as_deref(), Some("miss"));
    assert!(hit(&f, &body).await);
    assert_eq!(up.seen().len(), 3);
}

/// A Redis of one's own, ended with the test.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    password: String,
    folder: tempfile::TempDir,
}

/// A server at this port; `None` if another program has taken it. An error if Redis is not installed.
fn spawn(port: u16, password: &str, folder: &std::path::Path) -> std::io::Result<Option<Child>> {
    let mut command = Command::new("redis-server");
    let port = port.to_string();
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--requirepass", password]);
    let mut child = command.arg("--dir").arg(folder).stdout(Stdio::piped()).spawn()?;
    let output = BufReader::new(child.stdout.take().expect("piped"));
    if output.lines().map_while(Result::ok).any(|line| line.contains("Ready to accept connections")) {
        return Ok(Some(child));
    }
    let _ = child.wait();
    Ok(None)
}

impl Server {
    /// Nothing where Redis is not installed.
    pub(crate) fn start(password: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        // A port that was free a moment ago; another one is tried if it is not any more.
        for _ in 0..20 {
            let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
            let port = free.expect("a port").port();
            match spawn(port, password, folder.path()) {
                Ok(Some(child)) => return Some(Self { child, port, password: password.into(), folder }),
                Ok(None) => {}
                Err(_) => {
                    octet_testkit::skipped("needs redis-server (Debian's package of that name)");
                    return None;
                }
            }
        }
        panic!("redis-server does not start");
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The same server again, without its data.
    pub(crate) fn restart(&mut self) {
        let child = spawn(self.port, &self.password, self.folder.path()).expect("it is installed");
        self.child = child.expect("its port is free again");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What an endpoint of the operator's says.
async fn managed(f: &Fixture, method: &str, path: &str) -> Value {
    let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
    let answer =
        f.client.request(method, f.url(path)).bearer_auth("sk-master").send().await.expect("an answer");
    let (status, said) = read(answer).await;
    assert_eq!(status, 200, "{path}: {said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_own_key_empties_the_cache() {
    let up = Upstream::saying("Hi").await;
    let f = Fixture::routed(&file(&up, &format!("{MEMORY}\ngeneral_settings: {{master_key: sk-master}}\n")))
        .await;
    let ask = async |text: &str| ask_as(&f, "sk-master", "/v1/chat/completions", &m(text)).await;
    assert_eq!(
        (ask("a").await.cached.as_deref(), ask("b").await.cached.as_deref()),
        (Some("miss"), Some("miss"))
    );
    let told = managed(&f, "GET", "/cache/ping").await;
    assert_eq!((&told["status"], &told["cache_type"]), (&json!("healthy"), &json!("local")));
    let key = ask("a").await.key.expect("a key");
    let post = async |path: &str, key: &str, body: Value| {
        read(f.request(path, &body).bearer_auth(key).send().await.expect("an answer")).await
    };
    assert_eq!(post("/cache/delete", "sk-master", json!({"keys": [key]})).await.0, 200);
    assert_eq!(
        (ask("a").await.cached.as_deref(), ask("b").await.cached.as_deref()),
        (Some("miss"), Some("hit"))
    );
    assert_eq!(managed(&f, "POST", "/cache/flushall").await, json!({"status": "success"}));
    assert_eq!(
        (ask("a").await.cached.as_deref(), ask("b").await.cached.as_deref()),
        (Some("miss"), Some("miss"))
    );
    assert_eq!(post("/cache/delete", "sk-master", json!({})).await.0, 400);
    assert_eq!(post("/cache/delete", "sk-other", json!({"keys": [key]})).await.0, 401);
    let answer =
        f.client.get(f.url("/cache/redis/info")).bearer_auth("sk-master").send().await.expect("an answer");
    assert_eq!(answer.status(), 400, "answers lie in memory");
    let bare = Fixture::routed(&file(&up, "general_settings: {master_key: sk-master}")).await;
    let answer = bare.client.get(bare.url("/cache/ping")).bearer_auth("sk-master").send();
    let answer = answer.await.expect("an answer");
    let (status, said) = read(answer).await;
    assert!(status == 503 && said.to_string().contains("litellm_settings.cache"), "{said}");
}

async fn flush(f: &Fixture, key: &str) -> (u16, Value) {
    read(f.request("/cache/flushall", &json!({})).bearer_auth(key).send().await.expect("an answer")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_without_a_key_lets_nobody_manage_it() {
    let up = Upstream::saying("Hi").await;
    let f = Fixture::routed(&file(&up, MEMORY)).await;
    assert!(!hit(&f, &m("Hello")).await);
    for (method, path) in [
        (reqwest::Method::GET, "/admin/status"),
        (reqwest::Method::GET, "/cache/ping"),
        (reqwest::Method::POST, "/cache/delete"),
        (reqwest::Method::POST, "/cache/flushall"),
        (reqwest::Method::GET, "/cache/redis/info"),
        (reqwest::Method::GET, "/key/list"),
        (reqwest::Method::POST, "/key/generate"),
    ] {
        let (status, said) =
            read(f.client.request(method, f.url(path)).send().await.expect("an answer")).await;
        assert!(
            status == 403 && said.to_string().contains("general_settings.master_key"),
            "{path}: {status} {said}"
        );
    }
    assert!(hit(&f, &m("Hello")).await, "nothing is forgotten");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_share_a_redis_and_work_without_it() {
    let Some(mut redis) = Server::start("secret") else { return };
    let up = Upstream::saying("Hi").await;
    let rest = format!(
        "litellm_settings: {{cache: true, cache_params: {{type: redis, host: 127.0.0.1, port: {}, password: secret, namespace: 'octet.test', ttl: 60}}}}",
        redis.port
    );
    let one = Fixture::routed(&file(&up, &rest)).await;
    let url = format!(
        "litellm_settings: {{cache: true, cache_params: {{url: 'redis://:secret@127.0.0.1:{}/0', namespace: octet.test}}}}",
        redis.port
    );
    let two = Fixture::routed(&file(&up, &url)).await;
    let owned =
        Fixture::routed(&file(&up, &format!("{rest}\ngeneral_settings: {{master_key: sk-master}}"))).await;
    for body in [m("Hello"), with(&m("Hello"), json!({"stream": true}))] {
        let first = ask(&one, &body).await;
        assert_eq!((first.status, first.cached.as_deref()), (200, Some("miss")));
        // It is written behind the answer.
        let began = Instant::now();
        loop {
            let again = ask(&two, &body).await;
            if again.cached.as_deref() == Some("hit") {
                assert_eq!(again.body, first.body);
                break;
            }
            assert!(began.elapsed() < PATIENCE, "it is never found in Redis");
        }
    }
    // Redis' own client sees it, under its name, with its time.
    let key = ask(&one, &m("Hello")).await.key.expect("a key");
    let port = redis.port.to_string();
    let told = Command::new("redis-cli")
        .args(["-p", &port, "-a", "secret", "--no-auth-warning", "TTL", &key])
        .output();
    if let Ok(told) = told {
        let seconds: i64 = String::from_utf8_lossy(&told.stdout).trim().parse().expect("a number");
        assert!((1..=60).contains(&seconds), "{seconds}");
        // Somebody else's value is no answer.
        let set = Command::new("redis-cli")
            .args(["-p", &port, "-a", "secret", "--no-auth-warning", "SET", &key, "x"])
            .output();
        assert!(set.expect("it ran a moment ago").status.success());
        assert!(!hit(&one, &m("Hello")).await);
    }
    // It is asked and emptied; what others keep there stays.
    let cli = |args: &[&str]| {
        let all = [&["-p", &port, "-a", "secret", "--no-auth-warning"], args].concat();
        let ran = Command::new("redis-cli").args(all).output().expect("Redis' client is there");
        String::from_utf8_lossy(&ran.stdout).trim().to_string()
    };
    let told = managed(&owned, "GET", "/cache/ping").await;
    assert_eq!(
        (&told["status"], &told["cache_type"], &told["ping_response"]),
        (&json!("healthy"), &json!("redis"), &json!(true))
    );
    assert!(!told.to_string().contains("secret"), "{told}");
    let told = managed(&owned, "GET", "/cache/redis/info").await;
    assert!(told["info"]["uptime_in_seconds"].is_u64() && told["num_clients"].as_u64() > Some(0), "{told}");
    assert_eq!(told["clients"][0]["db"], 0, "{told}");
    let body = m("Keep this");
    let kept = async || {
        let began = Instant::now();
        while !hit(&one, &body).await {
            assert!(began.elapsed() < PATIENCE, "it is never found in Redis");
        }
    };
    kept().await;
    let key = ask(&one, &body).await.key.expect("a key");
    let answer =
        owned.request("/cache/delete", &json!({"keys": [key, "theirs"]})).bearer_auth("sk-master").send();
    assert_eq!(read(answer.await.expect("an answer")).await, (200, json!({"status": "success"})));
    assert!(!hit(&one, &body).await);
    kept().await;
    let theirs = "f".repeat(64);
    for name in ["theirs", &theirs] {
        assert_eq!(cli(&["SET", name, "x"]), "OK");
    }
    assert_eq!(cli(&["RPUSH", &"e".repeat(64), "no text"]), "1");
    // Nothing is said to be forgotten that is not.
    assert_eq!(cli(&["ACL", "SETUSER", "default", "-getrange"]), "OK");
    let (status, said) = flush(&owned, "sk-master").await;
    assert!(status == 503 && said.to_string().contains("getrange"), "{said}");
    assert_eq!(
        (cli(&["ACL", "SETUSER", "default", "+getrange"]).as_str(), cli(&["EXISTS", &key]).as_str()),
        ("OK", "1")
    );
    assert_eq!(managed(&owned, "POST", "/cache/flushall").await, json!({"status": "success"}));
    assert_eq!((cli(&["EXISTS", &key]).as_str(), cli(&["EXISTS", "theirs", &theirs]).as_str()), ("0", "2"));
    let _ = redis.child.kill();
    let _ = redis.child.wait();
    for _ in 0..2 {
        assert_eq!(flush(&owned, "sk-master").await.0, 503);
    }
    let answer = owned.client.get(owned.url("/cache/ping")).bearer_auth("sk-master").send().await;
    assert_eq!(answer.expect("an answer").status(), 503);
    for n in 0..3 {
        assert!(!hit(&one, &m(&format!("Still there? {n}"))).await);
    }
    let metrics = one.text("/metrics").await;
    let line = metrics.lines().find(|l| l.starts_with("octet:response_cache_errors")).expect("a metric");
    assert!(!line.ends_with(" 0"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_configuration_is_not_answered_from_the_cache() {
    let (old, new) = (Upstream::saying("old").await, Upstream::saying("new").await);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("octet.yaml");
    std::fs::write(&path, file(&old, MEMORY)).expect("a file");
    let load = {
        let path = path.clone();
        move || {
            let text = std::fs::read_to_string(&path).map_err(|e| e.to_string())?;
            octet_config::Config::parse("octet.yaml", &text, &octet_config::Disk(|_: &str| None))
                .map_err(|e| e.to_string())
        }
    };
    let mut routes = octet_serve::Routes::new(load().expect("a configuration"));
    (routes.reload, routes.watch) = (std::sync::Arc::new(load), None);
    let f =
        Fixture::with(octet_serve::Options { routes: Some(routes), ..octet_serve::Options::new(Vec::new()) })
            .await;
    assert!(!hit(&f, &m("Hello")).await);
    assert!(hit(&f, &m("Hello")).await);
    let reload = || f.app.gateway().expect("a router").reload().expect("it is read");
    reload();
    assert!(hit(&f, &m("Hello")).await, "the same configuration keeps its answers");
    std::fs::write(&path, file(&new, MEMORY)).expect("a file");
    reload();
    assert!(ask(&f, &m("Hello")).await.body.contains("new"));
}
