//! What LiteLLM's users have: their files' forms and the defaults behind them, as its documentation tells them.

use std::time::Duration;

use octet_config::*;
use serde_json::json;

#[track_caller]
fn read(text: &str) -> Config {
    let env = |name: &str| name.ends_with("_KEY").then(|| format!("key-of-{name}"));
    Config::parse("config.yaml", text, &Disk(env)).unwrap_or_else(|e| panic!("{e}"))
}

fn remotes(config: &Config) -> Vec<(String, Provider, String, String)> {
    let of = |d: &Deployment| match &d.target {
        Target::Remote(r) => (d.group.to_string(), r.provider, r.model.clone(), r.api_base.clone()),
        other => panic!("{other:?}"),
    };
    config.deployments.iter().map(of).collect()
}

#[test]
fn a_file_without_settings_has_litellms_defaults() {
    let r = read("model_list: [{model_name: m, litellm_params: {model: gpt-4o}}]").router;
    assert_eq!(r, RouterSettings::default());
    assert_eq!((r.num_retries, r.max_fallbacks, r.cooldown_time), (2, 5, Duration::from_secs(5)));
    assert_eq!(
        (r.timeout, r.retry_after, r.allowed_fails),
        (Duration::from_secs(6000), Duration::ZERO, None)
    );
    assert_eq!((r.strategy, r.enable_pre_call_checks), (Strategy::SimpleShuffle, false));
}

#[test]
fn models_mean_their_providers() {
    let config = read(
        "
model_list:
  - {model_name: a, litellm_params: {model: gpt-4o}}
  - {model_name: b, litellm_params: {model: openai/gpt-4o-mini, api_key: os.environ/OPENAI_API_KEY}}
  - {model_name: c, litellm_params: {model: claude-3-5-sonnet-20241022}}
  - {model_name: d, litellm_params: {model: gemini/gemini-2.0-flash}}
  - model_name: e
    litellm_params: {model: azure/my-deployment, api_base: 'https://me.openai.azure.com/', api_version: '2024-02-01'}
  - {model_name: f, litellm_params: {model: ollama/llama3.1, api_base: 'http://10.1.1.1:11434'}}
  - {model_name: g, litellm_params: {model: openai/facebook/opt-125m, api_base: 'http://0.0.0.0:4000/v1', api_key: none}}
  - {model_name: h, litellm_params: {model: openrouter/google/palm-2-chat-bison}}
  - {model_name: i, litellm_params: {model: my-own, custom_llm_provider: openai_like, api_base: 'http://h:1/v1'}}
  - {model_name: j, litellm_params: {model: o3-mini}}
",
    );
    use Provider::*;
    let row = |g: &str, p, m: &str, b: &str| (g.to_string(), p, m.to_string(), b.to_string());
    assert_eq!(
        remotes(&config),
        [
            row("a", OpenAi, "gpt-4o", "https://api.openai.com/v1"),
            row("b", OpenAi, "gpt-4o-mini", "https://api.openai.com/v1"),
            row("c", Anthropic, "claude-3-5-sonnet-20241022", "https://api.anthropic.com"),
            row("d", Gemini, "gemini-2.0-flash", "https://generativelanguage.googleapis.com/v1beta"),
            row("e", AzureOpenAi, "my-deployment", "https://me.openai.azure.com"),
            row("f", Ollama, "llama3.1", "http://10.1.1.1:11434"),
            row("g", OpenAiCompatible, "facebook/opt-125m", "http://0.0.0.0:4000/v1"),
            row("h", OpenAiCompatible, "google/palm-2-chat-bison", "https://openrouter.ai/api/v1"),
            row("i", OpenAiCompatible, "my-own", "http://h:1/v1"),
            row("j", OpenAi, "o3-mini", "https://api.openai.com/v1"),
        ]
    );
    let key = |i: usize| match &config.deployments[i].target {
        Target::Remote(r) => r.api_key.as_ref().map(|k| k.expose().to_string()),
        _ => None,
    };
    assert_eq!(
        (key(0).as_deref(), key(2).as_deref()),
        (Some("key-of-OPENAI_API_KEY"), Some("key-of-ANTHROPIC_API_KEY"))
    );
    assert_eq!(
        (key(4).as_deref(), key(5), key(6).as_deref()),
        (Some("key-of-AZURE_API_KEY"), None, Some("none"))
    );
    assert_eq!(key(8).as_deref(), Some("key-of-OPENAI_LIKE_API_KEY"));
}

