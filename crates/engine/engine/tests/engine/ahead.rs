//! Steps that a graphics device begins before the host has seen the tokens of the step before: answers, caches and failures are those of an
//! engine that waits for each step.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use crate::picks::Few;

use crate::common::drive::{Got, Listener, answer, collect, finish, greedy, options, prompt, submit};
use octet_engine::Error;
use octet_engine::device::Device;
use octet_engine::engine::speculation::{self, Mode};
use octet_engine::engine::{self, DiskOptions, Engine, Finish, Pooling, Request, Step, ThinkingBudget};
use octet_engine::sampler::SamplerParams;
use octet_synth::{Mix, MoeShape, synthetic, tiny_shape};
use octet_vulkan::faults::{Fault, Faults};
use octet_vulkan::{Vulkan, VulkanOptions};

const ARCHITECTURES: [&str; 2] = ["llama", "qwen35moe"];

/// An engine on the device, whose steps may be submitted ahead, or not.
fn open(
    index: usize,
    architecture: &str,
    runs_ahead: bool,
    faults: Option<Arc<Faults>>,
    options: engine::Options,
) -> Engine {
    let device = Device::new("vulkan", move || {
        let mut device =
            Vulkan::new(&VulkanOptions { index, lazy_kernels: true, ..VulkanOptions::default() })?;
        if !runs_ahead {
            device.never_run_ahead();
        }
        if let Some(faults) = &faults {
            device.inject_faults(Arc::clone(faults));
        }
        Ok(device)
    });
    // a layer of each kind, and few experts: hundreds of steps a test, in software
    let mut shape = tiny_shape(architecture).and_then(|s| s.with_layers(2)).expect("a known shape");
    shape.moe = shape.moe.map(|moe| MoeShape { experts: 4, top_k: 1, ..moe });
    let file = synthetic(&shape, Mix::Q4KM, None, 0).expect("a tiny model");
    Engine::open(&file, &engine::Options { device: Some(device), ..options }, &mut |_, _| {})
        .expect("it opens")
}

fn more() -> engine::Options {
    engine::Options { snapshot_memory: Some(64 << 20), ..options() }
}

/// An engine whose steps may be submitted ahead, and one that waits for each step.
fn both(index: usize, architecture: &str, options: &engine::Options) -> [Engine; 2] {
    [true, false].map(|ahead| open(index, architecture, ahead, None, options.clone()))
}

/// All answers to requests that arrive after so many steps, of each request in turn.
fn answers(engine: &mut Engine, requests: &[(usize, Request)]) -> Vec<Got> {
    let mut all = Vec::new();
    for step in 0.. {
        all.extend(requests.iter().filter(|(at, _)| *at == step).map(|(_, r)| submit(engine, r.clone()).1));
        let idle = engine.step() == Step::Idle;
        engine.audit().expect("every page and slot is accounted for");
        if idle && requests.iter().all(|(at, _)| *at <= step) {
            break;
        }
    }
    all.iter().flat_map(|events| collect(events).expect("answers").into_values()).collect()
}

/// Both engines give the same answers to these requests, then to conversations that continue these answers, from the same point in the cache.
/// They compute the same tokens for that.
fn compare(what: &str, engines: &mut [Engine; 2], requests: &[(usize, Request)]) -> Vec<Got> {
    let want = compare_answers(what, engines, requests);
    let [a, w] = engines.each_ref().map(|e| e.stats());
    assert_eq!((a.generated_tokens, a.computed_tokens), (w.generated_tokens, w.computed_tokens), "{what}");
    want
}

fn compare_answers(
    what: &str,
    [ahead, waiting]: &mut [Engine; 2],
    requests: &[(usize, Request)],
) -> Vec<Got> {
    let (got, want) = (answers(ahead, requests), answers(waiting, requests));
    assert_eq!(got, want, "{what}");
    let prompts = requests.iter().flat_map(|(_, r)| std::iter::repeat_n(&r.prompt, r.n));
    let conversations: Vec<_> = prompts.zip(&want).map(|(p, got)| [&p[..], &got.tokens].concat()).collect();
    for (i, conversation) in conversations.into_iter().enumerate() {
        let next = greedy([conversation, prompt(9, 50 + i as u32)].concat(), 3);
        let [got, want] = [&mut *ahead, &mut *waiting].map(|e| answer(e, next.clone()));
        assert_eq!(got, want, "{what}: conversation {i}, and its cached tokens");
    }
    let (a, w) = (ahead.stats(), waiting.stats());
    assert_eq!((a.cache.taken, a.cache.snapshots), (w.cache.taken, w.cache.snapshots), "{what}: snapshots");
    assert_eq!(w.steps_ahead + w.steps_dropped, 0, "{what}");
    want
}

