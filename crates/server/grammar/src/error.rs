//! Why a constraint cannot be compiled, or a token is refused. Part of a request's answer, so written for its sender.

/// Errors of this crate. What comes from a request is escaped where it is repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    /// The model's vocabulary cannot be searched.
    #[error("the vocabulary cannot be used for structured output: {0}")]
    Vocabulary(String),
    /// A JSON schema is wrong or uses what is not supported. `path` is a JSON pointer into it, `#` the whole.
    #[error("{subject}: at '{path}': {what}")]
    Schema { subject: String, path: String, what: String },
    /// A regular expression is wrong.
    #[error("the regex cannot be used: {0}")]
    Regex(String),
    /// A grammar is wrong.
    #[error("the grammar cannot be used: {0}")]
    Lark(String),
    /// The choices are wrong.
    #[error("the choices cannot be used: {0}")]
    Choice(String),
    /// The tools, or what is asked of them, are wrong.
    #[error("the tools cannot be enforced: {0}")]
    Tools(String),
    /// The constraint is well-formed, and too large or too complex to be followed.
    #[error("the constraint is too complex: {0}")]
    TooComplex(String),
    /// Too many constraints are being compiled: the same may do a little later.
    #[error("{0} constraints are being compiled, some longer than was waited for; try again later")]
    Busy(usize),
    /// A token that the constraint does not allow here.
    #[error("token {id} is not allowed here by the constraint: {why}")]
    Token { id: u32, why: String },
    /// The constraint cannot be followed further.
    #[error("the constraint cannot be followed further: {0}")]
    Step(String),
}