#[test]
fn a_group_of_several_with_limits_is_balanced() {
    let config = read(
        "
model_list:
  - model_name: gpt-3.5-turbo
    litellm_params: {model: azure/eu, api_base: 'https://eu.openai.azure.com', api_key: k, rpm: 6}
    model_info: {id: eu}
  - model_name: gpt-3.5-turbo
    litellm_params: {model: azure/ca, api_base: 'https://ca.openai.azure.com', api_key: k, rpm: 2}
  - model_name: gpt-4
    litellm_params: {model: azure/gpt-4, api_base: 'https://eu.openai.azure.com', api_key: k, rpm: 1440, max_parallel_requests: 10}
router_settings:
  routing_strategy: simple-shuffle
  model_group_alias: {gpt-4-turbo: gpt-4}
  num_retries: 2
  timeout: 30
litellm_settings: {num_retries: 7, request_timeout: 10}
",
    );
    let r = &config.router;
    assert_eq!(
        (r.num_retries, r.timeout),
        (2, Duration::from_secs(30)),
        "router_settings beats litellm_settings"
    );
    let tree = config.tree();
    assert!(tree.contains("├─  75%  azure eu at") && tree.contains("└─  25%  azure ca at"), "{tree}");
    assert!(tree.contains("gpt-4 (also gpt-4-turbo)"), "{tree}");
}

#[test]
fn fallbacks_in_litellm_settings() {
    let config = read(
        "
model_list:
  - {model_name: zephyr, litellm_params: {model: openai/z, api_base: 'http://h/v1', api_key: k}}
  - {model_name: gpt-4o, litellm_params: {model: gpt-4o}}
  - {model_name: long, litellm_params: {model: gpt-4o-long}}
litellm_settings:
  num_retries: 3
  request_timeout: 10
  fallbacks: [{zephyr: [gpt-4o]}]
  context_window_fallbacks: [{zephyr: [long]}, {gpt-4o: [long]}]
  content_policy_fallbacks: [{gpt-4o: [zephyr]}]
  default_fallbacks: [gpt-4o]
  allowed_fails: 3
  drop_params: True
",
    );
    let r = &config.router;
    assert_eq!((r.num_retries, r.timeout, r.allowed_fails), (3, Duration::from_secs(10), Some(3)));
    assert_eq!(
        (r.fallbacks.len(), r.context_window_fallbacks.len(), r.content_policy_fallbacks.len()),
        (1, 2, 1)
    );
    assert_eq!(r.default_fallbacks, ["gpt-4o"]);
    assert!(config.deployments.iter().all(|d| d.target.changes().drop_params));
    let tree = config.tree();
    for line in [
        "├─ on errors: gpt-4o",
        "└─ for a prompt that is too long: long",
        "└─ if the provider's content filter refuses: zephyr",
    ] {
        assert!(tree.contains(line), "{line} in\n{tree}");
    }
}

#[test]
fn wildcards() {
    let config = read(
        "
model_list:
  - {model_name: 'anthropic/*', litellm_params: {model: 'anthropic/*'}}
  - {model_name: 'anthropic/claude-3*', litellm_params: {model: 'anthropic/claude-3*'}}
  - {model_name: '*', litellm_params: {model: 'openai/*'}}
",
    );
    let ask = |name: &str| {
        let best = config
            .deployments
            .iter()
            .filter(|d| d.group.matches(name))
            .max_by_key(|d| d.group.specificity())
            .unwrap();
        let Target::Remote(r) = &best.target else { panic!() };
        (best.group.to_string(), best.group.fill(name, &r.model).unwrap())
    };
    assert_eq!(ask("anthropic/claude-opus"), ("anthropic/*".into(), "claude-opus".into()));
    assert_eq!(ask("anthropic/claude-3-haiku"), ("anthropic/claude-3*".into(), "claude-3-haiku".into()));
    assert_eq!(ask("gpt-4o"), ("*".into(), "gpt-4o".into()));
}

