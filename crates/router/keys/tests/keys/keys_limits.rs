//! Requests and tokens a minute, requests at a time, budgets: against a slow, plain oracle, and from many threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use octet_keys::{
    Ask, Budget, Clock, Grant, Limits, Options, Period, Prices, Refusal, Secret, Store, Usage, Usd,
};
use proptest::prelude::*;

const START: i64 = 1_795_284_000;

fn store(clock: &Clock) -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { clock: clock.clone(), ..Options::default() };
    let store = Store::open_with(dir.path().join("keys.db"), options).unwrap();
    (dir, store)
}

/// A thousandth of a dollar a token.
fn prices() -> Prices {
    Prices::new(0.001, 0.001).unwrap()
}

fn ask(tokens: u64) -> Ask {
    Ask { input: tokens, prices: prices(), ..Ask::default() }
}

fn used(tokens: u64) -> Usage {
    Usage { input: tokens, ..Usage::default() }
}

#[test]
fn requests_a_minute_hold_over_any_minute() {
    let clock = Clock::manual(START);
    let (_dir, store) = store(&clock);
    let (key, _) = store.create("k", Limits { rpm: Some(2), ..Limits::default() }).unwrap();
    let go = || store.authorize(key.reveal(), "m", &Ask::default());
    assert!(go().is_ok());
    clock.advance(Duration::from_secs(50));
    assert!(go().is_ok());
    let refused = go().unwrap_err();
    assert_eq!((refused.retry_after_s(), refused.status()), (Some(10), 429));
    clock.advance(Duration::from_secs(10));
    assert!(go().is_ok());
    assert_eq!(go().unwrap_err().retry_after_s(), Some(50), "not both of a new minute");
    clock.advance(Duration::from_secs(1_000_000));
    assert!(go().is_ok() && go().is_ok() && go().is_err());
}

#[test]
fn a_running_request_reserves_its_maximum() {
    let clock = Clock::manual(START);
    let (_dir, store) = store(&clock);
    let (key, _) =
        store.create("k", Limits { tpm: Some(100), max_parallel: Some(2), ..Limits::default() }).unwrap();
    let mut first = store.authorize(key.reveal(), "m", &ask(100)).unwrap();
    let refused = store.authorize(key.reveal(), "m", &ask(1)).unwrap_err();
    assert!(matches!(refused, Refusal::Tokens { limit: 100, .. }), "{refused}");
    first.reserve(&ask(40));
    let second = store.authorize(key.reveal(), "m", &ask(1)).unwrap();
    assert_eq!(store.authorize(key.reveal(), "m", &ask(1)).unwrap_err(), Refusal::Parallel { limit: 2 });
    first.settle(&used(99), &prices());
    drop(second); // took nothing
    let last = store.authorize(key.reveal(), "m", &ask(1)).unwrap();
    last.settle(&used(1), &prices());
    assert_eq!(store.authorize(key.reveal(), "m", &ask(1)).unwrap_err().retry_after_s(), Some(60));
}

