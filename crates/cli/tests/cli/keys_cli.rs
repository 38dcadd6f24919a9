//! `octet keys` and `octet usage`, as a user types them.

use crate::common::Place;
use octet_keys::{Ask, Limits, Prices, Store, Usage};
use serde_json::Value;

fn json(place: &Place, args: &[&str]) -> Value {
    serde_json::from_str(&place.octet(&[args, &["--json"]].concat()).ok().stdout).unwrap()
}

#[test]
fn keys_are_made_listed_changed_and_revoked() {
    let place = Place::new();
    place.octet(&["keys", "list"]).fails(1, &["no key database", "octet keys create", "keys.db"]);
    let made =
        place.octet(&["keys", "create", "alice", "--models", "a,b*", "--budget", "10", "--per", "1mo"]).ok();
    let key = made.stdout.trim();
    assert!(key.starts_with("sk-octet-") && key.len() == 73, "{key}");
    assert!(made.stderr.contains("only time") && !made.stderr.contains(key));
    assert!(made.stderr.contains("configuration has keys: {database: "), "{}", made.stderr);
    let made = json(&place, &["keys", "create", "bob", "--expires", "2099-01-01", "--rpm", "5"]);
    assert!(made["key"].as_str().unwrap().starts_with("sk-octet-"));

    let taken = ["a key with the name 'alice' exists", "choose another name"];
    place.octet(&["keys", "create", "alice"]).fails(1, &taken);
    place.octet(&["keys", "edit", "bob", "--name", "alice"]).fails(1, &taken);

    let listed = place.octet(&["keys", "list"]).ok().stdout;
    for word in ["ID", "alice", "$10.00 per 1mo", "a,b*", "5 rpm", "until 2099-01-01 00:00 UTC", "in force"] {
        assert!(listed.contains(word), "no '{word}' in: {listed}");
    }
    assert!(!listed.contains(key));
    place.octet(&["keys", "edit", "alice", "--budget", "20", "--tpm", "1000", "--expires", "1d"]).ok();
    place.octet(&["keys", "edit", "bob", "--rpm", "none", "--expires", "none", "--name", "robert"]).ok();
    let keys = json(&place, &["keys", "list"]);
    assert_eq!((&keys[0]["budget_usd"], &keys[0]["budget_period"]), (&20.0.into(), &"1mo".into()));
    assert_eq!((&keys[0]["tpm"], &keys[0]["models"][1]), (&1000.into(), &"b*".into()));
    assert_eq!(
        (&keys[1]["name"], &keys[1]["rpm"], &keys[1]["expires"]),
        (&"robert".into(), &Value::Null, &Value::Null)
    );

    place.octet(&["keys", "revoke", "robert", "carol"]).fails(1, &["no key 'carol'"]);
    assert!(json(&place, &["keys", "list"])[1]["revoked"].is_null(), "all or none");
    place.octet(&["keys", "revoke", "robert"]).ok();
    assert!(json(&place, &["keys", "list"])[1]["revoked"].is_number());
    assert!(place.octet(&["keys", "list"]).ok().stdout.contains("revoked "));
}

#[test]
fn impossible_settings_are_refused() {
    let place = Place::new();
    let create = |args: &[&str]| place.octet(&[&["keys", "create", "alice"], args].concat());
    create(&["--budget", "ten"]).fails(2, &["ten", "12.50"]);
    create(&["--per", "1mo"]).fails(2, &["--budget"]);
    create(&["--budget", "1", "--per", "soon"]).fails(2, &["soon", "30d"]);
    create(&["--expires", "2026-13-01"]).fails(2, &["2026-13-01"]);
    create(&["--rpm", "0"]).fails(1, &["rpm"]);
    create(&["--db", "missing.txt", "--models", ""]).fails(1, &["1 to 512 bytes"]);
    let notes = place.write("notes.txt", "remember the milk");
    create(&["--db", crate::common::str(&notes)]).fails(1, &["notes.txt", "not an SQLite database"]);
}

