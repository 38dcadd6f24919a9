//! What is said about files that are wrong: where, what, and what to do. Nothing is dropped without a word.

use octet_config::*;
use proptest::prelude::*;

fn read(text: &str) -> Result<Config, Problems> {
    Config::parse("octet.yaml", text, &Disk(|name: &str| (name == "SET").then(|| "value".to_string())))
}

const MODEL: &str = "model_list:\n- {model_name: a, litellm_params: {model: ollama/a}}\n";

/// The text with a model in front, its problems as lines; places count from the text's own first line.
#[track_caller]
fn refused(text: &str, expected: &[&str]) {
    let problems = read(&format!("{MODEL}{text}")).expect_err(text);
    let said: Vec<String> = problems
        .0
        .iter()
        .map(|p| format!("{}:{}: {}", p.span.line.saturating_sub(2), p.span.column, p.text))
        .collect();
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.contains(expected), "expected '{expected}' in '{said}'");
    }
}

/// The text with a model in front is taken, with these notes.
#[track_caller]
fn noted(text: &str, expected: &[&str]) {
    let config = read(&format!("{MODEL}{text}")).unwrap_or_else(|e| panic!("{text}: {e}"));
    let said: Vec<String> = config
        .notes
        .iter()
        .map(|n| format!("{}:{}: {}: {}", n.span.line - 2, n.span.column, n.key, n.text))
        .collect();
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.contains(expected), "expected '{expected}' in '{said}'");
    }
}

/// One entry's litellm_params are taken, with a note.
#[track_caller]
fn noted_params(params: &str, expected: &str) {
    let text = format!("{MODEL}- {{model_name: b, litellm_params: {params}}}\n");
    let config = read(&text).unwrap_or_else(|e| panic!("{params}: {e}"));
    let said: Vec<String> = config.notes.iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|n| n.contains(expected)), "expected '{expected}' in {said:?}");
}

/// The same for one entry's litellm_params.
#[track_caller]
fn refused_params(params: &str, expected: &str) {
    let problems =
        read(&format!("model_list:\n- {{model_name: a, litellm_params: {params}}}\n")).expect_err(params);
    let said = problems.to_string();
    assert!(said.contains(expected), "expected '{expected}' in '{said}'");
}

#[test]
fn unknown_keys_have_a_place_and_a_neighbour() {
    noted(
        "router_setings: {}\n",
        &["1:1: router_setings: unknown key, ignored: did you mean 'router_settings'?"],
    );
    noted(
        "router_settings:\n  num_retires: 3\n  cooldown_tim: 1\n",
        &[
            "2:3: router_settings.num_retires: unknown key, ignored: did you mean 'num_retries'?",
            "3:3: router_settings.cooldown_tim: unknown key, ignored: did you mean 'cooldown_time'?",
        ],
    );
    noted("zzz: 1\n", &["1:1: zzz: unknown key, ignored: docs/router-keys.md lists the keys"]);
    noted(
        "litellm_settings: {max_parallel_requests: 5}\n",
        &["litellm_settings.max_parallel_requests: unknown key, ignored: it belongs under general_settings"],
    );
    noted_params("{model: ollama/a, tempreature: 1}", "did you mean 'temperature'?");
    noted_params("{model: ollama/a, xtc_depth: 1}", "belongs under 'extra_body'");
    noted_params("{model: ollama/a, rpm_limit: 1}", "the limits of an entry are rpm and tpm");
}

