//! What a client sees when an answer goes wrong: each event once, nothing lost, nothing doubled, never silence.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::*;
use octet_api::ErrorKind;
use octet_api::core::{Event, Usage};
use octet_config::Config;
use octet_router::{Failure, FailureKind, Piece, Spent, Step};
use proptest::prelude::*;
use tokio::time::{Instant, timeout};

/// A local deployment that can continue an answer, after a remote one.
fn pair() -> Config {
    let mut c = config(&[("m", "far"), ("m", "near")]);
    c.deployments[0].order = Some(1);
    c.deployments[1].order = Some(2);
    c.router.num_retries = 0;
    c
}

#[tokio::test(start_paused = true)]
async fn failures_before_the_first_content_are_hidden() {
    for kind in [FailureKind::Connect, FailureKind::Server, FailureKind::Protocol, FailureKind::Timeout] {
        let (router, world) = router(&pair());
        // It had even begun.
        world.script("far", [vec![started("far"), usage(5, 0), fail(kind)]]);
        let mut reply = router.send(call("m"));
        let events = all(&mut reply).await;
        assert_eq!(read(&events).unwrap(), "near");
        let counted = Usage { prompt_tokens: 5, ..Usage::default() };
        let spent = Spent { deployment: "far".into(), usage: Some(counted), pieces: 0 };
        assert_eq!(reply.route().spent, [spent], "but the bill does");
        assert!(matches!(&events[0], Event::Started { id, model, .. } if id == "id-near" && model == "m"));
        let counted: Vec<_> = events.iter().filter(|e| matches!(e, Event::Usage(_))).collect();
        assert_eq!(counted.len(), 1, "the first one's count is not reported");
    }
}

