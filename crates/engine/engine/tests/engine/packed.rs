//! Packed weights that are kept in a file: answers are the same to the token as when all is packed anew, with each instruction set, whatever
//! happens to the file.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use octet_compute::cpu::CpuOptions;
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::packed_file::{KeptFile, Notice, PackedFiles};
use octet_engine::Error;
use octet_engine::engine::{self, Engine, Request};
use octet_synth::{Mix, tiny};
use octet_testkit::shared;
use octet_weights::Model;

use crate::common::drive::{answer, collect, finish, greedy, options, prompt, submit};

fn with(dir: &Path, isa: Option<Isa>) -> engine::Options {
    let files = PackedFiles { dir: dir.into(), least: 1, notice: Notice(|_| {}) };
    let o = options();
    engine::Options { cpu: CpuOptions { isa, packed_files: Some(files), ..o.cpu.clone() }, ..o }
}

fn open(path: &Path, options: &engine::Options) -> Engine {
    let model = Model::open(path).expect("a model");
    Engine::open(&model, options, &mut |_, _| {}).expect("it loads")
}

fn request() -> Request {
    Request { cache: false, ..greedy(prompt(50, 1), 20) }
}

fn tokens(engine: &mut Engine) -> Vec<u32> {
    answer(engine, request()).0
}

/// The answer without kept weights.
fn fresh(path: &Path, isa: Option<Isa>) -> Vec<u32> {
    let o = options();
    tokens(&mut open(path, &engine::Options { cpu: CpuOptions { isa, ..o.cpu.clone() }, ..o }))
}

/// Loads a model and waits until its packed weights are written.
fn write(path: &Path, dir: &Path) -> KeptFile {
    let _engine = open(path, &with(dir, None));
    written(dir)
}

/// Waits until packed weights are written.
pub fn written(dir: &Path) -> KeptFile {
    let start = Instant::now();
    loop {
        match &PackedFiles::list(dir)[..] {
            [kept] if kept.is_complete => return kept.clone(),
            other => assert!(start.elapsed() < Duration::from_secs(60), "{other:?}"),
        }
        std::thread::yield_now();
    }
}

/// A tiny model in a file.
fn model(architecture: &str, dir: &Path) -> PathBuf {
    let path = dir.join(format!("{architecture}.gguf"));
    let made = tiny(architecture, Mix::Q4KM).expect("a tiny model");
    octet_synth::write(&made, &path, false, &mut |_, _| {}).expect("it is written");
    path
}

/// What was written, to put it back damaged.
pub struct Written {
    pub file: KeptFile,
    bytes: Vec<u8>,
    time: SystemTime,
}

impl Written {
    pub fn new(file: KeptFile) -> Self {
        let bytes = std::fs::read(&file.path).expect("the file");
        let time = file.path.metadata().and_then(|m| m.modified()).expect("its time");
        Self { file, bytes, time }
    }

    /// The file with the time that it had, and with another byte `at`.
    pub fn damaged(&self, at: u64) {
        let mut bytes = self.bytes.clone();
        bytes[at as usize] ^= 0xff;
        let _ = std::fs::remove_file(&self.file.path); // it may be removed already
        std::fs::write(&self.file.path, bytes).expect("written");
        let file = std::fs::File::options().write(true).open(&self.file.path).expect("the file");
        file.set_modified(self.time).expect("its time");
    }
}

#[test]
fn answers_are_those_of_weights_that_are_packed_anew() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut models: Vec<PathBuf> =
        ["qwen35moe", "llama", "olmoe"].iter().map(|name| model(name, dir.path())).collect();
    // Safetensors, and one whose rows have factors.
    models.extend(
        ["models/tiny-qwen3_moe", "formats/compressed-tensors/moe-ct-nvfp4"].into_iter().filter_map(shared),
    );
    for path in &models {
        let kept = tempfile::tempdir().expect("a folder");
        let file = write(path, kept.path());
        let own = path.canonicalize().expect("a path");
        assert!(file.model.starts_with(&own), "{file:?}");
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()).map(Some) {
            let mut engine = open(path, &with(kept.path(), isa));
            assert_eq!(tokens(&mut engine), fresh(path, isa), "{} {isa:?}", path.display());
        }
        assert_eq!(PackedFiles::list(kept.path()), [file], "it is not written again");
    }
}

