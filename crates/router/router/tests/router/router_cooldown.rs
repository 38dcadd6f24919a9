//! Cooldowns: when they start, and when a deployment is tried again.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use octet_api::ErrorKind;
use octet_router::{FailureKind, health};
use tokio::time::{advance, sleep};

/// Sends requests until `a` got `n` more.
async fn ask_a(router: &Arc<octet_router::Router<Mock>>, world: &World, n: usize) {
    let of_a = || world.deployments().iter().filter(|w| *w == "a").count();
    let until = of_a() + n;
    for _ in 0..1000 {
        if of_a() >= until {
            return;
        }
        let _ = ask(router, "m").await;
    }
    panic!("a is not tried any more");
}

fn no_retries(deployments: &[(&str, &str)]) -> octet_config::Config {
    let mut c = config(deployments);
    c.router.num_retries = 0;
    c
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_starts_if_more_than_half_of_a_minutes_requests_fail() {
    let (router, world) = router(&no_retries(&[("m", "a"), ("m", "b")]));
    world.script("a", [says("a"), says("a"), vec![fail(FailureKind::Server)]]);
    ask_a(&router, &world, 4).await;
    assert_eq!(status(&router, "a").state, "ready", "two of four");
    ask_a(&router, &world, 1).await;
    assert_eq!(status(&router, "a").state, "cooling", "three of five");
    let requests = world.deployments().len();
    for _ in 0..20 {
        assert_eq!(ask(&router, "m").await.unwrap(), "b");
    }
    assert_eq!(world.deployments().len(), requests + 20);
    advance(Duration::from_secs(5)).await;
    assert_eq!(status(&router, "a").state, "trial");
}

#[tokio::test(start_paused = true)]
async fn allowed_fails_are_counted_within_a_minute() {
    let mut c = no_retries(&[("m", "a"), ("m", "b")]);
    c.router.allowed_fails = Some(2);
    let (router, world) = router(&c);
    world.script("a", [vec![fail(FailureKind::Server)]]);
    ask_a(&router, &world, 2).await;
    assert_eq!(status(&router, "a").state, "ready");
    advance(Duration::from_secs(62)).await;
    ask_a(&router, &world, 2).await;
    assert_eq!(status(&router, "a").state, "ready");
    ask_a(&router, &world, 1).await;
    assert_eq!(status(&router, "a").state, "cooling");
}

#[tokio::test(start_paused = true)]
async fn errors_of_a_request_are_not_counted_against_deployments() {
    let mut c = no_retries(&[("m", "a"), ("m", "b")]);
    c.router.allowed_fails = Some(0);
    let (router, world) = router(&c);
    use FailureKind as K;
    for kind in [K::BadRequest, K::ContextWindow, K::ContentPolicy, K::Memory] {
        world.script("a", [vec![fail(kind)]]);
        ask_a(&router, &world, 10).await;
        assert_eq!(status(&router, "a").state, "ready", "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn policies_by_kind_take_precedence() {
    let mut c = no_retries(&[("m", "a"), ("m", "b")]);
    c.router.allowed_fails_policy.rate_limit = Some(1);
    let (router, world) = router(&c);
    world.script("a", [vec![fail(FailureKind::RateLimited)]]);
    ask_a(&router, &world, 1).await;
    assert_eq!(status(&router, "a").state, "ready");
    ask_a(&router, &world, 1).await;
    assert_eq!(status(&router, "a").state, "cooling");
    c.router.disable_cooldowns = true;
    let (router, world) = crate::common::router(&c);
    world.script("a", [vec![fail(FailureKind::Server)]]);
    ask_a(&router, &world, 20).await;
    assert_eq!(status(&router, "a").state, "ready");
}

#[tokio::test(start_paused = true)]
async fn the_last_healthy_deployment_stays_in_use() {
    let (router, world) = router(&no_retries(&[("m", "a"), ("m", "b")]));
    for deployment in ["a", "b"] {
        world.script(deployment, [vec![fail(FailureKind::Server)]]);
    }
    for _ in 0..40 {
        ask(&router, "m").await.unwrap_err();
    }
    let cooling = router.status().iter().filter(|s| s.state == "cooling").count();
    assert_eq!(cooling, 1, "{:?}", router.status());
    // But not where the provider says so itself.
    for deployment in ["a", "b"] {
        world.script(deployment, [vec![fail(FailureKind::RateLimited)]]);
    }
    advance(Duration::from_secs(5)).await;
    for _ in 0..2 {
        ask(&router, "m").await.unwrap_err();
    }
    assert!(router.status().iter().all(|s| s.state == "cooling"), "{:?}", router.status());
    let requests = world.deployments().len();
    let mut reply = router.send(call("m"));
    // It waits for the first to be ready again, and is sent then.
    let error = reply.decide().await.unwrap_err();
    assert_eq!((error.kind, world.deployments().len()), (ErrorKind::RateLimit, requests + 1));
}

/// As in LiteLLM: nothing else could answer, and the provider may by then.
#[tokio::test(start_paused = true)]
async fn the_only_deployment_is_asked_again_after_a_rate_limit() {
    let mut c = no_retries(&[("m", "a")]);
    c.router.cooldown_time = Duration::from_secs(60);
    let (router, world) = router(&c);
    world
        .script("a", [vec![fail(FailureKind::RateLimited)], vec![fail(FailureKind::RateLimited)], says("a")]);
    for _ in 0..2 {
        ask(&router, "m").await.unwrap_err();
        assert_eq!(status(&router, "a").state, "ready");
    }
    assert_eq!(ask(&router, "m").await.unwrap(), "a");
    // Unless the provider says how long it takes.
    world.script("a", [vec![limited(30)], vec![fail(FailureKind::RateLimited)], says("a")]);
    ask(&router, "m").await.unwrap_err();
    assert_eq!(status(&router, "a").state, "cooling");
    advance(Duration::from_secs(30)).await;
    ask(&router, "m").await.unwrap_err();
    assert_eq!(status(&router, "a").state, "ready");
    assert_eq!(ask(&router, "m").await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn after_a_cooldown_one_request_tries() {
    let mut c = no_retries(&[("m", "a"), ("m", "b")]);
    c.deployments[0].cooldown_time = Some(Duration::from_secs(30));
    let (router, world) = router(&c);
    world.script("a", [vec![fail(FailureKind::RateLimited)]]);
    ask_a(&router, &world, 1).await;
    advance(Duration::from_secs(30)).await;
    // The trial takes a while; meanwhile all other requests use b.
    world.script("a", [vec![Do::Wait(1000), fail(FailureKind::Server)]]);
    let count = || world.deployments().iter().filter(|w| *w == "a").count();
    let before = count();
    let tasks: Vec<_> = (0..30)
        .map(|_| {
            let router = Arc::clone(&router);
            tokio::spawn(async move { ask(&router, "m").await })
        })
        .collect();
    sleep(Duration::from_millis(500)).await;
    assert_eq!(count(), before + 1);
    for task in tasks {
        let _ = task.await.unwrap();
    }
    // It failed: left alone again at once.
    assert_eq!(status(&router, "a").state, "cooling");
    advance(Duration::from_secs(30)).await;
    world.script("a", [says("a")]);
    ask_a(&router, &world, 1).await;
    assert_eq!(status(&router, "a").state, "ready");
    ask_a(&router, &world, 10).await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_trial_does_not_count() {
    let (router, world) = router(&no_retries(&[("m", "a")]));
    world.script("a", [vec![limited(5)]]);
    ask(&router, "m").await.unwrap_err();
    advance(Duration::from_secs(5)).await;
    world.script("a", [vec![Do::Hang], says("a")]);
    let mut reply = router.send(call("m"));
    tokio::time::timeout(Duration::from_secs(1), reply.decide()).await.unwrap_err();
    drop(reply);
    assert_eq!(status(&router, "a").state, "trial");
    assert_eq!(ask(&router, "m").await.unwrap(), "a");
    assert_eq!(status(&router, "a").state, "ready");
}

#[tokio::test(start_paused = true)]
async fn failed_health_checks_start_cooldowns() {
    let mut c = no_retries(&[("m", "a"), ("m", "b"), ("alone", "c")]);
    c.health.enabled = true;
    c.health.interval = Duration::from_secs(60);
    let (router, world) = router(&c);
    for deployment in ["a", "c"] {
        world.nature(deployment, Nature { sick: true, ..Nature::default() });
    }
    let task = tokio::spawn(health::watch(Arc::clone(&router)));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(status(&router, "a").state, "unhealthy");
    assert_eq!(status(&router, "c").state, "ready", "no other deployment could answer");
    for _ in 0..20 {
        assert_eq!(ask(&router, "m").await.unwrap(), "b");
    }
    sleep(Duration::from_secs(300)).await;
    assert_eq!(status(&router, "a").state, "unhealthy", "until it passes");
    world.nature("a", Nature::default());
    sleep(Duration::from_secs(61)).await;
    assert_eq!(status(&router, "a").state, "ready");
    task.abort();
}
