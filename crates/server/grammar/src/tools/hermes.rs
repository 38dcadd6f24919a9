//! Calls as JSON objects between tags.

use serde_json::{Value, json};

use super::{Arguments, Rules, nothing};
use crate::schema::Prepared;
use crate::{Error, Tool, lark};

/// Writes rule `call{i}`: what follows the newline after the opening tag, up to the closing tag.
pub(super) fn write(
    rules: &mut Rules,
    i: usize,
    tool: &Tool,
    given: Option<&Arguments<'_>>,
) -> Result<(), Error> {
    let prepared = arguments(given)?;
    rules.warnings.extend(prepared.warnings.iter().cloned());
    let head = format!("{{\"name\": {}, \"arguments\": ", Value::from(tool.name.as_str()));
    let body = format!("{}{}{}close", lark::literal(&head), lark::json(&prepared), lark::literal("}\n"));
    rules.rule(&format!("call{i}"), &body);
    Ok(())
}

/// The schema of a tool's arguments as an object.
pub(super) fn arguments(given: Option<&Arguments<'_>>) -> Result<Prepared, Error> {
    Ok(match given {
        None => Prepared { schema: json!({ "type": "object" }), warnings: Vec::new(), open: true },
        Some(a) if a.schema.is_null() => Prepared { schema: nothing(), warnings: Vec::new(), open: false },
        Some(a) => {
            let mut prepared = a.prepare(a.schema, &a.path, true)?;
            // Arguments are an object even if the schema does not say so.
            if let Value::Object(s) = &mut prepared.schema {
                s.entry("type").or_insert("object".into());
            }
            prepared
        }
    })
}