fn sampled(temperature: f32) -> SamplerParams {
    SamplerParams { temperature, top_k: 20, seed: Some(7), ..SamplerParams::default() }
}

#[test]
fn answers_are_those_of_steps_that_wait() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ARCHITECTURES {
        let mut engines = both(index, architecture, &more());
        let plain = answer(&mut engines[1], Request { cache: false, ..greedy(prompt(20, 4), 40) }).0;
        answer(&mut engines[0], Request { cache: false, ..greedy(prompt(20, 4), 40) });
        // the batch changes: by requests that arrive, by answers that end at their limit, at a token and at a string
        let requests = vec![
            (0, greedy(prompt(9, 1), 50)),
            (0, greedy(prompt(70, 2), 23)),
            (10, greedy(prompt(30, 3), 70)),
            (12, Request { stop_token_ids: vec![plain[25]], ..greedy(prompt(20, 4), 60) }),
            (13, Request { stop: vec!["e".into(), "a".into()], ..greedy(prompt(33, 5), 60) }),
            (40, greedy(prompt(12, 6), 1)),
            (41, greedy(prompt(13, 7), 2)),
            (60, greedy(prompt(14, 8), 40)),
            (70, Request { min_tokens: 9, ..greedy(prompt(15, 9), 30) }),
            (75, Request { sampling: sampled(0.8), ..greedy(prompt(16, 10), 9) }),
        ];
        let want = compare(architecture, &mut engines, &requests);
        assert_eq!(want[3].finish, Some(Finish::StopToken));
        let stats = engines[0].stats();
        assert!(stats.steps_ahead > 50 && stats.steps_ahead < stats.steps, "{stats:?}");
    }
}

/// Requests of other kinds beside answers that go ahead: steps with them wait.
fn kinds() -> Vec<(usize, Request)> {
    let beside = |salt| greedy(prompt(11 + salt as usize, salt), 14);
    let logprobs = SamplerParams { logprobs: Some(3), ..SamplerParams::greedy() };
    vec![
        (0, greedy(prompt(9, 1), 130)),
        (9, Request { constraint: Some(Box::new(Few)), ..beside(2) }),
        (33, Request { sampling: logprobs, ..beside(3) }),
        (57, Request { routes: true, ..beside(4) }),
        (80, Request { pooling: Some(Pooling::Last), max_tokens: Some(0), ..beside(5) }),
        (90, Request { prompt_logprobs: Some(1), ..beside(6) }),
    ]
}

#[test]
fn answers_beside_other_kinds_of_requests() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ARCHITECTURES {
        let mut engines = both(index, architecture, &more());
        let want = compare(architecture, &mut engines, &kinds());
        assert_eq!(want[2].logprobs.len(), 14);
        assert_eq!(want[3].routes.len(), if architecture == "llama" { 0 } else { 14 });
        assert!(engines[0].stats().steps_ahead > 50, "{:?}", engines[0].stats());
    }
}

/// Steps with guesses wait, and are mixed with steps ahead, whose guesses are thrown away.
#[test]
fn guesses_beside_steps_ahead_change_no_answer() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    // guesses that may be left out, too, where a wrong one costs a state
    for (architecture, always) in [("llama", true), ("qwen35moe", true), ("qwen35moe", false)] {
        let speculation = speculation::Options { mode: Mode::Lookup, always, ..Default::default() };
        let mut engines = both(index, architecture, &engine::Options { speculation, ..more() });
        engines[0].bet_on_samples();
        let text: Vec<u32> = (0..6).flat_map(|_| prompt(7, 30)).collect();
        let more = [
            (3, greedy(text.clone(), 60)),
            (20, Request { sampling: sampled(3.0), n: 2, ..greedy(text.clone(), 40) }),
            (30, Request { stop: vec!["e".into()], ..greedy(text, 60) }),
            (150, Request { sampling: sampled(3.0), ..greedy(prompt(20, 40), 40) }),
        ];
        let what = format!("{architecture}, always: {always}");
        compare_answers(&what, &mut engines, &[kinds(), more.to_vec()].concat());
        let stats = engines[0].stats();
        assert!(stats.steps_ahead > 20 && stats.steps_dropped > 0, "{what}: {stats:?}");
        let guesses = stats.speculation;
        // the other one repeats little
        assert!(!always || guesses.drafted > 0, "{what}: {stats:?}");
        assert!(!always || architecture != "llama" || guesses.accepted > 50, "{what}: {stats:?}");
    }
}

