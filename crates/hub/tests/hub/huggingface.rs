//! Pulls from a mock Hugging Face hub: layout, resuming, errors, concurrency.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Recorder, Reply, Request, Server, config, gguf, hub, sha256, tree};
use octet_hub::{Error, Hub, Reference, Secret, Silent};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The file server, and the hub that redirects to it.
struct Fake {
    hub: Server,
    cdn: Server,
}

/// A repository `user/repo` with large files (by hash, on the file server) and small ones (on the hub). `cdn` may answer instead of
/// the file server.
fn fake(
    large: Vec<(&'static str, Vec<u8>)>,
    small: Vec<(&'static str, &'static str)>,
    cdn: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
) -> Fake {
    let files = large.clone();
    let cdn = Server::start(move |r| {
        cdn(r).unwrap_or_else(|| {
            let (_, bytes) = files.iter().find(|(n, _)| r.path == format!("/cdn/{n}?signed=1")).unwrap();
            Reply::file(r, bytes, "\"cdn\"")
        })
    });
    let elsewhere = cdn.url.clone();
    let hub = Server::start(move |r| {
        if r.path == "/api/models/user/repo/revision/main" || r.path.ends_with(COMMIT) {
            let names = large.iter().map(|(n, _)| *n).chain(small.iter().map(|(n, _)| *n));
            let siblings: Vec<String> = names.map(|n| format!(r#"{{"rfilename":"{n}"}}"#)).collect();
            let unsafe_one = r#"{"rfilename":"../../evil.gguf"}"#;
            return Reply::text(format!(
                r#"{{"sha":"{COMMIT}","siblings":[{unsafe_one},{}]}}"#,
                siblings.join(",")
            ));
        }
        let Some(name) = r.path.strip_prefix(&format!("/user/repo/resolve/{COMMIT}/")) else {
            return Reply::status(404).header("x-error-message", "Repository not found");
        };
        if let Some((_, bytes)) = large.iter().find(|(n, _)| *n == name) {
            return Reply::status(302)
                .header("location", format!("{elsewhere}/cdn/{name}?signed=1"))
                .header("x-repo-commit", COMMIT)
                .header("x-linked-etag", format!("\"{}\"", sha256(bytes)))
                .header("x-linked-size", bytes.len().to_string());
        }
        match small.iter().find(|(n, _)| *n == name) {
            Some((n, text)) => Reply::file(r, text.as_bytes(), &format!("\"git-{}\"", n.replace('.', "-"))),
            None => Reply::status(404),
        }
    });
    Fake { hub, cdn }
}

fn parse(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

#[test]
fn a_pull_lands_in_the_hubs_layout_and_is_found_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (q4, q8) = (gguf(300_000, 1), gguf(5_000, 2));
    let fake = fake(
        vec![("m-Q4_K_M.gguf", q4.clone()), ("m-Q8_0.gguf", q8.clone())],
        vec![("README.md", "hi")],
        |_| None,
    );
    let mut config = config(dir.path());
    config.endpoint = fake.hub.url.parse().unwrap();
    config.token = Secret::new("hf_secret");
    let hub = Hub::new(config.clone());
    let model = parse("hf:user/repo:q4_k_m");
    assert_eq!(hub.resolve(&model).unwrap(), None);
    let progress = Recorder::default();
    let path = hub.pull(&model, &progress).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), q4);
    let sha = sha256(&q4);
    let blob = format!("models--user--repo/blobs/{sha}");
    let link = format!("models--user--repo/snapshots/{COMMIT}/m-Q4_K_M.gguf");
    assert_eq!(tree(dir.path()), [blob.clone(), "models--user--repo/refs/main".into(), link.clone()]);
    assert_eq!(std::fs::read_to_string(dir.path().join("models--user--repo/refs/main")).unwrap(), COMMIT);
    assert_eq!(
        std::fs::read_link(dir.path().join(&link)).unwrap().to_str().unwrap(),
        format!("../../blobs/{sha}")
    );
    assert_eq!(path, dir.path().join(&link));
    assert!(progress.has("Finished { file: \"m-Q4_K_M.gguf\", bytes: 300000 }"), "{:?}", progress.all());

    // The token is sent to the hub only.
    assert!(fake.hub.seen().iter().all(|r| r.header("authorization") == Some("Bearer hf_secret")));
    assert!(
        !fake.cdn.seen().is_empty() && fake.cdn.seen().iter().all(|r| r.header("authorization").is_none())
    );

    // A second pull transfers no bytes; a second model is stored beside the first.
    hub.pull(&model, &Silent).unwrap();
    assert_eq!(fake.cdn.seen().len(), 1);
    hub.pull(&parse("hf:user/repo:Q8_0"), &Silent).unwrap();
    let list = hub.list().unwrap();
    let names: Vec<(&str, u64, bool)> =
        list.iter().map(|m| (m.reference.as_str(), m.size, m.complete)).collect();
    assert_eq!(names, [("hf:user/repo:Q4_K_M", 300_000, true), ("hf:user/repo:Q8_0", 5_000, true)]);

    // Nor does it without links, when snapshots contain the files themselves.
    let (file, bytes) = (dir.path().join(&link), dir.path().join(&blob));
    std::fs::rename(&bytes, &file).unwrap();
    hub.pull(&model, &Silent).unwrap();
    assert_eq!(fake.cdn.seen().len(), 2);
    assert!(std::fs::symlink_metadata(&file).unwrap().is_file() && !bytes.exists());
    std::fs::rename(&file, &bytes).unwrap();
    std::os::unix::fs::symlink(format!("../../blobs/{sha}"), &file).unwrap();

    // Without a network all of it is still available.
    config.offline = true;
    let offline = Hub::new(config);
    let asked = fake.hub.seen().len();
    assert_eq!(offline.resolve(&model).unwrap(), Some(path.clone()));
    assert_eq!(offline.pull(&model, &Silent).unwrap(), path);
    let e = offline.pull(&parse("hf:user/other"), &Silent).unwrap_err();
    assert!(matches!(e, Error::Offline(_)) && e.to_string().contains("HF_HUB_OFFLINE"), "{e}");
    assert_eq!(fake.hub.seen().len(), asked);

    // Removing needs a name if there are several models, and keeps the other one.
    assert!(hub.remove(&parse("hf:user/repo")).unwrap_err().to_string().contains("name one of Q4_K_M, Q8_0"));
    let removed = hub.remove(&model).unwrap();
    assert_eq!((removed.files, removed.bytes), (1, 300_000));
    assert_eq!(hub.resolve(&model).unwrap(), None);
    assert!(hub.resolve(&parse("hf:user/repo:Q8_0")).unwrap().is_some());
    assert!(hub.remove(&model).unwrap_err().to_string().contains("not in the cache"));
    hub.remove(&parse("hf:user/repo")).unwrap();
    assert_eq!(tree(dir.path()), Vec::<String>::new());
}

#[test]
fn a_broken_connection_is_resumed_at_once_and_by_the_next_pull() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = gguf(1_000_000, 3);
    let whole = bytes.clone();
    let fake = fake(vec![("m.gguf", bytes.clone())], vec![], move |r| {
        // Every answer breaks off after 300 000 bytes.
        Some(Reply::file(r, &whole, "\"cdn\"").cut(300_000.min(Reply::file(r, &whole, "x").body.len())))
    });
    let mut config = config(dir.path());
    config.endpoint = fake.hub.url.parse().unwrap();
    config.patience.retries = 0;
    let progress = Recorder::default();
    let model = parse("hf:user/repo");
    let e = Hub::new(config.clone()).pull(&model, &progress).unwrap_err();
    assert!(e.to_string().contains("connection"), "{e}");
    let list = Hub::new(config.clone()).list().unwrap();
    assert_eq!(
        (list[0].reference.as_str(), list[0].size, list[0].complete),
        ("hf:user/repo:m", 300_000, false)
    );

    config.patience.retries = 1;
    let path = Hub::new(config).pull(&model, &progress).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    let ranges: Vec<Option<String>> =
        fake.cdn.seen().iter().map(|r| r.header("range").map(str::to_string)).collect();
    let from = |n: usize| Some(format!("bytes={n}-999999"));
    assert_eq!(ranges, [None, from(300_000), from(600_000), from(900_000)]);
    assert!(progress.has("resumed: 300000") && progress.has("Retrying"), "{:?}", progress.all());
    assert!(!tree(dir.path()).iter().any(|f| f.ends_with(".incomplete")));
}

