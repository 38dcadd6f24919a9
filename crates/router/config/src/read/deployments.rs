//! `model_list`.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value as Json};

use super::any_provider::{self, Entries};
use super::params::{Defaults, body_defaults, continues};
use super::{engine, info, providers, remote};
use crate::fields::Fields;
use crate::grouped::LEFT_OUT;
use crate::keys::Kind;
use crate::problem::quoted;
use crate::reader::{Reader, folder};
use crate::sections::{BODY_KEYS, MODEL, MODEL_INFO, OLLAMA_OPTIONS, PARAMS, SAMPLING};
use crate::yaml::{Node, Value};
use crate::{
    Accepts, Auth, Changes, Deployment, Edits, GroupName, Local, ModelInfo, PriceList, Process,
    ProcessTarget, Provider, Remote, ResponsesUse, Shadow, Skipped, Target,
};

/// llama-swap's default of concurrent requests of a process.
const PROCESS_REQUESTS: u32 = 10;

/// Reads all entries, and adds one for each process.
pub(crate) fn read(fields: &Fields, defaults: &Defaults) -> (Vec<Deployment>, Vec<Skipped>) {
    let (mut deployments, mut skipped) = (Vec::new(), Vec::new());
    let entries = fields.list("model_list").unwrap_or_default();
    let written = |name: &str| entries.iter().any(|node| any_provider::name(node) == Some(name));
    for node in entries {
        let (nodes, reason) = match any_provider::expand(fields.reader, node, &written) {
            Entries::One => (vec![node.clone()], None),
            Entries::Each(nodes) => (nodes, None),
            Entries::None(reason) => (vec![node.clone()], Some(reason)),
        };
        for node in &nodes {
            match entry(fields.reader, node, defaults, reason.as_deref()) {
                Some(Ok(deployment)) => deployments.push(deployment),
                Some(Err(left_out)) => {
                    let text = format!("'{}'{LEFT_OUT}{}", left_out.group, left_out.reason);
                    fields.reader.note(&left_out.span, "model_list", text);
                    skipped.push(left_out);
                }
                None => {}
            }
        }
    }
    for process in defaults.processes {
        let others = process.filters.set_params_by_name.iter().map(|(name, _)| name);
        for name in std::iter::once(&process.id).chain(others.filter(|name| **name != process.id)) {
            let is_own = *name == process.id;
            let is_process = !is_own && defaults.processes.iter().any(|p| p.id == *name);
            let taken = is_process || deployments.iter().any(|d| d.group.as_str() == name);
            match GroupName::new(name).filter(|_| !taken) {
                Some(group) => deployments.push(of_process(process, group, defaults)),
                // An entry of model_list in its place is the configuration's wish.
                None if is_own => {}
                None => {
                    let why =
                        if taken { "another model has this name" } else { "no model can have this name" };
                    let text = format!("the parameters of '{name}' have no effect: {why}; choose another");
                    fields.reader.note(
                        &process.span,
                        format!("processes.models.{}.filters.setParamsByID", process.id),
                        text,
                    );
                }
            }
        }
    }
    unique_ids(fields.reader, &mut deployments);
    (deployments, skipped)
}

