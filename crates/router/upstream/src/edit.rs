//! A configuration's changes of a provider's request, as a map of values: parameters dropped, renamed, set, a body merged in. `rewrite`
//! does the same on bytes where possible.

use octet_config::Changes;
use serde_json::{Map, Value};

/// The field that holds the chat template's variables.
pub(crate) const KWARGS: &str = "chat_template_kwargs";

/// The template's variables for whether the model thinks; templates have one name or the other.
pub(crate) const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];
/// Fields by which clients say whether the model thinks.
pub(crate) const THINKING: [&str; 5] =
    ["reasoning_effort", "reasoning", "enable_thinking", "thinking", KWARGS];

/// Whether the model shall think, if a client's field says so.
pub(crate) fn wants_thinking(field: &str, value: &Value) -> Option<bool> {
    let by_effort =
        |v: &Value| v.as_str().filter(|effort| *effort != "default").map(|effort| effort != "none");
    match field {
        "reasoning_effort" => by_effort(value),
        "reasoning" => {
            let effort = value.get("effort").and_then(by_effort);
            let enabled = effort.or_else(|| value.get("enabled").and_then(Value::as_bool));
            enabled.or_else(|| value.get("max_tokens").and_then(Value::as_u64).map(|n| n > 0))
        }
        KWARGS => SWITCHES.iter().find_map(|switch| value.get(switch).and_then(Value::as_bool)),
        "enable_thinking" => value.as_bool(),
        "thinking" => value.as_bool().or_else(|| value.get("type")?.as_str().map(|kind| kind != "disabled")),
        _ => None,
    }
}

/// A deployment's switches as the client wants them; those that it does not have are not added.
pub(crate) fn set_switches(kwargs: &mut Map<String, Value>, wanted: Option<bool>) {
    let Some(wanted) = wanted else { return };
    for switch in SWITCHES {
        if let Some(value) = kwargs.get_mut(switch) {
            *value = wanted.into();
        }
    }
}

/// Whether a name is a path into a field.
pub(crate) fn is_path(name: &str) -> bool {
    name.contains(['.', '['])
}

/// Whether nested fields are changed, which needs a parsed body.
pub(crate) fn goes_deep(changes: &Changes) -> bool {
    let e = &changes.edits;
    let renamed = e.rename.iter().flat_map(|(from, to)| [from, to]);
    e.drop.iter().chain(renamed).chain(e.set.keys()).any(|name| is_path(name))
}

/// Changes a request. `defaults` apply if the client sets nothing.
pub(crate) fn apply(changes: &Changes, defaults: &Map<String, Value>, json: &mut Map<String, Value>) {
    let edits = &changes.edits;
    for path in &edits.drop {
        take(json, path);
    }
    for (from, to) in &edits.rename {
        if let Some(value) = take(json, from)
            && !has(json, to)
        {
            put(json, to, value);
        }
    }
    let wanted = THINKING.iter().find_map(|field| wants_thinking(field, json.get(*field)?));
    for (name, value) in &edits.set {
        put(json, name, value.clone());
    }
    for (name, value) in defaults {
        json.entry(name.as_str()).or_insert_with(|| value.clone());
    }
    let mut kwargs = changes.chat_template_kwargs.clone();
    set_switches(&mut kwargs, wanted);
    if !kwargs.is_empty() && !edits.set.contains_key(KWARGS) {
        if let Some(Value::Object(client)) = json.get_mut(KWARGS) {
            merge(&mut kwargs, client);
        }
        json.insert(KWARGS.into(), kwargs.into());
    }
    merge(json, &changes.extra_body);
}

/// Merges `from` into `into`; objects recursively.
pub(crate) fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            _ => {
                into.insert(name.clone(), value.clone());
            }
        }
    }
}

/// The steps of a path: names, `*` for all items of a list, or an index.
fn steps(path: &str) -> Vec<&str> {
    path.split(['.', '[']).map(|step| step.trim_end_matches(']')).collect()
}

fn has(json: &Map<String, Value>, path: &str) -> bool {
    if json.contains_key(path) {
        return true;
    }
    let mut steps = steps(path).into_iter();
    let first = steps.next().and_then(|step| json.get(step));
    steps.try_fold(first, |value, step| value.map(|v| v.get(step))).flatten().is_some_and(|_| is_path(path))
}

/// Removes what a path names; returns the last removed value.
fn take(json: &mut Map<String, Value>, path: &str) -> Option<Value> {
    // A name may contain a dot.
    if let Some(value) = json.shift_remove(path) {
        return Some(value);
    }
    match steps(path).as_slice() {
        [first, rest @ ..] if !rest.is_empty() => take_within(json.get_mut(*first)?, rest),
        _ => None,
    }
}

fn take_within(value: &mut Value, steps: &[&str]) -> Option<Value> {
    let [step, rest @ ..] = steps else { return None };
    match value {
        Value::Object(map) if rest.is_empty() => map.shift_remove(*step),
        Value::Object(map) => take_within(map.get_mut(*step)?, rest),
        Value::Array(list) if *step == "*" && rest.is_empty() => list.drain(..).next_back(),
        Value::Array(list) if *step == "*" => list.iter_mut().filter_map(|v| take_within(v, rest)).last(),
        Value::Array(list) => {
            let at = step.parse::<usize>().ok().filter(|at| *at < list.len())?;
            if rest.is_empty() { Some(list.remove(at)) } else { take_within(&mut list[at], rest) }
        }
        _ => None,
    }
}

