//! The engine on its thread: many requests at once, each with the tokens that it would have got alone; those that vanish,
//! those that can not be served, and the end.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use octet_compute::cpu::CpuOptions;
use octet_engine::Error;
use octet_engine::engine::{self, Constraint, Engine, Event, EventSink, Finish, Request, ThinkingBudget, Usage};
use octet_engine::sampler::SamplerParams;
use octet_engine::scheduler::{Handle, Options, Shutdown, SubmitError};
use octet_synth::{Mix, tiny};

const CONTEXT: usize = 400;

fn options() -> engine::Options {
    let cpu = CpuOptions { threads: Some(2), pin: false, ..CpuOptions::default() };
    engine::Options {
        context: Some(CONTEXT),
        kv_tokens: Some(4 * CONTEXT),
        max_seqs: 4,
        batch_tokens: 64,
        cpu,
        ..engine::Options::default()
    }
}

fn open(architecture: &str, options: engine::Options) -> Handle {
    let file = tiny(architecture, Mix::Q4KM).expect("a tiny model of a known architecture");
    Handle::open(file, &Options { engine: options, queue: 16 }, |_, _| {}).expect("a tiny model opens")
}

fn prompt(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + i * i % 11 + salt) % 256).collect()
}

fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        prompt,
        max_tokens: Some(max_tokens),
        sampling: SamplerParams::greedy(),
        ignore_eos: true,
        ..Request::default()
    }
}

/// What came of one choice.
#[derive(Debug, Default, PartialEq)]
struct Got {
    tokens: Vec<u32>,
    text: String,
    finish: Option<Finish>,
    usage: Usage,
}

