//! Other programs' files in our form: what comes out is read again, and what was left behind is said.

use octet_config::import::{Origin, import};
use octet_config::*;

fn source() -> Disk<impl Fn(&str) -> Option<String>> {
    Disk(|name: &str| name.ends_with("KEY").then(|| "k".to_string()))
}

#[track_caller]
fn imported(origin: Origin, text: &str) -> (String, Vec<String>, Config) {
    let made = import(origin, "in.yaml", text, "mine", &source()).unwrap_or_else(|e| panic!("{e}"));
    let config =
        Config::parse("out.yaml", &made.yaml, &source()).unwrap_or_else(|e| panic!("{e}\n{}", made.yaml));
    (made.yaml, made.notes, config)
}

#[test]
fn litellm_keeps_its_text_and_comments() {
    let text = "\
model_list:
  - model_name: a # the first
    litellm_params:
      model: gpt-4o
      tag_regex:
      - free
      rpm: 5
general_settings:
  proxy_batch_write_at: 60

  master_key: os.environ/KEY
litellm_settings:
  json_logs: true
  datadog_params:
    type: x
    # where
    host: h
";
    let (yaml, notes, config) = imported(Origin::LiteLlm, text);
    assert!(
        yaml.contains("model_name: a # the first")
            && yaml.contains("\n  # proxy_batch_write_at: 60\n\n  master_key"),
        "{yaml}"
    );
    let reason = "octet: litellm_params.tag_regex: deployments are not chosen by headers";
    assert!(yaml.contains(&format!("\n      # {reason}")), "{yaml}");
    assert!(yaml.contains("\n      # tag_regex:\n      # - free\n      rpm: 5\n"), "{yaml}");
    assert!(yaml.contains("\n  # datadog_params:\n  #   type: x\n"), "{yaml}");
    assert_eq!(notes.len(), 4, "{notes:#?}");
    assert_eq!((config.notes.len(), config.deployments[0].rpm), (0, Some(5)), "nothing is left to note");
}

#[test]
fn litellm_comments_out_only_unsupported_keys() {
    // What shares its line with others gets one of its own: the lock stays.
    let text = "model_list: [{model_name: a, litellm_params: {model: gpt-4o, guardrails: [pii], rpm: 5}}]\n\
                general_settings: {custom_auth: x.y, master_key: os.environ/A_KEY, alert_types: [slack]}\n";
    let (yaml, notes, config) = imported(Origin::LiteLlm, text);
    assert_eq!(notes.len(), 3, "{notes:#?}");
    assert!(
        notes[1].starts_with("line 2: now a comment: general_settings.alert_types: it has no effect here")
            && notes[2].starts_with("line 2: now a comment: general_settings.custom_auth is not supported"),
        "{notes:#?}"
    );
    assert!(yaml.contains("\n  # \"custom_auth\": \"x.y\"\n"), "{yaml}");
    assert!(config.server.master_key.is_some() && config.notes.is_empty(), "{yaml}");
    assert_eq!(config.deployments[0].rpm, Some(5), "{yaml}");
    assert!(import(Origin::LiteLlm, "in.yaml", "a: [", "mine", &source()).is_err());
    assert!(import(Origin::LiteLlm, "in.yaml", "general_settings: {}", "mine", &source()).is_err());
}

#[test]
fn litellm_comments_out_errors_anywhere() {
    let text = "\
model_list:
  - guardrail: x
    model_name: a
    litellm_params:
      model: gpt-4o
      rmp: 5
  - litellm_params: {model: olama/x}
    model_name: b
  - model_name: c
    litellm_params: {model: ollama/x, weight: -1}
guardrails:
- guardrail_name: g
  litellm_params: {guardrail: presidio}
litellm_settings:
  callbacks:
  - hooks.handler
  num_retries: 4
router_settings:
  fallbacks: [{c: [nobody]}]
  num_retries: 3
";
    let (yaml, notes, config) = imported(Origin::LiteLlm, text);
    let names: Vec<&str> = config.deployments.iter().map(|d| d.group.as_str()).collect();
    assert_eq!(names, ["a", "c"], "{yaml}");
    assert_eq!(config.router.num_retries, 3, "{yaml}");
    assert!(yaml.contains("\n  - # guardrail: x\n    model_name: a\n"), "{yaml}");
    assert!(yaml.contains("\n# guardrails:\n# - guardrail_name: g\n"), "{yaml}");
    let lines: Vec<&str> = notes.iter().map(|n| n.split(':').next().unwrap()).collect();
    assert_eq!(
        lines,
        ["line 2", "line 6", "line 7", "line 7", "line 10", "line 11", "line 16", "line 19"],
        "{notes:#?}"
    );
}

