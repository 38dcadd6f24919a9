//! Renders and tokenizes a conversation, and finds positions in the prompt that are worth a snapshot.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use octet_api::core::{Chat, Effort, Infill, Prompt, PromptPart};
use octet_api::{ApiError, ErrorKind, Warning, shortened};
use octet_engine::detokenizer::{ControlTokens, decode};
use octet_engine::template::{ChatInput, ChatTemplate, TemplateError};
use octet_engine::tokenizer::{self, Bounds, CHUNK_BYTES, EncodeError, Encoded, Special, Tokenizer};
use octet_engine::vision::Resized;
use octet_parser::Start;
use serde_json::{Value, json};

use super::blocking_pool::given_up;
use super::images;
use crate::models::Loaded;

/// A tokenized prompt.
#[derive(Debug, Default)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Its tokens, one for each image.
    pub tokens: Vec<u32>,
    /// Its images, in order.
    pub images: Vec<Arc<Resized>>,
    /// Positions that later prompts probably share.
    pub checkpoints: Vec<usize>,
    /// Where the answer begins: within reasoning, or a header.
    pub start: Start,
    /// Parts of the conversation that were left out.
    pub warnings: Vec<Warning>,
}

impl Rendered {
    /// Number of tokens, with those of images.
    pub fn token_count(&self) -> usize {
        self.tokens.len() + self.images.iter().map(|image| image.prompt_len() - 1).sum::<usize>()
    }
}

/// What the tokens are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// For the model: a prompt that is too long is refused.
    Prompt,
    /// For the model: a prompt that is too long is cut.
    CutPrompt,
    /// To show or count them.
    Count,
}

/// Texts that are only counted may be this many times as long as the context, and at least [`COUNTED_MIN`] tokens: the client wants to
/// know by how much it is too long.
const COUNTED_CONTEXTS: usize = 4;
/// See [`COUNTED_CONTEXTS`].
const COUNTED_MIN: usize = 64 << 10;

/// A tokenization job.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// Its purpose.
    pub purpose: Purpose,
    /// Set when the client disconnects.
    pub gone: &'a AtomicBool,
}

impl Job<'_> {
    /// Maximum number of tokens.
    fn tokens_max(&self, model: &Loaded) -> usize {
        let rules = model.handle.rules();
        let fits = rules.context.min(rules.capacity);
        match self.purpose {
            Purpose::Prompt | Purpose::CutPrompt => fits,
            Purpose::Count => (fits.saturating_mul(COUNTED_CONTEXTS)).max(COUNTED_MIN),
        }
    }

    /// The error for `what`, which exceeds the token limit.
    fn too_long(&self, model: &Loaded, param: &str, what: impl std::fmt::Display) -> ApiError {
        let (rules, tokens_max) = (model.handle.rules(), self.tokens_max(model));
        let counted = if self.purpose == Purpose::Count { ", the maximum for counting" } else { "" };
        let what = format!(
            "{what} exceeds {tokens_max} tokens{counted}; this model's maximum context length is {} tokens, and the KV \
             cache holds {}",
            rules.context, rules.capacity
        );
        ApiError { param: Some(param.into()), ..ApiError::new(ErrorKind::ContextLength, what) }
    }

    /// Each message and each tool takes at least one token, so more of them than tokens are refused before rendering, where a template
    /// would need many times their memory.
    fn check_count(&self, model: &Loaded, chat: &Chat) -> Result<(), ApiError> {
        for (param, n) in [("messages", chat.messages.len()), ("tools", chat.tools.len())] {
            if n > self.tokens_max(model) {
                let what = format!("a request with {n} {param}, of at least one token each,");
                return Err(self.too_long(model, param, what));
            }
        }
        Ok(())
    }

    /// Tokenizes a text. The work is bounded by the token limit, not by the length of the text.
    fn tokens(
        &self,
        model: &Loaded,
        param: &str,
        bytes: usize,
        encode: impl FnOnce(Bounds<'_>) -> Result<Encoded, EncodeError>,
    ) -> Result<Vec<u32>, ApiError> {
        let tokens_max = self.tokens_max(model);
        let too_long = || self.too_long(model, param, format_args!("a text of {bytes} bytes"));
        let cuts = self.purpose == Purpose::CutPrompt;
        if !cuts && model.tokenizer().bytes_max(tokens_max).is_some_and(|most| bytes > most) {
            return Err(too_long());
        }
        let bounds = Bounds { tokens_max, cancelled: self.gone, chunk_bytes: CHUNK_BYTES };
        let encoded = encode(bounds).map_err(|e| match e {
            EncodeError::Cancelled => given_up(),
            e => ApiError::invalid(param, e.to_string()),
        })?;
        // It stops after the piece that exceeds the limit. The engine reports by how much a prompt is too long.
        let counted = self.purpose == Purpose::Count && encoded.tokens.len() > tokens_max;
        if counted || encoded.rest > 0 && !cuts {
            return Err(too_long());
        }
        Ok(encoded.tokens)
    }
}

