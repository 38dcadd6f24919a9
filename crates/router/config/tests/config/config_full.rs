//! Every key that does something, read off one file; the same file against the schema.

use std::path::Path;
use std::time::Duration;

use octet_config::*;
use serde_json::json;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn full() -> Config {
    let env = |name: &str| match name {
        "MASTER_KEY" => Some("sk-master".to_string()),
        "ANTHROPIC_API_KEY" => Some("sk-ant".to_string()),
        _ => None,
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/full.yaml");
    Config::load(&path, &Disk(env)).unwrap_or_else(|e| panic!("{e}"))
}

fn group<'a>(config: &'a Config, name: &str) -> &'a Deployment {
    config.deployments.iter().find(|d| d.group.as_str() == name).unwrap_or_else(|| panic!("no {name}"))
}

fn remote(d: &Deployment) -> &Remote {
    let Target::Remote(r) = &d.target else { panic!("{:?}", d.target) };
    r
}

#[test]
fn all_deployment_settings_are_read() {
    let config = full();
    let d = group(&config, "default");
    let r = remote(d);
    assert_eq!(
        (d.id.as_str(), r.provider, r.model.as_str()),
        ("a3b", Provider::OpenAiCompatible, "qwen3.6-35b-a3b")
    );
    assert_eq!(r.api_base, "http://127.0.0.1:8007/v1");
    assert_eq!(r.api_key.as_ref().unwrap().expose(), "sk-local-1", "environment_variables are looked at");
    assert_eq!((r.organization.as_deref(), r.api_version.as_deref()), (Some("org-1"), Some("2")));
    assert_eq!(r.extra_headers[0].0, "X-Team");
    assert_eq!(r.extra_headers[0].1.expose(), "sk-local-1");
    assert_eq!(json!(r.changes.extra_body), json!({"provider": {"sort": "price"}}));
    assert_eq!(json!(r.changes.chat_template_kwargs), json!({"enable_thinking": false, "preserve": true}));
    assert_eq!(r.changes.edits.drop, ["logit_bias", "tools[*].strict"]);
    assert_eq!(r.changes.edits.rename, [("max_completion_tokens".to_string(), "max_tokens".to_string())]);
    assert_eq!(json!(r.changes.edits.set), json!({"cache_prompt": true}));
    assert!(!r.changes.drop_params, "the entry beats litellm_settings");
    assert_eq!(d.tags, ["free"]);
    assert_eq!((d.weight, d.order, d.rpm, d.tpm), (Some(9.0), Some(1), Some(600), Some(100_000)));
    assert_eq!((d.max_parallel_requests, d.num_retries), (Some(8), Some(1)));
    let times = (d.timeout, d.stream_timeout, d.cooldown_time);
    assert_eq!(times, (Some(seconds(300)), Some(seconds(30)), Some(seconds(7))));
    assert_eq!(d.shadow, Some(Shadow { group: "cloud".into(), share: 0.25 }));
    assert_eq!(
        json!(d.params),
        json!({
            "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0, "max_tokens": 4096, "max_completion_tokens": 4096,
            "presence_penalty": 1.5, "frequency_penalty": 0, "repetition_penalty": 1.05, "seed": 7, "stop": ["END"], "n": 1,
            "logit_bias": {"50256": -100}, "logprobs": true, "top_logprobs": 5, "reasoning_effort": "low",
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "response_format": {"type": "json_object"}, "tools": [],
            "tool_choice": "auto", "parallel_tool_calls": false, "stream_options": {"include_usage": true},
            "service_tier": "flex", "user": "me", "metadata": {"a": "b"}, "verbosity": "low", "dimensions": 256,
            "encoding_format": "float",
        })
    );
    let i = &d.info;
    assert_eq!((i.mode, i.base_model.as_deref()), (Mode::Chat, Some("qwen")));
    assert_eq!((i.max_input_tokens, i.max_output_tokens), (Some(262_144), Some(8192)));
    assert_eq!(
        (i.input_cost_per_token, i.cached_input_cost_per_token, i.output_cost_per_token),
        (Some(0.000003), Some(0.0000003), Some(0.000015)),
        "model_info beats litellm_params"
    );
    assert_eq!((i.cache_write_cost_per_token, i.unchecked, r.continues), (Some(0.0000004), true, false));
    let supports = (i.supports_vision, i.supports_function_calling, i.supports_reasoning);
    assert_eq!(supports, (Some(false), Some(true), Some(true)));
    assert_eq!((&i.access_groups[..], json!(i.other)), (&["team-a".to_string()][..], json!({"owner": "me"})));
}

