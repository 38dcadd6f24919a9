//! Deployments with wildcards, whose models have separate cooldowns. And queues of full deployments.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::*;
use octet_router::FailureKind;
use tokio::time::{advance, sleep};

fn many() -> octet_config::Config {
    let mut c = config(&[("openai/*", "a")]);
    c.router.num_retries = 0;
    c
}

/// Every request for a model with this in its name fails so.
fn fails_for(world: &World, part: &'static str, how: Do) {
    world.improvise(
        move |deployment, r| if r.model.contains(part) { vec![how.clone()] } else { says(deployment) },
    );
}

#[tokio::test(start_paused = true)]
async fn a_limited_model_does_not_affect_others_of_its_wildcard() {
    for how in [limited(30), fail(FailureKind::Authentication), fail(FailureKind::NotFound)] {
        let (router, world) = router(&many());
        fails_for(&world, "bad", how.clone());
        ask(&router, "openai/bad").await.unwrap_err();
        let before = world.deployments().len();
        for _ in 0..5 {
            assert_eq!(ask(&router, "openai/good").await.unwrap(), "a", "{how:?}");
        }
        assert_eq!(world.deployments().len(), before + 5, "at once");
        assert_eq!(status(&router, "a").state, "ready", "{how:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_of_a_wildcard_has_its_own_cooldown() {
    let (router, world) = router(&many());
    fails_for(&world, "bad", limited(5));
    ask(&router, "openai/bad").await.unwrap_err();
    world.improvise(|deployment, _| says(deployment));
    let requests = world.deployments().len();
    // It waits for its own rest, and no longer.
    let before = tokio::time::Instant::now();
    assert_eq!(ask(&router, "openai/bad").await.unwrap(), "a");
    assert_eq!((world.deployments().len(), before.elapsed().as_secs()), (requests + 1, 5));
}

#[tokio::test(start_paused = true)]
async fn unknown_names_do_not_use_memory() {
    let (router, world) = router(&many());
    fails_for(&world, "bad", fail(FailureKind::Authentication));
    for i in 0..600 {
        let _ = ask(&router, &format!("openai/bad-{i}")).await;
    }
    advance(Duration::from_secs(120)).await;
    assert_eq!(ask(&router, "openai/good").await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_reached_fails_for_all_models() {
    let mut c = config(&[("openai/*", "a"), ("openai/*", "b")]);
    c.router.num_retries = 0;
    c.router.allowed_fails = Some(0);
    let (router, world) = router(&c);
    world.script("a", [vec![fail(FailureKind::Connect)]]);
    for i in 0..20 {
        let _ = ask(&router, &format!("openai/{i}")).await;
    }
    assert_eq!(world.deployments().iter().filter(|w| *w == "a").count(), 1);
}

/// Earlier it was tried without a pause, and always refused, as long as the model was in cooldown.
#[tokio::test(start_paused = true)]
async fn a_deployment_on_trial_is_not_tried_with_a_model_in_cooldown() {
    let mut c = config(&[("openai/*", "a"), ("openai/*", "b")]);
    c.deployments[0].order = Some(1);
    c.deployments[1].order = Some(2);
    c.router.num_retries = 0;
    c.router.allowed_fails = Some(0);
    let (router, world) = router(&c);
    world.improvise(|deployment, r| match (deployment, r.model.as_str()) {
        ("a", "openai/limited") => vec![limited(300)],
        ("a", "openai/away") => vec![fail(FailureKind::Connect)],
        _ => says(deployment),
    });
    assert_eq!(ask(&router, "openai/limited").await.unwrap(), "b");
    assert_eq!(ask(&router, "openai/away").await.unwrap(), "b");
    assert_eq!(status(&router, "a").state, "cooling");
    advance(Duration::from_secs(60)).await;
    assert_eq!(status(&router, "a").state, "trial");
    assert_eq!(ask(&router, "openai/limited").await.unwrap(), "b");
    assert_eq!(ask(&router, "openai/other").await.unwrap(), "a");
    assert_eq!(status(&router, "a").state, "ready");
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_group_are_served_in_order() {
    let mut c = config(&[("m", "a"), ("other", "b")]);
    c.deployments[0].max_parallel_requests = Some(1);
    c.deployments[1].max_parallel_requests = Some(1);
    let (router, world) = router(&c);
    world.script("a", [vec![started("a"), text("a"), Do::Wait(100), finished()]]);
    world.script("b", [vec![started("b"), text("b"), Do::Wait(7), finished()]]);
    let order: Arc<std::sync::Mutex<Vec<usize>>> = Arc::default();
    let mut tasks = Vec::new();
    for i in 0..20 {
        let (here, other, order) = (Arc::clone(&router), Arc::clone(&router), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            assert_eq!(ask(&here, "m").await.unwrap(), "a");
            order.lock().unwrap().push(i);
        }));
        tasks.push(tokio::spawn(async move {
            assert_eq!(ask(&other, "other").await.unwrap(), "b");
        }));
        sleep(Duration::from_millis(1)).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    assert_eq!(world.at_work_most.load(Ordering::SeqCst), 2, "one at each");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_the_queue_does_not_block_it() {
    let mut c = config(&[("m", "a")]);
    c.deployments[0].max_parallel_requests = Some(1);
    let (router, world) = router(&c);
    world.script("a", [vec![started("a"), text("a"), Do::Wait(100), finished()]]);
    let ask = |router: &Arc<_>| {
        let router = Arc::clone(router);
        tokio::spawn(async move { ask(&router, "m").await })
    };
    let first = ask(&router);
    sleep(Duration::from_millis(1)).await;
    let (second, third) = (ask(&router), ask(&router));
    sleep(Duration::from_millis(1)).await;
    second.abort();
    assert_eq!(first.await.unwrap().unwrap(), "a");
    assert_eq!(third.await.unwrap().unwrap(), "a");
    assert_eq!(world.deployments().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn fallbacks_respect_the_allowed_models_of_a_key() {
    let mut c = config(&[("m", "a"), ("secret", "b"), ("open", "c")]);
    c.router.num_retries = 0;
    c.router.fallbacks = vec![fallback("m", &["secret", "open"])];
    c.router.default_fallbacks = vec!["secret".into(), "open".into()];
    let (router, world) = router(&c);
    world.script("a", [vec![fail(FailureKind::Server)]]);
    let call = |name: &str, allowed: &'static [&'static str]| {
        let allowed = octet_router::Allowed(Arc::new(move |name: &str| allowed.contains(&name)));
        octet_router::Call { allowed: Some(allowed), ..call(name) }
    };
    for (name, allowed, expected) in [
        ("m", &["m", "open"][..], Some("c")),
        ("m", &["m"], None),
        ("m", &["m", "secret"], Some("b")),
        ("nobody", &["open"], Some("c")),
        ("nobody", &["m"], None),
    ] {
        let events = all(&mut router.send(call(name, allowed))).await;
        assert_eq!(read(&events).ok().as_deref(), expected, "{name} {allowed:?}");
    }
    assert_eq!(ask(&router, "m").await.unwrap(), "b", "without a key all may answer");
}
