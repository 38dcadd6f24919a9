//! The cache's files: they survive a restart and stay within their budget. Whatever happens to them, answers are those
//! of an engine without a cache.

use std::path::{Path, PathBuf};

use crate::common::drive::{alone, answer, collect, engine, greedy, options, prompt};
use octet_compute::backend::{KvType, KvTypes};
use octet_compute::cpu::CpuOptions;
use octet_engine::Error;
use octet_engine::engine::{self, DiskOptions, Engine, Request};
use octet_engine::scheduler::{Handle, Options, Shutdown};
use octet_synth::{Mix, tiny};

const HYBRID_AND_PLAIN: [&str; 2] = ["qwen35moe", "qwen3"];
const PLENTY: u64 = 1 << 30;

fn with_disk(dir: &Path, bytes: u64) -> engine::Options {
    engine::Options { disk: Some(DiskOptions { dir: dir.into(), bytes }), ..options() }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(dir).expect("a folder").map(|f| f.expect("a file").path()).collect();
    all.sort();
    all
}

/// Removes a file. Some file systems list a file for a moment after it was removed or renamed.
fn remove(file: &Path) {
    match std::fs::remove_file(file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => panic!("{}: {e}", file.display()),
        _ => {}
    }
}

fn bytes(dir: &Path) -> u64 {
    files(dir).iter().map(|f| f.metadata().expect("a file").len()).sum()
}

/// A conversation of a prompt and the beginning of its answer, in a folder that is left behind.
fn store(architecture: &str, dir: &Path) -> Vec<u32> {
    let mut e = engine(architecture, &with_disk(dir, PLENTY));
    let first = prompt(200, 7);
    let (tokens, _) = answer(&mut e, greedy(first.clone(), 40));
    e.flush();
    let stats = e.stats().cache.disk;
    assert!(stats.writes >= 3 && stats.errors == 0, "{stats:?}");
    assert_eq!(stats.bytes, bytes(dir));
    [&first[..], &tokens, &prompt(10, 90)].concat()
}

#[test]
fn a_conversation_continues_after_a_restart() {
    for architecture in HYBRID_AND_PLAIN {
        let dir = tempfile::tempdir().expect("a folder");
        let next = store(architecture, dir.path());
        let cold = alone(architecture, &greedy(next.clone(), 20));
        for _ in 0..2 {
            let mut e = engine(architecture, &with_disk(dir.path(), PLENTY));
            let (tokens, cached) = answer(&mut e, greedy(next.clone(), 20));
            assert_eq!(tokens, cold, "{architecture}");
            // whole pages only without recurrent states; otherwise all but the last token
            let want = if architecture == "qwen3" { 192 } else { 239 };
            assert_eq!(cached, want, "{architecture}");
            let stats = e.stats();
            assert_eq!((stats.cache.disk.hits, stats.cache.disk.errors), (1, 0));
            assert_eq!(stats.computed_tokens, (next.len() - want) as u64);
            // now it is in memory
            let (tokens, again) = answer(&mut e, greedy(next.clone(), 20));
            assert_eq!(tokens, cold);
            assert!(again >= want);
            assert_eq!(e.stats().cache.disk.hits, 1);
        }
    }
}

#[test]
fn entries_evicted_from_memory_are_read_back_from_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut probe = engine("qwen35moe", &options());
    answer(&mut probe, greedy(prompt(40, 1), 1));
    let one = probe.stats().cache.snapshot_bytes / probe.stats().cache.snapshots as u64;
    let small = engine::Options {
        kv_tokens: Some(7 * 64),
        snapshot_memory: Some(2 * one),
        ..with_disk(dir.path(), PLENTY)
    };
    let mut e = engine("qwen35moe", &small);
    let mut conversations: Vec<Vec<u32>> = (0..4).map(|who| prompt(130, who)).collect();
    for round in 0..3 {
        for c in &mut conversations {
            let cold = alone("qwen35moe", &greedy(c.clone(), 20));
            let (tokens, cached) = answer(&mut e, greedy(c.clone(), 20));
            assert_eq!(tokens, cold);
            // entries that a stalled disk did not accept are counted, and do not matter here
            if e.stats().cache.disk.dropped == 0 {
                assert_eq!(cached, if round == 0 { 0 } else { c.len() - 10 }, "round {round}");
            }
            c.extend(tokens);
            c.extend(prompt(9, 200 + round));
        }
    }
    let stats = e.stats().cache;
    assert!(stats.evicted > 0 && stats.disk.writes > 0 && stats.disk.errors == 0, "{stats:?}");
    assert!(stats.disk.hits >= 6 || stats.disk.dropped > 0, "{stats:?}");
}