#[test]
fn other_kinds_of_targets() {
    let config = full();
    let second = config.deployments.iter().filter(|d| d.group.as_str() == "default").nth(1).unwrap();
    let r = remote(second);
    assert_eq!((r.model.as_str(), r.api_base.as_str()), ("my-model", "http://10.0.0.5:8000/v1"));
    assert_eq!(r.api_key.as_ref().unwrap().expose(), "sk-local-1", "credential_list");
    assert_eq!((r.organization.as_deref(), r.api_version.as_deref()), (Some("org"), Some("1")));
    assert!(r.changes.drop_params, "litellm_settings");
    assert_eq!(second.max_parallel_requests, Some(100), "default_max_parallel_requests");

    let cloud = remote(group(&config, "cloud"));
    assert_eq!((cloud.provider, cloud.api_base.as_str()), (Provider::Anthropic, "https://api.anthropic.com"));
    let included = remote(group(&config, "included"));
    assert_eq!(
        (included.provider, json!(included.changes.extra_body)),
        (Provider::Ollama, json!({"options": {"num_ctx": 8192}}))
    );

    let Target::Local(local) = &group(&config, "here").target else { panic!() };
    let e = &local.engine;
    assert_eq!(local.model, "hf:unsloth/Qwen3.6-35B-A3B-GGUF:Q4_K_M");
    assert_eq!(
        (e.ctx_size, e.ubatch_size, e.batch_size, e.threads),
        (Some(32768), Some(512), Some(2048), Some(8))
    );
    assert_eq!((e.kv_cache_dtype.as_deref(), e.isa.as_deref()), (Some("f16"), Some("avx2")));
    assert_eq!((e.cache_type_k.as_deref(), e.cache_type_v.as_deref()), (Some("f32"), Some("q8_0")));
    assert_eq!((e.no_pin, e.exact, e.no_memory_check), (Some(true), Some(false), Some(true)));
    assert_eq!(e.no_packed, Some(true));
    assert_eq!((e.parallel, e.max_queue, e.kv_tokens), (Some(4), Some(64), Some(131_072)));
    assert_eq!((e.cache_ram, e.cache_disk_size), (Some(2 << 30), Some(20 << 30)));
    assert_eq!(e.cache_disk, Some(local.base.join("kv")));
    assert_eq!(e.chat_template, Some(local.base.join("chat.jinja")));
    assert_eq!(e.keep_alive, Some(KeepAlive::For(seconds(600))));
    assert_eq!((e.speculative.as_deref(), e.draft_max), (Some("draft=small.gguf"), Some(4)));
    assert_eq!(
        (e.reasoning_format.as_deref(), e.tool_call_parser.as_deref()),
        (Some("deepseek"), Some("openai"))
    );

    let wild = group(&config, "openai/*");
    assert_eq!(wild.group.fill("openai/gpt-4o", &remote(wild).model).as_deref(), Some("gpt-4o"));
}

