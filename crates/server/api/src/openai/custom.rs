//! Custom tools, which take text instead of JSON. Parsed here for chat and Responses; the model sees functions with one string
//! argument.

use serde_json::json;

use crate::core::{Tool, ToolOrigin};
use crate::json::{Field, Object, Result};

/// Parses name, description and format. The description says what the text must look like; a regular expression is also enforced.
pub(super) fn custom(o: &mut Object) -> Result<Tool> {
    let name = o.require("name")?.name()?;
    let description = o.read("description", Field::string)?;
    let mut input = json!({"type": "string"});
    let mut strict = None;
    if let Some(f) = o.take("format") {
        let mut format = f.object()?;
        let kind = format.require("type")?;
        match kind.as_str() {
            Some("text") => {}
            Some("grammar") if format.has("grammar") => {
                // Chat nests the format in an object.
                let mut grammar = format.require("grammar")?.object()?;
                strict = restrict(&mut grammar, &mut input)?;
                grammar.finish(&[])?;
            }
            Some("grammar") => strict = restrict(&mut format, &mut input)?,
            _ => return Err(kind.unsupported("; \"text\" and \"grammar\" are")),
        }
        format.finish(&[])?;
    }
    let schema = json!({
        "type": "object", "properties": {ToolOrigin::INPUT: input}, "required": [ToolOrigin::INPUT], "additionalProperties": false,
    });
    let parameters = schema.as_object().cloned().unwrap_or_default();
    let origin = ToolOrigin { custom: true, ..ToolOrigin::default() };
    Ok(Tool { name, description, parameters, strict, cache: None, origin })
}

/// Adds the grammar of the text to the schema of its string. Returns whether the schema is strict.
fn restrict(grammar: &mut Object, input: &mut serde_json::Value) -> Result<Option<bool>> {
    let is_regex = grammar.require("syntax")?.one_of(&[("lark", false), ("regex", true)])?;
    let definition = grammar.require("definition")?.name()?;
    if is_regex {
        input["description"] = format!("A text that this regular expression matches: {definition}").into();
        input["pattern"] = format!("^(?:{definition})$").into();
        return Ok(Some(true));
    }
    grammar.warn("is shown to the model, not enforced: a Lark grammar");
    input["description"] = format!("A text in the language of this Lark grammar:\n{definition}").into();
    Ok(None)
}