#[test]
fn a_budget_of_all_requests_is_enforced_stored_and_reset() {
    let clock = Clock::manual(START);
    let (dir, store) = store(&clock);
    assert!(store.total().is_none());
    // Nothing was set: whoever holds to it lets nothing through.
    assert_eq!(store.authorize_total("m", &ask(1)).unwrap_err().status(), 503);
    let budget = |usd| octet_keys::budget(usd, Some(3600)).unwrap();
    store.set_total(budget(0.1)).unwrap();
    let (key, _) = store.create("k", Limits::default()).unwrap();
    // What runs counts.
    let first = store.authorize_total("m", &ask(60)).unwrap();
    let second = store.authorize_total("m", &ask(60)).unwrap();
    let refused = store.authorize_total("m", &ask(1)).unwrap_err();
    assert_eq!((refused.status(), refused.code()), (429, "insufficient_quota"));
    assert!(!refused.to_string().contains('$'), "sums are the operator's: {refused}");
    drop(second);
    first.settle(&used(40), &prices());
    assert_eq!(store.total().unwrap().spent, "0.04".parse().unwrap());
    // It is not a key, and its usage is that of its keys.
    assert_eq!(store.list().len(), 1);
    assert!(store.find("all requests").is_err());
    assert_eq!(store.usage(&octet_keys::Filter::default()).unwrap(), []);
    drop(store.authorize(key.reveal(), "m", &ask(1)).unwrap());
    // Another amount for the same time goes on counting, also after a start.
    store.close().unwrap();
    let options = Options { clock: clock.clone(), ..Options::default() };
    let store = Store::open_with(dir.path().join("keys.db"), options).unwrap();
    store.set_total(budget(0.05)).unwrap();
    assert_eq!(store.total().unwrap().spent, "0.04".parse().unwrap());
    store.authorize_total("m", &ask(20)).unwrap().settle(&used(20), &prices());
    assert!(matches!(store.authorize_total("m", &ask(1)), Err(Refusal::Total { resets: Some(_) })));
    clock.advance(Duration::from_secs(3600));
    assert!(store.authorize_total("m", &ask(1)).is_ok());
    assert!(octet_keys::budget(-1.0, None).is_err() && octet_keys::budget(f64::NAN, None).is_err());
}

#[test]
fn a_key_may_name_a_group_that_a_model_is_in() {
    let clock = Clock::manual(START);
    let (_dir, store) = store(&clock);
    let (key, _) = store.create("k", Limits { models: vec!["beta".into()], ..Limits::default() }).unwrap();
    let go = |groups: &[&str]| store.authorize_in(key.reveal(), "m", groups, &ask(1)).map(drop);
    assert!(go(&["alpha", "beta"]).is_ok() && store.allows_in(key.reveal(), "m", &["beta"]));
    assert_eq!(go(&["alpha"]).unwrap_err().status(), 403);
    assert!(go(&[]).is_err() && !store.allows(key.reveal(), "m"));
}

#[test]
fn concurrent_requests_exceed_a_budget_by_at_most_one_request_each() {
    let (_dir, store) = store(&Clock::system());
    for (name, known) in [("known", true), ("unknown", false)] {
        let limit: Usd = "1".parse().unwrap();
        let budget = Some(Budget { limit, period: Period::Ever });
        let (key, info) = store.create(name, Limits { budget, ..Limits::default() }).unwrap();
        let (threads, tokens) = (8, 7);
        let spent = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let expected = if known { ask(tokens) } else { Ask::default() };
                    while let Ok(grant) = store.authorize(key.reveal(), "m", &expected) {
                        std::thread::yield_now();
                        let cost = grant.settle(&used(tokens), &prices());
                        spent.fetch_add(cost.nanos(), Ordering::Relaxed);
                    }
                });
            }
        });
        let spent = Usd::from_nanos(spent.into_inner());
        let one = prices().cost(&used(tokens)).nanos();
        // A thread gives up when requests that run have reserved the rest; what they leave, one more may take.
        while store.authorize(key.reveal(), "m", &ask(tokens)).is_ok_and(|g| {
            g.settle(&used(tokens), &prices());
            true
        }) {}
        let total = store.find(&info.id.to_string()).unwrap().spent;
        assert!(total >= limit && spent <= total);
        let over = total.minus(limit).nanos();
        assert!(over <= one * if known { 1 } else { threads }, "{over} over, {known}");
        store.flush().unwrap();
        let rows = store.usage(&octet_keys::Filter { key: Some(info.id), ..Default::default() }).unwrap();
        let (requests, cost) = rows.iter().fold((0, 0), |(n, c), r| (n + r.requests, c + r.cost.nanos()));
        assert_eq!(
            (requests, cost),
            (total.nanos() / one, total.nanos()),
            "nothing is lost or counted twice"
        );
    }
}

/// What a client does next.
#[derive(Debug, Clone)]
enum Step {
    Ask(u64),
    Settle(usize, u64),
    Leave(usize),
    Wait(u64),
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u64..50).prop_map(Step::Ask),
        3 => (any::<usize>(), 0u64..60).prop_map(|(i, n)| Step::Settle(i, n)),
        1 => any::<usize>().prop_map(Step::Leave),
        2 => prop_oneof![0u64..5, 20u64..70, 3000u64..4000].prop_map(Step::Wait),
        1 => Just(Step::Flush),
    ];
    proptest::collection::vec(step, 1..120)
}