#[test]
fn a_misspelt_protection_is_an_error() {
    let near = |text: &str, section: &str, name: &str, meant: &str| {
        refused(text, &[&format!("{section} has no key '{name}': did you mean '{meant}'?")]);
    };
    near("general_settings: {masterkey: k}\n", "general_settings", "masterkey", "master_key");
    near("general_settings: {masterKey: k}\n", "general_settings", "masterKey", "master_key");
    near("general_settings: {allowed_ip: [k]}\n", "general_settings", "allowed_ip", "allowed_ips");
    near("general_setings: {master_key: k}\n", "the file", "general_setings", "general_settings");
    near("litellm_settings: {max_budgets: 5}\n", "litellm_settings", "max_budgets", "max_budget");
    near("server: {api_keys: [k]}\n", "server", "api_keys", "api_key");
    near("guardrail: [{guardrail_name: a}]\n", "the file", "guardrail", "guardrails");
    refused_params("{model: ollama/a, rmp: 1}", "litellm_params has no key 'rmp': did you mean 'rpm'?");
    let text = "model_list:\n- {model_name: a, litellm_params: {model: ollama/a}, model_info: {access_group: [x]}}\n";
    assert!(read(text).unwrap_err().to_string().contains("did you mean 'access_groups'?"));
}

#[test]
fn unsupported_protections_prevent_the_start_unless_excused() {
    for (text, path) in [
        ("guardrails: [{guardrail_name: a}]\n", "guardrails"),
        ("general_settings: {allowed_ips: [10.0.0.1]}\n", "general_settings.allowed_ips"),
        ("general_settings: {custom_auth: a.b}\n", "general_settings.custom_auth"),
        ("general_settings: {enable_jwt_auth: true}\n", "general_settings.enable_jwt_auth"),
        ("litellm_settings: {callbacks: [hooks.handler]}\n", "litellm_settings.callbacks"),
        ("litellm_settings: {callbacks: [presidio]}\n", "litellm_settings.callbacks"),
        ("litellm_settings: {max_end_user_budget: 5}\n", "litellm_settings.max_end_user_budget"),
        ("litellm_settings: {max_budget: 5}\n", "litellm_settings.max_budget"),
    ] {
        refused(text, &[&format!("to start without it: --ignore-unsupported {path})")]);
        let text = format!("{MODEL}{text}");
        for name in [path, path.rsplit('.').next().unwrap(), "*"] {
            let keys = [name.to_string()];
            let source = Ignoring { source: Disk(|_: &str| None), keys: &keys };
            let config = Config::parse("octet.yaml", &text, &source).expect(name);
            let said: Vec<String> = config.notes.iter().map(ToString::to_string).collect();
            assert!(matches!(&said[..], [one] if one.contains("NOT ENFORCED")), "{said:?}");
        }
        let keys = ["other".to_string()];
        let source = Ignoring { source: Disk(|_: &str| None), keys: &keys };
        let other = Config::parse("octet.yaml", &text, &source).unwrap_err();
        assert!(other.to_string().contains("is not supported"), "{other}");
    }
    // Protection that is switched off is an error.
    noted("guardrails: []\n", &[]);
    noted("general_settings: {enable_jwt_auth: false, allowed_ips: }\n", &[]);
    let keys = ["guardrails".to_string()];
    let source = Ignoring { source: Disk(|_: &str| None), keys: &keys };
    let config = Config::parse("octet.yaml", MODEL, &source).unwrap();
    assert!(config.notes[0].text.contains("no unsupported key 'guardrails'"), "{:?}", config.notes);
}

#[test]
fn the_last_of_duplicate_keys_is_used() {
    let text = "router_settings: {num_retries: 1}\nrouter_settings: {num_retries: 7, num_retries: 5}\n";
    let config = read(&format!("{MODEL}{text}")).unwrap();
    assert_eq!(config.router.num_retries, 5);
    let said: Vec<String> = config.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "octet.yaml:3:1: router_settings: duplicate key; this one is ignored, line 4 is used",
            "octet.yaml:4:19: num_retries: duplicate key; this one is ignored, line 4 is used",
        ]
    );
}

