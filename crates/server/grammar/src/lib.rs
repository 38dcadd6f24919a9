//! Structured output: computes which tokens may come next, so that an answer is JSON that matches a schema, matches a regular expression or
//! a grammar, is one of several texts, or calls tools. Independent of the engine and models.
//!
//! The grammars are llguidance's. This crate is the layer between it and a server: it checks and limits what requests bring, refuses
//! unsupported features by name and position, stops computations that take too long, and turns tool calls and reasoning before an
//! answer into grammars.
//!
//! ```
//! use octet_grammar::{Constraint, Grammar, GrammarSpec, Token, Vocabulary};
//!
//! // A vocabulary of bytes, and 256 to end an answer.
//! let bytes = (0..=255).map(|b| Token::Text(vec![b]));
//! let tokens = bytes.chain([Token::Special("<end>".into())]);
//! let vocabulary = Vocabulary::new(tokens, &[256], |text| Some(text.bytes().map(u32::from).collect()))?;
//!
//! let spec = GrammarSpec::Choice(vec!["yes".into(), "no".into()]);
//! let grammar = Grammar::compile(&vocabulary, &Constraint { spec, reasoning_end: None, header: None })?;
//! let mut matcher = grammar.matcher();
//! let mut bits = vec![0; vocabulary.len().div_ceil(32)];
//! matcher.mask(&mut bits)?;
//! let allowed = |id: u8| bits[usize::from(id) / 32] >> (id % 32) & 1 == 1;
//! assert!(allowed(b'y') && allowed(b'n') && !allowed(b'm'));
//! matcher.accept(u32::from(b'n'))?;
//! assert_eq!(matcher.forced(), [u32::from(b'o')]);
//! # Ok::<(), octet_grammar::Error>(())
//! ```
//!
//! # Costs
//!
//! A [`Vocabulary`] is built once per model; a [`Grammar`] once per constraint, and should be kept for requests with the same one; a
//! [`Matcher`] for each answer. Masks can be computed while the model processes the previous token: only that token is needed.

mod compile;
mod error;
mod gbnf;
mod lark;
mod limits;
mod matcher;
mod regex;
mod schema;
mod spec;
mod tools;
mod vocabulary;
mod watchdog;

pub use compile::Grammar;
pub use error::Error;
pub use matcher::Matcher;
pub use spec::{Constraint, GrammarSpec, Header, Tool, ToolMode, ToolSyntax};
pub use vocabulary::{TimeLimits, Token, Vocabulary};
