//! Errors of compiling constraints and of matching. Part of responses, so written for API clients.

/// Errors of this crate. Text from a request is escaped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    /// The model's vocabulary is unusable.
    #[error("the vocabulary cannot be used for structured output: {0}")]
    Vocabulary(String),
    /// A JSON schema is invalid or uses unsupported keywords. `path` is a JSON pointer into it, `#` the whole.
    #[error("{subject}: at '{path}': {what}")]
    Schema { subject: String, path: String, what: String },
    /// A regular expression is invalid.
    #[error("the regex cannot be used: {0}")]
    Regex(String),
    /// A grammar is invalid.
    #[error("the grammar cannot be used: {0}")]
    Lark(String),
    /// The choices are invalid.
    #[error("the choices cannot be used: {0}")]
    Choice(String),
    /// The tools, or the tool choice, are invalid.
    #[error("the tools cannot be enforced: {0}")]
    Tools(String),
    /// The constraint is valid, but too large or too complex.
    #[error("the constraint is too complex: {0}")]
    TooComplex(String),
    /// Too many constraints are being compiled: a retry may succeed.
    #[error("{0} constraints are being compiled, and some timed out; try again later")]
    Busy(usize),
    /// The constraint does not allow this token.
    #[error("token {id} is not allowed here by the constraint: {why}")]
    Token { id: u32, why: String },
    /// The constraint cannot be matched further.
    #[error("the constraint cannot be followed further: {0}")]
    Step(String),
}
