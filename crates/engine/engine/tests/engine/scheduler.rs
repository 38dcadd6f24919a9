//! The engine on its thread: concurrent requests get the same tokens as alone; cancelled requests,
//! requests that cannot be served, and shutdown.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::common::drive::{
    CONTEXT, Listener, alone, collect, engine, finish, greedy, open, options, prompt, submit,
};
use octet_engine::Error;
use octet_engine::engine::{self, Constraint, Event, EventSink, Finish, Request, Step, ThinkingBudget};
use octet_engine::sampler::SamplerParams;
use octet_engine::scheduler::{Handle, Options, Shutdown, SubmitError};
use octet_synth::{Mix, tiny};

/// A sink that reports its first token, and blocks the engine there until the other end of `until` is dropped.
struct Held {
    events: Sender<Event>,
    stands: Sender<()>,
    until: Receiver<()>,
}

impl EventSink for Held {
    fn send(&mut self, event: Event) -> ControlFlow<()> {
        if matches!(event, Event::Token { .. }) {
            let _ = self.stands.send(()); // only the first one is awaited
            let _ = self.until.recv(); // nothing is ever sent
        }
        EventSink::send(&mut self.events, event)
    }
}

/// Submits a request that blocks the engine until the value returned with its events is dropped. So no request is accepted or
/// finished meanwhile, however long this thread waits for a processor.
fn hold(handle: &Handle, request: Request) -> (Receiver<Event>, Sender<()>) {
    let (events, receive) = channel();
    let (go, until) = channel();
    let (stands, standing) = channel();
    handle.submit_to(request, Box::new(Held { events, stands, until })).expect("there is room");
    standing.recv().expect("its first token comes");
    (receive, go)
}

#[test]
fn concurrent_requests_get_the_same_answers_as_alone() {
    for architecture in ["qwen35moe", "llama"] {
        // sixteen at once
        let handle = open(architecture, engine::Options { max_seqs: 16, ..options() });
        let shared = prompt(150, 9);
        let mut requests: Vec<Request> =
            (0..16).map(|i| greedy(prompt(25 + i % 12 * 20, i as u32), 10 + i)).collect();
        // requests with and without a shared prefix alternate
        for (i, r) in requests.iter_mut().enumerate().skip(6) {
            r.prompt = [&shared[..], &r.prompt[..20]].concat();
            r.checkpoints = vec![150];
            r.n = 1 + i % 2;
        }
        let (first, go) = hold(&handle, requests[0].clone());
        let mut events = vec![first];
        events.extend(requests[1..].iter().map(|r| handle.submit(r.clone()).expect("there is room")));
        drop(go);
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
        assert_eq!(handle.stats().finished, 16);
        assert!(matches!(handle.submit(greedy(prompt(3, 1), 1)), Err(SubmitError::Stopping)));
    }
}

/// A sink that closes at its first token.
struct Leaving(Listener);