#[tokio::test(start_paused = true)]
async fn silence_before_the_first_event_is_a_failure_too() {
    let mut c = pair();
    c.deployments[0].stream_timeout = Some(Duration::from_secs(3));
    let (router, world) = router(&c);
    world.script("far", [vec![started("far"), Do::Hang]]);
    let began = Instant::now();
    assert_eq!(ask(&router, "m").await.unwrap(), "near");
    assert_eq!(began.elapsed().as_secs(), 3);
    assert_eq!(world.cancelled.load(Ordering::SeqCst), 1, "the first is not left running");
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_answer_is_continued_if_possible() {
    let (router, world) = router(&pair());
    world.nature("near", Nature { continues: true, ..Nature::default() });
    for broken in
        [fail(FailureKind::Protocol), Do::End, Do::Say(Event::Error(octet_api::ApiError::upstream("no")))]
    {
        world.script("far", [vec![started("far"), usage(20, 0), text("The quick "), text("brown "), broken]]);
        world.script("near", [vec![started("near"), text("fox."), finished(), usage(23, 2)]]);
        let mut reply = router.send(call("m"));
        let events = all(&mut reply).await;
        assert_eq!(read(&events).unwrap(), "The quick brown fox.");
        let last = world.last();
        assert_eq!(prefix_of(&last.request).as_deref(), Some("The quick brown "));
        let usage = events.iter().rev().find_map(|e| if let Event::Usage(u) = e { Some(*u) } else { None });
        let expected = Usage { prompt_tokens: 21, completion_tokens: 4, ..Usage::default() };
        assert_eq!(usage, Some(expected), "all tokens, once");
        let route = reply.route();
        assert!(route.steps.contains(&Step::Continued { after_bytes: 16 }), "{route:?}");
        assert_eq!(route.answered.unwrap().deployment, "near");
    }
    assert!(router.status().iter().all(|s| s.in_flight == 0));
}

#[tokio::test(start_paused = true)]
async fn without_a_continuation_the_stream_ends_with_an_error() {
    let (router, world) = router(&pair());
    world.script("far", [vec![started("far"), text("The quick "), fail(FailureKind::Protocol)]]);
    let events = all(&mut router.send(call("m"))).await;
    assert_eq!(said(&events), "The quick ");
    let error = read(&events).unwrap_err();
    assert_eq!((error.kind, &*error.message), (ErrorKind::Upstream, "it is protocol"));
    assert_eq!(world.deployments(), ["far"], "no other deployment was tried");
    // Nor where it could, if the answer is more than text.
    world.nature("near", Nature { continues: true, ..Nature::default() });
    let calls = Event::ToolCallStart { choice: 0, index: 0, id: "c".into(), name: "f".into() };
    world.script("far", [vec![started("far"), text("Well."), Do::Say(calls), Do::End]]);
    let events = all(&mut router.send(call("m"))).await;
    assert_eq!(read(&events).unwrap_err().kind, ErrorKind::Upstream);
    assert_eq!(world.deployments().last().unwrap(), "far");
}

#[tokio::test(start_paused = true)]
async fn silence_in_the_middle_ends_with_an_error() {
    let (router, world) = router(&pair());
    world.script("far", [vec![started("far"), text("The quick "), Do::Hang]]);
    let mut reply = router.send(call("m"));
    let mut events = Vec::new();
    let began = Instant::now();
    // A server that sends keep-alives gives up and retries; nothing is lost.
    loop {
        match timeout(Duration::from_secs(10), reply.next()).await {
            Err(_) => continue,
            Ok(None) => break,
            Ok(Some(Piece::Event(event))) => events.push(event),
            Ok(Some(piece)) => panic!("{piece:?}"),
        }
    }
    assert_eq!(read(&events).unwrap_err().kind, ErrorKind::Timeout);
    assert_eq!(began.elapsed().as_secs(), 300);
    assert_eq!(world.at_work.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn unstreamed_answers_are_requested_again() {
    let (router, world) = router(&pair());
    world.script("far", [vec![started("far"), text("The quick "), Do::End]]);
    let mut reply = router.send(octet_router::Call::new(request("m", false)));
    reply.decide().await.unwrap();
    assert_eq!(reply.route().answered.unwrap().deployment, "near");
    assert_eq!(read(&all(&mut reply).await).unwrap(), "near");
    assert_eq!(prefix_of(&world.last().request), None, "from the beginning");
}

#[tokio::test(start_paused = true)]
async fn failures_after_the_end_are_ignored() {
    let (router, world) = router(&pair());
    world.script("far", [vec![started("far"), text("Done."), finished(), fail(FailureKind::Protocol)]]);
    assert_eq!(ask(&router, "m").await.unwrap(), "Done.");
    assert_eq!(world.deployments(), ["far"]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_releases_everything() {
    let mut c = pair();
    c.deployments[0].shadow = Some(octet_config::Shadow { group: "quiet".into(), share: 1.0 });
    c.deployments.push(deployment("quiet", "q"));
    let (router, world) = router(&c);
    let scripts = [
        vec![Do::Wait(5000), started("far")],
        vec![started("far"), Do::Hang],
        vec![started("far"), text("The "), Do::Hang],
        vec![limited(30)],
    ];
    for script in scripts {
        world.script("far", [script]);
        for deployment in ["near", "q"] {
            world.script(deployment, [vec![Do::Hang]]);
        }
        let mut reply = router.send(call("m"));
        let gone = timeout(Duration::from_secs(1), async { while reply.next().await.is_some() {} }).await;
        assert!(gone.is_err());
        drop(reply);
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(world.at_work.load(Ordering::SeqCst), 0);
        assert!(router.status().iter().all(|s| s.in_flight == 0));
    }
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_reply_costs_nothing() {
    let (router, world) = router(&pair());
    drop(router.send(call("m")));
    assert!(world.deployments().is_empty());
}

/// The whole answer of the targets below.
const WORDS: [&str; 8] = ["The ", "quick ", "brown ", "fox ", "jumps ", "over ", "the ", "dog."];

/// What happens to a target after a number of words.
#[derive(Debug, Clone)]
struct Fate {
    words: usize,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Complete,
    Fails(FailureKind),
    Ends,
    Hangs,
    Refuses(FailureKind),
}

fn fate() -> impl Strategy<Value = Fate> {
    let kind = || {
        prop::sample::select(vec![
            FailureKind::Connect,
            FailureKind::Timeout,
            FailureKind::RateLimited,
            FailureKind::Server,
            FailureKind::Protocol,
            FailureKind::Authentication,
            FailureKind::ContextWindow,
        ])
    };
    let what = prop_oneof![
        3 => Just(What::Complete),
        2 => kind().prop_map(What::Fails),
        1 => Just(What::Ends),
        1 => Just(What::Hangs),
        2 => kind().prop_map(What::Refuses),
    ];
    (0..WORDS.len(), what).prop_map(|(words, what)| Fate { words, what })
}

fn script(deployment: &str, from: usize, fate: &Fate) -> Script {
    let mut out = vec![started(deployment)];
    let until =
        if matches!(fate.what, What::Complete) { WORDS.len() } else { (from + fate.words).min(WORDS.len()) };
    for (i, word) in WORDS[from..until].iter().enumerate() {
        out.push(text(word));
        if i % 3 == 1 {
            out.push(Do::Wait(10));
        }
    }
    match &fate.what {
        What::Complete => out.extend([finished(), usage(10, 8)]),
        What::Fails(kind) => out.push(fail(*kind)),
        What::Ends => out.push(Do::End),
        What::Hangs => out.push(Do::Hang),
        What::Refuses(kind) => out = vec![fail(*kind)],
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever happens: the client gets the complete answer once, or its beginning and an error.
    #[test]
    fn each_event_comes_once(
        fates in prop::collection::vec(fate(), 1..8),
        continues in any::<[bool; 3]>(),
        stream in any::<bool>(),
        retries in 0u32..3,
        seed in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut c = config(&[("m", "a"), ("m", "b"), ("other", "c")]);
            c.router.num_retries = retries;
            c.router.fallbacks = vec![fallback("m", &["other"])];
            c.router.timeout = Duration::from_secs(60);
            let world = Arc::new(World::default());
            let router = Arc::new(octet_router::Router::new(&c, seed, |d| mock(&world, d)).unwrap());
            for (deployment, continues) in ["a", "b", "c"].into_iter().zip(continues) {
                world.nature(deployment, Nature { continues, ..Nature::default() });
            }
            let fates = Arc::new(std::sync::Mutex::new(fates.into_iter()));
            world.improvise(move |deployment, request| {
                let said = prefix_of(request).unwrap_or_default();
                let mut from = 0;
                let mut text = String::new();
                while text != said {
                    text.push_str(WORDS[from]);
                    from += 1;
                }
                // When all scripted failures are used up, all targets work.
                let fate = fates.lock().unwrap().next().unwrap_or(Fate { words: 0, what: What::Complete });
                script(deployment, from, &fate)
            });
            for _ in 0..3 {
                let mut reply = router.send(octet_router::Call::new(request("m", stream)));
                let events = all(&mut reply).await;
                let whole = WORDS.concat();
                match read(&events) {
                    Ok(text) => assert_eq!(text, whole),
                    Err(_) => {
                        let text = said(&events);
                        assert!(whole.starts_with(&text), "{text}");
                        assert!(stream || text.is_empty(), "no partial answer without streaming");
                    }
                }
                assert!(events.iter().filter(|e| matches!(e, Event::Started { .. })).count() <= 1);
                drop(reply);
                assert_eq!(world.at_work.load(Ordering::SeqCst), 0);
                assert!(router.status().iter().all(|s| s.in_flight == 0));
            }
        });
    }
}

#[test]
fn configuration_errors_are_not_reported_as_the_clients() {
    let f = Failure::new(FailureKind::Authentication, "the key is not known");
    assert_eq!(f.to_error().kind, ErrorKind::Upstream);
}

fn as_it_came(stream: bool) -> octet_router::Call {
    let original =
        octet_router::Original::new(octet_router::Dialect::OpenAiChat, bytes::Bytes::from_static(b"{}"));
    octet_router::Call { original: Some(Arc::new(original)), ..octet_router::Call::new(request("m", stream)) }
}

async fn pieces(reply: &mut octet_router::Reply<Mock>) -> (String, Option<octet_api::ApiError>) {
    let (mut text, mut error) = (String::new(), None);
    while let Some(piece) = reply.next().await {
        assert!(error.is_none(), "nothing follows an error");
        match piece {
            Piece::Raw(bytes) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
            Piece::Event(Event::Error(e)) => error = Some(e),
            Piece::Event(event) => panic!("{event:?}"),
        }
    }
    (text, error)
}

#[tokio::test(start_paused = true)]
async fn an_event_without_content_does_not_start_the_answer() {
    let role = "data: {\"choices\": [{\"index\": 0, \"delta\": {\"role\": \"assistant\", \"content\": \"\"}, \"finish_reason\": null}]}\n\n";
    let message = "event: message_start\ndata: {\"type\": \"message_start\"}\n\n";
    for begin in [": a comment\n\n", role, message] {
        let (router, world) = router(&pair());
        world.script("near", [vec![Do::Raw("near")]]);
        world.script("far", [vec![Do::Raw(begin), fail(FailureKind::Connect)]]);
        assert_eq!(pieces(&mut router.send(as_it_came(true))).await, ("near".into(), None));
        world.script("far", [vec![Do::Raw(begin), Do::Raw("data: 1\n\n")]]);
        let whole = format!("{begin}data: 1\n\n");
        assert_eq!(pieces(&mut router.send(as_it_came(true))).await, (whole, None), "nothing is lost");
    }
}

#[tokio::test(start_paused = true)]
async fn keep_alives_do_not_start_the_answer() {
    let mut c = pair();
    c.deployments[0].stream_timeout = Some(Duration::from_secs(3));
    let (router, world) = router(&c);
    let beats = (0..600).flat_map(|_| [Do::Raw(": ping\n\n"), Do::Wait(500)]);
    world.script("far", [beats.collect()]);
    world.script("near", [vec![Do::Raw("near")]]);
    let began = Instant::now();
    assert_eq!(pieces(&mut router.send(as_it_came(true))).await, ("near".into(), None));
    assert_eq!(began.elapsed().as_secs(), 3);
    assert_eq!(world.cancelled.load(Ordering::SeqCst), 1, "the first is not left running");
}

#[tokio::test(start_paused = true)]
async fn an_unstreamed_answer_that_fails_midway_is_billed() {
    let (router, world) = router(&pair());
    world.script("far", [vec![started("far"), text("The quick "), text("brown "), Do::End]]);
    let mut reply = router.send(octet_router::Call::new(request("m", false)));
    assert_eq!(read(&all(&mut reply).await).unwrap(), "near");
    assert_eq!(reply.route().spent, [Spent { deployment: "far".into(), usage: None, pieces: 2 }]);
    // Who says no has taken nothing.
    world.script("far", [vec![fail(FailureKind::RateLimited)]]);
    let mut reply = router.send(octet_router::Call::new(request("m", false)));
    assert_eq!(read(&all(&mut reply).await).unwrap(), "near");
    assert!(reply.route().spent.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_forwarded_stream_is_complete_or_ends_with_an_error() {
    let (router, world) = router(&pair());
    world.nature("near", Nature { continues: true, ..Nature::default() });
    world.script("near", [vec![Do::Raw("near")]]);
    // Before the first bytes: as if nothing had been.
    world.script("far", [vec![Do::Wait(5), fail(FailureKind::Connect)]]);
    assert_eq!(pieces(&mut router.send(as_it_came(true))).await, ("near".into(), None));
    assert!(world.last().original, "the one that stands in may hand it on, too");
    // After them the text of the answer is unknown.
    world.script("far", [vec![Do::Raw("data: 1\n\n"), fail(FailureKind::Protocol)]]);
    let (text, error) = pieces(&mut router.send(as_it_came(true))).await;
    assert_eq!((&*text, error.unwrap().kind), ("data: 1\n\n", ErrorKind::Upstream));
    assert_eq!(world.deployments().last().unwrap(), "far");
    // An unstreamed answer is requested again.
    world.script("far", [vec![Do::Raw("{\"half"), fail(FailureKind::Protocol)]]);
    assert_eq!(pieces(&mut router.send(as_it_came(false))).await, ("near".into(), None));
    world.script("far", [vec![Do::Raw("{\"a\""), Do::Raw(": 1}")]]);
    assert_eq!(pieces(&mut router.send(as_it_came(false))).await, ("{\"a\": 1}".into(), None));
    assert!(router.status().iter().all(|s| s.in_flight == 0));
}

#[tokio::test(start_paused = true)]
async fn changed_requests_are_not_forwarded_unchanged() {
    let mut c = pair();
    let watched = octet_config::Confidence { mean_logprob: Some(-1.0), ..octet_config::Confidence::new(4) };
    c.cascades = vec![octet_config::Cascade {
        name: "auto".into(),
        fast: "m".into(),
        strong: "m".into(),
        rules: Vec::new(),
        prerouter: None,
        confidence: Some(watched),
        span: span(),
    }];
    let (router, world) = router(&c);
    let mut call = as_it_came(true);
    call.request = Arc::new(request("auto", true));
    read(&all(&mut router.send(call)).await).unwrap();
    assert!(!world.last().original, "it asks for log-probabilities now");
}