#[test]
fn all_router_settings_are_read() {
    let r = full().router;
    assert_eq!(r.strategy, Strategy::LeastBusy);
    assert_eq!((r.latency_ttl, r.latency_buffer), (seconds(60), 0.5));
    let alias = |name: &str, group: &str, hidden| Alias { name: name.into(), group: group.into(), hidden };
    assert_eq!(
        r.aliases,
        [alias("gpt-4o", "default", false), alias("old", "cloud", true), alias("code", "coder", false)]
    );
    let said = |list: &[Fallback]| {
        list.iter().map(|f| format!("{}:{}", f.group, f.to.join(","))).collect::<Vec<_>>()
    };
    assert_eq!(
        said(&r.fallbacks),
        ["default:cloud,here", "*:cloud"],
        "router_settings beats litellm_settings"
    );
    assert_eq!(said(&r.context_window_fallbacks), ["default:cloud"]);
    assert_eq!(said(&r.content_policy_fallbacks), ["cloud:default"]);
    assert_eq!(r.default_fallbacks, ["here"]);
    assert_eq!((r.max_fallbacks, r.num_retries, r.retry_after), (3, 4, seconds(1)));
    assert_eq!(
        r.retry_policy,
        ErrorCounts {
            bad_request: Some(0),
            authentication: Some(1),
            timeout: Some(2),
            rate_limit: Some(3),
            content_policy: Some(4),
            internal_server: Some(5),
            not_found: Some(6),
        }
    );
    assert_eq!(
        r.group_retry_policy,
        [("cloud".into(), ErrorCounts { rate_limit: Some(9), ..ErrorCounts::default() })]
    );
    assert_eq!((r.allowed_fails, r.allowed_fails_policy.bad_request), (Some(3), Some(10)));
    let p = &r.allowed_fails_policy;
    assert_eq!((p.internal_server, p.not_found), (Some(15), Some(16)));
    assert_eq!((r.cooldown_time, r.disable_cooldowns), (seconds(30), false));
    assert_eq!((r.timeout, r.stream_timeout), (seconds(120), Some(seconds(20))));
    assert!(r.enable_pre_call_checks);
    let by = vec![SessionKey::Header("x-session-id".into()), SessionKey::User, SessionKey::ApiKey];
    assert_eq!(r.tags, Some(TagFilter { match_any: false }));
    assert_eq!(r.sticky, Some(Sticky { by, ttl: seconds(7200) }));
}

#[test]
fn server_keys_and_health() {
    let c = full();
    assert_eq!(c.server.master_key.as_ref().unwrap().expose(), "sk-master");
    assert_eq!((c.server.host, c.server.port), (Some("0.0.0.0".parse().unwrap()), Some(4000)));
    assert_eq!(
        c.server.api_keys.iter().map(|k| k.expose()).collect::<Vec<_>>(),
        ["sk-a", "sk-b", "sk-c", "sk-d"]
    );
    assert_eq!((c.server.timeout, c.server.max_body), (Some(seconds(3600)), Some(16 << 20)));
    assert_eq!((c.server.max_connections, c.server.load_queue), (Some(512), Some(16)));
    assert_eq!(c.server.allow_image_urls, Some(true));
    assert_eq!((c.server.memory_limit, c.server.max_parallel_requests), (Some(24 << 30), Some(200)));
    assert_eq!(c.server.cors_origins, ["http://localhost:3000"]);
    assert_eq!(c.server.allowed_hosts, ["octet.example.com"]);
    assert_eq!(c.health, HealthChecks { enabled: true, interval: seconds(60), timeout: seconds(5) });
    assert!(c.keys.database.unwrap().ends_with("tests/data/keys.sqlite"));
    assert_eq!(
        (c.keys.max_budget, c.keys.budget_duration, c.keys.usage_days),
        (Some(100.0), Some(seconds(2_592_000)), 30)
    );
    let d = c.keys.defaults;
    assert_eq!(d.duration, Some(seconds(7_776_000)));
    let limits = LimitDefaults {
        max_budget: Some(5.0),
        budget_duration: Some(seconds(86400)),
        models: vec!["default".into()],
        rpm_limit: Some(60),
        tpm_limit: Some(10_000),
        max_parallel_requests: Some(2),
    };
    assert_eq!(d.limits, limits);
    let user = UserDefaults {
        limits,
        teams: vec!["blue".into()],
        role: Some("internal_user".into()),
        internal_max_budget: Some(5.0),
        internal_budget_duration: Some(seconds(2_592_000)),
    };
    assert_eq!(c.keys.user_defaults, user);
    let team = c.keys.team_defaults;
    assert_eq!((team.max_budget, team.budget_duration), (Some(50.0), Some(seconds(2_592_000))));
    assert_eq!((team.rpm_limit, team.tpm_limit), (Some(600), Some(100_000)));
}

