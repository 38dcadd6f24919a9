//! Options of a request: a shorter time limit, fewer or more attempts, other fallbacks.

use std::time::Duration;

use crate::common::*;
use octet_api::ErrorKind;
use octet_router::{FailureKind, RequestOptions};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn the_shorter_time_limit_applies() {
    for (own, of_all, seconds) in [(Some(2), 600, 2), (Some(60), 3, 3), (None, 5, 5)] {
        let mut c = config(&[("m", "a")]);
        c.router.timeout = Duration::from_secs(of_all);
        let (router, world) = router(&c);
        world.script("a", [vec![Do::Wait(3_600_000), started("a")]]);
        let mut requested = call("m");
        requested.timeout = own.map(Duration::from_secs);
        let began = Instant::now();
        let error = read(&all(&mut router.send(requested)).await).unwrap_err();
        assert_eq!(
            (error.kind, began.elapsed().as_secs()),
            (ErrorKind::Timeout, seconds),
            "{own:?} of {of_all}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_and_fallbacks_share_the_requested_time_limit() {
    let mut c = config(&[("m", "a"), ("n", "b")]);
    c.router.num_retries = 100;
    c.router.fallbacks = vec![fallback("m", &["n"])];
    let (router, world) = router(&c);
    world.script("a", [vec![Do::Wait(900), fail(FailureKind::Server)]]);
    world.script("b", [vec![Do::Wait(900), fail(FailureKind::Server)]]);
    let mut requested = call("m");
    requested.timeout = Some(Duration::from_secs(4));
    let began = Instant::now();
    read(&all(&mut router.send(requested)).await).unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 4);
    assert!((2..=4).contains(&world.deployments().len()), "{:?}", world.deployments());
}

/// A continuation has the rest of the request's time limit, not all of it again.
#[tokio::test(start_paused = true)]
async fn a_continuation_shares_the_time_limit() {
    let mut c = config(&[("m", "a"), ("m", "b"), ("m", "c")]);
    for (d, order) in c.deployments.iter_mut().zip(1..) {
        d.order = Some(order);
    }
    c.router.num_retries = 0;
    let (router, world) = router(&c);
    for deployment in ["b", "c"] {
        world.nature(deployment, Nature { continues: true, ..Nature::default() });
    }
    world.script("a", [vec![started("a"), text("One "), Do::Wait(4000), fail(FailureKind::Protocol)]]);
    world.script(
        "b",
        [vec![Do::Wait(3000), started("b"), text("two "), Do::Wait(1000), fail(FailureKind::Protocol)]],
    );
    world.script("c", [vec![Do::Wait(3_600_000), started("c")]]);
    let mut requested = call("m");
    requested.timeout = Some(Duration::from_secs(10));
    let began = Instant::now();
    let events = all(&mut router.send(requested)).await;
    assert_eq!((said(&events).as_str(), read(&events).is_err()), ("One two ", true));
    assert_eq!(began.elapsed().as_secs(), 10);
    assert_eq!(world.deployments(), ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn requested_attempts_and_fallbacks_take_precedence() {
    let mut c = config(&[("m", "a"), ("n", "b"), ("o", "c")]);
    c.router.num_retries = 2;
    c.router.fallbacks = vec![fallback("m", &["n"])];
    c.router.disable_cooldowns = true;
    for (options, deployments) in [
        (RequestOptions::default(), &["a", "a", "a", "b"][..]),
        (RequestOptions { retries: Some(0), fallbacks: None }, &["a", "b"]),
        (RequestOptions { retries: Some(1), fallbacks: Some(vec!["o".into()]) }, &["a", "a", "c"]),
        (RequestOptions { retries: Some(0), fallbacks: Some(Vec::new()) }, &["a"]),
    ] {
        let (router, world) = router(&c);
        world.script("a", [vec![fail(FailureKind::Server)]]);
        let mut requested = call("m");
        requested.options = options.clone();
        let answer = read(&all(&mut router.send(requested)).await);
        assert_eq!(world.deployments(), deployments, "{options:?}");
        assert_eq!(answer.is_ok(), deployments.len() > 1);
    }
}