#[test]
fn types_are_checked() {
    refused(
        "router_settings: {num_retries: many}\n",
        &["1:32: router_settings.num_retries: expected a whole number, found a text"],
    );
    refused("router_settings: {num_retries: -1}\n", &["-1 is not a whole number of at least 0"]);
    refused("router_settings: {num_retries: 1.5}\n", &["1.5 is not a whole number"]);
    refused("router_settings: {num_retries: 99999999999}\n", &["is not a whole number of at least 0"]);
    refused("router_settings: {timeout: 0}\n", &["router_settings.timeout is 0"]);
    refused("router_settings: {cooldown_time: -3}\n", &["expected a time"]);
    for section in [
        "{max_budget: 1e10}",
        "{default_key_generate_params: {max_budget: 2e19}}",
        "{upperbound_key_generate_params: {max_budget: 2e19}}",
    ] {
        let text = format!("litellm_settings: {section}\ngeneral_settings: {{master_key: sk-1}}\n");
        refused(&text, &["it must be from 0 to 1000000000"]);
    }
    refused("router_settings: {disable_cooldowns: perhaps}\n", &["expected true or false"]);
    refused("router_settings: [1]\n", &["router_settings must be a mapping of keys to values, not a list"]);
    refused("router_settings: {routing_strategy: least_busy}\n", &["did you mean 'least-busy'?"]);
    refused("router_settings: {fallbacks: {a: [a]}}\n", &["router_settings.fallbacks: expected a list"]);
    refused("router_settings: {fallbacks: [{a: [a]}]}\n", &["'a' falls back to itself"]);
    refused("router_settings: {fallbacks: [{a: [{model: b}]}]}\n", &["must be the name of a group"]);
    refused_params("{model: 5}", "expected a text (put it in quotes)");
    refused_params("{model: ollama/a, weight: -1}", "weight is -1; it must be from 0");
    noted_params(
        "{model: ollama/a, num_retries: 1, max_retries: 2}",
        "ignored: it is another name of 'num_retries'",
    );
    refused_params("{model: ollama/a, api_base: 'http://h', base_url: 'http://i'}", "keep one of them");
    // A variable holds text, which may be a number.
    assert_eq!(
        read(&format!("{MODEL}router_settings: {{num_retries: '7'}}\n")).unwrap().router.num_retries,
        7
    );
}

/// As PyYAML has it, which LiteLLM's users write for.
#[test]
fn one_letter_booleans_are_texts() {
    let text = "model_list:\n- {model_name: y, litellm_params: {model: ollama/é, n: 3, drop_params: yes}}\n- {model_name: &b n, litellm_params: {model: ollama/b, drop_params: off}}\nrouter_settings: {model_group_alias: {Y: *b, N: y}}\n";
    let config = read(text).unwrap();
    let names: Vec<&str> = config.deployments.iter().map(|d| d.group.as_str()).collect();
    assert_eq!(names, ["y", "n"]);
    let dropped: Vec<bool> = config.deployments.iter().map(|d| d.target.changes().drop_params).collect();
    assert_eq!(dropped, [true, false]);
    assert_eq!(config.deployments[0].params["n"], 3);
    let aliases: Vec<(&str, &str)> =
        config.router.aliases.iter().map(|a| (a.name.as_str(), a.group.as_str())).collect();
    assert_eq!(aliases, [("Y", "n"), ("N", "y")]);
}

#[test]
fn undefined_names_are_reported() {
    refused(
        "router_settings: {model_group_alias: {gpt: ab}}\n",
        &["1:39: the alias 'gpt': there is no model_name 'ab'"],
    );
    refused("router_settings: {model_group_alias: {x: y, y: a}}\n", &["which is an alias too"]);
    refused(
        "cascades: [{model_name: c, fast: a, strong: b, rules: [{tools: true}]}]\n",
        &["strong: there is no model_name 'b'"],
    );
    refused(
        "cascades: [{model_name: a, fast: a, strong: a, rules: [{tools: true}]}]\n",
        &["is already in use"],
    );
    refused_params("{model: ollama/a, silent_model: a}", "would copy its requests to itself");
    refused_params("{model: ollama/a, silent_model: b}", "there is no model_name 'b'");
    refused_params("{model: process/x}", "there is no process 'x'");
    refused_params("{model: ollama/a, litellm_credential_name: x}", "credential_list has no entry 'x'");
    // A wildcard's names are known.
    let wild = "model_list:\n- {model_name: 'o/*', litellm_params: {model: 'ollama/*'}}\nrouter_settings: {default_fallbacks: [o/x]}\n";
    read(wild).unwrap();
    assert!(
        read("router_settings: {}\n").unwrap_err().to_string().contains("there is no model: add model_list")
    );
    assert!(read("").unwrap_err().to_string().contains("there is no model"));
}