/// Everything until the channel is closed, by choice.
fn collect(events: &Receiver<Event>) -> Result<BTreeMap<u32, Got>, Error> {
    let mut all: BTreeMap<u32, Got> = BTreeMap::new();
    for event in events {
        match event {
            Event::Token { choice, id, text, .. } => {
                let got = all.entry(choice).or_default();
                assert_eq!(got.finish, None, "no token after the end");
                got.tokens.push(id);
                got.text.push_str(&text);
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
fn alone(architecture: &str, request: &Request) -> Vec<u32> {
    let file = tiny(architecture, Mix::Q4KM).expect("a tiny model of a known architecture");
    let options = engine::Options { max_seqs: 1, kv_tokens: None, ..options() };
    let mut engine = Engine::open(&file, &options, &mut |_, _| {}).expect("a tiny model opens");
    let request = Request { cache: false, n: 1, ..request.clone() };
    engine.generate(request, &mut |_| ControlFlow::Continue(())).expect("it can be served").tokens
}

#[test]
fn many_at_once_get_what_each_would_get_alone() {
    for architecture in ["qwen35moe", "llama"] {
        let handle = open(architecture, options());
        let shared = prompt(150, 9);
        let mut requests: Vec<Request> =
            (0..12).map(|i| greedy(prompt(5 + i * 23, i as u32), 10 + i)).collect();
        // some share a beginning, in turn with those that do not
        for (i, r) in requests.iter_mut().enumerate().skip(6) {
            r.prompt = [&shared[..], &r.prompt[..20]].concat();
            r.checkpoints = vec![150];
            r.n = 1 + i % 2;
        }
        let events: Vec<_> =
            requests.iter().map(|r| handle.submit(r.clone()).expect("there is room")).collect();
        for (r, events) in requests.iter().zip(&events) {
            let want = alone(architecture, r);
            let got = collect(events).expect("it can be served");
            assert_eq!(got.len(), r.n);
            for got in got.values() {
                assert_eq!(got.tokens, want, "{architecture}");
                assert_eq!(got.finish, Some(Finish::Length));
                assert_eq!(got.usage.completion_tokens, r.max_tokens.unwrap());
            }
        }
        let stats = handle.stats();
        assert!(stats.cached_tokens >= 5 * 150, "{stats:?}");
        handle.shutdown(Shutdown::Drain);
        handle.join().expect("the thread ends well");
        assert_eq!(handle.stats().finished, 12);
        assert!(matches!(handle.submit(greedy(prompt(3, 1), 1)), Err(SubmitError::Stopping)));
    }
}

/// A listener that hangs up when told to, or after so many tokens.
struct Listener {
    events: Sender<Event>,
    gone: Arc<AtomicBool>,
}

impl EventSink for Listener {
    fn send(&mut self, event: Event) -> ControlFlow<()> {
        EventSink::send(&mut self.events, event)
    }
    fn is_closed(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

#[test]
fn who_goes_away_makes_room() {
    let handle = open("qwen35", engine::Options { max_seqs: 1, ..options() });
    let gone = Arc::new(AtomicBool::new(false));
    let listen = |gone: &Arc<AtomicBool>| {
        let (send, receive) = channel();
        (Box::new(Listener { events: send, gone: Arc::clone(gone) }), receive)
    };
    // one that would run for long, and two behind it
    let (long, events) = listen(&gone);
    handle.submit_to(greedy(prompt(20, 1), 300), long).expect("there is room");
    let (second, second_events) = listen(&gone);
    handle.submit_to(greedy(prompt(20, 2), 300), second).expect("there is room");
    let third = handle.submit(greedy(prompt(20, 3), 5)).expect("there is room");
    while !matches!(events.recv().expect("it runs"), Event::Token { .. }) {}
    gone.store(true, Ordering::Relaxed);
    assert_eq!(collect(&third).expect("its turn comes")[&0].tokens.len(), 5);
    assert!(collect(&second_events).expect("silence").is_empty(), "it went away before its turn");
    let n = events.iter().count();
    assert!(n < 250, "{n} events came after the listener had left");
    // dropping the receiver does the same
    drop(handle.submit(greedy(prompt(20, 4), 300)).expect("there is room"));
    let last = handle.submit(greedy(prompt(20, 3), 5)).expect("there is room");
    assert_eq!(collect(&last).expect("its turn comes")[&0].tokens.len(), 5);
    assert_eq!(handle.stats().cancelled, 3);
}

#[test]
fn the_queue_is_bounded_and_stopping_tells_everyone() {
    let handle = open("qwen3", engine::Options { max_seqs: 1, ..options() });
    let mut running = vec![];
    let full = loop {
        match handle.submit(greedy(prompt(30, 1), 350)) {
            Ok(events) => running.push(events),
            Err(e) => break e,
        }
    };
    assert!(running.len() >= 16);
    let SubmitError::QueueFull { retry_after } = full else { panic!("{full}") };
    assert!((Duration::from_secs(1)..=Duration::from_secs(60)).contains(&retry_after));
    handle.shutdown(Shutdown::Drain);
    handle.shutdown(Shutdown::Now);
    handle.join().expect("the thread ends well");
    let ends: Vec<_> = running.iter().map(collect).collect();
    assert!(ends.iter().all(|e| e.is_ok() || matches!(e, Err(Error::Stopped))));
    assert!(ends.iter().filter(|e| e.is_err()).count() >= 15);
}

#[test]
fn what_can_never_be_served_is_refused_with_the_numbers() {
    let handle = open("qwen35moe", options());
    let refuse = |r: Request| handle.submit(r).expect_err("it can not be served").to_string();
    let long = refuse(greedy(prompt(CONTEXT, 1), 1));
    assert!(long.contains("400 tokens and max_tokens is 1"), "{long}");
    let long = refuse(greedy(prompt(300, 1), 200));
    assert!(long.contains("300") && long.contains("200") && long.contains("400"), "{long}");
    assert!(refuse(greedy(vec![], 1)).contains("no tokens"));
    assert!(refuse(greedy(vec![9999], 1)).contains("9999"));
    assert!(refuse(Request { n: 5, ..greedy(vec![1], 1) }).contains("n is 5"));
    assert!(refuse(Request { stop: vec![String::new()], ..greedy(vec![1], 1) }).contains("stop"));
    let sampling = SamplerParams { top_p: 3.0, ..SamplerParams::default() };
    assert!(refuse(Request { sampling, ..greedy(vec![1], 1) }).contains("top_p"));
    assert_eq!(collect(&handle.submit(greedy(vec![1], 4)).unwrap()).unwrap()[&0].tokens.len(), 4);
}

#[test]
fn pages_run_out_and_nobody_notices() {
    for architecture in ["qwen35moe", "qwen3"] {
        // four answers of 300 tokens want 5 pages each, and there are 8
        let small = engine::Options { kv_tokens: Some(8 * 64), ..options() };
        let handle = open(architecture, small);
        let requests: Vec<Request> = (0..4).map(|i| greedy(prompt(30, i), 270)).collect();
        let events: Vec<_> = requests.iter().map(|r| handle.submit(r.clone()).unwrap()).collect();
        for (r, events) in requests.iter().zip(&events) {
            let got = collect(events).expect("all are finished");
            assert_eq!(got[&0].tokens, alone(architecture, r), "{architecture}");
        }
        assert!(handle.stats().preemptions > 0, "{:?}", handle.stats());
    }
}

/// Allows the ids of `list[at]` next, and ends after the last.
struct Steps {
    list: Vec<Vec<u32>>,
    at: usize,
}

impl Constraint for Steps {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        allowed.fill(0);
        let ids = self.list.get(self.at).ok_or("there is no next step")?;
        ids.iter().for_each(|id| allowed[*id as usize / 32] |= 1 << (id % 32));
        Ok(())
    }
    fn accept(&mut self, id: u32) -> Result<(), String> {
        assert!(id != 13, "this one is unlucky");
        self.list[self.at].contains(&id).then_some(()).ok_or(format!("{id} was not allowed"))?;
        self.at += 1;
        Ok(())
    }
    fn is_finished(&self) -> bool {
        self.at == self.list.len()
    }
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self { list: self.list.clone(), at: self.at })
    }
}

#[test]
fn constraints_hold_for_every_choice() {
    let handle = open("qwen35moe", options());
    let list = vec![vec![5, 6], vec![100], vec![7, 8, 9], vec![200, 300]];
    let constraint = Some(Box::new(Steps { list: list.clone(), at: 0 }) as Box<dyn Constraint>);
    let request = Request { constraint, n: 3, ..greedy(prompt(70, 3), 50) };
    let got = collect(&handle.submit(request).unwrap()).expect("it can be served");
    assert_eq!(got.len(), 3);
    for got in got.values() {
        assert_eq!((got.tokens.len(), got.finish), (4, Some(Finish::EndOfText)));
        assert!(got.tokens.iter().zip(&list).all(|(id, allowed)| allowed.contains(id)));
        assert_eq!(got.tokens, got.tokens);
    }
    // one that fails takes nobody with it
    let broken = Some(Box::new(Steps { list: vec![], at: 1 }) as Box<dyn Constraint>);
    let other = handle.submit(greedy(prompt(20, 1), 20)).unwrap();
    let e = collect(&handle.submit(Request { constraint: broken, ..greedy(prompt(9, 3), 5) }).unwrap());
    assert!(e.unwrap_err().to_string().contains("no next step"));
    assert_eq!(collect(&other).unwrap()[&0].tokens.len(), 20);
}

#[test]
fn thoughts_end_when_their_budget_does() {
    let handle = open("qwen35moe", options());
    let plain = collect(&handle.submit(greedy(prompt(40, 3), 12)).unwrap()).unwrap()[&0].tokens.clone();
    let end = vec![400, 401, 402];
    let budget = |max_tokens| ThinkingBudget { max_tokens, close: 401, end: end.clone() };
    for n in [0, 1, 5] {
        let request = Request { thinking: Some(budget(n)), ..greedy(prompt(40, 3), 12) };
        let got = collect(&handle.submit(request).unwrap()).unwrap()[&0].tokens.clone();
        assert_eq!(got[..n], plain[..n]);
        assert_eq!(got[n..n + 3], end[..]);
        assert_eq!(got.len(), 12);
    }
    // thoughts that end by themselves are left alone
    let close = plain[3];
    let thinking = Some(ThinkingBudget { max_tokens: 6, close, end: vec![close] });
    let got = collect(&handle.submit(Request { thinking, ..greedy(prompt(40, 3), 12) }).unwrap()).unwrap();
    assert_eq!(got[&0].tokens, plain);
}

#[test]
fn ends_come_no_sooner_than_min_tokens() {
    let handle = open("qwen35", options());
    let plain = collect(&handle.submit(greedy(prompt(40, 3), 12)).unwrap()).unwrap()[&0].tokens.clone();
    let stop_token_ids = vec![plain[2]];
    let stopped = Request { stop_token_ids, ..greedy(prompt(40, 3), 12) };
    let got = collect(&handle.submit(stopped.clone()).unwrap()).unwrap();
    assert_eq!((&got[&0].tokens[..], got[&0].finish), (&plain[..3], Some(Finish::StopToken)));
    let got = collect(&handle.submit(Request { min_tokens: 8, ..stopped }).unwrap()).unwrap();
    assert!(got[&0].tokens.len() >= 8 && !got[&0].tokens[..8].contains(&plain[2]), "{:?}", got[&0].tokens);
}

#[test]
fn prompts_are_scored_and_pooled_the_same_however_cut() {
    for architecture in ["qwen35moe", "llama"] {
        let p = prompt(130, 5);
        let score = |score_tokens: usize, crowd: bool| {
            let handle = open(architecture, engine::Options { score_tokens, ..options() });
            let crowd: Vec<_> = (0..if crowd { 3 } else { 0 })
                .map(|i| handle.submit(greedy(prompt(90, i), 40)).unwrap())
                .collect();
            let request = Request { prompt_logprobs: Some(2), ..greedy(p.clone(), 3) };
            let events = handle.submit(request).unwrap();
            let mut scores = Vec::new();
            for event in &events {
                if let Event::PromptLogprobs(s) = event {
                    scores = s;
                }
            }
            let pool = |pooling| {
                let request = Request { pooling: Some(pooling), ..greedy(p.clone(), 0) };
                let events = handle.submit(request).unwrap();
                events.iter().find_map(|e| if let Event::Embedding(x) = e { Some(x) } else { None }).unwrap()
            };
            drop(crowd);
            (scores, pool(engine::Pooling::Last), pool(engine::Pooling::Mean))
        };
        let one = score(1, false);
        assert_eq!(one.0.len(), 129);
        assert!(one.0.iter().zip(&p[1..]).all(|(s, id)| s.id == *id && s.top.len() == 2 && s.logprob < 0.0));
        assert!(one.1.iter().chain(&one.2).all(|x| x.is_finite()) && one.1 != one.2);
        assert_eq!(one, score(50, true), "{architecture}");
    }
}