#[test]
fn cascades_are_read() {
    let c = full();
    let cascade = &c.cascades[0];
    assert_eq!(
        (cascade.name.as_str(), cascade.fast.as_str(), cascade.strong.as_str()),
        ("auto", "default", "cloud")
    );
    use Condition::*;
    let [long, second] = &cascade.rules[..] else { panic!() };
    assert_eq!((long.name.as_str(), long.to, long.check), ("long", Side::Strong, false));
    assert_eq!(long.when, [MinTokens(4000), MaxTokens(100_000), MinMessages(2), MaxMessages(90)]);
    assert_eq!((second.name.as_str(), second.to, second.check), ("rule 2", Side::Fast, true));
    let pattern = |p: &str| Pattern::new(p).unwrap();
    let header = HeaderMatch { name: "x-tier".into(), value: Some(pattern("^gold$")) };
    assert_eq!(
        second.when,
        [
            Tools(true),
            Code(false),
            Images(false),
            Header(header),
            System(pattern("(?i)review")),
            User(pattern("prove"))
        ]
    );
    let sure = Confidence {
        mean_logprob: Some(-0.5),
        margin: Some(1.5),
        skip_thoughts: false,
        signal: Some(Threshold { signal: "margin.q25".parse().unwrap(), threshold: 0.75 }),
        probe: Some(false),
        tool_calls: false,
        self_check: Some(0.3),
        ..Confidence::new(24)
    };
    assert_eq!(cascade.confidence, Some(sure));
    let prerouter = cascade.prerouter.as_ref().unwrap();
    assert_eq!((&prerouter.weights[..], prerouter.bias), (&[1.0, -2.5, 0.0][..], 0.5));
    assert_eq!((prerouter.threshold, prerouter.embed.as_deref()), (0.4, Some("default")));
}

#[test]
fn processes_are_read() {
    let c = full();
    let p = &c.processes[0];
    let words = [
        "/opt/llama-server",
        "--port",
        "${PORT}",
        "-m",
        "/models/my coder.gguf",
        "-c",
        "8192",
        "--alias",
        "coder",
    ];
    assert_eq!(p.cmd, words);
    assert_eq!(p.cmd_stop.as_deref().unwrap(), ["kill", "${PID}"]);
    assert_eq!((p.proxy.as_str(), p.port), ("http://127.0.0.1:${PORT}", PortChoice::Chosen));
    assert_eq!((p.env[1].0.as_str(), p.env[1].1.expose()), ("KEY", "sk-local-1"));
    assert_eq!((p.check_endpoint.as_deref(), p.ttl), (Some("/v1/models"), Some(seconds(300))));
    assert_eq!((p.unload_timeout, p.concurrency_limit, p.unlisted), (seconds(20), Some(3), true));
    assert_eq!(p.filters.strip_params, ["temperature", "top_p"]);
    assert_eq!(
        (json!(p.filters.set_params), json!(p.metadata)),
        (json!({"seed": 1}), json!({"size": "big"}))
    );
    assert_eq!((p.name.as_deref(), p.description.as_deref()), (Some("Coder"), Some("writes code")));
    let small = &c.processes[1];
    assert_eq!((small.port, small.check_endpoint.as_deref(), small.ttl), (PortChoice::Fixed, None, None));
    let s = &c.process_settings;
    assert_eq!(
        (s.health_check_timeout, s.start_port, &s.preload[..]),
        (seconds(200), 9000, &["small".to_string()][..])
    );
    let members = vec!["coder".to_string(), "small".to_string()];
    let both = ProcessGroup { id: "both".into(), swap: false, exclusive: false, persistent: true, members };
    assert_eq!(s.groups, [both]);
}