#[test]
fn a_truncated_file_is_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = gguf(10_000, 3);
    let fake = fake(vec![("m.gguf", bytes.clone())], vec![], |_| None);
    let hub = hub(dir.path(), &fake.hub);
    for model in ["hf:user/repo".to_string(), format!("hf:user/repo@{COMMIT}")] {
        let model = parse(&model);
        let path = hub.pull(&model, &Silent).unwrap();
        let blob = std::fs::canonicalize(&path).unwrap();
        std::fs::File::options().write(true).open(&blob).unwrap().set_len(4_000).unwrap();
        let progress = Recorder::default();
        assert_eq!(hub.pull(&model, &progress).unwrap(), path);
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{model}");
        assert!(progress.has("m.gguf that is here is damaged (4000 bytes)"), "{:?}", progress.all());
    }
}

#[test]
fn a_pull_that_brought_nothing_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fake = fake(vec![("m.gguf", gguf(100, 3))], vec![], |_| Some(Reply::status(410)));
    let hub = hub(dir.path(), &fake.hub);
    hub.pull(&parse("hf:user/repo"), &Silent).unwrap_err();
    let url = format!("{}/none/m.gguf", fake.cdn.url);
    hub.pull(&parse(&url), &Silent).unwrap_err();
    assert_eq!(hub.list().unwrap(), []);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [".locks"]);
}

