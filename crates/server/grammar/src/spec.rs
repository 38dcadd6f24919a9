//! What an answer must look like. Made from a request by the server, read by `compile`.

use std::sync::Arc;

use octet_parser::{CallSyntax, ReasoningTags, TextTags};
use serde_json::Value;

use crate::Vocabulary;

/// A constraint on an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Constraint {
    /// What the answer must look like.
    pub spec: GrammarSpec,
    /// Where the answer begins in reasoning (the prompt ends with `<think>`): the text that ends it, `</think>`. Until then
    /// all is allowed but the end of the answer.
    pub reasoning_end: Option<String>,
    /// The header before text, in families whose text has one.
    pub header: Option<Header>,
}

/// The header before an answer's text. A constraint on the text begins after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The header, and what follows the text.
    pub text: TextTags,
    /// The tags around reasoning that may come first.
    pub reasoning: Option<ReasoningTags>,
    /// Number of bytes of the header that the prompt has written.
    pub begun: usize,
}

/// What an answer must look like, from its first byte to its last.
#[derive(Debug, Clone, PartialEq)]
pub enum GrammarSpec {
    /// A JSON object, any.
    JsonObject,
    /// JSON that is valid by a schema. Properties come in the schema's order.
    JsonSchema(
        /// The schema. What of it is not supported is refused by name.
        Value,
    ),
    /// Text that a regular expression matches as a whole (Rust's syntax; no look-around, no back-references).
    Regex(String),
    /// Text of a grammar in llguidance's variant of Lark.
    Lark(String),
    /// Text of a grammar in GBNF, llama.cpp's notation.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Calls of tools.
    ToolCalls {
        /// How the model writes calls.
        syntax: ToolSyntax,
        /// The tools.
        tools: Vec<Tool>,
        /// Whether to call, and what.
        mode: ToolMode,
        /// Allow several calls. [`ToolMode::Named`] makes one.
        parallel: bool,
    },
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The function's name.
    pub name: String,
    /// JSON schema of its arguments, an object; `null` where it takes none. Arguments that it does not list are only
    /// allowed where it says `additionalProperties`, or is combined with schemas that list others.
    pub parameters: Value,
    /// Refuse what of the schema cannot be enforced. Otherwise that part of the schema is left out, with a warning.
    pub strict: bool,
}

/// How calls are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolSyntax {
    /// `<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>`: Qwen3-Coder, Qwen3.5.
    Qwen3Coder,
    /// `<tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>`: Hermes, Qwen2.5, Qwen3.
    Hermes,
    /// As a chat template writes them.
    Native(Arc<CallSyntax>),
    /// gpt-oss' messages in channels, of which some are calls.
    Harmony {
        /// One with thoughts may come first.
        may_think: bool,
    },
}

impl ToolSyntax {
    /// Whether calls are recognised by their place at the beginning of the answer, not by a token.
    pub(crate) fn is_recognised_by_position(&self, vocabulary: &Vocabulary) -> bool {
        match self {
            Self::Native(syntax) => syntax.at_start() && vocabulary.special(syntax.trigger()).is_none(),
            Self::Qwen3Coder | Self::Hermes | Self::Harmony { .. } => false,
        }
    }

    /// What begins a call: a token of its own in the models that know calls.
    pub(crate) fn begin(&self) -> &str {
        match self {
            Self::Native(syntax) => syntax.trigger(),
            Self::Qwen3Coder | Self::Hermes => "<tool_call>",
            Self::Harmony { .. } => "<|channel|>",
        }
    }
}

/// Whether a tool is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolMode {
    /// If the model likes: any text until it begins a call, which then is a valid one.
    Auto,
    /// The answer is a call of one of the tools, or several.
    Required,
    /// The answer is one call of this tool.
    Named(String),
}