#[test]
fn names_of_groups_are_matched_and_filled() {
    let name = |n: &str| GroupName::new(n).unwrap();
    assert!(name("a.b").matches("a.b") && !name("a.*").matches("axb"), "a dot is a dot");
    assert_eq!(name("*/x/*").fill("p/x/q", "*-*").as_deref(), Some("p-q"));
    assert_eq!(name("a*").fill("ab", "*-*").as_deref(), Some("b-*"));
    assert_eq!((name("a*").fill("b", "*"), name("a").fill("a", "m*").as_deref()), (None, Some("m*")));
    assert_eq!(name("a").specificity(), usize::MAX);
    assert!(GroupName::new(&"*".repeat(2000)).is_none());
}

#[test]
fn order_and_policies() {
    let config = read(
        "
model_list:
  - {model_name: m, litellm_params: {model: gpt-4o, order: 2}}
  - {model_name: m, litellm_params: {model: gpt-4o-mini, order: 1}}
  - {model_name: m, litellm_params: {model: gpt-4.1}}
router_settings:
  retry_policy: {AuthenticationErrorRetries: 3, TimeoutErrorRetries: 3, RateLimitErrorRetries: 3}
  allowed_fails_policy: {ContentPolicyViolationErrorAllowedFails: 1000, RateLimitErrorAllowedFails: 100}
  cooldown_time: 30
  disable_cooldowns: True
",
    );
    let r = &config.router;
    assert_eq!((r.retry_policy.authentication, r.retry_policy.bad_request), (Some(3), None));
    assert_eq!((r.allowed_fails_policy.content_policy, r.disable_cooldowns), (Some(1000), true));
    let tree = config.tree();
    let lines: Vec<&str> = tree.lines().collect();
    assert!(
        lines[1].contains("gpt-4o-mini") && lines[2].contains("gpt-4o at") && lines[3].contains("gpt-4.1"),
        "{tree}"
    );
}

#[test]
fn keys_of_a_litellm_deployment_are_noted_and_the_rest_is_read() {
    let config = read(
        "
model_list: [{model_name: m, litellm_params: {model: gpt-4o}, model_info: {mode: chat, team: x}}]
router_settings: {redis_host: os.environ/REDIS_HOST, redis_password: p, redis_port: 1992}
litellm_settings:
  set_verbose: true
  cache: true
  cache_params: {type: redis}
  success_callback: [langfuse]
general_settings:
  master_key: os.environ/LITELLM_MASTER_KEY
  database_url: postgresql://x
  alerting: [slack]
  proxy_batch_write_at: 60
",
    );
    let mut noted: Vec<&str> = config.notes.iter().map(|n| n.key.as_str()).collect();
    noted.sort_unstable();
    assert_eq!(
        noted,
        [
            "general_settings.alerting",
            "general_settings.proxy_batch_write_at",
            "litellm_settings.cache_params.type",
            "litellm_settings.set_verbose",
            "router_settings.redis_host",
        ]
    );
    assert_eq!(json!(config.deployments[0].info.other), json!({"team": "x"}));
    assert!(config.server.master_key.is_some());
    assert_eq!(config.keys.database_url.as_ref().map(|url| url.expose()), Some("postgresql://x"));
}

#[test]
fn modes_that_are_not_offered_are_left_out() {
    let config = read(
        "model_list:\n- {model_name: m, litellm_params: {model: gpt-4o}}\n- {model_name: i, litellm_params: {model: openai/gpt-realtime}, model_info: {mode: realtime}}\n- {model_name: e, litellm_params: {model: text-embedding-3-small}, model_info: {mode: embedding}}\n",
    );
    assert_eq!(config.skipped[0].reason, "models of mode 'realtime' are not supported");
    assert_eq!(config.deployments[1].info.mode, Mode::Embedding);
}

#[test]
fn ids_stay_as_long_as_entries_do() {
    let file = |key: &str, rpm: u32| {
        format!(
            "model_list:\n- {{model_name: m, litellm_params: {{model: gpt-4o, api_key: {key}, rpm: {rpm}}}}}\n- {{model_name: m, litellm_params: {{model: gpt-4o, api_key: {key}, rpm: {rpm}}}}}\n"
        )
    };
    let ids = |text: &str| read(text).deployments.iter().map(|d| d.id.clone()).collect::<Vec<_>>();
    let first = ids(&file("a", 1));
    assert_eq!(first, ids(&file("b", 1)), "a key that is renewed makes no new deployment");
    assert_ne!(first[0], ids(&file("a", 2))[0]);
    assert_eq!(first[1], format!("{}-2", first[0]), "the same entry twice");
}

