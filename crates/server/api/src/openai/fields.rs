//! Fields that OpenAI's chat, completions and responses have in common, with what vLLM and llama.cpp add.

use serde_json::{Map, Value, json};

use crate::core::{Chat, Effort, GenerateRequest, ResponseFormat, Sampling, Tool, ToolChoice};
use crate::json::{Accepted, Field, Object, Result, shortened};

/// Most answers to one prompt.
pub(super) const N_MAX: u32 = 128;
/// Most alternatives of a token.
pub(crate) const TOP_LOGPROBS_MAX: u32 = 20;
/// Most texts or tokens that end an answer.
const STOPS_MAX: usize = 64;

/// Fields that have no effect here, and why it is right to take them. They are handed on to OpenAI-like providers.
pub(super) const ACCEPTED: &[Accepted] = &[
    ("service_tier", "names a queue of the provider's"),
    ("prompt_cache_key", "helps a provider to route; our cache finds shared prefixes by itself"),
    ("prompt_cache_retention", "how long a provider keeps its cache; ours keeps what is worth most"),
    ("prompt_cache_options", "the same"),
    ("safety_identifier", "names the person behind a request, for the provider"),
    ("prediction", "a guess at the answer, which may make it faster and never different"),
    ("request_id", "the client's name for the request; we make our own"),
    ("client_metadata", "what coding agents say about themselves"),
];

/// Fields that exist and that we do not have, and why.
pub(super) const REFUSED: &[Accepted] = &[
    ("audio", "answers are text"),
    ("functions", "it was replaced by 'tools'"),
    ("function_call", "it was replaced by 'tool_choice'"),
    ("web_search_options", "this server runs no tools of its own"),
    ("moderation", "nothing is moderated"),
    ("chat_template", "a client may not bring a template; set it on the server with --chat-template"),
    ("documents", "put their text into a message"),
    ("echo", "only completions have it"),
    ("suffix", "filling in the middle is not supported"),
    ("prompt_logprobs", "use /v1/completions with 'echo' and 'logprobs'"),
    ("id_slot", "the server places requests itself"),
    ("mm_processor_kwargs", "images are not supported yet"),
    ("truncate_prompt_tokens", "a prompt that does not fit is refused, never cut"),
    ("logits_processors", "a client may not bring code"),
    ("allowed_token_ids", "use a grammar or 'logit_bias'"),
    ("bad_words", "use 'logit_bias'"),
    ("samplers", "the order of sampling steps is fixed"),
    ("lora", "adapters are not supported"),
    ("kv_transfer_params", "there is no remote cache"),
    ("grammar", "llama.cpp's GBNF is not supported; send a Lark grammar as structured_outputs.grammar"),
];

/// Settings of other engines, which only their neutral values turn off.
const NEUTRAL: &[(&str, &str, &str)] = &[
    ("best_of", "[1]", "every answer is given; there is no choosing among several"),
    ("use_beam_search", "[false]", "there is no beam search"),
    ("length_penalty", "[1]", "there is no beam search"),
    ("early_stopping", "[false]", "there is no beam search"),
    ("typical_p", "[1]", "there is no locally typical sampling"),
    ("tfs_z", "[1]", "there is no tail-free sampling"),
    ("top_a", "[0]", "there is no top-a sampling"),
    ("top_n_sigma", "[-1, 0]", "there is no top-n-sigma sampling"),
    ("mirostat", "[0]", "there is no mirostat sampling"),
    ("dynatemp_range", "[0]", "the temperature is constant"),
    ("xtc_probability", "[0]", "there is no XTC sampling"),
    ("dry_multiplier", "[0]", "there is no DRY penalty"),
    ("skip_special_tokens", "[true]", "control tokens never stand in an answer"),
    ("spaces_between_special_tokens", "[true, false]", "control tokens never stand in an answer"),
    ("include_stop_str_in_output", "[false]", "what ends an answer is not part of it"),
    ("return_tokens_as_token_ids", "[false]", "tokens are given as text"),
    ("return_token_ids", "[false]", "tokens are given as text"),
    ("n_probs", "[0]", "use 'logprobs'"),
    ("priority", "[0]", "all requests are equal"),
    ("timings_per_token", "[false]", "times are given at the end"),
    ("return_progress", "[false]", "progress of the prompt is not reported"),
    ("verbosity", "[\"medium\"]", "say in the prompt how long the answer shall be"),
];

/// Reads what all three dialects share into `r`.
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
    r.metadata = o.read("metadata", Field::map)?.unwrap_or_default();
    neutral(o)?;
    r.extra = o.accept(ACCEPTED);
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

/// Takes other engines' settings, where they ask for nothing.
pub(crate) fn neutral(o: &mut Object) -> Result<()> {
    for (name, allowed, why) in NEUTRAL {
        if o.has(name) {
            let allowed: Vec<Value> = serde_json::from_str(allowed).expect("our own table is JSON");
            o.only(name, &allowed, why)?;
        }
    }
    Ok(())
}