/// Reads one. An entry that is left out is still checked.
fn entry(
    reader: &Reader,
    node: &Node,
    defaults: &Defaults,
    reason: Option<&str>,
) -> Option<Result<Deployment, Skipped>> {
    let fields = Fields::new(reader, &MODEL, node)?;
    let group = fields.name("model_name");
    let params = fields.section("litellm_params", &PARAMS);
    let info = fields.section("model_info", &MODEL_INFO);
    let Some(group) = group else {
        if !fields.has("model_name") {
            reader.wrong(&node.span, "an entry of model_list needs a model_name: the name for clients");
        }
        return None;
    };
    let Some(group) = GroupName::new(&group) else {
        reader.wrong(&node.span, "the model_name is too long");
        return None;
    };
    let Some(params) = params else {
        if !fields.has("litellm_params") {
            reader.wrong(&node.span, format!("'{group}' needs litellm_params with a model"));
        }
        return None;
    };
    let left_out = |reason: String| Skipped { group: group.clone(), reason, span: node.span.clone() };
    if let Some(reason) = reason {
        return Some(Err(left_out(reason.into())));
    }
    let mode = match info::mode(info.as_ref()) {
        Ok(mode) => mode,
        Err(reason) => return Some(Err(left_out(reason))),
    };
    if info.as_ref().and_then(|i| i.bool("blocked")) == Some(true) {
        return Some(Err(left_out("model_info.blocked is true".into())));
    }
    let (read, missing) = reader.leaving_out(|| {
        let mut target = target(&params, defaults)?;
        let id = info.as_ref().and_then(|i| i.text("id")).unwrap_or_else(|| made_id(&group, node));
        let mut info = info::read(info.as_ref(), &params, mode);
        info.written = params.text("model").unwrap_or_default();
        info.mock = params.text("mock_response").filter(|text| !text.is_empty());
        info.discovers = discovers(&params, &target);
        price(&mut info, &params, &target, defaults.prices);
        if let Target::Remote(far) = &mut target {
            far.family = family(&info, &params).unwrap_or_default();
            let sees = Accepts::of(&far.family).images;
            info.supports_vision = info.supports_vision.or(sees.then_some(true));
        }
        Some(deployment(&params, group.clone(), target, id, info, defaults))
    });
    if !missing.is_empty() {
        return Some(Err(left_out(missing.join("; "))));
    }
    read.map(Ok)
}

/// Sets the price of a deployment whose entry has none, if it is reached at its provider's own address.
fn price(info: &mut ModelInfo, params: &Fields, target: &Target, prices: &PriceList) {
    let Target::Remote(far) = target else { return };
    if info.input_cost_per_token.or(info.output_cost_per_token).is_some() {
        return;
    }
    let (stated, model) = (params.name("custom_llm_provider"), params.name("model"));
    let Some(Ok((known, model))) = model.as_ref().map(|m| providers::split(m, stated.as_deref())) else {
        return;
    };
    let is_theirs = match known.base {
        Some(base) => far.api_base.starts_with(base.split('{').next().unwrap_or(base)),
        None => known.prefix == "azure",
    };
    if !is_theirs {
        return;
    }
    let name = match &info.base_model {
        Some(base) if base.contains('/') => base.clone(),
        Some(base) => format!("{}/{base}", known.prefix),
        None => {
            let bare = remote::without_word(far.provider, model).map_or(model, |(_, rest)| rest);
            format!("{}/{bare}", known.prefix)
        }
    };
    if let Some(price) = prices.get(&name) {
        info.input_cost_per_token = Some(price.input);
        info.output_cost_per_token = Some(price.output);
        info.cached_input_cost_per_token = info.cached_input_cost_per_token.or(price.cache_read);
        info.cache_write_cost_per_token = info.cache_write_cost_per_token.or(price.cache_write);
    }
    info.priced_as = Some(name);
}

/// The name of an entry's model in the table of families.
fn family(info: &ModelInfo, params: &Fields) -> Option<String> {
    let model = params.name("model")?;
    let (known, model) = providers::split(&model, params.name("custom_llm_provider").as_deref()).ok()?;
    Some(match &info.base_model {
        Some(base) if base.contains('/') => base.clone(),
        Some(base) => format!("{}/{base}", known.prefix),
        None => format!("{}/{}", known.prefix, model.strip_prefix("responses/").unwrap_or(model)),
    })
}

