//! Batch invariance: the greedy tokens of a request alone are those that it gets beside 15 others, after a cache hit, after a
//! restore from disk, and after it was preempted and resumed; with guesses and without.

use std::path::Path;

use crate::common::drive::{
    CONTEXT, alone, answer, collect, engine, finish, greedy, options, prompt, submit,
};
use octet_compute::batch::PAGE_TOKENS;
use octet_engine::engine::speculation::{Mode, Options as Speculation};
use octet_engine::engine::{self, DiskOptions, Request, Step};

/// Recurrent layers and experts; recurrent layers; experts; neither.
const ARCHITECTURES: [&str; 4] = ["qwen35moe", "qwen35", "qwen3moe", "llama"];
/// Tokens that others have in common with the request.
const SHARED: usize = 90;

/// It grows past what is reserved for an answer.
fn request() -> Request {
    Request { checkpoints: vec![SHARED], ..greedy(prompt(100, 3), CONTEXT - 110) }
}

/// One that begins like it.
fn cousin() -> Request {
    let prompt = [&request().prompt[..SHARED], &prompt(20, 77)].concat();
    Request { checkpoints: vec![SHARED], ..greedy(prompt, 5) }
}

fn among_others(architecture: &str, options: engine::Options) -> Vec<u32> {
    let room = engine::Options { max_seqs: 16, kv_tokens: Some(16 * CONTEXT), ..options };
    let mut e = engine(architecture, &room);
    let others: Vec<_> =
        (0..15).map(|i| submit(&mut e, greedy(prompt(30 + 9 * i, 50 + i as u32), 120))).collect();
    let (_, events) = submit(&mut e, request());
    let mut at_once = 0;
    while e.step() == Step::Worked {
        at_once = at_once.max(e.stats().running);
    }
    assert_eq!(at_once, 16);
    assert!(others.iter().all(|(_, events)| collect(events).is_ok_and(|all| all[&0].tokens.len() == 120)));
    collect(&events).expect("it can be served")[&0].tokens.clone()
}

fn after_a_hit(architecture: &str, options: engine::Options) -> Vec<u32> {
    let mut e = engine(architecture, &options);
    answer(&mut e, cousin());
    let (tokens, cached) = answer(&mut e, request());
    assert_eq!(cached, SHARED, "{architecture}");
    tokens
}

fn after_a_restore(architecture: &str, options: engine::Options, dir: &Path) -> Vec<u32> {
    let disk = Some(DiskOptions { dir: dir.into(), bytes: 1 << 30 });
    let on_disk = engine::Options { disk, ..options };
    let mut e = engine(architecture, &on_disk);
    answer(&mut e, cousin());
    e.flush();
    drop(e);
    let mut e = engine(architecture, &on_disk);
    let (tokens, cached) = answer(&mut e, request());
    assert!(cached >= PAGE_TOKENS && e.stats().cache.disk.hits == 1, "{architecture}: {:?}", e.stats());
    tokens
}

fn after_giving_way(architecture: &str, options: engine::Options) -> Vec<u32> {
    // two sequences of 7 pages each, and 13 pages
    let mut e = engine(architecture, &engine::Options { kv_tokens: Some(12 * PAGE_TOKENS), ..options });
    let (_, other) = submit(&mut e, greedy(prompt(100, 50), CONTEXT - 110));
    // the one admitted last is preempted
    let (_, events) = submit(&mut e, request());
    finish(&mut e);
    assert!(e.stats().preemptions > 0, "{architecture}: {:?}", e.stats());
    assert_eq!(collect(&other).expect("it can be served")[&0].tokens.len(), CONTEXT - 110);
    collect(&events).expect("it can be served")[&0].tokens.clone()
}

#[test]
fn batch_invariance() {
    // all sources of guesses, whether they are worthwhile or not
    let guesses = Speculation { mode: Mode::Auto, draft_max: 3, always: true, ..Speculation::default() };
    for architecture in ARCHITECTURES {
        let want = alone(architecture, &request());
        assert_eq!(want.len(), CONTEXT - 110);
        for speculation in [Speculation::off(), guesses.clone()] {
            let dir = tempfile::tempdir().expect("a folder");
            let with = || engine::Options { speculation: speculation.clone(), ..options() };
            let what = format!("{architecture}, {:?}", speculation.mode);
            assert_eq!(among_others(architecture, with()), want, "{what}: beside 15 others");
            assert_eq!(after_a_hit(architecture, with()), want, "{what}: after a cache hit");
            assert_eq!(after_a_restore(architecture, with(), dir.path()), want, "{what}: after a restore");
        }
        // with guesses one of the two may be done before pages run out; `speculation` has a test of that
        assert_eq!(after_giving_way(architecture, options()), want, "{architecture}: after giving way");
    }
}
