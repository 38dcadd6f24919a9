//! Keys are created, found, changed and revoked; usage is counted, stored and deleted.

use std::time::Duration;

use octet_keys::{
    Ask, Budget, Clock, Filter, Limits, Options, Period, Prices, Refusal, Store, Usage, Usd, calendar,
};
use proptest::prelude::*;

/// 2026-11-21 18:00:00 UTC.
const START: i64 = 1_795_284_000;
const DAY: Duration = Duration::from_secs(86_400);

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn at(dir: &tempfile::TempDir, clock: &Clock) -> Store {
    Store::open_with(dir.path().join("keys.db"), Options { clock: clock.clone(), ..options() }).unwrap()
}

/// Two stores of a test share a file; with a slow disk each waits for the other.
fn options() -> Options {
    Options { lock_timeout: Duration::from_secs(60), ..Options::default() }
}

fn tokens(input: u64, output: u64) -> Usage {
    Usage { input, output, ..Usage::default() }
}

fn usd(text: &str) -> Usd {
    text.parse().unwrap()
}

#[test]
fn a_key_may_use_its_models_until_it_is_revoked() {
    let (dir, clock) = (folder(), Clock::manual(START));
    let store = at(&dir, &clock);
    let limits = Limits { models: vec!["default".into(), "openai/*".into()], ..Limits::default() };
    let (secret, info) = store.create("alice", limits).unwrap();
    let ask = |model: &str| store.authorize(secret.reveal(), model, &Ask::default());
    assert!(ask("default").is_ok() && ask("openai/gpt-5").is_ok());
    let refused = ask("claude").unwrap_err();
    assert_eq!(refused.status(), 403);
    assert!(refused.to_string().contains("claude") && refused.to_string().contains("default, openai/*"));
    assert!(store.allows(secret.reveal(), "default") && !store.allows(secret.reveal(), "claude"));

    // Not by its name or id, not cut short, not with more, not empty.
    let (key, id) = (secret.reveal().to_string(), info.id.to_string());
    for wrong in
        ["", "alice", &id, &key[..key.len() - 1], &format!("{key} "), &key.to_uppercase(), &"x".repeat(9999)]
    {
        assert_eq!(
            store.authorize(wrong, "default", &Ask::default()).unwrap_err(),
            Refusal::Unknown,
            "{wrong}"
        );
    }

    store.revoke(info.id).unwrap();
    assert_eq!(ask("default").unwrap_err(), Refusal::Revoked);
    assert!(!store.allows(secret.reveal(), "default"));
    drop(store);
    let store = at(&dir, &clock);
    assert_eq!(store.authorize(&key, "default", &Ask::default()).unwrap_err(), Refusal::Revoked);
    assert_eq!(store.list()[0].revoked, Some(START));
}