/// An answer that ends where a page ends needs no further page: nothing is evicted for the step behind it.
#[test]
fn steps_ahead_evict_nothing() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ARCHITECTURES {
        // a cache full of texts of one page, and an answer that ends at the first token of its second page
        let small = engine::Options { max_seqs: 1, kv_tokens: Some(3 * 64), ..more() };
        let mut engines = both(index, architecture, &small);
        let ends = |salt| {
            let base = greedy(prompt(20, salt), 60);
            let [tokens, _] =
                engines.each_mut().map(|e| answer(e, Request { cache: false, ..base.clone() }).0);
            let stop_token_ids = vec![tokens[44]];
            (!tokens[..44].contains(&tokens[44])).then_some(Request { stop_token_ids, ..base })
        };
        let last = (0..60).find_map(ends).expect("the model says several things");
        let ahead = engines[0].stats().steps_ahead;
        // without states, only whole pages are cached
        let fill = if architecture == "llama" { 60 } else { 40 };
        let [got, want] = engines.each_mut().map(|e| {
            (100..106).for_each(|salt| drop(answer(e, greedy(prompt(fill, salt), 10))));
            let full = e.stats().cache;
            let got = answers(e, &[(0, last.clone())]);
            let after = e.stats().cache;
            assert!(full.pages_idle + 1 >= full.pages, "{architecture}: {full:?}");
            (got, after.pages_idle, after.snapshots, after.evicted - full.evicted)
        });
        assert_eq!(got, want, "{architecture}");
        assert_eq!(want.0[0].finish, Some(Finish::StopToken));
        assert!(engines[0].stats().steps_ahead > ahead + 30);
    }
}

/// Bets on sampled answers are often lost: the device computed another token than the one that was chosen.
#[test]
fn lost_bets_leave_no_trace() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ARCHITECTURES {
        let mut engines = both(index, architecture, &more());
        engines[0].bet_on_samples();
        let request = |salt: u32, temperature, n, limit| Request {
            sampling: sampled(temperature),
            n,
            snapshot_after: vec![5, 17, 40],
            ..greedy(prompt(20 + salt as usize, salt), limit)
        };
        let requests = vec![
            (0, request(1, 2.0, 1, 40)),
            (7, request(2, 3.0, 2, 50)),
            (20, Request { stop: vec!["e".into()], ..request(3, 2.5, 1, 60) }),
            (90, request(4, 1.5, 1, 40)),
        ];
        compare(architecture, &mut engines, &requests);
        let stats = engines[0].stats();
        assert!(stats.steps_ahead > 5 && stats.steps_dropped > 20, "{stats:?}");
    }
}

#[test]
fn snapshots_are_taken_where_they_are_asked_for() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ARCHITECTURES {
        let mut engines = both(index, architecture, &more());
        // an answer with a token that comes for the first time after more than 20
        let late = |salt| {
            let base = greedy(prompt(80, salt), 60);
            let [tokens, _] =
                engines.each_mut().map(|e| answer(e, Request { cache: false, ..base.clone() }).0);
            let at = (20..50).find(|&i| !tokens[..i].contains(&tokens[i]))?;
            Some((base, tokens, at))
        };
        let (base, tokens, at) = (7..60).find_map(late).expect("the model says several things");
        let ids = vec![tokens[at]];
        let thinking = ThinkingBudget { max_tokens: 12, close: 3, end: vec![9, 8, 3] };
        for request in [
            Request { snapshot_before: ids.clone(), ..base.clone() },
            Request { snapshot_after: ids.clone(), ..base.clone() },
            Request { stop_token_ids: ids.clone(), ..base.clone() },
            Request { checkpoints: vec![40, 60], ..base.clone() },
            Request { thinking: Some(thinking), ..base.clone() },
        ] {
            engines.iter_mut().for_each(Engine::clear);
            let before = engines[0].stats().steps_ahead;
            compare(architecture, &mut engines, &[(0, request)]);
            assert!(engines[0].stats().steps_ahead > before + 10);
            // and where a conversation branches off
            let other = greedy([&base.prompt[..], &tokens[..at], &[99, 98, 97]].concat(), 5);
            let [got, want] = engines.each_mut().map(|e| answer(e, other.clone()));
            assert_eq!(got, want, "{architecture}");
        }
    }
}