#[test]
fn what_an_unfinished_pull_left_can_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let fake = fake(vec![("m-Q8_0.gguf", gguf(1000, 3)), ("m-Q4_0.gguf", gguf(500, 4))], vec![], move |r| {
        r.path.contains("Q8").then(|| Reply::status(200).header("content-length", "1000").cut(0))
    });
    let mut config = config(dir.path());
    config.endpoint = fake.hub.url.parse().unwrap();
    config.patience.retries = 0;
    let hub = Hub::new(config);
    let (q4, q8) = (parse("hf:user/repo:Q4_0"), parse("hf:user/repo:Q8_0"));
    hub.pull(&q4, &Silent).unwrap();
    hub.pull(&q8, &Silent).unwrap_err();
    let part = dir.path().join(format!("models--user--repo/blobs/{}.incomplete", sha256(&gguf(1000, 3))));
    std::fs::write(&part, "GGUF").unwrap();
    let list = hub.list().unwrap();
    assert_eq!((list[1].reference.as_str(), list[1].size, list[1].complete), ("hf:user/repo:Q8_0", 4, false));
    assert!(hub.remove(&parse("hf:user/repo")).unwrap_err().to_string().contains("name one of"));
    assert_eq!(hub.remove(&q8).unwrap().bytes, 4);
    assert!(!part.exists() && hub.resolve(&q4).unwrap().is_some());
}

#[test]
fn a_server_without_ranges_starts_over() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = gguf(500_000, 4);
    let whole = bytes.clone();
    let fake = fake(vec![("m.gguf", bytes.clone())], vec![], move |r| {
        let reply = Reply::text(whole.clone());
        Some(if r.nth == 1 { reply.cut(200_000) } else { reply })
    });
    let progress = Recorder::default();
    let path = hub(dir.path(), &fake.hub).pull(&parse("hf:user/repo"), &progress).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    assert!(progress.has("cannot resume"));
}

#[test]
fn damaged_bytes_are_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = gguf(50_000, 5);
    other[40_000] ^= 1;
    let fake =
        fake(vec![("m.gguf", gguf(50_000, 5))], vec![], move |r| Some(Reply::file(r, &other, "\"x\"")));
    let e = hub(dir.path(), &fake.hub).pull(&parse("hf:user/repo"), &Silent).unwrap_err();
    assert!(matches!(e, Error::Checksum { .. }) && e.to_string().contains("nothing was kept"), "{e}");
    assert_eq!(tree(dir.path()), Vec::<String>::new());
}

