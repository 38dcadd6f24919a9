//! Judges answers, but for code (`code`).

use serde_json::{Map, Value};

use super::parse::{answer, bare, blocks, last, numbers, regex, schema};
use super::suite::{Call, Check, Form, Number};
use crate::endpoint::stream::{Said, line};

/// What became of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// With the reason.
    Failed(String),
    /// It was not judged, for this reason.
    NotRun(String),
}

impl Verdict {
    fn of(is: bool, why: impl FnOnce() -> String) -> Self {
        if is { Self::Passed } else { Self::Failed(why()) }
    }
}

/// Judges an answer. `tools` are those of the request.
pub fn judge(check: &Check, tools: Option<&Value>, said: &Said) -> anyhow::Result<Verdict> {
    if !matches!(check, Check::Calls(_)) && !said.calls.is_empty() {
        return Ok(Verdict::Failed(format!("calls {} instead of an answer", line(&said.calls[0].name))));
    }
    let text = answer(&said.content);
    Ok(match check {
        Check::Exact(wanted) => {
            let got = bare(last(text));
            let is = wanted.iter().any(|w| bare(w) == got);
            Verdict::of(is, || format!("answers '{}'", line(got)))
        }
        Check::Number(wanted) => number(wanted, last(text)),
        Check::Regex(pattern) => {
            Verdict::of(regex(pattern)?.is_match(text), || format!("answers '{}'", line(text)))
        }
        Check::Json(form) => json(form, text)?,
        Check::Calls(wanted) => calls(wanted, tools, said)?,
        Check::Python(_) => Verdict::NotRun("code is judged by its tests".into()),
    })
}

fn number(wanted: &Number, text: &str) -> Verdict {
    let got = numbers(text).last();
    let is = got.is_some_and(|got| (got - wanted.value).abs() <= wanted.within);
    Verdict::of(is, || match got {
        Some(got) => format!("answers {got}"),
        None => format!("has no number: '{}'", line(text)),
    })
}

/// The JSON of an answer: all of it, or its only block of code.
fn parsed(text: &str) -> Option<Value> {
    let block = || blocks(text).last().copied();
    serde_json::from_str(text).ok().or_else(|| serde_json::from_str(block()?).ok())
}

fn json(form: &Form, text: &str) -> anyhow::Result<Verdict> {
    let Some(value) = parsed(text) else {
        return Ok(Verdict::Failed(format!("is no JSON: '{}'", line(text))));
    };
    if let Some(e) = schema(&form.schema)?.iter_errors(&value).next() {
        return Ok(Verdict::Failed(format!(
            "{}: {}",
            line(&e.instance_path().to_string()),
            line(&e.to_string())
        )));
    }
    for (pointer, wanted) in &form.values {
        let got = value.pointer(pointer).unwrap_or(&Value::Null);
        let is = match (wanted, got) {
            (Value::String(wanted), Value::String(got)) => {
                got.to_lowercase().contains(&wanted.to_lowercase())
            }
            _ => same(wanted, got),
        };
        if !is {
            return Ok(Verdict::Failed(format!("{pointer} is {}, not {wanted}", line(&got.to_string()))));
        }
    }
    Ok(Verdict::Passed)
}

/// Equal; 3 and 3.0 are.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

fn calls(wanted: &[Call], tools: Option<&Value>, said: &Said) -> anyhow::Result<Verdict> {
    let mut left: Vec<&Call> = wanted.iter().collect();
    for call in &said.calls {
        let Ok(Value::Object(arguments)) = serde_json::from_str(&call.arguments) else {
            let what = format!("calls {} with no JSON object: '{}'", line(&call.name), line(&call.arguments));
            return Ok(Verdict::Failed(what));
        };
        if let Some(form) = parameters(tools, &call.name)
            && let Some(e) = schema(form)?.iter_errors(&Value::Object(arguments.clone())).next()
        {
            return Ok(Verdict::Failed(format!("calls {}: {}", line(&call.name), line(&e.to_string()))));
        }
        let Some(at) = left.iter().position(|w| w.name == call.name && agrees(&w.arguments, &arguments))
        else {
            return Ok(Verdict::Failed(format!("calls {}({})", line(&call.name), line(&call.arguments))));
        };
        left.swap_remove(at);
    }
    Ok(Verdict::of(left.is_empty(), || match said.calls.is_empty() {
        true => format!("calls nothing: '{}'", line(&said.content)),
        false => format!("does not call {} {}", left[0].name, Value::Object(left[0].arguments.clone())),
    }))
}

/// The schema of a tool's arguments.
fn parameters<'a>(tools: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    let all = tools?.as_array()?;
    all.iter().map(|t| &t["function"]).find(|f| f["name"] == name)?.get("parameters")
}

