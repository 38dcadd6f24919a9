//! A request to generate text, independent of dialects. Made by the dialects' parsers; run by the server or sent on by the gateway.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{Image, MemoryHandle, Message, MoreSampling, Part};
use crate::{ApiError, Warning};

/// What to generate, and how. `None` means that the client did not set a value.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    /// The model's name as the client knows it.
    pub model: String,
    /// The prompt or conversation.
    pub input: Input,
    /// Sampling settings.
    pub sampling: Sampling,
    /// Maximum length of the answer in tokens, reasoning included.
    pub max_tokens: Option<u32>,
    /// Minimum length of the answer in tokens.
    pub min_tokens: Option<u32>,
    /// Texts that end the answer and are not part of it. None is empty.
    pub stop: Vec<String>,
    /// Tokens that end the answer.
    pub stop_token_ids: Vec<u32>,
    /// Continue past the model's end-of-text token.
    pub ignore_eos: bool,
    /// Ends of the answer that depend on its lines.
    pub lines: LineLimits,
    /// Number of answers to the same prompt; at least 1.
    pub n: u32,
    /// The client's own limit of the time until the answer is complete, or until its first content if it is streamed.
    pub timeout: Option<Duration>,
    /// Report the log-probability of each token and of this many alternatives.
    pub logprobs: Option<u32>,
    /// The required format of the answer's text.
    pub response_format: ResponseFormat,
    /// The request field that sets it, for errors: `response_format`, `structured_outputs.regex`.
    pub response_format_field: String,
    /// Stream the answer.
    pub stream: bool,
    /// Report token counts at the end of a stream, too. (Whole answers always have them.)
    pub include_usage: bool,
    /// Settings for prompt caches.
    pub cache: CacheOptions,
    /// How long the model stays loaded afterwards.
    pub keep_alive: Option<KeepAlive>,
    /// The context that the client requests, in tokens (Ollama's `num_ctx`).
    pub context_length: Option<u32>,
    /// Further reports besides the answer.
    pub report: Reporting,
    /// Store the answer for a later `previous_response_id`.
    pub store: bool,
    /// The stored answer that the messages continue.
    pub previous_response_id: Option<String>,
    /// The client's end user.
    pub user: Option<String>,
    /// The client's metadata.
    pub metadata: Map<String, Value>,
    /// The dialect family of the request.
    pub origin: Family,
    /// Fields without effect here. A provider of the same family gets those that it knows.
    pub extra: Map<String, Value>,
    /// Accepted fields that have no effect, or not their full effect.
    pub warnings: Vec<Warning>,
    /// The memory that it takes in the server.
    pub memory: MemoryHandle,
}

/// Limits that depend on an answer's lines, as editors' plugins set them. The default has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineLimits {
    /// The answer ends at a line after the first that begins with fewer spaces and tabs than this.
    pub indent: u32,
    /// The answer ends with the first line that is complete this many milliseconds after the first token.
    pub time_ms: Option<u32>,
}

impl GenerateRequest {
    /// A request with nothing else set.
    pub fn new(model: impl Into<String>, input: Input) -> Self {
        Self {
            model: model.into(),
            input,
            sampling: Sampling::default(),
            max_tokens: None,
            min_tokens: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            lines: LineLimits::default(),
            n: 1,
            timeout: None,
            logprobs: None,
            response_format: ResponseFormat::Text,
            response_format_field: "response_format".into(),
            stream: false,
            include_usage: false,
            cache: CacheOptions::default(),
            keep_alive: None,
            context_length: None,
            report: Reporting::default(),
            store: false,
            previous_response_id: None,
            user: None,
            metadata: Map::new(),
            origin: Family::OpenAi,
            extra: Map::new(),
            warnings: Vec::new(),
            memory: MemoryHandle::default(),
        }
    }

    /// The conversation, unless it is a plain completion.
    pub fn chat(&self) -> Option<&Chat> {
        match &self.input {
            Input::Chat(chat) => Some(chat),
            Input::Completion(_) => None,
        }
    }

    /// Its images, in order; documents are not among them.
    pub fn images(&self) -> Box<dyn Iterator<Item = &Image> + '_> {
        let images: Box<dyn Iterator<Item = &Image>> = match &self.input {
            Input::Chat(chat) => {
                Box::new(chat.messages.iter().flat_map(|m| &m.content).filter_map(Part::as_image))
            }
            Input::Completion(completion) => Box::new(completion.prompts.iter().flat_map(Prompt::images)),
        };
        Box::new(images.filter(|image| !image.is_document()))
    }

    /// The same, to replace them.
    pub fn images_mut(&mut self) -> Box<dyn Iterator<Item = &mut Image> + '_> {
        let images: Box<dyn Iterator<Item = &mut Image>> = match &mut self.input {
            Input::Chat(chat) => {
                let parts = chat.messages.iter_mut().flat_map(|m| &mut m.content);
                Box::new(parts.filter_map(Part::as_image_mut))
            }
            Input::Completion(completion) => {
                Box::new(completion.prompts.iter_mut().flat_map(Prompt::images_mut))
            }
        };
        Box::new(images.filter(|image| !image.is_document()))
    }

    /// The conversation, for a provider that takes nothing else.
    ///
    /// # Errors
    /// Plain completions.
    pub fn chat_only(&self) -> Result<&Chat, ApiError> {
        self.chat().ok_or_else(|| {
            ApiError::invalid(
                "prompt",
                "the provider accepts only chats, but this request has a plain prompt",
            )
        })
    }

    /// Whether the tool of this name is a custom tool, which takes text.
    pub fn is_custom(&self, tool: &str) -> bool {
        self.chat().is_some_and(|c| c.tools.iter().any(|t| t.origin.custom && t.name == tool))
    }

    /// Whether the client sent the deprecated `functions` and expects a `function_call`.
    pub fn has_legacy_functions(&self) -> bool {
        self.chat().is_some_and(Chat::has_legacy_functions)
    }

    /// Whether the client receives the model's reasoning.
    pub fn shows_reasoning(&self) -> bool {
        self.chat().is_none_or(|c| !c.reasoning.hide)
    }
}