#[test]
fn targets_are_checked() {
    refused_params(
        "{model: qwen}",
        "'qwen' has no provider: write it before the name, like openai/qwen; octet/NAME",
    );
    refused_params("{model: '*'}", "set model_name: '*' too");
    refused_params("{model: olama/qwen}", "did you mean 'ollama'?");
    refused_params("{model: bedrock/claude}", "needs aws_region_name");
    refused_params("{model: replicate/x}", "the API of the provider 'replicate' is not supported");
    refused_params("{model: hosted_vllm/q}", "needs an api_base");
    refused_params("{model: hosted_vllm/q, api_base: 'localhost:8000'}", "api_base starts with neither");
    refused_params("{model: hosted_vllm/q, api_base: /v1}", "api_base is not a valid URL");
    refused_params("{model: hosted_vllm/q, api_base: 'http://10.0.0.256/v1'}", "api_base is not a valid URL");
    refused_params(
        "{model: hosted_vllm/q, api_base: 'http://u:hunter2@h/v1'}",
        "contains a password, which belongs in api_key",
    );
    refused_params("{model: hosted_vllm/q, api_base: 'http://h/v1?x=1'}", "contains a '?' or '#'");
    noted_params("{model: ollama/q, ctx_size: 5}", "is for local models");
    noted_params("{model: octet/q, api_base: 'http://h'}", "is for remote models");
    refused_params("{model: octet/q, kv_cache_dtype: q4_0}", "it must be one of f16, f32, q8_0");
    refused_params(
        "{model: octet/q, speculative: eagle}",
        "it must be one of auto, off, mtp, lookup, draft=MODEL",
    );
    refused_params("{model: octet/q, speculative: draft=}", "speculative is 'draft='");
    refused_params("{model: octet/q, draft_max: 17}", "draft_max is 17; it must be from 0 to 16");
    refused_params("{model: octet/q, ctx_size: 1, num_ctx: 2}", "keep one of them");
    refused_params("{model: ollama/q, mock_timeout: 3}", "mock failures are not supported");
    noted_params("{model: ollama/q, aws_region_name: x}", "is for models at Bedrock");
    refused_params("{model: ollama/q, extra_headers: {'a b': c}}", "'a b' is not a valid header name");
    refused_params(
        "{model: ollama/q, extra_headers: {a: \"x\\r\\nEvil: 1\"}}",
        "a line break or another control character",
    );
    refused_params("{model: ollama/q, silent_share: 0.5}", "silent_share needs a silent_model");
    refused("model_list: []\n", &["there is no model"]);
}

#[test]
fn python_is_refused_and_services_are_named() {
    refused(
        "general_settings: {custom_auth: my.auth}\n",
        &["1:20: general_settings.custom_auth is not supported: Python"],
    );
    refused("litellm_settings: {callbacks: [hooks.handler]}\n", &["'hooks.handler' is a Python plugin"]);
    refused("general_settings: {allowed_routes: [/x]}\n", &["must not be ignored"]);
    let text = format!(
        "{MODEL}litellm_settings: {{callbacks: [prometheus, langfuse], cache: true}}\ngeneral_settings:\n  database_url: x\n"
    );
    let notes: Vec<String> = read(&text).unwrap().notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "octet.yaml:3:31: litellm_settings.callbacks: nothing is sent to 'langfuse': LANGFUSE_PUBLIC_KEY is not set",
            "octet.yaml:5:17: general_settings.database_url: not used: only postgresql:// is supported",
        ]
    );
}