/// Sets what a path names. Missing objects are created; other values on the path stay.
fn put(json: &mut Map<String, Value>, path: &str, value: Value) {
    if json.contains_key(path) || !is_path(path) {
        json.insert(path.into(), value);
        return;
    }
    let steps = steps(path);
    let Some((first, rest)) = steps.split_first() else { return };
    put_within(json.entry(*first).or_insert_with(|| Map::new().into()), rest, value);
}

fn put_within(at: &mut Value, steps: &[&str], value: Value) {
    let Some((step, rest)) = steps.split_first() else {
        *at = value;
        return;
    };
    match at {
        Value::Object(map) => {
            put_within(map.entry(*step).or_insert_with(|| Map::new().into()), rest, value);
        }
        Value::Array(list) if *step == "*" => {
            list.iter_mut().for_each(|v| put_within(v, rest, value.clone()));
        }
        Value::Array(list) => {
            if let Some(v) = step.parse::<usize>().ok().and_then(|at| list.get_mut(at)) {
                put_within(v, rest, value);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use octet_config::Edits;
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn parameters_are_dropped_renamed_set_and_a_body_merged_in() {
        let edits = Edits {
            drop: ["user", "tools[*].function.strict", "a.b.c", "list[1]"].map(String::from).to_vec(),
            rename: [("max_tokens", "max_completion_tokens"), ("x", "y"), ("deep.old", "deep.new")]
                .map(|(a, b)| (a.to_string(), b.to_string()))
                .to_vec(),
            set: map(
                json!({"seed": 1, "user": "gateway", "options.num_ctx": 5, "tools[*].type": "function"}),
            ),
        };
        let changes = Changes {
            edits,
            extra_body: map(json!({"options": {"num_gpu": 1}, "priority": 2})),
            chat_template_kwargs: map(json!({"enable_thinking": false, "k": 1})),
            drop_params: false,
            modify_params: false,
        };
        let mut body = map(json!({
            "temperature": 1, "user": "me", "max_tokens": 5, "x": 1, "y": 2, "a": {"b": {"c": 1, "d": 2}},
            "tools": [{"function": {"name": "f", "strict": true}}, 3], "list": [1, 2, 3], "seed": 9,
            "deep": {"old": 1}, "chat_template_kwargs": {"enable_thinking": true},
        }));
        assert!(goes_deep(&changes));
        apply(&changes, &map(json!({"temperature": 0.5, "top_p": 0.9})), &mut body);
        let expected = json!({
            "temperature": 1, "y": 2, "a": {"b": {"d": 2}}, "list": [1, 3], "seed": 1, "deep": {"new": 1},
            "tools": [{"function": {"name": "f"}, "type": "function"}, 3], "user": "gateway",
            "chat_template_kwargs": {"enable_thinking": true, "k": 1},
            "max_completion_tokens": 5, "options": {"num_ctx": 5, "num_gpu": 1}, "top_p": 0.9, "priority": 2,
        });
        assert_eq!(Value::Object(body), expected);
    }

    #[test]
    fn what_a_client_says_about_thinking_takes_precedence_over_defaults() {
        let changes = Changes {
            chat_template_kwargs: map(json!({"enable_thinking": true, "thinking": true, "k": 1})),
            ..Changes::default()
        };
        let changed = |body: Value| {
            let mut body = map(body);
            apply(&changes, &Map::new(), &mut body);
            body[KWARGS].clone()
        };
        for (said, thinks) in [
            (json!({"reasoning_effort": "none"}), false),
            (json!({"reasoning_effort": "high"}), true),
            (json!({"reasoning": {"effort": "none"}}), false),
            (json!({"reasoning": {"enabled": false}}), false),
            (json!({"reasoning": {"max_tokens": 4000}}), true),
            (json!({"enable_thinking": false}), false),
            (json!({"thinking": {"type": "disabled"}}), false),
            (json!({"thinking": {"type": "enabled"}}), true),
        ] {
            let switches = json!({"k": 1, "enable_thinking": thinks, "thinking": thinks});
            assert_eq!(changed(said.clone()), switches, "{said}");
        }
        let own = json!({"chat_template_kwargs": {"thinking": false}});
        assert_eq!(changed(own), json!({"k": 1, "enable_thinking": false, "thinking": false}));
        for nothing in
            [json!({}), json!({"reasoning_effort": "default"}), json!({"reasoning": {"exclude": true}})]
        {
            assert_eq!(changed(nothing.clone())["enable_thinking"], true, "{nothing}");
        }
    }

    #[test]
    fn paths_that_lead_nowhere_change_nothing() {
        let body = map(json!({"a": [1], "b": "text", "c": null}));
        for path in ["a[7]", "a[x].y", "b.c", "c.d[*]", "d", "", "[*]", "a.b.", "a[0].x"] {
            let mut edited = body.clone();
            assert_eq!(take(&mut edited, path), None, "{path}");
            assert_eq!(edited, body, "{path}");
        }
        let mut edited = body.clone();
        put(&mut edited, "b.c", 1.into());
        put(&mut edited, "a[7]", 1.into());
        assert_eq!(edited, body);
    }
}
