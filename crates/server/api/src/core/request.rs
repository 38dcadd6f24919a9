//! A request to generate text, in no dialect. Made by the dialects' parsers; run by the server, sent on by the gateway.

use serde_json::{Map, Value};

use super::{Message, MoreSampling};
use crate::Warning;

/// What to generate, and how. `None` always means that the client did not say.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    /// The model's name as the client knows it.
    pub model: String,
    /// What to continue.
    pub input: Input,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Longest answer in tokens, reasoning included.
    pub max_tokens: Option<u32>,
    /// Tokens before which the answer may not end.
    pub min_tokens: Option<u32>,
    /// Texts that end the answer and are not part of it. None of them is empty.
    pub stop: Vec<String>,
    /// Tokens that end the answer.
    pub stop_token_ids: Vec<u32>,
    /// Go on past the model's own end of text.
    pub ignore_eos: bool,
    /// Answers to the same prompt; at least 1.
    pub n: u32,
    /// Log-probability of every token, and of this many most probable ones.
    pub logprobs: Option<u32>,
    /// What the answer's text must look like.
    pub response_format: ResponseFormat,
    /// The field that says so, for errors: `response_format`, `structured_outputs.regex`.
    pub response_format_field: String,
    /// Answer in pieces.
    pub stream: bool,
    /// Count tokens at the end of a stream too. (Whole answers always count.)
    pub include_usage: bool,
    /// How prompt caches are to be used.
    pub cache: CacheOptions,
    /// How long the model stays loaded afterwards.
    pub keep_alive: Option<KeepAlive>,
    /// The context that the client wants to have, in tokens (Ollama's `num_ctx`).
    pub context_length: Option<u32>,
    /// What to report besides the answer.
    pub report: Reporting,
    /// Keep the answer for a later `previous_response_id`.
    pub store: bool,
    /// A kept answer that the messages follow.
    pub previous_response_id: Option<String>,
    /// Whom the client asks for.
    pub user: Option<String>,
    /// The client's own notes.
    pub metadata: Map<String, Value>,
    /// Whose dialect the request came in.
    pub origin: Family,
    /// Fields that have no effect here, as they came. A provider of the same family gets those that it knows.
    pub extra: Map<String, Value>,
    /// What was accepted and has no effect, or not all of its effect.
    pub warnings: Vec<Warning>,
}

impl GenerateRequest {
    /// Everything unsaid.
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
            n: 1,
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
        }
    }

    /// The conversation, unless it is a plain completion.
    pub fn chat(&self) -> Option<&Chat> {
        match &self.input {
            Input::Chat(chat) => Some(chat),
            Input::Completion(_) => None,
        }
    }

    /// Whether the tool of this name takes a text.
    pub fn is_custom(&self, tool: &str) -> bool {
        self.chat().is_some_and(|c| c.tools.iter().any(|t| t.origin.custom && t.name == tool))
    }

    /// Whether the client is to see the model's reasoning.
    pub fn shows_reasoning(&self) -> bool {
        self.chat().is_none_or(|c| !c.reasoning.hide)
    }
}

/// Whose dialect.
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
    /// A conversation, which a chat template makes a prompt of.
    Chat(Chat),
    /// Prompts as they stand.
    Completion(Completion),
}

/// A conversation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chat {
    /// Oldest first; at least one.
    pub messages: Vec<Message>,
    /// What the model may call.
    pub tools: Vec<Tool>,
    /// Whether it must.
    pub tool_choice: ToolChoice,
    /// Whether it may call several at once.
    pub parallel_tool_calls: Option<bool>,
    /// How the model thinks.
    pub reasoning: Reasoning,
    /// Variables of the chat template. Where they hold `enable_thinking`, `reasoning.enabled` says the same.
    pub template_kwargs: Map<String, Value>,
    /// The answer goes on with the last message, which is the assistant's, instead of following it.
    pub continue_final: bool,
    /// Nothing is to be answered: the prompt ends with the last message. Only [`crate::tokens::apply_template`] asks for it.
    pub no_answer: bool,
}

/// Prompts without a chat template.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completion {
    /// One answer each (times `n`): choice `i * n + k` is the `k`-th answer to prompt `i`. At least one.
    pub prompts: Vec<Prompt>,
    /// The answer begins with the prompt, and log-probabilities cover it.
    pub echo: bool,
    /// The answer stands between the prompt and what this has, which is put into the model's own form.
    pub infill: Option<Infill>,
}