pub(crate) fn sampling(o: &mut Object) -> Result<Sampling> {
    let penalty = |f: Field| f.number(-2.0..=2.0);
    let top_k = match o.take("top_k") {
        // vLLM's way to say all
        Some(f) if f.value().as_i64() == Some(-1) => Some(0),
        Some(f) => Some(f.count(0..=u32::MAX)?),
        None => None,
    };
    let repetition = o.take_any(&["repetition_penalty", "repeat_penalty"])?;
    let last_n = o.read("repeat_last_n", |f| f.integer(-1..=i64::from(i32::MAX)))?;
    Ok(Sampling {
        temperature: o.read("temperature", |f| f.number(0.0..=f64::MAX))?,
        top_k,
        top_p: o.read("top_p", |f| f.number(0.0..=1.0))?,
        min_p: o.read("min_p", |f| f.number(0.0..=1.0))?,
        repetition_penalty: repetition.map(|f| f.number(0.01..=100.0)).transpose()?,
        penalty_last_n: last_n.map(|n| n as i32),
        presence_penalty: o.read("presence_penalty", penalty)?,
        frequency_penalty: o.read("frequency_penalty", penalty)?,
        seed: o.take("seed").map(seed).transpose()?.flatten(),
        logit_bias: o.take("logit_bias").map(logit_bias).transpose()?.unwrap_or_default(),
    })
}

/// -1 is llama.cpp's, vLLM's and Ollama's way to ask for a random one; other negative numbers are as good as any.
pub(crate) fn seed(f: Field) -> Result<Option<u64>> {
    if let Some(n) = f.value().as_u64() {
        return Ok(Some(n));
    }
    let n = f.integer(i64::MIN..=i64::MAX)?;
    Ok((n != -1).then_some(n as u64))
}

fn logit_bias(f: Field) -> Result<Vec<(u32, f64)>> {
    let mut out = Vec::new();
    for (key, field) in f.object()?.into_fields() {
        let Ok(id) = key.parse::<u32>() else {
            return Err(field.error("must have token ids (whole numbers) as keys"));
        };
        out.push((id, field.number(-100.0..=100.0)?));
    }
    out.sort_by_key(|(id, _)| *id);
    if let Some(twice) = out.windows(2).find(|w| w[0].0 == w[1].0) {
        return Err(crate::ApiError::invalid(
            "logit_bias",
            format!("'logit_bias' names the token {} twice", twice[0].0),
        ));
    }
    Ok(out)
}

pub(super) fn at_most(f: Field, most: usize) -> Result<Field> {
    match f.value().as_array() {
        Some(items) if items.len() > most => Err(f.error(format_args!("may have at most {most} items"))),
        _ => Ok(f),
    }
}

/// `stop`: one text or several.
pub(crate) fn stop(f: Field) -> Result<Vec<String>> {
    if f.is_string() {
        return Ok(vec![f.name()?]);
    }
    if !f.is_array() {
        return Err(f.expected("a string or an array of strings"));
    }
    at_most(f, STOPS_MAX)?.list(Field::name)
}

/// `tools` of chat and of Ollama: `{"type": "function", "function": {...}}` each.
pub(crate) fn tools(f: Field) -> Result<Vec<Tool>> {
    let tools = f.list(|f| {
        let mut o = f.object()?;
        function_type(&mut o)?;
        let mut function = o.require("function")?.object()?;
        o.finish(&[])?;
        let tool = tool(&mut function)?;
        function.finish(&[])?;
        Ok(tool)
    })?;
    unique(&tools)?;
    Ok(tools)
}

/// `type`, which may only be `function`.
pub(crate) fn function_type(o: &mut Object) -> Result<()> {
    match o.take("type") {
        Some(f) if f.as_str() == Some("function") => Ok(()),
        Some(f) if f.is_string() => Err(f.unsupported("; only functions are")),
        Some(f) => Err(f.expected("\"function\"")),
        None => Ok(()),
    }
}

/// Name, description, schema: wherever they stand.
pub(crate) fn tool(o: &mut Object) -> Result<Tool> {
    Ok(Tool {
        name: o.require("name")?.name()?,
        description: o.read("description", Field::string)?,
        parameters: o.read("parameters", Field::map)?.unwrap_or_else(no_parameters),
        strict: o.read("strict", Field::bool)?,
        cache: None,
    })
}

/// The schema of a function without arguments.
pub(crate) fn no_parameters() -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("type".into(), "object".into());
    out.insert("properties".into(), Map::new().into());
    out
}

/// Refuses tools that a call could not tell apart.
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

/// `tool_choice`; `named` reads the name out of the object form.
pub(super) fn tool_choice(f: Field, named: impl FnOnce(&mut Object) -> Result<String>) -> Result<ToolChoice> {
    if f.is_object() {
        let mut o = f.object()?;
        function_type(&mut o)?;
        let name = named(&mut o)?;
        o.finish(&[])?;
        return Ok(ToolChoice::Named(name));
    }
    match f.as_str() {
        Some("auto") => Ok(ToolChoice::Auto),
        Some("none") => Ok(ToolChoice::None),
        Some("required") => Ok(ToolChoice::Required),
        _ => Err(f.expected("\"auto\", \"none\", \"required\" or a function by name")),
    }
}

