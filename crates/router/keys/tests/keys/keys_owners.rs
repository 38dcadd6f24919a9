//! Users and teams: their limits hold for all of their keys together, in several processes and after a restart.

use std::time::Duration;

use octet_keys::{
    Ask, Budget, Clock, Draft, EndUser, Error, Filter, KeyId, KeyInfo, Limits, Member, Options, OwnerKind,
    Period, Prices, Profile, Refusal, Secret, Store, Usage, own_key,
};

const START: i64 = 1_795_284_000;

fn open(dir: &tempfile::TempDir, clock: &Clock) -> Store {
    let options = Options { clock: clock.clone(), ..Options::default() };
    Store::open_with(dir.path().join("keys.db"), options).unwrap()
}

fn budget(usd: &str) -> Limits {
    let budget = Budget { limit: usd.parse().unwrap(), period: Period::Seconds(86_400) };
    Limits { budget: Some(budget), ..Limits::default() }
}

fn of(user: Option<&str>, team: Option<&str>) -> Profile {
    Profile { user: user.map(Into::into), team: team.map(Into::into), ..Profile::default() }
}

fn key(store: &Store, name: &str, profile: Profile) -> (Secret, KeyInfo) {
    store.create_for(name, Limits::default(), profile).unwrap()
}

/// A request that costs as many thousandths of a dollar as it has tokens.
fn spend(store: &Store, key: &Secret, tokens: u64) -> Result<(), Refusal> {
    let prices = Prices::new(0.001, 0.001).unwrap();
    let ask = Ask { input: tokens, prices, ..Ask::default() };
    let grant = store.authorize(key.reveal(), "m", &ask)?;
    grant.settle(&Usage { input: tokens, ..Usage::default() }, &prices);
    Ok(())
}

#[test]
fn changes_are_made_together_or_not_at_all() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(&dir, &clock);
    let made: Result<KeyId, Error> = store.transact(|all| {
        all.create_owner(OwnerKind::Team, "t", Limits::default(), Profile::default())?;
        all.create_owner(OwnerKind::User, "u", Limits::default(), Profile::default())?;
        // What was made before is there for what follows.
        Ok(all.create("first", Limits::default(), of(Some("u"), Some("t")))?.1)
    });
    let first = made.unwrap();
    let names = |store: &Store| store.list().iter().map(|k| k.name.clone()).collect::<Vec<_>>();
    let failed: Result<(), Error> = store.transact(|all| {
        let again = all.create("first", Limits::default(), Profile::default());
        assert!(matches!(again, Err(Error::NameTaken(_))), "{again:?}");
        all.create("second", Limits::default(), Profile::default())?;
        all.revoke(first)?;
        all.delete_owners(OwnerKind::User, &["u".into()])?;
        all.delete_owners(OwnerKind::Team, &["t".into(), "none".into()])
    });
    assert!(failed.unwrap_err().to_string().contains("there is no team 'none'"));
    assert_eq!(names(&store), ["first"]);
    assert!(store.owner(OwnerKind::User, "u").is_ok() && store.list()[0].revoked.is_none());
    let twice = ["t".to_string(), "t".into()];
    store.transact::<_, Error>(|all| all.delete_owners(OwnerKind::Team, &twice)).unwrap();
    assert!(store.list()[0].revoked.is_some() && store.owner(OwnerKind::Team, "t").is_err());
    drop(store);
    assert!(open(&dir, &clock).owner(OwnerKind::Team, "t").is_err());
}

#[test]
fn the_servers_own_key_is_counted_and_in_no_file() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(&dir, &clock);
    let prices = Prices::new(0.001, 0.001).unwrap();
    store.grant_own("m").settle(&Usage { input: 5, ..Usage::default() }, &prices);
    drop(store.grant_own("m"));
    drop(store);
    let store = open(&dir, &clock);
    let rows = store.usage(&Filter { key: Some(own_key()), ..Filter::default() }).unwrap();
    assert_eq!((rows.len(), rows[0].requests, rows[0].cost.to_string()), (1, 1, "$0.005".into()));
    assert!(store.list().is_empty() && store.find("master-key").is_err());
}

