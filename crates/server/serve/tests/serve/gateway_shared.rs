//! Several routers behind one Redis: limits hold for all of them together, cooldowns are known everywhere, and without Redis each has its
//! own limits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use octet_keys::{Limits, Store};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::gateway_cache::Server;
use crate::common::upstream::{Step, Upstream, answer, says};
use crate::common::{Fixture, PATIENCE, chat, read, with};

const CHAT: &str = "/v1/chat/completions";
const MASTER: &str = "sk-master";

/// Three routers, their Redis, and the keys that they share.
struct Fleet {
    routers: Vec<Fixture>,
    redis: Server,
    store: Store,
    _folder: tempfile::TempDir,
}

impl Fleet {
    async fn start(models: &str) -> Option<Self> {
        let redis = Server::start("secret")?;
        let folder = tempfile::tempdir().expect("a folder");
        let database = folder.path().join("keys.db");
        let text = format!(
            "model_list:\n{models}\nrouter_settings: {{num_retries: 0, cooldown_time: 60, redis_url: 'redis://:secret@127.0.0.1:{port}/0'}}
general_settings: {{master_key: {MASTER}}}\nkeys: {{database: '{database}'}}\n",
            port = redis.port,
            database = database.display(),
        );
        let mut routers = Vec::new();
        for _ in 0..3 {
            routers.push(Fixture::routed(&text).await);
        }
        let options =
            octet_keys::Options { lock_timeout: PATIENCE, flush_every: 60 * PATIENCE, ..Default::default() };
        let store = Store::open_with(&database, options).expect("a store");
        Some(Self { routers, redis, store, _folder: folder })
    }

