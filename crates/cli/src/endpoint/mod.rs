//! A client of OpenAI-compatible servers, and flags for them.

pub mod client;
pub mod stream;

use serde_json::{Map, Value};

use crate::usage_error::Usage;

/// The fields of a JSON object; clap would treat a bare `Map` as a list.
#[derive(Debug, Clone)]
pub struct Object(pub Map<String, Value>);

/// The value of `--extra-body`.
pub fn object(text: &str) -> Result<Object, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) if fields.contains_key("stream") => {
            Err("answers are always streamed; leave 'stream' out".into())
        }
        Ok(Value::Object(fields)) => Ok(Object(fields)),
        Ok(_) => Err("expected a JSON object".into()),
        Err(e) => Err(format!("expected a JSON object: {e}")),
    }
}

/// One value for all endpoints, or one per endpoint separated by commas; empty means none.
pub fn for_each(value: Option<&str>, endpoints: usize, flag: &str) -> Result<Vec<Option<String>>, Usage> {
    let Some(value) = value else { return Ok(vec![None; endpoints]) };
    // Model names may contain commas, so a single endpoint's value is not split.
    let values: Vec<&str> = if endpoints == 1 { vec![value] } else { value.split(',').collect() };
    let own = |v: &str| (!v.is_empty()).then(|| v.to_string());
    match values[..] {
        [one] => Ok(vec![own(one); endpoints]),
        _ if values.len() == endpoints => Ok(values.into_iter().map(own).collect()),
        _ => Err(Usage(format!("{flag} names {} for {endpoints} endpoints", values.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_share_a_value_or_have_their_own() {
        let each = |value, n| for_each(value, n, "--model").map_err(|u| u.0);
        let some = |s: &str| Some(s.to_string());
        assert_eq!(each(None, 2).unwrap(), [None, None]);
        assert_eq!(each(Some("a"), 2).unwrap(), [some("a"), some("a")]);
        assert_eq!(each(Some("a,b"), 2).unwrap(), [some("a"), some("b")]);
        assert_eq!(each(Some(",b"), 2).unwrap(), [None, some("b")]);
        assert_eq!(each(Some("a,b"), 1).unwrap(), [some("a,b")]);
        assert!(each(Some("a,b,c"), 2).unwrap_err().contains("--model"));
    }

    #[test]
    fn extra_fields_are_an_object() {
        assert!(object(r#"{"ignore_eos": true}"#).is_ok());
        for bad in ["[]", "{", r#"{"stream": false}"#] {
            assert!(object(bad).is_err(), "{bad}");
        }
    }
}
