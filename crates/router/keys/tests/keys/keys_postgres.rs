//! Several processes with one PostgreSQL: what one changes the others see, spend adds up, also when the server is killed; and LiteLLM's keys
//! are taken over. Needs Debian's package `postgresql`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use octet_keys::{
    Ask, Clock, Filter, Limits, Options, OwnerKind, Prices, Profile, Refusal, Store, Usage, Usd, budget,
};
use octet_testkit::Postgres as Server;

/// How long a change may take to arrive, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn client(server: &Server) -> postgres::Client {
    postgres::Client::connect(&server.plain_url(), postgres::NoTls).expect("a connection")
}

pub(super) fn open(server: &Server) -> Store {
    let options = Options { flush_every: Duration::from_millis(50), ..Options::default() };
    Store::connect(&server.url(), options).expect("a database")
}

pub(super) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(super) fn usd(text: &str) -> Usd {
    text.parse().expect("money")
}

/// A request that costs a tenth of a cent.
fn spend(store: &Store, key: &str) -> Result<(), Refusal> {
    let grant = store.authorize(key, "m", &Ask::default())?;
    let prices = Prices::new(0.0001, 0.0).expect("prices");
    grant.settle(&Usage { input: 10, ..Usage::default() }, &prices);
    Ok(())
}

#[test]
fn what_one_process_changes_the_others_see() {
    let Some(server) = Server::start() else { return };
    let (a, b) = (open(&server), open(&server));
    let team =
        a.create_owner(OwnerKind::Team, "team", Limits::default(), Profile::default()).expect("a team");
    let profile = Profile { team: Some("team".into()), user: Some("bob".into()), ..Profile::default() };
    let limits =
        Limits { rpm: Some(1000), budget: Some(budget(1.0, Some(3600)).unwrap()), ..Limits::default() };
    let (secret, key) = a.create_for("alice", limits.clone(), profile.clone()).expect("a key");
    let secret = secret.reveal();
    until("the new key is seen", || b.check(secret).is_ok());
    let seen = b.find("alice").expect("the key");
    assert_eq!((&seen.limits, &seen.profile, seen.created), (&limits, &profile, key.created));
    assert_eq!(b.owner(OwnerKind::Team, "team").expect("the team").id, team.id);

    for _ in 0..20 {
        spend(&a, secret).expect("allowed");
        spend(&b, secret).expect("allowed");
    }
    let both = usd("0.04");
    until("spend adds up", || [&a, &b].iter().all(|s| s.find("alice").is_ok_and(|k| k.spent == both)));
    let rows = b.usage(&Filter::default()).expect("usage");
    assert_eq!(rows.iter().map(|r| r.requests).sum::<u64>(), 40);
    assert_eq!(rows.iter().fold(Usd::ZERO, |sum, r| sum.plus(r.cost)), both);
    a.count_tags(&["t".into()], &Usage { input: 1, ..Usage::default() }, usd("0.5"));
    a.flush().expect("written");
    b.count_tags(&["t".into()], &Usage { input: 1, ..Usage::default() }, usd("0.5"));
    let tags = b.tags(None, None).expect("tags");
    assert_eq!((tags.len(), tags[0].requests, tags[0].cost), (1, 2, usd("1")));

    // A budget of all requests, and one that is used up elsewhere.
    b.edit(key.id, None, Limits { budget: Some(budget(0.041, None).unwrap()), ..limits }).expect("an edit");
    until("the change is seen", || {
        a.find("alice").is_ok_and(|k| k.limits.budget.unwrap().limit == usd("0.041"))
    });
    spend(&b, secret).expect("the last one");
    until("it is known", || a.find("alice").is_ok_and(|k| k.spent == usd("0.041")));
    assert!(matches!(spend(&a, secret), Err(Refusal::Budget { .. })));

    b.revoke(key.id).expect("revoked");
    let began = Instant::now();
    until("the key is refused", || a.check(secret) == Err(Refusal::Revoked));
    eprintln!("a revoked key was refused after {:?}", began.elapsed());
    // Names are unique, whoever made them.
    b.create("carol", Limits::default()).expect("a key");
    assert!(a.create("carol", Limits::default()).is_err());
    a.delete_owner(OwnerKind::Team, "team").expect("deleted");
    until("the team is gone", || b.owner(OwnerKind::Team, "team").is_err());
    a.close().expect("written");
    // Nothing is lost at the end, and a new process knows everything.
    assert_eq!(open(&server).find("alice").expect("the key").spent, usd("0.041"));
}

