//! Files that cannot be used are refused with what is wrong; a store that cannot write refuses to spend budgets.

use std::path::Path;
use std::time::Duration;

use octet_keys::{Ask, Budget, Clock, Error, Limits, Options, Period, Prices, Store, Usage};
use proptest::prelude::*;
use rusqlite::{Connection, OpenFlags};

/// A clock that stands: no month ends while a test runs.
fn options() -> Options {
    let clock = Clock::manual(1_795_284_000);
    Options { lock_timeout: Duration::from_millis(50), clock, ..Options::default() }
}

/// Fails the test where the file can be opened, or the error does not name it and say each of `words`.
#[track_caller]
fn refused(path: &Path, words: &[&str]) -> Error {
    let e = Store::open_with(path, options()).unwrap_err();
    let text = e.to_string();
    for word in words.iter().chain([&path.to_str().unwrap()]) {
        assert!(text.contains(word), "no '{word}' in: {text}");
    }
    e
}

/// A file with one key and some usage, and the key.
fn filled(path: &Path) -> String {
    let store = Store::open_with(path, options()).unwrap();
    let budget = Some(Budget { limit: "5".parse().unwrap(), period: Period::Month });
    let (secret, _) = store.create("alice", Limits { budget, rpm: Some(9), ..Limits::default() }).unwrap();
    let grant = store.authorize(secret.reveal(), "m", &Ask::default()).unwrap();
    grant.settle(&Usage { input: 10, output: 3, ..Usage::default() }, &Prices::new(0.01, 0.01).unwrap());
    store.close().unwrap();
    secret.reveal().to_string()
}

#[test]
fn files_that_are_not_databases_stay_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    for text in ["x", "remember the milk", &"a longer text ".repeat(1000)] {
        std::fs::write(&path, text).unwrap();
        refused(&path, &["not an SQLite database"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "not written over");
    }
    let header = [b"SQLite format 3\0".as_slice(), &[0xff; 5000]].concat();
    std::fs::write(&path, &header).unwrap();
    assert!(Store::open_with(&path, options()).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), header);
    refused(dir.path(), &["not a regular file"]);
    refused(&dir.path().join("missing/keys.db"), &["cannot be opened"]);
    refused(Path::new("/dev/null"), &["not a regular file"]);
}

#[test]
fn databases_of_others_and_of_the_future_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE visits (url TEXT)").unwrap();
    let before = std::fs::read(&path).unwrap();
    refused(&path, &["another program's"]);
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let path = dir.path().join("keys.db");
    filled(&path);
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 7).unwrap();
    let e = refused(&path, &["newer", "7"]);
    assert!(matches!(e, Error::Newer { found: 7, .. }));
}

#[test]
fn files_that_can_not_be_written_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.db");
    filled(&path);
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let e = refused(&path, &["locked by another process"]);
    assert!(matches!(e, Error::Locked { .. }));
    other.execute_batch("COMMIT").unwrap();
    drop(other);

    let full = Options { bytes_max: 4096, ..options() };
    let e = Store::open_with(dir.path().join("small.db"), full).unwrap_err();
    assert!(matches!(e, Error::Full { bytes_max: 4096, .. }), "{e}");

    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&path, permissions).unwrap();
    // A superuser may write it all the same.
    if std::fs::OpenOptions::new().write(true).open(&path).is_err() {
        refused(&path, &["read-only"]);
    }
}

#[test]
fn budgets_fail_closed_while_nothing_can_be_written_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.db");
    // Written when the test says so.
    let store =
        Store::open_with(&path, Options { flush_every: Duration::from_secs(3600), ..options() }).unwrap();
    let budget = Some(Budget { limit: "100".parse().unwrap(), period: Period::Ever });
    let (paid, info) = store.create("paid", Limits { budget, ..Limits::default() }).unwrap();
    let (free, _) = store.create("free", Limits::default()).unwrap();
    store.set_total(octet_keys::budget(1000.0, None).unwrap()).unwrap();
    let spend = |key: &octet_keys::Secret| {
        let grant = store.authorize(key.reveal(), "m", &Ask::default())?;
        Ok::<_, octet_keys::Refusal>(
            grant.settle(&Usage { input: 1, ..Usage::default() }, &Prices::new(1.0, 0.0).unwrap()),
        )
    };
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    spend(&paid).unwrap();
    assert!(matches!(store.flush().unwrap_err(), Error::Locked { .. }));
    let of_all = store.authorize_total("m", &Ask::default()).unwrap_err();
    assert_eq!((of_all.status(), of_all.code()), (503, "usage_not_recorded"));
    let refusal = spend(&paid).unwrap_err();
    assert_eq!(refusal.status(), 503);
    assert!(refusal.to_string().contains("locked by another process"), "{refusal}");
    assert!(spend(&free).is_ok(), "keys without a budget go on");
    assert!(store.flush().is_err());
    other.execute_batch("COMMIT").unwrap();
    store.flush().unwrap();
    assert!(spend(&paid).is_ok());
    store.close().unwrap();
    let store = Store::open_with(&path, options()).unwrap();
    assert_eq!(store.find(&info.id.to_string()).unwrap().spent, "2".parse().unwrap());
    let requests: u64 = store.usage(&Default::default()).unwrap().iter().map(|r| r.requests).sum();
    assert_eq!(requests, 3);
}