#[test]
fn mistakes_do_not_open_the_server() {
    refused(
        "general_settings: {master_key: os.environ/UNSET}\n",
        &["the environment variable UNSET is not set"],
    );
    refused("general_settings: {master_key: ''}\n", &["the key is empty"]);
    refused("general_settings: {master_key: 1234}\n", &["a text (put it in quotes)"]);
    refused("server: {api_key: [' ']}\n", &["the key is empty"]);
    refused("keys: {database: k.sqlite}\n", &["needs general_settings.master_key"]);
    refused("server: {api_key: 'file:/does/not/exist'}\n", &["'/does/not/exist': "]);
}

#[test]
fn an_entry_without_its_key_is_left_out_by_name() {
    let text = format!(
        "{MODEL}- {{model_name: b, litellm_params: {{model: groq/x}}}}\n- {{model_name: c, litellm_params: {{model: openai/x, api_key: os.environ/NOPE}}}}\n"
    );
    let config = read(&text).unwrap();
    assert_eq!(config.deployments.len(), 1);
    let reasons: Vec<String> = config.skipped.iter().map(|s| format!("{}: {}", s.group, s.reason)).collect();
    assert_eq!(
        reasons,
        [
            "b: the environment variable GROQ_API_KEY is not set",
            "c: the environment variable NOPE is not set"
        ]
    );
    assert_eq!(config.notes.len(), 2);
    let all = "model_list:\n- {model_name: b, litellm_params: {model: groq/x}}\n";
    assert!(
        read(all)
            .unwrap_err()
            .to_string()
            .contains("no model is left: 'b' is left out: the environment variable")
    );
    // A provider's key goes to the provider alone.
    let elsewhere =
        "model_list:\n- {model_name: b, litellm_params: {model: openai/x, api_base: http://h/v1}}\n";
    let Target::Remote(r) = &read(elsewhere).unwrap().deployments[0].target else { panic!() };
    assert_eq!((r.provider, &r.api_key), (Provider::OpenAiCompatible, &None));
}

#[test]
fn cascades_and_processes_are_checked() {
    let cascade = |rest: &str| format!("cascades: [{{model_name: c, fast: a, strong: a{rest}}}]\n");
    refused(&cascade(""), &["needs rules, confidence or a prerouter"]);
    refused(&cascade(", rules: [{to: fast}]"), &["a rule needs a condition"]);
    refused(&cascade(", rules: [{system: '('}]"), &["is not a regular expression"]);
    refused(&cascade(", rules: [{system: '(a{1000}){1000}'}]"), &["is not a regular expression"]);
    refused(&cascade(", rules: [{tools: true, check: true}]"), &["check is for rules with to: fast"]);
    for nothing in ["", "tool_calls: false", "tool_calls: false, window: 9"] {
        refused(&cascade(&format!(", confidence: {{{nothing}}}")), &["confidence needs a threshold"]);
    }
    refused(&cascade(", confidence: {margin: 1, window: 9999}"), &["at most 1024 tokens"]);
    refused(
        &cascade(", confidence: {signal: top2, threshold: 0.5}"),
        &["is 'top2'; it must be top1, margin or entropy"],
    );
    refused(&cascade(", confidence: {signal: top1}"), &["belong together"]);
    refused(&cascade(", confidence: {threshold: 1, margin: 1}"), &["belong together"]);
    refused(&cascade(", confidence: {self_check: 1.5}"), &["self_check"]);
    refused(&cascade(", prerouter: {}"), &["prerouter needs a file"]);
    refused(&cascade(", prerouter: {file: none.json}"), &["prerouter.file: 'none.json': "]);
    refused("cascades: [{model_name: c, fast: a, rules: [{tools: true}]}]\n", &["a cascade needs strong"]);
    let process = |body: &str| format!("processes: {{models: {{p: {{{body}}}}}}}\n");
    refused(&process(""), &["the process 'p' needs a cmd"]);
    refused(&process("cmd: 'a \"b'"), &["has an unclosed quote"]);
    refused(&process("cmd: 'a ${X}'"), &["there is no macro ${X}"]);
    refused(&process("cmd: 'a ${env.X}'"), &["the environment variable X is not set"]);
    refused(&process("cmd: 'a ${m}', macros: {m: '${m}'}"), &["one contains itself"]);
    refused(&process("cmd: a, proxy: nowhere"), &["proxy must be a URL"]);
    refused(&process("cmd: a, env: [X]"), &["an entry must be NAME=value"]);
    refused(
        "processes: {models: {p: {cmd: a}}, groups: {g: {members: [q]}}}\n",
        &["there is no process 'q'"],
    );
    refused("processes: {models: {p: {cmd: a}}, apiKeys: [x]}\n", &["server.api_key"]);
    // Macros that double themselves end somewhere.
    let bomb: String =
        (1..16).map(|i| format!("m{i}: '${{m{0}}}${{m{0}}}${{m{0}}}${{m{0}}}', ", i - 1)).collect();
    refused(
        &process(&format!("cmd: 'a ${{m15}}', macros: {{m0: xxxxxxxx, {bomb}}}")),
        &["exceeds 65536 bytes"],
    );
}