/// A family of dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Chat completions, completions and responses, with the extras of vLLM and llama.cpp.
    OpenAi,
    /// Messages.
    Anthropic,
    /// `/api/chat` and `/api/generate`.
    Ollama,
    /// `generateContent`.
    Gemini,
}

/// What to continue.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A conversation, rendered by a chat template.
    Chat(Chat),
    /// Plain prompts.
    Completion(Completion),
}

/// A conversation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chat {
    /// The messages, oldest first; at least one.
    pub messages: Vec<Message>,
    /// The tools that the model may call.
    pub tools: Vec<Tool>,
    /// Whether it must call one.
    pub tool_choice: ToolChoice,
    /// Whether it may make several calls in one answer.
    pub parallel_tool_calls: Option<bool>,
    /// Reasoning settings.
    pub reasoning: Reasoning,
    /// Variables of the chat template. `enable_thinking` among them has the value of `reasoning.enabled`.
    pub template_kwargs: Map<String, Value>,
    /// The answer continues the last message, which is the assistant's, instead of following it.
    pub continue_final: bool,
    /// No answer is wanted: the prompt ends with the last message. Set only by [`crate::tokens::apply_template`].
    pub no_answer: bool,
}

impl Chat {
    /// Whether the tools are the deprecated `functions`.
    pub fn has_legacy_functions(&self) -> bool {
        self.tools.iter().any(|t| t.origin.legacy)
    }
}

/// Prompts without a chat template.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completion {
    /// The prompts, one answer each (times `n`): choice `i * n + k` is the `k`-th answer to prompt `i`. At least one.
    pub prompts: Vec<Prompt>,
    /// The answer begins with the prompt, and log-probabilities include it.
    pub echo: bool,
    /// For infill: the text after the answer, and other files. Written in the model's own form.
    pub infill: Option<Infill>,
}

/// The surroundings of an infill answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Infill {
    /// The text after the gap.
    pub suffix: String,
    /// Names and texts of other files, as context.
    pub files: Vec<(String, String)>,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Text to tokenize.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// Texts, tokens and images mixed, in order.
    Mixed(Vec<PromptPart>),
}

/// Bytes that a token stands for, about.
const TOKEN_BYTES: usize = 4;

impl Prompt {
    /// Its size in bytes; each token counts as four.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(ids) => ids.len() * TOKEN_BYTES,
            Self::Mixed(parts) => parts.iter().map(PromptPart::bytes).sum(),
        }
    }

    /// Its images, in order.
    pub(crate) fn images(&self) -> impl Iterator<Item = &Image> {
        let parts = if let Self::Mixed(parts) = self { parts.as_slice() } else { &[] };
        parts.iter().filter_map(|part| if let PromptPart::Image(image) = part { Some(image) } else { None })
    }

    fn images_mut(&mut self) -> impl Iterator<Item = &mut Image> {
        let parts = if let Self::Mixed(parts) = self { parts.as_mut_slice() } else { &mut [] };
        parts
            .iter_mut()
            .filter_map(|part| if let PromptPart::Image(image) = part { Some(image) } else { None })
    }
}

/// A part of a mixed prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptPart {
    /// Text to tokenize.
    Text(String),
    /// A token's id.
    Token(u32),
    /// An image, for a model that sees.
    Image(Image),
}

impl PromptPart {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Token(_) => TOKEN_BYTES,
            // What a model makes of it does not follow from its bytes.
            Self::Image(_) => 0,
        }
    }

    /// The prompt as clients write it; an image as its URL.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Token(id) => (*id).into(),
            Self::Image(image) => image.url().into(),
        }
    }
}

/// Further reports besides the answer, as llama.cpp's and Ollama's clients get them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reporting {
    /// Progress of prompt processing.
    pub progress: bool,
    /// Times with each token.
    pub timings_per_token: bool,
    /// The ids of the answer's tokens.
    pub tokens: bool,
    /// The experts of each token.
    pub experts: bool,
    /// Token ids are part of a whole answer; otherwise only their number is.
    pub whole_tokens: bool,
    /// Log-probabilities after all samplers.
    pub post_sampling: bool,
    /// The prompts and settings as applied.
    pub applied: bool,
    /// The conversation with the answer at its end, for the next request (Ollama's `context`).
    pub conversation: bool,
    /// Paths of the wanted answer fields (`timings/predicted_n`); empty for all.
    pub fields: Vec<String>,
}

