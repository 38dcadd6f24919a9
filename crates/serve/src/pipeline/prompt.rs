//! From a conversation to the tokens of its prompt, and the places in it that are worth a snapshot. Called by `plan`, on a
//! thread that may take its time.

use octet_api::core::{Chat, Effort, Prompt};
use octet_api::{ApiError, ErrorKind, shortened};
use octet_engine::detokenizer::{ControlTokens, decode};
use octet_engine::template::{ChatInput, TemplateError};
use octet_engine::tokenizer::{Special, Tokenizer};

use crate::models::Loaded;

/// The tokens of a prompt, and what the answer to it begins with.
#[derive(Debug, Default)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Positions that later prompts are likely to share.
    pub checkpoints: Vec<usize>,
    /// The prompt ends with `<think>`: the answer begins with reasoning.
    pub in_reasoning: bool,
}

/// A conversation's prompt.
pub fn chat(model: &Loaded, chat: &Chat) -> Result<Rendered, ApiError> {
    let template = model.template.as_ref().map_err(|why| ApiError::invalid("messages", why.clone()))?;
    for name in chat.template_kwargs.keys() {
        let param = format!("chat_template_kwargs.{}", shortened(name));
        let checked = template.check_variable(name);
        checked.map_err(|why| ApiError::invalid(param.clone(), format!("'{param}' {why}")))?;
    }
    let from = chat.template(model.content)?;
    let mut variables = model.template_kwargs.clone();
    variables.extend(from.variables);
    let input = ChatInput {
        messages: from.messages,
        tools: from.tools,
        add_generation_prompt: from.add_generation_prompt,
        variables,
        now_s: None,
    };
    let prompt = template.render(&input).map_err(|e| refused(chat, &e))?;
    let mut text = prompt.text.clone();
    let tokenizer = model.tokenizer();
    let mut tokens =
        tokenizer.encode_prompt(&prompt).map_err(|e| ApiError::invalid("messages", e.to_string()))?;
    if chat.continue_final {
        reopen(tokenizer, &mut tokens, &mut text);
    }
    Ok(Rendered {
        checkpoints: ends_of_messages(tokenizer, &tokens),
        in_reasoning: model.format.reasoning && text.trim_end().ends_with("<think>"),
        text,
        tokens,
    })
}

/// Takes off what the template put behind the last message, so that the answer goes on in it.
fn reopen(tokenizer: &Tokenizer, tokens: &mut Vec<u32>, text: &mut String) {
    if let Some(at) = tokens.iter().rposition(|id| tokenizer.eos_ids().contains(id)) {
        tokens.truncate(at);
        let name = tokenizer.eos_ids().iter().filter_map(|&id| tokenizer.token_text(id));
        if let Some(at) = name.filter_map(|n| text.rfind(n)).max() {
            text.truncate(at);
        }
    }
}

/// A template's refusal is the client's to mend.
fn refused(chat: &Chat, e: &TemplateError) -> ApiError {
    let by_variables = matches!(e, TemplateError::Failed { .. }) && !chat.template_kwargs.is_empty();
    ApiError::invalid(if by_variables { "chat_template_kwargs" } else { "messages" }, e.to_string())
}

/// Positions before the tokens that end messages: the first of them is the end of instructions and tools. A prompt that goes on
/// with one of these messages finds the snapshot as well as one that goes on behind it. The cache chooses among them.
fn ends_of_messages(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<usize> {
    let is_end = |id: &u32| tokenizer.eos_ids().contains(id);
    tokens.iter().enumerate().filter(|(_, id)| is_end(id)).map(|(i, _)| i).collect()
}

/// A prompt as it stands: the model's own first token, then the text.
pub fn plain(model: &Loaded, prompt: &Prompt) -> Result<Rendered, ApiError> {
    let tokenizer = model.tokenizer();
    let tokens = match prompt {
        Prompt::Tokens(ids) => {
            let known = model.handle.rules().vocab;
            if let Some(id) = ids.iter().find(|id| **id as usize >= known) {
                let what = format!("the token id {id} is not in the vocabulary of {known}");
                return Err(ApiError::invalid("prompt", what));
            }
            ids.clone()
        }
        Prompt::Text(text) => {
            let mut ids: Vec<u32> = tokenizer.bos().into_iter().collect();
            let encoded = tokenizer.encode(text, Special::Parse);
            ids.extend(encoded.map_err(|e| ApiError::invalid("prompt", e.to_string()))?);
            ids
        }
    };
    if tokens.is_empty() {
        return Err(ApiError::invalid(
            "prompt",
            "the prompt is empty, and this model has no token to begin with",
        ));
    }
    let text = match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(ids) => decode(tokenizer, ids, ControlTokens::Show),
    };
    Ok(Rendered { text, tokens, checkpoints: Vec::new(), in_reasoning: false })
}

/// Most tokens to think with, where a client says how much but the template does not know the word.
pub fn effort_budget(effort: Effort) -> Option<u32> {
    match effort {
        Effort::Minimal => Some(512),
        Effort::Low => Some(2048),
        Effort::Medium => Some(8192),
        Effort::High | Effort::XHigh | Effort::Max => None,
    }
}

/// The error of a request that asks for what its model can not do.
pub fn unable(param: &str, model: &str, what: &str) -> ApiError {
    ApiError {
        param: Some(param.into()),
        ..ApiError::new(ErrorKind::InvalidRequest, format!("the model '{model}' {what}"))
    }
}
