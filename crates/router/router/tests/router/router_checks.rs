//! What a cascade decides by beside the older thresholds: signals of a greedy copy, tool calls, the model's own check, the prompt alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::*;
use octet_api::core::{
    Event, FinishReason, GenerateRequest, Input, TokenLogprob, Tool, ToolOrigin, TopLogprob,
};
use octet_config::{Cascade, Confidence, Config, Prerouter, Threshold};
use octet_router::calls::broken;
use octet_router::signal::{Token, value};
use octet_router::{Call, FailureKind, Step};
use serde_json::json;
use tokio::time::Instant;
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

fn cascade(confidence: Option<Confidence>, prerouter: Option<Prerouter>) -> Config {
    let mut c = config(&[("fast", "f"), ("strong", "s")]);
    c.router.num_retries = 0;
    let (name, fast, strong) = ("auto".into(), "fast".into(), "strong".into());
    c.cascades = vec![Cascade { name, fast, strong, rules: Vec::new(), prerouter, confidence, span: span() }];
    c
}

fn by(signal: &str, threshold: f64) -> Confidence {
    let signal = Some(Threshold { signal: signal.parse().unwrap(), threshold });
    Confidence { signal, ..Confidence::new(4) }
}

fn tokens(of: &[(f32, f32)]) -> Script {
    let mut out = vec![started("f")];
    of.iter().for_each(|(first, second)| out.extend(sure("tok ", *first, *second)));
    out.extend([finished(), usage(10, of.len() as u64)]);
    out
}

fn token(top: &[f32]) -> Token {
    let top: Vec<TopLogprob> = top
        .iter()
        .map(|l| TopLogprob { id: None, token: "t".into(), bytes: b"t".into(), logprob: *l })
        .collect();
    let logprob = top.first().map(|t| t.logprob);
    Token::of(&TokenLogprob { id: None, token: "t".into(), bytes: b"t".into(), logprob, top }).unwrap()
}

#[test]
fn signals_are_what_numpy_and_scipy_make_of_the_same_numbers() {
    // p = [[.5, .25, .125, .0625, .03125], [.9, .05, .02, .01, .01], [.4, .3, .1, .1, .05]], the rest of each as one more:
    // numpy.mean, numpy.quantile(x, .25); scipy.stats.entropy(numpy.append(p, 1 - p.sum())); margins are numpy.log(p0 / p1).
    let all =
        [[0.5, 0.25, 0.125, 0.0625, 0.03125], [0.9, 0.05, 0.02, 0.01, 0.01], [0.4, 0.3, 0.1, 0.1, 0.05]]
            .map(|p| token(&p.map(|p: f32| p.ln())));
    for (signal, expected) in [
        ("top1.mean", 0.6),
        ("top1.min", 0.4),
        ("top1.q25", 0.45),
        ("top1.q100", 0.9),
        ("margin.mean", 1.290_400_336_969_297),
        ("margin.q25", 0.490_414_626_506_086_4),
        ("entropy.mean", 1.097_259_228_598_164_6),
        // The least sure is the one with the most entropy: this is numpy.quantile(x, .75).
        ("entropy.q25", 1.415_385_521_168_272_7),
        ("entropy.min", 1.487_798_380_001_651_2),
    ] {
        let got = value(signal.parse().unwrap(), &all).unwrap();
        assert!((got - expected).abs() < 1e-6, "{signal}: {got}, not {expected}");
    }
    assert_eq!(value("margin.mean".parse().unwrap(), &[token(&[-0.1])]), None, "there is no second choice");
    assert_eq!(value("top1.mean".parse().unwrap(), &[]), None);
}

