//! Dispatch and failures, with scripted targets and time that passes by
//! itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::*;
use octet_api::ErrorKind;
use octet_config::{Alias, SessionKey, Shadow, Sticky};
use octet_router::{FailureKind, Router, Step};
use tokio::time::{Instant, advance, sleep, timeout};

#[tokio::test(start_paused = true)]
async fn a_temporary_failure_is_retried_after_a_pause() {
    let (router, world) = router(&config(&[("m", "a")]));
    world.script("a", [vec![fail(FailureKind::Server)], vec![fail(FailureKind::Connect)], says("a")]);
    let began = Instant::now();
    assert_eq!(ask(&router, "m").await.unwrap(), "a");
    assert_eq!(world.deployments(), ["a", "a", "a"]);
    // Half a second and a second, of which chance takes its part.
    assert!(began.elapsed() <= Duration::from_millis(1510) && began.elapsed() > Duration::ZERO);
    world.script("a", [vec![fail(FailureKind::Server)]]);
    let error = ask(&router, "m").await.unwrap_err();
    assert_eq!((error.kind, world.deployments().len()), (ErrorKind::Upstream, 6), "{error}");
}

#[tokio::test(start_paused = true)]
async fn another_deployment_is_tried_at_once() {
    let (router, world) = router(&config(&[("m", "a"), ("m", "b")]));
    world.script("a", [vec![fail(FailureKind::Server)]]);
    world.script("b", [vec![fail(FailureKind::Server)], says("b")]);
    let began = Instant::now();
    while world.deployments().len() < 2 {
        let _ = timeout(Duration::from_millis(1), ask(&router, "m")).await;
    }
    assert!(began.elapsed() < Duration::from_millis(5), "the second was tried without a pause");
    let mut both = world.deployments()[..2].to_vec();
    both.sort();
    assert_eq!(both, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_request_are_not_retried() {
    let (router, world) = router(&config(&[("m", "a"), ("m", "b")]));
    for deployment in ["a", "b"] {
        world.script(deployment, [vec![fail(FailureKind::BadRequest)]]);
    }
    let error = ask(&router, "m").await.unwrap_err();
    assert_eq!((error.kind, world.deployments().len()), (ErrorKind::InvalidRequest, 1));
    // A key that is not taken here may be a better one there; the same one is not tried twice.
    for deployment in ["a", "b"] {
        world.script(deployment, [vec![fail(FailureKind::Authentication)]]);
    }
    let error = ask(&router, "m").await.unwrap_err();
    assert_eq!(
        (error.kind, world.deployments().len()),
        (ErrorKind::Upstream, 3),
        "our key is not the client's"
    );
}

#[tokio::test(start_paused = true)]
async fn without_memory_for_one_deployment_the_others_are_tried() {
    let mut c = config(&[("m", "a"), ("m", "b")]);
    for retries in [0, 2] {
        c.router.num_retries = retries;
        let (router, world) = router(&c);
        world.script("a", [vec![fail(FailureKind::Memory)]]);
        for _ in 0..20 {
            assert_eq!(ask(&router, "m").await.unwrap(), "b");
        }
        assert!(world.deployments().contains(&"a".to_string()));
        world.script("b", [vec![fail(FailureKind::Memory)]]);
        world.requests.lock().unwrap().clear();
        assert_eq!(ask(&router, "m").await.unwrap_err().kind, ErrorKind::Overloaded);
        assert_eq!(world.deployments().len(), 2, "none is tried twice");
    }
}

#[tokio::test(start_paused = true)]
async fn retries_depend_on_the_kind_of_error() {
    let mut c = config(&[("m", "a")]);
    c.router.num_retries = 5;
    c.router.retry_policy.timeout = Some(0);
    c.router.group_retry_policy =
        vec![("m".into(), octet_config::ErrorCounts { bad_request: Some(1), ..Default::default() })];
    let (router, world) = router(&c);
    for (kind, attempts) in
        [(FailureKind::Timeout, 1), (FailureKind::BadRequest, 2), (FailureKind::Server, 6)]
    {
        world.requests.lock().unwrap().clear();
        world.script("a", [vec![fail(kind)]]);
        ask(&router, "m").await.unwrap_err();
        assert_eq!(world.deployments().len(), attempts, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn orders_come_before_fallbacks() {
    let mut c = config(&[("m", "cheap"), ("m", "dear"), ("other", "cloud")]);
    c.deployments[0].order = Some(1);
    c.deployments[1].order = Some(2);
    c.router.num_retries = 1;
    c.router.fallbacks = vec![fallback("m", &["other"])];
    let (router, world) = router(&c);
    assert_eq!(ask(&router, "m").await.unwrap(), "cheap");
    world.requests.lock().unwrap().clear();
    for deployment in ["cheap", "dear"] {
        world.script(deployment, [vec![fail(FailureKind::Server)]]);
    }
    let mut reply = router.send(call("m"));
    assert_eq!(read(&all(&mut reply).await).unwrap(), "cloud");
    assert_eq!(world.deployments(), ["cheap", "cheap", "dear", "dear", "cloud"]);
    let route = reply.route();
    assert_eq!(
        route.header(),
        "m>m:cheap!server>m:cheap!server>m:dear!server>m:dear!server>fallback=other>other:cloud"
    );
    let answered = route.answered.as_ref().unwrap();
    assert_eq!(
        (&*answered.group, &*answered.deployment, &*answered.model),
        ("other", "cloud", "cloud-model")
    );
    assert!(route.fell_back());
    assert_eq!(route.failures(), 4);
}

#[tokio::test(start_paused = true)]
async fn fallbacks_depend_on_the_kind_of_error() {
    let groups = [("m", "a"), ("long", "long"), ("open", "open"), ("any", "any"), ("last", "last")];
    let mut c = config(&groups);
    c.router.num_retries = 0;
    c.router.context_window_fallbacks = vec![fallback("m", &["long"])];
    c.router.content_policy_fallbacks = vec![fallback("m", &["open"])];
    c.router.fallbacks = vec![fallback("*", &["any"])];
    c.router.default_fallbacks = vec!["last".into()];
    let (router, world) = router(&c);
    for (kind, deployment) in [
        (FailureKind::ContextWindow, "long"),
        (FailureKind::ContentPolicy, "open"),
        (FailureKind::Timeout, "any"),
        (FailureKind::BadRequest, "any"),
    ] {
        world.script("a", [vec![fail(kind)]]);
        assert_eq!(ask(&router, "m").await.unwrap(), deployment, "{kind:?}");
    }
    // Fallbacks have fallbacks too, but no group is tried twice; the client gets the first failure.
    for deployment in ["a", "any", "last"] {
        world.script(deployment, [vec![fail(FailureKind::Connect)]]);
    }
    world.script("a", [vec![fail(FailureKind::BadRequest)]]);
    world.requests.lock().unwrap().clear();
    let error = ask(&router, "m").await.unwrap_err();
    assert_eq!(
        (error.kind, world.deployments()),
        (ErrorKind::InvalidRequest, vec!["a".into(), "any".to_string()])
    );
}

#[tokio::test(start_paused = true)]
async fn unknown_names_have_the_default_fallbacks_or_an_error_that_says_what_there_is() {
    let mut c = config(&[("m", "a"), ("n", "b")]);
    let (router, _) = router(&c);
    let error = ask(&router, "x").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert_eq!(error.code.as_deref(), Some("model_not_found"));
    assert!(error.message.ends_with("models are: m, n"), "{error}");
    c.router.default_fallbacks = vec!["n".into()];
    let (router, _) = crate::common::router(&c);
    let mut reply = router.send(call("x"));
    assert_eq!(read(&all(&mut reply).await).unwrap(), "b");
    assert_eq!(reply.route().header(), "x>fallback=n>n:b");
}

#[tokio::test(start_paused = true)]
async fn names_are_groups_aliases_and_wildcards() {
    let mut c = config(&[("m", "a"), ("vendor/*", "v"), ("vendor/big-*", "big"), ("*", "rest")]);
    for (d, model) in c.deployments.iter_mut().zip(["fixed", "*", "huge-*", "*"]) {
        let octet_config::Target::Remote(r) = &mut d.target else { unreachable!() };
        r.model = model.into();
    }
    c.router.aliases = vec![
        Alias { name: "gpt-4o".into(), group: "m".into(), hidden: true },
        Alias { name: "short".into(), group: "vendor/x".into(), hidden: false },
    ];
    let (router, world) = router(&c);
    for (name, deployment, model) in [
        ("m", "a", "fixed"),
        ("gpt-4o", "a", "fixed"),
        ("short", "v", "x"),
        ("vendor/y/z", "v", "y/z"),
        ("vendor/big-1", "big", "huge-1"),
        ("else", "rest", "else"),
    ] {
        let mut reply = router.send(call(name));
        read(&all(&mut reply).await).unwrap();
        let last = world.last();
        assert_eq!((&*last.deployment, &*last.model), (deployment, model), "{name}");
        assert_eq!(reply.route().answered.unwrap().model, model);
        assert_eq!(last.request.model, name, "the client's name stays what it was");
    }
    assert_eq!(router.table().names(), ["m", "short"]);
}

#[test]
fn undefined_names_in_a_table_are_errors() {
    let refused = |change: &dyn Fn(&mut octet_config::Config)| {
        let mut c = config(&[("m", "a")]);
        change(&mut c);
        let world = Arc::default();
        Router::new(&c, 1, |d| mock(&world, d)).map(drop).unwrap_err().to_string()
    };
    let alias = |name: &str, group: &str| Alias { name: name.into(), group: group.into(), hidden: false };
    assert!(refused(&|c| c.router.aliases = vec![alias("x", "y")]).contains("'x' refers to 'y'"));
    assert!(refused(&|c| c.router.aliases = vec![alias("x", "y"), alias("y", "x")]).contains("refers to"));
    assert!(refused(&|c| c.router.fallbacks = vec![fallback("m", &["n"])]).contains("'m' falls back to 'n'"));
    assert!(refused(&|c| c.router.default_fallbacks = vec!["n".into()]).contains("'n'"));
    assert!(refused(&|c| c.deployments.push(deployment("n", "a"))).contains("two deployments"));
    let shadow = Some(Shadow { group: "n".into(), share: 1.0 });
    assert!(refused(&|c| c.deployments[0].shadow = shadow.clone()).contains("silent model"));
}

#[tokio::test(start_paused = true)]
async fn left_out_entries_have_a_reason() {
    let mut c = config(&[("other", "b")]);
    c.skipped = vec![octet_config::Skipped {
        group: name("m"),
        reason: "the environment variable GROQ_API_KEY is not set".into(),
        span: span(),
    }];
    let (router, _) = router(&c);
    let error = ask(&router, "m").await.unwrap_err();
    assert!(error.message.contains("GROQ_API_KEY is not set"), "{error}");
    c.router.fallbacks = vec![fallback("m", &["other"])];
    let (router, _) = crate::common::router(&c);
    assert_eq!(ask(&router, "m").await.unwrap(), "b");
}

#[tokio::test(start_paused = true)]
async fn all_that_is_tried_has_one_deadline() {
    let mut c = config(&[("m", "a"), ("other", "b")]);
    c.router.timeout = Duration::from_secs(20);
    c.router.fallbacks = vec![fallback("m", &["other"])];
    c.deployments[0].timeout = Some(Duration::from_secs(8));
    let (router, world) = router(&c);
    for deployment in ["a", "b"] {
        world.script(deployment, [vec![Do::Hang]]);
    }
    let began = Instant::now();
    let error = ask(&router, "m").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout);
    assert!(began.elapsed() <= Duration::from_millis(20_010), "{:?}", began.elapsed());
    assert!(began.elapsed() > Duration::from_secs(15));
    assert_eq!(world.at_work.load(Ordering::SeqCst), 0);
    let mut less = call("m");
    less.timeout = Some(Duration::from_secs(3));
    let began = Instant::now();
    let mut reply = router.send(less);
    assert_eq!(reply.decide().await.unwrap_err().kind, ErrorKind::Timeout);
    assert_eq!(began.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_providers_retry_after_is_respected() {
    let (router, world) = router(&config(&[("m", "a")]));
    world.script("a", [vec![limited(7)], says("a")]);
    let began = Instant::now();
    assert_eq!(ask(&router, "m").await.unwrap(), "a");
    assert_eq!(began.elapsed().as_secs(), 7);
    // Too long to wait for: the client gets an error.
    world.script("a", [vec![limited(400)]]);
    let began = Instant::now();
    let error = ask(&router, "m").await.unwrap_err();
    assert_eq!((error.kind, error.retry_after_s), (ErrorKind::RateLimit, Some(400)));
    assert_eq!(began.elapsed(), Duration::ZERO);
    // Also later requests.
    let error = ask(&router, "m").await.unwrap_err();
    assert_eq!((error.kind, error.retry_after_s), (ErrorKind::RateLimit, Some(400)));
    assert_eq!(world.deployments().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_fallback_is_used_instead_of_waiting() {
    let mut c = config(&[("m", "a"), ("other", "b")]);
    c.router.fallbacks = vec![fallback("m", &["other"])];
    let (router, world) = router(&c);
    world.script("a", [vec![limited(7)], says("a")]);
    let began = Instant::now();
    assert_eq!(ask(&router, "m").await.unwrap(), "b");
    assert_eq!(ask(&router, "m").await.unwrap(), "b", "it is left alone");
    assert_eq!(began.elapsed(), Duration::ZERO);
    advance(Duration::from_secs(8)).await;
    assert_eq!(ask(&router, "m").await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_permits_and_limits_are_never_exceeded() {
    let mut c = config(&[("m", "a"), ("m", "b")]);
    c.deployments.iter_mut().for_each(|d| d.max_parallel_requests = Some(2));
    let (router, world) = router(&c);
    for deployment in ["a", "b"] {
        let mut slow = says(deployment);
        slow.insert(1, Do::Wait(100));
        world.script(deployment, [slow]);
    }
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let router = Arc::clone(&router);
            tokio::spawn(async move { ask(&router, "m").await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(world.at_work_most.load(Ordering::SeqCst), 4);
    assert_eq!(world.deployments().len(), 20);
    assert!(router.status().iter().all(|s| s.in_flight == 0));
}

#[tokio::test(start_paused = true)]
async fn requests_a_minute_are_limited() {
    let mut c = config(&[("m", "a")]);
    c.deployments[0].rpm = Some(3);
    let (router, _) = router(&c);
    for _ in 0..3 {
        ask(&router, "m").await.unwrap();
    }
    let error = ask(&router, "m").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::RateLimit);
    assert!(error.retry_after_s.is_some_and(|s| (59..=61).contains(&s)), "{error:?}");
    assert!(error.message.contains("3 requests a minute"), "{error}");
    advance(Duration::from_secs(55)).await;
    let began = Instant::now();
    ask(&router, "m").await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(7), "a few seconds are waited for");
}

#[tokio::test(start_paused = true)]
async fn sessions_keep_their_deployment() {
    let mut c = config(&[("m", "a"), ("m", "b"), ("m", "c")]);
    c.router.sticky = Some(Sticky {
        by: vec![SessionKey::Header("x-session-id".into()), SessionKey::User],
        ttl: Duration::from_secs(3600),
    });
    let (router, world) = router(&c);
    for (header, user) in [(Some("one"), None), (None, Some("two")), (Some("three"), Some("two"))] {
        world.requests.lock().unwrap().clear();
        for _ in 0..10 {
            let mut request = request("m", true);
            request.user = user.map(String::from);
            let mut call = octet_router::Call::new(request);
            call.headers.extend(header.map(|h| ("x-session-id".to_string(), h.to_string())));
            read(&all(&mut router.send(call)).await).unwrap();
        }
        let first = world.deployments()[0].clone();
        assert!(world.deployments().iter().all(|w| *w == first));
    }
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_is_too_long_uses_a_larger_context() {
    let mut c = config(&[("m", "small"), ("tiny", "tiny"), ("large", "large")]);
    for (d, window) in c.deployments.iter_mut().zip([1000, 500, 100_000]) {
        d.info.max_input_tokens = Some(window);
    }
    c.router.enable_pre_call_checks = true;
    c.router.context_window_fallbacks = vec![fallback("m", &["tiny", "large"])];
    let (router, world) = router(&c);
    // Counted before anything is sent.
    for deployment in ["small", "tiny", "large"] {
        world.nature(deployment, Nature { tokens: Some(5000), ..Nature::default() });
    }
    assert_eq!(ask(&router, "m").await.unwrap(), "large");
    assert_eq!(world.deployments(), ["large"]);
    // No target counts tokens, and the provider reports the overflow: only larger windows are tried.
    for deployment in ["small", "tiny", "large"] {
        world.nature(deployment, Nature::default());
    }
    world.script("small", [vec![fail(FailureKind::ContextWindow)]]);
    world.requests.lock().unwrap().clear();
    assert_eq!(ask(&router, "m").await.unwrap(), "large");
    assert_eq!(world.deployments(), ["small", "large"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_configuration_is_for_new_requests() {
    let old = config(&[("m", "a"), ("m", "gone")]);
    let (router, world) = router(&old);
    world.script("gone", [vec![limited(300)]]);
    world.script("a", [vec![started("a"), text("slow "), Do::Wait(5000), text("answer"), finished()]]);
    let mut running = router.send(call("m"));
    running.decide().await.unwrap();
    let new = config(&[("m", "b"), ("n", "a")]);
    router.reload(&new, |d| mock(&world, d)).unwrap();
    assert_eq!(ask(&router, "m").await.unwrap(), "b");
    assert_eq!(status(&router, "a").in_flight, 1, "what is known of a deployment stays known");
    assert_eq!(read(&all(&mut running).await).unwrap(), "slow answer");
    assert_eq!(status(&router, "a").in_flight, 0);
    // What cannot be is refused, and the old one stays.
    let mut bad = config(&[("x", "x")]);
    bad.router.fallbacks = vec![fallback("x", &["y"])];
    router.reload(&bad, |d| mock(&world, d)).unwrap_err();
    assert_eq!(ask(&router, "m").await.unwrap(), "b");
}

#[tokio::test(start_paused = true)]
async fn a_shadow_copy_never_delays_requests() {
    let mut c = config(&[("m", "a"), ("quiet", "q")]);
    c.deployments[0].shadow = Some(Shadow { group: "quiet".into(), share: 1.0 });
    let (router, world) = router(&c);
    let began = Instant::now();
    assert_eq!(ask(&router, "m").await.unwrap(), "a");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(world.deployments(), ["a", "q"]);
    assert_eq!(router.shadows().counts().answered, 1);
    // It hangs without an effect. There are never more than 16; others are dropped.
    world.script("q", [vec![Do::Hang]]);
    for _ in 0..40 {
        assert_eq!(ask(&router, "m").await.unwrap(), "a");
    }
    sleep(Duration::from_millis(1)).await;
    assert!(began.elapsed() <= Duration::from_millis(10));
    let counts = router.shadows().counts();
    assert_eq!((counts.dropped, world.at_work.load(Ordering::SeqCst)), (24, 16));
    // In the end they are given up, one try each.
    sleep(Duration::from_secs(601)).await;
    assert_eq!(router.shadows().counts().failed, 16);
    // One that others wait for gets none.
    world.nature("q", Nature { load: Some(1), ..Nature::default() });
    let requests = world.deployments().len();
    assert_eq!(ask(&router, "m").await.unwrap(), "a");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(world.deployments().len(), requests + 1);
    assert_eq!(router.shadows().counts().dropped, 25);
}

#[tokio::test(start_paused = true)]
async fn a_route_is_explained_without_a_request() {
    let mut c = config(&[("m", "a"), ("other", "b")]);
    c.router.fallbacks = vec![fallback("m", &["other"])];
    let (router, world) = router(&c);
    world.script("a", [vec![limited(60)]]);
    ask(&router, "m").await.unwrap();
    world.requests.lock().unwrap().clear();
    let route = router.explain(call("m")).await;
    assert!(world.deployments().is_empty());
    assert!(
        route.steps.iter().any(|s| matches!(s, Step::PassedOver { deployment, .. } if deployment == "a"))
    );
    assert!(matches!(route.steps.last(), Some(Step::Chose { deployment, .. }) if deployment == "b"));
    let json = serde_json::to_value(&route).unwrap();
    assert_eq!(json["steps"][0]["step"], "resolved");
}