#[test]
fn a_full_disk_fails_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.db");
    let store = Store::open_with(
        &path,
        Options { bytes_max: 64 << 10, flush_every: Duration::from_secs(3600), ..options() },
    );
    let store = store.unwrap();
    let budget = Some(Budget { limit: "100".parse().unwrap(), period: Period::Ever });
    let (paid, _) = store.create("paid", Limits { budget, ..Limits::default() }).unwrap();
    let mut written = Ok(());
    for n in 0..10_000 {
        let Ok(grant) =
            store.authorize(paid.reveal(), &format!("model-{n}-{}", "x".repeat(100)), &Ask::default())
        else {
            break;
        };
        grant.settle(&Usage::default(), &Prices::default());
        if n % 50 == 0 {
            written = store.flush();
        }
    }
    assert!(matches!(written, Err(Error::Full { .. })), "{written:?}");
    assert_eq!(store.authorize(paid.reveal(), "m", &Ask::default()).unwrap_err().status(), 503);
}

#[test]
fn code_and_nonsense_in_a_file_are_refused() {
    for (sql, words) in [
        ("CREATE TRIGGER t AFTER UPDATE ON meta BEGIN DELETE FROM keys; END", ["trigger", "'t'"]),
        ("CREATE VIEW v AS SELECT * FROM keys", ["view", "'v'"]),
        ("DROP TABLE usage", ["usage", "missing"]),
        ("DROP TABLE keys; CREATE TABLE keys (id)", ["table", "keys"]),
        ("UPDATE keys SET rpm = -1", ["rpm is -1", "key '"]),
        ("UPDATE keys SET rpm = 0", ["rpm", "key '"]),
        ("UPDATE keys SET spent = -5", ["spent is -5", "key '"]),
        ("UPDATE keys SET hash = x'00'", ["hash", "key '"]),
        ("UPDATE keys SET hash = zeroblob(32)", ["its id", "key '"]),
        ("UPDATE keys SET models = '{'", ["models", "key '"]),
        ("UPDATE keys SET models = '[]'", ["at least one model", "key '"]),
        ("UPDATE keys SET period = 'soon'", ["period", "soon"]),
        ("UPDATE keys SET budget = NULL", ["budget", "period"]),
        ("UPDATE keys SET name = CAST(x'ff' AS TEXT)", ["row cannot be read", "key '"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.db");
        filled(&path);
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let e = refused(&path, &words);
        assert!(matches!(e, Error::Damaged { .. }), "{sql}: {e}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.db");
    filled(&path);
    Connection::open(&path).unwrap().execute_batch("UPDATE usage SET input = -1").unwrap();
    let e = Store::open_with(&path, options()).unwrap().usage(&Default::default()).unwrap_err();
    assert!(e.to_string().contains("input is -1"), "{e}");
}

#[test]
fn a_crash_loses_only_unwritten_usage() {
    const VARIABLE: &str = "OCTET_TEST_KEYS_CRASH";
    if let Ok(path) = std::env::var(VARIABLE) {
        spend_until_killed(Path::new(&path));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.db");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "keys_files::a_crash_loses_only_unwritten_usage", "--nocapture"])
        .env(VARIABLE, &path)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    // Opened for each look, and only while the child has the file: the last one to close it would tidy up.
    let written = || -> u64 {
        let file = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        let sum = "SELECT coalesce(sum(requests), 0) FROM usage";
        file.query_row(sum, [], |row| row.get::<_, i64>(0)).unwrap().unsigned_abs()
    };
    let start = std::time::Instant::now();
    let safe = loop {
        let settled = lines.by_ref().map(Result::unwrap).filter(|line| line.starts_with("settled")).take(50);
        assert_eq!(settled.count(), 50, "the child goes on");
        // The child writes every 100 ms. However busy the machine is, what was settled first is in the file some time later.
        match written() {
            written if written >= 50 => break written,
            written => assert!(start.elapsed() < Duration::from_secs(60), "only {written} are written"),
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    let store = Store::open_with(&path, options()).unwrap();
    let spent = store.list()[0].spent.nanos() / 1_000_000;
    let requests: u64 = store.usage(&Default::default()).unwrap().iter().map(|r| r.requests).sum();
    assert_eq!(spent, requests, "both or neither");
    assert!(requests >= safe, "{requests} of at least {safe}");
}

/// The process that crashes: spends a thousandth of a dollar at a time.
fn spend_until_killed(path: &Path) -> ! {
    use std::io::Write;
    let options = Options { flush_every: Duration::from_millis(100), ..options() };
    let store = Store::open_with(path, options).unwrap();
    let budget = Some(Budget { limit: "1000".parse().unwrap(), period: Period::Ever });
    let (secret, _) = store.create("k", Limits { budget, ..Limits::default() }).unwrap();
    loop {
        let grant = store.authorize(secret.reveal(), "m", &Ask::default()).unwrap();
        grant.settle(&Usage { input: 1, ..Usage::default() }, &Prices::new(0.001, 0.0).unwrap());
        let mut out = std::io::stdout();
        if writeln!(out, "settled").and_then(|()| out.flush()).is_err() {
            std::process::exit(0); // the pipe is closed: the test has ended
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Damage anywhere is an error or harmless, never a panic.
    #[test]
    fn flipped_bytes_never_panic(flips in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..12),
                                   cut in proptest::option::of(any::<prop::sample::Index>())) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.db");
        let key = filled(&path);
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, mask) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= mask;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()).max(1));
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(store) = Store::open_with(&path, options()) {
            if let Ok(grant) = store.authorize(&key, "m", &Ask::default()) {
                grant.settle(&Usage { input: 1, ..Usage::default() }, &Prices::new(1.0, 1.0).unwrap());
            }
            let _ = store.usage(&Default::default());
            let _ = store.create("bob", Limits::default());
            let _ = store.close();
        }
    }
}

/// SQLite continues with the pages in memory, so only a check of the file finds it.
#[cfg(unix)]
#[test]
fn a_file_that_was_written_over_fails_closed() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.db");
    let log = dir.path().join("keys.db-wal");
    // Closed, so that all of it lies in the file itself.
    let secret = filled(&path);
    let forever = Duration::from_secs(3600);
    let store =
        Store::open_with(&path, Options { flush_every: forever, check_every: Duration::ZERO, ..options() });
    let store = store.unwrap();
    let ask = || store.authorize(&secret, "m", &Ask::default());
    let mut spent = "0.13".parse::<octet_keys::Usd>().unwrap();
    let mut spend = || {
        let prices = Prices::new(0.1, 0.0).unwrap();
        spent = spent.plus(ask().unwrap().settle(&Usage { input: 1, ..Usage::default() }, &prices));
        spent
    };
    spend();
    store.flush().unwrap();
    type Harm<'a> = (&'a str, &'a Path, &'a dyn Fn(&std::fs::File, u64));
    let zeros = |from: u64, to: u64| {
        move |file: &std::fs::File, len: u64| {
            let to = to.min(len);
            file.write_all_at(&vec![0; usize::try_from(to - from).unwrap()], from).unwrap();
        }
    };
    let harms: [Harm<'_>; 6] = [
        ("the beginning", &path, &zeros(0, 100)),
        ("everything", &path, &zeros(0, u64::MAX)),
        ("all but the first page", &path, &zeros(4096, u64::MAX)),
        ("noise", &path, &|file, len| {
            let noise: Vec<u8> = (0..len).map(|i| (i * 167 % 251) as u8).collect();
            file.write_all_at(&noise, 0).unwrap();
        }),
        ("cut off", &path, &|file, _| file.set_len(5000).unwrap()),
        ("emptied", &path, &|file, _| file.set_len(0).unwrap()),
    ];
    for (what, harmed, harm) in harms {
        let before = std::fs::read(harmed).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(harmed).unwrap();
        harm(&file, before.len() as u64);
        let written = std::fs::read(&log).unwrap();
        let said = store.flush().expect_err(what);
        assert!(matches!(said, Error::Damaged { .. }), "{what}: {said}");
        let refusal = ask().err().unwrap_or_else(|| panic!("{what}: a budget goes on"));
        assert!(refusal.status() == 503 && refusal.to_string().contains("is damaged"), "{what}: {refusal}");
        assert_eq!(std::fs::read(&log).unwrap(), written, "{what}: nothing is written meanwhile");
        // After it is restored, the store works, and no usage is lost.
        file.write_all_at(&before, 0).unwrap();
        store.flush().unwrap_or_else(|e| panic!("{what}: {e}"));
        spend();
        store.flush().unwrap();
    }
    store.close().unwrap();
    let store = Store::open_with(&path, options()).unwrap();
    assert_eq!(store.list()[0].spent, spent);
}

#[cfg(unix)]
#[test]
fn a_database_without_its_log_fails_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.db");
    filled(&path);
    let store = Store::open_with(&path, Options { flush_every: Duration::from_secs(3600), ..options() });
    let store = store.unwrap();
    store.flush().unwrap();
    std::fs::remove_file(dir.path().join("keys.db-wal")).unwrap();
    let said = store.flush().unwrap_err();
    assert!(matches!(&said, Error::Gone { path } if path.ends_with("keys.db-wal")), "{said}");
}

