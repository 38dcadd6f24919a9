//! `octet config check`, `import` and `schema`.

use crate::common::Place;
use serde_json::Value;

#[test]
fn check_shows_what_names_route_to() {
    let place = Place::new();
    place.write("octet.yaml", "model_list:\n- {model_name: a, litellm_params: {model: openai/x, api_key: os.environ/A_KEY}}\ngeneral_settings: {database_url: x}\n");
    let ran = place.octet_with(&["config", "check", "octet.yaml"], "", &[("A_KEY", "sk-hidden")]).ok();
    assert!(ran.stdout.starts_with("a\n└─ openai x at https://api.openai.com/v1\n"), "{}", ran.stdout);
    assert!(ran.stderr.contains("note: octet.yaml:3:34: general_settings.database_url: "), "{}", ran.stderr);
    assert!(!ran.stdout.contains("sk-hidden") && !ran.stderr.contains("sk-hidden"));
    place
        .octet(&["config", "check", "octet.yaml"])
        .fails(1, &["octet.yaml", "the environment variable A_KEY is not set"]);
}

#[test]
fn check_says_what_is_wrong_and_where() {
    let place = Place::new();
    place.write("octet.yaml", "model_list:\n- {model_name: a, litellm_params: {model: olama/x}}\nrouter_settings: {default_max_parallel_request: 1}\n");
    let wrong = [
        "octet.yaml:2:43: ",
        "did you mean 'ollama'?",
        "octet.yaml:3:19: ",
        "did you mean 'default_max_parallel_requests'?",
    ];
    place.octet(&["config", "check", "octet.yaml"]).fails(1, &wrong);
    place.write("guarded.yaml", "model_list:\n- {model_name: a, litellm_params: {model: ollama/x}}\nguardrails: [{guardrail_name: g}]\n");
    place.octet(&["config", "check", "guarded.yaml"]).fails(1, &["--ignore-unsupported guardrails"]);
    let ran = place.octet(&["config", "check", "guarded.yaml", "--ignore-unsupported", "guardrails"]).ok();
    assert!(ran.stderr.contains("NOT ENFORCED"), "{}", ran.stderr);
    place.octet(&["config", "check", "none.yaml"]).fails(1, &["none.yaml", "cannot be read"]);
}

#[test]
fn check_refuses_what_a_start_refuses() {
    let place = Place::new();
    let serve = ["serve", "--config", "octet.yaml", "--port", "0"];
    for (params, why) in [
        ("{model: groq/x, api_key: \"sk-hidden\\r\\nb\"}", "is not allowed in a header"),
        ("{model: groq/x, api_key: file:/dev/zero}", "it is a device, not a regular file"),
        ("{model: ollama/x, extra_headers: {Host: a}}", "'Host' is created for each request"),
        (
            "{model: ollama/x, extra_headers: {content-length: 5}}",
            "'content-length' is created for each request",
        ),
        ("{model: hosted_vllm/x, api_base: 'http://a{b/v1'}", "is not a valid URL"),
        ("{model: openai/, custom_llm_provider: openai, api_key: k}", "has no name"),
    ] {
        place.write("octet.yaml", &format!("model_list:\n- {{model_name: a, litellm_params: {params}}}\n"));
        for args in [&["config", "check", "octet.yaml"][..], &serve] {
            let ran = place.octet(args).fails(1, &["octet.yaml:2:", why]);
            assert!(!ran.stderr.contains("sk-hidden"), "{}", ran.stderr);
        }
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let place = Place::new();
    assert!(std::process::Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    let model = "model_list:\n- {model_name: a, litellm_params: {model: ollama/x}}\n";
    for more in
        ["include: [pipe]", "general_settings: {master_key: 'file:pipe'}", "server: {api_key_file: pipe}"]
    {
        place.write("octet.yaml", &format!("{model}{more}\n"));
        place
            .octet(&["config", "check", "octet.yaml"])
            .fails(1, &["octet.yaml:3:", "'pipe'", "it is a pipe, not a regular file"]);
    }
    place.octet(&["config", "check", "pipe"]).fails(1, &["it is a pipe"]);
}

#[test]
fn names_cannot_control_a_terminal() {
    let place = Place::new();
    let name = "\"a\\e]0;x\\nb\\u202E\"";
    place.write(
        "octet.yaml",
        &format!("model_list:\n- {{model_name: {name}, litellm_params: {{model: ollama/x}}}}\n- {{model_name: {name}, litellm_params: {{model: ollama/x, silent_model: {name}}}}}\n"),
    );
    let ran = place.octet(&["config", "check", "octet.yaml"]);
    assert!(
        !ran.stderr.contains('\u{1b}') && ran.stderr.contains("a\\u{1b}]0;x\\nb\\u{202e}"),
        "{}",
        ran.stderr
    );
    place.write(
        "octet.yaml",
        &format!("model_list:\n- {{model_name: {name}, litellm_params: {{model: ollama/x}}}}\n"),
    );
    let tree = place.octet(&["config", "check", "octet.yaml"]).ok().stdout;
    assert!(tree.starts_with("a\\u{1b}]0;x\\nb\\u{202e}\n└─ "), "{tree}");
}

#[test]
fn imports_can_be_checked() {
    let place = Place::new();
    place.write("Modelfile", "FROM ./model.gguf\nPARAMETER num_ctx 4096\nSYSTEM Be brief.\n");
    let ran = place.octet(&["config", "import", "Modelfile", "--name", "mine"]).ok();
    assert!(ran.stderr.contains("line 3: SYSTEM was left out"), "{}", ran.stderr);
    place.write("octet.yaml", &ran.stdout);
    let tree = place.octet(&["config", "check", "octet.yaml"]).ok().stdout;
    assert!(tree.starts_with("mine\n└─ ./model.gguf in this process\n"), "{tree}");
    place.write("swap.yaml", "models: {q: {cmd: 'server --port ${PORT}'}}\n");
    let ran = place.octet(&["config", "import", "swap.yaml"]).ok();
    assert!(ran.stdout.contains("processes:\n  models: {q:"), "{}", ran.stdout);
    place.octet(&["config", "import", "none"]).fails(1, &["none cannot be read"]);
}

#[test]
fn the_schema_is_json_and_the_tables_are_those_of_the_documentation() {
    let place = Place::new();
    let schema: Value = serde_json::from_str(&place.octet(&["config", "schema"]).ok().stdout).unwrap();
    assert!(schema["properties"]["model_list"]["items"]["properties"]["litellm_params"].is_object());
    let tables = place.octet(&["config", "schema", "--markdown"]).ok().stdout;
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/router-keys.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    assert!(
        docs.contains(tables.trim_end()),
        "docs/router-keys.md is not what `octet config schema --markdown` prints"
    );
}