#[test]
fn more_or_fewer_bytes_than_announced_are_an_error() {
    for body in [gguf(50_001, 6), gguf(49_999, 6)] {
        let dir = tempfile::tempdir().unwrap();
        let fake = fake(vec![("m.gguf", gguf(50_000, 6))], vec![], move |_| {
            Some(Reply { chunked: true, ..Reply::text(body.clone()) })
        });
        let e = hub(dir.path(), &fake.hub).pull(&parse("hf:user/repo"), &Silent).unwrap_err();
        assert!(matches!(e, Error::Fetch { .. }), "{e}");
    }
}

#[test]
fn an_overloaded_server_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let fake = fake(vec![("m.gguf", gguf(1000, 7))], vec![], |r| match r.nth {
        1 => Some(Reply::status(429).header("retry-after", "0")),
        2 => Some(Reply::status(500)),
        3 => Some(Reply::status(503)),
        _ => None,
    });
    let progress = Recorder::default();
    hub(dir.path(), &fake.hub).pull(&parse("hf:user/repo"), &progress).unwrap();
    assert_eq!(fake.cdn.seen().len(), 4);
    assert!(progress.has("429") && progress.has("500"), "{:?}", progress.all());
}

#[test]
fn refusals_say_what_to_do() {
    for (status, token, part) in [
        (401, None, "set HF_TOKEN"),
        (401, Secret::new("x"), "not valid"),
        (403, None, "accept its terms"),
        (404, None, "there is no user/repo"),
        (500, None, "500"),
        (429, None, "429"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let server =
            Server::start(move |_| Reply::status(status).header("x-error-message", "Words of the hub."));
        let mut config = config(dir.path());
        config.endpoint = server.url.parse().unwrap();
        config.token = token;
        let e = Hub::new(config).pull(&parse("hf:user/repo"), &Silent).unwrap_err().to_string();
        assert!(e.contains(part) && e.contains("Words of the hub."), "{e}");
        assert_eq!(tree(dir.path()), Vec::<String>::new());
    }
}

#[test]
fn a_server_that_stops_sending_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let fake = fake(vec![("m.gguf", gguf(1000, 8))], vec![], |r| {
        Some(Reply { stall: Some(Duration::from_secs(600)), ..Reply::file(r, &gguf(1000, 8), "\"x\"") })
    });
    let mut config = config(dir.path());
    config.endpoint = fake.hub.url.parse().unwrap();
    // Long enough for all steps before it.
    config.patience.stall = Duration::from_secs(5);
    config.patience.retries = 0;
    let e = Hub::new(config).pull(&parse("hf:user/repo"), &Silent).unwrap_err().to_string();
    assert!(e.contains("stopped sending"), "{e}");
}

#[test]
fn two_pulls_at_once_download_once() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = gguf(200_000, 9);
    let (started, entered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (seen, waiting) = (started.clone(), Arc::new(Mutex::new(false)));
    let whole = bytes.clone();
    let release = waiting.clone();
    let fake = fake(vec![("m.gguf", bytes.clone())], vec![], move |r| {
        started.store(true, Ordering::SeqCst);
        // The first download lasts until the second pull has reported that it waits.
        while !*release.lock().unwrap() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(Reply::file(r, &whole, "\"x\""))
    });
    let hub = hub(dir.path(), &fake.hub);
    std::thread::scope(|s| {
        let first = s.spawn(|| hub.pull(&parse("hf:user/repo"), &Silent).unwrap());
        while !seen.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let busy = hub.remove(&parse("hf:user/repo")).unwrap_err();
        assert!(matches!(busy, Error::Busy(_)), "{busy}");
        let second = s.spawn(|| {
            let progress = |event: octet_hub::Event<'_>| {
                if matches!(event, octet_hub::Event::Waiting { .. }) {
                    entered.fetch_add(1, Ordering::SeqCst);
                    *waiting.lock().unwrap() = true;
                }
            };
            hub.pull(&parse("hf:user/repo"), &progress).unwrap()
        });
        let (a, b) = (first.join().unwrap(), second.join().unwrap());
        assert_eq!(a, b);
        assert_eq!(std::fs::read(a).unwrap(), bytes);
    });
    assert_eq!((entered.load(Ordering::SeqCst), fake.cdn.seen().len()), (1, 1));
}