#[test]
fn a_pool_of_own_servers_with_a_cloud_fallback() {
    // As the pages on load balancing and on reliability have it: order, weight, limits with underscores, policies.
    let config = read(
        "
model_list:
  - model_name: chat
    litellm_params: {model: hosted_vllm/llama, api_base: 'http://10.0.0.1:8000/v1', order: 1, weight: 2, rpm: 1_000, tpm: 100_000}
  - model_name: chat
    litellm_params: {model: hosted_vllm/llama, api_base: 'http://10.0.0.2:8000/v1', order: 1, weight: 1, max_parallel_requests: 32}
  - model_name: chat
    litellm_params: {model: azure/gpt-4o, api_base: 'https://me.openai.azure.com', api_key: os.environ/AZURE_API_KEY, order: 2, timeout: 5, stream_timeout: 0.5, max_retries: 4}
    model_info: {base_model: azure/gpt-4o, supports_vision: true}
router_settings:
  routing_strategy: usage-based-routing-v2
  num_retries: 3
  retry_policy: {BadRequestErrorRetries: 0, DefaultRetries: 2}
  allowed_fails_policy: {TimeoutErrorAllowedFails: 12}
  enable_pre_call_checks: true
",
    );
    let d = &config.deployments;
    assert_eq!((d[0].rpm, d[0].tpm, d[1].max_parallel_requests), (Some(1000), Some(100_000), Some(32)));
    let continues = |d: &Deployment| matches!(&d.target, Target::Remote(r) if r.continues);
    assert_eq!(
        d.iter().map(continues).collect::<Vec<_>>(),
        [true, true, false],
        "vLLM goes on with a message, Azure does not"
    );
    assert_eq!((d[2].num_retries, d[2].stream_timeout), (Some(4), Some(Duration::from_millis(500))));
    let p = config.router.retry_policy;
    assert_eq!((p.bad_request, p.rate_limit, p.not_found), (Some(0), Some(2), Some(2)));
    assert!(config.notes.is_empty(), "{:?}", config.notes);
}

#[test]
fn stars_with_access_groups_and_credentials_by_name() {
    let config = read(
        "
credential_list:
  - {credential_name: team, credential_values: {api_key: os.environ/TEAM_KEY}, credential_info: {description: of the team}}
model_list:
  - {model_name: 'openai/*', litellm_params: {model: 'openai/*', litellm_credential_name: team}, model_info: {access_groups: [beta-models, everyone]}}
  - {model_name: 'anthropic/*', litellm_params: {model: 'anthropic/*', api_key: os.environ/ANTHROPIC_API_KEY}}
  - {model_name: '*', litellm_params: {model: 'openrouter/*', api_key: os.environ/OPENROUTER_API_KEY}}
general_settings: {master_key: os.environ/LITELLM_MASTER_KEY, store_model_in_db: true}
",
    );
    assert_eq!(config.deployments[0].info.access_groups, ["beta-models", "everyone"]);
    let Target::Remote(r) = &config.deployments[0].target else { panic!() };
    assert_eq!(r.api_key.as_ref().unwrap().expose(), "key-of-TEAM_KEY");
    assert_eq!(
        config.notes.iter().map(|n| n.key.as_str()).collect::<Vec<_>>(),
        ["general_settings.store_model_in_db"]
    );
}

#[test]
fn health_checks_of_every_mode() {
    let text: String = ["chat", "completion", "embedding", "rerank", "audio_transcription", "image_generation", "batch", "realtime"]
        .iter()
        .map(|mode| {
            let info = "disable_background_health_check: true, health_check_model: gpt-4o-mini";
            format!("  - {{model_name: {mode}, litellm_params: {{model: openai/x}}, model_info: {{mode: {mode}, {info}}}}}\n")
        })
        .collect();
    let config = read(&format!(
        "model_list:\n{text}general_settings: {{background_health_checks: True, health_check_interval: 300, health_check_details: False}}\n"
    ));
    let names: Vec<&str> = config.deployments.iter().map(|d| d.group.as_str()).collect();
    assert_eq!(
        names,
        ["chat", "completion", "embedding", "rerank", "audio_transcription", "image_generation"]
    );
    assert!(config.deployments.iter().all(|d| d.info.unchecked));
    assert_eq!(config.skipped.len(), 2);
    let noted = |key: &str| config.notes.iter().filter(|n| n.key == key).count();
    assert_eq!(
        (noted("model_info.health_check_model"), noted("general_settings.health_check_details")),
        (8, 1)
    );
    assert!(config.health.enabled);
}

