//! What comes out of the parser: pieces while the answer comes, and the whole message. Used by all callers.

/// A piece of an answer, in the order of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta<'a> {
    /// More of what the model thinks; never empty.
    Reasoning(&'a str),
    /// More of the answer; never empty.
    Content(&'a str),
    /// A call of a tool that was given begins; its arguments follow.
    Call {
        /// Which of the answer's calls it is, from 0.
        index: usize,
        /// One of the tools' names.
        name: &'a str,
    },
    /// More of the arguments of the last call, which are a JSON object as text; never empty. They come all at once, and are valid, unless
    /// the syntax has them as JSON: then they come as they are written, and end where the answer does.
    Arguments(&'a str),
}

/// A complete call of a tool that was given. Ids are the caller's to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Which of the answer's calls it is, from 0.
    pub index: usize,
    /// One of the tools' names.
    pub name: String,
    /// A JSON object, as text; its beginning, where the answer ended in it.
    pub arguments: String,
}

/// A whole answer: all deltas of a kind in one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// What the model thought.
    pub reasoning: String,
    /// The answer's text, calls cut out.
    pub content: String,
    /// In their order.
    pub tool_calls: Vec<ToolCall>,
}

impl Message {
    /// Adds what came.
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
