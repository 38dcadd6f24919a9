//! Replaces the model name in a client's JSON, and applies a configuration's changes, without parsing the rest.
//!
//! Only the outermost object is parsed; its values are copied byte by byte.

use std::borrow::Cow;

use octet_api::digits;
use octet_config::Changes;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::edit::{self, KWARGS};

/// The changes.
#[derive(Debug)]
pub(crate) struct Rewrite<'a> {
    /// The model's name for the provider; `None` if it is in the address.
    pub(crate) model: Option<&'a str>,
    pub(crate) changes: &'a Changes,
    /// Default parameters.
    pub(crate) defaults: &'a Map<String, Value>,
    /// Parameters to drop because the provider would refuse them.
    pub(crate) unknown: &'a [&'a str],
    /// The stream must report its token count at its end.
    pub(crate) count: bool,
}

/// A rewritten request.
#[derive(Debug, PartialEq)]
pub(crate) struct Rewritten {
    pub(crate) json: Vec<u8>,
    /// The client did not request the count, so it does not get it.
    pub(crate) count_is_ours: bool,
    /// Number of choices.
    pub(crate) n: u32,
}

const OPTIONS: &str = "stream_options";
/// Maximum number of outermost fields: a list of them takes memory.
const FIELDS_MAX: usize = 4096;