#[tokio::test(start_paused = true)]
async fn a_signal_decides_and_is_shown() {
    for (rules, of, kept, shown) in [
        (
            by("margin.q25", 1.0),
            [(-0.1, -3.0), (-0.1, -3.0), (-0.7, -0.8), (-0.1, -3.0)],
            true,
            "margin.q25=2.200",
        ),
        (
            by("margin.min", 1.0),
            [(-0.1, -3.0), (-0.1, -3.0), (-0.7, -0.8), (-0.1, -3.0)],
            false,
            "margin.min=0.100",
        ),
        (by("top1.mean", 0.5), [(-0.1, -3.0); 4], true, "top1.mean=0.905"),
        (by("top1.mean", 0.95), [(-0.1, -3.0); 4], false, "top1.mean=0.905"),
        (by("entropy.mean", 1.0), [(-0.1, -3.0); 4], true, "entropy.mean=0.380"),
        (by("entropy.mean", 0.3), [(-0.1, -3.0); 4], false, "entropy.mean=0.380"),
    ] {
        let (router, world) = router(&cascade(Some(rules), None));
        world.script("f", [tokens(&of)]);
        let mut reply = router.send(call("auto"));
        assert_eq!(read(&all(&mut reply).await).unwrap() == "s", !kept, "{shown}");
        let header = reply.route().header();
        let verdict = if kept { "kept" } else { "escalated" };
        assert!(header.contains(&format!("confidence({shown})={verdict}")), "{header}");
        let logprobs = world.requests.lock().unwrap()[0].request.logprobs;
        assert_eq!(logprobs, Some(if shown.starts_with("entropy") { 5 } else { 2 }));
    }
}

/// As a model in this process: sure of its greedy answer or not, by the prompt; what chance makes of it says nothing.
fn model(deployment: &str, request: &GenerateRequest) -> Script {
    if deployment == "s" {
        return says("s");
    }
    let hard = octet_router::last_user_text(request).contains("hard");
    if request.sampling.temperature == Some(0.0) {
        return tokens(&[if hard { (-0.7, -0.8) } else { (-0.1, -5.0) }; 9]);
    }
    let seed = request.sampling.seed.unwrap_or(7);
    let mut out = tokens(&[(-(seed as f32), -(seed as f32) - 0.1 * seed as f32); 9]);
    out.insert(1, Do::Wait(seed * 3));
    out
}

