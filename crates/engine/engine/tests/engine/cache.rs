//! The prefix cache in the engine: cached states equal computed ones, and
//! conversations only compute their new tokens.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use crate::common::drive::{
    Listener, WINDOWED, alone, answer, collect, engine, finish, greedy, options, prompt, submit,
};
use octet_compute::backend::KvType;
use octet_engine::engine::{self, DiskOptions, Engine, Event, Miss, MissReport, Request};
use proptest::prelude::*;

/// A model with recurrent layers, one without, and one with pages of windows.
const KINDS: [&str; 3] = ["qwen35moe", "qwen3", WINDOWED];

/// Bytes of `n` states of the tiny model.
fn states(n: u64) -> u64 {
    let mut e = engine("qwen35moe", &engine::Options { kv: KvType::F16.into(), ..options() });
    answer(&mut e, greedy(prompt(40, 1), 1));
    let stats = e.stats().cache;
    n * stats.snapshot_bytes / stats.snapshots as u64
}

#[test]
fn a_conversation_computes_only_new_tokens() {
    for architecture in KINDS {
        let mut e = engine(architecture, &options());
        let mut history = prompt(100, 7);
        let mut ideal = history.len() as u64;
        for turn in 0..5u32 {
            // the client names the end of its message, and where the answer's frame begins after it
            let request = Request { checkpoints: vec![history.len() - 3], ..greedy(history.clone(), 20) };
            let cold = alone(architecture, &request);
            let (tokens, cached) = answer(&mut e, request);
            assert_eq!(tokens, cold, "{architecture}, turn {turn}");
            if turn > 0 {
                // all but the answer's last token, which was never fed, and the new message
                assert_eq!(cached, history.len() - 16, "{architecture}, turn {turn}");
            }
            history.extend(tokens);
            history.extend(prompt(15, 40 + turn));
            ideal += if turn < 4 { 16 } else { 0 };
        }
        let stats = e.stats();
        assert_eq!(stats.computed_tokens, ideal, "{architecture}");
        assert_eq!(stats.prompt_tokens, stats.computed_tokens + stats.cached_tokens);
        if architecture == "qwen35moe" {
            assert_eq!(stats.cache.hits, 4);
        }
    }
}

#[test]
fn conversations_branch_at_the_ends_of_messages() {
    for architecture in KINDS {
        let room = engine::Options { snapshot_memory: Some(states(20)), ..options() };
        let mut e = engine(architecture, &room);
        let system = prompt(150, 7);
        for user in 0..4 {
            let tokens = [&system[..], &prompt(60, 100 + user)].concat();
            let request = Request { checkpoints: vec![150], ..greedy(tokens, 6) };
            let cold = alone(architecture, &request);
            let (got, cached) = answer(&mut e, request);
            assert_eq!(got, cold, "{architecture}");
            assert_eq!(cached, if user == 0 { 0 } else { 150 }, "{architecture}");
        }
        // the same again: all but the token whose logits are wanted
        let again = [&system[..], &prompt(60, 101)].concat();
        let (_, cached) = answer(&mut e, greedy(again, 6));
        assert!(cached >= 150, "{cached}");
    }
}

#[test]
fn an_unannounced_branch_is_found_the_third_time() {
    let mut e = engine("qwen35moe", &engine::Options { snapshot_memory: Some(states(20)), ..options() });
    let shared = prompt(200, 7);
    let mut cached = vec![];
    for user in 0..3 {
        let request = greedy([&shared[..], &[user], &prompt(50, 100 + user)].concat(), 4);
        let cold = alone("qwen35moe", &request);
        let (tokens, n) = answer(&mut e, request);
        assert_eq!(tokens, cold);
        cached.push(n);
    }
    assert_eq!(cached, [0, 0, 200]);
}

