//! Models on a graphics device that fails: it is lost in the middle of an answer, once and twice, or has no memory left. The server says so, and
//! goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use octet_engine::device::Device;
use octet_serve::{ModelSpec, Options};
use octet_vulkan::faults::{Fault, Faults};
use octet_vulkan::{MemoryLimit, Vulkan, VulkanOptions};
use serde_json::{Value, json};

use crate::common::{Fixture, chat, endless, roomy, with};

/// A model on a device that a test can break.
struct Breakable {
    faults: Arc<Faults>,
    /// How often the device was opened.
    opened: Arc<AtomicUsize>,
    /// Each opening but the first waits for a word: whether it goes well.
    open: Sender<bool>,
    spec: ModelSpec,
}

fn breakable() -> Option<Breakable> {
    let index = octet_testkit::vulkan_device()?;
    let (faults, opened) = (Arc::new(Faults::default()), Arc::new(AtomicUsize::new(0)));
    let (open, may_open): (Sender<bool>, Receiver<bool>) = channel();
    let may_open = std::sync::Mutex::new(may_open);
    let (count, injected) = (Arc::clone(&opened), Arc::clone(&faults));
    let device = Device::new("vulkan", move || {
        if count.fetch_add(1, Ordering::SeqCst) > 0 {
            let goes_well =
                may_open.lock().unwrap().recv().map_err(|e| octet_compute::Error(e.to_string()))?;
            if !goes_well {
                return Err(octet_compute::Error("the driver is being reset".into()));
            }
        }
        let mut device =
            Vulkan::new(&VulkanOptions { index, lazy_kernels: true, ..VulkanOptions::default() })?;
        device.inject_faults(Arc::clone(&injected));
        Ok(device)
    });
    let mut spec = roomy();
    spec.options.engine.device = Some(device);
    Some(Breakable { faults, opened, open, spec })
}

