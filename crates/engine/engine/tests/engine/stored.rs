//! Models whose experts are not all in memory: answers are the same to the token with slots for a quarter, a half and all of the experts, in
//! batches, with split prompts, with guesses; and a model file that changes while it is loaded.

use std::path::Path;
use std::time::{Duration, Instant};

use octet_compute::cpu::CpuOptions;
use octet_compute::cpu::packed_file::{KeptFile, Notice, PackedFiles};
use octet_engine::Error;
use octet_engine::engine::speculation::{Mode, Options as Speculation};
use octet_engine::engine::{self, Engine, Request};
use octet_engine::report::Report;
use octet_synth::{Mix, skewed, tiny, tiny_shape};
use octet_weights::gguf::Writer;
use octet_weights::{Model, Value};

use crate::common::drive::{answer, collect, finish, greedy, options, prompt, submit};
use crate::packed::{Written, written};

const FOX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../models/fox/fox.gguf");

/// Slots for a part of `experts`, at least those of one token.
fn slots(model: &Model, part: f64) -> usize {
    let moe = Report::new(model).expect("a model").config.moe.expect("it has experts");
    ((moe.experts as f64 * part) as usize).max(moe.top_k)
}

fn with_slots(options: engine::Options, slots: Option<usize>) -> engine::Options {
    engine::Options { cpu: CpuOptions { expert_slots: slots, ..options.cpu.clone() }, ..options }
}

fn open(model: &Model, options: &engine::Options) -> Engine {
    Engine::open(model, options, &mut |_, _| {}).expect("it opens")
}

fn requests() -> Vec<Request> {
    [(70, 1, 30), (9, 2, 40), (120, 3, 20), (33, 4, 30)]
        .map(|(n, salt, max)| greedy(prompt(n, salt), max))
        .into()
}

/// All requests at the same time.
fn together(engine: &mut Engine) -> Vec<Vec<u32>> {
    let events: Vec<_> = requests().into_iter().map(|r| submit(engine, r).1).collect();
    finish(engine);
    events.iter().map(|events| collect(events).expect("an answer")[&0].tokens.clone()).collect()
}

/// A tiny model in a file.
fn file(architecture: &str, dir: &Path) -> Model {
    let path = dir.join(format!("{architecture}.gguf"));
    let model = tiny(architecture, Mix::Q4KM).expect("a tiny model");
    octet_synth::write(&model, &path, false, &mut |_, _| {}).expect("it is written");
    Model::open(&path).expect("it opens")
}

#[test]
fn answers_do_not_depend_on_what_is_in_memory() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut models = vec![Model::open(FOX).expect("the model opens")];
    models.extend(["qwen35moe", "olmoe", "mixtral"].map(|architecture| file(architecture, dir.path())));
    let guesses = Speculation { mode: Mode::Auto, draft_max: 3, always: true, ..Speculation::default() };
    for model in &models {
        let mut all = open(model, &options());
        let want: Vec<_> = requests().into_iter().map(|r| answer(&mut all, r).0).collect();
        assert!(all.backend().store_stats().is_none());
        for part in [0.25, 0.5, 1.0] {
            // With a slot for each expert there is nothing to read later.
            let slots = slots(model, part);
            for speculation in [Speculation::off(), guesses.clone()] {
                let o = engine::Options { speculation, batch_tokens: 40, ..options() };
                let mut some = open(model, &with_slots(o, Some(slots)));
                let what = format!("{}, {slots} slots, {:?}", model.origin, some.stats().speculation);
                assert_eq!(together(&mut some), want, "{what}");
                let stats = some.backend().store_stats();
                let moe = Report::new(model).expect("a model").config.moe.expect("experts");
                assert_eq!(stats.is_some(), slots < moe.experts, "{what}");
                assert!(stats.is_none_or(|s| s.misses > 0 && s.bytes > 0 && s.slots == slots), "{what}");
            }
        }
    }
}

/// A tiny model in two files.
fn split(architecture: &str, dir: &Path) -> Model {
    let model = tiny(architecture, Mix::Q4KM).expect("a tiny model");
    let all = model.tensors();
    let path = |i: usize| dir.join(format!("{architecture}-0000{}-of-00002.gguf", i + 1));
    for (i, tensors) in [&all[..all.len() / 2], &all[all.len() / 2..]].into_iter().enumerate() {
        let mut metadata = model.metadata.clone();
        for (key, value) in [("no", i), ("count", 2), ("tensors.count", all.len())] {
            metadata.insert(&format!("split.{key}"), Value::U64(value as u64));
        }
        let file = std::fs::File::create(path(i)).expect("a file");
        let mut writer = Writer::new(file, &metadata, tensors.to_vec()).expect("a header");
        for t in tensors {
            writer.append(&model.tensor(&t.name, &t.shape).expect("a tensor").data).expect("written");
        }
        writer.finish().expect("all is written");
    }
    Model::open(path(1)).expect("it opens")
}