#[test]
fn space_is_checked_before_the_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let parts = vec![("m-00001-of-00002.gguf", gguf(700, 1)), ("m-00002-of-00002.gguf", gguf(500, 2))];
    let fake = fake(parts, vec![], |_| None);
    let full = hub(dir.path(), &fake.hub).with_free_space(|_| Ok(1_000));
    let e = full.pull(&parse("hf:user/repo"), &Silent).unwrap_err();
    assert!(matches!(e, Error::Space { need: 1200, have: 1000, .. }), "{e}");
    assert!(e.to_string().contains("needs 1.17 KiB of free space, has 1000 B"), "{e}");
    assert_eq!((fake.cdn.seen().len(), tree(dir.path()).len()), (0, 0));
    // Enough space is accepted; a file that is here already needs none.
    full.with_free_space(|_| Ok(1_200)).pull(&parse("hf:user/repo"), &Silent).unwrap();
    hub(dir.path(), &fake.hub).with_free_space(|_| Ok(0)).pull(&parse("hf:user/repo"), &Silent).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn a_disk_that_runs_full_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = gguf(5_000, 1);
    let fake = fake(vec![("m.gguf", bytes.clone())], vec![], |_| None);
    let blobs = dir.path().join("models--user--repo/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::os::unix::fs::symlink("/dev/full", blobs.join(format!("{}.incomplete", sha256(&bytes)))).unwrap();
    let e = hub(dir.path(), &fake.hub).pull(&parse("hf:user/repo"), &Silent).unwrap_err();
    assert!(matches!(e, Error::DiskFull { need: 5_000, .. }), "{e}");
    assert!(e.to_string().contains("is kept"), "{e}");
}

#[test]
fn a_split_model_is_complete_or_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let parts = vec![
        ("Q8_0/m-Q8_0-00001-of-00002.gguf", gguf(700, 1)),
        ("Q8_0/m-Q8_0-00002-of-00002.gguf", gguf(500, 2)),
    ];
    let broken = Arc::new(AtomicBool::new(true));
    let state = broken.clone();
    let fake = fake(parts, vec![], move |r| {
        (r.path.contains("00002-of") && state.load(Ordering::SeqCst)).then(|| Reply::status(410))
    });
    let hub = hub(dir.path(), &fake.hub);
    let model = parse("hf:user/repo:q8_0");
    assert!(hub.pull(&model, &Silent).unwrap_err().to_string().contains("410"));
    assert_eq!(hub.resolve(&model).unwrap(), None);
    let list = hub.list().unwrap();
    assert_eq!((list.len(), list[0].complete), (1, false), "{list:?}");
    broken.store(false, Ordering::SeqCst);
    let path = hub.pull(&model, &Silent).unwrap();
    assert!(path.ends_with("Q8_0/m-Q8_0-00001-of-00002.gguf"));
    assert_eq!(fake.cdn.count("GET", "00001-of"), 1, "the first part is not fetched again");
    assert_eq!(hub.resolve(&model).unwrap(), Some(path));
    assert_eq!(hub.list().unwrap()[0].size, 1200);
    assert_eq!(hub.remove(&model).unwrap().files, 2);
    assert_eq!(tree(dir.path()), Vec::<String>::new());
}

#[test]
fn safetensors_come_as_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let index =
        r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    let fake = fake(
        vec![
            ("model-00001-of-00002.safetensors", vec![1; 900]),
            ("model-00002-of-00002.safetensors", vec![2; 800]),
        ],
        vec![
            ("config.json", "{}"),
            ("tokenizer.json", "{}"),
            ("model.safetensors.index.json", index),
            ("README.md", "no"),
        ],
        |_| None,
    );
    let hub = hub(dir.path(), &fake.hub);
    let path = hub.pull(&parse("hf:user/repo"), &Silent).unwrap();
    assert_eq!(path, dir.path().join("models--user--repo/snapshots").join(COMMIT));
    assert_eq!(std::fs::read(path.join("model-00002-of-00002.safetensors")).unwrap(), vec![2; 800]);
    assert!(path.join("tokenizer.json").exists() && !path.join("README.md").exists());
    assert_eq!(hub.resolve(&parse("hf:user/repo")).unwrap(), Some(path.clone()));
    let list = hub.list().unwrap();
    assert_eq!((list[0].reference.as_str(), list[0].complete), ("hf:user/repo", true));
    std::fs::remove_file(path.join("model-00002-of-00002.safetensors")).unwrap();
    assert_eq!(hub.resolve(&parse("hf:user/repo")).unwrap(), None);
    assert!(!hub.list().unwrap()[0].complete);
}

