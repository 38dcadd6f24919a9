//! Parses an answer's text into reasoning, text and tool calls, streamed or not.
//!
//! One [`Parser`] parses one answer. It receives pieces of text and emits [`Delta`]s, whose contents do not depend on where the pieces
//! end. It trusts nothing: what is not reasoning or a valid call is text, as generated.
//!
//! ```
//! use octet_parser::{Format, Message, Options, ReasoningTags, Start, Tool, parse};
//! use serde_json::json;
//!
//! let format = Format { reasoning: Some(ReasoningTags::default()), tools: "qwen3_coder".parse()?, text: None };
//! let tools = [Tool { name: "sum".into(), parameters: json!({"properties": {"n": {"type": "integer"}}}) }];
//! let text = "Easy.\n</think>\n\n<tool_call>\n<function=sum>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>";
//! let message: Message = parse(format, Start { in_reasoning: true, header: 0 }, &tools[..], Options::default(), text);
//! assert_eq!(message.reasoning, "Easy.");
//! assert_eq!(message.tool_calls[0].arguments, r#"{"n": 3}"#);
//! # Ok::<(), octet_parser::UnknownName>(())
//! ```
//!
//! # What counts as what
//!
//! - **Reasoning** is the text before `</think>`, in an answer that begins with `<think>` or whose prompt ends with it. `</think>`
//!   again, with nothing but white space since the last one or since a call, is markup; anywhere else it is text. Some families have other tags ([`ReasoningTags`]); the same rules apply to them.
//! - **A call** is recognised if tools were given. It is emitted when it is complete and names one of them; until then it is held
//!   back. A call that is malformed, unfinished or names another function is text as a whole: nothing inside it is parsed as a call.
//! - **A call in the middle of the reasoning** is a call, and ends the reasoning. An invalid one stays reasoning.
//! - **An answer that is cut** at its maximum length ends with [`Parser::finish_cut`]: a call that has begun and is not emitted yet is
//!   dropped, and so is a partial tag.
//! - **White space.** The newlines that templates write next to tags belong to the tags: one after `<think>` and one before
//!   `</think>`, up to two after it, up to two (Hermes: one) between text and a call. White space alone is neither reasoning nor text,
//!   if a tag follows it. So a message that is rendered again is the text that the model wrote. Text on both sides of calls keeps the
//!   white space between.
//!
//! # Leniency
//!
//! Models forget, repeat and misplace tags. A call is read as long as its name and all its arguments are clear:
//!
//! - Any one tag of a call may be missing, as long as its name and keys are there: the first, if a tag of the syntax follows; the last, at
//!   the answer's end and where the next call begins. A value without the tag that names it is the only required one that is missing. A
//!   value never holds the next call.
//! - Tags may come twice. Closing tags behind a call, and tags and wrappers (`<function_calls>`) right before one, are not text.
//! - A value that is no string by its schema holds no tags.
//! - In frames of control tokens (Kimi K3), any one token may be missing or come twice.
//! - A call without any tag is one if it is all of the answer: a JSON object with a tool's name and its arguments and nothing else, or the
//!   rest of the syntax as it is behind its first tag.
//! - In channels (gpt-oss), a message may begin without its tag: behind a header, text is the message.
//!
//! A call that is not clear is text with all its tags.
//!
//! Arguments stay as written, but a number is an integer if its schema says so: `5.0` becomes `5`. [`Parser::changes`] says what was
//! changed.

mod changes;
mod coerce;
mod derive;
mod dumps;
mod format;
mod frames;
mod harmony;
mod hermes;
mod integers;
mod json;
mod message;
mod native;
mod nested;
mod object;
mod parser;
mod reasoning;
mod syntax;
mod tagged;
mod tags;
mod text;
mod types;
mod written;
mod xml;

pub use changes::Changes;
pub use derive::{Derived, History, Ids, ReasoningPlace, TextBesideCalls, ToolsVariable, derive};
pub use dumps::json_dumps;
pub use format::{Format, ReasoningFormat, ToolSyntax, UnknownName};
pub use message::{Delta, Message, Tool, ToolCall};
pub use parser::{Options, Parser, parse};
pub use reasoning::ReasoningTags;
pub use syntax::{Arguments, CallSyntax, JsonType, Keys, Nested, Piece, Tagged, tags};
pub use text::{Start, TextTags};
pub use types::Types;