#[test]
fn yaml_is_bounded() {
    refused("a: [1\n", &["invalid YAML"]);
    let deep = format!("router_settings: {}{}\n", "[".repeat(100), "]".repeat(100));
    refused(&deep, &["invalid YAML"]);
    let mut bomb = String::from("x0: &x0 [a, a, a, a, a, a, a, a, a]\n");
    for i in 1..9 {
        bomb += &format!("x{i}: &x{i} [{}]\n", vec![format!("*x{}", i - 1); 9].join(", "));
    }
    assert!(read(&bomb).is_err());
    // Aliases of aliases nest deeper than the text does.
    let nest = |inner: &str| format!("{}{inner}{}", "[".repeat(28), "]".repeat(28));
    let mut deep = format!("y0: &y0 {}\n", nest("1"));
    for i in 1..60 {
        deep += &format!("y{i}: &y{i} {}\n", nest(&format!("*y{}", i - 1)));
    }
    assert!(read(&deep).is_err());
    let long = format!("# {}\n", "x".repeat(5 << 20));
    assert!(read(&long).unwrap_err().to_string().contains("the maximum is"));
    // Anchors and merges work as far as a person uses them.
    let text = "model_list:\n- model_name: a\n  litellm_params: &p {model: ollama/a, rpm: 5}\n- model_name: b\n  litellm_params: {<<: *p, weight: 2}\n";
    let config = read(text).unwrap();
    assert_eq!((config.deployments[1].rpm, config.deployments[1].weight), (Some(5), Some(2.0)));
}

#[test]
fn errors_are_short_and_hide_what_may_be_secret() {
    let secret = "hunter2".repeat(100);
    let said =
        read(&format!("{MODEL}general_settings: {{master_key: [{secret}]}}\nserver: {{host: {secret}}}\n"))
            .unwrap_err()
            .to_string();
    assert!(!said.contains("hunter2"), "{said}");
    let many: String = (0..100).map(|i| format!("- {{model_name: zz{i}}}\n")).collect();
    let said = read(&format!("{MODEL}{many}")).unwrap_err().to_string();
    assert_eq!(said.lines().count(), 21);
    assert!(said.ends_with("... and 80 more"), "{said}");
}

#[test]
fn included_files_are_joined() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write(
        "main.yaml",
        &format!("include: [sub/extra.yaml]\n{MODEL}router_settings: {{num_retries: 1, max_fallbacks: 2}}\n"),
    );
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    write("sub/extra.yaml", "include: more.yaml\nrouter_settings: {num_retries: 9}\n");
    write("sub/more.yaml", "model_list:\n- {model_name: b, litellm_params: {model: ollama/b}}\n");
    let main = dir.path().join("main.yaml");
    let config = Config::load(&main, &Disk(|_: &str| None)).unwrap();
    assert_eq!(config.deployments.len(), 2);
    assert_eq!((config.router.num_retries, config.router.max_fallbacks), (9, 2));
    assert_eq!(config.files.len(), 3);
    assert!(config.notes[0].to_string().contains("included files take precedence"), "{:?}", config.notes);
    // An error in an included file names that file.
    write("sub/more.yaml", "router_settings: {num_retries: many}\n");
    let said = Config::load(&main, &Disk(|_: &str| None)).unwrap_err().to_string();
    assert!(said.contains("more.yaml:1:32: "), "{said}");
    write("sub/more.yaml", "include: [more.yaml]\n");
    let said = Config::load(&main, &Disk(|_: &str| None)).unwrap_err().to_string();
    assert!(said.contains("was already included"), "{said}");
    let missing = Config::load(&dir.path().join("no.yaml"), &Disk(|_: &str| None)).unwrap_err();
    assert!(missing.to_string().contains("the file cannot be read"));
}