#[test]
fn experts_are_read_from_several_files_and_from_safetensors() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut models = vec![split("qwen35moe", dir.path()), split("mixtral", dir.path())];
    let shared = octet_testkit::shared("models/tiny-qwen3_moe");
    models.extend(shared.map(|path| Model::open(path).expect("a checkpoint")));
    for model in &models {
        let want = together(&mut open(model, &options()));
        let mut some = open(model, &with_slots(options(), Some(slots(model, 0.25))));
        assert_eq!(together(&mut some), want, "{}", model.origin);
        let stats = some.backend().store_stats().expect("experts are read");
        assert!(stats.misses > 0 && stats.bytes > 0, "{}: {stats:?}", model.origin);
    }
    // Of several files, each is checked before it is read.
    let mut engine = open(&models[0], &with_slots(options(), Some(slots(&models[0], 0.25))));
    answer(&mut engine, greedy(prompt(9, 1), 2));
    let second = dir.path().join("qwen35moe-00002-of-00002.gguf");
    std::fs::OpenOptions::new().write(true).open(&second).and_then(|f| f.set_len(1000)).expect("truncated");
    let (_, events) = submit(&mut engine, Request { cache: false, ..greedy(prompt(90, 2), 20) });
    finish(&mut engine);
    match collect(&events) {
        Err(Error::Device(why)) => assert!(why.contains("00002-of-00002.gguf"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_changes_fails_requests_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = file("qwen3moe", dir.path());
    let path = dir.path().join("qwen3moe.gguf");
    let mut engine = open(&model, &with_slots(options(), Some(2)));
    let request = || greedy(prompt(50, 1), 20);
    let (want, _) = answer(&mut engine, Request { cache: false, ..request() });
    let time = std::fs::metadata(&path).and_then(|m| m.modified()).expect("its time");
    let bytes = std::fs::read(&path).expect("the file");

    let fails = |engine: &mut Engine| {
        let (_, events) = submit(engine, Request { cache: false, ..request() });
        finish(engine);
        match collect(&events) {
            Err(Error::Device(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    std::fs::OpenOptions::new().write(true).open(&path).and_then(|f| f.set_len(1000)).expect("truncated");
    let why = fails(&mut engine);
    assert!(why.contains("qwen3moe.gguf") && why.contains("1000 now"), "{why}");
    // Other bytes of the same length.
    std::fs::write(&path, vec![0; bytes.len()]).expect("written");
    let why = fails(&mut engine);
    assert!(why.contains("was changed"), "{why}");
    assert!(!engine.is_broken());

    // As it was: the engine goes on.
    std::fs::write(&path, &bytes).expect("written");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("it opens");
    file.set_modified(time).expect("its time is set");
    assert_eq!(answer(&mut engine, Request { cache: false, ..request() }).0, want);
}

/// Packed weights in `dir`, of a model with so many slots.
fn with_packed(slots: Option<usize>, dir: &Path) -> engine::Options {
    let files = PackedFiles { dir: dir.into(), least: 1, notice: Notice(|_| {}) };
    let o = with_slots(options(), slots);
    engine::Options { cpu: CpuOptions { packed_files: Some(files), ..o.cpu.clone() }, ..o }
}

fn truncate(path: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.and_then(|f| f.set_len(1000)).expect("truncated");
}

/// A request that does not use what an earlier one left.
fn anew() -> Request {
    Request { cache: false, ..greedy(prompt(50, 1), 20) }
}

#[cfg(target_os = "linux")]
#[test]
fn experts_are_read_from_packed_weights() {
    let dir = tempfile::tempdir().expect("a folder");
    for architecture in ["qwen35moe", "mixtral"] {
        let model = file(architecture, dir.path());
        let path = dir.path().join(format!("{architecture}.gguf"));
        let quarter = Some(slots(&model, 0.25));
        let want = answer(&mut open(&model, &options()), anew()).0;

        // The first start writes them while it answers, and then reads from there: it needs the model's file no more.
        let kept = tempfile::tempdir().expect("a folder");
        let mut first = open(&model, &with_packed(quarter, kept.path()));
        assert_eq!(answer(&mut first, anew()).0, want, "{architecture}");
        let file = written(kept.path());
        let bytes = std::fs::read(&file.path).expect("packed weights");

        // All in memory, they are the same, and are not written again.
        let all = tempfile::tempdir().expect("a folder");
        let second = open(&model, &with_packed(None, all.path()));
        let other = std::fs::read(written(all.path()).path).expect("packed weights");
        drop(second);
        assert!(bytes[4096..] == other[4096..], "{architecture}");
        assert_eq!(answer(&mut open(&model, &with_packed(None, kept.path())), anew()).0, want);

        let mut third = open(&model, &with_packed(quarter, kept.path()));
        truncate(&path);
        assert_eq!(answer(&mut third, anew()).0, want, "{architecture}");
        let stats = third.backend().store_stats().expect("experts are read");
        assert!(stats.misses > 0 && stats.bytes > 0, "{stats:?}");
        let start = Instant::now();
        loop {
            let (_, events) = submit(&mut first, anew());
            finish(&mut first);
            match collect(&events) {
                Ok(all) => break assert_eq!(all[&0].tokens, want, "{architecture}"),
                // It was written, but is not open yet.
                Err(why) => assert!(start.elapsed() < Duration::from_secs(60), "{why:?}"),
            }
        }
        assert_eq!(PackedFiles::list(kept.path()), [file], "it is not written again");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn damaged_packed_experts_change_no_answer() {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    let dir = tempfile::tempdir().expect("a folder");
    let model = file("qwen35moe", dir.path());
    let quarter = Some(slots(&model, 0.25));
    let want = answer(&mut open(&model, &options()), anew()).0;
    let kept = tempfile::tempdir().expect("a folder");
    let with = || with_packed(quarter, kept.path());
    let write = || {
        let _engine = open(&model, &with());
        written(kept.path())
    };
    let writable = |file: &KeptFile| {
        std::fs::set_permissions(&file.path, PermissionsExt::from_mode(0o600)).expect("its permissions");
        std::fs::File::options().read(true).write(true).open(&file.path).expect("the file")
    };
    let whole = Written::new(write());
    let (file, bytes) = (&whole.file, whole.file.bytes);
    let mut removed = 0;
    for at in (0..30).map(|i| i * (bytes - 1) / 29) {
        // Before the start, with the time that it had.
        whole.damaged(at);
        let mut engine = open(&model, &with());
        assert_eq!(answer(&mut engine, anew()).0, want, "byte {at}");
        removed += usize::from(std::fs::read(&file.path).is_err());
    }
    assert!(removed > 5, "only {removed} were found to be damaged");
    // While it is in use: experts are read from the model's file then.
    let _ = std::fs::remove_file(&file.path); // it may be removed already
    let file = write();
    let mut engine = open(&model, &with());
    writable(&file).set_len(5000).expect("truncated");
    assert_eq!(answer(&mut engine, anew()).0, want);
    assert!(!file.path.exists());
    let file = write();
    let mut engine = open(&model, &with());
    writable(&file).write_all_at(&[0; 9000], bytes / 2).expect("written to");
    assert_eq!(answer(&mut engine, anew()).0, want);
}

/// What `octet synth --expert-skew` makes.
#[test]
fn experts_are_unequal_if_rows_of_routers_are_scaled() {
    let shape = tiny_shape("qwen3moe").expect("a shape");
    let [even, uneven] = [0.0, 0.5].map(|skew| skewed(&shape, Mix::Q4KM, Some(8), 7, skew).expect("a model"));
    let mut logs = Vec::new();
    for t in even.tensors() {
        let [a, b] = [&even, &uneven].map(|m| m.tensor(&t.name, &t.shape).expect("a tensor").to_f32());
        if !t.name.ends_with("ffn_gate_inp.weight") {
            assert!(a == b, "{}", t.name);
            continue;
        }
        let cols = *t.shape.last().expect("columns");
        for (a, b) in a.chunks(cols).zip(b.chunks(cols)) {
            let factor = b[0] / a[0];
            let is_scaled = |(a, b): (&f32, &f32)| (b - a * factor).abs() <= 1e-3 * b.abs() + 1e-6;
            assert!(a.iter().zip(b).all(is_scaled), "{}", t.name);
            logs.push(factor.ln());
        }
    }
    // Logarithms of the factors are normally distributed around 0, with the deviation that was asked for.
    let n = logs.len() as f32;
    let mean = logs.iter().sum::<f32>() / n;
    let deviation = (logs.iter().map(|l| (l - mean).powi(2)).sum::<f32>() / n).sqrt();
    assert!(n >= 64.0 && mean.abs() < 0.2 && (0.35..0.65).contains(&deviation), "{mean} {deviation} of {n}");
}

#[test]
fn memory_is_counted_with_slots() {
    let dir = tempfile::tempdir().expect("a folder");
    let report = Report::new(&file("qwen35moe", dir.path())).expect("a model");
    let limits = options().limits(400, report.state_bytes()).expect("limits");
    let all = report.memory(&limits, false);
    assert_eq!(report.expert_slots(all, all.total()), None);
    let least = report.least_memory(all).expect("it has experts");
    assert_eq!(report.expert_slots(all, least.total() - 1), None);
    // A tiny model is smaller than what is kept beside weights: then all are in memory.
    let experts = report.expert_bytes();
    assert!(experts > 0 && least.total() + experts * 5 / 8 >= all.total());
    let with = |slots| report.with_slots(all, Some(slots)).total();
    assert_eq!(with(8) - with(4), experts / 2);
    let made_up = Report::new(&tiny("qwen35moe", Mix::Q4KM).expect("a model")).expect("a report");
    assert!(made_up.not_stored.is_some() && made_up.least_memory(all).is_none());
}