/// Every way to damage a file.
const DAMAGES: [fn(&mut Vec<u8>); 6] = [
    |f| f.truncate(f.len() / 2),
    |f| f.clear(),
    |f| {
        let middle = f.len() / 2;
        f[middle] ^= 1;
    },
    |f| f[9] ^= 0x80,
    |f| f.fill(0),
    |f| f.push(0),
];

#[test]
fn damaged_files_are_misses() {
    for architecture in HYBRID_AND_PLAIN {
        let dir = tempfile::tempdir().expect("a folder");
        let next = store(architecture, dir.path());
        let cold = alone(architecture, &greedy(next.clone(), 8));
        let all = files(dir.path());
        let originals: Vec<Vec<u8>> = all.iter().map(|f| std::fs::read(f).expect("a file")).collect();
        let restore = || {
            files(dir.path()).iter().for_each(|f| remove(f));
            all.iter().zip(&originals).for_each(|(f, bytes)| std::fs::write(f, bytes).expect("a file"));
        };
        let check = |what: &str, errors: bool| {
            let mut e = engine(architecture, &with_disk(dir.path(), PLENTY));
            let (tokens, cached) = answer(&mut e, greedy(next.clone(), 8));
            assert_eq!(tokens, cold, "{architecture}: {what}");
            let stats = e.stats();
            assert_eq!(stats.cache.disk.errors > 0, errors, "{what}: {stats:?}");
            assert_eq!(stats.computed_tokens, (next.len() - cached) as u64);
            e.audit().expect("every page and slot is accounted for");
        };
        check("nothing", false);
        for (i, damage) in DAMAGES.iter().enumerate() {
            for (file, original) in all.iter().zip(&originals) {
                restore();
                let mut spoilt = original.clone();
                damage(&mut spoilt);
                std::fs::write(file, &spoilt).expect("a file");
                let mut e = engine(architecture, &with_disk(dir.path(), PLENTY));
                let (tokens, _) = answer(&mut e, greedy(next.clone(), 8));
                assert_eq!(tokens, cold, "{architecture}: damage {i}");
                let errors = e.stats().cache.disk.errors;
                drop(e);
                // entries that were read are gone, or complete again; those that were not needed still exist
                let now = std::fs::read(file).ok();
                assert!(errors == 0 || now != Some(spoilt), "{architecture}: damage {i}");
            }
        }
        // all at once
        restore();
        for (file, original) in all.iter().zip(&originals) {
            std::fs::write(file, &original[..original.len() - 1]).expect("a file");
        }
        check("all truncated", true);
        // one under the name of another
        restore();
        std::fs::copy(&all[0], &all[1]).expect("a file");
        std::fs::copy(&all[1], &all[2]).expect("a file");
        let mut e = engine(architecture, &with_disk(dir.path(), PLENTY));
        assert_eq!(answer(&mut e, greedy(next.clone(), 8)).0, cold);
        // vanished beneath a running engine
        restore();
        let mut e = engine(architecture, &with_disk(dir.path(), PLENTY));
        files(dir.path()).iter().for_each(|f| remove(f));
        assert_eq!(answer(&mut e, greedy(next.clone(), 8)).0, cold);
        assert!(e.stats().cache.disk.errors > 0);
    }
}

