//! The cache of responses and callbacks: what the environment says of them in LiteLLM's variables.

use std::collections::HashMap;
use std::time::Duration;

use octet_config::*;

fn with(text: &str, env: &[(&str, &str)]) -> Config {
    let env: HashMap<String, String> = env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let text = format!(
        "model_list: [{{model_name: m, litellm_params: {{model: hosted_vllm/x, api_base: 'http://h/v1'}}}}]\n{text}"
    );
    let source = Disk(move |name: &str| env.get(name).cloned());
    Config::parse("octet.yaml", &text, &source).unwrap_or_else(|e| panic!("{e}"))
}

fn notes(config: &Config) -> String {
    config.notes.iter().map(ToString::to_string).collect()
}

#[test]
fn the_cache_is_configured_by_file_or_environment() {
    let made = |params: &str, env: &[(&str, &str)]| {
        let config = with(&format!("litellm_settings: {{cache: true, cache_params: {params}}}"), env);
        let notes = notes(&config);
        (config.cache.map(|c| (c.store, c.ttl)), notes)
    };
    let memory = CacheStore::Memory { bytes_max: 64 << 20 };
    assert_eq!(made("{ttl: 5}", &[]).0, Some((memory.clone(), Some(Duration::from_secs(5)))));
    assert_eq!(made("{type: local, host: h}", &[("REDIS_HOST", "r")]).0, Some((memory, None)));
    let env = [("REDIS_HOST", "r"), ("REDIS_PASSWORD", "p")];
    let (Some((CacheStore::Redis(redis), _)), _) = made("{}", &env) else {
        panic!("REDIS_HOST names a server")
    };
    assert_eq!((redis.host.as_str(), redis.port, redis.password.is_some()), ("r", 6379, true));
    for (params, said) in [
        ("{type: redis}", "redis needs host or url"),
        ("{type: redis, host: os.environ/NOWHERE}", "NOWHERE is not set"),
        ("{type: s3}", "not cached in 's3'"),
    ] {
        let (cache, notes) = made(params, &[]);
        assert_eq!(cache, None, "{params}");
        assert!(notes.contains(said), "{params}: {notes}");
    }
}

#[test]
fn receivers_are_found_by_the_variables_of_litellm() {
    let made = |list: &str, env: &[(&str, &str)]| {
        let config = with(&format!("litellm_settings: {{{list}}}"), env);
        let notes = notes(&config);
        (config.callbacks, notes)
    };
    let otel = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a%20b,key=c=d"),
    ];
    let (all, _) = made("callbacks: [otel], success_callback: [otel]", &otel);
    let [one] = &all[..] else { panic!("{all:?}") };
    assert_eq!((one.url.as_str(), one.on_success, one.on_failure), ("http://c:4318/v1/traces", true, true));
    let headers: Vec<_> = one.headers.iter().map(|(k, v)| (k.as_str(), v.expose())).collect();
    assert_eq!(headers, [("x-team", "a b"), ("key", "c=d")]);
    let keys =
        [("LANGFUSE_PUBLIC_KEY", "pk"), ("LANGFUSE_SECRET_KEY", "sk"), ("LANGFUSE_HOST", "http://lf:3000")];
    let (all, _) = made("success_callback: [langfuse]", &keys);
    assert_eq!(all[0].url, "http://lf:3000/api/public/otel/v1/traces");
    let login = all[0].login.as_ref().map(|(user, key)| (user.as_str(), key.expose()));
    assert_eq!((login, all[0].on_success, all[0].on_failure), (Some(("pk", "sk")), true, false));
    let (all, _) = made("failure_callback: [generic_api]", &[("GENERIC_LOGGER_ENDPOINT", "http://w/x")]);
    assert_eq!((all[0].on_success, &all[0].form), (false, &CallbackForm::Json(JsonForm::Array)));
    for (list, env, said) in [
        ("callbacks: [otel]", &[][..], "OTEL_EXPORTER_OTLP_ENDPOINT is not set"),
        (
            "callbacks: [otel]",
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318")],
            "not a URL like http://localhost:4318",
        ),
        (
            "callbacks: [otel]",
            &[("OTEL_EXPORTER", "otlp_grpc"), ("OTEL_ENDPOINT", "http://c:4317")],
            "gRPC is not supported",
        ),
        ("callbacks: [langfuse]", &[("LANGFUSE_PUBLIC_KEY", "pk")], "LANGFUSE_SECRET_KEY is not set"),
        ("callbacks: [datadog]", &[], "nothing is sent to 'datadog'"),
    ] {
        let (all, notes) = made(list, env);
        assert!(all.is_empty() && notes.contains(said), "{list}: {all:?} {notes}");
    }
}