#[test]
fn llama_swap_moves_below_processes() {
    let text = "\
# my servers
healthCheckTimeout: 90
logLevel: info
macros:
  base: >
    server --port ${PORT}
models:
  qwen:
    cmd: |
      ${base}
      -m /m/q.gguf
    ttl: 60
    aliases: [gpt-4o]
groups:
  one: {members: [qwen]}
apiKeys:
  - ${env.SWAP_KEY}
peers:
  far:
    proxy: http://10.0.0.2:8080/
    apiKey: sk-far
    models:
      - big
";
    assert_eq!(Origin::guess("config.yaml", text), Origin::LlamaSwap);
    let (yaml, notes, config) = imported(Origin::LlamaSwap, text);
    assert!(yaml.contains("\n  # my servers\n"), "{yaml}");
    assert_eq!(notes.len(), 1, "{notes:#?}");
    assert!(notes[0].starts_with("line 3: processes.logLevel"), "{notes:#?}");
    assert_eq!(config.processes[0].cmd, ["server", "--port", "${PORT}", "-m", "/m/q.gguf"]);
    assert_eq!(config.server.api_keys[0].expose(), "k");
    let big = config.deployments.iter().find(|d| d.group.as_str() == "big").unwrap();
    let Target::Remote(r) = &big.target else { panic!() };
    assert_eq!((r.api_base.as_str(), r.model.as_str()), ("http://10.0.0.2:8080/v1", "big"));
    assert_eq!(r.api_key.as_ref().unwrap().expose(), "sk-far");
    assert_eq!(config.router.aliases[0].group, "qwen");
}

/// llama-swap moved its groups to `routing` in June 2026.
#[test]
fn llama_swaps_routing_gives_the_same_groups() {
    let models = "models:\n  chat:\n    cmd: llama-server --port ${PORT}\n  embed:\n    cmd: llama-server --port ${PORT}\n";
    let groups = "together:\n    swap: false\n    exclusive: false\n    members: [chat, embed]\n";
    let (_, _, old) = imported(Origin::LlamaSwap, &format!("{models}groups:\n  {groups}"));
    let deep = groups.replace("\n    ", "\n          ");
    let new =
        format!("{models}routing:\n  router:\n    use: group\n    settings:\n      groups:\n        {deep}");
    let (yaml, notes, new) = imported(Origin::LlamaSwap, &new);
    assert_eq!(new.process_settings, old.process_settings, "{yaml}");
    assert!(notes.is_empty(), "{notes:#?}");
    // What has no counterpart is named.
    let matrix = format!(
        "{models}routing:\n  selectors: {{fast: chat}}\n  router:\n    use: matrix\n    settings:\n      matrix:\n        sets: {{both: chat & embed}}\n"
    );
    let imported = import(Origin::LlamaSwap, "in.yaml", &matrix, "mine", &source()).unwrap();
    let notes = imported.notes.join("\n");
    assert!(notes.contains("routing.selectors has no counterpart") && notes.contains("matrix"), "{notes}");
    assert_eq!(imported.notes.iter().filter(|n| n.starts_with("TO DO")).count(), 2, "{notes}");
}

/// llama-swap makes an alias of each name, whose requests have its parameters.
#[test]
fn llama_swaps_parameters_by_name_are_names_of_their_own() {
    let text = "\
models:
  qwen:
    cmd: llama-server --port ${PORT}
    aliases: [fast]
    filters:
      setParams: {temperature: 1, top_k: 20}
      setParamsByID:
        '${MODEL_ID}': {temperature: 0.5}
        '${MODEL_ID}:high': {reasoning_effort: high, temperature: 0}
        fast: {reasoning_effort: low}
";
    let (yaml, notes, config) = imported(Origin::LlamaSwap, text);
    assert!(notes.is_empty(), "{notes:#?}\n{yaml}");
    assert!(config.router.aliases.is_empty(), "{:?}", config.router.aliases);
    let mut made: Vec<(&str, serde_json::Value)> = Vec::new();
    for deployment in &config.deployments {
        let Target::Process(process) = &deployment.target else { panic!("{:?}", deployment.target) };
        assert_eq!(process.process, "qwen");
        made.push((deployment.group.as_str(), serde_json::json!(process.changes.edits.set)));
    }
    let expected = [
        ("qwen", serde_json::json!({"temperature": 0.5, "top_k": 20})),
        ("qwen:high", serde_json::json!({"reasoning_effort": "high", "temperature": 0, "top_k": 20})),
        ("fast", serde_json::json!({"reasoning_effort": "low", "temperature": 1, "top_k": 20})),
    ];
    assert_eq!(made, expected);
    assert_eq!(config.processes[0].aliases, ["fast", "qwen:high"], "`unlisted` covers them");
}