#[tokio::test(start_paused = true)]
async fn temperature_and_seed_do_not_change_the_decision() {
    let (router, world) = router(&cascade(Some(by("margin.q25", 1.0)), None));
    world.nature("f", Nature { local: true, ..Nature::default() });
    world.improvise(model);
    for hard in [false, true] {
        for (temperature, seed) in [(Some(0.0), 1), (None, 2), (Some(0.7), 3), (Some(0.7), 4), (Some(1.9), 5)]
        {
            for stream in [true, false] {
                let mut sent = request("auto", stream);
                (sent.sampling.temperature, sent.sampling.seed) = (temperature, Some(seed));
                let Input::Chat(chat) = &mut sent.input else { unreachable!() };
                chat.messages[0] = octet_api::core::Message::text(
                    octet_api::core::Role::User,
                    if hard { "Something hard." } else { "Something easy." },
                );
                world.requests.lock().unwrap().clear();
                let mut reply = router.send(Call::new(sent));
                let text = read(&all(&mut reply).await).unwrap();
                let shown = if hard { "margin.q25=0.100)=escalated" } else { "margin.q25=4.900)=kept" };
                let route = reply.route();
                assert!(route.header().contains(shown), "{temperature:?} {}", route.header());
                assert_eq!(text, if hard { "s".to_string() } else { "tok ".repeat(9) });
                let greedy = temperature == Some(0.0);
                let probed = route.steps.iter().any(|s| matches!(s, Step::Confidence { probe: true, .. }));
                assert_eq!(probed, !greedy, "a greedy answer is its own probe");
                let requests = world.requests.lock().unwrap();
                assert_eq!(requests.len(), if greedy { 1 } else { 2 } + usize::from(hard));
                let answer = requests.iter().find(|a| a.request.sampling.temperature == temperature).unwrap();
                assert_eq!(answer.request.logprobs, greedy.then_some(2), "the answer itself pays for none");
            }
        }
    }
    assert_eq!(status(&router, "f").in_flight, 0);
    assert_eq!(status(&router, "f").state, "ready");
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_for_longer_than_the_probe() {
    let (router, world) = router(&cascade(Some(by("margin.q25", 1.0)), None));
    world.nature("f", Nature { local: true, ..Nature::default() });
    // Its window takes 40 ms. The answer's first token is there after 5, its last after a minute.
    world.improvise(|deployment, request| {
        if deployment == "s" {
            return says("s");
        }
        let probe = request.sampling.temperature == Some(0.0);
        let mut out = vec![started("f")];
        for _ in 0..4 {
            out.push(Do::Wait(if probe { 10 } else { 5 }));
            out.extend(sure("tok ", -0.1, -5.0));
        }
        out.extend([Do::Wait(if probe { 0 } else { 60_000 }), finished()]);
        out
    });
    let began = Instant::now();
    let mut reply = router.send(call("auto"));
    reply.decide().await.unwrap();
    assert_eq!(began.elapsed().as_millis(), 40);
    assert_eq!(escalated(&reply.route()), Some(false));
    // A probe that fails decides nothing, and no route without a cascade has one.
    world.improvise(|_, request| match request.sampling.temperature {
        Some(0.0) => vec![fail(FailureKind::Server)],
        _ => says("f"),
    });
    let mut reply = router.send(call("auto"));
    assert_eq!(read(&all(&mut reply).await).unwrap(), "f");
    assert_eq!(reply.route().header(), "auto>fast:f>confidence=the_probe_failed");
    world.requests.lock().unwrap().clear();
    assert_eq!(ask(&router, "fast").await.unwrap(), "f");
    assert_eq!(world.deployments().len(), 1);
    assert!(
        Arc::ptr_eq(&world.last().request, &world.last().request) && world.last().request.logprobs.is_none()
    );
}

fn weather() -> Tool {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city"],
        "additionalProperties": false
    });
    Tool {
        name: "weather".into(),
        description: None,
        parameters: parameters.as_object().unwrap().clone(),
        strict: None,
        cache: None,
        origin: ToolOrigin::default(),
    }
}

fn with_tools(stream: bool) -> Call {
    let mut sent = request("auto", stream);
    let Input::Chat(chat) = &mut sent.input else { unreachable!() };
    chat.tools = vec![weather()];
    Call::new(sent)
}

fn calling(before: usize, name: &str, pieces: &[&str]) -> Script {
    let mut out = tokens(&vec![(-0.1, -5.0); before]);
    out.truncate(out.len() - 2);
    out.push(Do::Say(Event::ToolCallStart { choice: 0, index: 0, id: "c".into(), name: name.into() }));
    out.extend(
        pieces.iter().map(|p| Do::Say(Event::ToolCallArguments { choice: 0, index: 0, text: p.to_string() })),
    );
    out.push(Do::Say(Event::Finished { choice: 0, reason: FinishReason::ToolCalls }));
    out
}

