//! Builds the constraint that the engine enforces from a request's response format and tools.

use std::collections::VecDeque;
use std::sync::Arc;

use octet_api::core::{Chat, GenerateRequest, ResponseFormat, ToolChoice};
use octet_api::{ApiError, ErrorKind};
use octet_engine::detokenizer::{ControlTokens, decode};
use octet_engine::engine::Constraint as Follow;
use octet_engine::tokenizer::Tokenizer;
use octet_grammar::{Constraint, Error, GrammarSpec, Header, Matcher, Tool, ToolMode, ToolSyntax};
use octet_parser::{Format, Start};
use serde_json::Value;

use super::prompt::unable;
use crate::models::Loaded;

/// `Retry-After` while other constraints are being compiled.
const RETRY_S: u64 = 5;

/// The constraint on answers.
#[derive(Default)]
pub struct Form {
    /// The constraint, if there is one.
    pub follow: Option<Box<dyn Follow>>,
    /// Requested parts that are not enforced: parts of schemas that no grammar can express.
    pub unenforced: Vec<String>,
    /// The request field that asks for it.
    pub param: Option<String>,
}

/// The constraint for the answers to `request`, which begin at `start`.
pub fn constraint(
    model: &Loaded,
    name: &str,
    request: &GenerateRequest,
    start: Start,
) -> Result<Form, ApiError> {
    let (mut format, field) = (response_format(&request.response_format), &*request.response_format_field);
    let mut unenforced = Vec::new();
    let must_call = request.chat().is_some_and(|c| {
        matches!(c.tool_choice, ToolChoice::Required | ToolChoice::Named(_)) && !c.tools.is_empty()
    });
    if must_call && format.is_some() {
        // As at OpenAI: an answer that is a call has no text.
        unenforced.push(format!("'{field}' has no effect: 'tool_choice' requires a call"));
        format = None;
    }
    let tools = match request.chat() {
        Some(chat) => tool_calls(model, name, chat, format.is_some(), &mut unenforced)?,
        None => None,
    };
    let Format { reasoning, text, .. } = &model.format;
    let reasoning_end = reasoning.as_ref().filter(|_| start.in_reasoning).map(|r| r.close.clone());
    // Completions have no headers, and the last message has its own already if the answer continues it.
    let chat = request.chat().filter(|chat| !chat.continue_final);
    let header = text.as_ref().zip(chat).map(|(text, chat)| Header {
        text: text.clone(),
        reasoning: reasoning.clone().filter(|_| chat.reasoning.enabled != Some(false)),
        begun: start.header,
    });
    let mut matcher = |spec: GrammarSpec, param: &str| -> Result<Matcher, ApiError> {
        let constraint = Constraint { spec, reasoning_end: reasoning_end.clone(), header: header.clone() };
        let (matcher, warnings) = model.matcher(&constraint).map_err(|e| refused(param, &e))?;
        unenforced.extend(warnings);
        Ok(matcher)
    };
    let param = if format.is_some() { field } else { "tools" };
    let format = format.map(|f| matcher(f, field)).transpose()?;
    let tools = tools.map(|t| matcher(t, "tools")).transpose()?;
    let matchers: Vec<Matcher> = format.into_iter().chain(tools).collect();
    if matchers.is_empty() {
        return Ok(Form { unenforced, ..Form::default() });
    }
    let follow = Alternatives {
        matchers,
        bits: Vec::new(),
        last: VecDeque::new(),
        tokenizer: Arc::clone(model.tokenizer()),
    };
    Ok(Form { follow: Some(Box::new(follow)), unenforced, param: Some(param.into()) })
}

fn response_format(format: &ResponseFormat) -> Option<GrammarSpec> {
    Some(match format {
        ResponseFormat::Text => return None,
        ResponseFormat::JsonObject => GrammarSpec::JsonObject,
        // The schema is enforced as it is, whether or not it follows the rules of OpenAI's strict mode.
        ResponseFormat::JsonSchema { schema, .. } => GrammarSpec::JsonSchema(schema.clone()),
        ResponseFormat::Regex(regex) => GrammarSpec::Regex(regex.clone()),
        ResponseFormat::Grammar(lark) => GrammarSpec::Lark(lark.clone()),
        ResponseFormat::Gbnf(text) => GrammarSpec::Gbnf(text.clone()),
        ResponseFormat::Choice(choices) => GrammarSpec::Choice(choices.clone()),
    })
}