#[test]
fn several_answers_and_full_slots() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ARCHITECTURES {
        let one = engine::Options { max_seqs: 1, ..more() };
        let mut engines = both(index, architecture, &one);
        let requests = [(0, greedy(prompt(20, 1), 40)), (5, greedy(prompt(20, 2), 40))];
        compare(architecture, &mut engines, &requests);
        assert!(engines[0].stats().steps_ahead > 60, "a single slot has a spare one");

        let two = engine::Options { max_seqs: 2, ..more() };
        let mut engines = both(index, architecture, &two);
        compare(architecture, &mut engines, &[(0, Request { n: 2, ..greedy(prompt(20, 1), 40) })]);
        // with states, two answers need two spare slots, and there is one; the continued conversations have it
        let both_ran = engines[0].stats().steps_ahead > 30;
        assert_eq!(both_ran, architecture == "llama", "{architecture}: {:?}", engines[0].stats());

        let mut engines = both(index, architecture, &more());
        let many = Request { n: 3, ..greedy(prompt(20, 1), 30) };
        compare(architecture, &mut engines, &[(0, many.clone()), (9, many), (15, greedy(prompt(30, 2), 20))]);
        assert!(engines[0].stats().steps_ahead > 10);
    }
}

#[test]
fn a_request_without_room_stops_no_steps_ahead() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    // without states: pages alone decide
    let architecture = "llama";
    // of 10 pages the first one reserves 5, and the second one needs 6
    let small = engine::Options { kv_tokens: Some(9 * 64), ..more() };
    let mut engines = both(index, architecture, &small);
    compare(architecture, &mut engines, &[(0, greedy(prompt(30, 1), 300)), (5, greedy(prompt(350, 2), 20))]);
    let stats = engines[0].stats();
    assert!(stats.preemptions == 0 && stats.steps_ahead > 200, "{architecture}: {stats:?}");
}

#[test]
fn preemption_changes_no_answer() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    // with states, which have to be computed again, too
    let architecture = "qwen35moe";
    // two sequences of 330 tokens need 6 pages each, 5 to start, and there are 10
    let small = engine::Options { kv_tokens: Some(9 * 64), ..more() };
    let [mut ahead, mut waiting] = both(index, architecture, &small);
    let requests: Vec<_> = (0..2).map(|i| (0, greedy(prompt(30, i), 300))).collect();
    let (got, want) = (answers(&mut ahead, &requests), answers(&mut waiting, &requests));
    for (got, want) in got.iter().zip(&want) {
        assert_eq!((&got.tokens, got.finish), (&want.tokens, want.finish), "{architecture}");
    }
    let stats = ahead.stats();
    assert!(stats.preemptions > 0 && stats.steps_ahead > 50, "{stats:?}");
}

#[test]
fn what_is_stored_on_disk_is_the_same() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ARCHITECTURES {
        let folders = [true, false].map(|_| tempfile::tempdir().expect("a folder"));
        let on = |dir: &Path| engine::Options {
            disk: Some(DiskOptions { dir: dir.into(), bytes: 1 << 30 }),
            ..more()
        };
        let engine = |i: usize| open(index, architecture, i == 0, None, on(folders[i].path()));
        let first = greedy(prompt(100, 7), 50);
        let tokens = [0, 1].map(|i| {
            let mut e = engine(i);
            let (tokens, _) = answer(&mut e, first.clone());
            e.flush();
            assert_eq!(e.stats().steps_ahead > 30, i == 0);
            tokens
        });
        assert_eq!(tokens[0], tokens[1], "{architecture}");
        let files = |dir: &Path| -> Vec<_> {
            let all = std::fs::read_dir(dir).expect("a folder").map(|f| f.expect("a file"));
            let mut all: Vec<_> = all
                .filter(|f| f.file_type().expect("a type").is_file())
                .map(|f| (f.file_name(), std::fs::read(f.path()).expect("a file")))
                .collect();
            all.sort();
            all
        };
        let [a, b] = folders.each_ref().map(|f| files(f.path()));
        assert!(!a.is_empty() && a == b, "{architecture}: files with the same names and bytes");
        let next = greedy([&first.prompt[..], &tokens[0], &prompt(9, 1)].concat(), 10);
        let [got, want] = [0, 1].map(|i| answer(&mut engine(i), next.clone()));
        assert!(got == want && got.1 > 100, "{architecture}: {got:?}, {want:?}");
    }
}

