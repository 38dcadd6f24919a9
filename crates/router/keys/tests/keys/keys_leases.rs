//! Budgets that several processes lease in slices from PostgreSQL, and responses that one stores and another reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use octet_keys::{Ask, Limits, Options, Prices, Refusal, ResponseRow, Responses, Store, Usage, Usd, budget};
use octet_testkit::Postgres as Server;

use super::keys_postgres::{client, open, until, usd};

/// A tenth of a cent for a token.
fn prices() -> Prices {
    Prices::new(0.001, 0.001).expect("prices")
}

/// A request that takes 2 of the 3 tokens that it may take.
fn spend(store: &Store, key: &str) -> Result<Usd, Refusal> {
    let ask = Ask { input: 1, output: 2, prices: prices(), ..Ask::default() };
    let mut grant = store.authorize(key, "m", &ask)?;
    if !grant.is_covered() {
        grant.cover()?;
    }
    Ok(grant.settle(&Usage { input: 1, output: 1, ..Usage::default() }, &prices()))
}

fn key(stores: &[Store], limit: f64) -> String {
    let limits = Limits { budget: Some(budget(limit, None).expect("a budget")), ..Limits::default() };
    let (secret, _) = stores[0].create(octet_keys::UNNAMED, limits).expect("a key");
    let secret = secret.reveal().to_string();
    stores.iter().for_each(|store| until("the key is seen", || store.check(&secret).is_ok()));
    secret
}

#[test]
fn processes_together_spend_a_budget_and_no_more() {
    let Some(server) = Server::start() else { return };
    // Written so seldom that what a process knows of the others' spend is always old.
    let slow = || {
        let options = Options { flush_every: Duration::from_secs(3600), ..Options::default() };
        Store::connect(&server.url(), options).expect("a database")
    };
    let stores = [slow(), slow(), slow()];
    let limits = Limits { budget: Some(budget(0.1, None).expect("a budget")), ..Limits::default() };
    let (secret, _) = stores[0].create("alice", limits).expect("a key");
    stores.iter().for_each(|store| store.flush().expect("read"));
    let all = AtomicU64::new(0);
    let attempt = |store: &Store| match spend(store, secret.reveal()) {
        Ok(cost) => {
            all.fetch_add(cost.nanos(), Ordering::Relaxed);
        }
        Err(Refusal::Budget { .. }) => {}
        Err(other) => panic!("{other}"),
    };
    std::thread::scope(|scope| {
        for store in &stores {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| attempt(store)));
            }
        }
    });
    let spent = || Usd::from_nanos(all.load(Ordering::Relaxed));
    // One that begins below the budget may exceed it; of each process, as each may have a rest of its lease.
    let most = usd("0.1").plus(usd("0.002")).plus(usd("0.002")).plus(usd("0.002"));
    assert!(spent() <= most, "{}", spent());
    // What one has leased and does not need, the others get when it is given back.
    until("the budget is used up", || {
        stores.iter().for_each(|store| {
            attempt(store);
            store.flush().expect("written");
        });
        spent() >= usd("0.1")
    });
    assert!(spent() <= most, "{}", spent());
    for store in &stores {
        store.flush().expect("written");
        assert!(matches!(spend(store, secret.reveal()), Err(Refusal::Budget { .. })));
    }
    assert_eq!(stores[2].find("alice").expect("the key").spent, spent());
}

#[test]
fn the_lease_of_a_process_that_died_ends() {
    let Some(server) = Server::start() else { return };
    let stores = [open(&server), open(&server)];
    let key = key(&stores, 1.0);
    let id = stores[0].id(&key).expect("the key").to_string();
    let mut client = client(&server);
    let lease = "INSERT INTO octet_leases VALUES ($1, 'dead', 1000000000, now() + interval '1 hour')";
    client.execute(lease, &[&id]).expect("written");
    assert!(matches!(spend(&stores[1], &key), Err(Refusal::Budget { .. })), "another process may spend all");
    client.execute("UPDATE octet_leases SET until = now()", &[]).expect("written");
    spend(&stores[1], &key).expect("nobody renews it");
    // What is not needed is given back: at the latest when a process ends.
    until("the lease is given back", || {
        let sum = "SELECT coalesce(sum(amount), 0)::bigint FROM octet_leases WHERE process <> 'dead'";
        client.query_one(sum, &[]).expect("a sum").get::<_, i64>(0) == 0
    });
    // Its own lease ends while it is stopped: it learns so, and leases again.
    spend(&stores[1], &key).expect("allowed");
    client.execute("DELETE FROM octet_leases", &[]).expect("written");
    spend(&stores[1], &key).expect("allowed");
    until("all is written", || {
        stores[0].flush().expect("read");
        stores[0].list().iter().any(|k| k.spent == usd("0.006"))
    });
}

#[test]
fn what_one_stores_another_reads() {
    let Some(mut server) = Server::start() else { return };
    let store = open(&server);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (a, b) = [0; 2].map(|_| Responses::new(&server.url()).expect("an address")).into();
    let row = |id: &str, owner: Option<&str>| ResponseRow {
        id: id.into(),
        owner: owner.map(Into::into),
        input_len: 1,
        conversation: br#"[{"text": "\u0000"}]"#.to_vec(),
        body: vec![0, 255],
    };
    runtime.block_on(async {
        let all = [row("1", Some("alice")), row("2", Some("bob")), row("3", None)];
        for row in &all {
            a.put(row).await.expect("written");
        }
        assert_eq!(b.get(&["1", "x"], None).await.expect("read"), all[..1]);
        let size = (all[0].conversation.len() + 2) as u64;
        assert_eq!(b.sizes(&["1", "2"], Some("alice")).await.expect("read"), [("1".to_string(), size)]);
        assert_eq!(b.get(&["1", "2", "3"], Some("bob")).await.expect("read"), all[1..2], "only its own");
        assert!(!b.remove("1", Some("bob")).await.expect("read"));
        assert!(b.remove("1", Some("alice")).await.expect("written"));
        assert_eq!(a.get(&["1"], None).await.expect("read"), []);
    });
    server.kill();
    runtime.block_on(async {
        let error = a.get(&["2"], None).await.expect_err("the server is away").to_string();
        assert!(error.contains("127.0.0.1") && !error.contains("secret"), "{error}");
    });
    server.restart();
    // Not at once after a failure.
    until("it is read again", || runtime.block_on(b.get(&["2"], None)).is_ok_and(|rows| rows.len() == 1));
    store.close().expect("written");
}