/// What stands around an answer that fills a gap.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Infill {
    /// The text behind the gap.
    pub suffix: String,
    /// Other files, by name and text: what the model may look at.
    pub files: Vec<(String, String)>,
}

/// One prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Text to tokenize.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// Both, in order.
    Mixed(Vec<PromptPart>),
}

/// A part of a prompt that is made of texts and tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptPart {
    /// Text to tokenize.
    Text(String),
    /// A token's id.
    Token(u32),
}

impl PromptPart {
    /// As clients write it.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Token(id) => (*id).into(),
        }
    }
}

/// What to report besides the answer, as requested by llama.cpp's clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reporting {
    /// How far the prompt is processed, while it is.
    pub progress: bool,
    /// Times with every token.
    pub timings_per_token: bool,
    /// The ids of the answer's tokens.
    pub tokens: bool,
    /// The experts that chose each token.
    pub experts: bool,
    /// They are part of a whole answer; otherwise they are only counted there.
    pub whole_tokens: bool,
    /// Log-probabilities are those after all samplers.
    pub post_sampling: bool,
    /// The prompts and the settings that were applied.
    pub applied: bool,
    /// Fields of the answer that are wanted, by their paths (`timings/predicted_n`); all, where there are none.
    pub fields: Vec<String>,
}

/// Sampling settings that the client gives; what it does not give comes from the model and the server.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: Option<f64>,
    /// 0 keeps all.
    pub top_k: Option<u32>,
    /// 1 keeps all.
    pub top_p: Option<f64>,
    /// 0 keeps all.
    pub min_p: Option<f64>,
    /// 1 is off.
    pub repetition_penalty: Option<f64>,
    /// How many of the last tokens the penalties look at: 0 none, -1 all.
    pub penalty_last_n: Option<i32>,
    /// -2 to 2.
    pub presence_penalty: Option<f64>,
    /// -2 to 2.
    pub frequency_penalty: Option<f64>,
    /// Same seed, same text.
    pub seed: Option<u64>,
    /// Added to the logits of these token ids; -100 to 100, or -inf. Ascending ids, none twice.
    pub logit_bias: Vec<(u32, f64)>,
    /// llama.cpp's further samplers.
    pub more: MoreSampling,
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name; not empty, unique in a request.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of its arguments, an object.
    pub parameters: Map<String, Value>,
    /// Arguments must follow the schema to the letter.
    pub strict: Option<bool>,
    /// The prompt up to here is worth keeping.
    pub cache: Option<super::CacheBreakpoint>,
    /// What it is to the client, where that is more than a function of this name.
    pub origin: ToolOrigin,
}

/// What a tool is to OpenAI's clients. The default is a function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolOrigin {
    /// The namespace that it stands in, and its name there.
    pub namespace: Option<(String, String)>,
    /// It takes a text. The model sees a function of one string, [`ToolOrigin::INPUT`].
    pub custom: bool,
}

impl ToolOrigin {
    /// The only argument of a tool that takes a text.
    pub const INPUT: &'static str = "input";

    /// The arguments of a call of a tool that takes a text.
    pub fn arguments(input: &str) -> String {
        serde_json::json!({ (Self::INPUT): input }).to_string()
    }

    /// The text in such arguments. What a model wrote otherwise is taken for the text.
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

/// Whether the model calls tools.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// Never.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// How the model thinks before it answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reasoning {
    /// On or off; `None` leaves it to the model.
    pub enabled: Option<bool>,
    /// How much.
    pub effort: Option<Effort>,
    /// Most tokens to think with.
    pub budget_tokens: Option<u32>,
    /// The client does not want to see it.
    pub hide: bool,
}

/// How much a model thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Hardly.
    Minimal,
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// More.
    XHigh,
    /// As much as it can.
    Max,
}

impl Effort {
    /// All, with the names that every dialect has for them.
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

/// What the answer's text must look like.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ResponseFormat {
    /// Anything.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON of a schema.
    JsonSchema {
        /// The schema's name, where it has one.
        name: Option<String>,
        /// What it is for.
        description: Option<String>,
        /// The schema: an object, or `true` / `false`.
        schema: Value,
        /// To the letter.
        strict: Option<bool>,
    },
    /// A regular expression matches the whole answer.
    Regex(String),
    /// A grammar in Lark's notation.
    Grammar(String),
    /// A grammar in llama.cpp's notation, GBNF.
    Gbnf(String),
    /// One of these texts; at least one.
    Choice(Vec<String>),
}

/// How prompt caches are to be used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CacheOptions {
    /// `false` computes the whole prompt anew and keeps nothing of it.
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