/// Tokenizes a plain text.
pub fn text(
    model: &Loaded,
    param: &str,
    text: &str,
    special: Special,
    job: Job<'_>,
) -> Result<Vec<u32>, ApiError> {
    job.tokens(model, param, text.len(), |bounds| model.tokenizer().encode_within(text, special, bounds))
}

/// Renders and tokenizes a conversation, which begins as the model's maker wants it.
pub fn chat(model: &Loaded, chat: &Chat, job: Job<'_>) -> Result<Rendered, ApiError> {
    match model.defaults.begin(&chat.messages) {
        Some(messages) => plain_chat(model, &Chat { messages, ..chat.clone() }, job),
        None => plain_chat(model, chat, job),
    }
}

/// Renders and tokenizes these messages alone.
pub fn plain_chat(model: &Loaded, chat: &Chat, job: Job<'_>) -> Result<Rendered, ApiError> {
    let template = model.template.as_ref().map_err(|why| ApiError::invalid("messages", why.clone()))?;
    job.check_count(model, chat)?;
    for name in chat.template_kwargs.keys() {
        let param = format!("chat_template_kwargs.{}", shortened(name));
        let checked = template.check_variable(name);
        checked.map_err(|why| ApiError::invalid(param.clone(), format!("'{param}' {why}")))?;
    }
    let (chat, described) = model.tools.describe(chat);
    let chat = &*chat;
    let mut from = chat.template(model.roles)?;
    from.warnings.extend(described);
    model.tools.shape(&mut from);
    let mut variables = model.template_kwargs.clone();
    variables.extend(from.variables);
    // Kimi K3's, DeepSeek V3.1's and Granite's templates call it so.
    if let Some(enabled) = variables.get("enable_thinking").cloned() {
        variables.entry("thinking").or_insert(enabled);
    }
    let input = ChatInput {
        messages: from.messages,
        tools: from.tools,
        add_generation_prompt: from.add_generation_prompt,
        variables,
        now_s: None,
    };
    let mut prompt = template.render(&input).map_err(|e| refused(chat, &e))?;
    let tokenizer = model.tokenizer();
    if chat.continue_final {
        reopen(template, &input, tokenizer, &mut prompt);
    }
    let images = images::read(model, &from.images, job.tokens_max(model))?;
    if let Some(reader) = model.handle.rules().images.as_ref().filter(|_| !images.is_empty()) {
        reader.surround(&mut prompt, &images);
    }
    let tokens = job.tokens(model, "messages", prompt.text.len(), |bounds| {
        tokenizer.encode_prompt_within(&prompt, bounds)
    })?;
    // Counting computes nothing that could be cached.
    let mut checkpoints = Vec::new();
    if job.purpose != Purpose::Count {
        checkpoints = ends_of_messages(tokenizer, &tokens);
        checkpoints.extend(end_of_tools(model, template, &input, &prompt.text, &tokens));
    }
    let mut start = model.format.start(&prompt.text);
    if chat.continue_final {
        start.header = 0; // the prompt ends with the client's text
    }
    let mut rendered =
        Rendered { checkpoints, start, text: prompt.text, tokens, images, warnings: from.warnings };
    if job.purpose == Purpose::Count {
        rendered.tokens = images::spread(model, rendered.tokens, &std::mem::take(&mut rendered.images));
    }
    Ok(rendered)
}

