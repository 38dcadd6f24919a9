//! What a configuration changes in a request on its way: fields dropped, renamed, filled in, set. Applied to a body as a
//! map of values; `rewrite` does the same to bytes.

use serde_json::{Map, Value};

/// Changes to a request, in the order of the fields here.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Edits {
    /// Fields that are taken out: names, or paths like `reasoning.effort` and `tools[*].function.strict`.
    pub drop: Vec<String>,
    /// Fields that get another name, from and to. Where the new one is there already, the old one is dropped.
    pub rename: Vec<(String, String)>,
    /// Fields that are filled in where the client says nothing.
    pub defaults: Map<String, Value>,
    /// Fields that are set, whatever the client says.
    pub set: Map<String, Value>,
    /// Variables of the chat template that are set within `chat_template_kwargs`; the client's others stay.
    pub chat_template_kwargs: Map<String, Value>,
}

/// The field that holds the template's variables.
pub(crate) const KWARGS: &str = "chat_template_kwargs";

impl Edits {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.drop.is_empty()
            && self.rename.is_empty()
            && self.defaults.is_empty()
            && self.set.is_empty()
            && self.chat_template_kwargs.is_empty()
    }

    /// Whether fields within fields are dropped, which only a parsed body shows.
    pub(crate) fn goes_deep(&self) -> bool {
        self.drop.iter().any(|path| path.contains(['.', '[']))
    }

    /// Changes a request.
    pub fn apply(&self, json: &mut Map<String, Value>) {
        for path in &self.drop {
            remove(json, path);
        }
        for (from, to) in &self.rename {
            if let Some(value) = json.shift_remove(from) {
                json.entry(to.as_str()).or_insert(value);
            }
        }
        for (name, value) in &self.defaults {
            json.entry(name.as_str()).or_insert_with(|| value.clone());
        }
        for (name, value) in &self.set {
            json.insert(name.clone(), value.clone());
        }
        if !self.chat_template_kwargs.is_empty() {
            let kwargs = json.entry(KWARGS).or_insert(Value::Null);
            *kwargs = self.kwargs(kwargs.take());
        }
    }

    /// The template's variables: ours over the client's.
    pub(crate) fn kwargs(&self, client: Value) -> Value {
        let mut all = match client {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        all.extend(self.chat_template_kwargs.iter().map(|(k, v)| (k.clone(), v.clone())));
        all.into()
    }
}

/// Takes out what a path names. Steps are names, `[*]` for all of a list, or `[2]`.
fn remove(json: &mut Map<String, Value>, path: &str) {
    // A name may itself hold a dot.
    if json.shift_remove(path).is_some() {
        return;
    }
    let steps: Vec<&str> = path.split(['.', '[']).map(|s| s.trim_end_matches(']')).collect();
    if let [first, rest @ ..] = steps.as_slice()
        && !rest.is_empty()
        && let Some(value) = json.get_mut(*first)
    {
        remove_within(value, rest);
    }
}

fn remove_within(value: &mut Value, steps: &[&str]) {
    let [step, rest @ ..] = steps else { return };
    match value {
        Value::Object(map) if rest.is_empty() => {
            map.shift_remove(*step);
        }
        Value::Object(map) => {
            if let Some(inner) = map.get_mut(*step) {
                remove_within(inner, rest);
            }
        }
        Value::Array(list) if *step == "*" && rest.is_empty() => list.clear(),
        Value::Array(list) if *step == "*" => list.iter_mut().for_each(|v| remove_within(v, rest)),
        Value::Array(list) => match step.parse::<usize>() {
            Ok(at) if at < list.len() && rest.is_empty() => {
                list.remove(at);
            }
            Ok(at) if at < list.len() => remove_within(&mut list[at], rest),
            _ => {}
        },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn fields_are_dropped_renamed_filled_in_and_set_in_this_order() {
        let edits = Edits {
            drop: vec!["user".into(), "tools[*].function.strict".into(), "a.b.c".into(), "list[1]".into()],
            rename: vec![("max_tokens".into(), "max_completion_tokens".into()), ("x".into(), "y".into())],
            defaults: map(json!({"temperature": 0.5, "top_p": 0.9})),
            set: map(json!({"seed": 1, "user": "gateway"})),
            chat_template_kwargs: map(json!({"enable_thinking": false})),
        };
        let mut body = map(json!({
            "temperature": 1, "user": "me", "max_tokens": 5, "x": 1, "y": 2, "a": {"b": {"c": 1, "d": 2}},
            "tools": [{"function": {"name": "f", "strict": true}}, 3], "list": [1, 2, 3], "seed": 9,
            "chat_template_kwargs": {"enable_thinking": true, "k": 1},
        }));
        edits.apply(&mut body);
        let expected = json!({
            "temperature": 1, "y": 2, "a": {"b": {"d": 2}}, "tools": [{"function": {"name": "f"}}, 3],
            "list": [1, 3], "seed": 1, "chat_template_kwargs": {"enable_thinking": false, "k": 1},
            "max_completion_tokens": 5, "top_p": 0.9, "user": "gateway",
        });
        assert_eq!(Value::Object(body), expected);
        assert!(edits.goes_deep() && !Edits::default().goes_deep() && Edits::default().is_empty());
    }

    #[test]
    fn paths_that_lead_nowhere_change_nothing() {
        let body = map(json!({"a": [1], "b": "text", "c": null}));
        for path in ["a[7]", "a[x].y", "b.c", "c.d[*]", "d", "", "[*]", "a.b.", "a[0].x"] {
            let mut edited = body.clone();
            remove(&mut edited, path);
            assert_eq!(edited, body, "{path}");
        }
    }
}