#[test]
fn variables_without_a_value_set_nothing() {
    let config = read(
        "
model_list: [{model_name: m, litellm_params: {model: gpt-4o, api_key: os.environ/OPENAI_API_KEY}, tpm: 20_000, rpm: 3}]
environment_variables:
  REDIS_HOST: localhost
  REDIS_PASSWORD:
  OPENAI_API_KEY: sk-of-the-file
",
    );
    let Target::Remote(r) = &config.deployments[0].target else { panic!() };
    assert_eq!(r.api_key.as_ref().unwrap().expose(), "sk-of-the-file");
    assert_eq!(
        config.notes.iter().map(|n| n.key.as_str()).collect::<Vec<_>>(),
        ["model_list.tpm", "model_list.rpm"]
    );
}

#[test]
fn automatic_routers_are_named() {
    let config = read(
        "model_list:\n- {model_name: a, litellm_params: {model: gpt-4o}}\n- {model_name: m, litellm_params: {model: auto_router/complexity_router, complexity_router_config: {}}}\n",
    );
    assert!(
        config.skipped[0].reason.contains("use a cascade, which chooses a fast or a strong group"),
        "{:?}",
        config.skipped
    );
    assert_eq!(config.notes[1].key, "litellm_params.complexity_router_config");
}

#[test]
fn prefixes_that_select_an_api_are_not_part_of_a_models_name() {
    let config = read(
        "
model_list:
  - {model_name: a, litellm_params: {model: openai/responses/o3-pro, api_key: k}}
  - {model_name: b, litellm_params: {model: azure/o_series/mine, api_key: k, api_base: 'https://h'}}
  - {model_name: c, litellm_params: {model: hosted_vllm/responses/x, api_base: 'http://h/v1'}}
",
    );
    let model = |d: &Deployment| match &d.target {
        Target::Remote(remote) => remote.model.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(config.deployments.iter().map(model).collect::<Vec<_>>(), ["o3-pro", "mine", "responses/x"]);
    // The first also sets the URL for chats.
    let responses = |d: &Deployment| match &d.target {
        Target::Remote(remote) => remote.responses,
        other => panic!("{other:?}"),
    };
    let wanted = [ResponsesUse::Chats, ResponsesUse::None, ResponsesUse::None];
    assert_eq!(config.deployments.iter().map(responses).collect::<Vec<_>>(), wanted);
}

#[test]
fn a_lone_wildcard_is_every_provider_with_a_key() {
    let env = |name: &str| {
        ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GROQ_API_KEY"].contains(&name).then(|| "k".to_string())
    };
    let read = |params: &str| {
        let text = format!("model_list: [{{model_name: '*', litellm_params: {{model: '*'{params}}}}}]");
        Config::parse("config.yaml", &text, &Disk(env)).unwrap_or_else(|e| panic!("{e}"))
    };
    let endpoint = |config: &Config, name: &str| {
        let groups = config.deployments.iter().filter(|d| d.group.matches(name));
        let best = groups.max_by_key(|d| d.group.specificity())?;
        let Target::Remote(r) = &best.target else { panic!() };
        Some(format!("{} {} {}", r.provider.name(), r.api_base, best.group.fill(name, &r.model)?))
    };
    let config = read("");
    for (name, expected) in [
        ("openai/gpt-4o", Some("openai https://api.openai.com/v1 gpt-4o")),
        ("gpt-4o-mini", Some("openai https://api.openai.com/v1 gpt-4o-mini")),
        ("anthropic/claude-x", Some("anthropic https://api.anthropic.com claude-x")),
        ("claude-x", Some("anthropic https://api.anthropic.com claude-x")),
        ("groq/llama-3", Some("openai_compatible https://api.groq.com/openai/v1 llama-3")),
        ("mistral/large", None),
        ("llama-3", None),
    ] {
        assert_eq!(endpoint(&config, name).as_deref(), expected, "{name}");
    }
    // A URL is for one server, whatever the name. A key is OpenAI's, and is sent to no other provider.
    let config = read(", api_base: 'http://h/v1', api_key: sk-own");
    assert_eq!(
        endpoint(&config, "groq/llama-3").as_deref(),
        Some("openai_compatible http://h/v1 groq/llama-3")
    );
    let config = read(", api_key: sk-own");
    assert_eq!(endpoint(&config, "gpt-4o").as_deref(), Some("openai https://api.openai.com/v1 gpt-4o"));
    assert_eq!(endpoint(&config, "groq/llama-3"), None);
    // A name that somebody wrote is theirs alone: no request for it goes to the star's provider or with its key.
    let config = read(
        "}}, {model_name: 'openai/*', litellm_params: {model: 'openai/*', api_base: 'http://h/v1'}}, \
         {model_name: 'claude-*', litellm_params: {model: 'groq/claude-*'",
    );
    assert_eq!(endpoint(&config, "openai/gpt-4o").as_deref(), Some("openai_compatible http://h/v1 gpt-4o"));
    assert_eq!(endpoint(&config, "gpt-4o").as_deref(), Some("openai https://api.openai.com/v1 gpt-4o"));
    for name in ["openai/*", "claude-*"] {
        let of = |d: &&Deployment| d.group.as_str() == name;
        assert_eq!(config.deployments.iter().filter(of).count(), 1, "{name}");
    }
    assert_eq!(config.notes, [], "no note about generated ids");
}

#[test]
fn unsupported_entries_do_not_affect_others() {
    let config = read(
        "
model_list:
  - {model_name: a, litellm_params: {model: gpt-4o}}
  - {model_name: b, litellm_params: {model: bedrock/anthropic.claude-v2, aws_region_name: eu-central-1}}
  - {model_name: c, litellm_params: {model: nobody/knows}}
  - {model_name: d, litellm_params: {model: hosted_vllm/x}}
  - {model_name: e, litellm_params: {model: gpt-4o, mock_timeout: 3}}
  - {model_name: f, litellm_params: {model: mine}}
router_settings: {fallbacks: [{a: [b, f]}]}
",
    );
    let skipped: Vec<&str> = config.skipped.iter().map(|s| s.group.as_str()).collect();
    assert_eq!((config.deployments.len(), &skipped[..]), (1, &["b", "c", "d", "e", "f"][..]));
    for (skipped, reason) in config.skipped.iter().zip([
        "bedrock needs aws_access_key_id",
        "unknown provider 'nobody'",
        "needs an api_base",
        "mock failures are not supported",
        "has no provider",
    ]) {
        assert!(skipped.reason.contains(reason), "{skipped:?}");
    }
}

#[test]
fn ollamas_keep_alive_goes_to_ollama() {
    let config = read(
        "model_list: [{model_name: a, litellm_params: {model: ollama/q, keep_alive: 30m, num_ctx: 4096}}]",
    );
    let extra = &config.deployments[0].target.changes().extra_body;
    assert_eq!(json!(extra), json!({"options": {"num_ctx": 4096}, "keep_alive": "30m"}));
}

#[test]
fn several_processes_share_a_redis() {
    let with = |rest: &str| {
        let text = format!(
            "model_list: [{{model_name: m, litellm_params: {{model: gpt-4o}}}}]\nrouter_settings: {{{rest}}}\n"
        );
        read(&text).router.redis.expect("a server")
    };
    let named = with("redis_host: cache, redis_password: p, redis_db: 2, redis_ssl: true");
    assert_eq!((named.host.as_str(), named.port, named.db, named.tls), ("cache", 6379, 2, true));
    assert_eq!(named.password.expect("a password").expose(), "p");
    let url = with("redis_url: 'redis://:p@cache:7000/1'").url.expect("a URL");
    assert_eq!(url.expose(), "redis://:p@cache:7000/1");
}

#[test]
fn entries_answer_with_a_text_or_stand_for_several_servers() {
    let file = |params: &str| format!("model_list: [{{model_name: m, litellm_params: {{{params}}}}}]\n");
    // Without the provider's key.
    let mock = read(&file("model: anthropic/claude, mock_response: Hello"));
    assert_eq!(mock.deployments[0].info.mock.as_deref(), Some("Hello"));
    let pods = read(&file("model: hosted_vllm/x, api_base: 'http://pods:8000/v1', discover: dns"));
    assert!(pods.deployments[0].info.discovers);
    let tls = file("model: hosted_vllm/x, api_base: 'https://pods:8000/v1', discover: dns");
    let error = Config::parse("config.yaml", &tls, &Disk(|_: &str| None)).unwrap_err().to_string();
    assert!(error.contains("discover: dns needs an api_base like http://NAME"), "{error}");
}