#[test]
fn a_budget_holds_for_all_keys_together() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(&dir, &clock);
    store.create_owner(OwnerKind::Team, "t", budget("0.1"), Profile::default()).unwrap();
    store.create_owner(OwnerKind::User, "u", budget("0.15"), Profile::default()).unwrap();
    let (first, _) = key(&store, "first", of(Some("u"), Some("t")));
    let (second, _) = key(&store, "second", of(None, Some("t")));
    let (third, info) = key(&store, "third", of(Some("u"), None));
    spend(&store, &first, 60).unwrap();
    spend(&store, &second, 50).unwrap();
    let refused = spend(&store, &first, 1).unwrap_err();
    assert_eq!((refused.status(), refused.code()), (429, "insufficient_quota"));
    assert!(
        refused.to_string().starts_with("the budget of the team of this API key ($0.10) is used up"),
        "{refused}"
    );
    // The user has 0.09 left, without the team.
    spend(&store, &third, 100).unwrap();
    let refused = spend(&store, &third, 1).unwrap_err();
    assert!(refused.to_string().contains("the user of this API key"), "{refused}");
    let spent = |store: &Store, kind, id: &str| store.owner(kind, id).unwrap().spent.to_string();
    assert_eq!(
        (spent(&store, OwnerKind::Team, "t"), spent(&store, OwnerKind::User, "u")),
        ("$0.11".into(), "$0.16".into())
    );
    store.close().unwrap();
    // Another process, or the same one later.
    let store = open(&dir, &clock);
    assert_eq!(spent(&store, OwnerKind::Team, "t"), "$0.11");
    assert!(spend(&store, &second, 1).is_err());
    // A new period.
    clock.advance(Duration::from_secs(86_400));
    spend(&store, &second, 1).unwrap();
    // They are no keys.
    assert_eq!(store.list().len(), 3);
    assert!(store.find("t").is_err());
    assert_eq!(store.find("third").unwrap().id, info.id);
}

#[test]
fn a_request_refused_by_a_team_is_not_counted_for_its_key() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(&dir, &clock);
    let limits =
        Limits { rpm: Some(2), max_parallel: Some(1), models: vec!["m*".into()], ..Limits::default() };
    store.create_owner(OwnerKind::Team, "t", limits, Profile::default()).unwrap();
    let own = Limits { rpm: Some(2), ..Limits::default() };
    let (one, _) = store.create_for("one", own, of(None, Some("t"))).unwrap();
    let (two, _) = key(&store, "two", of(None, Some("t")));
    let go = |key: &Secret| store.authorize(key.reveal(), "m", &Ask::default());
    let running = go(&one).unwrap();
    for _ in 0..5 {
        assert!(matches!(go(&one).unwrap_err(), Refusal::Owner { kind: OwnerKind::Team, .. }));
    }
    drop(running);
    drop(go(&one).unwrap());
    // Both requests of the minute are used, for the other key as well.
    clock.advance(Duration::from_secs(1));
    assert_eq!(go(&two).unwrap_err().retry_after_s(), Some(59));
    assert_eq!(store.authorize(two.reveal(), "other", &Ask::default()).unwrap_err().status(), 403);
    assert!(store.allows(two.reveal(), "m1") && !store.allows(two.reveal(), "other"));
}

fn set_blocked(store: &Store, id: KeyId, blocked: bool) {
    let edit = |draft: &mut Draft| {
        draft.profile.blocked = blocked;
        Ok::<(), Error>(())
    };
    store.edit_for(id, edit).unwrap();
}

#[test]
fn a_change_loses_nothing_of_another_process() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let (store, other) = (open(&dir, &clock), open(&dir, &clock));
    let team = store.create_owner(OwnerKind::Team, "t", Limits::default(), Profile::default()).unwrap();
    other.flush().unwrap();
    let member = Member { user: "u".into(), role: "user".into() };
    other.edit_members("t", |members| members.push(member)).unwrap();
    set_blocked(&other, team.id, true);
    // What this one has read is older.
    let old = store.owner(OwnerKind::Team, "t").unwrap().profile;
    assert_eq!((old.members.len(), old.blocked), (0, false));
    let edit = |draft: &mut Draft| {
        draft.limits.rpm = Some(7);
        Ok::<(), Error>(())
    };
    store.edit_for(team.id, edit).unwrap();
    let now = store.owner(OwnerKind::Team, "t").unwrap();
    assert_eq!((now.profile.members.len(), now.profile.blocked, now.limits.rpm), (1, true, Some(7)));
    // A change that fails changes nothing.
    let no_id = |draft: &mut Draft| {
        (draft.name, draft.limits.rpm) = ("other".into(), None);
        Ok::<(), Error>(())
    };
    assert!(matches!(store.edit_for(team.id, no_id), Err(Error::Invalid(_))));
    let fails = |draft: &mut Draft| {
        draft.limits.rpm = None;
        Err(Error::Invalid("no".into()))
    };
    assert!(store.edit_for(team.id, fails).is_err());
    assert_eq!(store.owner(OwnerKind::Team, "t").unwrap().limits.rpm, Some(7));
}