/// Reads a stream that `fault` hits once its first token is there; the last event.
async fn struck(server: &Fixture, faults: &Faults, fault: Fault) -> Value {
    // No step is submitted ahead of a sampled answer. One that is may run out of memory without harm: it is computed again.
    let request = with(&endless(), json!({"temperature": 1}));
    let mut answer = server.send("/v1/chat/completions", &request).await;
    assert_eq!(answer.status(), 200);
    let mut text = Vec::new();
    let mut struck = false;
    while let Some(part) = answer.chunk().await.expect("a stream that ends well") {
        text.extend_from_slice(&part);
        if !struck && String::from_utf8_lossy(&text).contains("\"content\"") {
            struck = true;
            faults.inject(fault);
        }
    }
    let text = String::from_utf8(text).expect("text");
    let last = text.lines().filter_map(|l| l.strip_prefix("data: ")).rfind(|l| *l != "[DONE]");
    serde_json::from_str(last.expect("an event")).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_device_is_reported_and_its_model_reloaded_once() {
    let Some(Breakable { faults, opened, open, spec }) = breakable() else { return };
    let server = Fixture::with(Options::new(vec![spec])).await;
    let request = with(&chat("Hello"), json!({"max_tokens": 3}));
    server.ok("/v1/chat/completions", &request).await;
    assert_eq!(server.get("/health").await, (200, json!({"status": "ok"})));

    // no answer is silently cut
    let last = struck(&server, &faults, Fault::Lost).await;
    assert!(last["error"]["message"].as_str().is_some_and(|m| m.contains("lost")), "{last}");
    // while the model is reloaded, /health and /ready report it
    let (status, health) = server.get("/health").await;
    assert_eq!((status, &health["status"]), (200, &json!("degraded")), "{health}");
    let ill = &health["unhealthy_models"][0];
    assert_eq!((&ill["model"], &ill["is_loading_again"]), (&json!("tiny"), &json!(true)));
    assert!(ill["error"].as_str().is_some_and(|m| m.contains("lost")), "{health}");
    let (_, models) = server.get("/v1/models").await;
    assert!(models["data"][0]["unhealthy"].as_str().is_some_and(|m| m.contains("lost")), "{models}");
    assert_eq!(server.get("/ready").await.0, 503);
    let metrics = server.text("/metrics").await;
    assert!(metrics.contains("octet:model_healthy{model_name=\"tiny\"} 0"), "{metrics}");
    // nobody has to ask for it
    server.until("the model is loaded again", || opened.load(Ordering::SeqCst) == 2).await;
    open.send(true).expect("it is being loaded");
    server.until("the model is well", || server.app.models().unhealthy(0).is_none()).await;
    assert_eq!(server.get("/health").await, (200, json!({"status": "ok"})));
    assert!(server.get("/v1/models").await.1["data"][0].get("unhealthy").is_none());
    server.ok("/v1/chat/completions", &request).await;
    let metrics = server.text("/metrics").await;
    assert!(metrics.contains("octet:device_losses{model_name=\"tiny\"} 1"), "{metrics}");
    assert!(metrics.contains("octet:model_healthy{model_name=\"tiny\"} 1"), "{metrics}");

    // a second time within a minute: it stays down, and says what to do
    struck(&server, &faults, Fault::Lost).await;
    let (status, health) = server.get("/health").await;
    assert_eq!((status, &health["status"]), (503, &json!("unhealthy")), "{health}");
    let ill = &health["unhealthy_models"][0];
    assert_eq!(ill["is_loading_again"], false);
    assert!(
        ill["error"].as_str().is_some_and(|m| m.contains("twice") && m.contains("--device cpu")),
        "{health}"
    );
    server.until("the engine has ended", || server.app.models().loaded(0).is_none()).await;
    let (status, refused) = server.post("/v1/chat/completions", &request).await;
    assert_eq!(status, 500);
    assert!(refused["error"]["message"].as_str().is_some_and(|m| m.contains("twice")), "{refused}");
    assert_eq!(server.get("/ready").await.0, 503);
    assert_eq!(opened.load(Ordering::SeqCst), 2, "it is not loaded for ever");

    // but where somebody asks for just that: first in vain, then it goes well
    let load = json!({"model": "tiny"});
    open.send(false).expect("it is loaded");
    let (status, refused) = server.post("/api/generate", &load).await;
    assert!(status == 500 && refused.to_string().contains("the driver is being reset"), "{status} {refused}");
    open.send(true).expect("it is loaded once more");
    server.ok("/api/generate", &load).await;
    assert_eq!(server.get("/health").await, (200, json!({"status": "ok"})));
    assert_eq!(server.get("/ready").await.0, 200);
    server.ok("/v1/chat/completions", &request).await;
    assert_eq!(opened.load(Ordering::SeqCst), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn reloading_after_a_lost_device_is_retried() {
    let Some(Breakable { faults, opened, open, spec }) = breakable() else { return };
    let server = Fixture::with(Options::new(vec![spec])).await;
    struck(&server, &faults, Fault::Lost).await;
    open.send(false).expect("it is loaded again");
    let failed =
        || server.app.models().unhealthy(0).is_some_and(|u| u.why.contains("the driver is being reset"));
    server.until("that has failed", failed).await;
    let (status, health) = server.get("/health").await;
    assert_eq!((status, &health["unhealthy_models"][0]["is_loading_again"]), (200, &json!(true)), "{health}");
    // nobody asks for it
    open.send(true).expect("it is tried again");
    server.until("the model is well", || server.app.models().unhealthy(0).is_none()).await;
    assert_eq!(opened.load(Ordering::SeqCst), 3);
    server.ok("/v1/chat/completions", &with(&chat("Hello"), json!({"max_tokens": 3}))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_without_memory_for_a_step_fails_what_runs_and_nothing_else() {
    let Some(Breakable { faults, opened, spec, .. }) = breakable() else { return };
    let server = Fixture::with(Options::new(vec![spec])).await;
    let last = struck(&server, &faults, Fault::OutOfMemory).await;
    assert!(last["error"]["message"].as_str().is_some_and(|m| m.contains("ran out of memory")), "{last}");
    server.ok("/v1/chat/completions", &with(&chat("Hello"), json!({"max_tokens": 3}))).await;
    assert_eq!(server.get("/health").await, (200, json!({"status": "ok"})));
    assert_eq!(opened.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_the_device_has_no_room_for_is_refused_with_sizes() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let mut spec = roomy();
    let options =
        VulkanOptions { index, memory_limit: Some(MemoryLimit::new(1 << 20)), ..VulkanOptions::default() };
    spec.options.engine.device = Some(Device::new("vulkan", move || Vulkan::new(&options)));
    let server = Fixture::with(Options::new(vec![spec])).await;
    for _ in 0..2 {
        let (status, refused) = server.post("/v1/chat/completions", &chat("Hello")).await;
        assert_eq!(status, 500);
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("MiB") && message.contains("--gpu-memory"), "{refused}");
    }
    assert_eq!(server.get("/health").await, (200, json!({"status": "ok"})));
}
