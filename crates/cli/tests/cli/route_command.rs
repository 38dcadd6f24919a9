//! `octet serve --config` and `octet route`: errors are reported before the server starts, and decisions are explained.

use crate::common::Place;

const FILE: &str = "\
model_list:
- {model_name: fast, litellm_params: {model: hosted_vllm/small, api_base: 'http://127.0.0.1:1/v1'}}
- {model_name: strong, litellm_params: {model: hosted_vllm/large, api_base: 'http://127.0.0.1:2/v1'}}
router_settings: {model_group_alias: {gpt-4o: auto}}
cascades:
- {model_name: auto, fast: fast, strong: strong, rules: [{tools: true}, {header: {x-team: red}}], confidence: {mean_logprob: -0.5}}
";

#[test]
fn serve_says_what_is_wrong_with_a_file() {
    let place = Place::new();
    place.write("octet.yaml", "model_list:\n- {model_name: a, litellm_params: {model: olama/x}}\n");
    place
        .octet(&["serve", "--config", "octet.yaml", "--port", "0"])
        .fails(1, &["octet.yaml:2:43: ", "ollama"]);
    place
        .octet(&["serve", "--config", "none.yaml", "--port", "0"])
        .fails(1, &["none.yaml", "cannot be read"]);
    place.octet(&["serve", "m.gguf", "--config", "octet.yaml"]).fails(2, &["--config"]);
    let local = "model_list:\n- {model_name: a, litellm_params: {model: octet/./missing.gguf}}\n";
    place.write("octet.yaml", local);
    place
        .octet(&["serve", "--config", "octet.yaml", "--port", "0"])
        .fails(1, &["missing.gguf", "no such file"]);
}

#[test]
fn explain_shows_decisions() {
    let place = Place::new();
    place.write("octet.yaml", FILE);
    let tool = r#"{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}"#;
    let with_tools = format!(
        r#"{{"model": "gpt-4o", "messages": [{{"role": "user", "content": "Hi"}}], "tools": [{tool}]}}"#
    );
    place.write("tools.json", &with_tools);
    place.write(
        "plain.json",
        r#"{"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}"#,
    );
    place.write("none.json", r#"{"model": "other", "messages": [{"role": "user", "content": "Hi"}]}"#);
    let said = place.octet(&["route", "explain", "tools.json", "--config", "octet.yaml"]).ok().stdout;
    assert!(said.contains("resolves to auto (by alias)") && said.contains("sends it to strong"), "{said}");
    let said = place.octet(&["route", "explain", "plain.json", "--config", "octet.yaml"]).ok().stdout;
    assert!(said.contains(" of fast: ") && said.ends_with("would answer\n"), "{said}");
    let red =
        ["route", "explain", "plain.json", "--config", "octet.yaml", "--header", "X-Team: red", "--json"];
    let said: serde_json::Value = serde_json::from_str(&place.octet(&red).ok().stdout).unwrap();
    assert!(said["steps"].to_string().contains("strong"), "{said}");
    place
        .octet(&["route", "explain", "none.json", "--config", "octet.yaml"])
        .fails(1, &["no route has the name 'other'; there are: fast, strong, auto, gpt-4o"]);
    place
        .octet(&["route", "calibrate", "none.json", "--config", "octet.yaml", "--name", "x"])
        .fails(1, &["no cascade 'x'", "auto"]);
}

#[test]
fn explain_says_why_no_deployment_is_available() {
    let place = Place::new();
    place.write("octet.yaml", &format!("{FILE}general_settings: {{}}\n"));
    let explain = |model: &str, more: &[&str]| {
        place.write(
            "r.json",
            &format!(r#"{{"model": "{model}", "messages": [{{"role": "user", "content": "Hi"}}]}}"#),
        );
        place.octet(&[&["route", "explain", "r.json", "--config", "octet.yaml"], more].concat())
    };
    explain("fsat", &[]).fails(1, &["no route has the name 'fsat'; near it are: fast"]);
    let ran = explain("fsat", &["--json"]).fails(1, &["no route has the name 'fsat'"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap()["asked"], "fsat");
    let ran = explain("\\u001b[2Jx\\ny\\u202e", &[]).fails(1, &["'\\u{1b}[2Jx\\ny\\u{202e}'"]);
    assert!(!(ran.stdout + &ran.stderr).contains(['\u{1b}', '\u{202e}']));
    // For a known name, why no deployment is left.
    place.write(
        "octet.yaml",
        "model_list:\n- {model_name: a, litellm_params: {model: ollama/x}}\n- {model_name: cloud, litellm_params: {model: groq/x}}\n",
    );
    let ran = explain("cloud", &[]).fails(1, &["no deployment would answer 'cloud'"]);
    assert!(ran.stdout.contains("the environment variable GROQ_API_KEY is not set"), "{}", ran.stdout);
    place.write("prompts.jsonl", "{\"prompt\": \"Hi\"}\n");
    place
        .octet(&["route", "calibrate", "prompts.jsonl", "--config", "octet.yaml", "--name", "a"])
        .fails(1, &["the file has no cascade", "docs/routing.md"]);
}
