//! Engines over tiny models, and requests to them; used by the tests of scheduler, cache and disk.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use octet_compute::cpu::CpuOptions;
use octet_engine::Error;
use octet_engine::engine::{self, Engine, Event, EventSink, Finish, Request, RequestId, Step};
use octet_engine::engine::{TokenLogprob, TokenRoutes, Usage};
use octet_engine::sampler::SamplerParams;
use octet_engine::scheduler::{Handle, Options};
use octet_synth::{Mix, tiny};

pub const CONTEXT: usize = 400;

/// A sink that closes when its test closes it, or when its receiver is dropped.
pub struct Listener {
    pub events: Sender<Event>,
    pub gone: Arc<AtomicBool>,
}

impl EventSink for Listener {
    fn send(&mut self, event: Event) -> ControlFlow<()> {
        EventSink::send(&mut self.events, event)
    }
    fn is_closed(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

pub fn options() -> engine::Options {
    // Tests run beside each other: teams of several threads would wait for processors that other teams hold.
    let cpu = CpuOptions { threads: Some(1), pin: false, ..CpuOptions::default() };
    engine::Options {
        context: Some(CONTEXT),
        kv_tokens: Some(4 * CONTEXT),
        max_seqs: 4,
        batch_tokens: 64,
        // what is in a step must not depend on how busy the machine is
        step_time_max: Duration::from_secs(3600),
        // nor on how fast it is; what guesses change is tested in `speculation`
        speculation: engine::speculation::Options::off(),
        cpu,
        ..engine::Options::default()
    }
}

/// The name of a tiny model of `llama` whose first layer has a window.
pub const WINDOWED: &str = "llama with a window";
/// Positions of the window.
pub const WINDOW: usize = 50;

/// A tiny model.
pub fn file(architecture: &str) -> octet_weights::Model {
    let windowed = architecture == WINDOWED;
    let architecture = if windowed { "llama" } else { architecture };
    let mut file = tiny(architecture, Mix::Q4KM).expect("a tiny model of a known architecture");
    if windowed {
        let slides = [true, false].map(octet_weights::Value::Bool).to_vec();
        let window = octet_weights::Value::U64(WINDOW as u64);
        file.metadata.insert("llama.attention.sliding_window", window);
        file.metadata.insert("llama.attention.sliding_window_pattern", octet_weights::Value::Array(slides));
    }
    file
}

pub fn open(architecture: &str, options: engine::Options) -> Handle {
    let file = file(architecture);
    Handle::open(file, &Options { engine: options, queue: 16 }, |_, _| {}).expect("a tiny model opens")
}

pub fn prompt(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + i * i % 11 + salt) % 256).collect()
}

pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        prompt,
        max_tokens: Some(max_tokens),
        sampling: SamplerParams::greedy(),
        ignore_eos: true,
        ..Request::default()
    }
}

/// The result of one choice.
#[derive(Debug, Default, PartialEq)]
pub struct Got {
    pub tokens: Vec<u32>,
    pub text: String,
    pub finish: Option<Finish>,
    pub usage: Usage,
    /// Log-probabilities and experts of the tokens that have some.
    pub logprobs: Vec<TokenLogprob>,
    pub routes: Vec<TokenRoutes>,
}

/// Everything until the channel is closed, by choice.
pub fn collect(events: &Receiver<Event>) -> Result<BTreeMap<u32, Got>, Error> {
    let mut all: BTreeMap<u32, Got> = BTreeMap::new();
    for event in events {
        match event {
            Event::Token { choice, id, text, logprob, routes } => {
                let got = all.entry(choice).or_default();
                assert_eq!(got.finish, None, "no token after the end");
                got.tokens.push(id);
                got.text.push_str(&text);
                got.logprobs.extend(logprob);
                got.routes.extend(routes.map(|routes| *routes));
            }
            Event::Done { choice, finish, usage, .. } => {
                let got = all.entry(choice).or_default();
                (got.finish, got.usage) = (Some(finish), usage);
            }
            Event::Failed(e) => return Err(e),
            _ => {}
        }
    }
    Ok(all)
}

/// The tokens of a request that runs alone on a fresh engine.
pub fn alone(architecture: &str, request: &Request) -> Vec<u32> {
    let file = file(architecture);
    let options = engine::Options { max_seqs: 1, kv_tokens: None, batch_tokens: CONTEXT, ..options() };
    let mut engine = Engine::open(&file, &options, &mut |_, _| {}).expect("a tiny model opens");
    let request = Request { cache: false, n: 1, ..request.clone() };
    engine.generate(request, &mut |_| ControlFlow::Continue(())).expect("it can be served").tokens
}

/// An engine on this thread.
pub fn engine(architecture: &str, options: &engine::Options) -> Engine {
    let file = file(architecture);
    Engine::open(&file, options, &mut |_, _| {}).expect("a tiny model opens")
}

/// Queues a request.
pub fn submit(engine: &mut Engine, request: Request) -> (RequestId, Receiver<Event>) {
    let (send, events) = channel();
    let prepared = engine.rules().prepare(request).expect("it can be served");
    (engine.submit(prepared, Box::new(send)), events)
}

/// Steps until there is nothing to do.
pub fn finish(engine: &mut Engine) {
    while engine.step() == Step::Worked {
        engine.audit().expect("every page and slot is accounted for");
    }
}

/// The tokens of a request's only answer, and how many of its prompt were cached.
pub fn answer(engine: &mut Engine, request: Request) -> (Vec<u32>, usize) {
    let (_, events) = submit(engine, request);
    finish(engine);
    let mut all = collect(&events).expect("it can be served");
    let got = all.remove(&0).expect("it has an answer");
    (got.tokens, got.usage.cached_tokens)
}
