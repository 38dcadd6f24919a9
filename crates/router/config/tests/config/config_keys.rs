//! Every key that LiteLLM's users have: honoured, and then what it does; named in a note; or refused by name. None is dropped
//! without a word.

use std::collections::{BTreeMap, BTreeSet};

use octet_config::*;
use serde_json::{Value, json};

fn read(text: &str) -> Result<Config, Problems> {
    let env = |name: &str| name.ends_with("_KEY").then(|| format!("key-of-{name}"));
    Config::parse("config.yaml", text, &Disk(env))
}

/// What becomes of a key.
enum Becomes {
    /// It does this: what is read off the configuration, and what that is.
    Done(fn(&Config) -> Value, Value),
    /// It is ignored with a note that says so in these words.
    Noted(&'static str),
    /// The file is refused in these words.
    Refused(&'static str),
}

use Becomes::{Done, Noted, Refused};

/// Two groups, `default` of two deployments and `cloud`; `params` and `info` are the first one's.
fn file(params: &str, info: &str, rest: &str) -> String {
    format!(
        "model_list:
- model_name: default
  litellm_params: {{model: hosted_vllm/qwen, api_base: 'http://127.0.0.1:8007/v1'{params}}}
  model_info: {{id: a3b{info}}}
- {{model_name: default, litellm_params: {{model: ollama/small}}}}
- {{model_name: cloud, litellm_params: {{model: anthropic/claude-sonnet-4-5}}}}
{rest}
"
    )
}

fn first(c: &Config) -> &Deployment {
    &c.deployments[0]
}

fn remote(c: &Config) -> &Remote {
    let Target::Remote(r) = &first(c).target else { panic!("{:?}", first(c).target) };
    r
}

fn seconds(time: Option<std::time::Duration>) -> Value {
    time.map(|t| t.as_secs_f64()).into()
}

fn lists(all: &[Fallback]) -> Value {
    all.iter().map(|f| json!({f.group.as_str(): f.to})).collect()
}

/// A key, a file that has it, and how it is handled.
struct Row {
    key: &'static str,
    text: String,
    becomes: Becomes,
}

fn param(key: &'static str, value: &str, becomes: Becomes) -> Row {
    Row { key, text: file(&format!(", {key}: {value}"), "", ""), becomes }
}

fn info(key: &'static str, value: &str, becomes: Becomes) -> Row {
    Row { key, text: file("", &format!(", {key}: {value}"), ""), becomes }
}

fn of(section: &str, key: &'static str, value: &str, becomes: Becomes) -> Row {
    Row { key, text: file("", "", &format!("{section}: {{{key}: {value}}}")), becomes }
}

fn router(key: &'static str, value: &str, becomes: Becomes) -> Row {
    of("router_settings", key, value, becomes)
}

fn litellm(key: &'static str, value: &str, becomes: Becomes) -> Row {
    of("litellm_settings", key, value, becomes)
}

fn general(key: &'static str, value: &str, becomes: Becomes) -> Row {
    of("general_settings", key, value, becomes)
}

fn top(key: &'static str, text: &str, becomes: Becomes) -> Row {
    Row { key, text: text.into(), becomes }
}

fn params() -> Vec<Row> {
    vec![
        top("model", &file("", "", ""), Done(|c| json!([remote(c).provider.name(), remote(c).model]), json!(["openai_compatible", "qwen"]))),
        top("api_base", &file("", "", ""), Done(|c| remote(c).api_base.clone().into(), json!("http://127.0.0.1:8007/v1"))),
        param("api_key", "os.environ/LOCAL_KEY", Done(|c| remote(c).api_key.as_ref().unwrap().expose().into(), json!("key-of-LOCAL_KEY"))),
        param("weight", "9", Done(|c| first(c).weight.into(), json!(9.0))),
        param("order", "1", Done(|c| first(c).order.into(), json!(1))),
        param("rpm", "600", Done(|c| first(c).rpm.into(), json!(600))),
        param("tpm", "20_000", Done(|c| first(c).tpm.into(), json!(20_000))),
        param("max_parallel_requests", "8", Done(|c| first(c).max_parallel_requests.into(), json!(8))),
        param("timeout", "300", Done(|c| seconds(first(c).timeout), json!(300.0))),
        param("stream_timeout", "0.5", Done(|c| seconds(first(c).stream_timeout), json!(0.5))),
        param("cooldown_time", "7", Done(|c| seconds(first(c).cooldown_time), json!(7.0))),
        param("max_retries", "4", Done(|c| first(c).num_retries.into(), json!(4))),
        param(
            "extra_body",
            "{chat_template_kwargs: {enable_thinking: false}, a: {b: 1}}",
            Done(
                |c| json!([remote(c).changes.extra_body, remote(c).changes.chat_template_kwargs]),
                json!([{"a": {"b": 1}}, {"enable_thinking": false}]),
            ),
        ),
        param("silent_model", "cloud", Done(|c| first(c).shadow.as_ref().unwrap().group.clone().into(), json!("cloud"))),
        param("temperature", "0.2", Done(|c| json!(first(c).params), json!({"temperature": 0.2}))),
        param("max_tokens", "20", Done(|c| json!(first(c).params), json!({"max_tokens": 20}))),
        param("extra_headers", "{X-Team: a}", Done(|c| json!([remote(c).extra_headers[0].0, remote(c).extra_headers[0].1.expose()]), json!(["X-Team", "a"]))),
        param("additional_drop_params", "[logit_bias]", Done(|c| json!(remote(c).changes.edits.drop), json!(["logit_bias"]))),
        param("drop_params", "true", Done(|c| remote(c).changes.drop_params.into(), json!(true))),
        param("organization", "org-1", Done(|c| json!(remote(c).organization), json!("org-1"))),
        param("api_version", "'2024-10-21'", Done(|c| json!(remote(c).api_version), json!("2024-10-21"))),
        param("custom_llm_provider", "hosted_vllm", Done(|c| json!(remote(c).model), json!("qwen"))),
        param("input_cost_per_token", "0.1", Done(|c| first(c).info.input_cost_per_token.into(), json!(0.1))),
        param("output_cost_per_token", "0.1", Done(|c| first(c).info.output_cost_per_token.into(), json!(0.1))),
        param("cache_creation_input_token_cost", "0.1", Done(|c| first(c).info.cache_write_cost_per_token.into(), json!(0.1))),
        param("input_cost_per_token_above_200k_tokens", "0.1", Noted("a request is billed by")),
        param("tags", "[free]", Done(|c| json!(first(c).tags), json!(["free"]))),
        param("guardrails", "[pii]", Refused("guardrails are not supported")),
        param("max_budget", "5", Refused("not for a deployment")),
        param("drop_params", "[tool_choice]", Done(|c| json!([remote(c).changes.drop_params, remote(c).changes.edits.drop]), json!([true, ["tool_choice"]]))),
        param("reasoning_effort", "{effort: high}", Done(|c| json!(first(c).params), json!({"reasoning_effort": "high"}))),
        param("reasoning_effort", "{effort: high, summary: auto}", Noted("effort alone is sent")),
        param("web_search_options", "{search_context_size: low}", Done(|c| json!(remote(c).changes.extra_body), json!({"web_search_options": {"search_context_size": "low"}}))),
        param("mock_timeout", "3", Noted("mock failures are not supported")),
        param("aws_region_name", "us-east-1", Noted("is for models at Bedrock")),
        param("auto_router_config", "x", Noted("use a cascade instead")),
        Row {
            key: "litellm_credential_name",
            text: "credential_list: [{credential_name: rack, credential_values: {api_base: 'http://h/v1', api_key: sk-1}}]\nmodel_list: [{model_name: m, litellm_params: {model: hosted_vllm/q, litellm_credential_name: rack}}]\n".into(),
            becomes: Done(|c| json!([remote(c).api_base, remote(c).api_key.as_ref().unwrap().expose()]), json!(["http://h/v1", "sk-1"])),
        },
        top("id", &file("", "", ""), Done(|c| first(c).id.clone().into(), json!("a3b"))),
        info("mode", "embedding", Done(|c| json!(first(c).info.mode == Mode::Embedding), json!(true))),
        info("mode", "realtime", Noted("are not supported")),
        info("max_input_tokens", "262144", Done(|c| first(c).info.max_input_tokens.into(), json!(262_144))),
        info("base_model", "qwen", Done(|c| json!(first(c).info.base_model), json!("qwen"))),
        info("access_groups", "[beta]", Done(|c| json!(first(c).info.access_groups), json!(["beta"]))),
        info("disable_background_health_check", "true", Done(|c| first(c).info.unchecked.into(), json!(true))),
        info("blocked", "true", Noted("'default' is left out: model_info.blocked is true")),
        info("team_id", "t", Refused("models do not belong to teams")),
        info("owner", "me", Done(|c| json!(first(c).info.other), json!({"owner": "me"}))),
    ]
}

fn of_the_router() -> Vec<Row> {
    let policy =
        "{TimeoutErrorRetries: 3, RateLimitErrorRetries: 4, NotFoundErrorRetries: 5, DefaultRetries: 6}";
    vec![
        router(
            "routing_strategy",
            "least-busy",
            Done(|c| c.router.strategy.name().into(), json!("least-busy")),
        ),
        router(
            "routing_strategy",
            "simple-shuffle",
            Done(|c| c.router.strategy.name().into(), json!("simple-shuffle")),
        ),
        router(
            "routing_strategy",
            "usage-based-routing",
            Done(|c| c.router.strategy.name().into(), json!("usage-based-routing")),
        ),
        router(
            "routing_strategy",
            "usage-based-routing-v2",
            Done(|c| c.router.strategy.name().into(), json!("usage-based-routing")),
        ),
        router(
            "routing_strategy",
            "latency-based-routing",
            Done(|c| c.router.strategy.name().into(), json!("latency-based-routing")),
        ),
        router(
            "routing_strategy",
            "cost-based-routing",
            Done(|c| c.router.strategy.name().into(), json!("cost-based-routing")),
        ),
        router(
            "routing_strategy_args",
            "{ttl: 10, lowest_latency_buffer: 0.5}",
            Done(
                |c| json!([seconds(Some(c.router.latency_ttl)), c.router.latency_buffer]),
                json!([10.0, 0.5]),
            ),
        ),
        router(
            "model_group_alias",
            "{gpt-4o: default, old: {model: cloud, hidden: true}}",
            Done(
                |c| c.router.aliases.iter().map(|a| json!([a.name, a.group, a.hidden])).collect(),
                json!([["gpt-4o", "default", false], ["old", "cloud", true]]),
            ),
        ),
        router(
            "fallbacks",
            "[{default: [cloud]}]",
            Done(|c| lists(&c.router.fallbacks), json!([{"default": ["cloud"]}])),
        ),
        router(
            "context_window_fallbacks",
            "[{default: [cloud]}]",
            Done(|c| lists(&c.router.context_window_fallbacks), json!([{"default": ["cloud"]}])),
        ),
        router(
            "content_policy_fallbacks",
            "[{default: [cloud]}]",
            Done(|c| lists(&c.router.content_policy_fallbacks), json!([{"default": ["cloud"]}])),
        ),
        router("default_fallbacks", "[cloud]", Done(|c| json!(c.router.default_fallbacks), json!(["cloud"]))),
        router("max_fallbacks", "3", Done(|c| c.router.max_fallbacks.into(), json!(3))),
        router("num_retries", "7", Done(|c| c.router.num_retries.into(), json!(7))),
        router("retry_after", "3", Done(|c| seconds(Some(c.router.retry_after)), json!(3.0))),
        router(
            "retry_policy",
            policy,
            Done(
                |c| {
                    let p = c.router.retry_policy;
                    json!([
                        p.timeout,
                        p.rate_limit,
                        p.not_found,
                        p.bad_request,
                        p.authentication,
                        p.content_policy,
                        p.internal_server
                    ])
                },
                json!([3, 4, 5, 6, 6, 6, 6]),
            ),
        ),
        router(
            "retry_policy",
            "{ServiceUnavailableErrorRetries: 3}",
            Noted("InternalServerErrorRetries applies"),
        ),
        router(
            "model_group_retry_policy",
            "{cloud: {RateLimitErrorRetries: 9}}",
            Done(
                |c| json!([c.router.group_retry_policy[0].0, c.router.group_retry_policy[0].1.rate_limit]),
                json!(["cloud", 9]),
            ),
        ),
        router("allowed_fails", "3", Done(|c| c.router.allowed_fails.into(), json!(3))),
        router(
            "allowed_fails_policy",
            "{RateLimitErrorAllowedFails: 100}",
            Done(|c| c.router.allowed_fails_policy.rate_limit.into(), json!(100)),
        ),
        router("cooldown_time", "30", Done(|c| seconds(Some(c.router.cooldown_time)), json!(30.0))),
        router("disable_cooldowns", "True", Done(|c| c.router.disable_cooldowns.into(), json!(true))),
        router("timeout", "30", Done(|c| seconds(Some(c.router.timeout)), json!(30.0))),
        router(
            "enable_pre_call_checks",
            "true",
            Done(|c| c.router.enable_pre_call_checks.into(), json!(true)),
        ),
        router("redis_host", "os.environ/REDIS_HOST", Noted("limits are not shared with other processes")),
        router("enable_tag_filtering", "True", Done(|c| c.router.tags.is_some().into(), json!(true))),
        router(
            "provider_budget_config",
            "{openai: {budget_limit: 1, time_period: 1d}}",
            Refused("a budget is for a key"),
        ),
        router("custom_routing_strategy", "x.y", Noted("Python plugins are not supported")),
        router("default_litellm_params", "{timeout: 3}", Refused("set the parameters in the entries")),
    ]
}

fn of_the_proxy() -> Vec<Row> {
    const KEPT: &str = "general_settings: {master_key: k}\nkeys: {database: k.db}\nlitellm_settings: {max_budget: 100, budget_duration: 30d}";
    vec![
        litellm("drop_params", "true", Done(|c| remote(c).changes.drop_params.into(), json!(true))),
        litellm("request_timeout", "10", Done(|c| seconds(Some(c.router.timeout)), json!(10.0))),
        litellm("num_retries", "5", Done(|c| c.router.num_retries.into(), json!(5))),
        litellm(
            "fallbacks",
            "[{default: [cloud]}]",
            Done(|c| lists(&c.router.fallbacks), json!([{"default": ["cloud"]}])),
        ),
        litellm("callbacks", "[prometheus]", Done(|c| json!(c.notes.len()), json!(0))),
        litellm("callbacks", "[langfuse]", Done(|c| json!(c.callbacks.len()), json!(1))),
        litellm("success_callback", "[datadog]", Noted("nothing is sent to 'datadog'")),
        litellm("callbacks", "hooks.handler", Refused("'hooks.handler' is a Python plugin")),
        litellm("cache", "true", Done(|c| c.cache.is_some().into(), json!(true))),
        litellm(
            "cache_params",
            "{type: redis}",
            Noted("answers are cached only with litellm_settings.cache: true"),
        ),
        litellm("guardrails", "[{a: {callbacks: [x]}}]", Refused("guardrails are not supported")),
        litellm("max_budget", "100", Refused("it needs a general_settings.master_key")),
        Row {
            key: "max_budget",
            text: file("", "", KEPT),
            becomes: Done(
                |c| json!([c.keys.max_budget, seconds(c.keys.budget_duration)]),
                json!([100.0, 2_592_000.0]),
            ),
        },
        litellm(
            "default_key_generate_params",
            "{max_budget: 1.5, models: [default]}",
            Done(
                |c| json!([c.keys.defaults.limits.max_budget, c.keys.defaults.limits.models]),
                json!([1.5, ["default"]]),
            ),
        ),
        litellm(
            "upperbound_key_generate_params",
            "{max_budget: 10, duration: 30d, rpm_limit: 5}",
            Done(
                |c| {
                    json!([
                        c.keys.bounds.max_budget,
                        seconds(c.keys.bounds.duration),
                        c.keys.bounds.rpm_limit
                    ])
                },
                json!([10.0, 2_592_000.0, 5]),
            ),
        ),
        litellm(
            "default_internal_user_params",
            "{max_budget: 2, models: [default], teams: [blue, {team_id: red}], user_role: internal_user}",
            Done(
                |c| {
                    let d = &c.keys.user_defaults;
                    json!([d.limits.max_budget, d.limits.models, d.teams, d.role])
                },
                json!([2.0, ["default"], ["blue", "red"], "internal_user"]),
            ),
        ),
        litellm(
            "default_team_params",
            "{budget_duration: 30d, rpm_limit: 5}",
            Done(
                |c| {
                    let d = &c.keys.team_defaults;
                    json!([seconds(d.budget_duration), d.rpm_limit])
                },
                json!([2_592_000.0, 5]),
            ),
        ),
        litellm("default_team_params", "{models: [default]}", Noted("single sign-on")),
        litellm(
            "default_internal_user_params",
            "{teams: [{team_id: red, max_budget_in_team: 3}]}",
            Refused("budgets of a team's members"),
        ),
        litellm(
            "default_internal_user_params",
            "{teams: [{user_role: user}]}",
            Refused("an entry of teams needs a team_id"),
        ),
        litellm(
            "max_internal_user_budget",
            "1",
            Done(|c| json!(c.keys.user_defaults.internal_max_budget), json!(1.0)),
        ),
        litellm(
            "default_max_internal_user_budget",
            "1",
            Done(|c| json!(c.keys.user_defaults.internal_max_budget), json!(1.0)),
        ),
        litellm(
            "internal_user_budget_duration",
            "1d",
            Done(|c| json!(seconds(c.keys.user_defaults.internal_budget_duration)), json!(86_400.0)),
        ),
        litellm("prometheus_latency_buckets", "[1]", Noted("/metrics has the figures")),
        litellm("blocked_user_list", "[a]", Refused("must not be ignored")),
        general(
            "master_key",
            "os.environ/MASTER_KEY",
            Done(|c| c.server.master_key.as_ref().unwrap().expose().into(), json!("key-of-MASTER_KEY")),
        ),
        general("background_health_checks", "True", Done(|c| c.health.enabled.into(), json!(true))),
        general("health_check_interval", "60", Done(|c| seconds(Some(c.health.interval)), json!(60.0))),
        general("max_request_size_mb", "2", Done(|c| c.server.max_body.into(), json!(2 << 20))),
        general(
            "global_max_parallel_requests",
            "9",
            Done(|c| c.server.max_parallel_requests.into(), json!(9)),
        ),
        general(
            "max_parallel_requests",
            "9",
            Done(|c| c.keys.defaults.limits.max_parallel_requests.into(), json!(9)),
        ),
        general("database_url", "postgresql://x", Noted("it needs general_settings.master_key")),
        general("alerting", "[slack]", Noted("no alerts are sent to 'slack'")),
        general("enable_jwt_auth", "True", Refused("not by tokens of an identity provider")),
        general("otel", "True", Noted("it has no effect here")),
        general("custom_auth", "auth.check", Refused("Python plugins are not supported")),
        general("custom_sso", "auth.sso", Noted("Python plugins are not supported")),
        general("allowed_routes", "[/chat/completions]", Refused("must not be ignored")),
        top("model_list", &file("", "", ""), Done(|c| json!(c.deployments.len()), json!(3))),
        top("model_name", &file("", "", ""), Done(|c| first(c).group.as_str().into(), json!("default"))),
        top("litellm_params", &file("", "", ""), Done(|c| remote(c).model.clone().into(), json!("qwen"))),
        top("model_info", &file("", "", ""), Done(|c| first(c).id.clone().into(), json!("a3b"))),
        top(
            "environment_variables",
            &file(", api_key: os.environ/NEW", "", "environment_variables: {NEW: sk-1, REDIS_PASSWORD: }"),
            Done(|c| remote(c).api_key.as_ref().unwrap().expose().into(), json!("sk-1")),
        ),
        top(
            "router_settings",
            &file("", "", "router_settings:"),
            Done(|c| json!(c.router == RouterSettings::default()), json!(true)),
        ),
        top("litellm_settings", &file("", "", "litellm_settings:"), Done(|c| json!(c.notes.len()), json!(0))),
        top(
            "general_settings",
            &file("", "", "general_settings: {}"),
            Done(|c| json!(c.notes.len()), json!(0)),
        ),
        top(
            "credential_list",
            &file(
                ", litellm_credential_name: rack",
                "",
                "credential_list: [{credential_name: rack, credential_values: {api_key: sk-2}, credential_info: {description: x}}]",
            ),
            Done(|c| remote(c).api_key.as_ref().unwrap().expose().into(), json!("sk-2")),
        ),
        top("include", &file("", "", "include: [missing.yaml]"), Refused("include: 'missing.yaml'")),
        top(
            "guardrails",
            &file("", "", "guardrails: [{guardrail_name: x}]"),
            Refused("guardrails are not supported"),
        ),
        top(
            "mcp_servers",
            &file("", "", "mcp_servers: {wikipedia: {url: 'https://x'}}"),
            Done(|c| c.mcp_servers["wikipedia"]["url"].clone(), json!("https://x")),
        ),
        top("sandbox_tools", &file("", "", "sandbox_tools: []"), Noted("is not supported")),
    ]
}

fn rows() -> Vec<Row> {
    let mut all = params();
    all.extend(of_the_router());
    all.extend(of_the_proxy());
    all
}

#[test]
fn each_key_has_its_effect_or_a_report() {
    for Row { key, text, becomes } in rows() {
        match (becomes, read(&text)) {
            (Done(look, expected), Ok(config)) => {
                assert_eq!(look(&config), expected, "{key}:\n{text}");
                // What is honoured needs no word.
                assert_eq!(
                    config.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    Vec::<String>::new(),
                    "{key}"
                );
            }
            (Noted(words), Ok(config)) => {
                let said: Vec<String> = config.notes.iter().map(ToString::to_string).collect();
                assert!(said.iter().any(|n| n.contains(words)), "{key}: {said:?}");
            }
            (Refused(words), Err(problems)) => {
                assert!(problems.to_string().contains(words), "{key}: {problems}");
            }
            (_, Ok(config)) => panic!("{key} is taken: {:?}", config.notes),
            (_, Err(problems)) => panic!("{key} is refused: {problems}"),
        }
    }
}

/// The keys of a YAML text, however deep.
fn keys(value: &Value, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                out.insert(key.clone());
                // What stands in these is the user's.
                if !matches!(
                    key.as_str(),
                    "model_group_alias" | "extra_body" | "fallbacks" | "context_window_fallbacks"
                ) {
                    keys(inner, out);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|i| keys(i, out)),
        _ => {}
    }
}

/// The list that this was built after: the keys of its example, and those that it says are honoured too.
#[test]
fn the_table_has_every_requested_key() {
    let Some(path) = octet_testkit::shared("design/gateway.md") else { return };
    let text = std::fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once("```yaml\n").unwrap();
    let (example, rest) = rest.split_once("```").unwrap();
    let mut asked = BTreeSet::new();
    keys(&serde_saphyr::from_str(example).unwrap(), &mut asked);
    let (_, honoured) = rest.split_once("Also honoured:").unwrap();
    let (honoured, _) = honoured.split_once("- Semantics").unwrap();
    asked.extend(honoured.split('`').skip(1).step_by(2).map(String::from));
    assert!(asked.len() > 40, "{asked:?}");
    let known: BTreeSet<String> = rows().iter().map(|r| r.key.to_string()).collect();
    let missing: Vec<&String> = asked.difference(&known).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The whole example, as it stands there.
#[test]
fn the_example_is_valid() {
    let Some(path) = octet_testkit::shared("design/gateway.md") else { return };
    let text = std::fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once("```yaml\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("extra.yaml"), "router_settings: {retry_after: 1}\n").unwrap();
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, example).unwrap();
    let env = |name: &str| name.ends_with("_KEY").then(|| format!("key-of-{name}"));
    let config = Config::load(&file, &Disk(env)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.notes.iter().map(ToString::to_string).collect::<Vec<_>>(), Vec::<String>::new());
    assert_eq!((config.deployments.len(), config.router.retry_after.as_secs()), (2, 1));
}

/// A name in a section, with a value.
fn with(section: &str, name: &str, value: &str) -> String {
    match section {
        "the file" => file("", "", &format!("{name}: {value}")),
        "litellm_params" => file(&format!(", {name}: {value}"), "", ""),
        "model_info" => file("", &format!(", {name}: {value}"), ""),
        "retry_policy" | "allowed_fails_policy" => {
            file("", "", &format!("router_settings: {{{section}: {{{name}: {value}}}}}"))
        }
        _ => file("", "", &format!("{section}: {{{name}: {value}}}")),
    }
}

/// What becomes of a name in a section.
fn outcome(section: &str, name: &str) -> &'static str {
    let path = if section == "the file" { name.to_string() } else { format!("{section}.{name}") };
    let on = read(&with(section, name, "['on']")).err().map_or(String::new(), |p| p.to_string());
    if on.contains(&format!("{path} is not supported: ")) {
        return "refused";
    }
    match read(&with(section, name, "")) {
        Err(problems) => panic!("{path}: {problems}"),
        Ok(config) if config.notes.iter().any(|n| n.key == path && !n.text.starts_with("unknown key")) => {
            "noted"
        }
        Ok(config) => {
            assert!(config.notes.is_empty(), "{section}.{name}: {:?}", config.notes);
            "taken"
        }
    }
}

/// All names that LiteLLM itself knows are known here.
#[test]
fn every_key_of_litellms_is_known() {
    let mut section = "";
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for line in include_str!("../data/litellm_keys.txt").lines().filter(|l| !l.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = name;
            continue;
        }
        for name in line.split(' ') {
            // These the file has already.
            if !matches!(name, "model_list" | "model" | "api_base" | "id") {
                *counts.entry((section, outcome(section, name))).or_default() += 1;
            }
        }
    }
    let of = |section, what| counts.get(&(section, what)).copied().unwrap_or(0);
    for section in ["the file", "general_settings", "litellm_settings", "router_settings", "litellm_params"] {
        assert!(
            ["taken", "noted", "refused"].iter().all(|what| of(section, what) > 0),
            "{section}: {counts:?}"
        );
    }
    assert!(counts.values().sum::<usize>() > 700, "{counts:?}");
}