#[test]
fn invalid_header_values_are_refused_with_their_place() {
    let of = |text: &str| {
        let env = |name: &str| (name == "GROQ_API_KEY").then(|| "sk-1\r\nx-evil: 1".to_string());
        let said = Config::parse("octet.yaml", text, &Disk(env)).expect_err(text).to_string();
        assert!(!said.contains("sk-1") && !said.contains('\r'), "{said}");
        said
    };
    let why = "contains a line break or another control character, which is not allowed in a header";
    let params = |params: &str| of(&format!("model_list:\n- {{model_name: a, litellm_params: {params}}}\n"));
    for (text, at, what) in [
        ("{model: groq/x, api_key: \"sk-1\\r\\nb\"}", "octet.yaml:2:60: ", "the key"),
        ("{model: groq/x, api_key: \"sk-1\\0b\"}", "octet.yaml:2:60: ", "the key"),
        ("{model: groq/x}", "octet.yaml:2:35: ", "the environment variable GROQ_API_KEY"),
        (
            "{model: openai/x, api_key: k, organization: \"o\\n\"}",
            "octet.yaml:2:79: ",
            "litellm_params.organization",
        ),
        (
            "{model: anthropic/x, api_key: k, api_version: \"2\\n\"}",
            "octet.yaml:2:81: ",
            "litellm_params.api_version",
        ),
        ("{model: ollama/x, extra_headers: {x-a: \"sk-1\\nb\"}}", "octet.yaml:2:74: ", "the value of 'x-a'"),
    ] {
        let said = params(text);
        assert!(said.starts_with(&format!("{at}{what} {why}")), "{said}");
    }
    let said = of(&format!("{MODEL}general_settings: {{master_key: \"sk-1\\nb\"}}\n"));
    assert!(said.contains("octet.yaml:3:32: the key contains a line break"), "{said}");
    let said = of(&format!("{MODEL}server: {{api_key: [ok, \"sk-1\\nb\"]}}\n"));
    assert!(said.contains("octet.yaml:3:24: the key contains a line break"), "{said}");
    let credential = "credential_list: [{credential_name: c, credential_values: {api_key: \"sk-1\\nb\"}}]\n";
    assert!(of(&format!("{MODEL}{credential}")).contains("octet.yaml:3:69: the key contains a line break"));
    for name in
        ["host", "Content-Length", "connection", "Transfer-Encoding", "te", "upgrade", "accept-encoding"]
    {
        let said = params(&format!("{{model: ollama/x, extra_headers: {{{name}: a}}}}"));
        assert!(
            said.contains(&format!("octet.yaml:2:69: extra_headers: '{name}' is created for each request")),
            "{said}"
        );
    }
}

#[test]
fn names_are_escaped_for_the_terminal() {
    let text = "model_list:\n- {model_name: \"a\\e[2Jb\\nc\\u202Ed\", litellm_params: {model: ollama/x, num_ctx: 5}, \"model_nam\\ne\": 1}\n";
    let said = read(text).unwrap_err().to_string();
    assert!(said.contains("has no key 'model_nam\\ne'") && !said.contains("model_nam\ne"), "{said}");
    let config = read(&text.replace(", \"model_nam\\ne\": 1", "")).unwrap();
    let tree = config.tree();
    assert!(tree.starts_with("a\\u{1b}[2Jb\\nc\\u{202e}d\n"), "{tree}");
    assert!(!tree.contains('\u{1b}') && !tree.contains('\u{202e}'));
}