#[tokio::test(start_paused = true)]
async fn invalid_tool_calls_are_escalated() {
    let only_calls = Confidence { self_check: None, ..Confidence::new(4) };
    for rules in [by("margin.q25", 1.0), only_calls] {
        for (name, pieces, why) in [
            ("weather", &["{\"city\": \"Kö", "ln\", \"days\": 2}"][..], None),
            ("weather", &["{\"city\": \"Kö", "ln\", \"days\": 0}"], Some("/days")),
            ("weather", &["{\"town\": \"Köln\"}"], Some("do not match its schema")),
            ("weather", &["{\"city\": \"Kö"], Some("not a JSON object")),
            ("weather", &["[]"], Some("not a JSON object")),
            ("weather", &[], Some("required")),
            ("whether", &["{\"city\": \"Köln\"}"], Some("no tool has the name 'whether'")),
        ] {
            // As the first thing, or behind some words.
            for (before, stream) in [(0, true), (2, true), (0, false), (2, false), (9, false)] {
                let (router, world) = router(&cascade(Some(rules), None));
                world.script("f", [calling(before, name, pieces)]);
                let mut reply = router.send(with_tools(stream));
                let events = all(&mut reply).await;
                let route = reply.route();
                assert_eq!(
                    read(&events).unwrap() == "s",
                    why.is_some(),
                    "{name} {pieces:?}: {}",
                    route.header()
                );
                let reason = route.steps.iter().find_map(|s| match s {
                    Step::ToolCalls { why, .. } => Some(why.clone()),
                    _ => None,
                });
                let reason = reason.expect("a call is checked").unwrap_or_default();
                assert!(
                    reason.contains(why.unwrap_or_default()) && reason.is_empty() == why.is_none(),
                    "{reason}"
                );
                let verdict = if why.is_some() { "tool_calls=escalated" } else { "tool_calls=kept" };
                assert!(route.header().contains(verdict), "{}", route.header());
                assert_eq!(status(&router, "f").in_flight, 0);
            }
        }
    }
    // Without the check, and where the call begins behind a window that was handed out, it stands.
    for (rules, before) in
        [(Confidence { tool_calls: false, ..by("margin.q25", 1.0) }, 2), (by("margin.q25", 1.0), 9)]
    {
        let (router, world) = router(&cascade(Some(rules), None));
        world.script("f", [calling(before, "weather", &["{"])]);
        let mut reply = router.send(with_tools(true));
        assert_eq!(read(&all(&mut reply).await).unwrap(), "tok ".repeat(before));
    }
}