#[test]
fn processes_are_targets_by_their_names() {
    let c = full();
    // An entry of its own, and the one under the process' own name; the process' filters count for both.
    for name in ["slow", "coder"] {
        let d = group(&c, name);
        let Target::Process(t) = &d.target else { panic!() };
        assert_eq!(
            (t.process.as_str(), t.model.as_str(), d.max_parallel_requests),
            ("coder", "qwen-coder", Some(3))
        );
        assert_eq!(t.changes.edits.drop, ["temperature", "top_p"]);
        assert_eq!(json!(t.changes.edits.set), json!({"seed": 1}));
    }
}

#[test]
fn the_files_are_known_and_nothing_is_noted() {
    let c = full();
    assert_eq!(c.files.len(), 2);
    assert!(c.files[1].ends_with("tests/data/extra.yaml"));
    assert_eq!(c.skipped, []);
    let noted: Vec<String> = c.notes.iter().map(ToString::to_string).collect();
    assert_eq!(noted, Vec::<String>::new());
}

#[test]
fn secrets_are_not_printed() {
    let c = full();
    let printed = format!("{c:?}{}", c.tree());
    for secret in ["sk-local-1", "sk-ant", "sk-master", "sk-a", "sk-b"] {
        assert!(
            !printed.contains(&format!("\"{secret}\"")) && !printed.contains(&format!(" {secret}")),
            "{secret}"
        );
    }
    assert!(
        !printed.contains("sk-local-1") && !printed.contains("sk-master"),
        "not as part of anything else"
    );
}

#[test]
fn the_schema_accepts_the_same_file() {
    let schema = octet_config::schema::json();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let yaml =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/full.yaml")).unwrap();
    let value: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
    let wrong: Vec<String> =
        validator.iter_errors(&value).map(|e| format!("{} at {}", e, e.instance_path())).collect();
    assert_eq!(wrong, Vec::<String>::new());
    let refused = json!({"model_list": [{"model_name": "a", "litellm_params": {"modle": "x"}}]});
    assert!(!validator.is_valid(&refused));
    assert!(!validator.is_valid(&json!({"general_settings": {"custom_auth": "auth.check"}})));
    assert!(validator.is_valid(&json!({"general_settings": {"database_url": "x"}, "router_settings": null})));
}

#[test]
fn the_cache_and_callbacks() {
    let c = full();
    let cache = c.cache.expect("litellm_settings.cache is true");
    let CacheStore::Redis(server) = &cache.store else { panic!("{:?}", cache.store) };
    assert_eq!((server.host.as_str(), server.port, server.tls, server.db), ("cache.local", 6380, true, 2));
    assert_eq!(server.username.as_deref(), Some("octet"));
    assert_eq!(server.password.as_ref().map(|p| p.expose()), Some("secret"));
    assert_eq!((cache.ttl, cache.namespace.as_deref()), (Some(seconds(90)), Some("octet")));
    let calls = CachedCalls { text: false, responses: false, messages: false, ..CachedCalls::default() };
    assert_eq!((cache.calls, cache.opt_in, cache.messages_max, cache.shared), (calls, true, Some(8), true));

    let [audit] = &c.callbacks[..] else { panic!("{:?}", c.callbacks) };
    assert_eq!((audit.name.as_str(), audit.url.as_str()), ("audit", "https://logs.example.com/llm"));
    assert_eq!(audit.form, CallbackForm::Json(JsonForm::Lines));
    assert_eq!((audit.on_success, audit.on_failure), (false, true));
    assert_eq!(audit.headers[0].0, "authorization");
    assert_eq!(audit.headers[0].1.expose(), "Bearer x");
    assert_eq!(c.prices, PriceList::none());
}