#[test]
fn near_names_are_found() {
    let known = ["default", "cloud", "coder", "coder-fast", "gpt-4o"];
    assert_eq!(near("codr", known), ["coder", "coder-fast"]);
    assert_eq!(near("zzz", known), [""; 0]);
    assert_eq!(near(&"x".repeat(1000), known), [""; 0]);
}

proptest! {
    /// Whatever is in a file: an answer, and no panic.
    #[test]
    fn any_text_is_an_answer(text in ".{0,400}") {
        let _ = read(&text);
    }

    /// The same of what looks like a configuration.
    #[test]
    fn any_value_anywhere_is_an_answer(
        key in "(model|weight|timeout|fallbacks|cmd|rules|ttl|api_base|include|extra_body|macros|header)",
        value in "([a-z0-9./:*{}\\[\\], '\"$-]{0,30}|-?[0-9]{1,25}|[0-9.e+-]{1,12})",
        section in "(router_settings|litellm_settings|general_settings|server|keys|processes|environment_variables)",
    ) {
        let _ = read(&format!("{MODEL}{section}: {{{key}: {value}}}\n"));
        let _ = read(&format!("model_list:\n- {{model_name: a, litellm_params: {{model: ollama/a, {key}: {value}}}}}\n"));
        let _ = read(&format!("processes: {{models: {{p: {{cmd: 'a ${{PORT}}', {key}: {value}}}}}}}\ncascades: [{{{key}: {value}}}]\n"));
    }
}

#[test]
fn duplicate_fallbacks_are_reported() {
    let text = format!(
        "{MODEL}- {{model_name: z, litellm_params: {{model: groq/x, api_key: k}}}}\nrouter_settings: {{fallbacks: [{{z: [a]}}, {{z: [a]}}]}}\n"
    );
    let notes: Vec<String> = read(&text).unwrap().notes.iter().map(ToString::to_string).collect();
    assert!(
        matches!(&notes[..], [one] if one.ends_with("fallbacks: 'z' is listed twice; the first entry is used")),
        "{notes:?}"
    );
}

/// LiteLLM starts with all of these; the request that meets one fails there.
#[test]
fn what_litellm_starts_with_is_noted() {
    let text = "\
model_list:
- {model_name: a, litellm_params: {model: openai/x, api_key: '', api_base: 'http://qwen3.6:8000/v1'}}
- {model_name: b, litellm_params: {model: openai/x, api_key: k, api_base: 'http://vllm:8000/v1'}}
- {model_name: c, litellm_params: {model: openai/x, api_key: k, api_base: 'vllm:8000/v1'}}
router_settings:
  model_group_alias: {x: [a, b]}
  fallbacks: [{a: [nosuch, b]}, {b: [nosuch]}]
  default_fallbacks: [nosuch]
  context_window_fallbacks: [{a: 4096}]
";
    let config = read(text).unwrap();
    let notes: Vec<String> = config.notes.iter().map(|n| format!("{}: {}", n.key, n.text)).collect();
    for expected in [
        "litellm_params.api_key: is empty",
        "the alias 'x' has a list",
        "there is no model_name 'nosuch'",
        "'a' has a number instead of groups",
        "'c' is left out: api_base starts with neither",
    ] {
        assert!(notes.iter().any(|n| n.contains(expected)), "{expected}: {notes:#?}");
    }
    let router = &config.router;
    assert_eq!(router.aliases[0].group, "a");
    assert_eq!((router.fallbacks.len(), router.fallbacks[0].to.as_slice()), (1, &["b".to_string()][..]));
    assert!(router.default_fallbacks.is_empty() && router.context_window_fallbacks.is_empty());
    let Target::Remote(far) = &config.deployments[0].target else { panic!("a server") };
    assert_eq!((far.api_base.as_str(), &far.api_key), ("http://qwen3.6:8000/v1", &None));
}