#[test]
fn other_models_and_precisions_have_no_hits() {
    let dir = tempfile::tempdir().expect("a folder");
    let next = store("qwen35moe", dir.path());
    let base = with_disk(dir.path(), PLENTY);
    let cached = |architecture: &str, mix: Mix, options: &engine::Options, salt: Option<&str>| {
        let file = tiny(architecture, mix).expect("a tiny model of a known architecture");
        let mut e = Engine::open(&file, options, &mut |_, _| {}).expect("a tiny model opens");
        let request = Request { cache_salt: salt.map(str::to_string), ..greedy(next.clone(), 1) };
        answer(&mut e, request).1
    };
    assert_eq!(cached("qwen35moe", Mix::Q4KM, &base, None), 239);
    assert_eq!(cached("qwen35moe", Mix::Q4KM, &base, Some("x")), 0);
    assert_eq!(cached("qwen35", Mix::Q4KM, &base, None), 0);
    assert_eq!(cached("qwen35moe", "q8_0".parse().expect("a mix"), &base, None), 0);
    for ty in [KvType::F32, KvType::Q8_0] {
        for kv in [ty.into(), KvTypes { keys: ty, values: KvType::F16 }] {
            let other = engine::Options { kv, ..base.clone() };
            assert_eq!(cached("qwen35moe", Mix::Q4KM, &other, None), 0, "{kv}");
        }
    }
    let exact = engine::Options { cpu: CpuOptions { exact: true, ..base.cpu.clone() }, ..base.clone() };
    assert_eq!(cached("qwen35moe", Mix::Q4KM, &exact, None), 0);
    let threads = engine::Options { cpu: CpuOptions { threads: Some(2), ..base.cpu.clone() }, ..base };
    assert_eq!(cached("qwen35moe", Mix::Q4KM, &threads, None), 239, "threads change nothing");
}

#[test]
fn files_stay_within_their_budget() {
    for architecture in HYBRID_AND_PLAIN {
        let dir = tempfile::tempdir().expect("a folder");
        store(architecture, dir.path());
        let budget = bytes(dir.path()) / 2;
        std::fs::write(dir.path().join("notes.txt"), "not ours").expect("a file");
        for round in 0..3 {
            let mut e = engine(architecture, &with_disk(dir.path(), budget));
            for who in 0..3 {
                let p = prompt(150, 10 * round + who);
                let cold = alone(architecture, &greedy(p.clone(), 20));
                assert_eq!(answer(&mut e, greedy(p, 20)).0, cold);
                e.flush();
            }
            let stats = e.stats().cache.disk;
            assert!(stats.bytes <= budget && stats.evicted > 0, "{architecture}: {stats:?}");
            drop(e);
            assert!(bytes(dir.path()) <= budget + 8, "{architecture}");
        }
        assert!(dir.path().join("notes.txt").exists());
        // none at all
        let mut e = engine(architecture, &with_disk(dir.path(), 0));
        answer(&mut e, greedy(prompt(150, 1), 20));
        e.flush();
        drop(e);
        assert_eq!(files(dir.path()).len(), 1);
    }
}

#[test]
fn an_unusable_folder_is_named_in_the_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let model = tiny("qwen3", Mix::Q4KM).expect("a tiny model of a known architecture");
    let e = Engine::open(&model, &with_disk(&file, PLENTY), &mut |_, _| {}).expect_err("it is no folder");
    assert!(matches!(e, Error::CacheDir { .. }) && e.to_string().contains("file"), "{e}");
}

#[test]
fn draining_writes_entries_to_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let open = || {
        let file = tiny("qwen35moe", Mix::Q4KM).expect("a tiny model of a known architecture");
        let options = Options { engine: with_disk(dir.path(), PLENTY), queue: 16 };
        Handle::open(file, &options, |_, _| {}).expect("a tiny model opens")
    };
    let requests: Vec<Request> = (0..3).map(|i| greedy(prompt(150, i), 20)).collect();
    let first = open();
    let events: Vec<_> = requests.iter().map(|r| first.submit(r.clone()).expect("there is room")).collect();
    first.shutdown(Shutdown::Drain);
    let mut next: Vec<Request> = requests
        .iter()
        .zip(&events)
        .map(|(r, e)| {
            let got = collect(e).expect("it can be served");
            greedy([&r.prompt[..], &got[&0].tokens, &[1, 2, 3]].concat(), 20)
        })
        .collect();
    first.join().expect("the thread ends well");
    // all continue at once, beside a new one
    next.push(greedy(prompt(90, 77), 20));
    let second = open();
    let events: Vec<_> = next.iter().map(|r| second.submit(r.clone()).expect("there is room")).collect();
    for (events, request) in events.iter().zip(&next) {
        let got = collect(events).expect("it can be served");
        assert_eq!(got[&0].tokens, alone("qwen35moe", request));
    }
    second.shutdown(Shutdown::Now);
    second.join().expect("the thread ends well");
    assert_eq!(second.stats().cache.disk.hits, 3, "{:?}", second.stats().cache);
}
