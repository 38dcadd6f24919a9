//! What public files of LiteLLM's users have, and LiteLLM's proxy starts with: the kinds that a collection of a hundred of them showed.

use octet_config::*;
use serde_json::{Value, json};

fn read(text: &str) -> Config {
    let env = |name: &str| match name {
        "NOT_AN_ADDRESS" => Some("10.0.0.1".to_string()),
        _ => name.ends_with("_KEY").then(|| format!("key-of-{name}")),
    };
    Config::parse("config.yaml", text, &Disk(env)).unwrap_or_else(|e| panic!("{e}"))
}

fn entry(params: &str, info: &str) -> Config {
    read(&format!("model_list: [{{model_name: m, litellm_params: {params}, model_info: {info}}}]"))
}

fn notes(config: &Config) -> Vec<String> {
    config.notes.iter().map(|n| format!("{}: {}", n.key, n.text)).collect()
}

fn far(config: &Config) -> &Remote {
    let Some(Target::Remote(far)) = config.deployments.first().map(|d| &d.target) else {
        panic!("a server: {:?}", notes(config))
    };
    far
}

#[test]
fn empty_keys_and_addresses_are_none() {
    let text = "{model: bedrock/anthropic.claude-3-haiku-20240307-v1:0, aws_region_name: us-west-2, aws_access_key_id: '', aws_secret_access_key: '', api_base: ''}";
    let text = format!("model_list: [{{model_name: m, litellm_params: {text}}}]");
    let env = |name: &str| {
        matches!(name, "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY").then(|| format!("of-{name}"))
    };
    let config = Config::parse("config.yaml", &text, &Disk(env)).unwrap_or_else(|e| panic!("{e}"));
    let Auth::Aws(aws) = &far(&config).auth else { panic!("{:?}", far(&config).auth) };
    assert_eq!(aws.access_key_id.expose(), "of-AWS_ACCESS_KEY_ID", "the variable's");
    let said = notes(&config);
    assert_eq!(said.iter().filter(|n| n.ends_with("is empty: ignored")).count(), 3, "{said:#?}");
}

#[test]
fn both_names_of_an_answers_limit_may_be_given() {
    let config = entry("{model: openai/x}", "{max_tokens: 9, max_input_tokens: 100, max_output_tokens: 8}");
    assert_eq!(config.deployments[0].info.max_output_tokens, Some(8));
    assert!(config.notes.is_empty(), "{:?}", notes(&config));
    assert_eq!(entry("{model: openai/x}", "{max_tokens: 9}").deployments[0].info.max_output_tokens, Some(9));
}

#[test]
fn words_that_are_no_modes_leave_no_model_out() {
    for (mode, expected, said) in [
        (
            "embeddings",
            Mode::Embedding,
            Some("'embeddings' is not one of LiteLLM's modes: read as 'embedding'"),
        ),
        ("tts", Mode::Passed("audio_speech"), Some("read as 'audio_speech'")),
        ("image", Mode::Chat, Some("'image' is not one of LiteLLM's modes: ignored")),
        ("responses", Mode::Chat, None),
    ] {
        let config = entry("{model: openai/x}", &format!("{{mode: {mode}}}"));
        assert_eq!(config.deployments[0].info.mode, expected, "{mode}");
        match said {
            Some(said) => assert!(notes(&config)[0].contains(said), "{:?}", notes(&config)),
            None => assert!(config.notes.is_empty(), "{:?}", notes(&config)),
        }
    }
    let config = read(
        "model_list:\n- {model_name: m, litellm_params: {model: gpt-4o}}\n- {model_name: v, litellm_params: {model: openai/sora-2}, model_info: {mode: video_generation}}\n",
    );
    assert_eq!(config.skipped[0].reason, "models of mode 'video_generation' are not supported");
}