#[test]
fn tokens_of_the_answer_leave_snapshots() {
    let mut e = engine("qwen35moe", &engine::Options { snapshot_memory: Some(states(20)), ..options() });
    let base = greedy(prompt(80, 7), 60);
    let tokens = alone("qwen35moe", &base);
    // one that comes for the first time after 20 tokens
    let at =
        (20..40).find(|&i| !tokens[..i].contains(&tokens[i])).expect("the made-up model says several things");
    for before in [true, false] {
        e.clear();
        let mut request = base.clone();
        match before {
            true => request.snapshot_before = vec![tokens[at]],
            false => request.snapshot_after = vec![tokens[at]],
        }
        answer(&mut e, request);
        let kept = 80 + at + usize::from(!before);
        let other = [&base.prompt[..], &tokens[..kept - 80], &[99, 98, 97]].concat();
        let (got, cached) = answer(&mut e, greedy(other.clone(), 5));
        assert_eq!(cached, kept, "before: {before}");
        assert_eq!(got, alone("qwen35moe", &greedy(other, 5)));
    }
}

#[test]
fn salts_keep_conversations_apart() {
    for architecture in KINDS {
        let mut e = engine(architecture, &engine::Options { snapshot_memory: Some(states(20)), ..options() });
        let of = |salt: Option<&str>| Request {
            cache_salt: salt.map(str::to_string),
            checkpoints: vec![100],
            ..greedy(prompt(130, 7), 5)
        };
        let cold = alone(architecture, &of(None));
        for (salt, hit) in
            [(None, false), (Some("a"), false), (Some("b"), false), (Some("a"), true), (None, true)]
        {
            let (tokens, cached) = answer(&mut e, of(salt));
            assert_eq!(tokens, cold);
            assert_eq!(cached > 0, hit, "{architecture} {salt:?}");
        }
        let (_, cached) = answer(&mut e, Request { cache: false, ..of(None) });
        assert_eq!(cached, 0);
    }
}

fn miss(e: &mut Engine, request: Request) -> Option<Box<MissReport>> {
    let (_, events) = submit(e, Request { explain_miss: true, ..request });
    finish(e);
    events
        .iter()
        .find_map(|e| if let Event::Admitted { miss, .. } = e { Some(miss) } else { None })
        .expect("it ran")
}

#[test]
fn misses_are_explained() {
    let mut e = engine("qwen35moe", &options());
    let p = prompt(150, 7);
    let report = miss(&mut e, greedy(p.clone(), 3)).expect("nothing is known yet");
    assert_eq!((report.miss, report.shared, report.cached), (Miss::Unknown, 0, 0));
    let mut changed = p.clone();
    changed[97] += 1;
    let report = miss(&mut e, greedy(changed, 3)).expect("it differs");
    assert_eq!((report.shared, report.cached), (97, 0));
    assert!(report.prompt != report.earlier && !report.before.is_empty());
    assert!(report.line().is_ascii() && report.line().contains("97"), "{}", report.line());
    assert_eq!(miss(&mut e, greedy([&p[..], &[1]].concat(), 3)), None);
}

#[test]
fn little_memory_only_costs_time() {
    for architecture in KINDS {
        let small =
            engine::Options { kv_tokens: Some(7 * 64), snapshot_memory: Some(states(2)), ..options() };
        let mut e = engine(architecture, &small);
        for round in 0..3 {
            for who in 0..5 {
                let request = greedy(prompt(100 + 30 * round, who), 20);
                let cold = alone(architecture, &request);
                assert_eq!(answer(&mut e, request).0, cold, "{architecture}");
            }
        }
        let stats = e.stats();
        assert_eq!(stats.cache.pages_used, 0);
        if architecture == "qwen35moe" {
            assert!(stats.cache.evicted > 0 && stats.cache.snapshots <= 2, "{stats:?}");
        }
        e.clear();
        let stats = e.stats().cache;
        assert_eq!((stats.pages_idle, stats.snapshots, stats.snapshot_bytes), (0, 0, 0));
        e.audit().expect("every page and slot is accounted for");
    }
}