    /// A key that all routers know.
    async fn key(&self, limits: Limits) -> String {
        let (secret, _) = self.store.create(octet_keys::UNNAMED, limits).expect("a key");
        let secret = secret.reveal().to_string();
        for router in &self.routers {
            let knows = async || {
                let list = router.client.get(router.url("/v1/models")).bearer_auth(&secret).send().await;
                list.is_ok_and(|answer| answer.status() == 200)
            };
            let began = std::time::Instant::now();
            while !knows().await {
                assert!(began.elapsed() < PATIENCE, "a router does not see the key");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        secret
    }

    /// The statuses of requests that go round the routers, one after the other.
    async fn ask(&self, key: &str, model: &str, many: usize) -> HashMap<u16, usize> {
        let mut statuses = HashMap::new();
        for i in 0..many {
            let status = ask(&self.routers[i % self.routers.len()], key, model).await.0;
            *statuses.entry(status).or_default() += 1;
        }
        statuses
    }
}

async fn ask(router: &Fixture, key: &str, model: &str) -> (u16, Value) {
    let body = with(&chat("Hello"), json!({"model": model}));
    read(router.request(CHAT, &body).bearer_auth(key).send().await.expect("an answer")).await
}

fn counts(of: &[(u16, usize)]) -> HashMap<u16, usize> {
    of.iter().copied().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_for_all_routers_together() {
    let up = Upstream::saying("Hi").await;
    let models = format!(
        "- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{base}/v1'}}}}
- {{model_name: few, litellm_params: {{model: hosted_vllm/y, api_base: '{base}/v1', rpm: 5}}}}",
        base = up.base
    );
    let Some(fleet) = Fleet::start(&models).await else { return };
    // Nine tokens each, as the provider says.
    let key = fleet.key(Limits { rpm: Some(4), ..Limits::default() }).await;
    assert_eq!(fleet.ask(&key, "m", 12).await, counts(&[(200, 4), (429, 8)]));
    let key = fleet.key(Limits { tpm: Some(25), ..Limits::default() }).await;
    let statuses = fleet.ask(&key, "m", 12).await;
    assert!((1..=3).contains(&statuses[&200]), "{statuses:?}");
    assert_eq!(fleet.ask(MASTER, "few", 12).await, counts(&[(200, 5), (429, 7)]));
    let (_, refused) = ask(&fleet.routers[0], MASTER, "few").await;
    assert!(
        refused["error"]["message"].as_str().is_some_and(|m| m.contains("5 requests a minute")),
        "{refused}"
    );
    assert_eq!(up.seen().len() as u64, 4 + statuses[&200] as u64 + 5, "a refused request is not sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_are_counted_for_all_routers_together() {
    let (open, gate) = watch::channel(false);
    let up = Upstream::start(move |seen| {
        let mut steps = vec![Step::Wait(gate.clone())];
        steps.extend(says(seen, "Hi"));
        steps
    })
    .await;
    let models =
        format!("- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{}/v1'}}}}", up.base);
    let Some(fleet) = Fleet::start(&models).await else { return };
    let key = fleet.key(Limits { max_parallel: Some(2), ..Limits::default() }).await;
    let fleet = Arc::new(fleet);
    let send = |router: usize| {
        let (fleet, key) = (Arc::clone(&fleet), key.clone());
        tokio::spawn(async move { ask(&fleet.routers[router], &key, "m").await.0 })
    };
    let running = [send(0), send(1)];
    fleet.routers[0].until("both are sent", || up.seen().len() == 2).await;
    for router in 0..3 {
        assert_eq!(send(router).await.expect("no panic"), 429);
    }
    open.send(true).expect("the provider waits");
    for request in running {
        assert_eq!(request.await.expect("no panic"), 200);
    }
    // Their places are free again, wherever they were.
    let began = std::time::Instant::now();
    while send(2).await.expect("no panic") != 200 {
        assert!(began.elapsed() < PATIENCE);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cooldown_is_known_everywhere() {
    let bad =
        Upstream::start(|_| answer("429 Too Many Requests", &json!({"error": {"message": "slow down"}})))
            .await;
    let good = Upstream::saying("Hi").await;
    let models = format!(
        "- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{}/v1', order: 1}}}}
- {{model_name: m, litellm_params: {{model: hosted_vllm/y, api_base: '{}/v1', order: 2}}}}",
        bad.base, good.base
    );
    let Some(fleet) = Fleet::start(&models).await else { return };
    assert_eq!(ask(&fleet.routers[0], MASTER, "m").await.0, 200);
    assert_eq!(bad.seen().len(), 1);
    for router in &fleet.routers[1..] {
        let cools = async || {
            let status = router.client.get(router.url("/admin/status")).bearer_auth(MASTER).send().await;
            let (_, status) = read(status.expect("an answer")).await;
            let deployments = status["deployments"].as_array().cloned().unwrap_or_default();
            deployments.iter().any(|d| d["state"] == "cooling")
        };
        let began = std::time::Instant::now();
        while !cools().await {
            assert!(began.elapsed() < PATIENCE, "a router does not know of the cooldown");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(fleet.ask(MASTER, "m", 6).await, counts(&[(200, 6)]));
    assert_eq!(bad.seen().len(), 1, "the failed deployment is left alone by all");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_each_router_has_its_own_limits() {
    let up = Upstream::saying("Hi").await;
    let models =
        format!("- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{}/v1'}}}}", up.base);
    let Some(mut fleet) = Fleet::start(&models).await else { return };
    let key = fleet.key(Limits { rpm: Some(4), ..Limits::default() }).await;
    assert_eq!(fleet.ask(&key, "m", 3).await, counts(&[(200, 3)]));
    fleet.redis.stop();
    // Each has counted one.
    assert_eq!(fleet.ask(&key, "m", 18).await, counts(&[(200, 9), (429, 9)]));
    // It is back, and has forgotten all.
    fleet.redis.restart();
    let key = fleet.key(Limits { rpm: Some(2), ..Limits::default() }).await;
    let began = std::time::Instant::now();
    // For some seconds after a failure it is not asked.
    loop {
        let fresh = fleet.key(Limits { rpm: Some(1), ..Limits::default() }).await;
        if fleet.ask(&fresh, "m", 3).await == counts(&[(200, 1), (429, 2)]) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "Redis is not used again");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(fleet.ask(&key, "m", 6).await, counts(&[(200, 2), (429, 4)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_holds_for_all_routers_together() {
    let up = Upstream::saying("Hi").await;
    // An answer has 9 tokens, and costs 0.009.
    let models = format!(
        "- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{base}/v1', input_cost_per_token: 0.001, output_cost_per_token: 0.001}}}}
- {{model_name: free, litellm_params: {{model: hosted_vllm/y, api_base: '{base}/v1', input_cost_per_token: 0, output_cost_per_token: 0}}}}",
        base = up.base
    );
    let Some(fleet) = Fleet::start(&models).await else { return };
    let budget = octet_keys::budget(0.05, None).expect("a budget");
    let key = fleet.key(Limits { budget: Some(budget), ..Limits::default() }).await;
    let body = with(&chat("Hello"), json!({"model": "m", "max_tokens": 2}));
    let send = |i: usize| {
        let router = &fleet.routers[i % 3];
        let request = router.request(CHAT, &body).bearer_auth(&key);
        async move { read(request.send().await.expect("an answer")).await.0 }
    };
    let together: Vec<_> = (0..40).map(|i| tokio::spawn(send(i))).collect();
    let mut answered = 0;
    for request in together {
        answered += usize::from(request.await.expect("no panic") == 200);
    }
    assert!((1..=6).contains(&answered), "{answered}");
    // The sixth begins below the budget, whichever router gets it.
    let began = std::time::Instant::now();
    let mut i = 0;
    while answered < 6 {
        assert!(began.elapsed() < PATIENCE, "the budget cannot be used up: {answered} answers");
        answered += usize::from(send(i).await == 200);
        i += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for i in 0..6 {
        assert_eq!(send(i).await, 429);
    }
    assert_eq!(up.seen().len(), 6);
    assert_eq!(fleet.ask(&key, "free", 6).await, counts(&[(200, 6)]));
}

/// A deployment's tokens a minute, with what running requests at all routers may still take.
#[tokio::test(flavor = "multi_thread")]
async fn answers_are_reserved_for_all_routers_together() {
    let (open, gate) = watch::channel(false);
    let up = Upstream::start(move |seen| {
        let mut steps = vec![Step::Wait(gate.clone())];
        steps.extend(says(seen, "Hi"));
        steps
    })
    .await;
    let spare = Upstream::saying("Hi").await;
    let models = format!(
        "- {{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{}/v1', tpm: 100}}}}
- {{model_name: spare, litellm_params: {{model: hosted_vllm/y, api_base: '{}/v1'}}}}
litellm_settings: {{fallbacks: [{{m: [spare]}}]}}",
        up.base, spare.base
    );
    let Some(fleet) = Fleet::start(&models).await else { return };
    let fleet = Arc::new(fleet);
    let send = |router: usize| {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move {
            let body = with(&chat("Hello"), json!({"model": "m", "max_tokens": 60}));
            let request = fleet.routers[router].request(CHAT, &body).bearer_auth(MASTER);
            read(request.send().await.expect("an answer")).await.0
        })
    };
    // The second begins when 40 tokens are left, and may take more.
    let running = [send(0), send(1)];
    fleet.routers[0].until("both are sent", || up.seen().len() == 2).await;
    for router in 0..3 {
        assert_eq!(send(router).await.expect("no panic"), 200);
    }
    assert_eq!((up.seen().len(), spare.seen().len()), (2, 3));
    open.send(true).expect("the provider waits");
    for request in running {
        assert_eq!(request.await.expect("no panic"), 200);
    }
    // They took 9 tokens each.
    let began = std::time::Instant::now();
    while up.seen().len() == 2 {
        assert!(began.elapsed() < PATIENCE);
        assert_eq!(send(2).await.expect("no panic"), 200);
    }
}