impl Rewrite<'_> {
    /// # Errors
    /// An error text for the client if the body is not a JSON object.
    pub(crate) fn apply(&self, body: &[u8]) -> Result<Rewritten, String> {
        let fields = fields(body)?;
        let value = |name: &str| fields.iter().rev().find(|f| f.name == name).map(|f| f.value.get());
        let asked = |options: &Value| options["include_usage"] == true;
        let options = value(OPTIONS).and_then(|v| serde_json::from_str::<Value>(v).ok());
        let dropped = self.changes.edits.drop.iter().any(|name| name == OPTIONS);
        let count_is_ours = self.count && !dropped && !options.as_ref().is_some_and(asked);
        let n = value("n").and_then(|v| serde_json::from_str::<u32>(v).ok()).unwrap_or(1);
        let json = if edit::goes_deep(self.changes) {
            self.apply_deep(body, count_is_ours)?
        } else {
            self.apply_flat(body, &fields, options, count_is_ours)
        };
        Ok(Rewritten { json, count_is_ours, n })
    }

    /// Nested fields are changed: the body is parsed completely.
    fn apply_deep(&self, body: &[u8], count: bool) -> Result<Vec<u8>, String> {
        let mut json = digits::read(body).map_err(|e| format!("the body is not a JSON object: {e}"))?;
        self.unknown.iter().for_each(|name| drop(json.shift_remove(*name)));
        if count {
            let options = json.remove(OPTIONS);
            json.insert(OPTIONS.into(), counting(options));
        }
        edit::apply(self.changes, self.defaults, &mut json);
        match self.model {
            Some(model) => drop(json.insert("model".into(), model.into())),
            None => drop(json.shift_remove("model")),
        }
        Ok(digits::text(&Value::Object(json)).into_bytes())
    }

    /// Only the outermost fields are changed: the other bytes are copied.
    fn apply_flat(&self, body: &[u8], fields: &[Field<'_>], options: Option<Value>, count: bool) -> Vec<u8> {
        let mut out = Writer { json: Vec::with_capacity(body.len() + 256) };
        out.json.push(b'{');
        if let Some(model) = self.model {
            out.value("model", &model.into());
        }
        let Copied { present, kwargs, mut rest, wanted } = self.copy_fields(fields, count, &mut out);
        // The rest is small: it goes through the same code as any body.
        if count {
            rest.insert(OPTIONS.into(), counting(options));
        }
        rest.extend(kwargs.map(|client| (KWARGS.to_string(), client)));
        let nothing = self.changes.edits.set.is_empty()
            && self.defaults.is_empty()
            && self.changes.extra_body.is_empty()
            && self.changes.chat_template_kwargs.is_empty();
        if !nothing {
            self.apply_rest(&present, wanted.map(|(_, thinks)| thinks), &mut rest);
        }
        rest.iter().filter(|(name, _)| *name != "model").for_each(|(name, value)| out.value(name, value));
        out.json.push(b'}');
        out.json
    }

    /// Copies the fields that stay, with their new names.
    fn copy_fields<'f>(&'f self, fields: &'f [Field<'_>], count: bool, out: &mut Writer) -> Copied<'f> {
        let edits = &self.changes.edits;
        let goes = |name: &str| {
            name == "model"
                || (count && name == OPTIONS)
                || self.unknown.contains(&name)
                || edits.drop.iter().any(|d| d == name)
        };
        let mut copied = Copied::default();
        for field in fields.iter().filter(|f| !goes(&f.name)) {
            let name = field.name.as_ref();
            let renamed = edits.rename.iter().find(|(from, _)| from == name).map(|(_, to)| to.as_str());
            if renamed.is_some_and(|to| fields.iter().any(|f| f.name == to && !goes(to))) {
                continue;
            }
            let name = renamed.unwrap_or(name);
            let raw = field.value.get();
            if !self.changes.chat_template_kwargs.is_empty() && edit::THINKING.contains(&name) {
                let value = serde_json::from_str(raw).unwrap_or(Value::Null);
                let at = edit::THINKING.iter().position(|field| *field == name);
                let wanted = at.zip(edit::wants_thinking(name, &value));
                // The first of them, whatever their order here.
                copied.wanted = [copied.wanted, wanted].into_iter().flatten().min_by_key(|(at, _)| *at);
            }
            if edits.set.contains_key(name) {
                continue;
            }
            copied.present.push(name);
            if name == KWARGS && !self.changes.chat_template_kwargs.is_empty() {
                copied.kwargs = serde_json::from_str::<Value>(raw).ok();
            } else if let Some(extra) = self.changes.extra_body.get(name) {
                // Objects are merged recursively; other values are replaced.
                if let (Value::Object(_), Ok(Value::Object(client))) = (extra, serde_json::from_str(raw)) {
                    copied.rest.insert(name.to_string(), Value::Object(client));
                }
            } else {
                out.raw(renamed, field.key.get(), raw);
            }
        }
        copied
    }

    /// Applies the configuration's values, and defaults for the fields that are not `present`.
    fn apply_rest(&self, present: &[&str], wanted: Option<bool>, rest: &mut Map<String, Value>) {
        let mut changes = Changes {
            edits: octet_config::Edits { set: self.changes.edits.set.clone(), ..Default::default() },
            extra_body: self.changes.extra_body.clone(),
            chat_template_kwargs: self.changes.chat_template_kwargs.clone(),
            drop_params: false,
            modify_params: false,
        };
        edit::set_switches(&mut changes.chat_template_kwargs, wanted);
        let defaults = self.defaults.iter().filter(|(name, _)| !present.contains(&name.as_str()));
        let defaults: Map<String, Value> = defaults.map(|(n, v)| (n.clone(), v.clone())).collect();
        edit::apply(&changes, &defaults, rest);
    }
}

/// The result of copying a request's fields.
#[derive(Default)]
struct Copied<'f> {
    /// Names of the client's fields, which get no defaults.
    present: Vec<&'f str>,
    /// The client's [`KWARGS`], to be merged with the configuration's.
    kwargs: Option<Value>,
    /// Whether the model shall think, and which of [`edit::THINKING`] says so.
    wanted: Option<(usize, bool)>,
    /// Fields that were not copied: objects to be merged with the configuration's.
    rest: Map<String, Value>,
}