/// Removes what the template writes after the last message, so that the answer continues that message.
fn reopen(template: &ChatTemplate, input: &ChatInput, tokenizer: &Tokenizer, prompt: &mut tokenizer::Prompt) {
    // Where the message has no text, its end is the last end token.
    let end = end_of_last_text(template, input, &prompt.text).or_else(|| {
        let names = tokenizer.eos_ids().iter().filter_map(|&id| tokenizer.token_text(id));
        names.filter_map(|name| last_token(prompt, name)).max()
    });
    if let Some(end) = end {
        prompt.text.truncate(end);
        prompt.barriers.retain(|&at| at < end);
    }
}

/// Where the last token `name` begins. What only looks like it, in the text of a message, has a barrier within it.
fn last_token(prompt: &tokenizer::Prompt, name: &str) -> Option<usize> {
    let is_token = |at: &usize| {
        let next = prompt.barriers.partition_point(|barrier| barrier <= at);
        prompt.barriers.get(next).is_none_or(|&barrier| barrier >= at + name.len())
    };
    prompt.text.rmatch_indices(name).map(|(at, _)| at).find(is_token)
}

/// Where the text of the last message ends in the rendered `text`: rendered once more with a longer message, what follows the
/// addition is what the template writes after it. The text itself may occur in that, too.
fn end_of_last_text(template: &ChatTemplate, input: &ChatInput, text: &str) -> Option<usize> {
    const ADDED: &str = "octet-probe-end";
    let mut longer = input.clone();
    let content = &mut longer.messages.last_mut()?["content"];
    let last = match content {
        Value::Array(parts) => &mut parts.iter_mut().rfind(|part| part["text"].is_string())?["text"],
        text => text,
    };
    *last = format!("{}{ADDED}", last.as_str().filter(|text| !text.is_empty())?).into();
    let rendered = template.render(&longer).ok()?.text;
    let (_, rest) = rendered.rsplit_once(ADDED)?;
    text.strip_suffix(rest).map(str::len)
}

/// A template's own error is a client error; one of the system is not.
fn refused(chat: &Chat, e: &TemplateError) -> ApiError {
    if matches!(e, TemplateError::NoThread { .. }) {
        return ApiError::new(ErrorKind::Overloaded, e.to_string());
    }
    let by_variables = matches!(e, TemplateError::Failed { .. }) && !chat.template_kwargs.is_empty();
    ApiError::invalid(if by_variables { "chat_template_kwargs" } else { "messages" }, e.to_string())
}

