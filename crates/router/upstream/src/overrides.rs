//! A configuration's changes of requests for a local model. Parameters mean the same as for a provider; those without a field in a request
//! have no effect here.

use octet_api::core::{GenerateRequest, Input};
use octet_config::Changes;
use serde_json::{Map, Value};

use crate::edit::{KWARGS, SWITCHES, merge};
use crate::overlay::{Overlay, clear};

/// The template variable that every dialect has a field for.
const THINKING: &str = "enable_thinking";

/// A configuration's changes, prepared once.
#[derive(Debug)]
pub struct Overrides {
    dropped: Vec<String>,
    /// Takes precedence over the client.
    forced: Overlay,
    forced_kwargs: Map<String, Value>,
    /// The client takes precedence.
    defaults: Overlay,
    default_kwargs: Map<String, Value>,
    is_nothing: bool,
}

impl Overrides {
    /// Reads `changes`, and `params` as defaults.
    pub fn new(changes: &Changes, params: &Map<String, Value>) -> Self {
        let mut forced = changes.edits.set.clone();
        merge(&mut forced, &changes.extra_body);
        let forced_kwargs = match forced.shift_remove(KWARGS) {
            Some(Value::Object(kwargs)) => kwargs,
            _ => Map::new(),
        };
        let is_nothing = changes.edits.drop.is_empty()
            && forced.is_empty()
            && forced_kwargs.is_empty()
            && params.is_empty()
            && changes.chat_template_kwargs.is_empty();
        Self {
            dropped: changes.edits.drop.clone(),
            forced: Overlay::new(&forced),
            forced_kwargs,
            defaults: Overlay::new(params),
            default_kwargs: changes.chat_template_kwargs.clone(),
            is_nothing,
        }
    }

    /// Whether requests stay unchanged.
    pub fn is_nothing(&self) -> bool {
        self.is_nothing
    }

    /// Names of settings without effect on a local model, for a warning.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.forced.rest.keys().chain(self.defaults.rest.keys()).map(String::as_str)
    }

    /// Changes a request.
    pub fn apply(&self, r: &mut GenerateRequest) {
        for name in &self.dropped {
            clear(r, name);
        }
        self.forced.apply(r, true);
        if let Input::Chat(chat) = &mut r.input {
            let is_set = chat.reasoning.enabled.is_some();
            for (name, value) in &self.default_kwargs {
                let is_overridden = is_set && SWITCHES.contains(&name.as_str());
                if !is_overridden && !chat.template_kwargs.contains_key(name) {
                    chat.template_kwargs.insert(name.clone(), value.clone());
                }
            }
            merge(&mut chat.template_kwargs, &self.forced_kwargs);
            let forced = self.forced_kwargs.get(THINKING).and_then(Value::as_bool);
            let filled = chat.template_kwargs.get(THINKING).and_then(Value::as_bool);
            chat.reasoning.enabled = forced.or(chat.reasoning.enabled).or(filled);
        }
        self.defaults.apply(r, false);
    }
}

#[cfg(test)]
mod tests {
    use octet_api::core::Chat;
    use serde_json::json;

    use super::*;

    #[test]
    fn thinking_is_switched_and_clients_beat_defaults() {
        let map = |v: Value| if let Value::Object(map) = v { map } else { panic!("an object") };
        let changes = Changes {
            extra_body: map(json!({"chat_template_kwargs": {"enable_thinking": false}, "top_k": 7})),
            ..Changes::default()
        };
        let overrides = Overrides::new(&changes, &map(json!({"temperature": 0.5, "max_tokens": 9})));
        let mut r = GenerateRequest::new("m", Input::Chat(Chat::default()));
        r.sampling.temperature = Some(0.1);
        r.sampling.top_k = Some(1);
        overrides.apply(&mut r);
        assert_eq!((r.sampling.temperature, r.sampling.top_k, r.max_tokens), (Some(0.1), Some(7), Some(9)));
        assert_eq!(r.chat().unwrap().reasoning.enabled, Some(false));
        assert_eq!(r.chat().unwrap().template_kwargs, map(json!({"enable_thinking": false})));
        assert!(!overrides.is_nothing() && overrides.unknown().count() == 0);

        let changes =
            Changes { chat_template_kwargs: map(json!({"enable_thinking": false})), ..Changes::default() };
        let overrides = Overrides::new(&changes, &Map::new());
        let mut r = GenerateRequest::new("m", Input::Chat(Chat::default()));
        overrides.apply(&mut r);
        assert_eq!(r.chat().unwrap().reasoning.enabled, Some(false), "where the client does not say");
        let mut r = GenerateRequest::new("m", Input::Chat(Chat::default()));
        if let Input::Chat(chat) = &mut r.input {
            chat.reasoning.enabled = Some(true);
        }
        overrides.apply(&mut r);
        assert_eq!(r.chat().unwrap().reasoning.enabled, Some(true));
        // As an effort of "none" is read; templates have one name or the other.
        for name in ["enable_thinking", "thinking"] {
            let changes = Changes { chat_template_kwargs: map(json!({name: true})), ..Changes::default() };
            let mut r = GenerateRequest::new("m", Input::Chat(Chat::default()));
            if let Input::Chat(chat) = &mut r.input {
                chat.reasoning.enabled = Some(false);
            }
            Overrides::new(&changes, &Map::new()).apply(&mut r);
            let chat = r.chat().unwrap();
            assert_eq!((chat.reasoning.enabled, chat.template_kwargs.len()), (Some(false), 0), "{name}");
        }
        assert!(Overrides::new(&Changes::default(), &Map::new()).is_nothing());
    }
}