#[test]
fn requests_that_are_cancelled_harm_nobody() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ARCHITECTURES {
        let mut e = open(index, architecture, true, None, more());
        let one = greedy(prompt(30, 1), 60);
        let (want, _) = answer(&mut e, Request { cache: false, ..one.clone() });
        for steps in [20, 21, 33] {
            let (_, kept) = submit(&mut e, one.clone());
            let (events, left) = channel();
            let gone = Arc::new(AtomicBool::new(false));
            let prepared = e.rules().prepare(greedy(prompt(40, 2), 300)).expect("it can be served");
            e.submit(prepared, Box::new(Listener { events, gone: gone.clone() }));
            let before = e.stats().steps_ahead;
            (0..steps).for_each(|_| assert_eq!(e.step(), Step::Worked));
            assert!(e.stats().steps_ahead > before + 10, "{:?}", e.stats());
            gone.store(true, Ordering::Relaxed);
            finish(&mut e);
            assert_eq!(collect(&kept).expect("an answer")[&0].tokens, want, "{architecture}");
            // what it left in the cache is right
            let tokens = collect(&left).expect("no failure").remove(&0).expect("some").tokens;
            let next = [prompt(40, 2), tokens].concat();
            let (got, _) = answer(&mut e, greedy(next.clone(), 20));
            assert_eq!(got, answer(&mut e, Request { cache: false, ..greedy(next, 20) }).0, "{architecture}");
        }
        // alone, with the last step submitted
        let (mut heard, dropped) = (0, e.stats().steps_dropped);
        let all = e.generate(greedy(prompt(30, 1), 60), &mut |_| {
            heard += 1;
            if heard == 25 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(all.expect("it is cancelled").finish, Finish::Cancelled);
        finish(&mut e);
        assert_eq!(e.stats().steps_dropped, dropped + 1);
        assert_eq!(answer(&mut e, one.clone()).0, want, "{architecture}");
    }
}

#[test]
fn a_device_that_fails_ahead_fails_the_requests() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for fault in [Fault::Lost, Fault::OutOfMemory] {
        let faults = Arc::new(Faults::default());
        let mut e = open(index, "qwen35moe", true, Some(faults.clone()), more());
        let request = Request { cache: false, ..greedy(prompt(30, 1), 60) };
        let (want, _) = answer(&mut e, request.clone());
        // It meets the submission of the next step: only a lost device counts, as the next step can be computed in its turn.
        let (_, events) = submit(&mut e, request.clone());
        (0..20).for_each(|_| assert_eq!(e.step(), Step::Worked));
        assert!(e.stats().steps_ahead > 30);
        faults.inject(fault);
        finish(&mut e);
        match (fault, collect(&events)) {
            (Fault::OutOfMemory, got) => assert_eq!(got.expect("an answer")[&0].tokens, want),
            (Fault::Lost, got) => {
                let error = got.expect_err("the device failed");
                assert!(matches!(&error, Error::Device(why) if why.contains("lost")), "{error}");
            }
        }
        assert_eq!(e.is_broken(), fault == Fault::Lost);
        e.audit().expect("every page and slot is accounted for");
        if e.is_broken() {
            continue;
        }
        // It meets a step that nobody wants any more.
        let (id, _events) = submit(&mut e, request.clone());
        (0..20).for_each(|_| assert_eq!(e.step(), Step::Worked));
        e.cancel(id);
        let (_, other) = submit(&mut e, Request { prompt: prompt(25, 3), ..request.clone() });
        let dropped = e.stats().steps_dropped;
        faults.inject(fault);
        finish(&mut e);
        assert_eq!(e.stats().steps_dropped, dropped + 1);
        assert_eq!(collect(&other).expect("it is not its failure")[&0].tokens.len(), 60);
        assert_eq!(answer(&mut e, request).0, want);
    }
}

/// A lost device is found when a step is dropped: then all requests fail, and the engine is idle.
#[test]
fn a_device_that_is_lost_in_a_dropped_step_is_broken() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let faults = Arc::new(Faults::default());
    let mut e = open(index, "qwen35moe", true, Some(faults.clone()), more());
    let request = greedy(prompt(30, 1), 60);
    let (id, _events) = submit(&mut e, Request { cache: false, ..request.clone() });
    (0..20).for_each(|_| assert_eq!(e.step(), Step::Worked));
    e.cancel(id);
    let (_, other) = submit(&mut e, request);
    let dropped = e.stats().steps_dropped;
    faults.inject(Fault::Lost);
    assert_eq!(e.step(), Step::Idle);
    assert!(matches!(collect(&other), Err(Error::Device(_))));
    assert!(e.is_broken() && e.stats().steps_dropped == dropped + 1, "{:?}", e.stats());
}