#[test]
fn a_moved_key_has_the_limits_of_its_new_team() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let (store, other) = (open(&dir, &clock), open(&dir, &clock));
    for (id, usd) in [("rich", "1"), ("poor", "0.01")] {
        store.create_owner(OwnerKind::Team, id, budget(usd), Profile::default()).unwrap();
    }
    let (secret, info) = key(&store, "k", of(None, Some("rich")));
    let (stays, _) = key(&store, "stays", of(None, Some("rich")));
    let go_to = |profile: Profile| {
        let edit = |draft: &mut Draft| {
            draft.profile = profile;
            Ok::<(), Error>(())
        };
        store.edit_for(info.id, edit).unwrap();
        other.flush().unwrap();
    };
    other.flush().unwrap();
    spend(&store, &secret, 10).unwrap();
    go_to(of(None, Some("poor")));
    spend(&other, &secret, 10).unwrap();
    other.flush().unwrap();
    store.flush().unwrap();
    for s in [&store, &other] {
        assert!(matches!(spend(s, &secret, 1), Err(Refusal::Owner { kind: OwnerKind::Team, .. })));
        spend(s, &stays, 10).unwrap();
    }
    // A user that is created later, and one that is deleted.
    go_to(of(Some("later"), None));
    spend(&other, &secret, 1).unwrap();
    store.create_owner(OwnerKind::User, "later", budget("0.001"), Profile::default()).unwrap();
    other.flush().unwrap();
    spend(&other, &secret, 1).unwrap();
    other.flush().unwrap();
    store.flush().unwrap();
    for s in [&store, &other] {
        assert!(matches!(spend(s, &secret, 1), Err(Refusal::Owner { kind: OwnerKind::User, .. })));
    }
}

#[test]
fn all_keys_are_revoked_or_none() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(&dir, &clock);
    let (first, one) = key(&store, "one", Profile::default());
    let (_, two) = key(&store, "two", Profile::default());
    let other_dir = tempfile::tempdir().unwrap();
    let (_, unknown) = key(&open(&other_dir, &clock), "unknown", Profile::default());
    assert!(matches!(store.revoke_all(&[one.id, unknown.id, two.id]), Err(Error::NoSuchKey(_))));
    assert!(store.check(first.reveal()).is_ok());
    store.revoke_all(&[one.id, two.id]).unwrap();
    assert!(store.list().iter().all(|k| k.revoked.is_some()));
}

#[test]
fn blocked_and_deleted_owners_are_refused_in_all_processes() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let (store, other) = (open(&dir, &clock), open(&dir, &clock));
    for id in ["t", "gone"] {
        store.create_owner(OwnerKind::Team, id, Limits::default(), Profile::default()).unwrap();
    }
    let member = Member { user: "u".into(), role: "user".into() };
    store.edit_members("t", |members| members.push(member)).unwrap();
    // A label, until there is such a user.
    let (of_user, _) = key(&store, "of a user", of(Some("u"), None));
    let (of_team, info) = key(&store, "of a team", of(None, Some("t")));
    let (left, _) = key(&store, "left", of(None, Some("gone")));
    other.flush().unwrap();
    let ok = |key: &Secret| (store.check(key.reveal()).is_ok(), spend(&other, key, 1).is_ok());
    assert_eq!([ok(&of_user), ok(&of_team), ok(&left)], [(true, true); 3]);
    store
        .create_owner(
            OwnerKind::User,
            "u",
            Limits::default(),
            Profile { blocked: true, ..Profile::default() },
        )
        .unwrap();
    let team = store.owner(OwnerKind::Team, "t").unwrap();
    set_blocked(&store, team.id, true);
    store.delete_owner(OwnerKind::Team, "gone").unwrap();
    other.flush().unwrap();
    assert_eq!([ok(&of_user), ok(&of_team), ok(&left)], [(false, false); 3]);
    let said = store.check(of_team.reveal()).unwrap_err();
    assert_eq!(
        (said.status(), said.to_string().as_str()),
        (401, "the team of this API key is blocked; ask whoever runs this server")
    );
    assert_eq!(store.check(left.reveal()), Err(Refusal::Revoked));
    set_blocked(&store, team.id, false);
    store.delete_owner(OwnerKind::User, "u").unwrap();
    other.flush().unwrap();
    assert_eq!([ok(&of_user), ok(&of_team)], [(false, false), (true, true)]);
    assert_eq!(other.owner(OwnerKind::Team, "t").unwrap().profile.members, []);
    // A key alone.
    set_blocked(&store, info.id, true);
    assert_eq!(store.check(of_team.reveal()), Err(Refusal::Blocked));
}