fn deployment(
    params: &Fields,
    group: GroupName,
    target: Target,
    id: String,
    info: ModelInfo,
    defaults: &Defaults,
) -> Deployment {
    let process = match &target {
        Target::Process(p) => defaults.processes.iter().find(|known| known.id == p.process),
        _ => None,
    };
    let limit = process.map(|p| p.concurrency_limit.unwrap_or(PROCESS_REQUESTS));
    let shadow = params
        .name("silent_model")
        .map(|group| Shadow { group, share: params.number("silent_share", 0.0, 1.0).unwrap_or(1.0) });
    if shadow.is_none() && params.has("silent_share") {
        params.reader.wrong(params.span, "silent_share needs a silent_model: the group that gets the copies");
    }
    let mut of_requests = sampling(params);
    of_requests.extend(body_defaults(params, &target));
    Deployment {
        id,
        group,
        target,
        weight: params.number("weight", 0.0, 1e9),
        order: params.count("order", 0),
        tags: params.texts("tags").unwrap_or_default(),
        rpm: params.count("rpm", 1),
        tpm: params.count("tpm", 1),
        max_parallel_requests: params
            .count("max_parallel_requests", 1)
            .or(limit)
            .or(defaults.max_parallel_requests),
        timeout: params.limit("timeout"),
        stream_timeout: params.limit("stream_timeout"),
        cooldown_time: params.time("cooldown_time"),
        num_retries: params.count("num_retries", 0),
        shadow,
        params: of_requests,
        info,
        span: params.span.clone(),
    }
}

/// The deployment of a process under its own name, or another one that has its own parameters.
fn of_process(process: &Process, group: GroupName, defaults: &Defaults) -> Deployment {
    let mut changes = Changes {
        drop_params: defaults.drop_params,
        modify_params: defaults.modify_params,
        ..Changes::default()
    };
    let by_name = &process.filters.set_params_by_name;
    if let Some((_, set)) = by_name.iter().find(|(name, _)| *name == group.as_str()) {
        changes.edits.set = set.clone();
    }
    let name = group.as_str();
    Deployment {
        id: if name == process.id {
            format!("process/{name}")
        } else {
            format!("process/{}/{name}", process.id)
        },
        group,
        target: Target::Process(process_target(process, changes)),
        weight: None,
        order: None,
        tags: Vec::new(),
        rpm: None,
        tpm: None,
        max_parallel_requests: Some(process.concurrency_limit.unwrap_or(PROCESS_REQUESTS)),
        timeout: None,
        stream_timeout: None,
        cooldown_time: None,
        num_retries: None,
        shadow: None,
        params: Map::new(),
        info: ModelInfo { other: process.metadata.clone(), ..ModelInfo::default() },
        span: process.span.clone(),
    }
}

fn process_target(process: &Process, mut changes: Changes) -> ProcessTarget {
    let model = process.use_model_name.clone().unwrap_or_else(|| process.id.clone());
    changes.edits.drop.extend(process.filters.strip_params.iter().cloned());
    for (name, value) in &process.filters.set_params {
        changes.edits.set.entry(name).or_insert_with(|| value.clone());
    }
    ProcessTarget { process: process.id.clone(), model, continues: false, changes }
}

fn target(params: &Fields, defaults: &Defaults) -> Option<Target> {
    let Some(model) = params.name("model") else {
        if !params.has("model") {
            params.reader.wrong(params.span, "litellm_params needs a model");
        }
        return None;
    };
    let span = params.get("model").map_or(params.span, |n| &n.span);
    let changes = changes(params, defaults);
    if let Some(name) = model.strip_prefix("octet/") {
        ignore_remote(params);
        if let Some(node) = params.get("continues") {
            let text = "ignored: it is for other servers; a local model always does this";
            params.reader.note(&node.span, "litellm_params.continues", text);
        }
        return Some(Target::Local(Local {
            model: name.to_string(),
            base: folder(span).to_path_buf(),
            engine: engine::settings(params),
            changes,
        }));
    }
    if params.names_unused("mock_timeout") {
        params.reader.unfit(span, "mock failures are not supported; use a test server as api_base instead");
        return None;
    }
    if params.text("mock_response").is_some_and(|text| !text.is_empty()) {
        return Some(Target::Remote(mocked(params, &model, changes)));
    }
    if let Some(id) = model.strip_prefix("process/") {
        ignore_remote(params);
        let found = defaults.processes.iter().find(|p| p.id == id);
        if found.is_none() {
            let known = defaults.processes.iter().map(|p| p.id.as_str());
            let near = crate::problem::nearest(id, known)
                .map_or(String::new(), |n| format!(" (did you mean '{n}'?)"));
            params
                .reader
                .wrong(span, format!("there is no process {} under processes.models{near}", quoted(id)));
        }
        let continues = continues(params, Provider::OpenAiCompatible, false, &changes);
        return found
            .map(|process| Target::Process(ProcessTarget { continues, ..process_target(process, changes) }));
    }
    remote::read(params, &model, changes, defaults).map(Target::Remote)
}