/// Positions before the tokens that end messages; the first is the end of the instructions. There a snapshot serves both a prompt that
/// changes the message's end and one that continues after it. The cache chooses among them. In a long conversation, only messages
/// followed by an answer count, since prompts diverge where a client rewrites an answer (it drops reasoning, or rewrites calls), and
/// the last two.
fn ends_of_messages(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<usize> {
    let is_end = |id: &u32| tokenizer.eos_ids().contains(id);
    let all: Vec<usize> = tokens.iter().enumerate().filter(|(_, id)| is_end(id)).map(|(i, _)| i).collect();
    let Some((&last, before)) = all.split_last() else { return all };
    let alike: Vec<usize> = before.iter().map(|&at| common(&tokens[at..], &tokens[last..])).collect();
    let least = alike.iter().copied().min().unwrap_or(0);
    if alike.iter().all(|&n| n == least) {
        return all; // nothing distinguishes them
    }
    let kept = |i: usize| i == 0 || i + 2 >= all.len() || alike[i] > least;
    (0..all.len()).filter(|&i| kept(i)).map(|i| all[i]).collect()
}

/// Instructions that differ from all others in their first character; a noncharacter, and not one that marks literal text.
const OTHER: &str = "\u{ffff}";

/// The position where the text of the instructions begins, if the template writes the tools before it: clients put a date or a number
/// into the instructions and keep their tools. Found by rendering other instructions, once for each list of tools; `None` if that
/// fails.
fn end_of_tools(
    model: &Loaded,
    template: &ChatTemplate,
    input: &ChatInput,
    text: &str,
    tokens: &[u32],
) -> Option<usize> {
    let instructed = input.messages.first().is_some_and(|m| m["role"] == "system");
    let tools = input.tools.as_ref().filter(|t| instructed && !t.is_empty())?;
    let render = || {
        let message = |role: &str| json!({"role": role, "content": OTHER});
        let other = ChatInput {
            messages: vec![message("system"), message("user")],
            tools: input.tools.clone(),
            add_generation_prompt: input.add_generation_prompt,
            variables: input.variables.clone(),
            now_s: input.now_s,
        };
        let other = template.render(&other).ok()?;
        let tokens = model.tokenizer().encode_prompt(&other).ok()?;
        Some((other.text, tokens))
    };
    Some(common(tokens, &model.tool_prefixes.find(tools, text, render)?))
}

/// Length of the common prefix.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Tokenizes a plain prompt: the model's BOS token, then the text.
pub fn plain(model: &Loaded, prompt: &Prompt, job: Job<'_>) -> Result<Rendered, ApiError> {
    let tokenizer = model.tokenizer();
    let mut images = Vec::new();
    let tokens = match prompt {
        Prompt::Tokens(ids) => {
            known(model, ids)?;
            ids.clone()
        }
        Prompt::Text(asked) => {
            let mut ids = tokenizer.prefix().to_vec();
            ids.extend(text(model, "prompt", asked, Special::Parse, job)?);
            ids
        }
        Prompt::Mixed(parts) => mixed(model, parts, job, &mut images)?,
    };
    if tokens.is_empty() {
        return Err(ApiError::invalid(
            "prompt",
            "the prompt is empty, and this model has no token to begin with",
        ));
    }
    let text = match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(_) | Prompt::Mixed(_) => decode(tokenizer, &tokens, ControlTokens::Show),
    };
    Ok(Rendered { text, tokens, images, ..Rendered::default() })
}

/// Checks that a client's token ids exist.
fn known(model: &Loaded, ids: &[u32]) -> Result<(), ApiError> {
    let known = model.handle.rules().vocab;
    match ids.iter().find(|id| **id as usize >= known) {
        Some(id) => {
            let what = format!("the token id {id} is not in the vocabulary of {known}");
            Err(ApiError::invalid("prompt", what))
        }
        None => Ok(()),
    }
}

/// Texts and tokens mixed. The BOS token is added if the first part is a text.
fn mixed(
    model: &Loaded,
    parts: &[PromptPart],
    job: Job<'_>,
    images: &mut Vec<Arc<Resized>>,
) -> Result<Vec<u32>, ApiError> {
    let begins_with_text = matches!(parts.first(), Some(PromptPart::Text(_)));
    let mut ids = if begins_with_text { model.tokenizer().prefix().to_vec() } else { Vec::new() };
    for part in parts {
        match part {
            PromptPart::Text(asked) => ids.extend(text(model, "prompt", asked, Special::Parse, job)?),
            PromptPart::Token(id) => {
                known(model, &[*id])?;
                ids.push(*id);
            }
            PromptPart::Image(image) => {
                images.extend(images::read(model, std::slice::from_ref(image), job.tokens_max(model))?);
                let alone = model.handle.rules().images.as_ref().map_or("", |r| r.tower.prompt.alone);
                ids.extend(text(model, "prompt", alone, Special::Parse, job)?);
            }
        }
        if ids.len() > job.tokens_max(model) {
            return Err(job.too_long(model, "prompt", "the prompt"));
        }
    }
    Ok(ids)
}

