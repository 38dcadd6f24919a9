//! Pulls of a GGUF file from any URL.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::{Recorder, Reply, Server, config, gguf, tree};
use octet_hub::{Error, Hub, Reference, Silent};

fn parse(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

#[test]
fn an_address_is_pulled_once_per_version() {
    let dir = tempfile::tempdir().unwrap();
    let version = Arc::new(AtomicU32::new(1));
    let now = version.clone();
    let server = Server::start(move |r| {
        let v = now.load(Ordering::SeqCst);
        Reply::file(r, &gguf(10_000, v), &format!("\"v{v}\""))
    });
    let hub = Hub::new(config(dir.path()));
    let signed = |n: u32| parse(&format!("{}/dir/x.gguf?signature={n}", server.url));
    assert_eq!(hub.resolve(&signed(1)).unwrap(), None);
    let path = hub.pull(&signed(1), &Silent).unwrap();
    assert!(path.ends_with("x.gguf") && std::fs::read(&path).unwrap() == gguf(10_000, 1));
    // Another signature is not another file; the only request is the check of the version.
    assert_eq!(hub.resolve(&signed(2)).unwrap(), Some(path.clone()));
    let asked = server.seen().len();
    assert_eq!(hub.pull(&signed(2), &Silent).unwrap(), path);
    assert_eq!(server.seen().len(), asked + 1);
    // A new version replaces the old one.
    version.store(2, Ordering::SeqCst);
    let path = hub.pull(&signed(3), &Silent).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), gguf(10_000, 2));
    let list = hub.list().unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!((list[0].reference.clone(), list[0].size), (format!("{}/dir/x.gguf", server.url), 10_000));
    assert_eq!(tree(dir.path()).iter().filter(|f| f.contains("/blobs/")).count(), 1);
    // The names that `list` prints are valid as input.
    assert_eq!(hub.resolve(&parse(&list[0].reference)).unwrap(), Some(path));
    assert_eq!(hub.remove(&parse(&list[0].reference)).unwrap().bytes, 10_000);
    assert_eq!(tree(dir.path()), Vec::<String>::new());
}

#[test]
fn an_interrupted_pull_continues_only_the_same_version() {
    for (second, resumes) in [("\"v1\"", true), ("\"v2\"", false), ("W/\"weak\"", false)] {
        let dir = tempfile::tempdir().unwrap();
        let tag = Arc::new(Mutex::new("\"v1\"".to_string()));
        let now = tag.clone();
        let server = Server::start(move |r| {
            let tag = now.lock().unwrap().clone();
            let reply = Reply::file(r, &gguf(100_000, u32::from(tag == "\"v1\"")), &tag);
            let first_bytes = r.header("range").is_none() && tag == "\"v1\"";
            if first_bytes { reply.cut(40_000) } else { reply }
        });
        let mut config = config(dir.path());
        config.patience.retries = 0;
        let hub = Hub::new(config);
        let model = parse(&format!("{}/x.gguf", server.url));
        hub.pull(&model, &Silent).unwrap_err();
        let list = hub.list().unwrap();
        assert_eq!((list[0].reference.as_str(), list[0].complete), (model.to_string().as_str(), false));
        *tag.lock().unwrap() = second.into();
        let path = hub.pull(&model, &Silent).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), gguf(100_000, u32::from(resumes)));
        let resumed = server.seen().iter().any(|r| {
            r.header("range") == Some("bytes=40000-99999") && r.header("if-range") == Some("\"v1\"")
        });
        assert_eq!(resumed, resumes, "{second}");
        assert!(!tree(dir.path()).iter().any(|f| f.ends_with(".incomplete")), "what is stale is dropped");
    }
}

#[test]
fn a_web_page_is_no_model() {
    for (body, part) in [
        ("<!DOCTYPE html><html>", "login"),
        ("version https://git-lfs.github.com/spec/v1", "LFS"),
        ("", "GGUF"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(move |_| Reply::text(body));
        let e = Hub::new(config(dir.path()))
            .pull(&parse(&format!("{}/x.gguf", server.url)), &Silent)
            .unwrap_err();
        assert!(matches!(e, Error::NotAModel { .. }) && e.to_string().contains(part), "{e}");
        assert!(!tree(dir.path()).iter().any(|f| f.contains("blobs") || f.contains("snapshots")));
    }
}

#[test]
fn a_file_of_unknown_length_is_whole_or_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|r| {
        let reply = Reply { chunked: true, ..Reply::text(gguf(70_000, 1)) };
        if r.nth == 2 { reply.cut(30_000) } else { reply }
    });
    let path = Hub::new(config(dir.path())).pull(&parse(&format!("{}/x.gguf", server.url)), &Silent).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), gguf(70_000, 1));
}

#[test]
fn every_part_of_a_split_file_is_pulled() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|r| Reply::file(r, &gguf(100 + r.path.len(), 1), "\"x\""));
    let hub = Hub::new(config(dir.path()));
    let progress = Recorder::default();
    let path = hub.pull(&parse(&format!("{}/a/x-00002-of-00003.gguf", server.url)), &progress).unwrap();
    assert!(path.ends_with("x-00001-of-00003.gguf"));
    assert!(progress.has("position: (3, 3)"));
    assert_eq!(hub.resolve(&parse(&format!("{}/a/x-00001-of-00003.gguf", server.url))).unwrap(), Some(path));
}

#[test]
fn credentials_of_an_address_are_sent_and_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    // user : p@ss
    let server = Server::start(|r| match r.header("authorization") {
        Some("Basic dXNlcjpwQHNz") => Reply::file(r, &gguf(100, 1), "\"x\""),
        _ => Reply::status(401),
    });
    let hub = Hub::new(config(dir.path()));
    let address = format!("{}/x.gguf", server.url);
    let e = hub.pull(&parse(&address), &Silent).unwrap_err().to_string();
    assert!(e.contains("401"), "{e}");
    let with = address.replace("http://", "http://user:p%40ss@");
    hub.pull(&parse(&with), &Silent).unwrap();
    assert_eq!(hub.list().unwrap()[0].reference, address);
    let all: String =
        tree(dir.path()).iter().filter_map(|f| std::fs::read_to_string(dir.path().join(f)).ok()).collect();
    assert!(!all.contains("p%40ss") && !all.contains("p@ss"));
}
