//! Custom tools, which take a text. Read here for chats and responses; the model sees functions of one string.

use serde_json::json;

use crate::core::{Tool, ToolOrigin};
use crate::json::{Field, Object, Result};

/// Name, description, format. What the text has to look like is in its description; a regular expression is enforced, too.
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
                // Chats have it in an object of its own.
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
    let origin = ToolOrigin { custom: true, namespace: None };
    Ok(Tool { name, description, parameters, strict, cache: None, origin })
}

/// Describes in a schema of a text the grammar that the text has to follow. Returns whether the schema is strict.
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
