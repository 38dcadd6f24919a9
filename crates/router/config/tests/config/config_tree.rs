//! The tree that `octet config check` prints.

use octet_config::*;

#[test]
fn a_small_configuration_is_drawn() {
    let text = "
model_list:
  - model_name: default
    litellm_params: {model: hosted_vllm/qwen, api_base: 'http://127.0.0.1:8007/v1', weight: 9, rpm: 600, silent_model: cloud}
  - {model_name: default, litellm_params: {model: octet/qwen3.6:35b-a3b, weight: 1}}
  - {model_name: cloud, litellm_params: {model: anthropic/claude-sonnet-4-5, api_key: sk-x, timeout: 90}}
  - {model_name: gone, litellm_params: {model: groq/x}}
router_settings:
  model_group_alias: {gpt-4o: default}
  fallbacks: [{default: [cloud]}, {gone: [default]}]
cascades:
  - model_name: auto
    fast: default
    strong: cloud
    rules: [{name: tools, tools: true}, {max_tokens: 50, code: false, to: fast, check: true}]
    confidence: {mean_logprob: -0.5}
processes: {models: {coder: {cmd: 'server --port ${PORT}', concurrencyLimit: 2}}}
";
    let config = Config::parse("octet.yaml", text, &Disk(|_: &str| None)).unwrap();
    let expected = "\
default (also gpt-4o)  simple-shuffle
├─  90%  openai_compatible qwen at http://127.0.0.1:8007/v1  (600 rpm)
├─ cloud gets a copy of each request
├─  10%  qwen3.6:35b-a3b in this process
└─ on errors: cloud
cloud
└─ anthropic claude-sonnet-4-5 at https://api.anthropic.com  (90 s)
coder
└─ the process coder, started on demand  (2 at once)
auto  a cascade
├─ cloud for tools  (tools)
├─ default for up to 50 tokens and no code, if it is confident  (rule 2)
├─ default otherwise, if it is confident (mean log-probability from -0.5 over 16 tokens; its tool calls match their schemas)
└─ cloud if it is not
gone
├─ left out: the environment variable GROQ_API_KEY is not set
└─ on errors: default
2 retries · at most 5 fallbacks · 6000 s a request · cooldown 5 s
";
    assert_eq!(config.tree(), expected);
}