/// Further tokens that end an infill answer.
pub fn infill_ends(model: &Loaded) -> impl Iterator<Item = u32> {
    let fim = model.tokenizer().fim();
    fim.into_iter().flat_map(|f| [f.pad, f.repository, f.file]).flatten()
}

/// Tokens reserved for an infill answer if the request sets no limit.
const INFILL_ANSWER: usize = 256;

/// The prompt of an infill request: other files, the text before the gap, the text after it. If it is too long, text farthest from the
/// gap is left out; three quarters of the context are for the text before it.
pub fn infill(
    model: &Loaded,
    prefix: &Prompt,
    infill: &Infill,
    max_tokens: Option<u32>,
    job: Job<'_>,
) -> Result<Rendered, ApiError> {
    let tokenizer = model.tokenizer();
    let Some(fim) = tokenizer.fim() else {
        return Err(ApiError::invalid(
            "suffix",
            "this model has no fill-in-the-middle tokens; use a code model that has them",
        ));
    };
    let Prompt::Text(prefix) = prefix else {
        return Err(ApiError::invalid("prompt", "with a suffix the prompt must be a text"));
    };
    let cut = Job { purpose: Purpose::Count, ..job };
    let mut before = text(model, "prompt", prefix, Special::Text, cut)?;
    let mut behind = text(model, "suffix", &infill.suffix, Special::Text, cut)?;
    let mut extra = Vec::new();
    for (name, content) in &infill.files {
        let name = if name.is_empty() { "file" } else { name };
        extra.extend(fim.file);
        extra.extend(text(model, "input_extra", &format!("{name}\n{content}\n"), Special::Text, cut)?);
    }
    let rules = model.handle.rules();
    let answer = max_tokens.map_or(INFILL_ANSWER, |n| n as usize);
    let tokens_max = rules.context.min(rules.capacity).saturating_sub(answer.saturating_add(8)).max(4);
    let behind_max = (tokens_max / 4).max(tokens_max.saturating_sub(before.len()));
    behind.truncate(behind_max);
    before.drain(..before.len().saturating_sub(tokens_max - behind.len()));
    extra.drain(..extra.len().saturating_sub(tokens_max - behind.len() - before.len()));
    let mut tokens = tokenizer.prefix().to_vec();
    tokens.extend(extra);
    if !infill.files.is_empty() {
        tokens.extend(fim.file);
    }
    tokens.push(fim.prefix);
    tokens.extend(before);
    tokens.push(fim.suffix);
    tokens.extend(behind);
    tokens.push(fim.middle);
    let text = decode(tokenizer, &tokens, ControlTokens::Show);
    Ok(Rendered { text, tokens, ..Rendered::default() })
}

/// The thinking budget for an effort level that the template does not know.
pub fn effort_budget(effort: Effort) -> Option<u32> {
    match effort {
        Effort::Minimal => Some(512),
        Effort::Low => Some(2048),
        Effort::Medium => Some(8192),
        Effort::High | Effort::XHigh | Effort::Max => None,
    }
}

/// The error for a request that its model cannot serve.
pub fn unable(param: &str, model: &str, what: &str) -> ApiError {
    ApiError {
        param: Some(param.into()),
        ..ApiError::new(ErrorKind::InvalidRequest, format!("the model '{model}' {what}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_token_in_a_message_is_none() {
        let prompt =
            |barriers: &[usize]| tokenizer::Prompt { text: "a</s>b</s>c".into(), barriers: barriers.into() };
        assert_eq!(last_token(&prompt(&[]), "</s>"), Some(6));
        assert_eq!(last_token(&prompt(&[7]), "</s>"), Some(1));
        assert_eq!(last_token(&prompt(&[2, 9]), "</s>"), None);
        // Barriers before and after a token are none within it.
        assert_eq!(last_token(&prompt(&[6, 10]), "</s>"), Some(6));
    }
}