fn counting(options: Option<Value>) -> Value {
    let mut options = match options {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    options.insert("include_usage".into(), true.into());
    options.into()
}

struct Writer {
    json: Vec<u8>,
}

impl Writer {
    fn separate(&mut self) {
        if self.json.len() > 1 {
            self.json.push(b',');
        }
    }

    fn value(&mut self, name: &str, value: &Value) {
        write_field(&mut self.json, name, &value.to_string());
    }

    fn raw(&mut self, name: Option<&str>, key: &str, value: &str) {
        self.separate();
        match name {
            Some(name) => self.json.extend_from_slice(Value::from(name).to_string().as_bytes()),
            None => self.json.extend_from_slice(key.as_bytes()),
        }
        self.json.push(b':');
        self.json.extend_from_slice(value.as_bytes());
    }
}

/// Writes a field of an object, after its `{` or a field.
pub(crate) fn write_field(json: &mut Vec<u8>, name: &str, value: &str) {
    if json.len() > 1 {
        json.push(b',');
    }
    json.extend_from_slice(Value::from(name).to_string().as_bytes());
    json.push(b':');
    json.extend_from_slice(value.as_bytes());
}

/// A field of the outermost object.
pub(crate) struct Field<'a> {
    pub(crate) name: Cow<'a, str>,
    /// With its quotes.
    key: &'a RawValue,
    pub(crate) value: &'a RawValue,
}

/// The fields of an object; one more than [`FIELDS_MAX`] if there are too many.
struct Fields<'a>(Vec<Field<'a>>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Outermost;
        impl<'de> Visitor<'de> for Outermost {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut out = Vec::with_capacity(16);
                while out.len() <= FIELDS_MAX
                    && let Some((key, value)) = map.next_entry::<&RawValue, &RawValue>()?
                {
                    out.push(Field { name: name(key).map_err(A::Error::custom)?, key, value });
                }
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Fields(out))
            }
        }
        from.deserialize_map(Outermost)
    }
}

fn name(key: &RawValue) -> serde_json::Result<Cow<'_, str>> {
    match key.get().trim_matches('"') {
        escaped if escaped.contains('\\') => serde_json::from_str::<String>(key.get()).map(Cow::Owned),
        plain => Ok(plain.into()),
    }
}

