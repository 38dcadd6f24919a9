//! Names of tools in a provider's alphabet, and back.

use std::collections::HashMap;

use octet_api::core::{Event, GenerateRequest, Input, ToolChoice};
use octet_config::Accepts;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

use super::params::hash;

/// Characters of the hash that a changed name ends with.
const HASH_CHARS: usize = 8;

/// The client's names of the tools that were renamed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Names(HashMap<String, String>);

impl Names {
    /// Renames the tools of a request whose names the model refuses, also in its history. The same name always becomes the same.
    pub(crate) fn fit(accepts: &Accepts, request: &mut GenerateRequest) -> Self {
        let mut names = Self::default();
        let Some(most) = accepts.name_chars_max else { return names };
        let Input::Chat(chat) = &mut request.input else { return names };
        let mut fit = |name: &mut String| {
            if let Some(changed) = fitted(name, most, &accepts.name_characters) {
                names.0.insert(changed.clone(), std::mem::replace(name, changed));
            }
        };
        chat.tools.iter_mut().for_each(|tool| fit(&mut tool.name));
        if let ToolChoice::Named(name) = &mut chat.tool_choice {
            fit(name);
        }
        for message in &mut chat.messages {
            message.tool_calls.iter_mut().for_each(|call| fit(&mut call.name));
            if message.role == octet_api::core::Role::Tool {
                message.name.iter_mut().for_each(&mut fit);
            }
        }
        names
    }

    /// Gives a call its client's name.
    pub(crate) fn restore(&self, event: &mut Event) {
        if let Event::ToolCallStart { name, .. } = event
            && let Some(original) = self.0.get(name)
        {
            name.clone_from(original);
        }
    }
}

/// The name that the model accepts; `None` if it is the same.
fn fitted(name: &str, most: usize, more: &str) -> Option<String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || more.contains(c);
    let begins_well = more.is_empty() || name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if begins_well && name.chars().count() <= most && name.chars().all(is_fine) {
        return None;
    }
    let mut out = if begins_well { String::new() } else { "_".into() };
    let room = most.saturating_sub(HASH_CHARS + 1 + out.len());
    out.extend(name.chars().take(room).map(|c| if is_fine(c) { c } else { '_' }));
    out.push('_');
    out.push_str(&hash(name.as_bytes())[..HASH_CHARS]);
    Some(out)
}

/// Whether an object in a raw list has a key that is not in `known`.
pub(super) fn has_other_keys(raw: &[u8], known: &[String]) -> bool {
    struct List<'a>(&'a [String]);
    struct Keys<'a>(&'a [String]);
    impl<'de> Visitor<'de> for List<'_> {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
            let mut found = false;
            while let Some(has) = list.next_element_seed(Keys(self.0))? {
                found |= has;
            }
            Ok(found)
        }
    }
    impl<'de> serde::de::DeserializeSeed<'de> for Keys<'_> {
        type Value = bool;

        fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
            from.deserialize_map(self)
        }
    }
    impl<'de> Visitor<'de> for Keys<'_> {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
            let mut found = false;
            while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                found |= !self.0.iter().any(|known| *known == key);
                map.next_value::<IgnoredAny>()?;
            }
            Ok(found)
        }
    }
    let mut json = serde_json::Deserializer::from_slice(raw);
    // What is not a list of objects is the provider's to refuse.
    json.deserialize_seq(List(known)).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_stay_apart() {
        let long = "mcp__a_server_with_a_long_name__a_tool_whose_name_is_even_longer_than_that";
        for (name, most, more) in
            [(long, 64, ""), ("files.read", 64, ""), ("1st", 64, ".:"), ("ä b", 128, ""), (long, 20, "")]
        {
            let fit = fitted(name, most, more).expect("it changes");
            assert!(fit.chars().count() <= most, "{fit}");
            assert_eq!(fitted(&fit, most, more), None, "{fit}");
            assert_eq!(fitted(name, most, more), Some(fit), "the same each time");
        }
        assert_ne!(fitted("a.b", 64, ""), fitted("a:b", 64, ""));
        for (name, more) in [("files_read-2", ""), ("files.read", ".:"), ("_x", ".:")] {
            assert_eq!(fitted(name, 64, more), None);
        }
    }

    #[test]
    fn other_keys_are_found() {
        let known = ["role".to_string(), "content".to_string()];
        for (raw, expected) in [
            (r#"[{"role":"user","content":{"x":1}}]"#, false),
            (r#"[{"role":"user"},{"role":"a","n\u0061me":"x"}]"#, true),
            (r#"{"x":1}"#, false),
            ("[1]", false),
        ] {
            assert_eq!(has_other_keys(raw.as_bytes(), &known), expected, "{raw}");
        }
    }
}