/// The part of the constraint that tools require; with a response format (`formatted`), a call is the alternative to it.
fn tool_calls(
    model: &Loaded,
    name: &str,
    chat: &Chat,
    formatted: bool,
    unenforced: &mut Vec<String>,
) -> Result<Option<GrammarSpec>, ApiError> {
    if chat.tools.is_empty() || chat.tool_choice == ToolChoice::None {
        return Ok(None);
    }
    let syntax = match &model.format.tools {
        octet_parser::ToolSyntax::Qwen3Coder => ToolSyntax::Qwen3Coder,
        octet_parser::ToolSyntax::Hermes => ToolSyntax::Hermes,
        octet_parser::ToolSyntax::Harmony => {
            ToolSyntax::Harmony { may_think: chat.reasoning.enabled != Some(false) }
        }
        octet_parser::ToolSyntax::Native(syntax) => ToolSyntax::Native(Arc::clone(syntax)),
        octet_parser::ToolSyntax::None => {
            return Err(unable(
                "tools",
                name,
                "calls no tools: it is served with --tool-call-parser none, or has no chat template",
            ));
        }
    };
    let strict = chat.tools.iter().any(|t| t.strict == Some(true));
    let mode = match &chat.tool_choice {
        ToolChoice::Named(name) => ToolMode::Named(name.clone()),
        ToolChoice::Required => ToolMode::Required,
        ToolChoice::Auto if formatted => ToolMode::Required,
        // A token distinguishes the beginning of a call from text.
        ToolChoice::Auto if strict && !model.tells_calls() => {
            unenforced.push(
                "'strict': the model has no token that begins calls, so calls among text are not enforced"
                    .into(),
            );
            return Ok(None);
        }
        // Free text is allowed, but each call must be valid.
        ToolChoice::Auto if strict => ToolMode::Auto,
        ToolChoice::Auto | ToolChoice::None => return Ok(None),
    };
    let tools = chat.tools.iter().map(|t| Tool {
        name: t.name.clone(),
        parameters: Value::Object(t.parameters.clone()),
        strict: t.strict.unwrap_or(false),
    });
    let parallel = chat.parallel_tool_calls.unwrap_or(true);
    Ok(Some(GrammarSpec::ToolCalls { syntax, tools: tools.collect(), mode, parallel }))
}

fn refused(param: &str, e: &Error) -> ApiError {
    match e {
        Error::Busy(_) => {
            ApiError { retry_after_s: Some(RETRY_S), ..ApiError::new(ErrorKind::Overloaded, e.to_string()) }
        }
        _ => ApiError::invalid(param, e.to_string()),
    }
}

/// Matchers of which an answer must match one. A matcher is dropped when it does not allow the next token.
#[derive(Clone)]
struct Alternatives {
    matchers: Vec<Matcher>,
    /// Buffer for one mask.
    bits: Vec<u32>,
    /// The last tokens of the answer, for error messages.
    last: VecDeque<u32>,
    tokenizer: Arc<Tokenizer>,
}

/// Number of tokens, and of characters, that an error message shows.
const LAST_TOKENS: usize = 16;
/// See [`LAST_TOKENS`].
const LAST_CHARS: usize = 60;

impl Alternatives {
    /// The error if no token is allowed: why, and where.
    fn stuck(&self, why: &str) -> String {
        let last: Vec<u32> = self.last.iter().copied().collect();
        let text = decode(&self.tokenizer, &last, ControlTokens::Show);
        let from = text.char_indices().rev().nth(LAST_CHARS - 1).map_or(0, |(at, _)| at);
        match &text[from..] {
            "" => format!("{why}; nothing was generated yet"),
            end => format!("{why}; the text so far ends with {end:?}"),
        }
    }
}

impl Follow for Alternatives {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        let Some((first, others)) = self.matchers.split_first_mut() else {
            return Err("nothing is allowed".into());
        };
        let mut masked = first.mask(allowed);
        for other in others {
            self.bits.resize(allowed.len(), 0);
            masked = masked.and_then(|()| other.mask(&mut self.bits));
            allowed.iter_mut().zip(&self.bits).for_each(|(a, b)| *a |= b);
        }
        masked.map_err(|e| self.stuck(&e.to_string()))
    }

    fn accept(&mut self, id: u32) -> Result<(), String> {
        let mut refused = None;
        self.matchers.retain_mut(|m| m.accept(id).map_err(|e| refused = Some(e.to_string())).is_ok());
        if let Some(why) = refused.filter(|_| self.matchers.is_empty()) {
            return Err(self.stuck(&why));
        }
        if self.last.len() == LAST_TOKENS {
            self.last.pop_front();
        }
        self.last.push_back(id);
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.matchers.iter().all(Matcher::is_finished)
    }

    fn forced(&mut self, most: usize, forced: &mut Vec<u32>) {
        // With several possible grammars, each may force another token.
        if let [only] = &mut self.matchers[..] {
            forced.extend(only.forced().into_iter().take(most));
        }
    }

    fn fork(&self) -> Box<dyn Follow> {
        Box::new(self.clone())
    }
}