#[test]
fn parameters_that_litellm_sends_are_sent() {
    let params = "repeat_penalty: 1.1, num_predict: 200, include_reasoning: true, modalities: [text]";
    let body = |model: &str| {
        let config = entry(&format!("{{model: {model}, {params}}}"), "{}");
        let (merged, defaults) =
            (json!(far(&config).changes.extra_body), json!(config.deployments[0].params));
        (json!([merged, defaults]), notes(&config))
    };
    let (ollama, said) = body("ollama/qwen3");
    assert_eq!(ollama, json!([{"options": {"num_predict": 200, "repeat_penalty": 1.1}}, {}]));
    assert_eq!(said.len(), 2, "what is no option is named: {said:#?}");
    let (compatible, said) = body("openrouter/x/y");
    let all =
        json!({"repeat_penalty": 1.1, "num_predict": 200, "include_reasoning": true, "modalities": ["text"]});
    assert_eq!((compatible, said), (json!([{}, all]), Vec::new()));
    let (claude, said) = body("anthropic/claude-sonnet-4-5");
    assert_eq!((claude, said.len()), (json!([{}, {}]), 4), "{said:#?}");
    let local = read("model_list: [{model_name: m, litellm_params: {model: octet/q, repeat_penalty: 1.1}}]");
    assert_eq!(notes(&local), ["litellm_params.repeat_penalty: ignored: it is for remote models"]);
}

#[test]
fn facts_about_a_model_in_the_wrong_place_are_told_theirs() {
    let config = entry("{model: openai/x, supports_reasoning: true, supports_images: true}", "{}");
    let place = "unknown key, ignored: it belongs under model_info";
    let expected: Vec<String> = ["supports_reasoning", "supports_images"]
        .map(|name| format!("litellm_params.{name}: {place}"))
        .into();
    assert_eq!(notes(&config), expected);
}

#[test]
fn what_is_no_address_is_told_apart() {
    let text = "
model_list:
- {model_name: a, litellm_params: {model: openai/x}}
- {model_name: b, litellm_params: {model: 'ollama/*', api_base: '${OLLAMA_BASE_URL}'}}
- {model_name: c, litellm_params: {model: ollama/x, api_base: os.environ/NOT_AN_ADDRESS}}
";
    let said = notes(&read(text));
    assert!(said[0].ends_with("a variable is written os.environ/NAME, not ${NAME}"), "{said:#?}");
    assert!(said[1].ends_with("set NOT_AN_ADDRESS to one like http://127.0.0.1:8000/v1"), "{said:#?}");
}

#[test]
fn what_is_true_of_many_entries_is_said_once() {
    let entry = |name: &str, model: &str| {
        format!("- {{model_name: {name}, litellm_params: {{model: {model}, supports_vision: true}}}}\n")
    };
    let cloudflare: String = ["b", "c", "b"].iter().map(|n| entry(n, "'cloudflare/@cf/x'")).collect();
    let config = read(&format!("model_list:\n{}{cloudflare}", entry("a", "openai/x")));
    let said = grouped(&config.notes);
    assert_eq!(
        said,
        [
            "config.yaml:2:53: litellm_params.supports_vision: unknown key, ignored: it belongs under model_info (also lines 3, 4 and 5)",
            "config.yaml:3:3: model_list: 'b' and 'c' are left out: the environment variable CLOUDFLARE_ACCOUNT_ID is not set (also lines 4 and 5)",
        ]
    );
    let text = "general_settings: {ui: true, store_model_in_db: true, disable_auth: true}\nmodel_list: [{model_name: m, litellm_params: {model: openai/x}}]\n";
    let said = grouped(&read(text).notes);
    assert_eq!(said.len(), 2, "{said:#?}");
    assert_eq!(
        said[0],
        "config.yaml:1:20: general_settings.ui and disable_auth: unknown key, ignored: docs/router-keys.md lists the keys (also line 1)"
    );
    let single: Value = json!(grouped(&config.notes[..1]));
    assert_eq!(single, json!([config.notes[0].to_string()]));
}
