//! The identity of a model in the cache's files: a hash of all bytes of its files, read once.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::drive::{answer, greedy, options, prompt};
use octet_engine::engine::{self, DiskOptions, Engine, Request};
use octet_synth::{Mix, tiny};
use octet_weights::Model;

fn with_disk(dir: &Path) -> engine::Options {
    engine::Options { disk: Some(DiskOptions { dir: dir.into(), bytes: 1 << 30 }), ..options() }
}

/// An engine, and how many bytes were read beside the tensors that were loaded.
fn open(model: &Path, cache: &Path) -> (Engine, u64) {
    let file = Model::open(model).expect("a model file");
    let mut last = (0, 0);
    let engine = Engine::open(&file, &with_disk(cache), &mut |done, all| {
        assert!(last.0 <= done && done <= all && (last.1 == 0 || last.1 == all), "{last:?}: {done} {all}");
        last = (done, all);
    });
    (engine.expect("it opens"), last.1 - file.size_bytes())
}

fn cold(model: &Path, request: &Request) -> Vec<u32> {
    let file = Model::open(model).expect("a model file");
    let mut engine = Engine::open(&file, &options(), &mut |_, _| {}).expect("it opens");
    engine.generate(request.clone(), &mut |_| ControlFlow::Continue(())).expect("it can be served").tokens
}

/// A part of the largest tensor: the file, where it starts in it, and its bytes as they are.
fn some_rows(model: &Path) -> (PathBuf, usize, Vec<u8>) {
    let file = Model::open(model).expect("a model file");
    let largest = file.tensors().iter().max_by_key(|t| t.size_bytes()).expect("it has tensors");
    let data = file.optional(&largest.name).expect("it is there").expect("it is there").data;
    // Not at its beginning, its middle or its end.
    let rows = &data[data.len() / 3..][..data.len() / 8];
    let mapped = file.files().iter().find(|f| f.bytes.as_ptr_range().contains(&rows.as_ptr()));
    let mapped = mapped.expect("the bytes lie in a file");
    let at = rows.as_ptr() as usize - mapped.bytes.as_ptr() as usize;
    (mapped.stamp.clone().expect("a file has one").path, at, rows.to_vec())
}

/// Writes bytes into a file and restores its modification time.
fn change(file: &Path, at: usize, bytes: &[u8]) {
    use std::io::{Seek, SeekFrom, Write};
    let mut file = std::fs::File::options().write(true).open(file).expect("a file");
    let modified = file.metadata().and_then(|m| m.modified()).expect("a time");
    file.seek(SeekFrom::Start(at as u64)).expect("a place");
    file.write_all(bytes).expect("room");
    file.set_modified(modified).expect("a time");
}

/// Has a conversation's states written into the folder; its tokens. A disk that stood still for a moment may have been
/// spared some of them, which is counted: then once more in an empty folder.
fn store(model: &Path, first: &[u32]) -> (tempfile::TempDir, Vec<u32>) {
    let size: u64 = Model::open(model).expect("a model").files().iter().map(|f| f.bytes.len() as u64).sum();
    for _ in 0..20 {
        let cache = tempfile::tempdir().expect("a folder");
        let (mut e, read) = open(model, cache.path());
        assert_eq!(read, size, "all of it is read");
        let (tokens, _) = answer(&mut e, greedy(first.to_vec(), 20));
        e.flush();
        let stats = e.stats().cache.disk;
        assert_eq!(stats.errors, 0, "{stats:?}");
        if stats.dropped == 0 {
            return (cache, tokens);
        }
    }
    panic!("the disk does not keep up with a tiny model");
}

fn check(model: &Path) {
    let first = prompt(200, 7);
    let (cache, tokens) = store(model, &first);
    let size: u64 = Model::open(model).expect("a model").files().iter().map(|f| f.bytes.len() as u64).sum();
    let next = greedy([&first[..], &tokens, &prompt(10, 90)].concat(), 20);

    // A file that was changed just now may change again unseen: after some time, once more, and then never.
    let start = Instant::now();
    let mut e = loop {
        let (e, read) = open(model, cache.path());
        if read == 0 {
            break e;
        }
        assert!(read <= size, "a shard that is old enough is remembered before the others");
        assert!(start.elapsed() < Duration::from_secs(60), "it is remembered");
        std::thread::yield_now();
    };
    let before = cold(model, &next);
    let (tokens, cached) = answer(&mut e, next.clone());
    assert!(cached >= 192 && tokens == before, "{cached}");
    drop(e);

    // Other weights: none of the stored entries match.
    let (file, at, rows) = some_rows(model);
    let changed: Vec<u8> = rows.iter().map(|b| b ^ 1).collect();
    change(&file, at, &changed);
    let (mut e, read) = open(model, cache.path());
    assert!(!cfg!(unix) || read > 0, "whatever the file says of its time");
    assert_eq!(answer(&mut e, next.clone()), (cold(model, &next), 0));
    e.flush();
    drop(e);

    // The first again.
    change(&file, at, &rows);
    let (mut e, _) = open(model, cache.path());
    let (tokens, cached) = answer(&mut e, next.clone());
    assert!(cached >= 192 && tokens == before, "{cached}");
}

#[test]
fn changed_weights_have_another_fingerprint() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("tiny.gguf");
    let model = tiny("qwen3", Mix::Q4KM).expect("a tiny model of a known architecture");
    octet_synth::write(&model, &path, false, &mut |_, _| {}).expect("a model file");
    check(&path);
}

#[test]
fn changed_shards_have_another_fingerprint() {
    let Some(from) = octet_testkit::shared("models/tiny-qwen3_5_moe") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    for file in std::fs::read_dir(from).expect("a folder") {
        let file = file.expect("a file");
        // Not `fs::copy`: a file that cannot be written to would stay so.
        let bytes = std::fs::read(file.path()).expect("a file");
        std::fs::write(dir.path().join(file.file_name()), bytes).expect("room");
    }
    check(dir.path());
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_is_truncated_while_it_is_loaded_is_an_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("tiny.gguf");
    let made = tiny("qwen3", Mix::Q4KM).expect("a tiny model of a known architecture");
    octet_synth::write(&made, &path, false, &mut |_, _| {}).expect("a model file");
    let model = Model::open(&path).expect("a model file");
    let mut is_first = true;
    let loaded = Engine::open(&model, &options(), &mut |_, _| {
        if std::mem::take(&mut is_first) {
            let file = std::fs::File::options().write(true).open(&path).expect("a file");
            file.set_len(1 << 12).expect("truncated");
        }
    });
    let Err(e) = loaded else { panic!("half of it is missing") };
    let said = e.to_string();
    assert!(said.contains("tiny.gguf") && said.contains("truncated"), "{said}");
    // Nor is a part of it written to another file.
    let copy = octet_synth::write(&model, &dir.path().join("copy.gguf"), false, &mut |_, _| {});
    assert!(copy.is_err() && std::fs::read_dir(dir.path()).expect("a folder").count() == 1);
}