#[test]
fn files_do_not_contain_the_keys() {
    let dir = folder();
    let store = at(&dir, &Clock::system());
    let (secret, _) = store.create("alice", Limits::default()).unwrap();
    let (other, _) = store.create("bob", Limits::default()).unwrap();
    assert_ne!(secret.reveal(), other.reveal());
    assert!(!format!("{secret:?} {store:?}").contains(&secret.reveal()[12..]));
    store.authorize(secret.reveal(), "m", &Ask::default()).unwrap().settle(&tokens(1, 1), &Prices::default());
    store.flush().unwrap();
    let hex = secret.reveal().strip_prefix("sk-octet-").unwrap();
    assert_eq!(hex.len(), 64);
    let raw: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
    let mut files = 0;
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        files += 1;
        // Any quarter of it would be noticed.
        for needle in [&hex.as_bytes()[..16], &hex.as_bytes()[32..48], &raw[..8], &raw[16..24]] {
            assert!(!bytes.windows(needle.len()).any(|w| w == needle));
        }
    }
    assert!(files >= 1);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(dir.path().join("keys.db")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn keys_are_found_by_id_or_by_name() {
    let dir = folder();
    let store = at(&dir, &Clock::system());
    let (_, first) = store.create("alice", Limits::default()).unwrap();
    assert_eq!(store.find("alice").unwrap().id, first.id);
    assert_eq!(store.find(&first.id.to_string()).unwrap().name, "alice");
    let (_, other) = store.create("bob", Limits::default()).unwrap();
    let rename = |name: &str| {
        store.edit_for::<octet_keys::Error>(other.id, |draft| {
            draft.name = name.into();
            Ok(())
        })
    };
    for taken in [store.create("alice", Limits::default()).map(drop), rename("alice")] {
        assert!(taken.unwrap_err().to_string().contains("a key with the name 'alice' exists"));
    }
    rename("bob").unwrap();
    // Keys that were given no name have one in common.
    let unnamed = [(); 2].map(|()| store.create(octet_keys::UNNAMED, Limits::default()).unwrap().1.id);
    let several = store.find(octet_keys::UNNAMED).unwrap_err().to_string();
    assert!(unnamed.iter().all(|id| several.contains(&id.to_string())), "{several}");
    store.revoke(first.id).unwrap();
    let (_, second) = store.create("alice", Limits::default()).unwrap();
    assert_eq!(store.find("alice").unwrap().id, second.id, "the one in force");
    assert!(store.find("carol").unwrap_err().to_string().contains("carol"));
    assert!(store.revoke("0123456789abcdef".parse().unwrap()).is_err());
    for bad in ["", "two\nlines"] {
        assert!(store.create(bad, Limits::default()).is_err());
    }
}

#[test]
fn a_key_expires() {
    let (dir, clock) = (folder(), Clock::manual(START));
    let store = at(&dir, &clock);
    let limits = Limits { expires: Some(START + 60), ..Limits::default() };
    let (secret, _) = store.create("guest", limits).unwrap();
    clock.advance(Duration::from_secs(59));
    assert!(store.authorize(secret.reveal(), "m", &Ask::default()).is_ok());
    clock.advance(Duration::from_secs(1));
    let refused = store.authorize(secret.reveal(), "m", &Ask::default()).unwrap_err();
    assert_eq!(refused.status(), 401);
    assert!(refused.to_string().contains("2026-11-21 18:01 UTC"), "{refused}");
}

#[test]
fn changes_and_spend_of_another_process_are_read() {
    let (dir, clock) = (folder(), Clock::manual(START));
    let (server, cli) = (at(&dir, &clock), at(&dir, &clock));
    let budget = Some(Budget { limit: usd("1"), period: Period::Month });
    let (secret, info) = cli.create("alice", Limits { budget, ..Limits::default() }).unwrap();
    server.flush().unwrap();
    let spend = |store: &Store, n: u64| {
        let grant = store.authorize(secret.reveal(), "m", &Ask::default());
        grant.map(|g| g.settle(&tokens(n, 0), &Prices::new(0.001, 0.0).unwrap()))
    };
    assert_eq!(spend(&server, 300).unwrap(), usd("0.3"));
    assert_eq!(spend(&cli, 300).unwrap(), usd("0.3"));
    server.flush().unwrap();
    cli.flush().unwrap();
    server.flush().unwrap();
    assert_eq!((server.list()[0].spent, cli.list()[0].spent), (usd("0.6"), usd("0.6")));
    spend(&cli, 400).unwrap();
    cli.flush().unwrap();
    server.flush().unwrap();
    assert_eq!(spend(&server, 1).unwrap_err().status(), 429, "the other spent the rest");

    let more = Some(Budget { limit: usd("2"), period: Period::Month });
    cli.edit(info.id, Some("alicia"), Limits { budget: more, ..Limits::default() }).unwrap();
    server.flush().unwrap();
    assert!(spend(&server, 1).is_ok());
    assert_eq!((server.list()[0].name.as_str(), server.list()[0].spent), ("alicia", usd("1.001")));
    cli.revoke(info.id).unwrap();
    server.flush().unwrap();
    assert_eq!(spend(&server, 1).unwrap_err(), Refusal::Revoked);
}

#[test]
fn changes_are_noticed_without_requests() {
    let dir = folder();
    let options = Options { flush_every: Duration::from_millis(20), ..options() };
    let server = Store::open_with(dir.path().join("keys.db"), options).unwrap();
    let (secret, _) = at(&dir, &Clock::system()).create("alice", Limits::default()).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while server.authorize(secret.reveal(), "m", &Ask::default()).is_err() {
        assert!(std::time::Instant::now() < deadline, "the key is never seen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_budget_survives_restarts_and_edits_and_is_reset() {
    let (dir, clock) = (folder(), Clock::manual(START));
    let budget = |limit: &str, period| Limits {
        budget: Some(Budget { limit: usd(limit), period }),
        ..Limits::default()
    };
    let store = at(&dir, &clock);
    let (secret, info) = store.create("alice", budget("1", Period::Month)).unwrap();
    let spend = |store: &Store| {
        let grant = store.authorize(secret.reveal(), "m", &Ask::default());
        grant.map(|g| g.settle(&tokens(1, 0), &Prices::new(1.0, 0.0).unwrap()))
    };
    spend(&store).unwrap();
    store.close().unwrap();
    let store = at(&dir, &clock);
    let refused = spend(&store).unwrap_err();
    assert!(
        refused.to_string().contains("$1.00") && refused.to_string().contains("2026-12-01 00:00 UTC"),
        "{refused}"
    );
    assert_eq!(
        (refused.status(), refused.code(), refused.retry_after_s()),
        (429, "insufficient_quota", None)
    );
    // Another period: what is spent counts on.
    store.edit(info.id, None, budget("1", Period::Seconds(3600))).unwrap();
    assert!(spend(&store).is_err());
    store.edit(info.id, None, budget("1", Period::Ever)).unwrap();
    assert!(spend(&store).is_err());
    store.edit(info.id, None, budget("1", Period::Month)).unwrap();
    assert!(spend(&store).is_err());
    clock.advance(10 * DAY); // December
    assert!(spend(&store).is_ok());
    assert!(spend(&store).is_err());
    store.close().unwrap();
    let store = at(&dir, &clock);
    assert!(spend(&store).is_err());
    assert_eq!(store.list()[0].spent, usd("1"));
    // A period without spend has no effect on the next one.
    clock.advance(31 * DAY);
    store.edit(info.id, None, budget("1", Period::Ever)).unwrap();
    assert!(spend(&store).is_ok());
}

#[test]
fn usage_is_counted_by_key_model_and_day_and_forgotten_in_time() {
    let (dir, clock) = (folder(), Clock::manual(START));
    let options = Options { clock: clock.clone(), retention_days: 2, ..options() };
    let store = Store::open_with(dir.path().join("keys.db"), options).unwrap();
    let (alice, a) = store.create("alice", Limits::default()).unwrap();
    let (bob, b) = store.create("bob", Limits::default()).unwrap();
    let prices = Prices::new(1e-6, 2e-6).unwrap().cache_read(1e-7).unwrap().cache_write(2e-6).unwrap();
    let spend = |key: &octet_keys::Secret, model: &str, usage| {
        store.authorize(key.reveal(), model, &Ask::default()).unwrap().settle(&usage, &prices)
    };
    let usage = Usage { input: 100, cached: 40, cache_written: 10, output: 7 };
    assert_eq!(spend(&alice, "x", usage), usd("0.000088"), "50 + 40/10 + 10*2 + 7*2 millionths");
    spend(&alice, "x", usage);
    spend(&alice, "y", tokens(1, 1));
    drop(store.authorize(bob.reveal(), "x", &Ask::default()).unwrap());
    clock.advance(DAY);
    spend(&bob, "x", tokens(5, 0));
    let today = calendar::day(START);
    let rows = store.usage(&Filter::default()).unwrap();
    let seen: Vec<_> = rows.iter().map(|r| (r.day - today, r.key, r.model.as_str(), r.requests)).collect();
    assert_eq!(seen, [(0, a.id, "x", 2), (0, a.id, "y", 1), (1, b.id, "x", 1)]);
    assert_eq!(rows[0].usage, Usage { input: 200, cached: 80, cache_written: 20, output: 14 });
    assert_eq!(rows[0].cost, usd("0.000176"));
    let of = |filter: Filter| store.usage(&filter).unwrap().len();
    assert_eq!(of(Filter { key: Some(b.id), ..Filter::default() }), 1);
    assert_eq!(of(Filter { model: Some("x".into()), ..Filter::default() }), 2);
    assert_eq!(of(Filter { from_day: Some(today + 1), ..Filter::default() }), 1);
    assert_eq!(of(Filter { to_day: Some(today), ..Filter::default() }), 2);

    store.revoke(a.id).unwrap();
    clock.advance(2 * DAY);
    assert_eq!(of(Filter::default()), 1, "the first day is forgotten");
    clock.advance(2 * DAY);
    assert_eq!(of(Filter::default()), 0);
    let (_, c) = at(&dir, &clock).create("carol", Limits::default()).unwrap();
    store.flush().unwrap();
    let left: Vec<_> = store.list().iter().map(|k| k.id).collect();
    assert_eq!(left, [b.id, c.id], "a revoked key that nothing is left of goes too");
}

#[test]
fn amounts_and_periods_are_read_as_they_are_written() {
    for (text, nanos) in
        [("1", 1_000_000_000), ("$12.50", 12_500_000_000), (".5", 500_000_000), ("0.000000001", 1)]
    {
        assert_eq!(usd(text).nanos(), nanos);
    }
    assert_eq!((usd("12.5").to_string(), usd("0.000088").to_string()), ("$12.50".into(), "$0.000088".into()));
    for bad in ["", ".", "-1", "1e3", "1.0000000001", "99999999999999999999", "2000000000", "1,5"] {
        assert!(bad.parse::<Usd>().is_err(), "{bad}");
    }
    for (text, period) in
        [("30d", Period::Seconds(2_592_000)), ("90s", Period::Seconds(90)), ("1mo", Period::Month)]
    {
        assert_eq!((text.parse::<Period>().unwrap(), period.to_string().as_str()), (period, text));
    }
    assert_eq!("1w".parse::<Period>().unwrap().to_string(), "7d");
    for bad in ["", "d", "0d", "-1d", "1y", "99999999999d", "4294967295w"] {
        assert!(bad.parse::<Period>().is_err(), "{bad}");
    }
    assert!(Prices::new(-1.0, 0.0).is_err() && Prices::new(0.0, f64::NAN).is_err());
    assert!(Prices::new(f64::INFINITY, 0.0).is_err());
    let tiny = Prices::new(1e-12, 0.0).unwrap();
    assert_eq!(tiny.cost(&tokens(1, 0)).nanos(), 1, "what costs something is never for nothing");
    let most = Usage { input: u64::MAX, cached: u64::MAX, cache_written: u64::MAX, output: u64::MAX };
    Prices::new(1000.0, 1000.0).unwrap().cost(&most);
}

#[test]
fn wildcards_match_any_text() {
    let allows = |pattern: &str, model: &str| {
        Limits { models: vec![pattern.into()], ..Limits::default() }.allows(model)
    };
    for (pattern, model) in
        [("*", ""), ("a*", "a"), ("*a", "ba"), ("a*a", "aa"), ("a*b*c", "abbc"), ("a*bc", "abcbc")]
    {
        assert!(allows(pattern, model), "{pattern} {model}");
    }
    for (pattern, model) in
        [("a", "ab"), ("a*", "ba"), ("a*a", "a"), ("a*b*c", "acb"), ("", "a"), ("openai/*", "openai")]
    {
        assert!(!allows(pattern, model), "{pattern} {model}");
    }
}

proptest! {
    /// Against SQLite's own calendar.
    #[test]
    fn dates_are_those_of_sqlite(day in 0i64..2_900_000) {
        let db = rusqlite::Connection::open_in_memory().unwrap();
        let theirs: (String, i64) = db
            .query_row(
                "SELECT date(?1 * 86400, 'unixepoch'),
                 unixepoch(?1 * 86400, 'unixepoch', 'start of month', '+1 month')",
                [day],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .unwrap();
        prop_assert_eq!(calendar::iso(day), theirs.0.clone());
        prop_assert_eq!(calendar::month(day * calendar::DAY_S + 12_345).1, theirs.1);
        prop_assert_eq!(calendar::parse(&theirs.0), Some(day));
    }
}

#[test]
fn usage_is_counted_by_tags_too() {
    let (dir, clock) = (folder(), Clock::manual(START));
    let (one, two) = (at(&dir, &clock), at(&dir, &clock));
    let tags = |names: &[&str]| names.iter().map(|n| (*n).to_string()).collect::<Vec<_>>();
    one.count_tags(&tags(&["blue", "eu"]), &tokens(100, 10), usd("0.5"));
    two.count_tags(&tags(&["blue"]), &tokens(1, 2), usd("0.25"));
    two.flush().unwrap();
    let report = |store: &Store, from: Option<i64>| {
        let rows = store.tags(from, None).unwrap();
        rows.into_iter().map(|r| (r.tag, r.requests, r.input, r.output, r.cost)).collect::<Vec<_>>()
    };
    let all = vec![("blue".into(), 2, 101, 12, usd("0.75")), ("eu".into(), 1, 100, 10, usd("0.5"))];
    assert_eq!(report(&one, None), all);
    // They are in the file, by day, and deleted with all usage.
    drop((one, two));
    let store = at(&dir, &clock);
    assert_eq!(report(&store, None), all);
    assert_eq!(report(&store, Some(calendar::day(START) + 1)), []);
    clock.advance(DAY * 500);
    store.flush().unwrap();
    assert_eq!(report(&store, None), []);
}
