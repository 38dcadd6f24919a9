//! `/key/...`, `/user/...`, `/team/...` and `/spend/...`: who may manage, what is held to, and what of a wish is refused. (`gateway_clients.rs` has
//! LiteLLM's client ask.)

use crate::common::upstream::{Step, Upstream, says};
use crate::common::{Fixture, PATIENCE, chat, read, with};
use octet_keys::{Draft, KeyId, Member, OwnerKind, Store};
use serde_json::{Value, json};

pub async fn fixture(up: &Upstream, keys: &str) -> (Fixture, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let database = folder.path().join("keys.db");
    let text = format!(
        "model_list: [{{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: '{}/v1', input_cost_per_token: 0.01}}}}]\n{}",
        up.base,
        keys.replace("DB", &database.display().to_string()),
    );
    (Fixture::routed(&text).await, folder)
}

pub const KEYS: &str = "general_settings: {master_key: sk-master}\nkeys: {database: 'DB'}\n";

pub async fn post(f: &Fixture, key: &str, path: &str, body: &Value) -> (u16, Value) {
    read(f.request(path, body).bearer_auth(key).send().await.expect("an answer")).await
}

pub async fn get(f: &Fixture, key: &str, path: &str) -> (u16, Value) {
    read(f.client.get(f.url(path)).bearer_auth(key).send().await.expect("an answer")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_managed_with_the_servers_own_key_alone() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, KEYS).await;
    let (status, made) = post(&f, "sk-master", "/key/generate", &json!({})).await;
    assert_eq!(status, 200, "{made}");
    let key = made["key"].as_str().expect("a key");
    let posts = [
        "/key/generate",
        "/key/update",
        "/key/delete",
        "/key/block",
        "/key/unblock",
        "/user/new",
        "/user/update",
        "/user/delete",
        "/user/block",
        "/user/unblock",
        "/team/new",
        "/team/update",
        "/team/delete",
        "/team/block",
        "/team/unblock",
        "/team/member_add",
        "/team/member_delete",
    ];
    for path in posts {
        assert_eq!(post(&f, key, path, &json!({"key": key, "keys": [key]})).await.0, 403, "{path}");
        assert_eq!(post(&f, "sk-nobody", path, &json!({})).await.0, 401, "{path}");
    }
    for path in [
        "/key/list",
        "/spend/logs",
        "/global/spend/report",
        &format!("/key/info?key={key}"),
        "/user/list",
        "/team/list",
        "/v2/team/list",
        "/team/available",
        "/admin/status",
    ] {
        assert_eq!(get(&f, key, path).await.0, 403, "{path}");
        assert_eq!(get(&f, "sk-master", path).await.0, 200, "{path}");
    }
    let (open, _folder) = fixture(&up, "general_settings: {master_key: sk-master}\n").await;
    let (status, said) = post(&open, "sk-master", "/key/generate", &json!({})).await;
    assert_eq!(status, 400);
    assert!(said["error"]["message"].as_str().expect("words").contains("set keys.database"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_created_as_requested_or_refused() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, KEYS).await;
    let wish = json!({"models": ["m"], "rpm_limit": 1, "tpm_limit": 5000, "max_parallel_requests": 3, "max_budget": 2.5,
        "budget_duration": "30d", "duration": "1h", "key_alias": "bob", "team_id": null, "aliases": {}, "spend": 0,
        "metadata": {"why": "tests"}, "tags": ["a"], "user_id": "nobody"});
    let answer = f.request("/key/generate", &wish).bearer_auth("sk-master").send().await.expect("an answer");
    let warning =
        answer.headers().get("x-octet-warning").expect("a warning").to_str().expect("text").to_string();
    assert_eq!(warning, "'tags' is not stored here");
    let (status, made) = read(answer).await;
    assert_eq!(status, 200, "{made}");
    for (name, value) in [
        ("models", json!(["m"])),
        ("rpm_limit", json!(1)),
        ("tpm_limit", json!(5000)),
        ("max_parallel_requests", json!(3)),
        ("max_budget", json!(2.5)),
        ("budget_duration", json!("30d")),
        ("key_alias", json!("bob")),
        ("spend", json!(0.0)),
        ("metadata", json!({"why": "tests"})),
        ("user_id", json!("nobody")),
    ] {
        assert_eq!(made[name], value, "{name}");
    }
    // What was wished is held to.
    let key = made["key"].as_str().expect("a key");
    let body = with(&chat("Hello"), json!({"model": "m"}));
    assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 200);
    assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 429);
    // What is not named stays, and what is null is lifted.
    let (_, updated) =
        post(&f, "sk-master", "/key/update", &json!({"key": made["token"], "rpm_limit": null})).await;
    assert_eq!(
        (&updated["rpm_limit"], &updated["max_budget"], &updated["models"]),
        (&Value::Null, &json!(2.5), &json!(["m"]))
    );
    assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 200);

    for (wish, said) in [
        (json!({"models": ["all-team-models"]}), "needs a 'team_id'"),
        (json!({"guardrails": ["pii"]}), "'guardrails' is not supported"),
        (json!({"model_rpm_limit": {"m": 1}}), "'model_rpm_limit' is not supported"),
        (json!({"budget_id": "b"}), "'budget_id' is not supported"),
        (json!({"key": "sk-mine"}), "'key' is not supported"),
        (json!({"duration": "soon"}), "'soon' is not a duration"),
        (json!({"rpm_limit": 0}), "rpm is a number from 1"),
        (json!({"max_budget": -1}), "max_budget"),
        (json!({"models": "m"}), "'models': invalid type"),
        (json!({"rpm_limit": "many"}), "'rpm_limit': invalid type"),
        (json!({"max_budget": "nan"}), "'max_budget': invalid type"),
        (json!({"blocked": "perhaps"}), "'blocked' must be true or false"),
        (json!({"key_alias": "bob"}), "a key with the alias 'bob' exists"),
        (json!([]), "not a JSON object"),
    ] {
        let (status, answer) = post(&f, "sk-master", "/key/generate", &wish).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(status, 400, "{wish}: {answer}");
        assert!(message.contains(said) || answer["error"]["param"] == said, "{wish}: {answer}");
    }
    let (status, answer) = post(&f, "sk-master", "/key/delete", &json!({"keys": [key, "sk-none"]})).await;
    assert_eq!(status, 404, "{answer}");
    assert!(!answer.to_string().contains("sk-none"), "a key is not repeated: {answer}");
    assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 200, "either all or none");
    let (_, gone) = post(&f, "sk-master", "/key/delete", &json!({"key_aliases": ["bob"]})).await;
    assert_eq!(gone["deleted_keys"], json!([made["token"]]));
    assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 401);
    assert_eq!(get(&f, "sk-master", &format!("/key/info?key={key}")).await.0, 404);
    for (path, said) in [
        ("/key/list?size=0", "'size'"),
        ("/key/list?organization_id=x", "'organization_id' is not supported"),
        ("/spend/logs?start_date=yesterday", "a date like 2026-11-22"),
        ("/global/spend/report?group_by=customer", "use team or api_key"),
        ("/key/info", "'key' is needed"),
    ] {
        let (status, answer) = get(&f, "sk-master", path).await;
        assert_eq!(status, 400, "{path}: {answer}");
        assert!(answer.to_string().contains(said), "{path}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_users_and_teams_apply_to_their_keys() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, KEYS).await;
    let ok = async |path: &str, body: Value| {
        let (status, answer) = post(&f, "sk-master", path, &body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    };
    // An answer costs 0.07.
    let team = ok(
        "/team/new",
        json!({"team_alias": "blue", "max_budget": 0.1, "models": ["m"], "metadata": {"a": 1},
        "members_with_roles": [{"user_id": "ann", "role": "admin"}]}),
    )
    .await;
    let id = team["team_id"].as_str().expect("an id").to_string();
    assert_eq!(team["members_with_roles"], json!([{"user_id": "ann", "user_email": null, "role": "admin"}]));
    let made = ok(
        "/user/new",
        json!({"user_id": "bob", "user_email": "bob@example.org", "teams": [id], "rpm_limit": 1}),
    )
    .await;
    assert_eq!(
        (&made["user_id"], &made["teams"], &made["rpm_limit"]),
        (&json!("bob"), &json!([id]), &json!(1))
    );
    let bobs = made["key"].as_str().expect("a key").to_string();
    let key = async |wish: Value| ok("/key/generate", wish).await["key"].as_str().expect("a key").to_string();
    let first = key(json!({"team_id": id, "models": ["all-team-models"]})).await;
    let second = key(json!({"team_id": id, "user_id": "ann", "key_alias": "second"})).await;
    let body = with(&chat("Hello"), json!({"model": "m"}));
    let ask = async |key: &str| post(&f, key, "/v1/chat/completions", &body).await;
    assert_eq!((ask(&first).await.0, ask(&second).await.0, ask(&bobs).await.0), (200, 200, 200));
    let (status, said) = ask(&first).await;
    assert_eq!((status, &said["error"]["code"]), (429, &json!("insufficient_quota")));
    assert!(said.to_string().contains("the budget of the team of this API key ($0.10)"), "{said}");
    let (status, said) = ask(&bobs).await;
    assert!(
        status == 429 && said.to_string().contains("the user of this API key is limited to 1 requests"),
        "{said}"
    );
    assert_eq!(get(&f, &first, "/v1/models").await.1["data"].as_array().map(Vec::len), Some(1));

    let told = get(&f, "sk-master", &format!("/team/info?team_id={id}")).await.1;
    assert_eq!((&told["team_info"]["spend"], told["keys"].as_array().map(Vec::len)), (&json!(0.14), Some(2)));
    let users: Vec<&Value> = told["team_info"]["members_with_roles"]
        .as_array()
        .expect("members")
        .iter()
        .map(|m| &m["user_id"])
        .collect();
    assert_eq!(users, ["ann", "bob"]);
    let ann = get(&f, "sk-master", "/user/info?user_id=ann").await.1;
    assert_eq!((&ann["user_info"]["spend"], &ann["keys"][0]["key_alias"]), (&json!(0.07), &json!("second")));
    assert_eq!(get(&f, "sk-master", &format!("/key/list?team_id={id}")).await.1["total_count"], 2);
    assert_eq!(get(&f, "sk-master", "/key/list?user_id=ann").await.1["total_count"], 1);
    let days = get(&f, "sk-master", "/spend/logs").await.1;
    let day = &days[0];
    assert_eq!((&day["users"], &day["teams"][&id]), (&json!({"ann": 0.07, "bob": 0.07}), &json!(0.14)));
    assert_eq!(get(&f, "sk-master", "/spend/logs?user_id=bob").await.1[0]["spend"], 0.07);
    let report = get(&f, "sk-master", "/global/spend/report?group_by=team").await.1;
    let teams = report[0]["teams"].as_array().expect("teams");
    assert_eq!(teams.iter().map(|t| &t["team_name"]).collect::<Vec<_>>(), ["Unassigned Team", "blue"]);
    assert_eq!(
        (&teams[1]["total_spend"], teams[1]["metadata"].as_array().map(Vec::len)),
        (&json!(0.14), Some(2))
    );

    // What is not named stays.
    let team = ok("/team/update", json!({"team_id": id, "max_budget": 5, "rpm_limit": 100})).await;
    assert_eq!(
        (&team["data"]["max_budget"], &team["data"]["models"], &team["data"]["metadata"]),
        (&json!(5.0), &json!(["m"]), &json!({"a": 1}))
    );
    ok("/user/update", json!({"user_email": "bob@example.org", "rpm_limit": null})).await;
    assert_eq!((ask(&first).await.0, ask(&bobs).await.0), (200, 200));
    for (path, what, key) in [
        ("/team", json!({"team_id": id}), &first),
        ("/user", json!({"user_ids": ["bob"]}), &bobs),
        ("/key", json!({"key": bobs}), &bobs),
    ] {
        ok(&format!("{path}/block"), what.clone()).await;
        let (status, said) = ask(key).await;
        assert!(status == 401 && said.to_string().contains("is blocked"), "{path}: {said}");
        ok(&format!("{path}/unblock"), what).await;
        assert_eq!(ask(key).await.0, 200, "{path}");
    }
    ok("/team/member_delete", json!({"team_id": id, "user_email": "bob@example.org"})).await;
    assert_eq!(get(&f, "sk-master", "/v2/user/info?user_id=bob").await.1["teams"], json!([]));
    let joined = ok(
        "/team/member_add",
        json!({"team_id": id, "member": {"user_email": "eve@example.org", "role": "user"}}),
    )
    .await;
    assert_eq!(joined["updated_users"][0]["user_email"], "eve@example.org");
    assert_eq!(ok("/user/delete", json!({"user_ids": ["bob"]})).await, json!(1));
    assert_eq!(ok("/team/delete", json!({"team_ids": [id]})).await, json!({"deleted_teams": [id]}));
    assert_eq!((ask(&first).await.0, ask(&second).await.0, ask(&bobs).await.0), (401, 401, 401));
    assert_eq!(get(&f, "sk-master", "/key/list").await.1["total_count"], 0);

    for (path, body, status, said) in [
        ("/key/generate", json!({"team_id": "none"}), 404, "there is no team 'none'"),
        (
            "/team/new",
            json!({"team_id": "x", "organization_id": "o"}),
            400,
            "'organization_id' is not supported for teams",
        ),
        ("/team/new", json!({"team_member_budget": 1}), 400, "'team_member_budget' is not supported"),
        ("/team/member_add", json!({"team_id": "none", "member": {"user_id": "u"}}), 404, "no team 'none'"),
        ("/user/new", json!({"user_id": "ann"}), 400, "the user 'ann' exists"),
        ("/user/new", json!({"user_email": "eve@example.org"}), 400, "'user_email' exists"),
        ("/user/new", json!({"teams": ["none"]}), 404, "no team 'none'"),
        ("/user/delete", json!({"user_ids": ["ann", "none"]}), 404, "no user 'none'"),
        ("/user/delete", json!({}), 400, "'user_ids' is needed"),
        ("/user/new", json!({"password": "x"}), 400, "'password' is not supported for users"),
    ] {
        let answer = post(&f, "sk-master", path, &body).await;
        assert!(answer.0 == status && answer.1.to_string().contains(said), "{path} {body}: {answer:?}");
    }
    assert_eq!(get(&f, "sk-master", "/user/info?user_id=ann").await.0, 200, "all or none");
    assert_eq!(get(&f, "sk-master", "/user/info?user_id=none").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_loses_nothing_that_others_changed_meanwhile() {
    let up = Upstream::saying("Hi").await;
    let (f, folder) = fixture(&up, KEYS).await;
    let ok = async |path: &str, body: Value| {
        let (status, answer) = post(&f, "sk-master", path, &body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    };
    ok("/team/new", json!({"team_id": "t"})).await;
    ok("/user/new", json!({"user_id": "ann", "auto_create_key": false})).await;
    let key = ok("/key/generate", json!({})).await;
    // Another process, whose changes the server sees within a second.
    let other = Store::open(folder.path().join("keys.db")).expect("the file of keys");
    let block = |id: KeyId| {
        let edit = |draft: &mut Draft| {
            draft.profile.blocked = true;
            Ok::<(), octet_keys::Error>(())
        };
        other.edit_for(id, edit).expect("it is there");
    };
    let enter = |user: &str| {
        let member = Member { user: user.into(), role: "user".into() };
        other.edit_members("t", |all| all.push(member)).expect("it is there");
    };
    enter("ann");
    block(other.owner(OwnerKind::Team, "t").expect("it is there").id);
    let team = ok("/team/update", json!({"team_id": "t", "rpm_limit": 7})).await["data"].clone();
    let many = |team: &Value| team["members_with_roles"].as_array().map(Vec::len);
    assert_eq!((many(&team), &team["blocked"], &team["rpm_limit"]), (Some(1), &json!(true), &json!(7)));
    enter("bob");
    let team = ok("/team/unblock", json!({"team_id": "t"})).await;
    assert_eq!((many(&team), &team["blocked"]), (Some(2), &json!(false)));
    block(other.owner(OwnerKind::User, "ann").expect("it is there").id);
    ok("/user/update", json!({"user_id": "ann", "rpm_limit": 7})).await;
    block(other.list()[0].id);
    ok("/key/update", json!({"key": key["token"], "rpm_limit": 7})).await;
    other.flush().expect("the file of keys");
    let (ann, key) = (other.owner(OwnerKind::User, "ann").expect("it is there"), other.list().remove(0));
    assert_eq!([ann.profile.blocked, key.profile.blocked], [true; 2]);
    assert_eq!([ann.limits.rpm, key.limits.rpm], [Some(7); 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_changes_leave_nothing_behind() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, KEYS).await;
    let master = async |path: &str, body: Value| post(&f, "sk-master", path, &body).await;
    let (_, made) = master("/key/generate", json!({"key_alias": "mine"})).await;
    assert_eq!(made["key_alias"], "mine", "{made}");
    assert_eq!(master("/team/new", json!({"team_id": "t"})).await.0, 200);
    let (status, said) =
        master("/user/new", json!({"user_id": "ann", "teams": ["t"], "key_alias": "mine"})).await;
    assert!(status == 400 && said["error"]["param"] == "key_alias", "{said}");
    assert_eq!(get(&f, "sk-master", "/user/info?user_id=ann").await.0, 404);
    let members = json!([{"user_id": "ann"}, {"user_id": "two\nlines"}]);
    let (status, said) =
        master("/team/new", json!({"team_id": "other", "members_with_roles": members})).await;
    assert_eq!(status, 400, "{said}");
    assert_eq!(get(&f, "sk-master", "/team/info?team_id=other").await.0, 404);
    assert_eq!(get(&f, "sk-master", "/user/info?user_id=ann").await.0, 404);
    // A key for all models of its team is not one for all models.
    let (_, key) = master("/key/generate", json!({"team_id": "t", "models": ["all-team-models"]})).await;
    let (status, said) =
        master("/key/update", json!({"key": key["token"], "team_id": null, "rpm_limit": 3})).await;
    assert!(status == 400 && said.to_string().contains("set 'models' too"), "{said}");
    let info =
        get(&f, "sk-master", &format!("/key/info?key={}", key["token"].as_str().expect("a token"))).await.1;
    assert_eq!((&info["info"]["team_id"], &info["info"]["rpm_limit"]), (&json!("t"), &Value::Null));
    let (status, key) =
        master("/key/update", json!({"key": key["token"], "team_id": null, "models": ["m"]})).await;
    assert_eq!((status, &key["team_id"], &key["models"]), (200, &Value::Null, &json!(["m"])), "{key}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_page_is_served_if_a_key_protects_it() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, &format!("{KEYS}litellm_settings: {{max_budget: 5}}\n")).await;
    let page = f.client.get(f.url("/admin")).send().await.expect("an answer");
    let header = |name: &str| page.headers()[name].to_str().expect("text").to_string();
    assert_eq!((page.status().as_u16(), header("content-type").as_str()), (200, "text/html; charset=utf-8"));
    let policy = header("content-security-policy");
    for part in [
        "default-src 'none'",
        "script-src 'self'",
        "connect-src 'self';",
        "frame-ancestors 'none'",
        "trusted-types 'none'",
    ] {
        assert!(policy.contains(part), "{part} in {policy}");
    }
    assert!(!policy.contains("-inline") && !policy.contains("-eval"), "{policy}");
    let (_, status) = get(&f, "sk-master", "/admin/status").await;
    assert_eq!(
        (&status["has_keys"], &status["busy"], &status["budget"]["max_budget"]),
        (&json!(true), &json!(0), &json!(5.0))
    );
    let d = &status["deployments"][0];
    assert_eq!(
        (&d["group"], &d["model"], &d["state"], &d["loaded"], &d["has_answered"]),
        (&json!("m"), &json!("x"), &json!("ready"), &Value::Null, &json!(false))
    );
    assert!(!status.to_string().contains(&up.base), "addresses are not told: {status}");
    let (open, _folder) = fixture(&up, "").await;
    let (status, said) = read(open.client.get(open.url("/admin")).send().await.expect("an answer")).await;
    assert!(status == 404 && said.to_string().contains("general_settings.master_key"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_listed_while_they_run_and_afterwards() {
    let (open, gate) = tokio::sync::watch::channel(false);
    let up = Upstream::start(move |seen| {
        let mut steps = vec![Step::Wait(gate.clone())];
        steps.extend(says(seen, "Hi"));
        steps
    })
    .await;
    let (f, _folder) = fixture(&up, KEYS).await;
    let (_, made) = post(&f, "sk-master", "/key/generate", &json!({"key_alias": "alice"})).await;
    let key = made["key"].as_str().expect("a key").to_string();
    let body = with(&chat("Hello"), json!({"model": "m", "user": "u-1"}));
    let request = f.request("/v1/chat/completions", &body).bearer_auth(&key);
    let running = tokio::spawn(async move { read(request.send().await.expect("an answer")).await.0 });
    f.until("it is sent", || up.seen().len() == 1).await;
    let listed = async |query: &str| get(&f, "sk-master", &format!("/admin/requests{query}")).await;
    let (_, now) = listed("").await;
    assert_eq!((now["running"].as_array().map(Vec::len), &now["ended"]), (Some(1), &json!([])), "{now}");
    let r = &now["running"][0];
    assert_eq!(
        (&r["key"], &r["user"], &r["requested"], &r["status"]),
        (&json!("alice"), &json!("u-1"), &json!("m"), &Value::Null),
        "{r}"
    );
    open.send(true).expect("the provider waits");
    assert_eq!(running.await.expect("no panic"), 200);
    assert_eq!(post(&f, "sk-wrong", "/v1/chat/completions", &body).await.0, 401);
    let began = std::time::Instant::now();
    let ended = loop {
        let (_, now) = listed("").await;
        if now["ended"].as_array().is_some_and(|all| all.len() == 2) {
            assert_eq!(now["running"], json!([]));
            break now["ended"].clone();
        }
        assert!(began.elapsed() < PATIENCE, "{now}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let facts = |r: &Value| {
        let fields = [
            "status",
            "key",
            "requested",
            "model",
            "prompt_tokens",
            "completion_tokens",
            "cost_usd",
            "error",
        ];
        Value::from(fields.map(|field| r[field].clone()).to_vec())
    };
    assert_eq!(facts(&ended[0]), json!([401, null, null, null, 0, 0, null, "invalid_api_key"]));
    assert_eq!(facts(&ended[1]), json!([200, "alice", "m", "x", 7, 2, 0.07, null]));
    assert!(ended[1]["deployment"].is_string() && ended[1]["ttft_ms"].is_number(), "{ended}");
    assert_eq!(listed("?limit=1").await.1["ended"].as_array().map(Vec::len), Some(1));
    assert_eq!(listed("?limit=many").await.0, 400);
    assert_eq!(get(&f, &key, "/admin/requests").await.0, 403);
    assert_eq!(get(&f, "sk-master", "/admin/status").await.1["deployments"][0]["has_answered"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn spend_is_reported_by_tag() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, KEYS).await;
    let (_, made) = post(&f, "sk-master", "/key/generate", &json!({})).await;
    let key = made["key"].as_str().expect("a key");
    let body = with(&chat("Hello"), json!({"model": "m", "tags": ["blue", "eu"]}));
    assert_eq!(post(&f, key, "/v1/chat/completions", &body).await.0, 200);
    // Tags of requests with the server's own key count, too; so do those of metadata.
    let body = with(&chat("Hello"), json!({"model": "m", "metadata": {"tags": ["blue"]}}));
    assert_eq!(post(&f, "sk-master", "/v1/chat/completions", &body).await.0, 200);
    let (status, told) = get(&f, "sk-master", "/spend/tags").await;
    let row = |tag: &str, count: u64, cost: f64| json!({"individual_request_tag": tag, "log_count": count, "total_spend": cost, "total_input_tokens": 7 * count, "total_output_tokens": 2 * count});
    assert_eq!((status, told), (200, json!([row("blue", 2, 0.14), row("eu", 1, 0.07)])));
    assert_eq!(get(&f, "sk-master", "/spend/tags?end_date=2020-01-01").await.1, json!([]));
    assert_eq!(get(&f, key, "/spend/tags").await.0, 403);
    assert_eq!(get(&f, "sk-master", "/spend/tags?start_date=soon").await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn end_users_have_budgets() {
    let up = Upstream::saying("Hi").await;
    let (f, _folder) = fixture(&up, &format!("{KEYS}litellm_settings: {{max_end_user_budget: 0.1}}\n")).await;
    let (_, made) = post(&f, "sk-master", "/key/generate", &json!({})).await;
    let key = made["key"].as_str().expect("a key");
    let ask = async |key: &str, user: &str| {
        let body = with(&chat("Hello"), json!({"model": "m", "user": user}));
        post(&f, key, "/v1/chat/completions", &body).await
    };
    // Seven cents each: the second begins below the budget.
    assert_eq!([ask(key, "ann").await.0, ask(key, "ann").await.0], [200, 200]);
    let (status, refused) = ask(key, "ann").await;
    assert!(status == 429 && refused.to_string().contains("the end user of"), "{refused}");
    // Whoever asks for it, and nobody else.
    assert_eq!(ask("sk-master", "ann").await.0, 429);
    assert_eq!(ask(key, "bob").await.0, 200);
    assert_eq!(post(&f, key, "/v1/chat/completions", &with(&chat("Hi"), json!({"model": "m"}))).await.0, 200);
    let info = async |user: &str| get(&f, "sk-master", &format!("/customer/info?end_user_id={user}")).await;
    let began = std::time::Instant::now();
    while info("bob").await.0 != 200 {
        assert!(began.elapsed() < PATIENCE, "it is not written");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let (_, ann) = info("ann").await;
    assert_eq!(
        (&ann["spend"], &ann["litellm_budget_table"]["max_budget"]),
        (&json!(0.14), &json!(0.1)),
        "{ann}"
    );
    let manage = async |path: &str, body: Value| post(&f, "sk-master", path, &body).await;
    assert_eq!(manage("/customer/update", json!({"user_id": "ann", "max_budget": 1})).await.0, 200);
    assert_eq!(ask(key, "ann").await.0, 200);
    let (status, made) = manage(
        "/customer/new",
        json!({"user_id": "carl", "alias": "C", "max_budget": 5, "budget_duration": "1d"}),
    )
    .await;
    assert_eq!(
        (status, &made["alias"], &made["litellm_budget_table"]["budget_duration"]),
        (200, &json!("C"), &json!("1d"))
    );
    assert_eq!(manage("/end_user/new", json!({"user_id": "carl"})).await.0, 400);
    let (status, blocked) = manage("/customer/block", json!({"user_ids": ["carl", "dora"]})).await;
    assert_eq!((status, blocked["blocked_users"].as_array().map(Vec::len)), (200, Some(2)), "{blocked}");
    assert_eq!([ask(key, "carl").await.0, ask(key, "dora").await.0], [401, 401]);
    assert_eq!(manage("/customer/unblock", json!({"user_ids": ["dora"]})).await.0, 200);
    assert_eq!(ask(key, "dora").await.0, 200);
    let (_, all) = get(&f, "sk-master", "/customer/list").await;
    let names: Vec<&str> =
        all.as_array().expect("a list").iter().filter_map(|u| u["user_id"].as_str()).collect();
    assert_eq!(names, ["ann", "bob", "carl", "dora"]);
    assert_eq!(
        manage("/customer/delete", json!({"user_ids": ["carl", "dora"]})).await.1,
        json!({"deleted_customers": 2})
    );
    assert_eq!(info("carl").await.0, 404);
    assert_eq!(get(&f, key, "/customer/list").await.0, 403);
}