/// The client's sampling settings; others come from the model and the server.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sampling {
    /// 0 means greedy.
    pub temperature: Option<f64>,
    /// 0 disables it.
    pub top_k: Option<u32>,
    /// 1 disables it.
    pub top_p: Option<f64>,
    /// 0 disables it.
    pub min_p: Option<f64>,
    /// 1 disables it.
    pub repetition_penalty: Option<f64>,
    /// Number of recent tokens that penalties apply to: 0 none, -1 all.
    pub penalty_last_n: Option<i32>,
    /// -2 to 2.
    pub presence_penalty: Option<f64>,
    /// -2 to 2.
    pub frequency_penalty: Option<f64>,
    /// The same seed gives the same text.
    pub seed: Option<u64>,
    /// Added to the logits of these token ids; -100 to 100, or -inf. Sorted by id, without duplicates.
    pub logit_bias: Vec<(u32, f64)>,
    /// llama.cpp's further samplers.
    pub more: MoreSampling,
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name; not empty, unique in a request.
    pub name: String,
    /// Its purpose.
    pub description: Option<String>,
    /// JSON schema of its arguments, an object.
    pub parameters: Map<String, Value>,
    /// Arguments must match the schema exactly.
    pub strict: Option<bool>,
    /// A cache breakpoint after this tool.
    pub cache: Option<super::CacheBreakpoint>,
    /// The client's form of it, if other than a function of this name.
    pub origin: ToolOrigin,
}

/// The form of a tool in OpenAI's dialects. Default: a function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolOrigin {
    /// Its namespace, and its name within it.
    pub namespace: Option<(String, String)>,
    /// It is a custom tool, which takes text. The model sees a function with one string argument, [`ToolOrigin::INPUT`].
    pub custom: bool,
    /// It comes from the deprecated `functions`: its call is the answer's `function_call`.
    pub legacy: bool,
}

impl ToolOrigin {
    /// The only argument of a custom tool.
    pub const INPUT: &'static str = "input";

    /// The arguments of a custom tool's call.
    pub fn arguments(input: &str) -> String {
        serde_json::json!({ (Self::INPUT): input }).to_string()
    }

    /// The text in such arguments. Other arguments are taken as the text itself.
    pub fn input(arguments: &str) -> String {
        match serde_json::from_str(arguments) {
            Ok(Value::Object(mut object)) => match object.remove(Self::INPUT) {
                Some(Value::String(text)) => text,
                _ => arguments.into(),
            },
            _ => arguments.into(),
        }
    }
}

/// Whether the model must call tools.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// It must not.
    None,
    /// It must call at least one.
    Required,
    /// It must call this one.
    Named(String),
}

/// Settings of the model's reasoning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reasoning {
    /// On or off; `None` leaves it to the model.
    pub enabled: Option<bool>,
    /// Effort.
    pub effort: Option<Effort>,
    /// Maximum number of reasoning tokens.
    pub budget_tokens: Option<u32>,
    /// Do not send it to the client.
    pub hide: bool,
}

/// Reasoning effort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Least.
    Minimal,
    /// Low.
    Low,
    /// Medium.
    Medium,
    /// High.
    High,
    /// Very high.
    XHigh,
    /// Highest.
    Max,
}

impl Effort {
    /// All levels, with their names in every dialect.
    pub const NAMES: [(&str, Self); 6] = [
        ("minimal", Self::Minimal),
        ("low", Self::Low),
        ("medium", Self::Medium),
        ("high", Self::High),
        ("xhigh", Self::XHigh),
        ("max", Self::Max),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }
}

/// The required format of the answer's text.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ResponseFormat {
    /// Any text.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that matches a schema.
    JsonSchema {
        /// The schema's name, if it has one.
        name: Option<String>,
        /// Its purpose.
        description: Option<String>,
        /// The schema: an object, or `true` / `false`.
        schema: Value,
        /// Match exactly.
        strict: Option<bool>,
    },
    /// Text that matches a regular expression as a whole.
    Regex(String),
    /// Text that matches a grammar in Lark's notation.
    Grammar(String),
    /// Text that matches a grammar in GBNF, llama.cpp's notation.
    Gbnf(String),
    /// One of these texts; at least one.
    Choice(Vec<String>),
}

/// Settings for prompt caches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CacheOptions {
    /// `false` computes the whole prompt and stores nothing of it.
    pub prompt: Option<bool>,
    /// Only requests with the same salt share a cache.
    pub salt: Option<String>,
}

/// How long a model stays loaded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeepAlive {
    /// For this many seconds after its last request; 0 unloads it at once.
    Seconds(f64),
    /// Until the server ends.
    Forever,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efforts_have_their_names() {
        for (name, effort) in Effort::NAMES {
            assert_eq!(effort.name(), name);
        }
    }
}