/// The target of an entry with `mock_response`, which is never reached. Its provider's parameters have no effect.
fn mocked(params: &Fields, model: &str, changes: Changes) -> Remote {
    for name in ["api_base", "api_key", "api_version", "organization", "custom_llm_provider", "extra_headers"]
    {
        let _ = params.get(name);
    }
    Remote {
        provider: Provider::OpenAiCompatible,
        model: model.split_once('/').map_or(model, |(_, name)| name).into(),
        api_base: "http://mock.invalid/v1".into(),
        api_key: None,
        organization: None,
        api_version: None,
        extra_headers: Vec::new(),
        continues: false,
        responses: ResponsesUse::None,
        auth: Auth::Key,
        family: String::new(),
        changes,
    }
}

/// `discover: dns`.
fn discovers(params: &Fields, target: &Target) -> bool {
    let wanted = params.one_of("discover", &[("dns", true)]).unwrap_or(false);
    let has_name = matches!(target, Target::Remote(far) if far.api_base.starts_with("http://"));
    if wanted && !has_name {
        let span = params.get("discover").map_or(params.span, |n| &n.span);
        let text = "discover: dns needs an api_base like http://NAME:8000/v1; TLS needs the name, so https:// is not possible";
        params.reader.wrong(span, text);
    }
    wanted && has_name
}

/// Reports keys without effect for a local model.
fn ignore_remote(params: &Fields) {
    for name in [
        "api_base",
        "api_key",
        "api_version",
        "organization",
        "custom_llm_provider",
        "litellm_credential_name",
        "extra_headers",
        "web_search_options",
    ]
    .iter()
    .chain(BODY_KEYS)
    .chain(OLLAMA_OPTIONS)
    {
        if let Some(node) = params.get(name) {
            let key = format!("litellm_params.{name}");
            params.reader.note(&node.span, key, "ignored: it is for remote models");
        }
    }
}

fn changes(params: &Fields, defaults: &Defaults) -> Changes {
    let mut extra_body = params.json_map("extra_body").unwrap_or_default();
    let mut kwargs = match extra_body.shift_remove("chat_template_kwargs") {
        Some(Json::Object(kwargs)) => kwargs,
        None | Some(Json::Null) => Map::new(),
        Some(_) => {
            params.reader.wrong(
                params.span,
                "extra_body.chat_template_kwargs must be a mapping, like {enable_thinking: false}",
            );
            Map::new()
        }
    };
    kwargs.extend(params.json_map("chat_template_kwargs").unwrap_or_default());
    let rename = params.map("rename_params").unwrap_or_default();
    let (drop_params, dropped) = drop_params(params);
    let drop_params = drop_params.unwrap_or(defaults.drop_params);
    let edits = Edits {
        drop: params.texts("additional_drop_params").into_iter().flatten().chain(dropped).collect(),
        rename: rename
            .iter()
            .filter_map(|e| Some((e.key.clone(), params.text_of("rename_params", &e.node)?)))
            .collect(),
        set: params.json_map("set_params").unwrap_or_default(),
    };
    let modify_params = params.bool("modify_params").unwrap_or(defaults.modify_params);
    Changes { edits, extra_body, chat_template_kwargs: kwargs, drop_params, modify_params }
}

