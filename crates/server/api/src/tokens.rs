//! `/tokenize`, `/detokenize` and `/apply-template`, as in llama.cpp and vLLM.

use serde_json::Value;

use crate::core::{GenerateRequest, Input};
use crate::json::{self, Field, Object, Result};
use crate::openai::chat;
use crate::rules::{Rules, Warning, refused};

/// What to tokenize.
#[derive(Debug, Clone, PartialEq)]
pub enum Tokenize {
    /// A text.
    Text(Text),
    /// The prompt of a conversation.
    Chat(Box<GenerateRequest>),
}

/// A text to tokenize.
#[derive(Debug, Clone, PartialEq)]
pub struct Text {
    /// The model's name as the client knows it.
    pub model: String,
    /// The text.
    pub content: String,
    /// Add the model's BOS token.
    pub add_special: bool,
    /// Parse control tokens in the text.
    pub parse_special: bool,
    /// Return each token's text, too.
    pub with_pieces: bool,
    /// Accepted fields that have no effect.
    pub warnings: Vec<Warning>,
}

/// Tokens to convert to text.
#[derive(Debug, Clone, PartialEq)]
pub struct Detokenize {
    /// The model's name as the client knows it.
    pub model: String,
    /// Their ids.
    pub tokens: Vec<u32>,
    /// Accepted fields that have no effect.
    pub warnings: Vec<Warning>,
}

const TEXT: Rules = &[("text", refused("send 'content', or a conversation as 'messages'"))];

/// Parses the body of a `POST /tokenize`: `content`, or `messages` and further fields of a chat. The default of `model` is `default`.
///
/// # Errors
/// Fields that are unknown or of the wrong type, by name.
pub fn tokenize(body: &[u8], default: &str) -> Result<Tokenize> {
    let mut o = named(body, default)?;
    if o.has("messages") {
        return chat::request(o).map(Box::new).map(Tokenize::Chat);
    }
    let model = o.require("model")?.name()?;
    let content = match o.take_any(&["content", "prompt"])? {
        Some(f) => f.string()?,
        None => o.require("content")?.string()?,
    };
    let mut switch = |names: &[&'static str], default: bool| -> Result<bool> {
        o.take_any(names)?.map_or(Ok(default), Field::bool)
    };
    // The second names are vLLM's.
    let mut text = Text {
        model,
        content,
        add_special: switch(&["add_special", "add_special_tokens"], false)?,
        parse_special: switch(&["parse_special"], true)?,
        with_pieces: switch(&["with_pieces", "return_token_strs"], false)?,
        warnings: Vec::new(),
    };
    let warnings = o.warnings();
    o.finish(&[TEXT])?;
    text.warnings = warnings.take();
    Ok(Tokenize::Text(text))
}

/// Parses the body of a `POST /detokenize`.
///
/// # Errors
/// Fields that are unknown or of the wrong type, by name.
pub fn detokenize(body: &[u8], default: &str) -> Result<Detokenize> {
    let mut o = named(body, default)?;
    let model = o.require("model")?.name()?;
    let tokens = o.require("tokens")?.list(|f: Field| f.count(0..=u32::MAX))?;
    let warnings = o.warnings();
    o.finish(&[])?;
    Ok(Detokenize { model, tokens, warnings: warnings.take() })
}

/// Parses the body of a `POST /apply-template`: a chat, of which only the conversation counts. With `add_generation_prompt` false the
/// prompt ends with the last message.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn apply_template(body: &[u8], default: &str) -> Result<GenerateRequest> {
    let mut o = named(body, default)?;
    // The prompt normally begins the answer; here there is none.
    let continues = o.is_on("continue_final_message");
    let no_answer = !continues && o.has("add_generation_prompt") && !o.is_on("add_generation_prompt");
    if no_answer {
        o.read("add_generation_prompt", Field::bool)?;
    }
    let mut request = chat::request(o)?;
    if let Input::Chat(chat) = &mut request.input {
        chat.no_answer = no_answer;
    }
    Ok(request)
}

fn named(body: &[u8], default: &str) -> Result<Object> {
    let mut o = json::parse(body)?;
    o.set_default("model", Value::from(default));
    Ok(o)
}