/// The same limits, by looking at all that ever happened.
#[derive(Default)]
struct Oracle {
    now: u64,
    requests: Vec<u64>,
    settled: Vec<(u64, u64)>,
    running: Vec<u64>,
}

impl Oracle {
    fn admits(&self, limits: &Limits, budget: u64, hour: u64) -> bool {
        let recent = |t: u64| t + 60 > self.now;
        let requests = self.requests.iter().filter(|t| recent(**t)).count() as u64;
        let reserved: u64 = self.running.iter().sum();
        let tokens: u64 = self.settled.iter().filter(|(t, _)| recent(*t)).map(|(_, n)| n).sum();
        let spent: u64 =
            self.settled.iter().filter(|(t, _)| t / hour == self.now / hour).map(|(_, n)| n).sum();
        (self.running.len() as u64) < limits.max_parallel.unwrap()
            && requests < limits.rpm.unwrap()
            && tokens + reserved < limits.tpm.unwrap()
            && spent + reserved < budget
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn limits_are_those_of_the_oracle(
        steps in steps(), rpm in 1u64..12, tpm in 1u64..300, parallel in 1u64..5, tokens in 1u64..600,
    ) {
        let hour = 3600;
        let clock = Clock::manual(START);
        let (_dir, store) = store(&clock);
        let budget = Budget { limit: prices().cost(&used(tokens)), period: Period::Seconds(3600) };
        let limits = Limits {
            rpm: Some(rpm), tpm: Some(tpm), max_parallel: Some(parallel), budget: Some(budget), ..Limits::default()
        };
        let (key, _): (Secret, _) = store.create("k", limits.clone()).unwrap();
        let mut oracle = Oracle::default();
        let mut grants: Vec<Grant> = Vec::new();
        for step in steps {
            match step {
                Step::Ask(n) => {
                    let admitted = store.authorize(key.reveal(), "m", &ask(n));
                    prop_assert_eq!(admitted.is_ok(), oracle.admits(&limits, tokens, hour), "{:?}", admitted);
                    if let Ok(grant) = admitted {
                        grants.push(grant);
                        oracle.requests.push(oracle.now);
                        oracle.running.push(n);
                    }
                }
                Step::Settle(i, n) if !grants.is_empty() => {
                    let i = i % grants.len();
                    grants.swap_remove(i).settle(&used(n), &prices());
                    oracle.running.swap_remove(i);
                    oracle.settled.push((oracle.now, n));
                }
                Step::Leave(i) if !grants.is_empty() => {
                    let i = i % grants.len();
                    drop(grants.swap_remove(i));
                    oracle.running.swap_remove(i);
                }
                Step::Wait(s) => {
                    clock.advance(Duration::from_secs(s));
                    oracle.now += s;
                }
                Step::Flush => store.flush().unwrap(),
                Step::Settle(..) | Step::Leave(_) => {}
            }
        }
    }
}

/// A key with a budget of three cents an hour, and a spender of cents.
fn hourly(store: &Store) -> Secret {
    let budget = Some(Budget { limit: "0.03".parse().unwrap(), period: Period::Seconds(3600) });
    store.create("hourly", Limits { budget, ..Limits::default() }).unwrap().0
}

fn spend(store: &Store, key: &Secret, tokens: u64) -> Result<(), Refusal> {
    let grant = store.authorize(key.reveal(), "m", &ask(1))?;
    grant.settle(&used(tokens), &prices());
    Ok(())
}

#[test]
fn several_answers_must_fit_into_the_budget_but_for_the_last() {
    let clock = Clock::manual(START);
    let (_dir, store) = store(&clock);
    let key = hourly(&store);
    // A prompt of two tokens, and answers of ten: a cent each.
    let one = Ask { input: 2, output: 10, prices: prices(), ..Ask::default() };
    let go = |answers| store.authorize_answers(key.reveal(), "m", &[], &one, answers);
    for (answers, fits) in [(1, true), (3, true), (4, false), (128, false), (u64::MAX, false)] {
        let answer = go(answers);
        assert_eq!(answer.is_ok(), fits, "{answers}");
        if let Err(refused) = answer {
            assert_eq!((refused.status(), refused.code()), (429, "insufficient_quota"));
            assert!(refused.to_string().contains("ask for fewer"), "{refused}");
        }
    }
    // What runs is reserved with all its answers.
    let running = go(2).unwrap();
    assert!(go(1).is_ok() && go(2).is_err());
    drop(running);
    assert!(go(2).is_ok());
    let (key, _) = store.create("tpm", Limits { tpm: Some(30), ..Limits::default() }).unwrap();
    let go = |answers| store.authorize_answers(key.reveal(), "m", &[], &one, answers);
    assert!(matches!(go(4).unwrap_err(), Refusal::Answers { .. }), "it never fits");
    let running = go(2).unwrap();
    assert!(matches!(go(2).unwrap_err(), Refusal::Tokens { .. }), "it fits later");
    drop(running);
    assert!(go(3).is_ok());
    store.set_total(octet_keys::budget(0.03, None).unwrap()).unwrap();
    let refused = store.authorize_total_answers("m", &one, 4).unwrap_err();
    assert!(refused.status() == 429 && !refused.to_string().contains('$'), "{refused}");
    assert!(store.authorize_total_answers("m", &one, 3).is_ok());
}

/// The clock of the system is set years ahead, and back, with requests and writes or without, in one process or over a restart.
#[test]
fn a_budget_survives_a_clock_that_jumps_ahead_and_back() {
    const YEARS: i64 = 10 * 365 * 86_400;
    for (spends_there, writes, restarts) in [
        (0, false, false),
        (0, true, false),
        (5, false, false),
        (5, true, false),
        (5, true, true),
        (0, true, true),
    ] {
        let clock = Clock::manual(START);
        let (dir, mut store) = store(&clock);
        let key = hourly(&store);
        let again = |store: Store| {
            store.close().unwrap();
            let options = Options { clock: clock.clone(), ..Options::default() };
            Store::open_with(dir.path().join("keys.db"), options).unwrap()
        };
        let spent = |store: &Store| store.find("hourly").unwrap().spent;
        spend(&store, &key, 20).unwrap();
        if writes {
            store.flush().unwrap();
        }
        clock.set(START + YEARS);
        assert_eq!(spent(&store), Usd::ZERO, "a period that begins");
        if spends_there > 0 {
            spend(&store, &key, spends_there).unwrap();
        }
        if writes {
            store.flush().unwrap();
        }
        if restarts {
            store = again(store);
        }
        clock.set(START + 1);
        let expected = Usd::from_nanos((20 + spends_there) * 1_000_000);
        assert_eq!(spent(&store), expected, "{spends_there} {writes} {restarts}");
        spend(&store, &key, 10).unwrap();
        assert_eq!(spend(&store, &key, 1).unwrap_err().status(), 429);
        store = again(store);
        assert_eq!(spend(&store, &key, 1).unwrap_err().status(), 429, "also after a start");
        // It is reset when its hour is over, not in ten years.
        clock.set(START + 3601);
        spend(&store, &key, 1).unwrap();
        store = again(store);
        assert_eq!(spent(&store), "0.001".parse().unwrap());
    }
}

#[test]
fn a_jump_of_the_clock_deletes_no_usage() {
    let clock = Clock::manual(START);
    let (_dir, store) = store(&clock);
    let (key, _) = store.create("k", Limits::default()).unwrap();
    spend(&store, &key, 1).unwrap();
    let rows = || store.usage(&octet_keys::Filter::default()).unwrap().len();
    assert_eq!(rows(), 1);
    clock.set(START + 20 * 365 * 86_400);
    assert_eq!(rows(), 1);
    clock.set(START + 86_400);
    assert_eq!(rows(), 1);
    // A date that stays is right.
    clock.set(START + 20 * 365 * 86_400);
    assert_eq!(rows(), 1);
    clock.advance(Duration::from_secs(7 * 3600));
    assert_eq!(rows(), 0);
}