/// The fields of an object.
pub(crate) fn fields(body: &[u8]) -> Result<Vec<Field<'_>>, String> {
    let Fields(all) =
        serde_json::from_slice(body).map_err(|e| format!("the body is not a JSON object: {e}"))?;
    if all.len() > FIELDS_MAX {
        return Err(format!("the body has more than {FIELDS_MAX} fields"));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use octet_config::Edits;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn rewrite(body: &str, changes: &Changes, defaults: Value, count: bool) -> Result<Rewritten, String> {
        let defaults = defaults.as_object().unwrap();
        Rewrite { model: Some("them/\"m\""), changes, defaults, unknown: &["bad"], count }
            .apply(body.as_bytes())
    }

    #[test]
    fn what_is_not_changed_stays_to_the_byte() {
        let body = r#" {"messages" : [{"role":"user","content":"a\"]}\u00e9"}] , "model":"x","t":1.50e0,"bad":1,"model":"y"} "#;
        let got = rewrite(body, &Changes::default(), json!({}), false).unwrap();
        let expected =
            r#"{"model":"them/\"m\"","messages":[{"role":"user","content":"a\"]}\u00e9"}],"t":1.50e0}"#;
        assert_eq!(String::from_utf8(got.json).unwrap(), expected);
        assert_eq!((got.n, got.count_is_ours), (1, false));
        let empty = rewrite("{}", &Changes::default(), json!({}), false).unwrap();
        assert_eq!(empty.json, br#"{"model":"them/\"m\""}"#);
    }

    #[test]
    fn a_name_in_disguise_is_the_same_name() {
        let got = rewrite(r#"{"mod\u0065l":"x","a":1}"#, &Changes::default(), json!({}), false).unwrap();
        assert_eq!(got.json, br#"{"model":"them/\"m\"","a":1}"#);
    }

    #[test]
    fn counts_are_asked_for_where_the_client_did_not() {
        for (options, overrides) in [
            (json!(null), true),
            (json!({"include_usage": false, "x": 1}), true),
            (json!({"include_usage": true}), false),
        ] {
            let body = json!({"n": 2, "stream_options": options}).to_string();
            let got = rewrite(&body, &Changes::default(), json!({}), true).unwrap();
            assert_eq!((got.count_is_ours, got.n), (overrides, 2));
            let sent: Value = serde_json::from_slice(&got.json).unwrap();
            assert_eq!(sent["stream_options"]["include_usage"], true, "{options}");
            assert_eq!(sent["stream_options"].get("x"), options.get("x"));
        }
    }

    #[test]
    fn too_many_fields_are_refused() {
        let body = |n: usize| format!("{{{}\"b\":1}}", "\"a\":1,".repeat(n - 1));
        assert!(rewrite(&body(FIELDS_MAX), &Changes::default(), json!({}), false).is_ok());
        let refused = rewrite(&body(FIELDS_MAX + 1), &Changes::default(), json!({}), false).unwrap_err();
        assert_eq!(refused, "the body has more than 4096 fields");
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for body in [
            "",
            "[]",
            "1",
            "{",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1"#,
            r#"{"a":1}x"#,
            r#"{"a":[1}"#,
            r#"{"a":"x}"#,
            r#"{"a":1,}"#,
            r#"{a:1}"#,
            r#"{"a":"\"#,
            r#"{"a":{"b":[}"#,
            "nonsense",
        ] {
            assert!(rewrite(body, &Changes::default(), json!({}), false).is_err(), "{body}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[ -~é\n\t]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[a-e\"\\\\]{0,3}", inner), 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    fn any_object() -> impl Strategy<Value = Map<String, Value>> {
        prop::collection::vec(
            (
                prop_oneof![
                    "[a-f]",
                    Just("model".into()),
                    Just(KWARGS.into()),
                    Just(OPTIONS.into()),
                    Just("reasoning_effort".into())
                ],
                any_json(),
            ),
            0..6,
        )
        .prop_map(|m| m.into_iter().collect())
    }

    proptest! {
        /// Rewriting bytes and rewriting values give the same result.
        #[test]
        fn bytes_and_values_are_changed_alike(
            body in any_object(), set in any_object(), extra in any_object(), kwargs in any_object(),
            defaults in any_object(), drops in prop::collection::vec("[a-f]", 0..2),
            rename in prop::option::of(("[a-c]", "[d-f]")), count: bool,
        ) {
            let without_model = |mut m: Map<String, Value>| { m.remove("model"); m };
            let mut changes = Changes {
                edits: Edits {
                    drop: drops, rename: rename.into_iter().collect(), set: without_model(set),
                },
                extra_body: without_model(extra), chat_template_kwargs: kwargs, drop_params: false, modify_params: false,
            };
            let defaults = Value::Object(without_model(defaults));
            let text = Value::Object(body).to_string();
            let flat = rewrite(&text, &changes, defaults.clone(), count).unwrap();
            // A path without a match forces the slow path.
            changes.edits.drop.push("no.where".into());
            let deep = rewrite(&text, &changes, defaults, count).unwrap();
            let read = |r: &Rewritten| serde_json::from_slice::<Value>(&r.json).unwrap();
            prop_assert_eq!(read(&flat), read(&deep));
        }

        #[test]
        fn an_object_is_what_serde_json_reads(
            bytes in prop::collection::vec(prop::sample::select(b"{}[]\",:\\a1 ".to_vec()), 0..40)
        ) {
            let read = serde_json::from_slice::<Map<String, Value>>(&bytes);
            prop_assert_eq!(fields(&bytes).is_ok(), read.is_ok());
        }
    }
}
