//! Several models: loaded when they are asked for, unloaded when nobody does, and in turns where memory is short.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Fixture, PATIENCE, chat, model, with};
use octet_serve::{Memory, ModelSpec, OnDevice, Options, Server};
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

/// A model that counts how often it is opened.
fn counted(name: &str) -> (ModelSpec, Arc<AtomicUsize>) {
    let mut spec = model(name);
    let count = Arc::new(AtomicUsize::new(0));
    let (open, counter) = (Arc::clone(&spec.open), Arc::clone(&count));
    spec.open = Arc::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        open()
    });
    (spec, count)
}

fn ask(name: &str) -> serde_json::Value {
    with(&chat("Hello"), json!({"model": name, "max_tokens": 4}))
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_load_a_model_once() {
    let (spec, count) = counted("tiny");
    let spec = ModelSpec { aliases: vec!["other name".into()], ..spec };
    let f = Fixture::with(Options::new(vec![spec, model("second")])).await;
    assert_eq!(count.load(Ordering::Relaxed), 1, "to see what it is");
    let answers: Vec<_> = ["tiny", "other name", "tiny", "tiny:latest"]
        .into_iter()
        .map(|name| {
            let request = f.request(CHAT, &ask(name));
            tokio::spawn(async move { request.send().await.unwrap().status() })
        })
        .collect();
    for answer in answers {
        assert_eq!(answer.await.unwrap(), 200);
    }
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert!(f.app.models().loaded(1).is_none(), "nobody asked for it");
    let (_, list) = f.get("/v1/models").await;
    assert_eq!(
        (list["data"][0]["id"].as_str(), list["data"][1]["id"].as_str()),
        (Some("tiny"), Some("second"))
    );
    assert_eq!(f.get("/v1/models/second").await.0, 200);
    assert_eq!(f.get("/v1/models/third").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_models_are_unloaded() {
    let (spec, count) = counted("tiny");
    let spec = ModelSpec { keep_alive: Some(Duration::from_millis(200)), ..spec };
    let f = Fixture::with(Options::new(vec![spec])).await;
    let request = f.request(CHAT, &with(&ask("tiny"), json!({"max_tokens": 900, "ignore_eos": true})));
    let asked = tokio::spawn(async move { request.send().await.unwrap().status() });
    let mut was_there = false;
    while !asked.is_finished() {
        let is_there = f.app.models().loaded(0).is_some();
        assert!(is_there || !was_there || f.app.models().busy() == 0, "it goes while it is asked");
        was_there |= is_there;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(asked.await.unwrap(), 200);
    f.until("it is unloaded", || f.app.models().loaded(0).is_none()).await;
    assert_eq!(count.load(Ordering::Relaxed), 2, "once to see what it is");
    f.ok(CHAT, &ask("tiny")).await;
    assert_eq!(count.load(Ordering::Relaxed), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_take_turns_if_memory_is_short() {
    let ((a, a_count), (b, b_count)) = (counted("a"), counted("b"));
    let probe = Fixture::with(Options::new(vec![model("a")])).await;
    let bytes = probe.app.models().card(0).memory_bytes;
    let memory = Memory { limit: Some(bytes + bytes / 2), ..Memory::default() };
    let f = Fixture::with(Options { memory, ..Options::new(vec![a, b]) }).await;
    f.ok(CHAT, &ask("a")).await;
    f.ok(CHAT, &ask("b")).await;
    assert!(f.app.models().loaded(0).is_none() && f.app.models().loaded(1).is_some());
    // two clients that each want another model, again and again
    let client = |name: &'static str| {
        let requests: Vec<_> = (0..10).map(|_| f.request(CHAT, &ask(name))).collect();
        tokio::spawn(async move {
            for request in requests {
                assert_eq!(request.send().await.unwrap().status(), 200);
            }
        })
    };
    let both = [client("a"), client("b")];
    for client in both {
        tokio::time::timeout(10 * PATIENCE, client).await.expect("no deadlock").unwrap();
    }
    let loads = a_count.load(Ordering::Relaxed) + b_count.load(Ordering::Relaxed) - 2;
    // Each of the two before, one for each turn of some seconds, and room for clients that the machine holds up.
    assert!(loads <= 10, "{loads} loads for twenty-two requests");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_load_does_not_delay_other_models() {
    let (mut slow, opened) = counted("slow");
    let (open, (release, wait)) = (Arc::clone(&slow.open), std::sync::mpsc::channel::<()>());
    let (wait, armed) = (std::sync::Mutex::new(wait), Arc::new(AtomicBool::new(false)));
    let is_slow = Arc::clone(&armed);
    slow.open = Arc::new(move || {
        let opened = open();
        if is_slow.load(Ordering::Relaxed) {
            let _ = wait.lock().unwrap().recv_timeout(PATIENCE); // an error is what it waits for
        }
        opened
    });
    let f = Fixture::with(Options::new(vec![slow, model("other")])).await;
    let before = opened.load(Ordering::Relaxed);
    armed.store(true, Ordering::Relaxed);
    let request = f.request(CHAT, &ask("slow"));
    let asked = tokio::spawn(async move { request.send().await.unwrap().status() });
    f.until("the slow one is being opened", || opened.load(Ordering::Relaxed) > before).await;
    f.ok(CHAT, &ask("other")).await;
    assert!(f.app.models().loaded(0).is_none());
    drop(release);
    assert_eq!(asked.await.unwrap(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_load_reports_why_and_is_retried() {
    let mut spec = model("tiny");
    let (open, broken) = (Arc::clone(&spec.open), Arc::new(AtomicBool::new(false)));
    let is_broken = Arc::clone(&broken);
    spec.open =
        Arc::new(
            move || {
                if is_broken.load(Ordering::Relaxed) { Err("the disk is on fire".into()) } else { open() }
            },
        );
    let f = Fixture::with(Options::new(vec![spec, model("good")])).await;
    broken.store(true, Ordering::Relaxed);
    let (status, body) = f.post(CHAT, &ask("tiny")).await;
    assert!(status == 500 && body["error"]["message"].as_str().unwrap().contains("on fire"), "{body}");
    assert!(f.get("/ready").await.1["models"][0]["error"].is_string());
    f.ok(CHAT, &ask("good")).await;
    broken.store(false, Ordering::Relaxed);
    f.ok(CHAT, &ask("tiny")).await;
    // where something panics on the way
    let panics = Arc::new(AtomicBool::new(true));
    let once = Arc::clone(&panics);
    let free = move || if once.swap(false, Ordering::Relaxed) { panic!("a test's own") } else { None };
    let memory = Memory { free: Arc::new(free), ..Memory::default() };
    let f = Fixture::with(Options { memory, ..Options::new(vec![model("tiny")]) }).await;
    let (status, body) = f.post(CHAT, &ask("tiny")).await;
    assert!(status == 500 && body["error"]["message"].as_str().unwrap().contains("internal error"), "{body}");
    let (status, ready) = f.get("/ready").await;
    assert_eq!((status, &ready["status"]), (503, &json!("failed")));
    f.ok(CHAT, &ask("tiny")).await;
    // where the system has no memory left
    let memory = Memory { free: Arc::new(|| Some(1 << 20)), ..Memory::default() };
    let f = Fixture::with(Options { memory, ..Options::new(vec![model("tiny")]) }).await;
    let (status, body) = f.post(CHAT, &ask("tiny")).await;
    assert!(status == 500 && body["error"]["message"].as_str().unwrap().contains("has 1 MiB free"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_larger_than_the_limit_is_refused_at_the_start() {
    let memory = Memory { limit: Some(1 << 20), ..Memory::default() };
    let options = Options { memory, ..Options::new(vec![model("tiny")]) };
    let any = ([127, 0, 0, 1], 0).into();
    let Err(e) = Server::bind(any, options).await else { panic!("it cannot fit") };
    let e = e.to_string();
    assert!(e.contains("'tiny' takes") && e.contains("--memory-limit is 1 MiB"), "{e}");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_models_that_do_not_fit_together_all_answer() {
    let specs = ["a", "b", "c"].map(model);
    let probe = Fixture::with(Options::new(vec![specs[0].clone()])).await;
    let bytes = probe.app.models().card(0).memory_bytes;
    // room for one, then for two
    for limit in [bytes + bytes / 2, 2 * bytes + bytes / 2] {
        let memory = Memory { limit: Some(limit), ..Memory::default() };
        let f = Fixture::with(Options { memory, ..Options::new(specs.to_vec()) }).await;
        let clients = ["a", "a", "b", "b", "c"].map(|name| {
            let requests: Vec<_> = (0..3).map(|_| f.request(CHAT, &ask(name))).collect();
            tokio::spawn(async move {
                for request in requests {
                    let answer = request.send().await.unwrap();
                    let status = answer.status();
                    assert_eq!(status, 200, "{}", answer.text().await.unwrap());
                }
            })
        });
        for client in clients {
            tokio::time::timeout(10 * PATIENCE, client).await.expect("its turn comes").unwrap();
        }
    }
}

/// A device's memory is billed by itself: two models that do not fit there together take turns, and one on the processor stays where it is.
#[tokio::test(flavor = "multi_thread")]
async fn models_are_evicted_for_models_of_the_same_device() {
    let on_device = |name: &str, device: &str| {
        let mut spec = model(name);
        spec.on_device = Some(OnDevice {
            name: device.into(),
            bytes: 6 << 30,
            machine_bytes: 1 << 20,
            free: Arc::new(|| None),
            limit: Some(8 << 30),
        });
        spec
    };
    let specs = vec![
        model("processor"),
        on_device("a", "vulkan:0"),
        on_device("b", "vulkan:0"),
        on_device("other", "vulkan:1"),
    ];
    // far less than they take of the devices
    let memory = Memory { limit: Some(1 << 30), ..Memory::default() };
    let f = Fixture::with(Options { memory, ..Options::new(specs) }).await;
    for name in ["processor", "a", "other"] {
        f.ok(CHAT, &ask(name)).await;
    }
    let there = || [0, 1, 2, 3].map(|i| f.app.models().loaded(i).is_some());
    assert_eq!(there(), [true, true, false, true]);
    let (_, ready) = f.get("/ready").await;
    assert_eq!(ready["models"][1]["device"], "vulkan:0");
    assert_eq!(ready["models"][1]["device_memory_bytes"], 6u64 << 30);
    assert!(ready["models"][0].get("device").is_none(), "{ready}");
    let (_, ps) = f.get("/api/ps").await;
    let of = |name: &str| {
        let all = ps["models"].as_array().expect("a list");
        all.iter()
            .find(|m| m["name"].as_str().is_some_and(|n| n.starts_with(name)))
            .expect("it is loaded")
            .clone()
    };
    assert_eq!(
        (&of("a")["size_vram"], &of("a")["size"]),
        (&json!(6u64 << 30), &json!((6u64 << 30) + (1 << 20)))
    );
    assert_eq!(of("processor")["size_vram"], 0);
    f.ok(CHAT, &ask("b")).await;
    assert_eq!(there(), [true, false, true, true]);
    let metrics = f.text("/metrics").await;
    let line =
        |model: &str, n: u64| format!("octet:model_device_memory_bytes{{model_name=\"{model}\"}} {n}\n");
    for (model, n) in [("processor", 0), ("a", 0), ("b", 6 << 30), ("other", 6 << 30)] {
        assert!(metrics.contains(&line(model, n)), "{model}: {metrics}");
    }

    // one that no device has room for
    let mut spec = on_device("large", "vulkan:0");
    spec.on_device.as_mut().expect("it is on one").free = Arc::new(|| Some(1 << 30));
    let f = Fixture::with(Options::new(vec![spec])).await;
    let (status, refused) = f.post(CHAT, &ask("large")).await;
    let why = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(
        status == 500 && why.contains("6 GiB of the memory of vulkan:0, which has 1 GiB free"),
        "{refused}"
    );
}