#[test]
fn usage_is_grouped_as_requested() {
    let place = Place::new();
    let db = place.path("keys.db");
    let store = Store::open(&db).unwrap();
    let (alice, _) = store.create("alice", Limits::default()).unwrap();
    let (bob, _) = store.create("bob", Limits::default()).unwrap();
    for (key, model, input) in [(&alice, "x", 100), (&alice, "x", 50), (&alice, "y", 7), (&bob, "x", 1)] {
        let usage = Usage { input, cached: 1, output: 2, ..Usage::default() };
        let grant = store.authorize(key.reveal(), model, &Ask::default()).unwrap();
        grant.settle(&usage, &Prices::new(0.01, 0.02).unwrap());
    }
    store.close().unwrap();
    let usage = |args: &[&str]| [&["usage", "--db", crate::common::str(&db)], args].concat().join(" ");
    let run = |args: &[&str]| place.octet(&usage(args).split(' ').collect::<Vec<_>>()).ok().stdout;
    let shown = run(&[]);
    let lines: Vec<Vec<&str>> = shown.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["KEY", "MODEL", "REQUESTS", "INPUT", "CACHED", "OUTPUT", "COST"]);
    assert_eq!(lines[1], ["alice", "x", "2", "150", "2", "4", "$1.58"]);
    assert_eq!(lines[4], ["total", "4", "158", "4", "8", "$1.74"]);
    let by_model: Value = serde_json::from_str(&run(&["--by", "model", "--key", "alice", "--json"])).unwrap();
    assert_eq!((by_model.as_array().unwrap().len(), &by_model[0]["input_tokens"]), (2, &150.into()));
    assert!(by_model[0]["day"].is_null() && by_model[1]["model"] == "y");
    let none = place.octet(&usage(&["--until", "2020-01-01"]).split(' ').collect::<Vec<_>>()).ok();
    assert_eq!(none.stdout, "");
    assert!(none.stderr.contains("no key was used since"), "{}", none.stderr);
    // The total budget also counts requests with the server's own key.
    let store = Store::open(&db).unwrap();
    store.set_total(octet_keys::budget(100.0, None).unwrap()).unwrap();
    store
        .authorize_total("x", &Ask::default())
        .unwrap()
        .settle(&Usage { input: 200, ..Usage::default() }, &Prices::new(0.01, 0.02).unwrap());
    let used = Usage { input: 300, ..Usage::default() };
    store.grant_own("x").settle(&used, &Prices::new(0.01, 0.02).unwrap());
    store.close().unwrap();
    let own: Value = serde_json::from_str(&run(&["--by", "key", "--key", "master-key", "--json"])).unwrap();
    assert_eq!((&own[0]["key"], &own[0]["input_tokens"]), (&"master-key".into(), &300.into()), "{own}");
    let shown = place.octet(&usage(&[]).split(' ').collect::<Vec<_>>()).ok();
    assert!(shown.stderr.contains("all requests together: $2.00 of $100.00 spent"), "{}", shown.stderr);
    place
        .octet(&["usage", "--db", crate::common::str(&db), "--since", "yesterday"])
        .fails(2, &["yesterday", "7d"]);
}

#[test]
fn a_configuration_sets_the_key_database_and_defaults() {
    let place = Place::new();
    let text = "model_list: [{model_name: m, litellm_params: {model: ollama/m}}]\ngeneral_settings: {master_key: sk-1, max_parallel_requests: 3}\nkeys: {database: here.db}\nlitellm_settings: {default_key_generate_params: {models: [m], rpm_limit: 60, tpm_limit: 9, max_budget: 5, budget_duration: 1d, duration: 90d}}\n";
    let file = place.write("octet.yaml", text);
    let file = crate::common::str(&file).to_string();
    let made = json(&place, &["keys", "create", "alice", "--config", &file, "--rpm", "7"]);
    assert_eq!(
        (&made["models"][0], &made["rpm"], &made["tpm"]),
        (&"m".into(), &7.into(), &9.into()),
        "{made}"
    );
    assert_eq!((&made["budget_usd"], &made["budget_period"]), (&5.0.into(), &"1d".into()), "{made}");
    assert_eq!(made["max_parallel"], 3, "{made}");
    // The limits are created shortly before the key: its time may be the next second, or later with a slow disk.
    let more = made["created"].as_i64().unwrap() + 90 * 86_400 - made["expires"].as_i64().unwrap();
    assert!((0..3600).contains(&more), "{made}");
    assert_eq!(json(&place, &["keys", "list", "--config", &file])[0]["name"], "alice");
    let bob = place.octet(&["keys", "create", "bob", "--config", &file, "--models", "m,typo,*"]);
    assert!(
        bob.stderr.contains("the configuration has no model 'typo'") && !bob.stderr.contains("'m'"),
        "{}",
        bob.stderr
    );
    let bare = place.write("bare.yaml", "model_list: [{model_name: m, litellm_params: {model: ollama/m}}]\n");
    place
        .octet(&["keys", "list", "--config", crate::common::str(&bare)])
        .fails(2, &["names no key database"]);
    let store = Store::open(file.replace("octet.yaml", "here.db")).unwrap();
    store.set_total(octet_keys::budget(100.0, Some(86_400)).unwrap()).unwrap();
    drop(store);
    let listed = place.octet(&["keys", "list", "--config", &file]).ok();
    assert!(
        listed.stderr.contains("all requests together: $0.00 of $100.00 per 1d spent"),
        "{}",
        listed.stderr
    );
    assert_eq!(json(&place, &["keys", "list", "--config", &file]).as_array().unwrap().len(), 2);
    place.octet(&["keys", "revoke", "all requests", "--config", &file]).fails(1, &["no key 'all requests'"]);
}
