//! A server over a tiny model with random weights, and a client that asks it.
#![allow(dead_code)] // each test binary takes what it needs

pub mod families;
pub mod providers;
pub mod python;
pub mod upstream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use octet_config::{Config, Disk};
use octet_engine::device::Device;
use octet_engine::engine;
use octet_engine::scheduler;
use octet_serve::{App, ModelSpec, Options, Routes, Server, Stage};
use octet_synth::{Mix, tiny};
use octet_vulkan::{Vulkan, VulkanOptions};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Writes turns as ChatML does, tools and calls as Qwen3-Coder does, and begins answers with reasoning unless it is switched off.
pub const TEMPLATE: &str = include_str!("template.jinja");
/// Tokens of context.
pub const CONTEXT: usize = 1024;
/// What a test waits for at most, on a machine that has other work.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// A model as it is served here.
pub fn model(name: &str) -> ModelSpec {
    let open = || tiny("qwen35moe", Mix::Q4KM).map_err(octet_serve::BoxError::from);
    let cpu = octet_compute::cpu::CpuOptions { threads: Some(1), pin: false, ..Default::default() };
    let engine = engine::Options {
        context: Some(CONTEXT),
        kv_tokens: Some(4 * CONTEXT),
        max_seqs: 4,
        batch_tokens: 128,
        snapshot_memory: Some(64 << 20),
        cpu,
        device: octet_testkit::models_on_vulkan().map(vulkan),
        ..engine::Options::default()
    };
    ModelSpec {
        options: scheduler::Options { engine, queue: 16 },
        chat_template: Some(TEMPLATE.into()),
        ..ModelSpec::new(name, Arc::new(open))
    }
}

/// A graphics device.
pub fn vulkan(index: usize) -> Device {
    Device::new("vulkan", move || {
        Vulkan::new(&VulkanOptions { index, lazy_kernels: true, ..VulkanOptions::default() })
    })
}

/// A model that has room for [`endless`] answers.
pub fn roomy() -> ModelSpec {
    let mut spec = model("tiny");
    (spec.options.engine.context, spec.options.engine.kv_tokens) = (Some(16 * CONTEXT), Some(64 * CONTEXT));
    spec
}

/// Asks for a stream that is not over before its client leaves, however slow that is; of a [`roomy`] model.
pub fn endless() -> Value {
    with(&chat("Hello"), json!({"max_tokens": 15 * CONTEXT, "ignore_eos": true, "stream": true}))
}

/// Routes by a configuration, whose models in this process are all tiny.
pub fn routes(text: &str) -> Routes {
    let config = Config::parse("octet.yaml", text, &Disk(|_: &str| None)).unwrap_or_else(|e| panic!("{e}"));
    Routes { local: Arc::new(|name, _| Ok(model(name))), watch: None, ..Routes::new(config) }
}

/// A running server, which ends with the test.
pub struct Fixture {
    pub address: SocketAddr,
    pub app: Arc<App>,
    pub stage: watch::Sender<Stage>,
    pub task: JoinHandle<()>,
    pub client: Client,
}

impl Fixture {
    /// One model called `tiny`.
    pub async fn start() -> Self {
        Self::with(Options::new(vec![model("tiny")])).await
    }

    /// A router.
    pub async fn routed(text: &str) -> Self {
        Self::with(Options { routes: Some(routes(text)), ..Options::new(Vec::new()) }).await
    }

    pub async fn with(options: Options) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(any, options).await.expect("a port is free, and the model is read");
        let address = server.address().expect("it listens");
        let app = Arc::clone(server.app());
        let (stage, stages) = watch::channel(Stage::Run);
        let task = tokio::spawn(server.run(stages));
        // Built together with the command line, reqwest speaks TLS, and wants to be told by what even where it does not.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().timeout(10 * PATIENCE).build().expect("a client");
        Self { address, app, stage, task, client }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn request(&self, path: &str, body: &Value) -> RequestBuilder {
        self.client.post(self.url(path)).json(body)
    }

    pub async fn send(&self, path: &str, body: &Value) -> Response {
        self.request(path, body).send().await.expect("the server answers")
    }

    /// Status and body.
    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        read(self.send(path, body).await).await
    }

    /// The body of an answer that is no error.
    pub async fn ok(&self, path: &str, body: &Value) -> Value {
        let (status, body) = self.post(path, body).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        read(self.client.get(self.url(path)).send().await.expect("the server answers")).await
    }

    pub async fn text(&self, path: &str) -> String {
        let answer = self.client.get(self.url(path)).send().await.expect("the server answers");
        answer.text().await.expect("text")
    }

    /// Events of a stream: names, where they have one, and data.
    pub async fn events(&self, path: &str, body: &Value) -> Vec<(String, Value)> {
        let answer = self.send(path, body).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut decoder = octet_api::sse::SseDecoder::default();
        decoder.push(&answer.bytes().await.expect("a stream that ends well"));
        let mut out = Vec::new();
        while let Some(event) = decoder.next_event().expect("a stream of events") {
            let data = if event.data == "[DONE]" {
                json!("[DONE]")
            } else {
                serde_json::from_str(&event.data).unwrap()
            };
            out.push((event.name, data));
        }
        out
    }

    /// Lines of JSON.
    pub async fn lines(&self, path: &str, body: &Value) -> Vec<Value> {
        let answer = self.send(path, body).await;
        assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
        let text = answer.text().await.expect("text");
        text.lines().map(|l| serde_json::from_str(l).expect("a line of JSON")).collect()
    }

    /// Waits until something about the server is true.
    pub async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < PATIENCE, "in vain: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub async fn read(answer: Response) -> (u16, Value) {
    let status = answer.status().as_u16();
    let text = answer.text().await.expect("a body");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// A chat of one message, greedy and short.
pub fn chat(text: &str) -> Value {
    json!({
        "model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": false},
    })
}

/// `base` with more fields.
pub fn with(base: &Value, more: Value) -> Value {
    let mut out = base.clone();
    let (Value::Object(o), Value::Object(more)) = (&mut out, more) else { panic!("two objects") };
    o.extend(more);
    out
}

/// A tool whose arguments even a random model can only get right.
pub fn tool() -> Value {
    json!({"type": "function", "function": {
        "name": "set_light", "description": "Switches a light.",
        "parameters": {
            "type": "object", "additionalProperties": false, "required": ["room", "on"],
            "properties": {"room": {"type": "string", "enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
        },
    }})
}
