//! Changes of keys, users and teams are made whole or not at all, also where two are made at once; new keys get what the configuration says; and
//! what is spent with the server's own key is told.

use crate::common::upstream::Upstream;
use crate::common::{Fixture, chat, with};
use crate::gateway_admin::{KEYS, fixture, get, post};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_members_is_applied_completely_or_not_at_all() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, KEYS).await;
    let master = async |path: &str, body: Value| post(&f, "sk-master", path, &body).await;
    assert_eq!(master("/team/new", json!({"team_id": "t"})).await.0, 200);
    let members = |n: usize| -> Vec<Value> {
        (0..n)
            .map(|i| json!({"user_id": format!("u{i}"), "user_email": format!("u{i}@example.org")}))
            .collect()
    };
    let with_bad = [members(3), vec![json!({"user_id": "eve", "role": "owner"})], members(2)].concat();
    let (status, said) = master("/team/member_add", json!({"team_id": "t", "member": with_bad})).await;
    assert!(status == 400 && said.to_string().contains("'role' must be admin or user"), "{said}");
    // An address of a user who is made before it in the list is no other one's.
    let twice = json!([{"user_id": "a", "user_email": "a@example.org"}, {"user_id": "b", "user_email": "a@example.org"}]);
    let (status, said) = master("/team/member_add", json!({"team_id": "t", "member": twice})).await;
    assert!(status == 400 && said["error"]["param"] == "user_email", "{said}");
    assert_eq!(get(&f, "sk-master", "/user/list").await.1["total"], 0, "nobody was made");
    let team = get(&f, "sk-master", "/team/info?team_id=t").await.1;
    assert_eq!(team["team_info"]["members_with_roles"], json!([]));

    // Members by their addresses alone, and one twice.
    let more = vec![
        json!({"user_email": "u0@example.org", "role": "admin"}),
        json!({"user_email": "new@example.org"}),
        json!({"user_email": "new@example.org", "role": "admin"}),
    ];
    let all = [members(300), more].concat();
    let (status, team) = master("/team/member_add", json!({"team_id": "t", "member": all})).await;
    assert_eq!(status, 200, "{team}");
    let roles = team["members_with_roles"].as_array().expect("members");
    assert_eq!((roles.len(), team["updated_users"].as_array().map(Vec::len)), (301, Some(301)));
    let role = |user: &str| roles.iter().find(|m| m["user_id"] == user).map(|m| m["role"].clone());
    assert_eq!((role("u0"), role("u1")), (Some(json!("admin")), Some(json!("user"))));
    assert_eq!(get(&f, "sk-master", "/user/list").await.1["total"], 301);

    // Who is there keeps the address, and the answer says so; the same address is nothing to tell.
    for (email, is_told) in [("other@example.org", true), ("u0@example.org", false)] {
        let body = json!({"team_id": "t", "member": {"user_id": "u0", "user_email": email, "role": "admin"}});
        let answer =
            f.request("/team/member_add", &body).bearer_auth("sk-master").send().await.expect("an answer");
        let warning = answer.headers().get("x-octet-warning").map(|w| w.to_str().expect("text").to_string());
        assert_eq!(answer.status(), 200);
        assert_eq!(
            warning.is_some_and(|w| w.contains("'user_email' has no effect: the user 'u0' exists")),
            is_told
        );
        let user = get(&f, "sk-master", "/user/info?user_id=u0").await.1;
        assert_eq!(user["user_info"]["user_email"], "u0@example.org", "{user}");
    }

    // Of a list with one that is not there, nobody is deleted; who is named twice counts once.
    assert_eq!(master("/user/delete", json!({"user_ids": ["u1", "none"]})).await.0, 404);
    assert_eq!(master("/user/delete", json!({"user_ids": ["u1", "u2", "u1"]})).await, (200, json!(2)));
    assert_eq!(get(&f, "sk-master", "/user/list").await.1["total"], 299);
    let team = get(&f, "sk-master", "/team/info?team_id=t").await.1;
    assert_eq!(team["team_info"]["members_with_roles"].as_array().map(Vec::len), Some(299));
    assert_eq!(master("/team/new", json!({"team_id": "other"})).await.0, 200);
    assert_eq!(master("/team/delete", json!({"team_ids": ["t", "none"]})).await.0, 404);
    assert_eq!(get(&f, "sk-master", "/team/list").await.1.as_array().map(Vec::len), Some(2));
    assert_eq!(master("/team/delete", json!({"team_ids": ["t", "other", "t"]})).await.0, 200);
    assert_eq!(get(&f, "sk-master", "/team/list").await.1, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_concurrent_creations_gets_the_name() {
    let up = Upstream::saying("Hi").await;
    // Two servers with one file, as two processes are.
    let (f, folder) = fixture(&up, KEYS).await;
    let database = folder.path().join("keys.db");
    let g = Fixture::routed(&format!(
        "model_list: [{{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{}/v1'}}}}]\n\
         general_settings: {{master_key: sk-master}}\nkeys: {{database: '{}'}}\n",
        up.base,
        database.display()
    ))
    .await;
    let wishes = [
        ("/key/generate", json!({"key_alias": "one"}), "key_alias"),
        ("/user/new", json!({"user_email": "one@example.org", "auto_create_key": false}), "user_email"),
        ("/team/new", json!({"team_id": "one"}), "exists"),
    ];
    for (path, body, said) in wishes {
        let asked = (0..8).map(|i| post(if i % 2 == 0 { &f } else { &g }, "sk-master", path, &body));
        let answers = futures_util::future::join_all(asked).await;
        let made = answers.iter().filter(|(status, _)| *status == 200).count();
        assert_eq!(made, 1, "{path}: {answers:?}");
        for (status, answer) in answers.iter().filter(|(status, _)| *status != 200) {
            assert!(*status == 400 && answer.to_string().contains(said), "{path}: {answer}");
        }
    }
    // A change takes no name, either.
    let made = post(&f, "sk-master", "/key/generate", &json!({"key_alias": "two"})).await.1;
    let change = json!({"key": made["token"], "key_alias": "one"});
    assert_eq!(post(&f, "sk-master", "/key/update", &change).await.0, 400);
    let made = post(&f, "sk-master", "/user/new", &json!({"user_id": "bob"})).await.1;
    let change = json!({"user_id": made["user_id"], "user_email": "one@example.org"});
    assert_eq!(post(&f, "sk-master", "/user/update", &change).await.0, 400);
    let bob = get(&f, "sk-master", "/v2/user/info?user_id=bob").await.1;
    assert_eq!(bob["user_email"], Value::Null, "{bob}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_read_as_litellm_reads_them() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, KEYS).await;
    let master = async |path: &str, body: Value| post(&f, "sk-master", path, &body).await.1;
    for (value, makes) in [
        (json!(1), true),
        (json!("true"), true),
        (json!("Yes"), true),
        (json!(null), true),
        (json!(0), false),
        (json!("off"), false),
    ] {
        let made = master("/user/new", json!({"auto_create_key": value})).await;
        assert_eq!(made["key"].is_string(), makes, "{value}: {made}");
    }
    assert_eq!(post(&f, "sk-master", "/user/new", &json!({"auto_create_key": "perhaps"})).await.0, 400);
    let wish =
        json!({"max_budget": "2.5", "rpm_limit": "7", "tpm_limit": 9.0, "duration": "-1", "blocked": "no"});
    let made = master("/key/generate", wish).await;
    assert_eq!(
        (&made["max_budget"], &made["rpm_limit"], &made["tpm_limit"], &made["expires"], &made["blocked"]),
        (&json!(2.5), &json!(7), &json!(9), &Value::Null, &json!(false)),
        "{made}"
    );
    // How long a budget lasts is kept for the budget that comes later, and when one is lifted.
    let made = master("/key/generate", json!({"budget_duration": "30d"})).await;
    assert_eq!((&made["budget_duration"], &made["max_budget"]), (&json!("30d"), &Value::Null), "{made}");
    for (change, budget) in [(json!(3), json!(3.0)), (json!(null), json!(null)), (json!(4), json!(4.0))] {
        let key = master("/key/update", json!({"key": made["token"], "max_budget": change})).await;
        assert_eq!((&key["budget_duration"], &key["max_budget"]), (&json!("30d"), &budget), "{key}");
    }
    let key = master("/key/update", json!({"key": made["token"], "budget_duration": null})).await;
    assert_eq!((&key["budget_duration"], &key["budget_reset_at"]), (&Value::Null, &Value::Null), "{key}");
    for full in ["1", "True", "yes"] {
        let listed = get(&f, "sk-master", &format!("/key/list?return_full_object={full}")).await.1;
        assert!(listed["keys"][0].is_object(), "{full}: {listed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_gets_what_the_configuration_says_and_no_more() {
    let up = Upstream::saying("Hi").await;
    let rules = "litellm_settings: {default_key_generate_params: {models: [m], max_budget: 5, budget_duration: 1d, user_id: ann}, \
                 upperbound_key_generate_params: {max_budget: 10, rpm_limit: 60, budget_duration: 30d, duration: 90d}}\n";
    let (f, _folder) = fixture(&up, &format!("{KEYS}{rules}")).await;
    let master = async |path: &str, body: Value| post(&f, "sk-master", path, &body).await;
    let (status, made) = master("/key/generate", json!({})).await;
    assert_eq!(status, 200, "{made}");
    let told = ["models", "max_budget", "budget_duration", "user_id", "rpm_limit", "tpm_limit"]
        .map(|name| &made[name]);
    let wanted = [json!(["m"]), json!(5.0), json!("1d"), json!("ann"), json!(60), Value::Null];
    assert_eq!(told.map(Clone::clone), wanted);
    assert!(made["expires"].is_string(), "within 90 days: {made}");
    let wish = json!({"models": ["x"], "max_budget": 10, "budget_duration": "12h", "rpm_limit": 1, "user_id": "bob"});
    let (_, made) = master("/key/generate", wish).await;
    let told =
        ["models", "max_budget", "budget_duration", "user_id", "rpm_limit"].map(|name| made[name].clone());
    assert_eq!(told, [json!(["x"]), json!(10.0), json!("12h"), json!("bob"), json!(1)]);
    let token = made["token"].clone();
    for (name, value) in [
        ("max_budget", json!(10.01)),
        ("max_budget", json!("11")),
        ("rpm_limit", json!(61)),
        ("budget_duration", json!("31d")),
        ("duration", json!("-1")),
        ("duration", json!("100d")),
    ] {
        for (path, key) in [("/key/generate", Value::Null), ("/key/update", token.clone())] {
            let mut body = json!({name: value});
            if !key.is_null() {
                body["key"] = key;
            }
            let (status, said) = master(path, body).await;
            let message = said["error"]["message"].as_str().unwrap_or_default().to_string();
            assert!(status == 400 && said["error"]["param"] == name, "{path} {name}: {said}");
            assert!(
                message.contains("upperbound_key_generate_params in the configuration allows at most"),
                "{said}"
            );
        }
    }
    // A limit that the configuration sets is not lifted, and other changes leave it.
    assert_eq!(master("/key/update", json!({"key": token, "max_budget": null})).await.0, 400);
    let (_, key) = master("/key/update", json!({"key": token, "tpm_limit": 1000})).await;
    assert_eq!(
        (&key["max_budget"], &key["rpm_limit"], &key["tpm_limit"]),
        (&json!(10.0), &json!(1), &json!(1000))
    );
    assert_eq!(master("/user/new", json!({"duration": "100d"})).await.0, 400);
    // The key that comes with a user is a new key too, and this user's.
    let (status, made) = master("/user/new", json!({"user_id": "eve"})).await;
    assert_eq!(status, 200, "{made}");
    let listed = get(&f, "sk-master", "/key/list?user_id=eve&return_full_object=true").await.1;
    let told =
        ["models", "max_budget", "budget_duration", "rpm_limit"].map(|name| listed["keys"][0][name].clone());
    assert_eq!(told, [json!(["m"]), json!(5.0), json!("1d"), json!(60)], "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_users_and_teams_get_what_the_configuration_says() {
    let up = Upstream::saying("Hi").await;
    let rules = "litellm_settings: {default_internal_user_params: {user_role: internal_user_viewer, max_budget: 5, budget_duration: 1d, models: [m], \
                 rpm_limit: 1, teams: [blue]}, max_internal_user_budget: 2, internal_user_budget_duration: 30d, \
                 default_team_params: {max_budget: 50, budget_duration: 30d, rpm_limit: 60}}\n";
    let (f, _folder) = fixture(&up, &format!("{KEYS}{rules}")).await;
    let master = async |path: &str, body: Value| post(&f, "sk-master", path, &body).await;
    let limits = |told: &Value| {
        ["max_budget", "budget_duration", "models", "rpm_limit", "user_role"].map(|name| told[name].clone())
    };
    // The teams of new users have to exist.
    let (status, said) = master("/user/new", json!({"user_id": "early"})).await;
    assert!(status == 404 && said.to_string().contains("blue"), "{said}");

    let (status, team) = master("/team/new", json!({"team_id": "blue"})).await;
    assert_eq!(status, 200, "{team}");
    assert_eq!(limits(&team)[..4], [json!(50.0), json!("30d"), json!([]), json!(60)], "{team}");
    let own = json!({"max_budget": 7, "budget_duration": null, "rpm_limit": 5});
    let (_, team) = master("/team/new", own).await;
    assert_eq!(limits(&team)[..4], [json!(7.0), Value::Null, json!([]), json!(5)], "{team}");

    let (status, user) = master("/user/new", json!({"user_id": "ann"})).await;
    assert_eq!(status, 200, "{user}");
    let told = [json!(5.0), json!("1d"), json!(["m"]), json!(1), json!("internal_user_viewer")];
    assert_eq!(limits(&user), told, "{user}");
    assert_eq!(user["teams"], json!(["blue"]));
    // They hold: the user may ask for one of the two models, once a minute.
    let key = user["key"].as_str().expect("a key");
    let asks = async |model: &str| {
        post(&f, key, "/v1/chat/completions", &with(&chat("Hello"), json!({"model": model}))).await.0
    };
    assert_eq!([asks("other").await, asks("m").await, asks("m").await], [403, 200, 429]);

    // The request's own values come first; no teams are said by an empty list.
    let (_, user) = master("/user/new", json!({"max_budget": 1, "models": ["other"], "teams": []})).await;
    assert_eq!(
        (&user["max_budget"], &user["models"], &user["teams"]),
        (&json!(1.0), &json!(["other"]), &json!([]))
    );
    // The budget of internal users is for those whose request names the role and no budget; an administrator gets nothing of all this.
    let (_, user) = master("/user/new", json!({"user_role": "internal_user"})).await;
    assert_eq!(limits(&user)[..2], [json!(5.0), json!("1d")], "{user}");
    let (_, user) = master("/user/new", json!({"user_role": "proxy_admin"})).await;
    assert_eq!(limits(&user)[..4], [Value::Null, Value::Null, json!([]), Value::Null], "{user}");
    assert_eq!(user["teams"], json!([]));
    // Who becomes a user as a member of a team gets a budget and models.
    let (status, team) =
        master("/team/member_add", json!({"team_id": "blue", "member": {"user_id": "bob"}})).await;
    assert_eq!(status, 200, "{team}");
    let told = [json!(5.0), json!("1d"), json!(["m"]), Value::Null, json!("internal_user")];
    assert_eq!(limits(&team["updated_users"][0]), told, "{team}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budget_of_internal_users_is_for_those_without_another() {
    let up = Upstream::saying("Hi").await;
    let rules = "litellm_settings: {max_internal_user_budget: 2, internal_user_budget_duration: 30d}\n";
    let (f, _folder) = fixture(&up, &format!("{KEYS}{rules}")).await;
    for (wish, budget) in [
        (json!({"user_role": "internal_user"}), json!([2.0, "30d"])),
        (json!({"user_role": "internal_user", "max_budget": 3, "budget_duration": "1d"}), json!([3.0, "1d"])),
        (json!({}), json!([null, null])),
    ] {
        let (status, user) = post(&f, "sk-master", "/user/new", &wish).await;
        assert_eq!(status, 200, "{user}");
        assert_eq!(json!([user["max_budget"], user["budget_duration"]]), budget, "{wish}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spend_of_the_servers_own_key_is_reported() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, &format!("{KEYS}litellm_settings: {{max_budget: 5}}\n")).await;
    let made = post(&f, "sk-master", "/key/generate", &json!({"user_id": "ann"})).await.1;
    let body = with(&chat("Hello"), json!({"model": "m"}));
    for key in ["sk-master", "sk-master", made["key"].as_str().expect("a key")] {
        assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 200);
    }
    let own = "litellm_proxy_master_key";
    let day = get(&f, "sk-master", "/spend/logs").await.1[0].clone();
    assert_eq!((&day["requests"], &day["api_keys"][own]), (&json!(3), &json!(0.14)), "{day}");
    assert_eq!(day["users"], json!({"ann": 0.07, "default_user_id": 0.14}));
    let (status, said) = post(&f, "sk-master", "/user/new", &json!({"user_id": "default_user_id"})).await;
    assert!(status == 400 && said.to_string().contains("the one of the server's own key"), "{said}");
    for asked in ["api_key=sk-master", "api_key=litellm_proxy_master_key", "user_id=default_user_id"] {
        let days = get(&f, "sk-master", &format!("/spend/logs?{asked}")).await.1;
        assert_eq!((&days[0]["requests"], &days[0]["spend"]), (&json!(2), &json!(0.14)), "{asked}: {days}");
    }
    // By day and team where nobody says how; of one key or user always by key.
    let report = get(&f, "sk-master", "/global/spend/report").await.1;
    let team = &report[0]["teams"][0];
    assert_eq!(
        (&team["team_name"], &team["total_spend"]),
        (&json!("Unassigned Team"), &json!(0.21)),
        "{report}"
    );
    for asked in ["api_key=sk-master", "internal_user_id=default_user_id", "group_by=team&api_key=sk-master"]
    {
        let report = get(&f, "sk-master", &format!("/global/spend/report?{asked}")).await.1;
        assert_eq!(
            (report.as_array().map(Vec::len), &report[0]["api_key"], &report[0]["total_cost"]),
            (Some(1), &json!(own), &json!(0.14)),
            "{asked}"
        );
    }
    // The budget of all requests counts them once, and the key is none that could be asked for or changed.
    assert_eq!(get(&f, "sk-master", "/admin/status").await.1["budget"]["spend"], json!(0.21));
    assert_eq!(get(&f, "sk-master", "/key/list").await.1["total_count"], 1);
    assert_eq!(post(&f, "sk-master", "/key/delete", &json!({"keys": [own]})).await.0, 404);
}
