//! Easy requests to the fast group, hard ones to the strong: by rules, and by how sure the first tokens are.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::*;
use octet_api::core::{Event, Image, ImageSource, Input, Message, Part, Role, Tool, ToolOrigin};
use octet_config::{Cascade, Condition, Confidence, Config, HeaderMatch, Pattern, Rule, Side};
use octet_router::calibrate::{Sample, cheapest, draw, sweep};
use octet_router::{Call, FailureKind, Spent};
use proptest::prelude::*;
use tokio::time::Instant;

fn rule(name: &str, when: Vec<Condition>, to: Side, check: bool) -> Rule {
    Rule { name: name.into(), when, to, check }
}

fn cascade(rules: Vec<Rule>, confidence: Option<Confidence>) -> Config {
    let mut c = config(&[("fast", "f"), ("strong", "s")]);
    c.router.num_retries = 0;
    let (name, fast, strong) = ("auto".into(), "fast".into(), "strong".into());
    c.cascades = vec![Cascade { name, fast, strong, rules, prerouter: None, confidence, span: span() }];
    c
}

const WATCH: Confidence = Confidence { mean_logprob: Some(-1.0), margin: Some(0.5), ..Confidence::new(4) };

/// Tokens of these log-probabilities, and of these for the next best.
fn tokens(of: &[(f32, f32)]) -> Script {
    let mut out = vec![started("f")];
    of.iter().for_each(|(first, second)| out.extend(sure("tok ", *first, *second)));
    out.extend([finished(), usage(10, of.len() as u64)]);
    out
}

