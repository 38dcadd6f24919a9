//! Fields that OpenAI's chat, completions and Responses share, including those of vLLM and llama.cpp.

use serde_json::{Map, Value, json};

use super::foreign::FOREIGN;
use super::logit_bias::biases;
use crate::core::{Chat, Effort, GenerateRequest, ResponseFormat, Sampling, Tool, ToolChoice, ToolOrigin};
use crate::json::{Field, Object, Result, shortened};
use crate::rules::{Rules, echo, only, refused, tuning, tuning_but};

/// Maximum number of answers to one prompt.
pub(super) const N_MAX: u32 = 128;
/// Maximum number of alternatives per token.
pub(crate) const TOP_LOGPROBS_MAX: u32 = 20;
/// Maximum number of stop texts or stop tokens.
const STOPS_MAX: usize = 64;

/// Fields of all three. See [`rules`](crate::rules) for the rules.
pub(super) const RULES: Rules = &[
    ("service_tier", tuning_but(r#"["auto", "default"]"#, "there is one service tier")),
    ("prompt_cache_key", tuning("shared prefixes are found without it")),
    ("prompt_cache_retention", tuning("the server's settings say how long prefixes are kept")),
    ("prompt_cache_options", tuning("shared prefixes are found without it")),
    ("safety_identifier", tuning("only a provider uses it")),
    ("prediction", tuning("it may make an answer faster, never different")),
    ("verbosity", tuning_but(r#"["medium"]"#, "say in the prompt how long the answer should be")),
    ("store", tuning("only answers of /v1/responses are kept")),
    ("moderation", tuning("nothing is moderated")),
    ("web_search_options", tuning("this server runs no tools of its own")),
    ("audio", tuning("answers are text")),
    ("modalities", only(r#"[["text"]]"#, "answers are text")),
    ("request_id", tuning("the server names its requests itself")),
    ("client_metadata", echo()),
    ("priority", tuning_but("[0]", "all requests are equal")),
    ("id_slot", tuning_but("[-1]", "the server places requests itself")),
    ("kv_transfer_params", tuning("there is no remote cache")),
    ("mm_processor_kwargs", tuning("this model reads no images")),
    ("guided_decoding_backend", tuning("the server chooses the grammar backend")),
    ("guided_whitespace_pattern", tuning("the server chooses the whitespace of JSON")),
    ("length_penalty", tuning_but("[1]", "there is no beam search")),
    ("early_stopping", tuning("there is no beam search")),
    (
        "spaces_between_special_tokens",
        tuning_but("[true, false]", "special tokens are never part of an answer"),
    ),
    ("functions", refused("send 'tools'; only chats have the deprecated 'functions'")),
    ("function_call", only(r#"["none", "auto"]"#, "send 'tool_choice'")),
    ("chat_template", refused("set it on the server with --chat-template")),
    ("documents", refused("put their text into a message")),
    ("echo", refused("only completions have it")),
    ("prompt_logprobs", refused("use /v1/completions with 'echo' and 'logprobs'")),
    ("truncate_prompt_tokens", only("[-1]", "a prompt that does not fit is refused, never cut")),
    ("logits_processors", refused("clients cannot supply code")),
    ("allowed_token_ids", refused("use a grammar or 'logit_bias'")),
    ("bad_words", refused("use 'logit_bias'")),
    ("lora", refused("adapters are not supported")),
    ("best_of", only("[1]", "every answer is given; there is no choosing among several")),
    ("use_beam_search", only("[false]", "there is no beam search")),
    ("skip_special_tokens", only("[true]", "special tokens are never part of an answer")),
    ("include_stop_str_in_output", only("[false]", "what ends an answer is not part of it")),
    ("return_tokens_as_token_ids", only("[false]", "tokens are given as text")),
    ("return_token_ids", only("[false]", "tokens are given as text")),
    ("n_probs", only("[0]", "use 'logprobs'")),
];

/// Sampling settings of other engines, also in Ollama's options.
pub(crate) const SAMPLERS: Rules = &[
    ("tfs_z", only("[1]", "there is no tail-free sampling")),
    ("top_a", only("[0]", "there is no top-a sampling")),
    // Below zero is off: see `sampling`.
    ("adaptive_target", only("[-1]", "there is no adaptive-p sampling")),
    ("adaptive_decay", tuning("there is no adaptive-p sampling")),
];

/// OpenAI's fields that have no effect here.
pub(super) const PROVIDER: &[&str] = &[
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "safety_identifier",
    "prediction",
    "verbosity",
    "store",
];

/// Parses the shared fields into `r`.
pub(super) fn common(o: &mut Object, r: &mut GenerateRequest) -> Result<()> {
    r.sampling = sampling(o)?;
    r.min_tokens = o.read("min_tokens", |f| f.count(0..=u32::MAX))?.filter(|n| *n > 0);
    r.ignore_eos = o.read("ignore_eos", Field::bool)?.unwrap_or(false);
    if let Some(ids) = o.take("stop_token_ids") {
        r.stop_token_ids = at_most(ids, STOPS_MAX)?.list(|f| f.count(0..=u32::MAX))?;
    }
    r.cache.prompt = o.read("cache_prompt", Field::bool)?;
    r.cache.salt = o.read("cache_salt", Field::name)?;
    r.stream = o.read("stream", Field::bool)?.unwrap_or(false);
    r.user = o.read("user", Field::string)?;
    r.report.progress = o.read("return_progress", Field::bool)?.unwrap_or(false);
    r.report.timings_per_token = o.read("timings_per_token", Field::bool)?.unwrap_or(false);
    // SGLang's name.
    r.report.experts = o.read("return_routed_experts", Field::bool)?.unwrap_or(false);
    r.report.post_sampling = o.read("post_sampling_probs", Field::bool)?.unwrap_or(false);
    r.metadata = o.read("metadata", Field::map)?.unwrap_or_default();
    if let Some(max) = r.max_tokens
        && r.min_tokens.is_some_and(|min| min > max)
    {
        return Err(crate::ApiError::invalid(
            "min_tokens",
            format!("'min_tokens' must be at most the {max} tokens that the answer may have"),
        ));
    }
    Ok(())
}

/// Ends parsing: checks the remaining fields by the dialect's `tables` and the shared ones. Records what is forwarded and warned
/// about.
pub(super) fn finish(mut o: Object, r: &mut GenerateRequest, tables: &[Rules]) -> Result<()> {
    r.timeout = o.timeout()?;
    let warnings = o.warnings();
    let tables: Vec<Rules> = tables.iter().copied().chain([RULES, FOREIGN, SAMPLERS]).collect();
    r.extra = o.finish(&tables)?;
    r.warnings = warnings.take();
    Ok(())
}

pub(crate) fn sampling(o: &mut Object) -> Result<Sampling> {
    let penalty = |f: Field| f.number(-2.0..=2.0);
    // As in llama.cpp, values beyond an end mean the same as that end.
    let share = |f: Field| f.clamped(0.0..=1.0);
    let is_below_zero = |value: &Value| value.as_f64().is_some_and(|n| n < 0.0);
    let top_k = match o.take("top_k") {
        // Below zero is all, as -1 in vLLM.
        Some(f) if f.value().as_i64().is_some_and(|k| k < 0) => Some(0),
        Some(f) => Some(f.most(0)?),
        None => None,
    };
    // Any negative value turns it off.
    if o.peek("adaptive_target").is_some_and(is_below_zero) {
        o.take("adaptive_target");
    }
    let repetition = o.take_any(&["repetition_penalty", "repeat_penalty"])?;
    let last_n = o.read("repeat_last_n", |f| f.integer(-1..=i64::from(i32::MAX)))?;
    Ok(Sampling {
        temperature: o.read("temperature", |f| f.clamped(0.0..=f64::MAX))?,
        top_k,
        top_p: o.read("top_p", share)?,
        min_p: o.read("min_p", share)?,
        repetition_penalty: repetition.map(|f| f.number(0.01..=100.0)).transpose()?,
        penalty_last_n: last_n.map(|n| n as i32),
        presence_penalty: o.read("presence_penalty", penalty)?,
        frequency_penalty: o.read("frequency_penalty", penalty)?,
        // The second is Mistral's name.
        seed: o.take_any(&["seed", "random_seed"])?.map(seed).transpose()?.flatten(),
        logit_bias: o.read("logit_bias", |f| biases(f, false))?.unwrap_or_default().0,
        more: super::samplers::read(o)?,
    })
}

/// -1 requests a random seed in llama.cpp, vLLM and Ollama; other negative numbers are treated alike.
pub(crate) fn seed(f: Field) -> Result<Option<u64>> {
    if let Some(n) = f.value().as_u64() {
        return Ok(Some(n));
    }
    let n = f.integer(i64::MIN..=i64::MAX)?;
    Ok((n != -1).then_some(n as u64))
}

pub(crate) fn at_most(f: Field, most: usize) -> Result<Field> {
    match f.value().as_array() {
        Some(items) if items.len() > most => Err(f.error(format_args!("may have at most {most} items"))),
        _ => Ok(f),
    }
}

/// `stop`: one text or several.
pub(crate) fn stop(f: Field) -> Result<Vec<String>> {
    let mut texts = if f.is_string() {
        vec![f.string()?]
    } else if f.is_array() {
        at_most(f, STOPS_MAX)?.list(Field::string)?
    } else {
        return Err(f.expected("a string or an array of strings"));
    };
    // An empty stop text would end every answer at once; clients that send one mean none.
    texts.retain(|t| !t.is_empty());
    Ok(texts)
}

/// Ollama's `tools`.
pub(crate) fn tools(f: Field) -> Result<Vec<Tool>> {
    let tools = f.list(|f| function(f.object()?))?;
    unique(&tools)?;
    Ok(tools)
}

/// A tool of chat or Ollama: `{"type": "function", "function": {...}}`. Some agents send the form of Responses or Anthropic.
pub(super) fn function(mut o: Object) -> Result<Tool> {
    function_type(&mut o)?;
    if !o.has("function") && o.has("name") {
        let tool = tool(&mut o)?;
        o.finish(&[TOOL])?;
        return Ok(tool);
    }
    let mut function = o.require("function")?.object()?;
    o.finish(&[TOOL])?;
    let tool = tool(&mut function)?;
    function.finish(&[TOOL])?;
    Ok(tool)
}

/// Fields of tools in all dialects.
pub(super) const TOOL: Rules = &[
    ("cache_control", tuning("shared prefixes are found without it")),
    ("output_schema", tuning("say in the description what the tool returns")),
    ("defer_loading", tuning("all tools are shown to the model at once")),
    ("allowed_callers", tuning_but(r#"[["direct"]]"#, "this server runs no programs")),
];

/// `type`, which may only be `function`.
pub(crate) fn function_type(o: &mut Object) -> Result<()> {
    match o.take("type") {
        // An empty one comes from streams that were put together.
        Some(f) if matches!(f.as_str(), Some("function" | "")) => Ok(()),
        Some(f) if f.is_string() => Err(f.unsupported("; only functions are")),
        Some(f) => Err(f.expected("\"function\"")),
        None => Ok(()),
    }
}

/// Parses name, description and schema.
pub(crate) fn tool(o: &mut Object) -> Result<Tool> {
    let strict = o.read("strict", Field::bool)?;
    let nothing = || {
        let mut out = no_parameters();
        if strict == Some(true) {
            out.insert("additionalProperties".into(), false.into());
        }
        out
    };
    Ok(Tool {
        name: o.require("name")?.name()?,
        description: o.read("description", Field::string)?,
        parameters: o
            .take_any(&["parameters", "input_schema"])?
            .map(Field::map)
            .transpose()?
            .unwrap_or_else(nothing),
        strict,
        cache: None,
        origin: ToolOrigin::default(),
    })
}

/// The schema of a function without arguments.
pub(crate) fn no_parameters() -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("type".into(), "object".into());
    out.insert("properties".into(), Map::new().into());
    out
}

/// Refuses tools with the same name.
pub(crate) fn unique(tools: &[Tool]) -> Result<()> {
    let mut names: Vec<&str> = tools.iter().map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|w| w[0] == w[1]) {
        None => Ok(()),
        Some(w) => Err(crate::ApiError::invalid(
            "tools",
            format!("'tools' has two of the name '{}'", shortened(w[0])),
        )),
    }
}

/// `tool_choice`; `named` parses the name in the object form.
pub(super) fn tool_choice(f: Field, named: impl FnOnce(&mut Object) -> Result<String>) -> Result<ToolChoice> {
    if f.is_object() {
        let mut o = f.object()?;
        // The name determines the kind.
        let is_custom = o.peek("type").and_then(Value::as_str) == Some("custom");
        if !is_custom || o.take("type").is_none() {
            function_type(&mut o)?;
        }
        let name = named(&mut o)?;
        o.finish(&[])?;
        return Ok(ToolChoice::Named(name));
    }
    match f.as_str() {
        Some("auto") => Ok(ToolChoice::Auto),
        Some("none") => Ok(ToolChoice::None),
        // The second is Mistral's word.
        Some("required" | "any") => Ok(ToolChoice::Required),
        _ => Err(f.expected("\"auto\", \"none\", \"required\" or a function by name")),
    }
}

/// Checks that the choice is possible.
pub(crate) fn check_tool_choice(chat: &Chat) -> Result<()> {
    let wrong = |what: String| Err(crate::ApiError::invalid("tool_choice", what));
    match &chat.tool_choice {
        ToolChoice::Required if chat.tools.is_empty() => {
            wrong("'tool_choice' requires a call, but 'tools' has none".into())
        }
        ToolChoice::Named(name) if !chat.tools.iter().any(|t| t.name == *name) => {
            wrong(format!("'tool_choice' names '{}', which is not in 'tools'", shortened(name)))
        }
        _ => Ok(()),
    }
}

/// Parses `reasoning_effort`.
pub(crate) fn effort(f: Field, chat: &mut Chat) -> Result<()> {
    // Groq's word for the model's own effort.
    if f.as_str() == Some("default") {
        return Ok(());
    }
    let mut names = vec![("none", None)];
    names.extend(Effort::NAMES.map(|(name, effort)| (name, Some(effort))));
    chat.reasoning.effort = f.one_of(&names)?;
    if chat.reasoning.effort.is_none() {
        chat.reasoning.enabled = Some(false);
    }
    Ok(())
}

/// An effort switches thinking on, unless another field switches it off. Called when all of them are read.
pub(super) fn settle_effort(o: &Object, chat: &mut Chat, name: &'static str) {
    let reasoning = &mut chat.reasoning;
    if reasoning.effort.is_none() {
        return;
    }
    if *reasoning.enabled.get_or_insert(true) {
        return;
    }
    reasoning.effort = None;
    o.warn_of(name, "has no effect: another field switches thinking off");
}

/// Fields of vLLM, llama.cpp and Qwen's API that control thinking and the template.
pub(super) fn thinking(o: &mut Object, chat: &mut Chat) -> Result<()> {
    if let Some(f) = o.take_any(&["thinking_token_budget", "thinking_budget_tokens", "thinking_budget"])? {
        chat.reasoning.budget_tokens = f.limit(0)?;
    }
    if let Some(f) = o.take("include_reasoning") {
        chat.reasoning.hide = !f.bool()?;
    }
    // llama.cpp's values, and Groq's: "parsed" is reasoning in a field of its own.
    if o.peek("reasoning_format").is_some_and(|v| v == "hidden") {
        o.take("reasoning_format");
        chat.reasoning.hide = true;
    }
    let why = "reasoning is returned separately; set --reasoning-format on the server";
    o.only("reasoning_format", &["auto".into(), "deepseek".into(), "parsed".into()], why)?;
    switch(o.take("enable_thinking"), chat)?;
    if let Some(f) = o.take("chat_template_kwargs") {
        let mut kwargs = f.object()?;
        // Templates have one name or the other for it; which one is the server's matter.
        switch(kwargs.take("enable_thinking"), chat)?;
        switch(kwargs.take("thinking"), chat)?;
        chat.template_kwargs = kwargs.into_fields().map(|(key, field)| (key, field.raw())).collect();
    }
    Ok(())
}

/// OpenRouter's `reasoning` and the `thinking` of GLM's, Kimi's and DeepSeek's APIs, in chats.
pub(super) fn other_thinking(o: &mut Object, chat: &mut Chat) -> Result<()> {
    if let Some(f) = o.take("reasoning") {
        let mut r = f.object()?;
        if let Some(f) = r.take("effort") {
            effort(f, chat)?;
        }
        switch(r.take("enabled"), chat)?;
        if let Some(f) = r.take("max_tokens") {
            chat.reasoning.budget_tokens = f.limit(0)?;
        }
        chat.reasoning.hide = r.read("exclude", Field::bool)?.unwrap_or(false);
        r.finish(&[&[("summary", echo())]])?;
    }
    let Some(f) = o.take("thinking") else { return Ok(()) };
    if !f.is_object() {
        return switch(Some(f), chat);
    }
    let mut t = f.object()?;
    if let Some(f) = t.take("type") {
        let is_on = f.value() != "disabled";
        // Adaptive thinking is the model's default.
        if f.value() != "adaptive" && f.value() != "auto" {
            f.one_of(&[("enabled", ()), ("disabled", ())])?;
            chat.reasoning.enabled = Some(is_on);
        }
    }
    if let Some(f) = t.take("budget_tokens") {
        chat.reasoning.budget_tokens = f.limit(0)?;
    }
    t.finish(&[&[("clear_thinking", tuning("the model's template decides which reasoning it sees"))]])?;
    Ok(())
}

fn switch(f: Option<Field>, chat: &mut Chat) -> Result<()> {
    let Some(f) = f else { return Ok(()) };
    let path = f.path();
    let enabled = f.bool()?;
    if chat.reasoning.enabled.is_some_and(|e| e != enabled) {
        let state = if enabled { "off" } else { "on" };
        return Err(crate::ApiError::invalid(
            path.clone(),
            format!("'{path}' is {enabled}, but another field of the request switches thinking {state}"),
        ));
    }
    chat.reasoning.enabled = Some(enabled);
    Ok(())
}

/// Fields of vLLM's `structured_outputs` besides the constraint.
const STRUCTURED: Rules = &[
    ("structural_tag", refused("use 'tools' and 'tool_choice'")),
    ("whitespace_pattern", tuning("the server chooses the whitespace of JSON")),
    ("disable_any_whitespace", tuning("the server chooses the whitespace of JSON")),
    ("disable_additional_properties", refused("say it in the schema")),
    ("disable_fallback", tuning_but("[true, false]", "the server chooses the grammar backend")),
];

/// Parses the response format from all fields besides `response_format`.
pub(crate) fn structured(o: &mut Object, r: &mut GenerateRequest) -> Result<()> {
    let format = &r.response_format;
    let mut found = Vec::new();
    if let Some(f) = o.take("structured_outputs") {
        let mut s = f.object()?;
        constraints(&mut s, ["json", "json_object", "regex", "choice", "grammar"], &mut found)?;
        s.finish(&[STRUCTURED])?;
    }
    let guided = ["guided_json", "guided_json_object", "guided_regex", "guided_choice", "guided_grammar"];
    constraints(o, guided, &mut found)?;
    if let Some(f) = o.take("json_schema") {
        found.push((f.path(), json_schema(schema(f)?)));
    }
    // SGLang's names.
    if let Some(f) = o.take("regex").filter(|f| f.as_str() != Some("")) {
        found.push((f.path(), ResponseFormat::Regex(f.name()?)));
    }
    if let Some(f) = o.take("ebnf").filter(|f| f.as_str() != Some("")) {
        found.push((f.path(), ResponseFormat::Gbnf(f.name()?)));
    }
    if let Some(f) = o.take("grammar").filter(|f| f.as_str() != Some("")) {
        found.push((f.path(), ResponseFormat::Gbnf(f.name()?)));
    }
    match found.len() {
        0 => return Ok(()),
        1 if *format == ResponseFormat::Text => {}
        _ => {
            let names: Vec<_> = found.iter().map(|(path, _)| format!("'{path}'")).collect();
            let also = if *format == ResponseFormat::Text { "" } else { " besides 'response_format'" };
            return Err(crate::ApiError::invalid(
                found[0].0.clone(),
                format!("only one answer format can be requested; got {}{also}", names.join(" and ")),
            ));
        }
    }
    (r.response_format_field, r.response_format) = found.remove(0);
    Ok(())
}

fn constraints(
    o: &mut Object,
    [json, json_object, regex, choice, grammar]: [&'static str; 5],
    found: &mut Vec<(String, ResponseFormat)>,
) -> Result<()> {
    if let Some(f) = o.take(json) {
        found.push((f.path(), json_schema(schema(f)?)));
    }
    if let Some(f) = o.take(json_object) {
        let path = f.path();
        if f.bool()? {
            found.push((path, ResponseFormat::JsonObject));
        }
    }
    if let Some(f) = o.take(regex) {
        found.push((f.path(), ResponseFormat::Regex(f.name()?)));
    }
    if let Some(f) = o.take(choice) {
        let path = f.path();
        let empty = f.expected("an array of at least one string");
        let choices = f.list(Field::name)?;
        if choices.is_empty() {
            return Err(empty);
        }
        found.push((path, ResponseFormat::Choice(choices)));
    }
    if let Some(f) = o.take(grammar) {
        let path = f.path();
        let grammar = f.name()?;
        let format = if is_gbnf(&grammar) { ResponseFormat::Gbnf } else { ResponseFormat::Grammar };
        found.push((path, format(grammar)));
    }
    Ok(())
}

/// Whether a grammar is in GBNF: vLLM's clients send that or Lark's notation. GBNF has a rule named `root`; in Lark's notation, where
/// strings may hold anything, no line begins so.
fn is_gbnf(grammar: &str) -> bool {
    let mut rules = grammar.lines().filter_map(|line| line.trim_start().strip_prefix("root"));
    rules.any(|rest| rest.trim_start().starts_with("::="))
}

fn json_schema(schema: Value) -> ResponseFormat {
    ResponseFormat::JsonSchema { name: None, description: None, schema, strict: None }
}

/// A JSON schema; vLLM's clients also send it as text.
pub(crate) fn schema(f: Field) -> Result<Value> {
    match f.value() {
        Value::Object(_) | Value::Bool(_) => Ok(f.raw()),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(schema),
            _ => Err(f.expected("a JSON schema")),
        },
        _ => Err(f.expected("a JSON schema")),
    }
}

/// Parses name, description, schema and strictness of a JSON schema.
pub(super) fn named_schema(o: &mut Object) -> Result<ResponseFormat> {
    // OpenAI requires a name; it has no effect on the answer.
    let name = o.read("name", Field::name)?.unwrap_or_else(|| "answer".into());
    let description = o.read("description", Field::string)?;
    let strict = o.read("strict", Field::bool)?;
    // Without a schema, any object.
    Ok(match o.take("schema") {
        // OpenAI accepts only an object. `true` would allow any JSON.
        Some(f) if f.value().is_boolean() => return Err(f.expected("an object, which is a JSON schema")),
        Some(f) => ResponseFormat::JsonSchema { name: Some(name), description, schema: schema(f)?, strict },
        None => ResponseFormat::JsonObject,
    })
}

/// `response_format` of chat and completions.
pub(super) fn response_format(f: Field) -> Result<ResponseFormat> {
    let mut o = f.object()?;
    let kind = o.require("type")?;
    let format = match kind.as_str() {
        Some("text") => ResponseFormat::Text,
        // llama.cpp's clients add a schema.
        Some("json_object") => match o.take("schema") {
            Some(f) => json_schema(schema(f)?),
            None => ResponseFormat::JsonObject,
        },
        // llama.cpp's and Together's clients put the schema here.
        Some("json_schema") if !o.has("json_schema") && o.has("schema") => {
            json_schema(schema(o.require("schema")?)?)
        }
        Some("json_schema") => {
            let mut inner = o.require("json_schema")?.object()?;
            let format = named_schema(&mut inner)?;
            inner.finish(&[])?;
            format
        }
        Some(_) => return Err(kind.unsupported("; \"text\", \"json_object\" and \"json_schema\" are")),
        None => return Err(kind.expected("a string")),
    };
    o.finish(&[])?;
    Ok(format)
}

/// The inverse of `structured` and `response_format`: the field and its value, `None` for plain text.
pub(super) fn write_format(format: &ResponseFormat) -> Option<(&'static str, Value)> {
    Some(match format {
        ResponseFormat::Text => return None,
        ResponseFormat::JsonObject => ("response_format", json!({"type": "json_object"})),
        ResponseFormat::JsonSchema { name: None, schema, .. } => {
            ("structured_outputs", json!({"json": schema}))
        }
        ResponseFormat::JsonSchema { name: Some(name), description, schema, strict } => {
            let mut inner = json!({"name": name, "schema": schema});
            if let Some(text) = description {
                inner["description"] = text.as_str().into();
            }
            if let Some(strict) = strict {
                inner["strict"] = (*strict).into();
            }
            ("response_format", json!({"type": "json_schema", "json_schema": inner}))
        }
        ResponseFormat::Regex(regex) => ("structured_outputs", json!({"regex": regex})),
        ResponseFormat::Grammar(grammar) => ("structured_outputs", json!({"grammar": grammar})),
        ResponseFormat::Gbnf(grammar) => ("grammar", json!(grammar)),
        ResponseFormat::Choice(choices) => ("structured_outputs", json!({"choice": choices})),
    })
}