/// A choice must be possible.
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

/// `reasoning_effort`, wherever it stands.
pub(crate) fn effort(f: Field, chat: &mut Chat) -> Result<()> {
    let mut names = vec![("none", None)];
    names.extend(Effort::NAMES.map(|(name, effort)| (name, Some(effort))));
    chat.reasoning.effort = f.one_of(&names)?;
    chat.reasoning.enabled = Some(chat.reasoning.effort.is_some());
    Ok(())
}

/// What vLLM, llama.cpp and Qwen's own API have to control thinking and the template.
pub(super) fn thinking(o: &mut Object, chat: &mut Chat) -> Result<()> {
    if let Some(f) = o.take_any(&["thinking_token_budget", "thinking_budget_tokens", "thinking_budget"])? {
        chat.reasoning.budget_tokens = f.limit(0)?;
    }
    if let Some(f) = o.take("include_reasoning") {
        chat.reasoning.hide = !f.bool()?;
    }
    let why = "reasoning comes apart from the answer; say --reasoning-format on the server";
    o.only("reasoning_format", &["auto".into(), "deepseek".into()], why)?;
    switch(o.take("enable_thinking"), chat)?;
    if let Some(f) = o.take("chat_template_kwargs") {
        let mut kwargs = f.object()?;
        switch(kwargs.take("enable_thinking"), chat)?;
        chat.template_kwargs = kwargs.into_fields().map(|(key, field)| (key, field.raw())).collect();
    }
    Ok(())
}

fn switch(f: Option<Field>, chat: &mut Chat) -> Result<()> {
    let Some(f) = f else { return Ok(()) };
    let path = f.path();
    let enabled = f.bool()?;
    if chat.reasoning.enabled.is_some_and(|e| e != enabled) {
        let said = if enabled { "off" } else { "on" };
        return Err(crate::ApiError::invalid(
            path.clone(),
            format!("'{path}' is {enabled}, but another field of the request switches thinking {said}"),
        ));
    }
    chat.reasoning.enabled = Some(enabled);
    Ok(())
}

/// All the places where a format of the answer may be asked for, besides `response_format`.
pub(super) fn structured(o: &mut Object, r: &mut GenerateRequest) -> Result<()> {
    let format = &r.response_format;
    let mut found = Vec::new();
    if let Some(f) = o.take("structured_outputs") {
        let mut s = f.object()?;
        constraints(&mut s, ["json", "json_object", "regex", "choice", "grammar"], &mut found)?;
        s.only("structural_tag", &[], "use 'tools' and 'tool_choice'")?;
        let why = "how a grammar is followed is the server's matter";
        s.only("whitespace_pattern", &[], why)?;
        s.only("disable_any_whitespace", &[false.into()], why)?;
        s.only("disable_fallback", &[true.into(), false.into()], why)?;
        s.finish(&[])?;
    }
    let guided = ["guided_json", "guided_json_object", "guided_regex", "guided_choice", "guided_grammar"];
    constraints(o, guided, &mut found)?;
    if let Some(f) = o.take("json_schema") {
        found.push((f.path(), json_schema(schema(f)?)));
    }
    match found.len() {
        0 => return Ok(()),
        1 if *format == ResponseFormat::Text => {}
        _ => {
            let names: Vec<_> = found.iter().map(|(path, _)| format!("'{path}'")).collect();
            let also = if *format == ResponseFormat::Text { "" } else { " besides 'response_format'" };
            return Err(crate::ApiError::invalid(
                found[0].0.clone(),
                format!("only one format of the answer can be asked for; got {}{also}", names.join(" and ")),
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
        found.push((f.path(), ResponseFormat::Grammar(f.name()?)));
    }
    Ok(())
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

/// Name, description, schema and strictness of a JSON schema, from an object that has them.
pub(super) fn named_schema(o: &mut Object) -> Result<ResponseFormat> {
    Ok(ResponseFormat::JsonSchema {
        name: Some(o.require("name")?.name()?),
        description: o.read("description", Field::string)?,
        schema: o.require("schema").and_then(schema)?,
        strict: o.read("strict", Field::bool)?,
    })
}

/// `response_format` of chat and completions.
pub(super) fn response_format(f: Field) -> Result<ResponseFormat> {
    let mut o = f.object()?;
    let kind = o.require("type")?;
    let format = match kind.as_str() {
        Some("text") => ResponseFormat::Text,
        // llama.cpp's clients put a schema beside it.
        Some("json_object") => match o.take("schema") {
            Some(f) => json_schema(schema(f)?),
            None => ResponseFormat::JsonObject,
        },
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

/// The reverse of `structured` and `response_format`: the field and its value, `None` for plain text.
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
        ResponseFormat::Choice(choices) => ("structured_outputs", json!({"choice": choices})),
    })
}