/// `drop_params`: whether unsupported parameters are dropped; a list of names drops those too.
pub(crate) fn drop_params(fields: &Fields) -> (Option<bool>, Vec<String>) {
    match fields.get("drop_params").map(|n| &n.value) {
        Some(Value::List(_)) => {
            let names = fields.texts("drop_params").unwrap_or_default();
            (Some(!names.is_empty()), names)
        }
        _ => (fields.bool("drop_params"), Vec::new()),
    }
}

/// Default parameters of requests, checked by type.
fn sampling(params: &Fields) -> Map<String, Json> {
    let mut out = Map::new();
    for name in SAMPLING {
        let Some((node, key)) = params.get(name).zip(params.section.key(name)) else { continue };
        let value = match key.kind {
            _ if *name == "reasoning_effort" => effort(params, node),
            Kind::Number => params.number(name, f64::MIN, f64::MAX).map(Json::from),
            Kind::Count => params.count::<u64>(name, 0).map(Json::from),
            Kind::Bool => params.bool(name).map(Json::from),
            Kind::Text => params.text(name).map(Json::from),
            Kind::Texts => params.texts(name).map(Json::from),
            Kind::Json => params.json_map(name).map(Json::from),
            _ => Some(params.reader.json(node)),
        };
        // Numbers are passed on as written: 1 stays 1.
        let value = match (&node.value, value) {
            (Value::Int(_), Some(_)) => Some(params.reader.json(node)),
            (_, value) => value,
        };
        out.extend(value.map(|v| (name.to_string(), v)));
    }
    out
}

/// `reasoning_effort: high`, or as in the Responses API: `{effort: high, summary: detailed}`.
fn effort(params: &Fields, node: &Node) -> Option<Json> {
    let Value::Map(entries) = &node.value else { return params.text("reasoning_effort").map(Json::from) };
    for entry in entries.iter().filter(|e| e.key != "effort") {
        let key = format!("litellm_params.reasoning_effort.{}", entry.key);
        params.reader.note(&entry.span, key, "ignored: effort alone is sent");
    }
    let entry = entries.iter().find(|e| e.key == "effort")?;
    params.text_of("reasoning_effort.effort", &entry.node).map(Json::from)
}

/// An id that depends on the entry alone, without its keys: a new key does not create a new deployment.
fn made_id(group: &GroupName, node: &Node) -> String {
    fn add(node: &Node, hasher: &mut DefaultHasher) {
        match &node.value {
            Value::Null => 0.hash(hasher),
            Value::Bool(b) => b.hash(hasher),
            Value::Int(i) => i.hash(hasher),
            Value::Float(f) => f.to_bits().hash(hasher),
            Value::Text(t) => t.hash(hasher),
            Value::List(items) => items.iter().for_each(|i| add(i, hasher)),
            Value::Map(entries) => {
                let secret = |key: &str| {
                    matches!(
                        key,
                        "api_key"
                            | "extra_headers"
                            | "headers"
                            | "vertex_credentials"
                            | "vertex_ai_credentials"
                    ) || matches!(key, "aws_access_key_id" | "aws_secret_access_key" | "aws_session_token")
                };
                for entry in entries.iter().filter(|e| !secret(&e.key)) {
                    entry.key.hash(hasher);
                    add(&entry.node, hasher);
                }
            }
        }
    }
    let mut hasher = DefaultHasher::new();
    add(node, &mut hasher);
    format!("{group}-{:08x}", hasher.finish() as u32)
}

fn unique_ids(reader: &Reader, deployments: &mut [Deployment]) {
    let mut taken: HashSet<String> = HashSet::new();
    for deployment in deployments {
        let own = deployment.id.clone();
        let mut count = 1;
        while !taken.insert(deployment.id.clone()) {
            count += 1;
            deployment.id = format!("{own}-{count}");
        }
        if count > 1 {
            let text = format!(
                "another deployment has the id '{own}' (or is identical); this one gets the id '{}'",
                deployment.id
            );
            reader.note(&deployment.span, "model_info.id", text);
        }
    }
}