#[test]
fn names_of_parameters_that_another_model_has_are_noted() {
    let model = |id: &str, names: &str| {
        format!("  {id}:\n    cmd: server --port ${{PORT}}\n    filters:\n      setParamsByID: {names}\n")
    };
    let first = model("a", "{fast: {top_k: 1}, b: {top_k: 2}}");
    let text = format!("models:\n{first}{}", model("b", "{fast: {top_k: 3}, 'b:high': {top_k: 4}}"));
    let (yaml, _, config) = imported(Origin::LlamaSwap, &text);
    let groups: Vec<&str> = config.deployments.iter().map(|d| d.group.as_str()).collect();
    assert_eq!(groups, ["a", "fast", "b", "b:high"], "each model has its own name:\n{yaml}");
    let said: Vec<String> = config.notes.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 2, "{said:#?}");
    for (note, id, name) in [(&said[0], "a", "b"), (&said[1], "b", "fast")] {
        let what = [
            format!("processes.models.{id}.filters.setParamsByID"),
            format!("the parameters of '{name}' have no effect: another model has this name"),
        ];
        assert!(what.iter().all(|w| note.contains(w.as_str())), "{note}");
    }
}

#[test]
fn repeated_remarks_about_llama_swaps_file_are_one() {
    let model = |name: &str| {
        format!("  {name}:\n    cmd: server ${{HOME}} --port ${{PORT}}\n    capabilities: [a]\n")
    };
    let text = format!("logLevel: info\nmodels:\n{}{}", model("a"), model("b"));
    let made = import(Origin::LlamaSwap, "in.yaml", &text, "mine", &source()).unwrap();
    let begins = [
        "line 1: processes.logLevel",
        "lines 5, 8: processes.models.capabilities",
        "TO DO, lines 4, 7: there is no macro ${HOME}",
    ];
    assert_eq!(made.notes.len(), begins.len(), "{:#?}", made.notes);
    assert!(made.notes.iter().zip(begins).all(|(note, begin)| note.starts_with(begin)), "{:#?}", made.notes);
    assert!(made.notes[2].contains("write ${env.HOME}"), "{:#?}", made.notes);
    // The file itself is none of ours.
    let said = Config::parse("in.yaml", &text, &source()).unwrap_err().to_string();
    assert!(
        said.starts_with("in.yaml:2:1: these are the keys of llama-swap: `octet config import"),
        "{said}"
    );
}

#[test]
fn a_modelfile_becomes_a_model() {
    let text = "\
# a model of mine
FROM hf.co/unsloth/Qwen3-GGUF:Q4_K_M
PARAMETER num_ctx 8192
PARAMETER temperature 0.6
parameter stop \"<|im_end|>\"
PARAMETER stop \"a \\ b\"
PARAMETER num_predict -1
PARAMETER mirostat 1
TEMPLATE \"\"\"{{ .System }}
FROM nowhere
{{ .Prompt }}\"\"\"
SYSTEM You are brief.
LICENSE MIT
RENDERER qwen3-coder
PARSER qwen3-coder
REQUIRES 0.14
";
    assert_eq!(Origin::guess("Modelfile", text), Origin::Modelfile);
    let (_, notes, config) = imported(Origin::Modelfile, text);
    let d = &config.deployments[0];
    let Target::Local(local) = &d.target else { panic!() };
    assert_eq!((d.group.as_str(), local.model.as_str()), ("mine", "hf:unsloth/Qwen3-GGUF:Q4_K_M"));
    assert_eq!(local.engine.ctx_size, Some(8192));
    assert_eq!(
        serde_json::json!(d.params),
        serde_json::json!({"temperature": 0.6, "stop": ["<|im_end|>", "a \\ b"]})
    );
    let expected = [
        "line 8: PARAMETER mirostat",
        "line 9: TEMPLATE",
        "line 12: SYSTEM",
        "line 14: RENDERER",
        "line 15: PARSER",
    ];
    assert_eq!(notes.len(), expected.len(), "{notes:#?}");
    for (said, word) in notes.iter().zip(expected) {
        assert!(said.starts_with(word), "{said}");
    }
}

#[test]
fn errors_of_modelfiles_have_their_line() {
    for (text, expected) in [
        ("SYSTEM x\n", "FROM is missing"),
        ("FROM a\nFROM b\n", "in.yaml:2:1: a second FROM"),
        ("FROM a\nPARAMETER seed x\n", "2:1: PARAMETER seed is not a number"),
        ("FROM a\nPARAMETER seed\n", "needs a name and a value"),
        ("FROM a\nSYSTEM \"\"\"x\n", "does not end"),
        ("FROM a\nHELLO b\n", "'HELLO' is not an instruction"),
    ] {
        let said = import(Origin::Modelfile, "in.yaml", text, "mine", &source()).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
}

proptest::proptest! {
    /// Whatever is imported: an answer, and no panic.
    #[test]
    fn any_text_can_be_imported(text in "((FROM|PARAMETER|models:|peers:|apiKeys:|cache: 1|  - a|  b: c|\"\"\"| x|[a-z ]{0,9})\n?){0,12}") {
        for origin in [Origin::LiteLlm, Origin::LlamaSwap, Origin::Modelfile] {
            let _ = import(origin, "in.yaml", &text, "mine", &source());
        }
    }
}
