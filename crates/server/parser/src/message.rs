//! The parser's input and output: tools; deltas while the answer is generated, and the whole message.

use serde_json::Value;

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The function's name.
    pub name: String,
    /// JSON schema of its arguments; `null` if there is none.
    pub parameters: Value,
}

/// A piece of an answer, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta<'a> {
    /// Reasoning; never empty.
    Reasoning(&'a str),
    /// Text; never empty.
    Content(&'a str),
    /// Begins a call of one of the given tools; its arguments follow.
    Call {
        /// The call's index in the answer.
        index: usize,
        /// The tool's name.
        name: &'a str,
    },
    /// More arguments of the last call, a JSON object as text; never empty. If the syntax writes JSON, they are streamed as written
    /// and may be truncated with the answer; otherwise they come at once and are valid.
    Arguments(&'a str),
}

/// A call of one of the given tools. Ids are assigned by the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The call's index in the answer.
    pub index: usize,
    /// The tool's name, one of the request's tools.
    pub name: String,
    /// A JSON object as text; truncated if the answer ended within it.
    pub arguments: String,
}

/// A whole answer: all deltas, concatenated by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Reasoning.
    pub reasoning: String,
    /// Text, without calls.
    pub content: String,
    /// Calls, in order.
    pub tool_calls: Vec<ToolCall>,
}

impl Message {
    /// Adds a delta.
    pub fn add(&mut self, delta: Delta<'_>) {
        match delta {
            Delta::Reasoning(text) => self.reasoning.push_str(text),
            Delta::Content(text) => self.content.push_str(text),
            Delta::Call { index, name } => {
                self.tool_calls.push(ToolCall { index, name: name.into(), arguments: String::new() });
            }
            Delta::Arguments(text) => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.arguments.push_str(text);
                }
            }
        }
    }
}