struct Open {
    request: Request,
    events: Receiver<Event>,
    gone: Arc<AtomicBool>,
}

/// An action of a simulated user.
#[derive(Debug, Clone)]
enum Action {
    /// A prompt of a family: number of common tokens at its beginning, number of its own tokens, number to generate.
    Submit {
        common: usize,
        own: usize,
        who: u32,
        answer: usize,
        n: usize,
        salt: bool,
    },
    Cancel(usize),
    Step(usize),
    Clear,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0usize..200, 1usize..100, 0u32..3, 1usize..60, 1usize..3, prop::bool::weighted(0.2)).prop_map(
            |(common, own, who, answer, n, salt)| Action::Submit { common: common / 50 * 50, own: own / 10 * 10 + 1, who, answer, n, salt }
        ),
        2 => (0usize..8).prop_map(Action::Cancel),
        6 => (1usize..12).prop_map(Action::Step),
        1 => Just(Action::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 40, ..ProptestConfig::default() })]

    /// Requests start, end and are cancelled at random, with little memory: pages and slots always add up, and every answer is the
    /// same as if its request had run alone.
    #[test]
    fn nothing_leaks_and_nothing_changes(
        kind in 0..KINDS.len(), on_disk in any::<bool>(), actions in prop::collection::vec(action(), 10..40),
    ) {
        let architecture = KINDS[kind];
        let dir = tempfile::tempdir().expect("a folder");
        let disk = DiskOptions { dir: dir.path().into(), bytes: 40 * states(1) };
        // With so few windowed pages, a step is cut, and no window is kept for long.
        let (pages, bytes) = if architecture == WINDOWED { (16, 1) } else { (8, states(3)) };
        let small = engine::Options {
            kv_tokens: Some(pages * 64), snapshot_memory: Some(bytes), disk: on_disk.then_some(disk), ..options()
        };
        let mut e = engine(architecture, &small);
        let mut cold: HashMap<Vec<u32>, Vec<u32>> = HashMap::new();
        let mut open: Vec<Open> = Vec::new();
        for action in actions {
            match action {
                Action::Submit { common, own, who, answer, n, salt } => {
                    let tokens = [&prompt(common, 7)[..], &prompt(own, 50 + who)].concat();
                    let cache_salt = salt.then(|| "x".to_string());
                    let request = Request { n, cache_salt, checkpoints: vec![common], ..greedy(tokens, answer) };
                    let prepared = e.rules().prepare(request.clone()).expect("it can be served");
                    let (send, events) = channel();
                    let gone = Arc::new(AtomicBool::new(false));
                    e.submit(prepared, Box::new(Listener { events: send, gone: Arc::clone(&gone) }));
                    open.push(Open { request, events, gone });
                }
                Action::Cancel(i) if i < open.len() => open.remove(i).gone.store(true, Ordering::Relaxed),
                Action::Cancel(_) => {}
                Action::Step(n) => {
                    for _ in 0..n {
                        e.step();
                    }
                }
                Action::Clear => e.clear(),
            }
            prop_assert_eq!(e.audit(), Ok(()));
        }
        finish(&mut e);
        for Open { request, events, .. } in &open {
            let longest = cold.entry(request.prompt.clone())
                .or_insert_with(|| alone(architecture, &Request { max_tokens: Some(60), ..request.clone() }));
            let Ok(all) = collect(events) else { panic!("it can be served") };
            prop_assert_eq!(all.len(), request.n);
            for got in all.values() {
                prop_assert_eq!(&got.tokens[..], &longest[..request.max_tokens.unwrap_or(0)]);
            }
        }
        let stats = e.stats();
        prop_assert_eq!((stats.running, stats.waiting, stats.cache.pages_used, stats.failed), (0, 0, 0, 0));
        e.flush();
        e.clear();
        prop_assert_eq!(e.stats().cache.pages_idle, 0);
        prop_assert_eq!(e.audit(), Ok(()));
    }
}