#[tokio::test(start_paused = true)]
async fn rules_look_at_the_request() {
    let pattern = |p: &str| Pattern::new(p).unwrap();
    let rules = vec![
        rule("long", vec![Condition::MinTokens(1000)], Side::Strong, false),
        rule("tools", vec![Condition::Tools(true), Condition::MinMessages(2)], Side::Strong, false),
        rule("code", vec![Condition::Code(true)], Side::Strong, false),
        rule("seen", vec![Condition::Images(true)], Side::Strong, false),
        rule(
            "asked",
            vec![Condition::Header(HeaderMatch { name: "x-hard".into(), value: Some(pattern("^(1|yes)$")) })],
            Side::Strong,
            false,
        ),
        rule("role", vec![Condition::System(pattern("(?i)architect"))], Side::Strong, false),
        rule("prove", vec![Condition::User(pattern("(?i)prove that"))], Side::Strong, false),
    ];
    let (router, _) = router(&cascade(rules, None));
    let plain = |messages: Vec<Message>| {
        let mut r = request("auto", true);
        let Input::Chat(chat) = &mut r.input else { unreachable!() };
        chat.messages = messages;
        Call::new(r)
    };
    let user = |t: &str| Message::text(Role::User, t);
    let mut cases = vec![
        (plain(vec![user("Hello")]), "f", None),
        (plain(vec![user(&"word ".repeat(900))]), "s", Some("long")),
        (plain(vec![user("```rust\nfn main() {}\n```")]), "s", Some("code")),
        (plain(vec![Message::text(Role::System, "You are an Architect."), user("Hi")]), "s", Some("role")),
        (plain(vec![user("Prove that 2 is prime.")]), "s", Some("prove")),
    ];
    let mut header = plain(vec![user("Hello")]);
    header.headers = vec![("x-hard".into(), "yes".into())];
    cases.push((header.clone(), "s", Some("asked")));
    header.headers[0].1 = "no".into();
    cases.push((header, "f", None));
    let image = Image {
        source: ImageSource::Url("http://x/y.png".into()),
        detail: None,
        at: "messages[0]".into(),
        frame: None,
    };
    let mut picture = user("See");
    picture.content.push(Part::Image { image, cache: None });
    cases.push((plain(vec![picture]), "s", Some("seen")));
    for messages in 1..=2 {
        let mut r = plain(vec![user("Hi"); messages]);
        let request = std::sync::Arc::make_mut(&mut r.request);
        let Input::Chat(chat) = &mut request.input else { unreachable!() };
        let parameters = serde_json::Map::new();
        chat.tools = vec![Tool {
            name: "f".into(),
            description: None,
            parameters,
            strict: None,
            cache: None,
            origin: ToolOrigin::default(),
        }];
        cases.push(if messages == 2 { (r, "s", Some("tools")) } else { (r, "f", None) });
    }
    for (call, deployment, why) in cases {
        let mut reply = router.send(call);
        assert_eq!(read(&all(&mut reply).await).unwrap(), deployment, "{why:?}");
        let header = reply.route().header();
        match why {
            Some(why) => assert!(header.contains(&format!(">rule({why})=strong>")), "{header}"),
            None => assert_eq!(header, "auto>fast:f"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_with_high_confidence_is_kept() {
    let (router, world) = router(&cascade(Vec::new(), Some(WATCH)));
    world.script("f", [tokens(&[(-0.1, -3.0); 9])]);
    let mut reply = router.send(call("auto"));
    let events = all(&mut reply).await;
    assert_eq!(read(&events).unwrap(), "tok ".repeat(9));
    assert!(!events.iter().any(|e| matches!(e, Event::Logprobs { .. })), "the client asked for none");
    assert_eq!(reply.route().header(), "auto>fast:f>confidence(-0.10,2.90)=kept");
    assert_eq!(escalated(&reply.route()), Some(false));
    assert_eq!(world.last().request.logprobs, Some(2));
    // As many as it asked for.
    let mut wanted = request("auto", true);
    wanted.logprobs = Some(1);
    let events = all(&mut router.send(Call::new(wanted))).await;
    let tops = events
        .iter()
        .filter_map(|e| if let Event::Logprobs { tokens, .. } = e { Some(&tokens[0].top) } else { None });
    assert_eq!(tops.map(Vec::len).collect::<Vec<_>>(), [1; 9]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_with_low_confidence_is_dropped() {
    for (of, header, pieces) in [
        ([(-2.0, -9.0); 9], "confidence(-2.00,7.00)=escalated", 3),
        // The best two are about as likely: which of them comes is chance.
        ([(-0.7, -0.8); 9], "confidence(-0.70,0.10)=escalated", 4),
    ] {
        for stream in [true, false] {
            let (router, world) = router(&cascade(Vec::new(), Some(WATCH)));
            let mut script = tokens(&of);
            script.insert(11, Do::Hang);
            world.script("f", [script]);
            let mut reply = router.send(Call::new(request("auto", stream)));
            assert_eq!(read(&all(&mut reply).await).unwrap(), "s", "nothing of the fast one's is seen");
            let route = reply.route();
            assert!(route.header().contains(header), "{}", route.header());
            assert_eq!(escalated(&route), Some(true));
            let spent = Spent { deployment: "f".into(), usage: None, pieces };
            assert_eq!(route.spent, [spent], "its provider bills it all the same");
            assert_eq!(world.cancelled.load(Ordering::SeqCst), 1, "the fast one is not left running");
            assert_eq!(world.last().request.logprobs, None);
            assert_eq!(status(&router, "f").state, "ready");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn short_answers_are_measured_completely() {
    let (router, world) = router(&cascade(Vec::new(), Some(WATCH)));
    world.script("f", [tokens(&[(-0.1, -5.0); 2])]);
    assert_eq!(ask(&router, "auto").await.unwrap(), "tok tok ");
    world.script("f", [tokens(&[(-3.0, -9.0); 2])]);
    assert_eq!(ask(&router, "auto").await.unwrap(), "s");
}

#[tokio::test(start_paused = true)]
async fn unmeasurable_answers_are_kept() {
    let (router, world) = router(&cascade(Vec::new(), Some(WATCH)));
    let began = Instant::now();
    world.script("f", [vec![started("f"), text("no numbers"), Do::Wait(1000), finished()]]);
    let mut reply = router.send(call("auto"));
    reply.decide().await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO, "and nothing is held back");
    assert_eq!(read(&all(&mut reply).await).unwrap(), "no numbers");
    assert_eq!(reply.route().header(), "auto>fast:f>confidence=no_log-probabilities_came");
    assert_eq!(escalated(&reply.route()), Some(false));
    world.nature("f", Nature { no_logprobs: true, ..Nature::default() });
    world.script("f", [says("f")]);
    assert_eq!(ask(&router, "auto").await.unwrap(), "f");
    assert_eq!(world.last().request.logprobs, None, "logprobs are not requested from a target without them");
    // Vectors have no tokens: the request stays what it is.
    world.nature("f", Nature::default());
    let body = octet_router::Original::new(
        octet_router::Dialect::OpenAiEmbeddings,
        bytes::Bytes::from_static(br#"{"model": "auto", "input": "x"}"#),
    );
    world.script("f", [says("f")]);
    let mut reply = router.send(Call { original: Some(body.into()), ..call("auto") });
    assert_eq!(read(&all(&mut reply).await).unwrap(), "f");
    assert!(world.last().original && world.last().request.logprobs.is_none());
    // Nothing is held back for ever.
    world.nature("f", Nature::default());
    let mut script = vec![started("f")];
    script.extend(sure("one ", -0.1, -4.0));
    script.extend([Do::Wait(100_000), text("two"), finished()]);
    world.script("f", [script]);
    let began = Instant::now();
    let mut reply = router.send(call("auto"));
    reply.decide().await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 60);
    assert_eq!(read(&all(&mut reply).await).unwrap(), "one two");
}

#[tokio::test(start_paused = true)]
async fn thoughts_are_skipped_or_not() {
    let thought = |l: f32| {
        let [logprobs, _] = sure("hm ", l, l - 4.0);
        [logprobs, Do::Say(Event::Reasoning { choice: 0, text: "hm ".into() })]
    };
    for (skip, expected) in [(true, "s"), (false, "tok tok tok tok ")] {
        let (router, world) = router(&cascade(Vec::new(), Some(Confidence { skip_thoughts: skip, ..WATCH })));
        let mut script: Script = (0..4).flat_map(|_| thought(-0.1)).collect();
        script.splice(0..0, [started("f")]);
        script.extend(tokens(&[(-2.0, -9.0); 4]).into_iter().skip(1));
        world.script("f", [script]);
        assert_eq!(ask(&router, "auto").await.unwrap(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn each_side_is_a_fallback_of_the_other() {
    let (router, world) = router(&cascade(Vec::new(), Some(WATCH)));
    world.script("f", [vec![fail(FailureKind::Server)]]);
    let mut reply = router.send(call("auto"));
    assert_eq!(read(&all(&mut reply).await).unwrap(), "s");
    assert_eq!(reply.route().header(), "auto>fast:f!server>fallback=strong>strong:s");
    assert_eq!(escalated(&reply.route()), None);
    // No other deployment: an answer with low confidence is better than none.
    world.script("f", [tokens(&[(-3.0, -9.0); 5])]);
    world.script("s", [vec![fail(FailureKind::Server)]]);
    assert_eq!(ask(&router, "auto").await.unwrap(), "tok ".repeat(5));
    assert_eq!(world.deployments()[2..], ["f", "s", "f"]);
}

#[tokio::test(start_paused = true)]
async fn a_cascade_can_be_a_fallback() {
    let rules = vec![rule("code", vec![Condition::Code(true)], Side::Strong, false)];
    let mut c = cascade(rules, Some(WATCH));
    c.deployments.push(deployment("m", "m"));
    c.router.fallbacks = vec![fallback("m", &["auto"])];
    let (router, world) = router(&c);
    world.script("m", [vec![fail(FailureKind::Server)]]);
    assert_eq!(ask(&router, "m").await.unwrap(), "f");
    world.script("f", [vec![fail(FailureKind::Server)]]);
    let mut reply = router.send(call("m"));
    assert_eq!(read(&all(&mut reply).await).unwrap(), "s");
    let header = "m!server>fallback=auto>fast:f!server>fallback=strong>strong:s";
    assert_eq!(reply.route().header(), format!("m>{header}"));
}

#[tokio::test(start_paused = true)]
async fn a_rule_for_the_fast_model_is_checked_only_with_check() {
    for (check, expected) in [(false, "tok ".repeat(5)), (true, "s".to_string())] {
        let rules = vec![rule("short", vec![Condition::MaxTokens(100)], Side::Fast, check)];
        let (router, world) = router(&cascade(rules, Some(WATCH)));
        world.script("f", [tokens(&[(-3.0, -9.0); 5])]);
        assert_eq!(ask(&router, "auto").await.unwrap(), expected);
    }
}

#[test]
fn a_sweep_says_what_each_threshold_costs() {
    let sample = |measure, fast| Sample { measure, fast, strong: 1.0 };
    let samples =
        [sample(-0.1, 1.0), sample(-2.0, 0.0), sample(-0.5, 1.0), sample(-1.0, 0.0), sample(-1.0, 1.0)];
    let rows = sweep(&samples, 100);
    let shares: Vec<(f64, f64)> = rows.iter().map(|r| (r.escalated, r.quality)).collect();
    assert_eq!(shares, [(0.0, 0.6), (0.2, 0.8), (0.6, 1.0), (0.8, 1.0), (1.0, 1.0)]);
    assert_eq!(rows[1].threshold, -1.0, "answers with less are escalated, and only they");
    assert_eq!(rows.last().unwrap().quality_kept, None);
    assert_eq!(cheapest(&rows, 0.95).unwrap().escalated, 0.6);
    let drawn = draw(&rows, 40, 6);
    assert!(drawn.starts_with("100.0% |"), "{drawn}");
    assert_eq!(drawn.matches('*').count(), 5, "{drawn}");
    assert!(sweep(&[], 10).is_empty());
    // A strong model that is not better.
    let rows = sweep(&samples.map(|s| Sample { strong: 0.0, ..s }), 100);
    assert_eq!(rows.last().unwrap().quality, 0.0);
    assert_eq!(cheapest(&rows, 0.7), None);
}

/// Of those that a threshold keeps each counts what the fast model is worth, of the others what the strong one is.
fn applied(samples: &[Sample], threshold: f64) -> (f64, f64) {
    let n = samples.len() as f64;
    let escalated = samples.iter().filter(|s| s.measure < threshold).count() as f64;
    let quality: f64 = samples.iter().map(|s| if s.measure < threshold { s.strong } else { s.fast }).sum();
    (escalated / n, quality / n)
}

proptest! {
    /// Every row is what applying its threshold to the samples gives.
    #[test]
    fn sweeps_agree_with_thresholds(
        samples in prop::collection::vec((-50i32..0, 0u8..=4, 0u8..=4), 1..60),
        rows in 2usize..20,
    ) {
        let samples: Vec<Sample> = samples
            .into_iter()
            .map(|(m, f, s)| Sample {
                measure: f64::from(m) / 10.0,
                fast: f64::from(f) / 4.0,
                strong: f64::from(s) / 4.0,
            })
            .collect();
        let rows = sweep(&samples, rows);
        prop_assert_eq!(rows[0].escalated, 0.0);
        prop_assert_eq!(rows.last().unwrap().escalated, 1.0);
        for row in rows {
            let (escalated, quality) = applied(&samples, row.threshold);
            prop_assert!((row.escalated - escalated).abs() < 1e-12);
            prop_assert!((row.quality - quality).abs() < 1e-9);
        }
    }
}