#[test]
fn prices_come_from_the_list_where_the_provider_itself_is_asked() {
    let text = "model_list:
- {model_name: a, litellm_params: {model: openai/gpt-4o}}
- {model_name: b, litellm_params: {model: openai/gpt-4o, input_cost_per_token: 0.5}}
- {model_name: c, litellm_params: {model: openai/gpt-4o, api_base: 'http://mine/v1', api_key: x}}
- {model_name: d, litellm_params: {model: openai/nobody-knows-it}}
- {model_name: 'openai/*', litellm_params: {model: 'openai/*'}}
- {model_name: e, litellm_params: {model: azure/my-own-name, api_base: 'https://x.openai.azure.com', api_key: x}, model_info: {base_model: gpt-4-turbo}}
- {model_name: f, litellm_params: {model: openai/responses/o3}}
- {model_name: g, litellm_params: {model: azure/o_series/o3-pro, api_base: 'https://x.openai.azure.com', api_key: x}}
";
    let config = Config::parse(
        "octet.yaml",
        text,
        &Disk(|name: &str| (name == "OPENAI_API_KEY").then(|| "sk".into())),
    );
    let config = config.unwrap_or_else(|e| panic!("{e}"));
    let all: Vec<_> = config
        .deployments
        .iter()
        .map(|d| (d.info.input_cost_per_token, d.info.priced_as.as_deref()))
        .collect();
    let [a, b, c, d, star, azure, responses, series] = all[..] else { panic!("{all:?}") };
    assert_eq!(a, (Some(2.5e-6), Some("openai/gpt-4o")));
    assert_eq!((b, c), ((Some(0.5), None), (None, None)), "a price of its own; a server of one's own");
    assert_eq!((d.0, star), (None, (None, Some("openai/*"))));
    assert_eq!((azure.0.is_some(), azure.1), (true, Some("azure/gpt-4-turbo")));
    // A prefix that selects the API for LiteLLM's proxy is not part of the name.
    assert_eq!(responses, (Some(2e-6), Some("openai/o3")));
    assert_eq!(series, (Some(20e-6), Some("azure/o3-pro")));
}

#[test]
fn hooks_are_read_and_a_wrong_one_is_an_error() {
    let file = |hooks: &str| {
        let text = format!(
            "model_list: [{{model_name: m, litellm_params: {{model: ollama/x, api_base: 'http://h'}}}}]\nhooks: {hooks}\n"
        );
        octet_config::Config::parse("octet.yaml", &text, &octet_config::Disk(|_: &str| None))
    };
    let config =
        file("[{url: 'http://guard/check'}, {url: 'https://other', fail: open, timeout: 2}]").unwrap();
    let [first, second] = &config.hooks[..] else { panic!("{:?}", config.hooks) };
    assert_eq!((first.url.expose(), first.fails_open, first.timeout), ("http://guard/check", false, None));
    assert_eq!((second.fails_open, second.timeout), (true, Some(std::time::Duration::from_secs(2))));
    for wrong in ["[{fail: open}]", "[{url: guard}]", "[{url: 'http://h', fial: open}]"] {
        assert!(file(wrong).is_err(), "{wrong}");
    }
}
