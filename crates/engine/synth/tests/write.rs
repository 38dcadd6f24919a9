//! Written files contain the synthetic model. If writing fails, existing files stay and no temporary ones are left.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use octet_synth::{Error, Mix, TINY_ARCHITECTURES, tiny, write};
use octet_weights::{GgmlType, Metadata, Model, Source, TensorInfo};

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_written_file_opens_equal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.gguf");
    for arch in TINY_ARCHITECTURES {
        for mix in [Mix::Of(GgmlType::F32), Mix::Q4KM, Mix::Of(GgmlType::IQ4_XS)] {
            let made = tiny(arch, mix).unwrap();
            let mut told = Vec::new();
            let len = write(&made, &path, true, &mut |done, all| told.push((done, all))).unwrap();
            assert_eq!(len, fs::metadata(&path).unwrap().len());
            assert!(told.is_sorted() && told.last() == Some(&(made.size_bytes(), made.size_bytes())));

            let read = Model::open(&path).unwrap();
            assert!(read.metadata.iter().eq(made.metadata.iter()), "{arch} {mix}");
            assert_eq!(read.tensors(), made.tensors());
            for t in made.tensors() {
                let [a, b] = [&made, &read].map(|m| m.tensor(&t.name, &t.shape).unwrap().data);
                assert!(a == b, "{arch} {mix}: {}", t.name);
            }
        }
    }
    assert_eq!(names(directory.path()), ["tiny.gguf"]);
}

#[test]
fn the_same_seed_writes_the_same_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = directory.path().join(name);
        write(&tiny("qwen35moe", Mix::Q4KM).unwrap(), &path, false, &mut |_, _| {}).unwrap();
        fs::read(path).unwrap()
    };
    assert!(file("a.gguf") == file("b.gguf"));
}

#[test]
fn an_existing_file_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mine.gguf");
    fs::write(&path, "precious").unwrap();
    let model = tiny("llama", Mix::Q4KM).unwrap();
    let refused = write(&model, &path, false, &mut |_, _| {});
    assert!(matches!(refused, Err(Error::Exists { .. })), "{refused:?}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    // one that appears while the model is being written
    let other = directory.path().join("other.gguf");
    let refused = write(&model, &other, false, &mut |_, _| fs::write(&other, "new").unwrap());
    assert!(matches!(refused, Err(Error::Exists { .. })), "{refused:?}");
    assert_eq!(fs::read(&other).unwrap(), b"new");
    assert_eq!(names(directory.path()).len(), 2);
    let nowhere = directory.path().join("no/such/place.gguf");
    let said = write(&model, &nowhere, false, &mut |_, _| {}).unwrap_err().to_string();
    assert!(said.contains("place.gguf"), "{said}");
}

/// A tensor that no disk holds, or one that cannot be read.
struct Unwritable(Vec<TensorInfo>);

impl Source for Unwritable {
    fn tensors(&self) -> &[TensorInfo] {
        &self.0
    }
    fn data(&self, _: usize) -> Result<Bytes, octet_weights::Error> {
        Err(octet_weights::Error::tensor("x", "big", "cannot be read"))
    }
}

#[test]
fn nothing_is_left_behind_when_writing_fails() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("big.gguf");
    let fail = |shape: &[usize]| {
        let info = TensorInfo { name: "big".into(), ty: GgmlType::F32, shape: shape.to_vec() };
        let model = Model::new("x".into(), Metadata::new("x"), Box::new(Unwritable(vec![info]))).unwrap();
        write(&model, &path, false, &mut |_, _| {}).unwrap_err()
    };
    let error = fail(&[1 << 25, 1 << 25]); // 4 PiB
    assert!(matches!(error, Error::NoSpace { need, free, .. } if need > free), "{error}");
    let error = fail(&[16]);
    assert!(error.to_string().contains("cannot be read"), "{error}");
    assert_eq!(names(directory.path()), [""; 0]);
}

/// What an interrupted run left is removed by the next one for the same output, but not what another process is writing.
#[test]
fn parts_of_interrupted_runs_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let model = tiny("llama", Mix::Q4KM).unwrap();
    let mut parts = Vec::new();
    let hidden =
        || names(directory.path()).into_iter().filter(|name| name.starts_with('.')).collect::<Vec<_>>();
    write(&model, &path, false, &mut |_, _| parts = hidden()).unwrap();
    let [part] = &parts[..] else { panic!("{parts:?}") };
    assert!(part.contains("model.gguf"), "{part}");
    fs::write(directory.path().join(part), "interrupted").unwrap();
    let other = part.replace("model.gguf", "model.gguf-b");
    fs::write(directory.path().join(&other), "another output's").unwrap();
    let written = part.replace(&part[part.len() - 11..], "abcdef.part");
    let held = fs::File::create(directory.path().join(&written)).unwrap();
    held.lock().unwrap();
    write(&model, &path, true, &mut |_, _| {}).unwrap();
    let mut left = hidden();
    left.sort();
    let mut expected = [other, written];
    expected.sort();
    assert_eq!(left, expected);
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let _listener = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    std::os::unix::fs::symlink("socket", path("to-socket")).unwrap();
    std::os::unix::fs::symlink("nothing", path("to-nothing")).unwrap();
    fs::create_dir(path("folder")).unwrap();
    let model = tiny("llama", Mix::Q4KM).unwrap();
    let refused = write(&model, &path("folder"), false, &mut |_, _| {}).unwrap_err().to_string();
    assert!(refused.contains("is a folder"), "{refused}");
    for (name, what) in [("socket", "a socket"), ("to-socket", "a socket"), ("folder", "a folder")] {
        let refused = write(&model, &path(name), true, &mut |_, _| {}).unwrap_err().to_string();
        assert!(refused.contains(name) && refused.contains(what), "{refused}");
    }
    write(&model, &path("to-nothing"), true, &mut |_, _| {}).unwrap_err();
    let mut left = names(directory.path());
    left.sort();
    assert_eq!(left, ["folder", "socket", "to-nothing", "to-socket"]);

    fs::write(path("old.gguf"), "old").unwrap();
    std::os::unix::fs::symlink("old.gguf", path("link.gguf")).unwrap();
    write(&model, &path("link.gguf"), true, &mut |_, _| {}).unwrap();
    assert!(path("link.gguf").is_symlink());
    assert!(Model::open(path("old.gguf")).is_ok(), "what the link leads to was written");
}