#[test]
fn impossible_settings_are_refused() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(&dir, &clock);
    let make = |id: &str| store.create_owner(OwnerKind::Team, id, Limits::default(), Profile::default());
    make("t").unwrap();
    assert!(matches!(make("t"), Err(Error::Exists { .. })));
    for bad in ["", "two\nlines", &"x".repeat(201)] {
        assert!(matches!(make(bad), Err(Error::Invalid(_))), "{bad}");
    }
    let no_team = store.create_for("k", Limits::default(), of(None, Some("none")));
    assert!(matches!(no_team, Err(Error::NoSuchOwner { .. })));
    assert!(
        matches!(store.delete_owner(OwnerKind::User, "t"), Err(Error::NoSuchOwner { .. })),
        "it is a team"
    );
    let about = [("metadata".to_string(), "x".repeat(100_000).into())].into_iter().collect();
    let long = Profile { about, ..Profile::default() };
    assert!(matches!(store.create_for("k", Limits::default(), long), Err(Error::Invalid(_))));
    assert!(store.list().is_empty());
}

/// Whoever comes second must not set to nothing what the first has spent.
#[test]
fn processes_that_start_at_once_set_one_budget_of_all_requests() {
    for _ in 0..20 {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
        let stores = [open(&dir, &clock), open(&dir, &clock), open(&dir, &clock)];
        let all = octet_keys::budget(1.0, None).unwrap();
        let prices = Prices::new(0.001, 0.001).unwrap();
        std::thread::scope(|s| {
            for store in &stores {
                s.spawn(move || {
                    store.set_total(all).unwrap();
                    let grant = store.authorize_total("m", &Ask::default()).unwrap();
                    grant.settle(&Usage { input: 10, ..Usage::default() }, &prices);
                    store.flush().unwrap();
                });
            }
        });
        for store in &stores {
            store.flush().unwrap();
            assert_eq!(store.total().unwrap().spent.to_string(), "$0.03");
        }
    }
}

#[test]
fn end_users_have_budgets_of_their_own() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(&dir, &clock);
    let (alice, _) = key(&store, "alice", Profile::default());
    let prices = Prices::new(0.001, 0.001).unwrap();
    let ask = Ask { input: 6, prices, ..Ask::default() };
    let spend = |store: &Store, key: Option<&Secret>, id: &str, usd: Option<&str>| {
        let period = Period::Ever;
        let user =
            Some(EndUser { id, budget: usd.map(|usd| Budget { limit: usd.parse().unwrap(), period }) });
        let grant = match key {
            Some(key) => store.authorize_for(key.reveal(), "m", &[], &ask, 1, user),
            None => store.authorize_own("m", &ask, 1, user),
        };
        grant.map(|grant| grant.settle(&Usage { input: 6, ..Usage::default() }, &prices))
    };
    let default = Some("0.01");
    spend(&store, Some(&alice), "u-1", default).unwrap();
    spend(&store, None, "u-1", default).unwrap();
    let refused = spend(&store, Some(&alice), "u-1", default);
    assert!(
        matches!(&refused, Err(Refusal::Owner { kind: OwnerKind::EndUser, refusal }) if matches!(**refusal, Refusal::Budget { .. })),
        "{refused:?}"
    );
    spend(&store, Some(&alice), "u-2", default).unwrap();
    let long = "x".repeat(1000);
    spend(&store, Some(&alice), &long, default).unwrap();
    // Without a budget for all, only those are counted that were made.
    spend(&store, Some(&alice), "u-3", None).unwrap();
    store.close().unwrap();
    let store = open(&dir, &clock);
    let users = store.owners(OwnerKind::EndUser);
    let mut spent: Vec<String> = users.iter().map(|u| u.spent.to_string()).collect();
    spent.sort_unstable();
    assert_eq!(spent, ["$0.006", "$0.006", "$0.012"]);
    assert!(spend(&store, Some(&alice), "u-1", default).is_err(), "it is remembered");
    let id = store.owner(OwnerKind::EndUser, "u-1").unwrap().id;
    let more = Budget { limit: "1".parse().unwrap(), period: Period::Ever };
    let limits = Limits { budget: Some(more), ..Limits::default() };
    store.edit(id, None, limits).unwrap();
    spend(&store, Some(&alice), "u-1", None).unwrap();
    store.delete_owner(OwnerKind::EndUser, "u-1").unwrap();
    assert!(store.check(alice.reveal()).is_ok(), "no key belongs to an end user");
}
