//! Parses prompts of completions and embeddings: texts, token ids, and llama-server's further forms.

use serde_json::Value;

use super::fields::at_most;
use crate::ApiError;
use crate::core::{Image, ImageSource, Prompt, PromptPart};
use crate::json::{Field, Object, Result};

/// Maximum number of prompts per request; OpenAI's limit for embeddings.
const PROMPTS_MAX: usize = 2048;
/// Maximum number of parts of a `content`.
const PARTS_MAX: usize = 2048;

/// Where an image belongs in llama-server's `prompt_string`: `/props` gives it to clients as `media_marker`.
pub const MEDIA_MARKER: &str = "<__media__>";

/// One prompt or several. A prompt is a text, token ids, both mixed, `{"prompt_string": ...}` or `{"content": [...]}` with text parts,
/// and images for their [`MEDIA_MARKER`]s in `multimodal_data`; the last three are llama-server's. A list that has only token ids and texts
/// is one prompt, unless all are texts.
pub(crate) fn prompts(f: Field) -> Result<Vec<Prompt>> {
    let is_list = f.value().as_array().is_some_and(|items| {
        items.iter().any(|i| i.is_array() || i.is_object()) || items.iter().all(Value::is_string)
    });
    if !is_list {
        return Ok(vec![prompt(f)?]);
    }
    let wrong = f.expected("at least one prompt");
    let prompts = at_most(f, PROMPTS_MAX)?.list(prompt)?;
    if prompts.is_empty() { Err(wrong) } else { Ok(prompts) }
}

fn prompt(f: Field) -> Result<Prompt> {
    if f.is_string() {
        return Ok(Prompt::Text(f.string()?));
    }
    if f.is_object() {
        return object(f.object()?);
    }
    let Some(items) = f.value().as_array() else {
        return Err(f.expected("a string, an array of token ids and strings, or an array of such prompts"));
    };
    if items.is_empty() {
        return Err(f.expected("at least one token id"));
    }
    if items.iter().all(Value::is_number) {
        return Ok(Prompt::Tokens(f.list(|f| f.count(0..=u32::MAX))?));
    }
    let part = |f: Field| {
        if f.is_string() {
            Ok(PromptPart::Text(f.string()?))
        } else {
            Ok(PromptPart::Token(f.count(0..=u32::MAX)?))
        }
    };
    Ok(Prompt::Mixed(f.list(part)?))
}

/// `{"prompt_string": ...}` or `{"content": [...]}`, whose parts are joined as they are, with `multimodal_data`.
fn object(mut o: Object) -> Result<Prompt> {
    let (param, text) = match o.take("content") {
        Some(parts) => (parts.path(), at_most(parts, PARTS_MAX)?.list(text_part)?.concat()),
        None => {
            let f = o.require("prompt_string")?;
            (f.path(), f.string()?)
        }
    };
    let image = |f: Field| {
        let at = f.path();
        Ok(Image { source: ImageSource::base64(&f, None)?, detail: None, at, frame: None })
    };
    let images = o.read("multimodal_data", |f| at_most(f, PARTS_MAX)?.list(image))?.unwrap_or_default();
    o.finish(&[])?;
    if images.is_empty() {
        return Ok(Prompt::Text(text));
    }
    let markers = text.matches(MEDIA_MARKER).count();
    if markers != images.len() {
        let what = format!(
            "'{param}' has {markers} times '{MEDIA_MARKER}', but 'multimodal_data' has {} images",
            images.len()
        );
        return Err(ApiError::invalid(param, what));
    }
    let mut images = images.into_iter();
    let mut parts = Vec::new();
    for text in text.split(MEDIA_MARKER) {
        parts.extend((!text.is_empty()).then(|| PromptPart::Text(text.into())));
        parts.extend(images.next().map(PromptPart::Image));
    }
    Ok(Prompt::Mixed(parts))
}

fn text_part(f: Field) -> Result<String> {
    let mut o = f.object()?;
    o.require("type")?.one_of(&[("text", ()), ("input_text", ())])?;
    let text = o.require("text")?.string()?;
    o.finish(&[])?;
    Ok(text)
}