/// Schemas are the client's: none may take forever, or end the process.
#[test]
fn schemas_are_bounded() {
    let tool =
        |schema: serde_json::Value| Tool { parameters: schema.as_object().unwrap().clone(), ..weather() };
    let mut doubling = json!({"type": "object", "$defs": {"d0": {"type": "object"}}});
    for i in 1..64 {
        let before = json!({"$ref": format!("#/$defs/d{}", i - 1)});
        doubling["$defs"][format!("d{i}")] = json!({"allOf": [before, before]});
    }
    doubling["$ref"] = "#/$defs/d63".into();
    // The same names at the root are harmless: a check takes 2^63 steps if the references end here.
    let mut harmless = serde_json::Map::new();
    (0..64).for_each(|i| drop(harmless.insert(format!("d{i}"), json!({"type": "object"}))));
    let under = |key: &str, value: &str| {
        let mut inner = doubling.clone();
        // In draft 4 an `id` beside it is nothing.
        inner["allOf"] = json!([{"$ref": inner["$ref"].take()}]);
        inner.as_object_mut().unwrap().remove("$ref");
        inner[key] = value.into();
        json!({"allOf": [inner], "$defs": harmless})
    };
    let mut draft_4 = under("id", "http://a/b");
    draft_4["$schema"] = "http://json-schema.org/draft-04/schema#".into();
    let mut in_draft_4 = under("id", "http://a/b");
    in_draft_4["allOf"][0]["$schema"] = "http://json-schema.org/draft-04/schema#".into();
    let escaped = doubling.to_string().replace("#/$defs", "#/%24defs");
    let mut escaped: serde_json::Value = serde_json::from_str(&escaped).unwrap();
    escaped["%24defs"] = harmless.clone().into();
    let patterns = |n: usize| {
        let all: serde_json::Map<_, _> = (0..n)
            .map(|i| (format!("p{i}"), json!({"type": "string", "pattern": format!("^x{i}\\w?$")})))
            .collect();
        json!({"properties": all, "required": ["missing"]})
    };
    let keys = |n: usize| {
        let all: serde_json::Map<_, _> = (0..n).map(|i| (format!("^x{i}\\w?$"), json!({}))).collect();
        json!({"patternProperties": all, "required": ["missing"]})
    };
    // What is not looked at takes no time.
    for unused in [
        patterns(10_000),
        keys(32),
        json!({"required": ["missing"], "properties": {"x": {"pattern": "(?i)\\w".repeat(1500)}}}),
        json!({"required": ["missing"], "properties": {"x": {"format": "regex"}}}),
    ] {
        assert!(broken(&tool(unused), "{}").unwrap().contains("missing"));
    }
    let mut deep = json!({"type": "object"});
    for _ in 0..100 {
        deep = json!({"properties": {"a": deep}});
    }
    for schema in [
        under("$id", "http://a/b"),
        draft_4,
        in_draft_4,
        escaped,
        doubling,
        json!({"properties": {"x": {"pattern": "(?i)\\w".repeat(1500), "type": "string"}}}),
        keys(10_000),
        deep,
        json!({"$ref": "#"}),
        json!({"$ref": "#a", "$defs": {"a": {"$anchor": "a", "required": ["missing"]}}}),
        json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"$ref": "http://127.0.0.1:1/schema.json"}),
        json!({"$ref": "file:///etc/passwd"}),
        json!({"$dynamicRef": "#a"}),
        json!({"type": 7}),
        json!({"properties": {"x": {"pattern": "(a{1000}){1000}"}}}),
    ] {
        assert_eq!(broken(&tool(schema.clone()), "{\"x\": \"a\"}"), None, "{schema}");
    }
    // Properties may have the names of keywords, and the root an `$id`.
    for schema in [
        json!({"$id": "http://a/b", "required": ["missing"], "properties": {"id": {"type": "string"}}}),
        json!({"$id": "https://json-schema.org/draft/2020-12/schema", "required": ["missing"]}),
        json!({"required": ["missing"], "properties": {"pattern": {}, "$id": {}, "format": {}, "$schema": {}}}),
    ] {
        assert!(broken(&tool(schema.clone()), "{}").is_some_and(|why| why.contains("missing")), "{schema}");
    }
    // Backtracking would take years.
    let pattern = tool(json!({"properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}));
    let text = json!({"x": "a".repeat(5000) + "b"}).to_string();
    assert!(broken(&pattern, &text).unwrap().contains("/x"));
    let nested = "[".repeat(10_000);
    assert!(broken(&weather(), &format!("{{\"city\": {nested}")).is_some());
}

fn said(yes: f32, no: f32) -> Script {
    let top = [("Yes", yes), (" no", no), ("Maybe", 0.1)].map(|(t, p)| TopLogprob {
        id: None,
        token: t.into(),
        bytes: t.into(),
        logprob: p.ln(),
    });
    let token = TokenLogprob {
        id: None,
        token: "Yes".into(),
        bytes: b"Yes".into(),
        logprob: Some(yes.ln()),
        top: top.into(),
    };
    vec![
        started("f"),
        Do::Say(Event::Logprobs { choice: 0, tokens: vec![token] }),
        text("Yes"),
        finished(),
        usage(30, 1),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_self_check_decides() {
    let rules = Confidence { self_check: Some(0.5), ..Confidence::new(4) };
    for (yes, no, kept, shown) in
        [(0.6, 0.2, true, "self_check(0.75)=kept"), (0.1, 0.7, false, "self_check(0.12)=escalated")]
    {
        for stream in [true, false] {
            let mut c = cascade(Some(rules), None);
            c.deployments[0].max_parallel_requests = Some(1);
            let (router, world) = router(&c);
            world.script("f", [tokens(&[(-0.1, -5.0); 9]), said(yes, no)]);
            let mut reply = router.send(Call::new(request("auto", stream)));
            let expected = if kept { "tok ".repeat(9) } else { "s".into() };
            assert_eq!(read(&all(&mut reply).await).unwrap(), expected);
            let route = reply.route();
            assert!(route.header().contains(shown), "{}", route.header());
            assert_eq!(escalated(&route), Some(!kept));
            // The self-check is billed, and so is the dropped answer.
            assert_eq!(route.spent.len(), if kept { 1 } else { 2 });
            assert_eq!(route.spent[0].usage.unwrap().prompt_tokens, 30);
            let question = octet_router::last_user_text(&world.requests.lock().unwrap()[1].request);
            assert!(question.contains("Tell me.") && question.contains("tok tok"), "{question}");
            assert_eq!(status(&router, "f").in_flight, 0);
        }
    }
    // If the self-check fails, the answer is kept.
    for script in [vec![fail(FailureKind::Server)], says("perhaps")] {
        let (router, world) = router(&cascade(Some(rules), None));
        world.script("f", [says("f"), script]);
        let mut reply = router.send(call("auto"));
        assert_eq!(read(&all(&mut reply).await).unwrap(), "f");
        assert!(reply.route().header().contains("self_check=kept"), "{}", reply.route().header());
    }
}

/// The question contains the prompt and the answer, so it may exceed a context window that the prompt fits into.
#[tokio::test(start_paused = true)]
async fn rules_use_the_length_of_the_prompt() {
    let rules = Confidence { self_check: Some(0.5), ..Confidence::new(4) };
    let mut c = config(&[("fast", "f"), ("fast", "g"), ("strong", "s")]);
    c.cascades = cascade(Some(rules), None).cascades;
    c.deployments[0].info.max_input_tokens = Some(20);
    (c.deployments[0].order, c.deployments[1].order) = (Some(1), Some(2));
    c.router.enable_pre_call_checks = true;
    let (router, world) = router(&c);
    world.script("f", [tokens(&[(-0.1, -5.0); 99])]);
    world.script("g", [said(0.1, 0.7)]);
    let mut reply = router.send(call("auto"));
    assert_eq!(read(&all(&mut reply).await).unwrap(), "s");
    assert_eq!(world.deployments(), ["f", "g", "s"]);
}

#[tokio::test(start_paused = true)]
async fn a_prerouter_decides_by_the_prompt_alone() {
    let prerouter = || Prerouter { weights: vec![2.0, -1.0].into(), bias: 0.5, threshold: 0.5, embed: None };
    // 1 / (1 + exp(-(2a - b + 0.5)))
    for (vector, to, shown) in [
        (Some(vec![0.5, 0.0]), "f", "prerouter(0.82)=fast"),
        (Some(vec![-0.5, 1.0]), "s", "prerouter(0.18)=strong"),
        (Some(vec![1.0]), "f", "prerouter=unknown"),
        (None, "f", "prerouter=unknown"),
    ] {
        let (router, world) = router(&cascade(None, Some(prerouter())));
        world.nature("f", Nature { local: true, vector, ..Nature::default() });
        let mut reply = router.send(call("auto"));
        assert_eq!(read(&all(&mut reply).await).unwrap(), to, "{shown}");
        assert!(reply.route().header().contains(shown), "{}", reply.route().header());
        assert_eq!(world.deployments(), [to], "the fast model generates nothing for it");
    }
}

/// Counts warnings.
#[derive(Debug, Default, Clone)]
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_prerouter_of_another_model_is_reported_once() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let prerouter = Prerouter { weights: vec![2.0, -1.0].into(), bias: 0.5, threshold: 0.5, embed: None };
    let c = cascade(None, Some(prerouter));
    let (router, world) = router(&c);
    world.nature("f", Nature { local: true, vector: Some(vec![1.0]), ..Nature::default() });
    for configurations in 1..3 {
        for _ in 0..3 {
            assert_eq!(ask(&router, "auto").await.unwrap(), "f");
        }
        assert_eq!(warnings.0.load(Ordering::Relaxed), configurations);
        router.reload(&c, |d| mock(&world, d)).unwrap();
    }
}