#[cfg(unix)]
#[test]
fn a_file_that_was_deleted_or_replaced_fails_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, aside) = (dir.path().join("keys.db"), dir.path().join("aside.db"));
    let store =
        Store::open_with(&path, Options { flush_every: Duration::from_secs(3600), ..options() }).unwrap();
    let budget = Some(Budget { limit: "100".parse().unwrap(), period: Period::Ever });
    let (paid, _) = store.create("paid", Limits { budget, ..Limits::default() }).unwrap();
    let ask = || store.authorize(paid.reveal(), "m", &Ask::default());
    std::fs::rename(&path, &aside).unwrap();
    assert!(matches!(store.flush().unwrap_err(), Error::Gone { .. }));
    let refusal = ask().err().unwrap();
    assert!(refusal.status() == 503 && refusal.to_string().contains("was deleted or replaced"), "{refusal}");
    std::fs::write(&path, "another file").unwrap();
    assert!(matches!(store.flush().unwrap_err(), Error::Gone { .. }));
    assert!(ask().is_err());
    std::fs::rename(&aside, &path).unwrap();
    store.flush().unwrap();
    assert!(ask().is_ok());
}

#[test]
fn a_file_of_the_first_version_is_brought_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.db");
    let key = filled(&path);
    let db = Connection::open(&path).unwrap();
    // SQLite writes the text of a table without a column as if there had never been one.
    let later = ["kind", "user", "team", "blocked", "members", "about"];
    let drops: String = later.map(|c| format!("ALTER TABLE keys DROP COLUMN {c};")).concat();
    db.execute_batch(&format!("{drops} DROP TABLE usage_tags; PRAGMA user_version = 1;")).unwrap();
    drop(db);
    let store = Store::open_with(&path, options()).unwrap();
    assert!(store.authorize(&key, "m", &Ask::default()).is_ok());
    store.count_tags(&["a".into()], &Usage::default(), "1".parse().unwrap());
    assert_eq!(store.tags(None, None).unwrap().len(), 1);
}

#[test]
fn after_a_checkpoint_the_file_alone_holds_everything() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("keys.db"), dir.path().join("copy.db"));
    let store = Store::open_with(&path, options()).unwrap();
    let (secret, _) = store.create("alice", Limits::default()).unwrap();
    let held = || -> i64 {
        std::fs::copy(&path, &copy).unwrap();
        let db = Connection::open_with_flags(&copy, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        db.query_row("SELECT count(*) FROM keys", [], |row| row.get(0)).unwrap_or(0)
    };
    // The store stays open, as where its last owner never drops it.
    store.checkpoint().unwrap();
    assert_eq!(held(), 1);
    // A reader delays it, and is no error.
    let reader = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM keys").unwrap();
    store.create("bob", Limits::default()).unwrap();
    store.checkpoint().unwrap();
    drop(reader);
    store.checkpoint().unwrap();
    assert_eq!(held(), 2);
    assert!(store.authorize(secret.reveal(), "m", &Ask::default()).is_ok());
}