#[test]
fn nothing_is_lost_or_counted_twice_when_the_server_is_killed() {
    let Some(mut server) = Server::start() else { return };
    let stores = [open(&server), open(&server), open(&server)];
    let (secret, key) = stores[0].create("alice", Limits::default()).expect("a key");
    let key_with_budget = {
        let limits = Limits { budget: Some(budget(100.0, None).unwrap()), ..Limits::default() };
        stores[0].create("bob", limits).expect("a key").0
    };
    for store in &stores {
        until("the keys are seen", || {
            store.check(secret.reveal()).is_ok() && store.check(key_with_budget.reveal()).is_ok()
        });
    }
    let done = AtomicBool::new(false);
    let spent: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = stores
            .iter()
            .map(|store| {
                scope.spawn(|| {
                    let mut many = 0;
                    while !done.load(Ordering::Relaxed) {
                        // Known keys without a budget work without the server.
                        spend(store, secret.reveal()).expect("allowed");
                        many += 1;
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    many
                })
            })
            .collect();
        for _ in 0..3 {
            let before = stores[0].find("alice").expect("the key").spent;
            until("there is load", || {
                stores[0].find("alice").is_ok_and(|k| k.spent > before.plus(usd("0.05")))
            });
            server.kill();
            let refused =
                || matches!(spend(&stores[1], key_with_budget.reveal()), Err(Refusal::Unwritable { .. }));
            until("what is spent cannot be recorded", refused);
            server.restart();
            until("it can be again", || stores.iter().all(|s| spend(s, key_with_budget.reveal()).is_ok()));
        }
        done.store(true, Ordering::Relaxed);
        threads.into_iter().map(|t| t.join().expect("no panic")).sum()
    });
    for store in &stores {
        store.flush().expect("written");
    }
    let filter = Filter { key: Some(key.id), ..Filter::default() };
    let rows = stores[2].usage(&filter).expect("usage");
    assert_eq!(rows.iter().map(|r| r.requests).sum::<u64>(), spent);
    let cost = Usd::from_nanos(spent * 1_000_000);
    assert_eq!(rows.iter().fold(Usd::ZERO, |sum, r| sum.plus(r.cost)), cost);
    until("all know the sum", || stores.iter().all(|s| s.find("alice").is_ok_and(|k| k.spent == cost)));
}