impl EventSink for Leaving {
    fn send(&mut self, event: Event) -> ControlFlow<()> {
        if matches!(event, Event::Token { .. }) {
            self.0.gone.store(true, Ordering::Relaxed);
        }
        self.0.send(event)
    }
    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

#[test]
fn a_cancelled_request_frees_its_place() {
    let handle = open("qwen35", engine::Options { max_seqs: 1, ..options() });
    let gone = Arc::new(AtomicBool::new(false));
    let listen = || {
        let (events, receive) = channel();
        (Listener { events, gone: Arc::clone(&gone) }, receive)
    };
    // a long request, and two queued ones
    let (long, events) = listen();
    handle.submit_to(greedy(prompt(20, 1), 300), Box::new(Leaving(long))).expect("there is room");
    let (second, second_events) = listen();
    handle.submit_to(greedy(prompt(20, 2), 300), Box::new(second)).expect("there is room");
    let third = handle.submit(greedy(prompt(20, 3), 5)).expect("there is room");
    assert_eq!(collect(&third).expect("its turn comes")[&0].tokens.len(), 5);
    assert!(collect(&second_events).expect("silence").is_empty(), "it went away before its turn");
    let n = events.iter().count();
    assert!(n < 10, "{n} events came, most of them after the listener had left");
    // a receiver that is gone does the same
    let (send, _) = channel::<Event>();
    handle.submit_to(greedy(prompt(20, 4), 300), Box::new(send)).expect("there is room");
    let last = handle.submit(greedy(prompt(20, 3), 5)).expect("there is room");
    assert_eq!(collect(&last).expect("its turn comes")[&0].tokens.len(), 5);
    assert_eq!(handle.stats().cancelled, 3);
}

#[test]
fn the_queue_is_bounded_and_stopping_notifies_all_requests() {
    let handle = open("qwen3", engine::Options { max_seqs: 1, ..options() });
    let (first, go) = hold(&handle, greedy(prompt(30, 1), 350));
    let mut running = vec![first];
    let full = loop {
        match handle.submit(greedy(prompt(30, 1), 350)) {
            Ok(events) => running.push(events),
            Err(e) => break e,
        }
    };
    assert_eq!(running.len(), 1 + 16);
    let SubmitError::QueueFull { retry_after } = full else { panic!("{full}") };
    assert!((Duration::from_secs(1)..=Duration::from_secs(60)).contains(&retry_after));
    handle.shutdown(Shutdown::Drain);
    handle.shutdown(Shutdown::Now);
    drop(go);
    handle.join().expect("the thread ends well");
    assert!(running.iter().all(|events| matches!(collect(events), Err(Error::Stopped))));
}

#[test]
fn a_burst_uses_all_places() {
    let handle = open("qwen3", engine::Options { max_seqs: 4, ..options() });
    let (first, go) = hold(&handle, greedy(prompt(30, 1), 350));
    let mut taken = vec![first];
    let mut places = Vec::new();
    for i in 0..30 {
        // half of them submit their prompts later
        if i % 2 == 0 {
            places.extend(handle.reserve());
        } else {
            taken.extend(handle.submit(greedy(prompt(30, 1), 350)));
        }
    }
    // four run, and sixteen wait
    assert_eq!((taken.len(), places.len()), (10, 10));
    assert!(matches!(handle.reserve(), Err(SubmitError::QueueFull { .. })));
    drop(places.pop());
    let (send, events) = channel();
    let place = handle.reserve().expect("one was given back");
    handle.submit_in(place, greedy(prompt(5, 1), 3), Box::new(send)).expect("it has a place");
    drop((taken, places, go));
    assert_eq!(collect(&events).expect("its turn comes")[&0].tokens.len(), 3);
    handle.shutdown(Shutdown::Drain);
    assert!(matches!(handle.reserve(), Err(SubmitError::Stopping)));
}

#[test]
fn impossible_requests_are_refused_with_the_numbers() {
    let handle = open("qwen35moe", options());
    let refuse = |r: Request| handle.submit(r).expect_err("it cannot be served").to_string();
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
fn preemption_changes_no_answer() {
    for architecture in ["qwen35moe", "qwen3"] {
        // four sequences of 390 tokens need 7 pages each, and there are 12
        let small = engine::Options { kv_tokens: Some(11 * 64), ..options() };
        let mut e = engine(architecture, &small);
        let requests: Vec<Request> = (0..4).map(|i| greedy(prompt(30, i), 360)).collect();
        let events: Vec<_> = requests.iter().map(|r| submit(&mut e, r.clone()).1).collect();
        finish(&mut e);
        for (r, events) in requests.iter().zip(&events) {
            let got = collect(events).expect("all are finished");
            assert_eq!(got[&0].tokens, alone(architecture, r), "{architecture}");
        }
        assert!(e.stats().preemptions > 0, "{:?}", e.stats());
    }
}

#[test]
fn a_waiting_prompt_is_retried_only_after_a_change() {
    for architecture in ["qwen35moe", "qwen3"] {
        // room for one of them
        let small = engine::Options { kv_tokens: Some(7 * 64), ..options() };
        let mut e = engine(architecture, &small);
        let requests: Vec<Request> = (0..3).map(|i| greedy(prompt(150, i), 200)).collect();
        let events: Vec<_> = requests.iter().map(|r| submit(&mut e, r.clone()).1).collect();
        finish(&mut e);
        for (r, events) in requests.iter().zip(&events) {
            let got = collect(events).expect("all are finished");
            assert_eq!(got[&0].tokens, alone(architecture, r), "{architecture}");
        }
        let stats = e.stats();
        assert!(stats.steps > 500 && stats.prompt_searches < 100, "{architecture}: {stats:?}");
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
    // a failing request affects no other
    let broken = Some(Box::new(Steps { list: vec![], at: 1 }) as Box<dyn Constraint>);
    let other = handle.submit(greedy(prompt(20, 1), 20)).unwrap();
    let e = collect(&handle.submit(Request { constraint: broken, ..greedy(prompt(9, 3), 5) }).unwrap());
    assert!(e.unwrap_err().to_string().contains("no next step"));
    assert_eq!(collect(&other).unwrap()[&0].tokens.len(), 20);
}

#[test]
fn reasoning_ends_with_its_budget() {
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
    // reasoning that ends by itself is not changed
    let close = plain[3];
    let thinking = Some(ThinkingBudget { max_tokens: 6, close, end: vec![close] });
    let got = collect(&handle.submit(Request { thinking, ..greedy(prompt(40, 3), 12) }).unwrap()).unwrap();
    assert_eq!(got[&0].tokens, plain);
}

#[test]
fn answers_have_at_least_min_tokens() {
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
fn scores_and_pooling_do_not_depend_on_the_split() {
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

#[test]
fn a_prompt_is_pooled_the_same_though_its_beginning_is_cached() {
    for architecture in ["qwen35moe", "llama"] {
        for pooling in [engine::Pooling::Cls, engine::Pooling::Last, engine::Pooling::Mean] {
            let pool = |handle: &Handle| {
                let request = Request { pooling: Some(pooling), ..greedy(prompt(130, 5), 0) };
                let events = handle.submit(request).unwrap();
                events.iter().find_map(|e| if let Event::Embedding(x) = e { Some(x) } else { None }).unwrap()
            };
            let fresh = pool(&open(architecture, options()));
            let handle = open(architecture, options());
            let cached = collect(&handle.submit(greedy(prompt(130, 5), 3)).unwrap()).unwrap();
            assert!(!cached[&0].tokens.is_empty());
            assert_eq!(pool(&handle), fresh, "{architecture}, {pooling:?}");
        }
    }
}

/// Tokens that have arrived since the last call.
fn tokens(events: &Receiver<Event>) -> usize {
    events.try_iter().filter(|e| matches!(e, Event::Token { .. })).count()
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one_nor_an_answer_for_either() {
    for architecture in ["qwen35moe", "llama"] {
        let mut e = engine(architecture, &engine::Options { batch_tokens: 32, ..options() });
        let (_, answering) = submit(&mut e, greedy(prompt(10, 1), 300));
        while tokens(&answering) == 0 {
            assert_eq!(e.step(), Step::Worked);
        }
        let (_, long) = submit(&mut e, greedy(prompt(380, 2), 1));
        e.step();
        assert_eq!(tokens(&answering), 1);
        let (_, short) = submit(&mut e, greedy(prompt(20, 3), 1));
        let (mut short_after, mut long_after) = (0, 0);
        for step in 1.. {
            assert_eq!(e.step(), Step::Worked);
            assert_eq!(tokens(&answering), 1, "an answer has a token in every step");
            if short_after == 0 && tokens(&short) == 1 {
                short_after = step;
            }
            if tokens(&long) == 1 {
                long_after = step;
                break;
            }
        }
        assert!(
            (1..=3).contains(&short_after) && long_after >= 3 * short_after,
            "{short_after} {long_after}"
        );
    }
}

#[test]
fn a_cancelled_request_is_removed_after_one_step() {
    for architecture in ["qwen35moe", "qwen3"] {
        let mut e = engine(architecture, &options());
        let at_first = e.stats().cache;
        let requests = [greedy(prompt(300, 1), 50), greedy(prompt(20, 2), 300), greedy(prompt(90, 3), 100)];
        let n = [1, 3, 1];
        let all: Vec<_> = (requests.into_iter().zip(n))
            .map(|(r, n)| submit(&mut e, Request { n, cache: false, ..r }))
            .collect();
        for _ in 0..5 {
            e.step();
        }
        assert!(e.stats().running > 1);
        all.iter().for_each(|(id, _)| e.cancel(*id));
        assert_eq!(e.step(), Step::Idle);
        let stats = e.stats();
        assert_eq!((stats.running, stats.waiting, stats.cancelled), (0, 0, 3));
        assert_eq!(stats.cache, at_first, "every page is free again");
        e.audit().expect("every page and slot is accounted for");
        let (_, events) = submit(&mut e, greedy(prompt(9, 3), 4));
        finish(&mut e);
        assert_eq!(collect(&events).expect("it can be served")[&0].tokens.len(), 4);
    }
}

/// A sink that panics at its first event.
struct Faulty;

impl EventSink for Faulty {
    fn send(&mut self, _: Event) -> ControlFlow<()> {
        panic!("a listener with a bug");
    }
}

#[test]
fn a_panic_is_reported_to_all_requests() {
    let handle = open("llama", options());
    let (events, go) = hold(&handle, greedy(prompt(20, 1), 350));
    handle.submit_to(greedy(prompt(5, 2), 5), Box::new(Faulty)).expect("there is room");
    drop(go);
    assert!(matches!(collect(&events), Err(Error::Panicked)));
    assert!(matches!(handle.join(), Err(Error::Panicked)));
    assert!(handle.is_finished());
    assert!(matches!(handle.submit(greedy(prompt(3, 1), 1)), Err(SubmitError::Stopping)));
}

#[test]
fn draining_finishes_accepted_requests_and_accepts_no_more() {
    let file = tiny("qwen35moe", Mix::Q4KM).expect("a tiny model of a known architecture");
    let handle = Handle::open(file, &Options { engine: options(), queue: 16 }, |_, _| {}).expect("it opens");
    let all: Vec<_> =
        (0..8).map(|i| handle.submit(greedy(prompt(30, i), 20)).expect("there is room")).collect();
    handle.shutdown(Shutdown::Drain);
    assert!(matches!(handle.submit(greedy(prompt(3, 1), 1)), Err(SubmitError::Stopping)));
    assert!(all.iter().all(|events| collect(events).expect("it was accepted")[&0].tokens.len() == 20));
    handle.join().expect("the thread ends well");
}

/// Accepted requests are answered, however late their prompt is submitted.
#[test]
fn draining_waits_for_reserved_places() {
    let handle = open("qwen3", options());
    let place = handle.reserve().expect("there is room");
    let unused = handle.reserve().expect("there is room");
    handle.shutdown(Shutdown::Drain);
    assert!(matches!(handle.reserve(), Err(SubmitError::Stopping)));
    let (send, events) = channel();
    handle.submit_in(place, greedy(prompt(20, 1), 5), Box::new(send)).expect("it was accepted");
    drop(unused);
    assert_eq!(collect(&events).expect("it is served")[&0].tokens.len(), 5);
    handle.join().expect("the thread ends well");
}

/// Keeps its channel open at both ends, like a server's: only an event ends it.
struct Endless(Sender<Event>);

impl EventSink for Endless {
    fn send(&mut self, event: Event) -> ControlFlow<()> {
        EventSink::send(&mut self.0, event)
    }
    fn is_closed(&self) -> bool {
        false
    }
}

/// No submission is lost between the engine's last check of its queue and its end.
#[test]
fn a_submission_during_shutdown_gets_a_result() {
    for round in 0..30 {
        let handle = open("llama", options());
        let how = if round % 2 == 0 { Shutdown::Now } else { Shutdown::Drain };
        let (go, wait) = (std::sync::Barrier::new(2), Duration::from_secs(60));
        std::thread::scope(|scope| {
            let submitting = scope.spawn(|| {
                go.wait();
                let mut all = Vec::new();
                // Until it is refused.
                loop {
                    let (send, events) = channel();
                    let sink = Endless(send.clone());
                    match handle.submit_to(greedy(prompt(2, 1), 1), Box::new(sink)) {
                        Ok(()) => all.push((send, events)),
                        Err(SubmitError::QueueFull { .. }) => std::thread::yield_now(),
                        Err(_) => return all,
                    }
                }
            });
            go.wait();
            handle.shutdown(how);
            for (_open, events) in submitting.join().expect("it ends") {
                let last = loop {
                    let event = events.recv_timeout(wait).expect("an event arrives");
                    if matches!(event, Event::Done { .. } | Event::Failed(_)) {
                        break event;
                    }
                };
                let served = matches!(last, Event::Done { .. });
                assert!(served || how == Shutdown::Now, "what was accepted is answered");
            }
        });
        handle.join().expect("the thread ends well");
    }
}

#[test]
fn a_late_cancel_affects_no_other_request() {
    let mut e = engine("qwen3", &options());
    let (first, events) = submit(&mut e, greedy(prompt(20, 1), 3));
    finish(&mut e);
    assert_eq!(collect(&events).expect("it is served")[&0].tokens.len(), 3);
    let (second, events) = submit(&mut e, greedy(prompt(20, 2), 3));
    assert_ne!(first, second);
    e.cancel(first);
    finish(&mut e);
    assert_eq!(collect(&events).expect("it is served")[&0].tokens.len(), 3);
}