#[test]
fn a_damaged_file_changes_no_answer() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = model("qwen35moe", dir.path());
    let want = fresh(&path, None);
    let kept = tempfile::tempdir().expect("a folder");
    let written = Written::new(write(&path, kept.path()));
    let file = &written.file;
    // Places in all of it: the header, regions, the index, the zeros at its end.
    let places = (0..20).map(|i| i * (file.bytes - 1) / 19);
    for at in places {
        written.damaged(at);
        let mut engine = open(&path, &with(kept.path(), None));
        let (_, events) = submit(&mut engine, request());
        finish(&mut engine);
        match collect(&events) {
            Ok(all) => assert_eq!(all[&0].tokens, want, "byte {at}"),
            // An expert, which is checked when it is needed.
            Err(Error::Device(why)) => assert!(why.contains("load the model again"), "{why}"),
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    for length in [0, 100, 4096, file.bytes / 2, file.bytes - 1] {
        let _ = std::fs::remove_file(&file.path); // it may be removed already
        let whole = vec![7; length as usize];
        std::fs::write(&file.path, whole).expect("written");
        assert_eq!(tokens(&mut open(&path, &with(kept.path(), None))), want, "{length} bytes");
        // It is no file of packed weights.
        assert_eq!(std::fs::read(&file.path).expect("it stays"), vec![7; length as usize]);
    }
}

#[test]
fn a_file_that_is_truncated_while_it_is_in_use_fails_requests_and_nothing_else() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a folder");
    let path = model("qwen35moe", dir.path());
    let want = fresh(&path, None);
    let kept = tempfile::tempdir().expect("a folder");
    let file = write(&path, kept.path());
    let mut engine = open(&path, &with(kept.path(), None));
    // Replaced: the open one stays as it is.
    let other = kept.path().join("other");
    std::fs::copy(&file.path, &other)
        .and_then(|_| std::fs::rename(&file.path, kept.path().join("old")))
        .expect("moved");
    std::fs::rename(&other, &file.path).expect("replaced");
    assert_eq!(tokens(&mut engine), want);
    let old = kept.path().join("old");
    std::fs::set_permissions(&old, PermissionsExt::from_mode(0o600)).expect("its permissions");
    std::fs::File::options().write(true).open(&old).and_then(|f| f.set_len(100)).expect("truncated");
    for _ in 0..2 {
        let (_, events) = submit(&mut engine, request());
        finish(&mut engine);
        match collect(&events) {
            // It was copied to memory before.
            Ok(all) => assert_eq!(all[&0].tokens, want),
            Err(Error::Device(why)) => assert!(why.contains("truncated"), "{why}"),
            Err(other) => panic!("{other}"),
        }
    }
    // The copy has another time than it was given: it is not used.
    assert_eq!(tokens(&mut open(&path, &with(kept.path(), None))), want);
}

#[test]
fn another_model_at_the_same_path_is_packed_anew() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = model("llama", dir.path());
    let kept = tempfile::tempdir().expect("a folder");
    let first = write(&path, kept.path());
    let bytes = std::fs::read(&first.path).expect("the file");
    std::fs::rename(model("olmoe", dir.path()), &path).expect("replaced");
    assert_eq!(tokens(&mut open(&path, &with(kept.path(), None))), fresh(&path, None));
    let engine = open(&path, &with(kept.path(), None));
    let start = Instant::now();
    while std::fs::read(&first.path).is_ok_and(|now| now == bytes) {
        assert!(start.elapsed() < Duration::from_secs(60), "it is not replaced");
        std::thread::yield_now();
    }
    drop(engine);
    // Begun and not finished, it is continued.
    let second = std::fs::read(&first.path).expect("the file");
    std::fs::remove_file(&first.path).expect("removed");
    drop(open(&path, &with(kept.path(), None)));
    write(&path, kept.path());
    let third = std::fs::read(&first.path).expect("the file");
    assert_eq!(second[4096..], third[4096..]);
}