/// The columns that are read, of the tables in LiteLLM's schema.prisma.
const LITELLM: &str = r#"
CREATE TABLE "LiteLLM_TeamTable" (team_id text PRIMARY KEY, team_alias text, blocked boolean NOT NULL DEFAULT false,
    admins text[], members text[], max_budget double precision, spend double precision NOT NULL DEFAULT 0, budget_duration text,
    models text[], rpm_limit bigint, tpm_limit bigint, max_parallel_requests integer, metadata jsonb NOT NULL DEFAULT '{}',
    created_at timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE "LiteLLM_UserTable" (user_id text PRIMARY KEY, user_alias text, user_email text, user_role text,
    max_budget double precision, spend double precision NOT NULL DEFAULT 0, budget_duration text, models text[], rpm_limit bigint,
    tpm_limit bigint, max_parallel_requests integer, metadata jsonb NOT NULL DEFAULT '{}',
    created_at timestamp(3) DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE "LiteLLM_VerificationToken" (token text PRIMARY KEY, key_alias text, key_name text, user_id text, team_id text, blocked boolean,
    expires timestamp(3), max_budget double precision, spend double precision NOT NULL DEFAULT 0, budget_duration text, models text[],
    rpm_limit bigint, tpm_limit bigint, max_parallel_requests integer, metadata jsonb NOT NULL DEFAULT '{}',
    created_at timestamp(3) DEFAULT CURRENT_TIMESTAMP);
INSERT INTO "LiteLLM_TeamTable" (team_id, team_alias, admins, members, max_budget, spend, budget_duration, models)
    VALUES ('t1', 'Platform', '{u1}', '{u1,u2}', 100, 12.5, '30d', '{all-proxy-models}');
INSERT INTO "LiteLLM_UserTable" (user_id, user_email, user_role, models) VALUES ('u1', 'u1@example.org', 'internal_user', '{}');
INSERT INTO "LiteLLM_UserTable" (user_id, user_role) VALUES ('default_user_id', 'proxy_admin');
INSERT INTO "LiteLLM_VerificationToken" (token, key_alias, key_name, user_id, team_id, max_budget, spend, models, rpm_limit, metadata)
    VALUES (encode(sha256('sk-first'), 'hex'), 'alice', 'sk-...irst', 'u1', 't1', 5, 1.25, '{m,other}', 60, '{"app": "x"}');
INSERT INTO "LiteLLM_VerificationToken" (token, key_alias, key_name, rpm_limit, budget_duration, max_budget, expires)
    VALUES (encode(sha256('sk-second'), 'hex'), 'alice', 'sk-...cond', 0, 'soon', 1, '2001-01-01'), ('litellm-dashboard', NULL, NULL, NULL, NULL, NULL, NULL);
"#;

#[test]
fn keys_of_litellm_are_taken_over() {
    let Some(server) = Server::start() else { return };
    assert!(octet_keys::litellm(&server.url()).is_err(), "there are no tables of LiteLLM's");
    client(&server).batch_execute(LITELLM).expect("LiteLLM's tables");
    let found = octet_keys::litellm(&server.url()).expect("LiteLLM's tables");
    let folder = tempfile::tempdir().expect("a folder");
    // Into the same database or into a file.
    for store in [open(&server), Store::open(folder.path().join("keys.db")).expect("a file")] {
        let import = || -> Vec<bool> {
            let take = |all: &mut octet_keys::Transaction<'_>| found.iter().map(|f| all.import(f)).collect();
            store.transact(take).expect("imported")
        };
        assert_eq!(import(), [true; 4]);
        assert_eq!(import(), [false; 4]);
        assert!(store.authorize("sk-first", "m", &Ask::default()).is_ok());
        assert_eq!(store.authorize("sk-first", "third", &Ask::default()).unwrap_err().status(), 403);
        assert!(matches!(store.check("sk-second"), Err(Refusal::Expired { .. })));
        assert_eq!(store.check("sk-third"), Err(Refusal::Unknown));
        let alice = store.find("alice").expect("a key");
        assert_eq!((alice.spent, alice.limits.rpm), (usd("1.25"), Some(60)));
        assert_eq!((alice.profile.user.as_deref(), alice.profile.team.as_deref()), (Some("u1"), Some("t1")));
        assert_eq!(alice.profile.about["metadata"]["app"], "x");
        assert_eq!(store.find("alice-2").expect("the second").limits.rpm, None);
        let team = store.owner(OwnerKind::Team, "t1").expect("the team");
        assert_eq!((team.spent, team.profile.members.len()), (usd("12.5"), 2));
    }
    let notes: Vec<&String> = found.iter().flat_map(|f| &f.notes).collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
}

#[test]
fn a_database_that_cannot_be_reached_is_named_without_its_password() {
    let options = Options { clock: Clock::system(), ..Options::default() };
    let error =
        Store::connect("postgresql://octet:secret@127.0.0.1:9/x", options).expect_err("nobody is there");
    let text = error.to_string();
    assert!(text.contains("postgresql://127.0.0.1:9/x") && !text.contains("secret"), "{text}");
}