/// Whether all wanted arguments are there. Texts are compared without case.
fn agrees(wanted: &Map<String, Value>, got: &Map<String, Value>) -> bool {
    wanted.iter().all(|(key, wanted)| match (wanted, got.get(key)) {
        (Value::String(w), Some(Value::String(g))) => w.trim().to_lowercase() == g.trim().to_lowercase(),
        (wanted, got) => got.is_some_and(|got| same(wanted, got)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::stream::SaidCall;

    fn verdict(check: Value, content: &str) -> Verdict {
        let check: Check = serde_json::from_value(check).unwrap();
        judge(&check, None, &Said { content: content.into(), ..Said::default() }).unwrap()
    }

    fn passes(check: Value, content: &str) -> bool {
        verdict(check, content) == Verdict::Passed
    }

    #[test]
    fn answers_are_found_in_their_text() {
        let exact = || serde_json::json!({"exact": ["[1, 2] [3]"]});
        for right in [
            "[1, 2] [3]",
            "It shares the list.\n\nAnswer: [1, 2] [3]",
            "**Answer:** `[1, 2] [3]`",
            "**Answer: [1, 2] [3]**",
            "Answer: [9]\nNo.\nAnswer:\n```\n[1, 2] [3]\n```",
            "answer: [1, 2] [3].",
            "<think>Answer: [7]</think>\nAnswer: [1, 2] [3]",
        ] {
            assert!(passes(exact(), right), "{right}");
        }
        for wrong in ["", "[1,2] [3]", "Answer: [1, 2] [3] or [4]", "<think>Answer: [1, 2] [3]"] {
            assert!(!passes(exact(), wrong), "{wrong}");
        }
        assert!(passes(serde_json::json!({"regex": "(?i)heron"}), "The Heron."));
        assert!(!passes(serde_json::json!({"regex": "heron"}), "The Heron."));
    }

    #[test]
    fn a_number_may_be_near() {
        let near = || serde_json::json!({"number": {"value": 150, "within": 0.5}});
        assert!(
            passes(near(), "Answer: 150.4") && !passes(near(), "Answer: 151") && !passes(near(), "Answer:")
        );
        let Verdict::Failed(why) = verdict(near(), "\u{1b}[J nothing") else { panic!() };
        assert!(why.contains("no number") && !why.contains('\u{1b}'), "{why}");
    }

    #[test]
    fn json_has_a_form_and_values() {
        let check = || {
            serde_json::json!({"json": {
                "schema": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}},
                "values": {"/a": 3, "/who": "Okafor"},
            }})
        };
        assert!(passes(check(), r#"{"a": 3, "who": "Mrs okafor"}"#));
        assert!(passes(check(), "Here:\n```json\n{\"a\": 3, \"who\": \"Okafor\"}\n```\nDone."));
        for (wrong, why) in [
            (r#"{"a": "3"}"#, "/a"),
            (r#"{"a": 4, "who": "Okafor"}"#, "/a is 4, not 3"),
            (r#"{"a": 3}"#, "/who is null"),
            ("a = 3", "no JSON"),
            (&"[".repeat(100_000), "no JSON"),
        ] {
            let Verdict::Failed(said) = verdict(check(), wrong) else { panic!("{why}") };
            assert!(said.contains(why) && said.len() < 2000, "{said}");
        }
    }

    #[test]
    fn calls_may_come_in_any_order() {
        let check: Check = serde_json::from_value(serde_json::json!({"calls": [
            {"name": "light", "arguments": {"room": "hall", "percent": 10}},
            {"name": "light", "arguments": {"room": "attic"}},
        ]}))
        .unwrap();
        let tools = serde_json::json!([{"type": "function", "function": {"name": "light", "parameters": {
            "type": "object", "properties": {"room": {"type": "string"}, "percent": {"type": "integer"}}}}}]);
        let said = |calls: &[&str]| Said {
            calls: calls
                .iter()
                .map(|a| SaidCall { name: "light".into(), arguments: a.to_string() })
                .collect(),
            ..Said::default()
        };
        let judged = |calls: &[&str]| judge(&check, Some(&tools), &said(calls)).unwrap();
        let (attic, hall) = (r#"{"room": "attic", "percent": 5}"#, r#"{"room": "Hall", "percent": 10.0}"#);
        assert_eq!(judged(&[attic, hall]), Verdict::Passed);
        for (calls, why) in [
            (&[attic][..], "does not call light"),
            (&[attic, hall, hall], "calls light("),
            (&[], "calls nothing"),
            (&["{"], "no JSON object"),
            (&[r#"{"room": 3}"#], "calls light: "),
        ] {
            let Verdict::Failed(said) = judged(calls) else { panic!("{why}") };
            assert!(said.contains(why), "{said}");
        }
        let exact: Check = serde_json::from_value(serde_json::json!({"exact": ["x"]})).unwrap();
        assert!(matches!(judge(&exact, None, &said(&[attic])).unwrap(), Verdict::Failed(_)));
    }
}