#[test]
fn a_model_that_is_here_serves_while_the_network_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let fake = fake(vec![("m.gguf", gguf(100, 1))], vec![], |_| None);
    let path = hub(dir.path(), &fake.hub).pull(&parse("hf:user/repo"), &Silent).unwrap();
    let mut config = config(dir.path());
    config.endpoint = "http://127.0.0.1:9".parse().unwrap(); // nothing listens there
    let progress = Recorder::default();
    assert_eq!(Hub::new(config.clone()).pull(&parse("hf:user/repo"), &progress).unwrap(), path);
    assert!(progress.has("could not look for a newer version"));
    assert!(
        Hub::new(config)
            .pull(&parse("hf:user/other"), &Silent)
            .unwrap_err()
            .to_string()
            .contains("no connection")
    );
}

#[test]
fn quantisations_that_are_not_there_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let fake = fake(vec![("m-Q4_0.gguf", gguf(9, 1)), ("m-Q8_0.gguf", gguf(9, 2))], vec![], |_| None);
    let e = hub(dir.path(), &fake.hub).pull(&parse("hf:user/repo:Q6_K"), &Silent).unwrap_err().to_string();
    assert_eq!(e, "user/repo: no quantisation Q6_K; there are Q4_0, Q8_0");
}

#[test]
fn redirects_in_a_circle_end() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|r| Reply::status(307).header("location", r.path.clone()));
    let e = hub(dir.path(), &server).pull(&parse("hf:user/repo"), &Silent).unwrap_err().to_string();
    assert!(e.contains("redirects more than"), "{e}");
}

#[test]
fn a_mirror_may_redirect_to_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = gguf(1000, 1);
    let fake = fake(vec![("m.gguf", bytes.clone())], vec![], |_| None);
    let hub_url = fake.hub.url.clone();
    let mirror =
        Server::start(move |r| Reply::status(308).header("location", format!("{hub_url}{}", r.path)));
    let path = hub(dir.path(), &mirror).pull(&parse("hf:user/repo"), &Silent).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    assert!(tree(dir.path()).contains(&format!("models--user--repo/blobs/{}", sha256(&bytes))));
}

/// A valid header without keys and tensors, and then what would be weights.
fn long_gguf(len: usize) -> Vec<u8> {
    let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &[0; 16]].concat();
    bytes.resize(len, 7);
    bytes
}

#[test]
fn a_preview_reads_the_header_alone() {
    let len = 20 << 20;
    let files = vec![
        ("m-Q4_K_M.gguf", long_gguf(len)),
        ("m-Q8_0.gguf", gguf(100, 1)),
        ("mmproj-F16.gguf", long_gguf(len / 2)),
    ];
    let f = fake(files, vec![], |_| None);
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path(), &f.hub);
    let preview =
        hub.preview(&Reference::parse("hf:user/repo:Q4_K_M").unwrap(), &Silent).unwrap().expect("a GGUF");
    assert_eq!(preview.size, (len + len / 2) as u64);
    assert!(preview.fetched < preview.size * 2 / 3, "{} bytes", preview.fetched);
    // Its projector lies beside it.
    let beside = std::fs::metadata(preview.path().with_file_name("mmproj-F16.gguf")).unwrap();
    assert_eq!(beside.len(), (len / 2) as u64);
    let about = std::fs::metadata(preview.path()).unwrap();
    assert_eq!(about.len(), len as u64);
    let path = preview.path().to_path_buf();
    drop(preview);
    assert!(!path.exists());
    assert!(hub.list().unwrap().is_empty(), "nothing is kept");
    // What is no GGUF file, or has a damaged header, is an error.
    let damaged = hub.preview(&Reference::parse("hf:user/repo:Q8_0").unwrap(), &Silent);
    assert!(damaged.is_err());
}
